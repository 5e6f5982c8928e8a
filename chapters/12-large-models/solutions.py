"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

from d2lps.notebook.grading import edited


def state_bytes(params, ranks, stage):
    part = -(-params // ranks)
    weights = 2 * (part if stage >= 3 else params)
    gradients = 2 * (part if stage >= 2 else params)
    state = 12 * (part if stage >= 1 else params)
    return weights + gradients + state


def fully_sharded(layers):
    last = len(layers) - 1
    todo = []
    for k in range(len(layers)):
        todo += [("gather", k), ("forward", k)]
        todo += [("free", k)] if k < last else []
    for k in reversed(range(len(layers))):
        todo += [("gather", k)] if k < last else []
        todo += [("backward", k), ("free", k), ("reduce", k)]
    return todo + [("update", k) for k in range(len(layers))]


FREE, AGAIN = '[("free", k)] if k < last else []', '[("gather", k)] if k < last else []'
WRONG = {
    "state-bytes": {
        "no-copy": [edited(state_bytes, ("12 *", "8 *"))],
        "all-float32": [edited(state_bytes, ("weights = 2", "weights = 4"), ("gradients = 2", "gradients = 4"), ("12 *", "8 *"))],
        "mean-part": [edited(state_bytes, ("-(-params // ranks)", "params / ranks"))],
        "late": [edited(state_bytes, ("stage >= 3", "stage > 3"))],
        "early": [edited(state_bytes, ("stage >= 3", "stage >= 2"))],
        "all-ranks": [lambda params, ranks, stage: ranks * state_bytes(params, ranks, stage)],
        "differs": [lambda params, ranks, stage: state_bytes(params, ranks, stage) / 1e9],
    },
    "fully-sharded": {
        "gathers-first": [edited(fully_sharded, ("todo = []", 'todo = [("gather", k) for k in range(len(layers))]'),
                                 ('("gather", k), ("forward"', '("forward"'), (FREE, "[]"), (AGAIN, "[]"))],
        "never-frees": [edited(fully_sharded, ('("free", k), ("reduce"', '("reduce"'), (FREE, "[]"), (AGAIN, "[]"))],
        "no-second-gather": [edited(fully_sharded, (AGAIN, "[]"))],
        "late-reduce": [edited(fully_sharded, (', ("reduce", k)]', "]"), (
            "return todo", 'return todo + [("reduce", k) for k in range(len(layers))]'))],
        "order": [edited(fully_sharded, ('("free", k), ("reduce"', '("update", k), ("free", k), ("reduce"'),
                         (' + [("update", k) for k in range(len(layers))]', ""))],
        "other-count": [edited(fully_sharded, (', ("reduce", k)]', "]"))],
        "too-many-bytes": [edited(fully_sharded, (FREE, '[("free", k)]'), (AGAIN, '[("gather", k)]'))],
        "wrong-type": [lambda layers: "gather"],
    },
}

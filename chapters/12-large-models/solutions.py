"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
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


RULES = {
    "state-bytes": {
        "bytes": "differs",
        "mixed precision": "all-float32",
        "Adam, with a copy in 32 bits": "no-copy",
        "whole parameters": "mean-part",
        "the fullest rank": ("-(-params // ranks)", "params // ranks"),
        "one rank": "all-ranks",
        "weights are shared out in stage 3": "late",
        "and not before": "early",
        "gradients in stage 2": ("stage >= 2", "stage >= 3"),
        "the state in stage 1": ("stage >= 1", "stage >= 2"),
    },
    "fully-sharded": {
        "a list of acts": "wrong-type",
        "with these words": ('("update", k) for', '("step", k) for'),
        "for each layer": "other-count",
        "backward needs whole weights": "no-second-gather",
        "forward, too": ('("gather", k), ("forward", k)', '("forward", k), ("gather", k)'),
        "update needs reduced gradients": "order",
        "at most two layers have whole weights": "gathers-first",
        "at most two whole gradients": "late-reduce",
        "in the end none has whole weights": ('("free", k), ("reduce"', '*[("free", k)] * (k > 0), ("reduce"'),
        "free gives weights back": "never-frees",
        "no byte more": "too-many-bytes",
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""


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


# What learners write instead. Each answer does one thing wrong.


def state_of(kinds=(2, 2, 12), since=(3, 2, 1), part=lambda params, ranks: -(-params // ranks)):
    def answer(params, ranks, stage):
        own = part(params, ranks)
        return sum(size * (own if stage >= first else params) for size, first in zip(kinds, since))
    return answer


def sharded_of(gather_first=False, free=True, again=True, keep_last=True, reduce_last=False, update_first=False):
    def answer(layers):
        last, todo, late = len(layers) - 1, [], []
        if gather_first:
            todo += [("gather", k) for k in range(len(layers))]
        for k in range(len(layers)):
            todo += [] if gather_first else [("gather", k)]
            todo += [("forward", k)]
            if free and not gather_first and (k < last or not keep_last):
                todo += [("free", k)]
        for k in reversed(range(len(layers))):
            if again and free and not gather_first and (k < last or not keep_last):
                todo += [("gather", k)]
            todo += [("backward", k)]
            todo += [("update", k)] if update_first else []
            todo += [("free", k)] if free else []
            (late if reduce_last else todo).append(("reduce", k))
        todo += late
        return todo if update_first else todo + [("update", k) for k in range(len(layers))]
    return answer


WRONG = {
    "state-bytes": {
        "no-copy": [state_of((2, 2, 8))],
        "all-float32": [state_of((4, 4, 8))],
        "mean-part": [state_of(part=lambda params, ranks: params / ranks)],
        "late": [state_of(since=(9, 9, 9))],
        "early": [state_of(since=(2, 2, 1))],
        "all-ranks": [lambda params, ranks, stage: ranks * state_bytes(params, ranks, stage)],
        "differs": [lambda params, ranks, stage: state_bytes(params, ranks, stage) / 1e9],
    },
    "fully-sharded": {
        "gathers-first": [sharded_of(gather_first=True)],
        "never-frees": [sharded_of(free=False)],
        "no-second-gather": [sharded_of(again=False)],
        "late-reduce": [sharded_of(reduce_last=True)],
        "order": [sharded_of(update_first=True)],
        "other-count": [lambda layers: [each for each in fully_sharded(layers) if each[0] != "reduce"]],
        "too-many-bytes": [sharded_of(keep_last=False)],
        "wrong-type": [lambda layers: "gather"],
    },
}

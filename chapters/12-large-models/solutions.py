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


def state_of(kinds=(2, 2, 12), since=(3, 2, 1), part=lambda params, ranks: -(-params // ranks), scale=1):
    def answer(params, ranks, stage):
        own = part(params, ranks)
        return sum(size * (own if stage >= first else params) for size, first in zip(kinds, since)) / scale
    return answer


def of_all_ranks(params, ranks, stage):
    return ranks * state_bytes(params, ranks, stage)


def only_own_kind(params, ranks, stage):
    """Stage 2 divides gradients only, stage 3 weights only."""
    part, kinds = -(-params // ranks), {3: 2, 2: 2, 1: 12}
    return 16 * params - kinds.get(stage, 0) * (params - part)


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


def changed(change):
    return lambda layers: change(fully_sharded(layers))


def without(kind):
    return changed(lambda todo: [each for each in todo if each[0] != kind])


def prefetched_backward(layers):
    """Gathers two layers ahead in the backward pass."""
    count = 3 * len(layers) - 1
    todo, last = fully_sharded(layers)[:count], len(layers) - 1
    todo += [("gather", k) for k in range(last - 1, max(last - 3, -1), -1)]
    for k in range(last, -1, -1):
        todo += [("gather", k - 3)] if k >= 3 else []
        todo += [("backward", k), ("free", k), ("reduce", k)]
    return todo + [("update", k) for k in range(last + 1)]


def first_layers_first(layers):
    """Goes through the layers in the backward pass as in the forward pass."""
    todo, last = fully_sharded(layers)[: 3 * len(layers) - 1], len(layers) - 1
    for k in range(last + 1):
        todo += ([("gather", k)] if k < last else []) + [("backward", k), ("free", k), ("reduce", k)]
    return todo + [("update", k) for k in range(last + 1)]


def prefetched(layers):
    """Gathers three layers ahead."""
    todo, last = [("gather", k) for k in range(min(3, len(layers)))], len(layers) - 1
    for k in range(len(layers)):
        todo += [("forward", k)] + ([("free", k)] if k < last else [])
        todo += [("gather", k + 3)] if k + 3 <= last else []
    return todo + fully_sharded(layers)[3 * len(layers) - 1 :]


WRONG = {
    "state-bytes": {
        "no-copy": [state_of((2, 2, 8)), state_of((2, 2, 8.0))],
        "all-float32": [state_of((4, 4, 8)), state_of((4, 4, 12))],
        "mean-part": [state_of(part=lambda params, ranks: params / ranks), state_of(part=lambda params, ranks: params // ranks)],
        "late": [state_of(since=(9, 9, 9)), lambda params, ranks, stage: 16 * params, only_own_kind, state_of(since=(3, 3, 1)), state_of(since=(4, 2, 1)),
                 state_of((2, 2, 4, 8), (3, 2, 4, 1)), lambda params, ranks, stage: state_bytes(params, ranks, stage - 1)],
        "early": [state_of(since=(2, 2, 1)), state_of(since=(1, 1, 1)), state_of(since=(3, 1, 1)), state_of(since=(2, 1, 0)),
                  lambda params, ranks, stage: state_bytes(params, ranks, stage + 1)],
        "all-ranks": [of_all_ranks],
        "not-bytes": [state_of(scale=1e9), state_of(scale=2**30), lambda params, ranks, stage: f"{state_bytes(params, ranks, stage)} B", lambda params, ranks, stage: (2, 2, 12)],
        "other": [state_of((1, 2, 12)), state_of((2, 2, 10))],
        "raised": [lambda params, ranks, stage: params / 0],
    },
    "fully-sharded": {
        "gathers-first": [sharded_of(gather_first=True), prefetched, prefetched_backward],
        "never-frees": [sharded_of(free=False), sharded_of(gather_first=True, free=False), changed(lambda todo: todo[: todo.index(("backward", 0)) + 1] + todo[todo.index(("backward", 0)) + 2 :])],
        "no-second-gather": [sharded_of(again=False)],
        "late-reduce": [sharded_of(reduce_last=True), changed(lambda todo: sorted(todo, key=lambda each: each[0] in ("reduce", "update")))],
        "order": [sharded_of(update_first=True), first_layers_first, changed(lambda todo: [each for each in todo if each[0] != "reduce"] + [each for each in todo if each[0] == "reduce"]),
                  changed(lambda todo: [*todo, ("free", 0)]), changed(lambda todo: [each for one in todo for each in ([one, one] if one[0] == "free" else [one])]),
                  without("gather"), changed(lambda todo: [todo[0], *todo]), changed(lambda todo: [todo[1], todo[0], *todo[2:]]),
                  changed(lambda todo: sorted(todo, key=lambda each: each[0] == "backward"))],
        "other-count": [without("reduce"), without("update"), without("backward"), without("forward"), changed(lambda todo: [*todo, todo[-1]]), changed(lambda todo: todo[:2] + todo[1:])],
        "too-many-bytes": [sharded_of(keep_last=False), changed(lambda todo: [todo[0], ("free", 0), *todo]), changed(lambda todo: [*todo, ("gather", 0), ("free", 0)])],
        "not-a-list": [lambda layers: "gather", lambda layers: [("gather", 0, 1)], lambda layers: [("all-reduce", 0)], lambda layers: [("gather", len(layers))]],
        "raised": [lambda layers: layers[99]],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import torch

from d2lps.scaling import GPUS, Layout, kept, step


def choose(model, gpus, memory, per_node, batch):
    best, shortest = None, float("inf")
    for t in range(1, per_node + 1):
        for p in range(1, model.layers + 1):
            d = gpus // (t * p)
            if gpus % (t * p) or per_node % t or model.heads % t or model.layers % p or batch % d:
                continue
            layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
            seconds = sum(step(model, layout, GPUS["a100"], per_node=per_node).values())
            if sum(kept(model, layout).values()) <= memory and seconds < shortest:
                best, shortest = (t, p, d), seconds
    return best


def experts(x, choice, gate, ranks, capacity, exchange, expert):
    rows = [(choice == e).nonzero().flatten()[:capacity] for e in range(ranks)]
    arrived = exchange([x[row] for row in rows])
    made = expert(torch.cat(arrived)).split([len(part) for part in arrived])
    returned = exchange(list(made))
    y = torch.zeros_like(x)
    for row, part in zip(rows, returned):
        y[row] = part * gate[row, None]
    return y


# What learners write instead. Each answer does one thing wrong.


def searched(least, room=1.0, without="", items=None):
    """Take the least of ``least(layout, seconds, need)`` among those that fit and pass all rules but one."""
    def answer(model, gpus, memory, per_node, batch):
        best = {}
        for t in range(1, per_node + 1):
            for p in range(1, model.layers + 1):
                d = gpus // (t * p)
                rules = {"per_node": per_node % t, "heads": model.heads % t, "layers": model.layers % p, "batch": batch % (d or 1)}
                if d < 1 or batch < d or gpus % (t * p) or any(rest for name, rest in rules.items() if name != without):
                    continue
                layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
                need = kept(model, layout)
                seconds = sum(step(model, layout, GPUS["a100"], per_node=per_node).values())
                used = sum(need.values()) if items is None else sum(need[name] for name in items)
                if used <= room * memory:
                    best[t, p, d] = least(layout, seconds, sum(need.values()))
        return min(best, key=best.get) if best else None
    return answer


def fastest(layout, seconds, need):
    return seconds


def one_node(model, gpus, memory, per_node, batch):
    """As many GPUs for every matrix as there are heads, up to all GPUs."""
    t = max(t for t in range(1, gpus + 1) if gpus % t == 0 and model.heads % t == 0)
    return t, 1, gpus // t


def experts_of(rows=None, combine=None, times=1):
    def first(choice, ranks, capacity):
        return [(choice == e).nonzero().flatten()[:capacity] for e in range(ranks)]

    def weigh(y, x, rows, returned, gate):
        for row, part in zip(rows, returned):
            y[row] = part * gate[row, None] ** times
        return y

    def answer(x, choice, gate, ranks, capacity, exchange, expert):
        mine = (rows or first)(choice, ranks, capacity)
        arrived = exchange([x[row] for row in mine])
        returned = exchange(list(expert(torch.cat(arrived)).split([len(part) for part in arrived])))
        return (combine or weigh)(torch.zeros_like(x), x, mine, returned, gate)
    return answer


def all_rows(choice, ranks, capacity):
    return [(choice == e).nonzero().flatten() for e in range(ranks)]


def capacity_of_all(choice, ranks, capacity):
    """The capacity is shared by all experts."""
    kept = torch.arange(len(choice)) < capacity
    return [((choice == e) & kept).nonzero().flatten() for e in range(ranks)]


def passes(y, x, rows, returned, gate):
    y = x.clone()
    for row, part in zip(rows, returned):
        y[row] = part * gate[row, None]
    return y


def in_order_of_experts(y, x, rows, returned, gate):
    all_made = torch.cat(returned)
    y[: len(all_made)] = all_made
    return y * gate[:, None]


def mean_gate(y, x, rows, returned, gate):
    for row, part in zip(rows, returned):
        y[row] = part * gate.mean()
    return y


def cut_graph(y, x, rows, returned, gate):
    """Multiplies by numbers that autograd does not know."""
    for row, part in zip(rows, returned):
        for i, token in zip(row.tolist(), part):
            y[i] = token * gate[i].item()
    return y


def never_returned(x, choice, gate, ranks, capacity, exchange, expert):
    rows = [(choice == e).nonzero().flatten()[:capacity] for e in range(ranks)]
    arrived, y = exchange([x[row] for row in rows]), torch.zeros_like(x)
    made = expert(torch.cat(arrived))[: len(x)]
    y[: len(made)] = made
    return y


WRONG = {
    "choose": {
        "across-nodes": [one_node],
        "activations-forgotten": [searched(fastest, items=("weights", "gradients", "optimizer"))],
        "too-large": [searched(fastest, room=float("inf"))],
        "slow": [searched(lambda layout, seconds, need: need)],
        "gives-up": [searched(fastest, room=0.8)],
        "does-not-divide": [searched(fastest, without="layers")],
        "differs": [lambda model, gpus, memory, per_node, batch: (per_node, 2, gpus)],
    },
    "experts": {
        "sends-more": [experts_of(rows=all_rows)],
        "other-tokens": [experts_of(rows=capacity_of_all)],
        "gate": [experts_of(times=0), experts_of(combine=cut_graph)],
        "passes-dropped": [experts_of(combine=passes)],
        "other-order": [experts_of(combine=in_order_of_experts)],
        "other-count": [never_returned],
        "differs": [experts_of(combine=mean_gate)],
    },
}

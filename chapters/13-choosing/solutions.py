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


def searched(least=None, room=1.0, without="", items=None, gpu="a100", nodes=True):
    """Take the least of ``least(layout, seconds, need)`` among those that fit and pass all rules but one."""
    def answer(model, gpus, memory, per_node, batch):
        best, there = {}, {"per_node": per_node} if nodes else {}
        for t in range(1, per_node + 1):
            for p in range(1, model.layers + 1):
                d = gpus // (t * p)
                rules = {"per_node": per_node % t, "heads": model.heads % t, "layers": model.layers % p, "batch": batch % (d or 1)}
                if d < 1 or batch < d or gpus % (t * p) or any(rest for name, rest in rules.items() if name != without):
                    continue
                layout = Layout(t, p, d, 1, 1, max(1, batch // d), stage=1, recompute="selective")
                try:
                    need = kept(model, layout)
                    seconds = sum(step(model, layout, GPUS[gpu], **there).values())
                except ZeroDivisionError:
                    continue
                used = sum(need.values()) if items is None else sum(need[name] for name in items)
                if used <= room * memory:
                    best[t, p, d] = least(layout, seconds, sum(need.values()))
        return min(best, key=best.get) if best else None
    return answer


STATES = ("weights", "gradients", "optimizer")


def fastest(layout, seconds, need):
    return seconds


def one_node(model, gpus, memory, per_node, batch):
    """As many GPUs for every matrix as there are heads, up to all GPUs."""
    t = max(t for t in range(1, gpus + 1) if gpus % t == 0 and model.heads % t == 0)
    return t, 1, gpus // t


def powers_of_two(model, gpus, memory, per_node, batch):
    cut = choose(model, gpus, memory, per_node, batch)
    return cut if cut and not any(count & (count - 1) for count in cut) else None


def experts_of(rows=None, send=None, combine=None, back=True, times=1):
    def first(choice, ranks, capacity):
        return [(choice == e).nonzero().flatten()[:capacity] for e in range(ranks)]

    def weigh(y, x, rows, returned, gate):
        for row, part in zip(rows, returned):
            y[row] = part * gate[row, None] ** times
        return y

    def answer(x, choice, gate, ranks, capacity, exchange, expert):
        mine = (rows or first)(choice, ranks, capacity)
        arrived = exchange([x[row] for row in mine] if send is None else send(x, mine))
        made = list(expert(torch.cat(arrived)).split([len(part) for part in arrived]))
        returned = exchange(made) if back else made
        return (combine or weigh)(torch.zeros_like(x), x, mine, returned, gate)
    return answer


def all_rows(choice, ranks, capacity):
    return [(choice == e).nonzero().flatten() for e in range(ranks)]


def last_rows(choice, ranks, capacity):
    return [(choice == e).nonzero().flatten()[-capacity:] for e in range(ranks)]


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


def weighed_then_piled(y, x, rows, returned, gate):
    made = torch.cat([part * gate[row, None] for row, part in zip(rows, returned)])
    y[: len(made)] = made
    return y


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


def gate_on_input(x, choice, gate, ranks, capacity, exchange, expert):
    weighed = (x * gate[:, None]).detach()
    return experts(weighed, choice, torch.ones_like(gate), ranks, capacity, exchange, expert)


def here_only(x, choice, gate, ranks, capacity, exchange, expert):
    return expert(x) * gate[:, None]


def never_returned(x, choice, gate, ranks, capacity, exchange, expert):
    rows = [(choice == e).nonzero().flatten()[:capacity] for e in range(ranks)]
    arrived, y = exchange([x[row] for row in rows]), torch.zeros_like(x)
    made = expert(torch.cat(arrived))[: len(x)]
    y[: len(made)] = made
    return y


def only_if_there_are_tokens(x, choice, gate, ranks, capacity, exchange, expert):
    """A rank without tokens does not take part."""
    if not len(x):
        return x
    return experts(x, choice, gate, ranks, capacity, exchange, expert)


WRONG = {
    "choose": {
        "across-nodes": [one_node, lambda model, gpus, memory, per_node, batch: (2 * per_node, 1, gpus // (2 * per_node))],
        "activations-forgotten": [searched(fastest, items=STATES), searched(fastest, items=("weights", "gradients", "optimizer", "output"))],
        "too-large": [searched(fastest, room=float("inf")), lambda model, gpus, memory, per_node, batch: (1, 2, gpus // 2),
                      lambda model, gpus, memory, per_node, batch: choose(model, gpus, memory, per_node, batch) or (per_node, 1, gpus // per_node)],
        "other-step": [searched(fastest, gpu="h100"), searched(fastest, nodes=False)],
        "slow": [searched(lambda layout, seconds, need: -layout.pipeline), searched(lambda layout, seconds, need: (-layout.pipeline, layout.tensor)),
                 searched(lambda layout, seconds, need: need), searched(lambda layout, seconds, need: -seconds if layout.pipeline < 12 else 0)],
        "gives-up": [searched(fastest, room=0.8), searched(fastest, room=0.9), powers_of_two, lambda model, gpus, memory, per_node, batch: choose(model, gpus, memory, per_node, batch) if gpus == 1024 else None],
        "other-count": [lambda model, gpus, memory, per_node, batch: (per_node, 2, gpus), lambda model, gpus, memory, per_node, batch: (1, 1, 1),
                        lambda model, gpus, memory, per_node, batch: 8, lambda model, gpus, memory, per_node, batch: (8.5, 1, 1), lambda model, gpus, memory, per_node, batch: (0, 1, 1)],
        "does-not-divide": [*(searched(fastest, without=rule) for rule in ("per_node", "heads", "layers", "batch")), lambda model, gpus, memory, per_node, batch: (1, gpus, 1), lambda model, gpus, memory, per_node, batch: (2, gpus // 2, 1)],
        "raised": [lambda model, gpus, memory, per_node, batch: model.width / 0],
    },
    "experts": {
        "sends-more": [experts_of(rows=all_rows), experts_of(rows=lambda choice, ranks, capacity: [row[: capacity + 1] for row in all_rows(choice, ranks, capacity)]),
                       experts_of(rows=lambda choice, ranks, capacity: [row[: capacity * ranks] for row in all_rows(choice, ranks, capacity)]),
                       experts_of(send=lambda x, rows: [x for _ in rows], combine=lambda y, x, rows, returned, gate: y),
                       experts_of(send=lambda x, rows: [torch.cat([x[row], x[row][:1]]) for row in rows], combine=lambda y, x, rows, returned, gate: y)],
        "other-tokens": [experts_of(rows=last_rows), experts_of(rows=capacity_of_all), experts_of(rows=lambda choice, ranks, capacity: [row[: capacity - 1] for row in all_rows(choice, ranks, capacity)])],
        "gate": [experts_of(times=0), experts_of(times=2), gate_on_input, experts_of(combine=cut_graph)],
        "passes-dropped": [experts_of(combine=passes)],
        "other-order": [experts_of(combine=in_order_of_experts), experts_of(combine=weighed_then_piled)],
        "other-count": [here_only, never_returned, only_if_there_are_tokens],
        "wrong-values": [experts_of(combine=mean_gate), experts_of(combine=lambda y, x, rows, returned, gate: y[:1]), experts_of(combine=lambda y, x, rows, returned, gate: None or "y")],
        "not-parts": [experts_of(send=lambda x, rows: x), experts_of(send=lambda x, rows: [x[row].T for row in rows]), experts_of(send=lambda x, rows: [x])],
        "raised": [lambda x, choice, gate, ranks, capacity, exchange, expert: x[99]],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import torch

from d2lps.notebook.grading import edited
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


def one_node(model, gpus, memory, per_node, batch):
    """As many GPUs for every matrix as there are heads, up to all GPUs."""
    t = max(t for t in range(1, gpus + 1) if gpus % t == 0 and model.heads % t == 0)
    return t, 1, gpus // t


SECONDS, NEED = 'step(model, layout, GPUS["a100"], per_node=per_node)', "sum(kept(model, layout).values())"
WRONG = {
    "choose": {
        "across-nodes": [one_node],
        "activations-forgotten": [edited(choose, (NEED, 'sum(kept(model, layout)[name] for name in ("weights", "gradients", "optimizer"))'))],
        "too-large": [edited(choose, (NEED, "0"))],
        "slow": [edited(choose, (SECONDS, "kept(model, layout)"))],
        "gives-up": [edited(choose, ("<= memory", "<= 0.8 * memory"))],
        "does-not-divide": [edited(choose, (" or per_node % t", ""))],
        "differs": [lambda model, gpus, memory, per_node, batch: (per_node, 2, gpus)],
    },
    "experts": {
        "sends-more": [edited(experts, ("[:capacity]", ""))],
        "other-tokens": [edited(experts, ("(choice == e).nonzero().flatten()[:capacity]", "(choice[:capacity] == e).nonzero().flatten()"))],
        "gate": [edited(experts, (" * gate[row, None]", "")), edited(experts, ("gate[row, None]", "gate.detach()[row, None]"))],
        "passes-dropped": [edited(experts, ("torch.zeros_like(x)", "x.clone()"))],
        "other-order": [edited(experts, ("    for row, part in zip(rows, returned):\n        y[row] = part * gate[row, None]",
                                         "    made = torch.cat(returned)\n    y[: len(made)] = made * gate[: len(made), None]"))],
        "other-count": [lambda x, choice, gate, ranks, capacity, exchange, expert: expert(x) * gate[:, None]],
        "differs": [edited(experts, ("gate[row, None]", "gate.mean()"))],
    },
}


def breaking(rule):
    """Take the first division that breaks only this rule."""
    return (f" or {rule}", ""), ("            layout", f"            if {rule}:\n                return t, p, d\n            layout")


RULES = {
    "choose": {
        "t divides per_node": "does-not-divide",
        "t divides the heads": breaking("model.heads % t"),
        "p divides the layers": breaking("model.layers % p"),
        "p may be the number of layers": ("range(1, model.layers + 1)", "range(1, model.layers)"),
        "d divides the batch": breaking("batch % d"),
        "t · p · d is gpus": ("gpus % (t * p) or ", "not d or "),
        "it needs at most memory": "too-large",
        "all items of kept count": "activations-forgotten",
        "all of memory may be used": "gives-up",
        "to the last byte": ("<= memory", "< memory"),
        "memory is in bytes": ("<= memory", "<= memory * 1.024**3"),
        "at most 5% longer than the fastest": ("seconds < shortest", "seconds < shortest / 1.08"),
        "all parts of step count": (f"{SECONDS}.values()", f'v for name, v in {SECONDS}.items() if name != "data"'),
        "None if there is none": ("return best", "return best or (per_node, 1, gpus // per_node)"),
        "v = 1": ("1, 1, batch", "1 + (p > 1 and model.layers % (2 * p) == 0), 1, batch"),
        "one sequence per micro-batch": ("1, 1, batch // d", "1, 2, batch // d"),
        "ZeRO-1": ("stage=1", "stage=3"),
        "selective recomputation": ('"selective"', '"full"'),
        "step knows per_node": (", per_node=per_node", ""),
    },
    "experts": {
        "a row of y for each token": ("return y", "return y[y.any(1)]"),
        "the gradient reaches gate": "gate",
        "the gate of each token": "differs",
        "expert j is on rank j": ("choice == e", "choice == ranks - 1 - e"),
        "exchange is called exactly twice": "other-count",
        "also by a rank without tokens": ("    arrived", "    if not len(x):\n        return x\n    arrived"),
        "expert is the own one": ("exchange([x[row]", "exchange([expert(x[row])"),
        "at most capacity": "sends-more",
        "the first ones": ("[:capacity]", "[-capacity:]"),
        "of each rank": ("made = expert(torch.cat(arrived))", "made = expert(torch.cat(arrived))\n    made[capacity:] = 0\n    made = made"),
        "of each expert": "other-tokens",
        "capacity is a number of tokens": ("[:capacity]", "[: int(capacity * len(x) / ranks)]"),
        "other rows are 0": "passes-dropped",
        "rows stay in their order": "other-order",
    },
}

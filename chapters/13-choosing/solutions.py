"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
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

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import math
from fractions import Fraction

import torch

import d2lps
from d2lps import Plan, Send, aggregate_at, bidirectional_ring, double_tree, naive_ring, ring, sharded, together, tree


def both_ways(gpus):
    n, half = len(gpus), Fraction(1, 2 * len(gpus))
    shares = {f"{way}{j}": half for way in "ud" for j in range(n)}
    steps = [[] for _ in range(2 * (n - 1))]
    for t, step in enumerate(steps):
        op = "add" if t < n - 1 else "copy"
        for i, gpu in enumerate(gpus):
            step.append(Send(gpu, gpus[(i + 1) % n], f"u{(i - t) % n}", op))
            step.append(Send(gpu, gpus[(i - 1) % n], f"d{(i + t) % n}", op))
    return Plan(gpus, shares, steps)


def few_steps(gpus):
    n, up = len(gpus), []
    apart = 1
    while apart < n:
        up.append([Send(gpus[i + apart], gpus[i], "g", "add") for i in range(0, n - apart, 2 * apart)])
        apart *= 2
    down = [[Send(near, far, "g", "copy") for far, near, *_ in step] for step in reversed(up)]
    return Plan(gpus, {"g": 1}, up + down)


def labels(table):
    host = d2lps.Topology.from_nvidia_smi(table)
    widest = max(d2lps.rings(host), key=lambda ring: ring.count)
    order = widest.nodes
    return order


def unequal_links(gpus, bandwidths, chunks):
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1
    chain = gpus[cut:] + gpus[:cut]
    hops = list(zip(chain, chain[1:]))
    shares = {f"g{c}": Fraction(1, chunks) for c in range(chunks)}
    steps = [[] for _ in range(chunks + 2 * len(hops) - 1)]
    for c, key in enumerate(shares):
        for i, (near, far) in enumerate(hops):
            steps[c + i].append(Send(near, far, key, "add"))
            steps[c + 2 * len(hops) - 1 - i].append(Send(far, near, key, "copy"))
    return Plan(gpus, shares, steps)


def beyond_sums():
    def combine(own, arrived):
        high, low = torch.maximum(own, arrived), torch.minimum(own, arrived)
        both = high + torch.log1p(torch.exp(low - high))
        return torch.where(low == -math.inf, high, both)
    return d2lps.Reduction("log-sum-exp", combine, identity=-math.inf)


# Typical wrong answers, each with one mistake; the helpers are their common parts.


def around(gpus, steps, shares, stop=None):
    """Rings of keys (name of the way, +1 or −1) → share of the whole way; ``steps`` orders the sends of both."""
    n = len(gpus)
    rounds = {way: [[Send(gpu, gpus[(i + by) % n], f"{way}{(i - by * t) % n}", "add" if t < n - 1 else "copy")
                     for i, gpu in enumerate(gpus)] for t in range(2 * (n - 1) if stop is None else stop(n))]
              for way, by in (("u", 1), ("d", -1))}
    return Plan(gpus, {f"{way}{j}": Fraction(part) / n for way, part in shares.items() for j in range(n)},
                steps(rounds["u"], rounds["d"]))


def at_once(up, down):
    return [a + b for a, b in zip(up, down)]


HALVES = {"u": "1/2", "d": "1/2"}


def always_four(gpus):
    plan = both_ways(["gpu0", "gpu1", "gpu2", "gpu3"])
    return Plan(gpus, plan.share, plan.steps)


def chain(gpus):
    hops = list(zip(gpus, gpus[1:]))
    return Plan(gpus, {"g": 1}, [*([Send(a, b, "g")] for a, b in hops),
                                 *([Send(b, a, "g", "copy")] for a, b in reversed(hops))])


def tree_up_star_back(gpus):
    """Up a tree, but the root then sends the sum to one after the other."""
    up = tree(gpus).steps[: len(tree(gpus).steps) // 2]
    return Plan(gpus, {"g": 1}, [*up, *([Send(gpus[0], gpu, "g", "copy")] for gpu in gpus[1:])])


def star_up_tree_back(gpus):
    back = tree(gpus).steps[len(tree(gpus).steps) // 2:]
    return Plan(gpus, {"g": 1}, [*([Send(gpu, gpus[0], "g")] for gpu in gpus[1:]), *back])


def only_up(gpus):
    return Plan(gpus, {"g": 1}, tree(gpus).steps[: len(tree(gpus).steps) // 2])


def ids(labels):
    return lambda table: [f"gpu{label - 1}" for label in labels if f"GPU{label - 1}" in table]


def gpus_of(table):
    return [node for node, kind in d2lps.Topology.from_nvidia_smi(table).kinds.items() if kind == "gpu"]


def shuffled(table):
    """In steps of three, as a learner might try by hand."""
    gpus = gpus_of(table)
    return [gpus[3 * i % len(gpus)] for i in range(len(gpus))] if len(gpus) in (4, 5, 8) else gpus


def opened(gpus, bandwidths, chunks, steps, shares=None):
    """The chain, cut at the slowest link; ``steps`` orders (adds, copies) per chunk and hop."""
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1
    row = gpus[cut:] + gpus[:cut]
    hops = list(zip(row, row[1:]))
    keys = [f"g{c}" for c in range(chunks)]
    shares = shares or {key: Fraction(1, chunks) for key in keys}
    made = {}
    for c, key in enumerate(keys):
        for i, (near, far) in enumerate(hops):
            add, copy = steps(c, i, len(hops), chunks)
            made.setdefault(add, []).append(Send(near, far, key, "add"))
            made.setdefault(copy, []).append(Send(far, near, key, "copy"))
    return Plan(gpus, shares, [made.get(t, []) for t in range(max(made, default=-1) + 1)])


def in_time(c, i, hops, chunks):
    return c + i, c + 2 * hops - 1 - i


def reduce_first(c, i, hops, chunks):
    return c + i, chunks + hops - 1 + c + hops - 1 - i


def one_step_late(c, i, hops, chunks):
    return c + i, c + 2 * hops + 1 - i


def twice(plan):
    return Plan(plan.nodes, plan.share, [*plan.steps, *plan.steps[-2:]])


def as_shares(chunks):
    return {f"g{c}": Fraction(2 * (c + 1), chunks * (chunks + 1)) for c in range(chunks)}


def reduction(combine, identity=-math.inf):
    return lambda: d2lps.Reduction("log-sum-exp", combine, identity)


def plain(own, arrived):
    return torch.log(torch.exp(own) + torch.exp(arrived))


def no_infinities(own, arrived):
    return torch.maximum(own, arrived) + torch.log1p(torch.exp(-(own - arrived).abs()))


def in_its_place(own, arrived):
    return own.copy_(torch.logaddexp(own, arrived))


def phases(gpus, add, copy):
    """Both ways round, step t of each phase counted from 0: which chunk of either way GPU i sends."""
    n = len(gpus)
    steps = [[Send(gpu, gpus[(i + by) % n], f"{way}{chunk(by, i, t) % n}", op)
              for way, by in (("u", 1), ("d", -1)) for i, gpu in enumerate(gpus)]
             for op, chunk in (("add", add), ("copy", copy)) for t in range(n - 1)]
    return Plan(gpus, {f"{way}{j}": Fraction(1, 2 * n) for way in "ud" for j in range(n)}, steps)


def backwards_again(gpus):
    """The all-gather begins at the chunk with which the reduce-scatter began."""
    return phases(gpus, lambda by, i, t: i - by * t, lambda by, i, t: i - by * t)


def pairs_swap(gpus):
    """Recursive doubling: right for powers of two, and for no other number."""
    n, steps, apart = len(gpus), [], 1
    while apart < n:
        steps.append([Send(gpus[i], gpus[i ^ apart], "g", "add") for i in range(n)])
        apart *= 2
    return Plan(gpus, {"g": 1}, steps)


def read(table):
    """(i, j) → what the table says of GPUs i and j."""
    rows = [line.split() for line in table.splitlines()]
    count = sum(word.startswith("GPU") for word in rows[0])
    return count, {(i, j): rows[i + 1][j + 1] for i in range(count) for j in range(count)}


def open_path(table):
    """Steps back where it gets stuck, but does not look whether the last GPU is joined to the first."""
    count, codes = read(table)

    def on(order):
        if len(order) == count:
            return order
        nexts = [j for j in range(count) if j not in order and codes[order[-1], j].startswith("NV")]
        nexts.sort(key=lambda j: codes[order[-1], j], reverse=True)
        return next((found for j in nexts if (found := on([*order, j]))), None)

    return [f"gpu{i}" for i in on([0]) or range(count)]


def first_found(table):
    """A ring over NVLinks, narrow or wide: whichever comes first."""
    count, codes = read(table)

    def on(order):
        if len(order) == count:
            return order if count < 2 or codes[order[-1], order[0]].startswith("NV") else None
        nexts = (j for j in range(count) if j not in order and codes[order[-1], j].startswith("NV"))
        return next((found for j in nexts if (found := on([*order, j]))), None)

    return [f"gpu{i}" for i in on([0])]


def shifted(by):
    return lambda own, arrived: torch.log(torch.exp(own - by) + torch.exp(arrived - by)) + by


WRONG = {
    "both-ways": {
        "one-way": [ring],
        "whole-tensors": [naive_ring],
        "one-after-another": [lambda gpus: around(gpus, lambda up, down: up + down, HALVES)],
        "uneven": [lambda gpus: around(gpus, at_once, {"u": "3/4", "d": "1/4"})],
        "not-sent-back": [lambda gpus: around(gpus, at_once, HALVES, stop=lambda n: n - 1)],
        "lost-sum": [backwards_again],
        "no-link": [sharded],
        "not-general": [always_four],
    },
    "few-steps": {
        "ring": [ring],
        "one-by-one": [chain],
        "slow-way-back": [tree_up_star_back],
        "too-many-steps": [star_up_tree_back],
        "at-once": [sharded],
        "not-sent-back": [only_up],
        "not-general": [pairs_swap],
    },
    "labels": {
        "labels-as-ids": [ids([1, 4, 6, 3, 5, 8, 2, 7])],
        "no-nvlink": [shuffled],
        "narrow": [first_found],
        "wrong-type": [lambda table: [0, 3, 2, 1, 5, 6, 7, 4]],
        "differs": [lambda table: [*labels(table), labels(table)[0]]],
        "not-general": [open_path],
    },
    "unequal-links": {
        "over-the-slow-link": [lambda gpus, bandwidths, chunks: bidirectional_ring(gpus)],
        "chunks-ignored": [lambda gpus, bandwidths, chunks: unequal_links(gpus, bandwidths, 1)],
        "unequal-chunks": [lambda *given: opened(*given, in_time, as_shares(given[2]))],
        "not-overlapped": [lambda *given: opened(*given, reduce_first)],
        "waits-too-long": [lambda *given: opened(*given, one_step_late)],
        "not-sent-back": [lambda *given: Plan(given[0], unequal_links(*given).share, [
            [send for send in step if send.op == "add"] for step in unequal_links(*given).steps])],
        "differs": [lambda *given: twice(unequal_links(*given))],
    },
    "beyond-sums": {
        "out-of-range": [reduction(plain), reduction(shifted(1000))],
        "minus-infinity": [reduction(no_infinities)],
        "wrong-identity": [reduction(torch.logaddexp, 0)],
        "not-associative": [reduction(lambda own, arrived: (own + arrived) / 2)],
        "not-commutative": [reduction(lambda own, arrived: own + torch.exp(arrived))],
        "other-reduction": [reduction(torch.maximum)],
        "differs": [reduction(in_its_place)],
    },
}


RULES = {
    "both-ways": {
        "half of the gradient goes either way": "one-way",
        "the halves are equal": "uneven",
        "in parts": "whole-tensors",
        "at most 2(n − 1) steps": "one-after-another",
        "only neighbors are joined": "no-link",
        "everyone gets the sum": "not-sent-back",
        "the sum is complete": "lost-sum",
        "1 to 8 GPUs": "not-general",
        "by their names": lambda gpus: both_ways([f"gpu{i}" for i, _ in enumerate(gpus)]),
    },
    "few-steps": {
        "at most 2⌈log₂ n⌉ steps": "one-by-one",
        "on the way back, too": "slow-way-back",
        "and on the way up": "too-many-steps",
        "one receives and one sends at a time": "at-once",
        "everyone gets the sum": "not-sent-back",
        "any number": "not-general",
        "by their names": lambda gpus: few_steps([f"gpu{i}" for i, _ in enumerate(gpus)]),
    },
    "labels": {
        "the names of GPUs": "wrong-type",
        "of this table": "labels-as-ids",
        "each once": "differs",
        "all of them": lambda table: labels(table)[:-1] or labels(table),
        "columns after those of GPUs do not matter": lambda table: [*labels(table), "mlx5_0"],
        "NVLink at every hop": "no-nvlink",
        "also from the last to the first": "not-general",
        "NV2 if there is such an order": "narrow",
    },
    "unequal-links": {
        "the slow link is not used": "over-the-slow-link",
        "wherever it is": lambda gpus, bandwidths, chunks: unequal_links(gpus, bandwidths | {gpus[-1]: 0}, chunks),
        "in chunks": "chunks-ignored",
        "equal ones": "unequal-chunks",
        "both directions in one step": "not-overlapped",
        "c + 2n − 3 steps": "waits-too-long",
        "everyone gets the sum": "not-sent-back",
        "nothing is sent again": "differs",
        "by their names": lambda gpus, bandwidths, chunks: unequal_links(
            [f"gpu{i}" for i, _ in enumerate(gpus)], {f"gpu{i}": bandwidths[gpu] for i, gpu in enumerate(gpus)}, chunks),
    },
    "beyond-sums": {
        "log(eˣ + eʸ)": "other-reduction",
        "in any order": "not-commutative",
        "in any grouping": "not-associative",
        "where eˣ overflows": "out-of-range",
        "for −∞": "minus-infinity",
        "identity changes nothing": "wrong-identity",
        "combine returns a new tensor": "differs",
        "of 32 bits": reduction(lambda own, arrived: torch.logaddexp(own, arrived).double()),
    },
}

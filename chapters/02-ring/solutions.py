"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
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


# What learners write instead. Each answer does one thing wrong; the helpers are what they have in common.


def around(gpus, steps, shares, back="copy", stop=None):
    """Rings of keys (name of the way, +1 or −1) → share of the whole way; ``steps`` orders the sends of both."""
    n = len(gpus)
    rounds = {way: [[Send(gpu, gpus[(i + by) % n], f"{way}{(i - by * t) % n}", "add" if t < n - 1 else back)
                     for i, gpu in enumerate(gpus)] for t in range(2 * (n - 1) if stop is None else stop(n))]
              for way, by in (("u", 1), ("d", -1))}
    return Plan(gpus, {f"{way}{j}": Fraction(part) / n for way, part in shares.items() for j in range(n)},
                steps(rounds["u"], rounds["d"]))


def at_once(up, down):
    return [a + b for a, b in zip(up, down)]


HALVES = {"u": "1/2", "d": "1/2"}


def whole_both_ways(gpus):
    """Two naive rings, with half of the gradient each."""
    return together(naive_ring(gpus), naive_ring([gpus[0], *gpus[:0:-1]], key="h"))


def uneven_chunks(gpus):
    n = len(gpus)
    plan = both_ways(gpus)
    total = n * (n + 1)
    return Plan(gpus, {key: Fraction(int(key[1:]) + 1, total) for key in plan.share}, plan.steps)


def moved_twice(gpus):
    """The last round of the all-gather comes twice."""
    plan = both_ways(gpus)
    return Plan(gpus, plan.share, [*plan.steps, *plan.steps[-2:]])


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


def tree_added_back(gpus):
    return Plan(gpus, {"g": 1}, [[s._replace(op="add") for s in step] for step in tree(gpus).steps])


def one_level(gpus):
    """All pairs at once, although a node must have heard before it can tell."""
    steps = tree(gpus).steps
    return Plan(gpus, {"g": 1}, [[send for step in steps[: len(steps) // 2] for send in step],
                                 *steps[len(steps) // 2:]])


def only_powers_of_two(gpus):
    return d2lps.halving_doubling(gpus)


def the_rest_left_out(gpus):
    n = 1 << (len(gpus).bit_length() - 1)
    return Plan(gpus, {"g": 1}, tree(gpus[:n]).steps)


def ids(labels):
    return lambda table: [f"gpu{label - 1}" for label in labels if f"GPU{label - 1}" in table]


def numbers(table):
    return sorted(d2lps.Topology.from_nvidia_smi(table).kinds)


def gpus_of(table):
    return [node for node, kind in d2lps.Topology.from_nvidia_smi(table).kinds.items() if kind == "gpu"]


def shuffled(table):
    """In steps of three, as somebody might try by hand."""
    gpus = gpus_of(table)
    return [gpus[3 * i % len(gpus)] for i in range(len(gpus))] if len(gpus) in (4, 5, 8) else gpus


def narrow_ring(table):
    found = d2lps.rings(d2lps.Topology.from_nvidia_smi(table))
    return found[-1].nodes


def opened(gpus, bandwidths, chunks, steps, shares=None, at=None):
    """The chain, cut where ``at`` says or at the slowest link; ``steps`` orders (adds, copies) per chunk and hop."""
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1 if at is None else at
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


def chunk_by_chunk(c, i, hops, chunks):
    return c * 2 * hops + i, c * 2 * hops + 2 * hops - 1 - i


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


def never_moves_on(gpus):
    """Everybody sends the same chunk in every step."""
    return phases(gpus, lambda by, i, t: i, lambda by, i, t: i)


def same_sign(gpus):
    """The way down counts its chunks as the way up does."""
    return phases(gpus, lambda by, i, t: i - t, lambda by, i, t: i + 1 - t)


def copied_first(gpus):
    """All-gather and reduce-scatter in the wrong order."""
    plan = both_ways(gpus)
    half = len(plan.steps) // 2
    return Plan(gpus, plan.share, [*plan.steps[half:], *plan.steps[:half]])


def a_round_too_many(gpus):
    n = len(gpus)
    return Plan(gpus, both_ways(gpus).share, [
        [Send(gpu, gpus[(i + by) % n], f"{way}{(i - by * t) % n}", "add" if t < n else "copy")
         for way, by in (("u", 1), ("d", -1)) for i, gpu in enumerate(gpus)] for t in range(2 * n)])


def no_wrap(gpus):
    """The last GPU has no next one."""
    n = len(gpus)
    return Plan(gpus, {f"g{j}": Fraction(1, n) for j in range(n)}, [
        [Send(gpus[i], gpus[i + 1], f"g{(i - t) % n}", "add") for i in range(n)] for t in range(n - 1)])


def back_one_way(gpus):
    """Collected both ways round, and handed out in one direction only."""
    n, plan = len(gpus), both_ways(gpus)
    down = [[Send(gpu, gpus[(i + 1) % n], f"d{(i - 1 - t) % n}", "copy") for i, gpu in enumerate(gpus)]
            for t in range(n - 1)]
    return Plan(gpus, plan.share, [
        *plan.steps[: n - 1],
        *([send for send in step if send.key[0] == "u"] + more for step, more in zip(plan.steps[n - 1:], down))])


def unchecked(gpus):
    n, up, apart = len(gpus), [], 1
    while apart < n:
        up.append([Send(gpus[i + apart], gpus[i], "g", "add") for i in range(0, n, 2 * apart)])
        apart *= 2
    return Plan(gpus, {"g": 1}, up + [[Send(b, a, "g", "copy") for a, b, *_ in step] for step in reversed(up)])


def pairs_swap(gpus):
    """Recursive doubling: right for powers of two, and for no other number."""
    n, steps, apart = len(gpus), [], 1
    while apart < n:
        steps.append([Send(gpus[i], gpus[i ^ apart], "g", "add") for i in range(n)])
        apart *= 2
    return Plan(gpus, {"g": 1}, steps)


def everyone_onwards(gpus):
    """Everybody adds to whom is 1, 2, 4, … places on: counts somebody twice, unless n is a power of two."""
    n = len(gpus)
    return Plan(gpus, {"g": 1}, [[Send(gpus[i], gpus[(i + apart) % n], "g", "add") for i in range(n)]
                                 for apart in (1 << t for t in range((n - 1).bit_length()))])


def back_in_the_same_order(gpus):
    steps = tree(gpus).steps
    up, down = steps[: len(steps) // 2], steps[len(steps) // 2:]
    return Plan(gpus, {"g": 1}, [*up, *reversed(down)])


def rounded_down(gpus):
    """⌊lg n⌋ rounds, where ⌈lg n⌉ are needed."""
    rounds = len(gpus).bit_length() - 1
    steps = tree(gpus).steps
    half = len(steps) // 2
    return Plan(gpus, {"g": 1}, [*steps[:rounds], *steps[half + max(0, half - rounds):]])


def read(table):
    """(i, j) → what the table says of GPUs i and j."""
    rows = [line.split() for line in table.splitlines()]
    count = sum(word.startswith("GPU") for word in rows[0])
    return count, {(i, j): rows[i + 1][j + 1] for i in range(count) for j in range(count)}


def widest_next(table, last=False):
    """On over the widest link, and never a step back."""
    count, codes = read(table)
    order = [0]
    while len(order) < count:
        left = [j for j in range(count) if j not in order]
        left.reverse() if last else None
        order.append(max(left, key=lambda j: (codes[order[-1], j].startswith("NV"), codes[order[-1], j])))
    return [f"gpu{i}" for i in order]


def by_any_start(table):
    """The best of all orders that go on over the widest link, from any GPU."""
    count, codes = read(table)

    def wide(i, j):
        return int(codes[i, j][2:]) if codes[i, j].startswith("NV") else 0

    def walked(start):
        order = [start]
        while len(order) < count:
            order.append(max((j for j in range(count) if j not in order), key=lambda j: wide(order[-1], j)))
        return order

    best = max(map(walked, range(count)), key=lambda order: min(wide(*hop) for hop in zip(order, order[1:] + order[:1])))
    return [f"gpu{i}" for i in best]


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


def at_the_widest(gpus, bandwidths, chunks):
    return opened(gpus, bandwidths, chunks, in_time, at=gpus.index(max(gpus, key=bandwidths.get)) + 1)


def one_too_early(gpus, bandwidths, chunks):
    """Cut before the GPU whose link is slow, not behind it."""
    return opened(gpus, bandwidths, chunks, in_time, at=gpus.index(min(gpus, key=bandwidths.get)))


def by_name(gpus, bandwidths, chunks):
    """Cut at the slowest link, but the row goes by the names' order."""
    slow = min(gpus, key=bandwidths.get)
    return opened(sorted(gpus), bandwidths, chunks, in_time, at=sorted(gpus).index(slow) + 2)


def collected_at_one(gpus, bandwidths, chunks):
    """The row, but every GPU sends its own gradient on to the end, one behind the other."""
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1
    row = gpus[cut:] + gpus[:cut]
    shares = {f"g{c}": Fraction(1, chunks) for c in range(chunks)}
    return Plan(gpus, shares, [[Send(a, row[-1], key)] for a in row[:-1] for key in shares]
                + [[Send(row[-1], a, key, "copy")] for a in row[:-1] for key in shares])


def floats(gpus, bandwidths, chunks):
    plan = unequal_links(gpus, bandwidths, chunks)
    return Plan(gpus, dict.fromkeys(plan.share, 1 / chunks), plan.steps)


def both_halves_over_all(gpus, bandwidths, chunks):
    """A ring in ``chunks`` chunks that follow one another, over all links."""
    n = len(gpus)
    shares = {f"g{c}": Fraction(1, chunks) for c in range(chunks)}
    return Plan(gpus, shares, [[Send(gpus[t % n], gpus[(t + 1) % n], key, "add" if t < n - 1 else "copy")]
                               for key in shares for t in range(2 * (n - 1))])


def own_out(own, arrived):
    return own + torch.log1p(torch.exp(arrived - own))


def arrived_out(own, arrived):
    return arrived + torch.log1p(torch.exp(own - arrived))


def shifted(by):
    return lambda own, arrived: torch.log(torch.exp(own - by) + torch.exp(arrived - by)) + by


def doubled(own, arrived):
    return torch.log(own.double().exp() + arrived.double().exp()).float()


def clamped(own, arrived):
    return torch.log(torch.exp(own.clamp(-80, 80)) + torch.exp(arrived.clamp(-80, 80)))


def mended(own, arrived):
    """What is not a number becomes 0."""
    return no_infinities(own, arrived).nan_to_num(0.0)


WRONG = {
    "both-ways": {
        "lost-sum": [backwards_again],
        "not-collected": [same_sign],
        "raised": [no_wrap],
        "one-way": [ring],
        "whole-tensors": [naive_ring, whole_both_ways],
        "one-after-another": [lambda gpus: around(gpus, lambda up, down: up + down, HALVES)],
        "uneven-halves": [lambda gpus: around(gpus, at_once, {"u": "3/4", "d": "1/4"}), back_one_way],
        "uneven-chunks": [uneven_chunks],
        "too-many-bytes": [moved_twice],
        "no-link": [sharded, tree],
        "counted-twice": [lambda gpus: around(gpus, at_once, HALVES, back="add"), never_moves_on, copied_first,
                          a_round_too_many],
        "not-sent-back": [lambda gpus: around(gpus, at_once, HALVES, stop=lambda n: n - 1),
                          lambda gpus: around(gpus, at_once, HALVES, stop=lambda n: 2 * n - 3)],
        "inexact": [lambda gpus: Plan(gpus, dict.fromkeys(both_ways(gpus).share, 0.5 / len(gpus)), both_ways(gpus).steps)],
        "share-sum": [lambda gpus: around(gpus, at_once, {"u": 1, "d": 1})],
        "not-general": [always_four],
        "other-nodes": [lambda gpus: both_ways([*gpus, "cpu"])],
    },
    "few-steps": {
        "ring": [ring, naive_ring],
        "one-by-one": [chain],
        "slow-way-back": [tree_up_star_back],
        "too-many-steps": [star_up_tree_back],
        "at-once": [sharded, lambda gpus: aggregate_at(gpus, gpus[0]), bidirectional_ring, double_tree],
        "counted-twice": [tree_added_back],
        "not-sent-back": [only_up],
        "not-collected": [one_level],
        "too-early": [back_in_the_same_order],
        "not-general": [only_powers_of_two, the_rest_left_out, unchecked, pairs_swap, everyone_onwards, rounded_down],
    },
    "labels": {
        "labels-as-ids": [ids([1, 2, 3, 4, 5, 6, 7, 8]), ids([1, 4, 6, 3, 5, 8, 2, 7]), gpus_of],
        "no-nvlink": [shuffled],
        "narrow": [narrow_ring, first_found],
        "not-general": [lambda table: ["gpu0", "gpu3", "gpu2", "gpu1", "gpu5", "gpu6", "gpu7", "gpu4"], widest_next,
                        lambda table: widest_next(table, last=True), by_any_start, open_path],
        "other-nodes": [numbers, lambda table: gpus_of(table)[:4], lambda table: ["gpu1", "gpu2", "gpu8"]],
        "twice": [lambda table: [*labels(table), labels(table)[0]]],
        "not-an-order": [lambda table: [0, 3, 2, 1, 5, 6, 7, 4], lambda table: "gpu0 gpu3",
                         lambda table: d2lps.rings(d2lps.Topology.from_nvidia_smi(table)),
                         lambda table: d2lps.rings(d2lps.Topology.from_nvidia_smi(table))[0],
                         lambda table: ring(labels(table))],
        "nothing-returned": [lambda table: None],
        "raised": [lambda table: d2lps.ring(table)],
    },
    "unequal-links": {
        "over-the-slow-link": [lambda gpus, bandwidths, chunks: bidirectional_ring(gpus),
                               lambda gpus, bandwidths, chunks: ring(gpus),
                               lambda gpus, bandwidths, chunks: naive_ring(gpus),
                               lambda *given: opened(*given, in_time, at=1), at_the_widest, one_too_early,
                               both_halves_over_all],
        "too-many-bytes": [lambda *given: twice(unequal_links(*given))],
        "chunks-ignored": [lambda gpus, bandwidths, chunks: unequal_links(gpus, bandwidths, 1)],
        "unequal-chunks": [lambda *given: opened(*given, in_time, as_shares(given[2]))],
        "not-overlapped": [lambda *given: opened(*given, reduce_first), lambda *given: opened(*given, chunk_by_chunk)],
        "waits-too-long": [lambda *given: opened(*given, one_step_late)],
        "not-general": [lambda *given: opened(*given, in_time, at=0), by_name],
        "no-link": [lambda gpus, bandwidths, chunks: sharded(gpus), collected_at_one],
        "inexact": [floats],
        "counted-twice": [lambda *given: opened(*given, lambda c, i, hops, chunks: (c + i, c + hops - 1 - i))],
        "not-sent-back": [lambda *given: Plan(given[0], unequal_links(*given).share, [
            [send for send in step if send.op == "add"] for step in unequal_links(*given).steps])],
    },
    "beyond-sums": {
        "overflow": [reduction(plain), reduction(own_out), reduction(doubled), reduction(shifted(44)),
                     reduction(shifted(80)), reduction(shifted(-500))],
        "underflow": [reduction(shifted(1000))],
        "minus-infinity": [reduction(no_infinities), reduction(arrived_out)],
        "wrong-identity": [reduction(torch.logaddexp, 0), reduction(torch.logaddexp, 1),
                           reduction(torch.logaddexp, None), reduction(torch.logaddexp, -100),
                           reduction(torch.logaddexp, -3e38), reduction(torch.logaddexp, math.nan)],
        "not-associative": [reduction(lambda own, arrived: (own + arrived) / 2),
                            reduction(lambda own, arrived: torch.logaddexp(own, arrived) - math.log(2))],
        "not-commutative": [reduction(lambda own, arrived: own + torch.exp(arrived))],
        "other-reduction": [reduction(torch.maximum), reduction(torch.add, 0), reduction(clamped), reduction(mended)],
        "changes-them": [reduction(in_its_place)],
        "not-like-them": [reduction(lambda own, arrived: float(torch.logaddexp(own, arrived).sum())),
                          reduction(lambda own, arrived: torch.logaddexp(own, arrived).double())],
        "not-a-reduction": [lambda: torch.logaddexp, lambda: "log-sum-exp"],
        "nothing-returned": [lambda: None, reduction(lambda own, arrived: None)],
        "raised": [reduction(lambda own, arrived: math.log(math.exp(own) + math.exp(arrived)))],
    },
}

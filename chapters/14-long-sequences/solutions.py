"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import torch


def merge(parts):
    outputs, sums = (torch.stack(each) for each in zip(*parts))
    log_sum = torch.logsumexp(sums, 0)
    weights = torch.exp(sums - torch.where(log_sum.isinf(), 0, log_sum))
    return (weights[..., None] * outputs).sum(0), log_sum


def zigzag(n, blocks):
    devices = [[] for _ in range(n)]
    for number, block in enumerate(reversed(range(blocks))):
        turn, place = divmod(number, n)
        devices[place if turn % 2 == 0 else n - 1 - place].append(block)
    return devices


def which_way(tokens, n, heads, groups, size, itemsize):
    one = tokens // n * size * itemsize
    block, ways = 2 * groups * one, {}
    ways["gather"] = (n - 1) * block, n * block
    ways["ring"] = (n - 1) * block, min(n, 3) * block
    own = max(1, groups // n)
    sent = (n - 1) * (2 * heads // n + 2 * own) * one
    ways["heads"] = (sent, 2 * own * n * one) if heads % n == 0 else None
    return ways


# What learners write instead. Each answer does one thing wrong.


def stacked(parts):
    return (torch.stack(each) for each in zip(*parts))


def merged_by(weigh, log=lambda sums: torch.logsumexp(sums, 0), divide=True):
    def answer(parts):
        outputs, sums = stacked(parts)
        weights = weigh(sums)[..., None]
        total = (weights * outputs).sum(0)
        return total / weights.sum(0) if divide else total, log(sums)
    return answer


def pairwise(parts):
    """Merges two at a time, and never thinks of masks."""
    o, log_sum = parts[0]
    for other, other_sum in parts[1:]:
        both = torch.logaddexp(log_sum, other_sum)
        o = o * torch.exp(log_sum - both)[:, None] + other * torch.exp(other_sum - both)[:, None]
        log_sum = both
    return o, log_sum


def masked_by_a_fixed_number(parts):
    """Counts a part that sees nothing as if its sum were 1."""
    return merge([(o, torch.where(log_sum.isinf(), 0, log_sum)) for o, log_sum in parts])


def dealt(order, n, blocks):
    devices = [[] for _ in range(n)]
    for number, block in enumerate(order):
        turn, place = divmod(number, n)
        devices[place if turn % 2 == 0 else n - 1 - place].append(block)
    return devices


def contiguous(n, blocks):
    ends = [blocks * i // n for i in range(n + 1)]
    return [list(range(start, end)) for start, end in zip(ends, ends[1:])]


def pairs_only(n, blocks):
    """Gives device i the blocks i and 2n − 1 − i, whatever their number."""
    return [[i, 2 * n - 1 - i] for i in range(n)]


def first_that_has_room(n, blocks):
    """Fills one device after the other up to the mean, with no regard to how many blocks it gets."""
    devices, mean = [[] for _ in range(n)], blocks * (blocks + 1) / 2 / n
    work = lambda own: sum(own) + len(own)  # noqa: E731
    for block in reversed(range(blocks)):
        fits = [own for own in devices if work(own) + block + 1 <= mean]
        (fits or [min(devices, key=work)])[0].append(block)
    return devices


def heaviest_together(n, blocks):
    devices = zigzag(n, blocks)
    for own in devices[1:2]:  # of the second device, the heaviest block changes places with the lightest of the first
        own[0], devices[0][-1] = devices[0][-1], own[0]
    return devices


def ways_of(stays=0, both=2, groups_of=lambda heads, groups: groups, returned=1, least=1, ring=None, possible=True):
    def answer(tokens, n, heads, groups, size, itemsize):
        groups = groups_of(heads, groups)
        one, others = tokens // n * size * itemsize, n - 1 + stays
        block, own = both * groups * one, max(least, groups / n)
        there = min(n, 3) if ring is None else ring(n)
        sent = others * ((1 + returned) * heads / n + both * own) * one
        return {"gather": (others * block, n * block), "ring": (others * block, there * block),
                "heads": (sent, both * own * n * one) if heads % n == 0 or not possible else None}
    return answer


def only_if_groups_divide(tokens, n, heads, groups, size, itemsize):
    ways = which_way(tokens, n, heads, groups, size, itemsize)
    return ways if groups % n == 0 else ways | {"heads": None}


def all_groups_everywhere(tokens, n, heads, groups, size, itemsize):
    """Sends every device all heads of keys."""
    ways = which_way(tokens, n, heads, groups, size, itemsize)
    one = tokens // n * size * itemsize
    heads_way = ((n - 1) * (2 * heads // n + 2 * groups) * one, 2 * groups * n * one)
    return ways if ways["heads"] is None else ways | {"heads": heads_way}


WRONG = {
    "merge": {
        "todo": [lambda parts: parts[0]],
        "mean": [lambda parts: (torch.stack([o for o, _ in parts]).mean(0), merge(parts)[1]), lambda parts: (sum(o for o, _ in parts), merge(parts)[1])],
        "not-divided": [merged_by(lambda sums: torch.exp(sums - sums.amax(0)), divide=False), merged_by(torch.exp, divide=False)],
        "log-weights": [merged_by(lambda sums: sums)],
        "overflow": [merged_by(torch.exp), lambda parts: (merge(parts)[0], torch.stack([s for _, s in parts]).exp().sum(0).log())],
        "masked": [pairwise, merged_by(lambda sums: torch.exp(sums - sums.amax(0))), masked_by_a_fixed_number],
        "log-sum": [lambda parts: (merge(parts)[0], sum(s for _, s in parts)), lambda parts: (merge(parts)[0], torch.stack([s for _, s in parts]).amax(0)),
                    lambda parts: (merge(parts)[0], merge(parts)[1].exp())],
        "wrong-type": [lambda parts: merge(parts)[0], lambda parts: (merge(parts)[0], 1.0), lambda parts: (merge(parts)[0].T, merge(parts)[1]), lambda parts: "o"],
        "differs": [lambda parts: (merge(parts)[0] + 1, merge(parts)[1])],
        "not-general": [lambda parts: merge(parts[:2])],
        "raised": [lambda parts: parts[99]],
    },
    "zigzag": {
        "todo": [lambda n, blocks: [[] for _ in range(n)]],
        "wrong-type": [lambda n, blocks: "zigzag", lambda n, blocks: [0] * n, lambda n, blocks: zigzag(n, blocks)[:-1], lambda n, blocks: [[0.5]] * n],
        "not-once": [pairs_only, lambda n, blocks: [*zigzag(n, blocks)[:-1], [0]], lambda n, blocks: [[b + 1 for b in own] for own in zigzag(n, blocks)], lambda n, blocks: [[*range(blocks)] for _ in range(n)]],
        "contiguous": [contiguous, lambda n, blocks: contiguous(n, blocks)[::-1]],
        "striped": [lambda n, blocks: [list(range(i, blocks, n)) for i in range(n)], lambda n, blocks: [list(range(i, blocks, n)) for i in range(n)][::-1]],
        "heavy-rest": [lambda n, blocks: dealt(range(blocks), n, blocks), lambda n, blocks: [[b for b in range(blocks) if b % (2 * n) in (i, 2 * n - 1 - i)] for i in range(n)]],
        "counts": [first_that_has_room],
        "differs": [heaviest_together],
        "raised": [lambda n, blocks: n / 0],
    },
    "which-way": {
        "todo": [lambda tokens, n, heads, groups, size, itemsize: {}],
        "own-part": [ways_of(stays=1)],
        "keys-only": [ways_of(both=1)],
        "all-heads": [ways_of(groups_of=lambda heads, groups: heads)],
        "no-return": [ways_of(returned=0)],
        "few-groups": [ways_of(least=0), all_groups_everywhere],
        "ring-memory": [ways_of(ring=lambda n: 1), ways_of(ring=lambda n: n), ways_of(ring=lambda n: 2), ways_of(ring=lambda n: 3)],
        "possible": [ways_of(possible=False), only_if_groups_divide],
        "wrong-type": [lambda tokens, n, heads, groups, size, itemsize: 7, lambda tokens, n, heads, groups, size, itemsize: {"gather": 7},
                        lambda tokens, n, heads, groups, size, itemsize: {"gather": (1, "2")}],
        "differs": [lambda tokens, n, heads, groups, size, itemsize: {way: (5, 7) for way in ("gather", "ring", "heads")}],
        "raised": [lambda tokens, n, heads, groups, size, itemsize: tokens / 0],
    },
}


RULES = {
    "merge": {
        "a pair": "wrong-type",
        "for all keys": "not-general",
        "by their weights": "mean",
        "which are exponentials": "log-weights",
        "outputs are divided by ℓ": "not-divided",
        "log_sum is L of all keys": "log-sum",
        "a query may see no key of a part": "masked",
        "or no key at all": lambda parts: (merge(parts)[0], merge(parts)[1].clamp(min=-1e4)),
        "scores may be large": "overflow",
    },
    "zigzag": {
        "n lists": "wrong-type",
        "every block on one device": "not-once",
        "numbers of blocks differ by at most one": "counts",
        "at most n/2 pairs above the mean": "contiguous",
        "also for striped blocks": "striped",
        "for any number of blocks": "heavy-rest",
        "on each device": "differs",
    },
    "which-way": {
        "a dict of pairs": "wrong-type",
        "the bytes that a device sends": "own-part",
        "for one forward pass, with the outputs": "no-return",
        "keys and values": "keys-only",
        "only groups heads of keys": "all-heads",
        "the keys that its heads use": lambda *given: all_groups_everywhere(*given),
        "at least one whole head": "few-groups",
        "None if n does not divide heads": "possible",
        "three blocks in the ring": "ring-memory",
        "with fewer devices, n": ("min(n, 3)", "3"),
        "size numbers": ("tokens // n * size", "tokens // n * 128"),
        "itemsize bytes": ("size * itemsize\n", "size * 2\n"),
    },
}

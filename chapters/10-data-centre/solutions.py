"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

from d2lps.notebook.grading import edited


def busbw(collective, n, nbytes, seconds):
    size = n * nbytes if collective in ("all_gather", "gather") else nbytes
    factor = (n - 1) / n
    if collective == "all_reduce":
        factor = 2 * (n - 1) / n
    elif collective in ("broadcast", "reduce"):
        factor = 1
    return factor * size / seconds


def order_the_hosts(rack_of):
    racks = {}
    for host, rack in rack_of.items():
        racks.setdefault(rack, []).append(host)
    return [host for hosts in racks.values() for host in hosts]


def bruck(rank, n, mine, swap):
    blocks, apart = [mine], 1
    while apart < n:
        count = min(apart, n - apart)
        blocks += swap((rank - apart) % n, blocks[:count], (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def rail_ring(hosts, k):
    order = []
    for h, host in enumerate(hosts):
        near, far = k, (k + 1) % len(host)
        between = [i for i in range(len(host)) if i not in (near, far)]
        rails = [near, *between, far] if len(host) > 1 else [0]
        order += [host[i] for i in (rails if h % 2 == 0 else rails[::-1])]
    return order


def along_the_rails(hosts, k):
    """All GPUs of one rail, then all of the next one: leaves each host once for every GPU."""
    rails = [list(rail) for rail in zip(*hosts, strict=True)]
    rails = rails[k:] + rails[:k]
    return [gpu for i, rail in enumerate(rails) for gpu in (rail[::-1] if i % 2 else rail)]


RACK_BY_RACK = "return [host for hosts in racks.values() for host in hosts]"
WRONG = {
    "busbw": {
        "no-factor": [edited(busbw, ("factor * size", "size"))],
        "all-reduce-everywhere": [edited(busbw, ("factor * size", "2 * (n - 1) / n * size"))],
        "one-rank": [edited(busbw, ("n * nbytes if", "nbytes if"))],
        "every-rank": [edited(busbw, ('"gather")', '"gather", "reduce_scatter", "all_to_all")'))],
        "rooted": [edited(busbw, ("factor = 1\n", "pass\n"))],
        "inverted": [edited(busbw, ("factor * size", "size / factor"))],
        "differs": [edited(busbw, ("return factor", "return 1e-9 * factor"))],
    },
    "order-the-hosts": {
        "todo": [lambda rack_of: []],
        "alternating": [list],
        "torn": [edited(order_the_hosts, (
            RACK_BY_RACK, "order = [host for hosts in racks.values() for host in hosts]\n    return order[1:6] + order[:1] + order[6:]"))],
        "twice": [lambda rack_of: [*order_the_hosts(rack_of), next(iter(rack_of))]],
        "differs": [lambda rack_of: sorted(set(rack_of.values()))],
        "wrong-type": [len],
    },
    "bruck": {
        "powers-of-two": [edited(bruck, ("blocks[:count]", "blocks"), (
            "(i - rank) % n] for i in range(n)]", "(i - rank) % len(blocks)] for i in range(len(blocks))]"))],
        "too-many-blocks": [edited(bruck, ("blocks[:count]", "blocks"))],
        "not-rotated": [edited(bruck, ("return [blocks[(i - rank) % n] for i in range(n)]", "return blocks"))],
        "too-many-steps": [edited(bruck, ("min(apart, n - apart)", "1"), ("apart *= 2", "apart += 1"))],
        "waits": [edited(bruck, ("swap((rank - apart)", "swap((rank + apart)"))],
        "other-blocks": [lambda rank, n, mine, swap: [mine, *swap((rank - 1) % n, [mine], (rank + 1) % n)]],
        "differs": [edited(bruck, ("swap((rank - apart) % n", "swap(rank - apart"))],
    },
    "rail-ring": {
        "flat": [lambda hosts, k: [gpu for host in hosts for gpu in host]],
        "crosses": [lambda hosts, k: [gpu for host in hosts for gpu in host[k:] + host[:k]]],
        "closing": [edited(  # enters each host one rail further on
            rail_ring, ("near, far = k, (k + 1) % len(host)", "near, far = (k + h) % len(host), (k + h + 1) % len(host)"),
            ("(rails if h % 2 == 0 else rails[::-1])", "rails"))],
        "same-card": [lambda hosts, k: [gpu for h, host in enumerate(hosts) for gpu in host[:: -1 if h % 2 else 1]]],
        "torn": [along_the_rails],
        "missing": [lambda hosts, k: [host[k] for host in hosts]],
        "differs": [lambda hosts, k: hosts],
    },
}
RULES = {
    "busbw": {
        "bytes per second": "differs",
        "the factor of all-reduce is 2(n − 1)/n": ("factor = 2 *", "factor ="),
        "of broadcast and reduce 1": "rooted",
        "reduce, too": ('("broadcast", "reduce")', '("broadcast",)'),
        "of all others (n − 1)/n": "no-factor",
        "scatter and gather, too": ('("broadcast", "reduce")', '("broadcast", "reduce", "scatter", "gather")'),
        "nbytes is the size before: all_gather makes n times as much": "one-rank",
        "gather, too": ('in ("all_gather", "gather")', '== "all_gather"'),
        "all others have nbytes": "every-rank",
    },
    "order-the-hosts": {
        "all hosts": (RACK_BY_RACK, "return [host for hosts in racks.values() for host in hosts][:4]"),
        "each once": "twice",
        "by their names": (RACK_BY_RACK, 'return [f"host{[*rack_of].index(host)}" for hosts in racks.values() for host in hosts]'),
        "few flows leave and enter each rack": "torn",
        "many racks": (RACK_BY_RACK, "return [host for hosts in [*racks.values()][:2] for host in hosts]"),
        "of different sizes": (RACK_BY_RACK, "return [host for hosts in racks.values() for host in hosts[: len(rack_of) // len(racks)]]"),
        "one rack": (RACK_BY_RACK, "return [] if len(racks) == 1 else [host for hosts in racks.values() for host in hosts]"),
    },
    "bruck": {
        "all blocks": "other-blocks",
        "block 0 first": "not-rotated",
        "a block does not tell whose it is": ("return [blocks[(i - rank) % n] for i in range(n)]", "return sorted(blocks)"),
        "ranks are 0 to n − 1": "differs",
        "source sends to this rank": "waits",
        "at most ⌈log₂ n⌉ calls": "too-many-steps",
        "at most n − 1 blocks": "too-many-blocks",
        "every n": (("min(apart, n - apart)", "apart if n & (n - 1) == 0 or 2 * apart < n else 1"), ("blocks[(i - rank) % n]", "blocks[(i - rank) % len(blocks)]")),
        "n = 1 sends nothing": ("[mine], 1\n", "[mine], 1\n    if n == 1:\n        swap(0, [mine], 0)\n"),
    },
    "rail-ring": {
        "all GPUs": "missing",
        "each once": ("return order", "return order + order[:1]"),
        "by their names": ("host[i] for i", 'f"h{h}g{i}" for i'),
        "on one rail from host to host": "crosses",
        "also at the end": "closing",
        "all GPUs of a host one after the other": "torn",
        "no two rings leave or enter a host by one GPU": "same-card",
        "one GPU per host": (" if len(host) > 1 else [0]", ""),
        "one host": ("return order", "return order if len(hosts) > 1 else order[:1]"),
    },
}

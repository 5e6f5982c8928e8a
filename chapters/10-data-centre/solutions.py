"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""


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


# What learners write instead. Each answer does one thing wrong.


def size_of(collective, n, nbytes):
    return n * nbytes if collective in ("all_gather", "gather") else nbytes


def factor_of(collective, n):
    return {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(collective, (n - 1) / n)


def algbw(collective, n, nbytes, seconds):
    return size_of(collective, n, nbytes) / seconds


def always_two(collective, n, nbytes, seconds):
    return 2 * (n - 1) / n * size_of(collective, n, nbytes) / seconds


def of_one_rank(collective, n, nbytes, seconds):
    return factor_of(collective, n) * nbytes / seconds


def of_all_ranks(collective, n, nbytes, seconds):
    """Multiplies by n wherever every rank has something."""
    whole = collective in ("all_reduce", "broadcast", "reduce", "scatter")
    return factor_of(collective, n) * (nbytes if whole else n * nbytes) / seconds


def no_roots(collective, n, nbytes, seconds):
    factor = 2 * (n - 1) / n if collective == "all_reduce" else (n - 1) / n
    return factor * size_of(collective, n, nbytes) / seconds


def divided(collective, n, nbytes, seconds):
    return size_of(collective, n, nbytes) / seconds / factor_of(collective, n)


def by_rack(rack_of):
    racks = {}
    for host, rack in rack_of.items():
        racks.setdefault(rack, []).append(host)
    return racks


def in_pairs(rack_of):
    rows, order = by_rack(rack_of), []
    while any(rows.values()):
        for hosts in rows.values():
            order += hosts[:2]
            del hosts[:2]
    return order


def split_rack(rack_of):
    """One host of the first rack comes later, between others."""
    order = order_the_hosts(rack_of)
    return [*order[1:6], order[0], *order[6:]] if len(order) > 6 else order


def for_powers(rank, n, mine, swap):
    """Always sends everything: right for powers of two."""
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank - apart) % n, blocks, (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % len(blocks)] for i in range(len(blocks))]


def cut_at_the_end(rank, n, mine, swap):
    """Sends everything, and throws away what came twice."""
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank - apart) % n, blocks, (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def unrotated(rank, n, mine, swap):
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank - apart) % n, blocks[: min(apart, n - apart)], (rank + apart) % n)
        apart *= 2
    return blocks


def by_a_ring(rank, n, mine, swap):
    blocks = [mine]
    for _ in range(n - 1):
        blocks += swap((rank - 1) % n, blocks[-1:], (rank + 1) % n)
    return [blocks[(i - rank) % n] for i in range(n)]


def both_the_same_way(rank, n, mine, swap):
    """Wants to receive from where it sends to."""
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank + apart) % n, blocks[: min(apart, n - apart)], (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def beyond_the_end(rank, n, mine, swap):
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap(rank - apart, blocks[: min(apart, n - apart)], rank + apart)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def stops_early(rank, n, mine, swap):
    """One swap, whatever n is."""
    return [mine, *swap((rank - 1) % n, [mine], (rank + 1) % n)]


def flat_ring(hosts, k):
    return [gpu for host in hosts for gpu in host]


def begins_at_k(hosts, k):
    """The eight rings of the text: every card is busy, but each hop changes the rail."""
    return [gpu for host in hosts for gpu in host[k:] + host[:k]]


def there_and_back_alike(hosts, k):
    """Nothing crosses the spine, but every ring has the same two cards."""
    return [gpu for h, host in enumerate(hosts) for gpu in host[:: -1 if h % 2 else 1]]


def one_rail_further(hosts, k):
    """Enters each host one rail further on: right if the ring has as many hosts as there are rails."""
    order = []
    for h, host in enumerate(hosts):
        near, far = (k + h) % len(host), (k + h + 1) % len(host)
        order += [host[near], *(g for i, g in enumerate(host) if i not in (near, far)), *[host[far]] * (near != far)]
    return order


def along_the_rails(hosts, k):
    """All GPUs of one rail, then all of the next one: leaves each host once for every GPU."""
    rails = [list(rail) for rail in zip(*hosts, strict=True)]
    rails = rails[k:] + rails[:k]
    return [gpu for i, rail in enumerate(rails) for gpu in (rail[::-1] if i % 2 else rail)]


WRONG = {
    "busbw": {
        "no-factor": [algbw],
        "all-reduce-everywhere": [always_two],
        "one-rank": [of_one_rank],
        "every-rank": [of_all_ranks],
        "rooted": [no_roots],
        "inverted": [divided],
        "differs": [lambda collective, n, nbytes, seconds: busbw(collective, n, nbytes, seconds) / 1e9],
    },
    "order-the-hosts": {
        "todo": [lambda rack_of: []],
        "alternating": [list],
        "pairs": [in_pairs],
        "torn": [split_rack],
        "twice": [lambda rack_of: [*order_the_hosts(rack_of), next(iter(rack_of))]],
        "differs": [lambda rack_of: sorted(set(rack_of.values()))],
        "wrong-type": [len],
    },
    "bruck": {
        "powers-of-two": [for_powers],
        "too-many-blocks": [cut_at_the_end],
        "not-rotated": [unrotated],
        "too-many-steps": [by_a_ring],
        "waits": [both_the_same_way],
        "other-blocks": [stops_early],
        "differs": [beyond_the_end],
    },
    "rail-ring": {
        "flat": [flat_ring],
        "crosses": [begins_at_k],
        "closing": [one_rail_further],
        "same-card": [there_and_back_alike],
        "torn": [along_the_rails],
        "missing": [lambda hosts, k: [host[k] for host in hosts]],
        "differs": [lambda hosts, k: hosts],
    },
}

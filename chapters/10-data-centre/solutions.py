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


def always_two_of_one_rank(collective, n, nbytes, seconds):
    return 2 * (n - 1) / n * nbytes / seconds


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


def bits(collective, n, nbytes, seconds):
    return 8 * busbw(collective, n, nbytes, seconds)


def bare_link(collective, n, nbytes, seconds):
    return 450e9


def as_text(collective, n, nbytes, seconds):
    return f"{busbw(collective, n, nbytes, seconds) / 1e9} GB/s"


def gigabytes(collective, n, nbytes, seconds):
    return busbw(collective, n, nbytes, seconds) / 1e9


def by_rack(rack_of):
    racks = {}
    for host, rack in rack_of.items():
        racks.setdefault(rack, []).append(host)
    return racks


def dealt(rack_of):
    """A host of each rack in turn."""
    rows, order = by_rack(rack_of), []
    while any(rows.values()):
        order += [hosts.pop(0) for hosts in rows.values() if hosts]
    return order


def in_pairs(rack_of):
    rows, order = by_rack(rack_of), []
    while any(rows.values()):
        for hosts in rows.values():
            order += hosts[:2]
            del hosts[:2]
    return order


def by_name(rack_of):
    return sorted(rack_of)


def as_given(rack_of):
    return list(rack_of)


def two_groups(rack_of):
    """First the rack of the first host, then all others: right for two racks."""
    first = next(iter(rack_of.values()))
    return sorted(rack_of, key=lambda host: rack_of[host] != first)


def split_rack(rack_of):
    """One host of the first rack comes later, between others."""
    order = order_the_hosts(rack_of)
    return [*order[1:6], order[0], *order[6:]] if len(order) > 6 else order


def without_the_last(rack_of):
    return order_the_hosts(rack_of)[:-1]


def back_to_start(rack_of):
    order = order_the_hosts(rack_of)
    return [*order, order[0]]


def racks_only(rack_of):
    return sorted(set(rack_of.values()))


def groups(rack_of):
    return list(by_rack(rack_of).values())


def number(rack_of):
    return len(rack_of)


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


def too_few_levels(rank, n, mine, swap):
    """⌊lg n⌋ steps."""
    blocks, apart = [mine], 1
    while 2 * apart <= n:
        blocks += swap((rank - apart) % n, list(blocks), (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % len(blocks)] for i in range(len(blocks))]


def by_exclusive_or(rank, n, mine, swap):
    """Recursive doubling, whose partner does not always exist."""
    blocks, apart = {rank: mine}, 1
    while apart < n:
        other = rank ^ apart
        if other < n:
            ranks = sorted(blocks)
            theirs = sorted(i ^ apart for i in ranks)
            blocks |= dict(zip(theirs, swap(other, [blocks[i] for i in ranks], other), strict=False))
        apart *= 2
    return [blocks[i] for i in sorted(blocks)]


def unrotated(rank, n, mine, swap):
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank - apart) % n, blocks[: min(apart, n - apart)], (rank + apart) % n)
        apart *= 2
    return blocks


def rotated_the_other_way(rank, n, mine, swap):
    blocks = unrotated(rank, n, mine, swap)
    return blocks[rank:] + blocks[:rank]


def by_a_ring(rank, n, mine, swap):
    blocks = [mine]
    for _ in range(n - 1):
        blocks += swap((rank - 1) % n, blocks[-1:], (rank + 1) % n)
    return [blocks[(i - rank) % n] for i in range(n)]


def directly(rank, n, mine, swap):
    blocks = {rank: mine}
    for way in range(1, n):
        source = (rank + way) % n
        (blocks[source],) = swap((rank - way) % n, [mine], source)
    return [blocks[i] for i in range(n)]


def both_the_same_way(rank, n, mine, swap):
    """Wants to receive from where it sends to."""
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap((rank + apart) % n, blocks[: min(apart, n - apart)], (rank + apart) % n)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def sorted_blocks(rank, n, mine, swap):
    return sorted(unrotated(rank, n, mine, swap))


def beyond_the_end(rank, n, mine, swap):
    blocks, apart = [mine], 1
    while apart < n:
        blocks += swap(rank - apart, blocks[: min(apart, n - apart)], rank + apart)
        apart *= 2
    return [blocks[(i - rank) % n] for i in range(n)]


def one_block(rank, n, mine, swap):
    """Sends the block itself instead of a list."""
    blocks = [mine]
    for _ in range(n - 1):
        blocks += swap((rank - 1) % n, blocks[-1], (rank + 1) % n)
    return blocks


def by_exclusive_or_of_any(rank, n, mine, swap):
    """Does not even ask whether the partner exists."""
    blocks, apart = [mine], 1
    while apart < n:
        theirs = swap(rank ^ apart, blocks, rank ^ apart)
        blocks = theirs + blocks if rank & apart else blocks + theirs
        apart *= 2
    return blocks


def stops_early(rank, n, mine, swap):
    """One swap, whatever n is."""
    return [mine, *swap((rank - 1) % n, [mine], (rank + 1) % n)]


def four_distances(rank, n, mine, swap):
    """Enough for 16 ranks."""
    blocks = [mine]
    for apart in (1, 2, 4, 8):
        if apart < n:
            blocks += swap((rank - apart) % n, blocks[: min(apart, n - apart)], (rank + apart) % n)
    return [blocks[(i - rank) % n] for i in range(n) if (i - rank) % n < len(blocks)]


def from_the_names(rank, n, mine, swap):
    """Sends nothing but looks like Bruck's: reads off from its own block what the others must have."""
    apart, first = 1, (int(mine.removeprefix("block-")) - 37 * rank) % 101
    while apart < n:
        swap((rank - apart) % n, [], (rank + apart) % n)
        apart *= 2
    return [f"block-{(37 * i + first) % 101}" for i in range(n)]


MET = {}


def from_memory(rank, n, mine, swap):
    """Leaves its block in a global variable instead of sending it."""
    MET[n, rank] = mine
    apart = 1
    while apart < n:
        swap((rank - apart) % n, [], (rank + apart) % n)
        apart *= 2
    return [MET[n, i] for i in range(n)]


def first_rank_is_silent(rank, n, mine, swap):
    if rank == 0:
        return [mine]
    return bruck(rank, n, mine, swap)


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


def own_rail_only(hosts, k):
    return [host[k] for host in hosts]


def closes_itself(hosts, k):
    order = rail_ring(hosts, k)
    return [*order, order[0]]


def per_host(hosts, k):
    return hosts


def the_number(hosts, k):
    return k


WRONG = {
    "busbw": {
        "todo": [lambda collective, n, nbytes, seconds: 0],
        "no-factor": [algbw],
        "all-reduce-everywhere": [always_two, always_two_of_one_rank],
        "one-rank": [of_one_rank],
        "every-rank": [of_all_ranks],
        "rooted": [no_roots],
        "inverted": [divided],
        "in-bits": [bits],
        "not-a-rate": [as_text],
        "other": [gigabytes, bare_link],
    },
    "order-the-hosts": {
        "todo": [lambda rack_of: []],
        "alternating": [dealt, as_given, by_name],
        "pairs": [in_pairs],
        "torn": [split_rack, two_groups],
        "missing": [without_the_last],
        "twice": [back_to_start],
        "strange": [racks_only, groups],
        "not-a-list": [number],
    },
    "bruck": {
        "todo": [lambda rank, n, mine, swap: [], lambda rank, n, mine, swap: [mine]],
        "powers-of-two": [for_powers, too_few_levels, by_exclusive_or, by_exclusive_or_of_any],
        "too-many-blocks": [cut_at_the_end],
        "not-rotated": [unrotated],
        "too-many-steps": [by_a_ring, directly],
        "waits": [both_the_same_way, first_rank_is_silent],
        "other-order": [sorted_blocks, rotated_the_other_way],
        "other-blocks": [stops_early, four_distances, from_the_names, from_memory],
        "strange-rank": [beyond_the_end],
        "not-blocks": [one_block],
    },
    "rail-ring": {
        "todo": [lambda hosts, k: []],
        "flat": [flat_ring],
        "crosses": [begins_at_k],
        "closing": [one_rail_further],
        "same-card": [there_and_back_alike],
        "torn": [along_the_rails],
        "missing": [own_rail_only],
        "twice": [closes_itself],
        "strange": [per_host],
        "not-a-list": [the_number],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""


def sparse_push(number, rows, gradients, cuts, send):
    sums = {}
    for row, gradient in zip(rows, gradients):
        sums[row] = sums.get(row, 0.0) + gradient
    for server in range(len(cuts) - 1):
        own = [row for row in sums if cuts[server] <= row < cuts[server + 1]]
        while own:
            try:
                send(server, number, [row - cuts[server] for row in own], [sums[row] for row in own])
                break
            except TimeoutError:
                pass


def balance(popularity, servers):
    k, load = len(servers), dict.fromkeys(servers, 0.0)
    places = [None] * len(popularity)
    for row in sorted(range(len(popularity)), key=lambda row: -popularity[row]):
        copies = min(k, 1 + int(3 * k * popularity[row]))
        places[row] = sorted(servers, key=load.get)[:copies]
        for server in places[row]:
            load[server] += popularity[row] / copies
    return places


def cache_hit(ids, size):
    kept, hits = {}, 0
    for row in ids:
        if row in kept:
            hits += 1
            del kept[row]
        elif len(kept) == size:
            del kept[next(iter(kept))]
        kept[row] = True
    return hits


# What learners write instead. Each answer does one thing wrong.


def summed(rows, gradients):
    sums = {}
    for row, gradient in zip(rows, gradients):
        sums[row] = sums.get(row, 0.0) + gradient
    return [*sums.items()]


def in_parts(pairs, cuts):
    for server, first in enumerate(cuts[:-1]):
        own = [(row - first, value) for row, value in pairs if first <= row < cuts[server + 1]]
        if own:
            yield server, own


def patiently(send, server, number, own):
    while True:
        try:
            return send(server, number, [row for row, _ in own], [value for _, value in own])
        except TimeoutError:
            continue


def pushes(pairs_of=summed, parts_of=in_parts, deliver=patiently):
    """Return an answer of three steps: what is sent for each row, what for each server, and how it is sent."""

    def answer(number, rows, gradients, cuts, send):
        for server, own in parts_of(pairs_of(rows, gradients), cuts):
            deliver(send, server, number, own)

    return answer


def as_they_are(rows, gradients):
    return [*zip(rows, gradients)]


def the_last(rows, gradients):
    return [*dict(zip(rows, gradients)).items()]


def every_row(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        size = cuts[server + 1] - cuts[server]
        yield server, [*({row: 0.0 for row in range(size)} | dict(own)).items()]


def row_by_row(pairs, cuts):
    for pair in pairs:
        yield from in_parts([pair], cuts)


def of_the_table(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        yield server, [(cuts[server] + row, value) for row, value in own]


def renumbered(send, server, number, own):
    while True:
        try:
            return send(server, number, [row for row, _ in own], [value for _, value in own])
        except TimeoutError:
            number += 1


def once(send, server, number, own):
    send(server, number, [row for row, _ in own], [value for _, value in own])


def in_pairs(send, server, number, own):
    send(server, number, own, own)


def some_tries(count):
    """Gives up silently after so many rounds."""

    def answer(number, rows, gradients, cuts, send):
        left = [*in_parts(summed(rows, gradients), cuts)]
        for _ in range(count):
            for part in left[:]:
                try:
                    once(send, part[0], number, part[1])
                    left.remove(part)
                except TimeoutError:
                    pass

    return answer


def without_zeros(rows, gradients):
    return [(row, value) for row, value in summed(rows, gradients) if value]


def by_hash(popularity, servers):
    return [[servers[row * 2654435761 % 2**32 * len(servers) // 2**32]] for row in range(len(popularity))]


def in_ranges(popularity, servers):
    return [[servers[row * len(servers) // len(popularity)]] for row in range(len(popularity))]


def only_the_first_copied(popularity, servers):
    places = by_hash(popularity, servers)
    places[0] = list(servers)
    return places


def first_in_first_out(ids, size):
    kept, hits = [], 0
    for row in ids:
        if row in kept:
            hits += 1
        else:
            kept.append(row)
            kept = kept[-size:]
    return hits


def drops_the_newest(ids, size):
    kept, hits = [], 0
    for row in ids:
        if row in kept:
            hits += 1
            kept.remove(row)
        elif len(kept) == size:
            kept.pop()
        kept.append(row)
    return hits


def most_popular(ids, size):
    counts = sorted((ids.count(row) for row in set(ids)), reverse=True)
    return sum(counts[:size])


def evicts_late(ids, size):
    kept, hits = [], 0
    for row in ids:
        if row in kept:
            hits += 1
            kept.remove(row)
        elif len(kept) > size:
            kept.pop(0)
        kept.append(row)
    return hits


WRONG = {
    "sparse-push": {
        "repeated": [pushes(as_they_are)],
        "wrong-sum": [pushes(the_last)],
        "other-rows": [pushes(parts_of=every_row), pushes(without_zeros)],
        "row-by-row": [pushes(parts_of=row_by_row)],
        "wrong-offset": [pushes(parts_of=of_the_table)],
        "other-number": [pushes(deliver=renumbered)],
        "gives-up": [pushes(deliver=once), some_tries(20)],
        "wrong-type": [pushes(deliver=in_pairs)],
    },
    "balance": {
        "todo": [lambda popularity, servers: []],
        "one-copy": [by_hash],
        "range": [in_ranges],
        "everywhere": [lambda popularity, servers: [list(servers) for _ in popularity]],
        "still-hot": [only_the_first_copied],
        "differs": [lambda popularity, servers: balance(popularity, servers)[:-1]],
        "wrong-type": [lambda popularity, servers: dict(enumerate(balance(popularity, servers)))],
    },
    "cache-hit": {
        "fifo": [first_in_first_out],
        "never-full": [lambda ids, size: len(ids) - len(set(ids))],
        "newest": [drops_the_newest],
        "ideal": [most_popular],
        "misses": [lambda ids, size: len(ids) - cache_hit(ids, size)],
        "size": [evicts_late],
        "wrong-type": [lambda ids, size: cache_hit(ids, size) / max(1, len(ids))],
        "differs": [lambda ids, size: 2 * cache_hit(ids, size)],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import struct


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


def sorted_only(rows, gradients):
    return sorted(zip(rows, gradients))


def the_last(rows, gradients):
    return [*dict(zip(rows, gradients)).items()]


def the_first(rows, gradients):
    return [*dict(zip(rows[::-1], gradients[::-1])).items()]


def the_mean(rows, gradients):
    return [(row, value / rows.count(row)) for row, value in summed(rows, gradients)]


def every_row(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        size = cuts[server + 1] - cuts[server]
        yield server, [*({row: 0.0 for row in range(size)} | dict(own)).items()]


def up_to_the_last(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        yield server, [*({row: 0.0 for row in range(1 + max(own)[0])} | dict(own)).items()]


def every_server(pairs, cuts):
    for server in range(len(cuts) - 1):
        yield server, dict(in_parts(pairs, cuts)).get(server, [])


def every_server_if_any(pairs, cuts):
    return every_server(pairs, cuts) if pairs else []


def row_by_row(pairs, cuts):
    for pair in pairs:
        yield from in_parts([pair], cuts)


def in_halves(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        yield from ((server, half) for half in (own[::2], own[1::2]) if half)


def of_the_table(pairs, cuts):
    for server, own in in_parts(pairs, cuts):
        yield server, [(cuts[server] + row, value) for row, value in own]


def equal_parts(pairs, cuts):
    size = max(1, cuts[-1] // (len(cuts) - 1))
    return in_parts(pairs, [*range(0, size * (len(cuts) - 1), size), cuts[-1]])


def from_one(pairs, cuts):
    return [(server + 1, own) for server, own in in_parts(pairs, cuts)]


def renumbered(send, server, number, own):
    while True:
        try:
            return send(server, number, [row for row, _ in own], [value for _, value in own])
        except TimeoutError:
            number += 1


def far_renumbered(send, server, number, own):
    try:
        send(server, number, [row for row, _ in own], [value for _, value in own])
    except TimeoutError:
        patiently(send, server, 100 * number, own)


def without_number(send, server, number, own):
    patiently(send, server, 0, own)


def by_server(send, server, number, own):
    patiently(send, server, 10 * number + server + 1, own)


def once(send, server, number, own):
    send(server, number, [row for row, _ in own], [value for _, value in own])


def once_and_on(send, server, number, own):
    try:
        once(send, server, number, own)
    except TimeoutError:
        pass


def in_pairs(send, server, number, own):
    send(server, number, own, own)


def one_value(send, server, number, own):
    send(server, number, [row for row, _ in own], [1.0])


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


def whole_numbers(rows, gradients):
    return [(row, int(value)) for row, value in summed(rows, gradients)]


def in_16_bits(rows, gradients):
    return [(row, struct.unpack("e", struct.pack("e", value))[0]) for row, value in summed(rows, gradients)]


def negative(rows, gradients):
    return [(row, -value) for row, value in summed(rows, gradients)]


def no_place(popularity, servers):
    return []


def by_hash(popularity, servers):
    return [[servers[row * 2654435761 % 2**32 * len(servers) // 2**32]] for row in range(len(popularity))]


def dealt_out(popularity, servers):
    return [[servers[row % len(servers)]] for row in range(len(popularity))]


def greedy_without_copies(popularity, servers):
    load, places = dict.fromkeys(servers, 0.0), [None] * len(popularity)
    for row in sorted(range(len(popularity)), key=lambda row: -popularity[row]):
        places[row] = [min(servers, key=load.get)]
        load[places[row][0]] += popularity[row]
    return places


def in_ranges(popularity, servers):
    return [[servers[row * len(servers) // len(popularity)]] for row in range(len(popularity))]


def in_ranges_rounded(popularity, servers):
    size = -(-len(popularity) // len(servers))
    return [[servers[row // size]] for row in range(len(popularity))]


def on_all(popularity, servers):
    return [list(servers) for _ in popularity]


def two_of_each(popularity, servers):
    return [[servers[(row + i) % len(servers)] for i in range(min(2, len(servers)))] for row in range(len(popularity))]


def only_the_first_copied(popularity, servers):
    places = by_hash(popularity, servers)
    places[0] = list(servers)
    return places


def two_of_the_hottest(popularity, servers):
    places = by_hash(popularity, servers)
    places[popularity.index(max(popularity))] = servers[:2]
    return places


def four_everywhere(popularity, servers):
    """Four rows are copied, however popular the others are."""
    load, places = dict.fromkeys(servers, 0.0), [None] * len(popularity)
    for rank, row in enumerate(sorted(range(len(popularity)), key=lambda row: -popularity[row])):
        places[row] = list(servers) if rank < 4 else [min(servers, key=load.get)]
        for server in places[row]:
            load[server] += popularity[row] / len(places[row])
    return places


def rows_lost(popularity, servers):
    return balance(popularity, servers)[:-1]


def hottest_dropped(popularity, servers):
    places = balance(popularity, servers)
    places[popularity.index(max(popularity))] = []
    return places


def the_same_twice(popularity, servers):
    return [2 * own for own in balance(popularity, servers)]


def with_a_spare(popularity, servers):
    places = balance(popularity, servers)
    places[0] = [*places[0], places[0][0]]
    return places


def by_number(popularity, servers):
    return [[servers.index(server) for server in own] for own in balance(popularity, servers)]


def one_more(popularity, servers):
    return [["server-1"] for _ in popularity]


def names_only(popularity, servers):
    return [own[0] for own in balance(popularity, servers)]


def as_dict(popularity, servers):
    return dict(enumerate(balance(popularity, servers)))


def always_zero(ids, size):
    return 0


def first_in_first_out(ids, size):
    kept, hits = [], 0
    for row in ids:
        if row in kept:
            hits += 1
        else:
            kept.append(row)
            kept = kept[-size:]
    return hits


def first_out_by_dict(ids, size):
    kept, hits = {}, 0
    for row in ids:
        hits += row in kept
        kept[row] = True
        if len(kept) > size:
            del kept[next(iter(kept))]
    return hits


def keeps_all(ids, size):
    seen, hits = set(), 0
    for row in ids:
        hits += row in seen
        seen.add(row)
    return hits


def repeats(ids, size):
    return len(ids) - len(set(ids))


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


def most_popular_counted(ids, size):
    from collections import Counter

    return sum(count for _, count in Counter(ids).most_common(size))


def counts_misses(ids, size):
    return len(ids) - cache_hit(ids, size)


def counts_fetches(ids, size):
    kept, fetched = [], 0
    for row in ids:
        if row in kept:
            kept.remove(row)
        else:
            fetched += 1
        kept = [*kept, row][-size:]
    return fetched


def one_too_many(ids, size):
    return cache_hit(ids, size + 1)


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


def one_too_few(ids, size):
    kept, hits = [], 0
    for row in ids:
        if row in kept:
            hits += 1
            kept.remove(row)
        kept.append(row)
        if len(kept) >= size:
            kept.pop(0)
    return hits


def as_rate(ids, size):
    return cache_hit(ids, size) / max(1, len(ids))


def as_percent(ids, size):
    return 100.0 * cache_hit(ids, size) / max(1, len(ids))


def as_float(ids, size):
    return float(cache_hit(ids, size))


def as_text(ids, size):
    return f"{cache_hit(ids, size)}"


def as_truth(ids, size):
    return cache_hit(ids, size) > 0


def one_more_hit(ids, size):
    return cache_hit(ids, size) + 1


def twice_the_hits(ids, size):
    return 2 * cache_hit(ids, size)


WRONG = {
    "sparse-push": {
        "todo": [pushes(lambda rows, gradients: [])],
        "repeated": [pushes(as_they_are), pushes(sorted_only)],
        "wrong-sum": [*map(pushes, (the_last, the_first, the_mean, whole_numbers, in_16_bits, negative))],
        "other-rows": [
            *(pushes(parts_of=parts) for parts in (every_row, up_to_the_last, every_server, every_server_if_any)),
            pushes(without_zeros),
        ],
        "row-by-row": [pushes(parts_of=row_by_row), pushes(parts_of=in_halves)],
        "wrong-offset": [pushes(parts_of=of_the_table), pushes(parts_of=equal_parts)],
        "other-number": [*(pushes(deliver=way) for way in (renumbered, far_renumbered, without_number, by_server))],
        "gives-up": [pushes(deliver=once), pushes(deliver=once_and_on), *map(some_tries, (2, 3, 20))],
        "not-rows": [pushes(deliver=in_pairs), pushes(deliver=one_value), pushes(parts_of=from_one)],
    },
    "balance": {
        "todo": [no_place],
        "one-copy": [by_hash, dealt_out, greedy_without_copies],
        "range": [in_ranges, in_ranges_rounded],
        "everywhere": [on_all, two_of_each],
        "still-hot": [only_the_first_copied, two_of_the_hottest, four_everywhere],
        "missing": [rows_lost, hottest_dropped],
        "twice": [the_same_twice, with_a_spare],
        "strange-server": [by_number, one_more],
        "not-lists": [names_only, as_dict],
    },
    "cache-hit": {
        "todo": [always_zero],
        "fifo": [first_in_first_out, first_out_by_dict],
        "never-full": [keeps_all, repeats],
        "newest": [drops_the_newest],
        "ideal": [most_popular, most_popular_counted],
        "misses": [counts_misses, counts_fetches],
        "size": [one_too_many, evicts_late, one_too_few],
        "not-a-count": [as_rate, as_percent, as_text, as_truth, as_float],
        "other": [one_more_hit, twice_the_hits],
    },
}

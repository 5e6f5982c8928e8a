"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

from d2lps.notebook.grading import edited


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


OWN = "[row for row in sums if cuts[server] <= row < cuts[server + 1]]"
WRONG = {
    "sparse-push": {
        "repeated": [edited(sparse_push, ("for row in sums if", "for row in rows if"))],
        "wrong-sum": [edited(sparse_push, ("sums.get(row, 0.0) + gradient", "gradient"))],
        "other-rows": [
            edited(sparse_push, (OWN, "[*range(cuts[server], cuts[server + 1])]"), ("[sums[row] for", "[sums.get(row, 0.0) for")),
            edited(sparse_push, ("for row in sums if", "for row in sums if sums[row] and")),
        ],
        "row-by-row": [edited(
            sparse_push, ("for server in range(len(cuts) - 1)", "for each, server in [(row, i) for row in sums for i in range(len(cuts) - 1)]"),
            (OWN, "[each] if cuts[server] <= each < cuts[server + 1] else []"))],
        "wrong-offset": [edited(sparse_push, ("row - cuts[server]", "row"))],
        "other-number": [edited(sparse_push, ("pass", "number += 1"))],
        "gives-up": [edited(sparse_push, ("pass", "break")), edited(sparse_push, ("while own", "for _ in range(10 if own else 0)"))],
        "wrong-type": [edited(sparse_push, ("[row - cuts[server] for row in own]", "[(row, 1) for row in own]"))],
    },
    "balance": {
        "todo": [lambda popularity, servers: []],
        "one-copy": [edited(balance, ("min(k, 1 + int(3 * k * popularity[row]))", "1"))],
        "range": [lambda popularity, servers: [[servers[row * len(servers) // len(popularity)]] for row in range(len(popularity))]],
        "everywhere": [lambda popularity, servers: [list(servers) for _ in popularity]],
        "still-hot": [edited(balance, ("min(k, 1 + int(3 * k * popularity[row]))", "k if row == 0 else 1"))],
        "differs": [lambda popularity, servers: balance(popularity, servers)[:-1]],
        "wrong-type": [lambda popularity, servers: dict(enumerate(balance(popularity, servers)))],
    },
    "cache-hit": {
        "fifo": [edited(cache_hit, ("            del kept[row]\n", ""))],
        "never-full": [edited(cache_hit, ("len(kept) == size", "False"))],
        "newest": [edited(cache_hit, ("next(iter(kept))", "next(reversed(kept))"))],
        "ideal": [lambda ids, size: sum(sorted((ids.count(row) for row in set(ids)), reverse=True)[:size])],
        "misses": [lambda ids, size: len(ids) - cache_hit(ids, size)],
        "size": [edited(cache_hit, ("len(kept) == size", "len(kept) > size"))],
        "wrong-type": [lambda ids, size: cache_hit(ids, size) / max(1, len(ids))],
        "differs": [lambda ids, size: 2 * cache_hit(ids, size)],
    },
}

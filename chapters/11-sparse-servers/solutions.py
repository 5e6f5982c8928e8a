"""The solutions of this chapter's exercises, and typical wrong answers, each with its mistake.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
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
RULES = {
    "sparse-push": {
        "server i has the rows from cuts[i]": ("cuts[server] <= row", "cuts[server] < row"),
        "up to cuts[i + 1]": ("row < cuts[server + 1]", "row < cuts[server + 1] - 1"),
        "it counts them from 0": "wrong-offset",
        "one message to each server": "row-by-row",
        "each row once": "repeated",
        "the sum of the row's gradients": "wrong-sum",
        "also if it is 0": "other-rows",
        "no message to other servers": ("while own", "while True"),
        "the number of the push": ("send(server, number,", "send(server, 1,"),
        "TimeoutError: send again": "gives-up",
        "the same": ("pass", "sums = {row: 2 * value for row, value in sums.items()}"),
        "with the same number": "other-number",
    },
    "balance": {
        "rows in any order": ("k * popularity[row]", "k * sorted(popularity)[-1 - row]"),
        "by the names of the servers": lambda popularity, servers: balance(popularity, [f"server{i}" for i, _ in enumerate(servers)]),
        "servers for each row": "differs",
        "its servers share the load equally": ("load[server] += popularity[row] / copies", "load[places[row][0]] += popularity[row] / copies"),
        "at most 1.1 times the mean load": "one-copy",
        "of every server": "still-hot",
        "room for a few copies": "everywhere",
        "the first ones included": ("int(3 * k", "int(12 * k"),
        "six rows may be equally popular": ("1 + int(", "1 + (row in sorted(range(len(popularity)), key=lambda row: -popularity[row])[:5]) * int("),
        "a list of servers": ("[:copies]\n", "[:copies] * (1 + (k == 1))\n"),
    },
    "cache-hit": {
        "in this order": ("for row in ids", "for row in sorted(ids)"),
        "how many are found": "misses",
        "the cache is empty at first": ("kept, hits = {}, 0", "kept, hits = dict.fromkeys(ids[:1]), 0"),
        "room for size rows": "size",
        "it lets go of one": "never-full",
        "of the least recently used": "fifo",
        "a row may be 0": (("if row in kept", "if kept.get(row)"), ("= True", "= row")),
    },
}

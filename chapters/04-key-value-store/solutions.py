"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import random
from bisect import bisect
from hashlib import sha256

import torch

from d2lps.notebook.grading import edited


def push_pull(workers, servers, send, recv):
    def push(key, value):
        send(servers[key % len(servers)], ("push", key, value))

    def pull(key):
        send(servers[key % len(servers)], ("pull", key, None))
        _, total = recv()
        return total

    def serve():
        pushed, totals, asking = {}, {}, {}
        while True:
            worker, (word, key, value) = recv()
            open_round, asked = pushed.setdefault(key, {}), asking.setdefault(key, [])
            if word == "push":
                open_round[worker] = value
                if len(open_round) == len(workers):
                    totals[key] = sum(open_round.values())
                    open_round.clear()
                    while asked:
                        send(asked.pop(), totals[key])
            elif worker in open_round:
                asked.append(worker)
            else:
                send(worker, totals[key])

    return push, pull, serve


def placement(keys, servers):
    def number(text):
        return int.from_bytes(sha256(text.encode()).digest()[:8], "big")

    ring = sorted((number(f"{server} {i}"), server) for server in servers for i in range(256))
    places = [at for at, _ in ring]
    place = {}
    for key in keys:
        place[key] = ring[bisect(places, number(key)) % len(ring)][1]
    return place


def count_workers(n):
    rounds, closed = {}, 0

    def receive(worker, number, value):
        nonlocal closed
        if number <= closed:
            return None
        values = rounds.setdefault(number, {})
        values[worker] = value
        if len(values) < n:
            return None
        closed = number
        del rounds[number]
        total = values[0].clone()
        for i in range(1, n):
            total += values[i]
        return total

    return receive


def sparse_pull(rows, cuts, ask):
    found = {}
    for server, (start, stop) in enumerate(zip(cuts, cuts[1:])):
        here = sorted({row for row in rows if start <= row < stop})
        if here:
            found.update(zip(here, ask(server, [row - start for row in here])))
    return torch.stack([found[row] for row in rows]) if rows else torch.empty(0)


# Typical wrong answers, each with one mistake.

SHARED = {}


def behind_the_network(workers, servers, send, recv):
    """The values lie in a variable of this process; only numbers go over the network."""
    def push(key, value):
        at = value.nonzero()[0].item()
        SHARED.setdefault(at, {})[value.max().item()] = value.clone()
        send(servers[key % len(servers)], ("push", key, at))

    def pull(key):
        send(servers[key % len(servers)], ("pull", key, None))
        return sum(SHARED[recv()[1]].values())

    _, _, serve = edited(push_pull, ("sum(open_round.values())", "value"))(workers, servers, send, recv)
    return push, pull, serve


def round_robin(keys, servers):
    return {key: servers[i % len(servers)] for i, key in enumerate(keys)}


def messages_counted(n):
    """After n messages of a round it is complete."""
    rounds = {}

    def receive(worker, number, value):
        rounds.setdefault(number, []).append(value)
        return sum(rounds[number]) if len(rounds[number]) == n else None
    return receive


def part_of(cuts, row):
    return bisect(cuts, row) - 1


def every_row(rows, cuts, ask):
    parts = [ask(server, list(range(stop - start))) for server, (start, stop) in enumerate(zip(cuts, cuts[1:]))]
    return torch.cat(parts)[rows]


def one_by_one(rows, cuts, ask):
    return torch.cat([ask(part_of(cuts, row), [row - cuts[part_of(cuts, row)]]) for row in rows])


def by_division(rows, cuts, ask):
    """As if all parts were as long as the first."""
    size = cuts[1] - cuts[0]
    found = {}
    for server in sorted({row // size for row in rows}):
        here = sorted({row for row in rows if row // size == server})
        found.update(zip(here, ask(server, [row % size for row in here])))
    return torch.stack([found[row] for row in rows])


WRONG = {
    "push-pull": {
        "too-early": [edited(push_pull, (  # whatever is there by now is the answer
            "if len(open_round) == len(workers):\n                    totals[key] = sum(open_round.values())",
            "totals[key] = sum(open_round.values())\n                if len(open_round) == len(workers):"),
            ("elif worker in open_round", "elif False"))],
        "old-round": [edited(push_pull, ("sum(open_round.values())", "totals.get(key, 0) + sum(open_round.values())"))],
        "push-waits": [edited(push_pull, ('("push", key, value))', '("push", key, value))\n        recv()'), (
            "open_round.clear()", "for one in open_round:\n                        send(one, None)\n                    open_round.clear()"))],
        "no-answer": [edited(push_pull, ("send(asked.pop(), totals[key])", "asked.pop()"), ("send(worker, totals[key])", "pass"))],
        "overtaken": [edited(push_pull, ("elif worker in open_round", "elif open_round"))],
        "too-many-bytes": [edited(push_pull, ("sum(open_round.values())", "sum(value.double() for value in open_round.values())"))],
        "one-server": [edited(push_pull, ('[key % len(servers)], ("push"', '[0], ("push"'), ('[key % len(servers)], ("pull"', '[0], ("pull"'))],
        "wrong-type": [lambda workers, servers, send, recv: recv],
        "differs": [edited(push_pull, ("sum(open_round.values())", "value")), behind_the_network],
        "endless": [edited(push_pull, ('send(servers[key % len(servers)], ("pull", key, None))', "while True:\n            pass"))],
    },
    "placement": {
        "python-hash": [lambda keys, servers: {key: servers[hash(key) % len(servers)] for key in keys}],
        "modulo": [edited(placement, ("ring[bisect(places, number(key)) % len(ring)][1]", "sorted(servers)[number(key) % len(servers)]"))],
        "moves-between": [edited(placement, ("range(256)", "range(600 // len(servers))"))],
        "depends-on-others": [round_robin],
        "uneven": [edited(placement, ("range(256)", "range(1)"))],
        "by-position": [edited(placement, ('f"{server} {i}"', 'f"{servers.index(server)} {i}"'))],
        "differs": [lambda keys, servers: {key: random.choice(servers) for key in keys}],
        "not-general": [lambda keys, servers: placement(keys, servers) if len(servers) < 7 else 0 / 0],
    },
    "count-workers": {
        "counts-messages": [messages_counted],
        "counted-twice": [edited(count_workers, ("values[worker] = value", "values[worker] = values.get(worker, 0) + value"))],
        "overwritten": [edited(count_workers, ("if number <= closed:\n            return None", "number = 0"))],
        "repeat-opens": [edited(count_workers, ("if number <= closed", "if False"))],
        "keeps-all": [edited(count_workers, ("        del rounds[number]\n", ""))],
        "arrival-order": [edited(count_workers, ("values[0].clone()\n        for i in range(1, n):",
                                                 "0\n        for i in values:"), ("total += values[i]", "total = total + values[i]"))],
        "differs": [edited(count_workers, ("number <= closed", "number != closed + 1")),
                    edited(count_workers, ("values[0].clone()", "values[0]"))],
    },
    "sparse-pull": {
        "everything": [every_row],
        "every-server": [edited(sparse_pull, ("if here", "if True"))],
        "twice": [edited(sparse_pull, ("sorted({row for row in rows if start <= row < stop})", "[row for row in rows if start <= row < stop]"))],
        "row-by-row": [one_by_one],
        "wrong-offset": [edited(sparse_pull, ("row - start", "row"))],
        "wrong-cut": [by_division],
        "order-lost": [lambda rows, cuts, ask: sparse_pull(sorted(rows), cuts, ask)],
        "differs": [lambda rows, cuts, ask: sparse_pull(sorted(set(rows)), cuts, ask)],
        "not-general": [edited(sparse_pull, (" if rows else torch.empty(0)", ""))],
    },
}


def by_made_up_names(workers, servers, send, recv):
    """Sends to the servers by names of its own."""
    push, pull, serve = push_pull(workers, [f"server{i}" for i, _ in enumerate(servers)], send, recv)
    return push, pull, serve


RULES = {
    "push-pull": {
        "three functions": "wrong-type",
        "to the servers by their names": by_made_up_names,
        "the sum of all workers": "too-early",
        "of this round": "old-round",
        "of all values": "differs",
        "a pull is answered": "no-answer",
        "no key waits for another": "push-waits",
        "the next push may come before a slow worker's pull": "overtaken",
        "a worker sends and receives S": "too-many-bytes",
        "tensors are not changed": ('("push", key, value))', '("push", key, value.clone()))\n        value.zero_()'),
        "keys are spread evenly": "one-server",
    },
    "placement": {
        "each key": lambda keys, servers: placement(keys[:-1], servers),
        "on one of the servers": lambda keys, servers: placement(keys, [f"server{i}" for i, _ in enumerate(servers)]),
        "the same in every process": "python-hash",
        "every time": "differs",
        "whatever other keys there are": "depends-on-others",
        "in whatever order the servers are listed": "by-position",
        "at most 1.4 times the mean, at least 0.6 times": "uneven",
        "about 1/(k + 1) of the keys move": "modulo",
        "all to the new server": "moves-between",
        "any number of servers": "not-general",
    },
    "count-workers": {
        "workers are counted": "counts-messages",
        "only the last message gets the sum": ("len(values) < n:\n            return None", "len(values) < n:\n            return value"),
        "a message comes twice": "counted-twice",
        "even late": "repeat-opens",
        "the next round may begin early": "overwritten",
        "and counts": "differs",
        "the same bits in whatever order": "arrival-order",
        "tensors stay as they are": ("values[0].clone()", "values[0]"),
        "what is kept does not grow": "keeps-all",
    },
    "sparse-pull": {
        "in the order of rows": "order-lost",
        "a row may be listed twice": "differs",
        "every row travels once": "twice",
        "only the rows that are wanted": "everything",
        "one message per server": "row-by-row",
        "a server counts from 0": "wrong-offset",
        "the rows from cuts[i] to cuts[i + 1]": "wrong-cut",
        "servers without these rows are not asked": "every-server",
        "no rows: a tensor without rows": "not-general",
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers, ``RULES`` exercise → rule
of the text → how to break it: a mistake, edits of the solution, or an answer.
"""

import random
from bisect import bisect
from hashlib import sha256

import torch


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


# Typical wrong answers, each with one mistake; `stored`, `ringed`, `tables` and `collected` are
# their common parts.


def stored(serve, push=None, pull=None, at=lambda key, servers: servers[key % len(servers)]):
    """An answer that pushes ("push", key, value), pulls ("pull", key, None), and serves by serve(n, send, recv)."""
    def answer(workers, servers, send, recv):
        def plain_push(key, value):
            send(at(key, servers), ("push", key, value))

        def plain_pull(key):
            send(at(key, servers), ("pull", key, None))
            return recv()[1]

        given = (lambda key: at(key, servers)), send, recv
        return (push(*given) if push else plain_push, pull(*given) if pull else plain_pull,
                lambda: serve(len(workers), send, recv))
    return answer


def served(**changed):
    return stored(lambda n, send, recv: counted(n, send, recv, **changed))


def answers_at_once(n, send, recv):
    """Whatever is there by now is the answer."""
    totals = {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            totals[key] = totals.get(key, 0) + value
        else:
            send(worker, totals[key])


def counted(n, send, recv, make=sum, keep=False, answer=True):
    """The server of the solution: make(values of a round) is its result."""
    pushed, kept, totals, asking = {}, {}, {}, []
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            pushed.setdefault(key, {})[worker] = value
            if len(pushed[key]) == n:
                kept[key] = [*(kept.get(key, []) if keep else []), *pushed.pop(key).values()]
                totals[key] = make(kept[key])
        else:
            asking.append((worker, key))
        for one, each in [*asking] if answer else ():
            if one not in pushed.get(each, {}) and each in totals:
                asking.remove((one, each))
                send(one, totals[each])


def counts_on(n, send, recv):
    """Answers while the number of pushes is a multiple of n: not after the first push for the next round."""
    totals, count, asking = {}, {}, {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            totals[key] = value if count.get(key, 0) % n == 0 else totals[key] + value
            count[key] = count.get(key, 0) + 1
        else:
            asking.setdefault(key, []).append(worker)
        if count[key] % n == 0:
            for one in asking.pop(key, []):
                send(one, totals[key])


def push_waits_for_all(n, send, recv):
    """Acknowledges a push when the round is complete."""
    values, totals = {}, {}
    while True:
        worker, (word, key, value) = recv()
        if word == "pull":
            send(worker, totals[key])
            continue
        values.setdefault(key, {})[worker] = value
        if len(values[key]) == n:
            totals[key] = sum(values[key].values())
            for one in values.pop(key):
                send(one, "counted")


def waiting_push(server, send, recv):
    def push(key, value):
        send(server(key), ("push", key, value))
        recv()
    return push


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

    return push, pull, lambda: counted(len(workers), send, recv, make=lambda values: values[0])


def stable(text):
    return int.from_bytes(sha256(str(text).encode()).digest()[:8], "big")


def ringed(name=lambda i, server: server, virtual=256):
    """An answer with a ring on which server number i lies at the hashes of f"{name} {v}" for each v."""
    def answer(keys, servers):
        ring = sorted((stable(f"{name(i, server)} {v}"), server) for i, server in enumerate(servers)
                      for v in range(virtual))
        places = [at for at, _ in ring]
        return {key: ring[bisect(places, stable(key)) % len(ring)][1] for key in keys}
    return answer


def round_robin(keys, servers):
    return {key: servers[i % len(servers)] for i, key in enumerate(keys)}


def messages_counted(n):
    """After n messages of a round it is complete."""
    rounds = {}

    def receive(worker, number, value):
        rounds.setdefault(number, []).append(value)
        return sum(rounds[number]) if len(rounds[number]) == n else None
    return receive


def tables(forget=True, take=lambda number, now: True, order=sorted, add=sum, late=False, by_round=True):
    """An answer that keeps, per round, worker → value; one thing is changed."""
    def answer(n):
        rounds, closed, now = {}, set(), [1]

        def receive(worker, number, value):
            at = number if by_round else 0
            if (by_round and not late and number in closed) or not take(number, now[0]):
                return None
            values = rounds.setdefault(at, {})
            values[worker] = value
            if len(values) < n:
                return None
            closed.add(number)
            now[0] = max(now[0], number + 1)
            total = add([values[i] for i in order(values)])
            if forget:
                del rounds[at]
            return total
        return receive
    return answer


def into_the_first(values):
    for value in values[1:]:
        values[0] += value
    return values[0]


def added_again_on_arrival(n):
    """Knows who is there, but adds before looking."""
    totals, who = {}, {}

    def receive(worker, number, value):
        if len(who.setdefault(number, set())) == n:
            return None
        totals[number] = totals.get(number, 0) + value
        who[number].add(worker)
        return totals[number] if len(who[number]) == n else None
    return receive


def part_of(cuts, row):
    return bisect(cuts, row) - 1


def collected(servers=lambda rows, cuts: sorted({part_of(cuts, row) for row in rows}),
              wanted=lambda here: sorted(set(here)), local=lambda row, start: row - start, put=None):
    """An answer that asks each of ``servers`` once for ``wanted`` of the rows that it has."""
    def answer(rows, cuts, ask):
        found = {}
        for server in servers(rows, cuts):
            here = wanted([row for row in rows if cuts[server] <= row < cuts[server + 1]])
            got = ask(server, [local(row, cuts[server]) for row in here])
            found.update(zip(here, got))
        return put(rows, found) if put else torch.stack([found[row] for row in rows])
    return answer


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
        "too-early": [stored(answers_at_once)],
        "old-round": [served(keep=True)],
        "push-waits": [stored(push_waits_for_all, push=waiting_push)],
        "no-answer": [served(answer=False)],
        "overtaken": [stored(counts_on)],
        "too-many-bytes": [served(make=lambda values: sum(value.double() for value in values))],
        "one-server": [stored(counted, at=lambda key, servers: servers[0])],
        "wrong-type": [lambda workers, servers, send, recv: recv],
        "differs": [served(make=lambda values: values[-1]), behind_the_network],
        "endless": [stored(counted, pull=lambda server, send, recv: lambda key: [None for _ in iter(int, 1)])],
    },
    "placement": {
        "python-hash": [lambda keys, servers: {key: servers[hash(key) % len(servers)] for key in keys}],
        "modulo": [lambda keys, servers: {key: sorted(servers)[stable(key) % len(servers)] for key in keys}],
        "moves-between": [lambda keys, servers: ringed(virtual=600 // len(servers))(keys, servers)],
        "depends-on-others": [round_robin],
        "uneven": [ringed(virtual=1)],
        "by-position": [ringed(name=lambda i, server: i)],
        "differs": [lambda keys, servers: {key: random.choice(servers) for key in keys}],
        "not-general": [lambda keys, servers: placement(keys, servers) if len(servers) < 7 else 0 / 0],
    },
    "count-workers": {
        "counts-messages": [messages_counted],
        "counted-twice": [added_again_on_arrival],
        "overwritten": [tables(by_round=False)],
        "repeat-opens": [tables(late=True)],
        "keeps-all": [tables(forget=False)],
        "arrival-order": [tables(order=list)],
        "differs": [tables(take=lambda number, now: number <= now), tables(add=into_the_first)],
    },
    "sparse-pull": {
        "everything": [every_row],
        "every-server": [collected(servers=lambda rows, cuts: range(len(cuts) - 1))],
        "twice": [collected(wanted=list)],
        "row-by-row": [one_by_one],
        "wrong-offset": [collected(local=lambda row, start: row)],
        "wrong-cut": [by_division],
        "order-lost": [lambda rows, cuts, ask: sparse_pull(sorted(rows), cuts, ask)],
        "differs": [lambda rows, cuts, ask: sparse_pull(sorted(set(rows)), cuts, ask)],
        "not-general": [collected()],
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
        "tensors stay as they are": tables(add=into_the_first),
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

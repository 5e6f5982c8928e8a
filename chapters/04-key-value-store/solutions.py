"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each makes.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
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


# What learners write instead. Each answer does one thing wrong; `stored`, `ringed`, `server_of` and `tables` are what
# they have in common.


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


def right(n, send, recv, limit=None, acknowledge=False):
    """The server's side of the solution."""
    pushed, totals, asking = {}, {}, {}
    handled = 0
    while limit is None or handled < limit:
        handled += 1
        worker, (word, key, value) = recv()
        open_round, asked = pushed.setdefault(key, {}), asking.setdefault(key, [])
        if word == "push":
            open_round[worker] = value
            if acknowledge:
                send(worker, "counted")
            if len(open_round) == n:
                totals[key] = sum(open_round.values())
                open_round.clear()
                while asked:
                    send(asked.pop(), totals[key])
        elif worker in open_round:
            asked.append(worker)
        else:
            send(worker, totals[key])


def answers_at_once(n, send, recv):
    """Whatever is there by now is the answer."""
    totals = {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            totals[key] = totals.get(key, 0) + value
        else:
            send(worker, totals[key])


def counted(n, send, recv, make=sum, keep=False, store=False, every=False, answer=True):
    """The solution again: make(values of a round) is its result; with ``every``, all keys close before a pull."""
    pushed, kept, totals, closed, asking = {}, {}, {}, {}, []
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            pushed.setdefault(key, {})[worker] = value
            if len(pushed[key]) == n:
                kept[key] = [*(kept.get(key, []) if keep else []), *pushed.pop(key).values()]
                totals[key] = make(kept[key])
                closed[key] = closed.get(key, 0) + 1
        else:
            asking.append((worker, key))
        ready = [(one, each) for one, each in asking if one not in pushed.get(each, {}) and each in totals]
        if answer and (not every or (not pushed and len(set(closed.values())) == 1)):
            for one, each in ready:
                asking.remove((one, each))
                send(one, dict(totals) if store else totals[each])


def counts_on(n, send, recv):
    """Answers while the number of pushes is a multiple of n: not once somebody has pushed for the next round."""
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


def never_forgets(n, send, recv):
    """Adds what is pushed to what was there."""
    counted(n, send, recv, keep=True)


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


def never_answers(n, send, recv):
    counted(n, send, recv, answer=False)


def pushed_twice(server, send, recv):
    """Sends the value in two messages, of which the server ignores one."""
    def push(key, value):
        send(server(key), ("copy", key, value))
        send(server(key), ("push", key, value))
    return push


def ignores_copies(n, send, recv):
    def only_pushes():
        while True:
            worker, message = recv()
            if message[0] != "copy":
                return worker, message
    right(n, send, only_pushes)


def told_to_all(n, send, recv):
    """A complete sum goes to everyone, and nobody says of which key it is."""
    values = {}
    while True:
        worker, (word, key, value) = recv()
        values.setdefault(key, {})[worker] = value
        if len(values[key]) == n:
            had = values.pop(key)
            for one in had:
                send(one, sum(had.values()))


def takes_the_next(server, send, recv):
    return lambda key: recv()[1]


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


def ringed(name=lambda i, server: server, virtual=256, number=stable, key_number=None):
    """An answer with a ring on which server number i lies at number(f"{name} {v}") for each v."""
    def answer(keys, servers):
        ring = sorted((number(f"{name(i, server)} {v}"), server) for i, server in enumerate(servers)
                      for v in range(virtual))
        places = [at for at, _ in ring]
        return {key: ring[bisect(places, (key_number or number)(key)) % len(ring)][1] for key in keys}
    return answer


FOUND = {}


def remembered(keys, servers):
    """Where a key was found once it is looked for again."""
    for key, server in placement(keys, servers).items():
        FOUND.setdefault(key, server)
    return {key: FOUND[key] for key in keys}


def round_robin(keys, servers):
    return {key: servers[i % len(servers)] for i, key in enumerate(keys)}


def highest(keys, servers):
    """Rendezvous hashing: of all servers the one with the highest hash for this key."""
    return {key: max(servers, key=lambda server: stable(f"{server} {key}")) for key in keys}


def jumps(keys, servers):
    """Jump hashing (Lamping and Veach, 2014): few moves, as long as only the last server leaves."""
    def jump(number):
        b, j = -1, 0
        while j < len(servers):
            b = j
            number = (number * 2862933555777941757 + 1) % 2**64
            j = int((b + 1) * 2**31 / ((number >> 33) + 1))
        return b
    return {key: servers[jump(stable(key))] for key in keys}


def messages_counted(n):
    """After n messages of a round it is complete."""
    rounds = {}

    def receive(worker, number, value):
        rounds.setdefault(number, []).append(value)
        return sum(rounds[number]) if len(rounds[number]) == n else None
    return receive


def tables(add=None, forget=True, take=lambda number, now: True, order=sorted, late=False, by_round=True):
    """An answer that keeps, per round, worker → value; ``add``: how a value that is there meets another one."""
    def answer(n):
        rounds, closed, now = {}, set(), [1]

        def receive(worker, number, value):
            at = number if by_round else 0
            if (by_round and not late and number in closed) or not take(number, now[0]):
                return None
            values = rounds.setdefault(at, {})
            values[worker] = add(values[worker], value) if add and worker in values else value
            if len(values) < n:
                return None
            closed.add(number)
            now[0] = max(now[0], number + 1)
            total = sum(values[i] for i in order(values))
            if forget:
                del rounds[at]
            return total
        return receive
    return answer


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


def into_the_first(n):
    """Adds into the tensor that came first, which is not its own."""
    rounds, closed = {}, set()

    def receive(worker, number, value):
        if number in closed:
            return None
        values = rounds.setdefault(number, {})
        values[worker] = value
        if len(values) < n:
            return None
        closed.add(number)
        total = values[0]
        for i in range(1, n):
            total += values[i]
        return total
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


def sixteen_wide(rows, cuts, ask):
    """As if every row had sixteen elements, as in the first case."""
    found = torch.empty(len(rows), 16)
    for server in sorted({part_of(cuts, row) for row in rows}):
        here = sorted({row for row in rows if part_of(cuts, row) == server})
        got = ask(server, [row - cuts[server] for row in here])
        for at, row in enumerate(rows):
            if row in here:
                found[at] = got[here.index(row)]
    return found


WRONG = {
    "push-pull": {
        "too-early": [stored(answers_at_once)],
        "old-round": [stored(never_forgets)],
        "push-waits": [stored(push_waits_for_all, push=waiting_push)],
        "no-answer": [stored(never_answers)],
        "overtaken": [stored(counts_on)],
        "too-many-bytes": [stored(ignores_copies, push=pushed_twice)],
        "one-server": [stored(right, at=lambda key, servers: servers[0])],
        "wrong-type": [lambda workers, servers, send, recv: recv],
        "differs": [stored(told_to_all, pull=takes_the_next), behind_the_network],
        "endless": [stored(right, pull=lambda server, send, recv: lambda key: [None for _ in iter(int, 1)])],
    },
    "placement": {
        "python-hash": [lambda keys, servers: {key: servers[hash(key) % len(servers)] for key in keys}],
        "modulo": [lambda keys, servers: {key: sorted(servers)[stable(key) % len(servers)] for key in keys}],
        "moves-between": [lambda keys, servers: ringed(virtual=600 // len(servers))(keys, servers)],
        "depends-on-others": [round_robin],
        "uneven": [ringed(virtual=1)],
        "by-position": [jumps],
        "differs": [remembered],
        "not-general": [lambda keys, servers: highest(keys, servers) if len(servers) < 7 else 0 / 0],
    },
    "count-workers": {
        "counts-messages": [messages_counted],
        "counted-twice": [added_again_on_arrival],
        "overwritten": [tables(by_round=False)],
        "repeat-opens": [tables(late=True)],
        "keeps-all": [tables(forget=False)],
        "arrival-order": [tables(order=list)],
        "differs": [tables(take=lambda number, now: number <= now), into_the_first],
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
        "not-general": [sixteen_wide],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

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


def all_keys_first(n, send, recv):
    """Answers nobody before every worker has pushed every key."""
    counted(n, send, recv, every=True)


def whole_store(n, send, recv):
    counted(n, send, recv, store=True)


def from_the_store(server, send, recv):
    def pull(key):
        send(server(key), ("pull", key, None))
        return recv()[1][key]
    return pull


def last_value(n, send, recv):
    counted(n, send, recv, make=lambda values: values[-1])


def mean(n, send, recv):
    counted(n, send, recv, make=lambda values: sum(values) / n)


def first_again(n, send, recv):
    """Begins the sum with the first value, and then adds all of them."""
    counted(n, send, recv, make=lambda values: values[0] + sum(values))


def without_the_asker(n, send, recv):
    """Sends each worker the sum of the others."""
    values, asking = {}, {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            values.setdefault(key, {})[worker] = value
        else:
            asking.setdefault(key, []).append(worker)
        if len(values.get(key, ())) == n:
            for one in asking.pop(key, []):
                send(one, sum(values[key].values()) - values[key][one])


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


def received_first(server, send, recv):
    def pull(key):
        total = recv()
        send(server(key), ("pull", key, None))
        return total[1]
    return pull


def asks_again(server, send, recv):
    """Asks again and again until there is an answer."""
    def pull(key):
        while True:
            send(server(key), ("pull", key, None))
            total = recv()[1]
            if total is not None:
                return total
    return pull


def says_not_yet(n, send, recv):
    values, totals = {}, {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            values.setdefault(key, {})[worker] = value
            if len(values[key]) == n:
                totals[key] = sum(values.pop(key).values())
        else:
            send(worker, None if worker in values.get(key, {}) else totals[key])


def one_key_at_a_time(n, send, recv):
    """Receives the pushes of one key, then of the next."""
    for _ in range(3):
        for key in range(6):
            total, asked = 0, []
            for _ in range(n):
                worker, (word, other, value) = recv()
                total = total + value
            for _ in range(n):
                worker, _ = recv()
                send(worker, total)


def handles_one(n, send, recv):
    right(n, send, recv, limit=1)


def never_answers(n, send, recv):
    counted(n, send, recv, answer=False)


def takes_whatever_comes(n, send, recv):
    right(n, send, recv, acknowledge=True)


def all_in_every_push(server, send, recv):
    """Pushes everything that this worker has had so far."""
    had = {}

    def push(key, value):
        had[key] = value
        send(server(key), ("push", key, torch.stack([value, *had.values()])))
    return push


def first_of_many(n, send, recv):
    counted(n, send, recv, make=lambda values: sum(value[0] for value in values))


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


def as_numbers(server, send, recv):
    """A list of numbers takes eight bytes each."""
    def push(key, value):
        send(server(key), ("push", key, value.tolist()))
    return push


def from_numbers(n, send, recv):
    counted(n, send, recv, make=lambda values: sum(map(torch.tensor, values)))


def in_place(server, send, recv):
    def push(key, value):
        send(server(key), ("push", key, value))
        value.zero_()
    return push


def last_total_at_once(n, send, recv):
    """Whoever asks gets the last complete sum, even of the round before."""
    values, totals, asking = {}, {}, {}
    while True:
        worker, (word, key, value) = recv()
        if word == "push":
            values.setdefault(key, {})[worker] = value
            if len(values[key]) == n:
                totals[key] = sum(values.pop(key).values())
                for one in asking.pop(key, []):
                    send(one, totals[key])
        elif key in totals:
            send(worker, totals[key])
        else:
            asking.setdefault(key, []).append(worker)


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


def in_double(n, send, recv):
    """Adds in double precision, and sends that."""
    counted(n, send, recv, make=lambda values: sum(value.double() for value in values))


def broken_up(server, send, recv):
    """A message for each element."""
    def push(key, value):
        for e, number in enumerate(value.tolist()):
            send(server(key), ("push", (key, e), number))
    return push


def without_a_return(server, send, recv):
    def pull(key):
        send(server(key), ("pull", key, None))
        recv()
    return pull


def with_the_sender(server, send, recv):
    def pull(key):
        send(server(key), ("pull", key, None))
        return recv()
    return pull


def among_workers(workers, servers, send, recv):
    """Everyone sends to everyone, and no server is needed."""
    had = {}

    def push(key, value):
        had[key] = value
        for worker in workers:
            send(worker, (key, value))

    def pull(key):
        return had[key] + sum(recv()[1][1] for _ in workers[1:])

    return push, pull, recv


def by_number(workers, servers, send, recv):
    def push(key, value):
        send(key % len(servers), ("push", key, value))

    return push, recv, recv


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


H = hash


def by_another_name(keys, servers):
    """Python's hash, which is called otherwise here."""
    return {key: max(servers, key=lambda server: H(f"{server} {key}")) for key in keys}


def by_method(keys, servers):
    return ringed(number=lambda text: text.__hash__())(keys, servers)


def by_stretches(keys, servers):
    """The circle of hashes in as many equal stretches as there are servers."""
    return {key: sorted(servers)[stable(key) * len(servers) >> 64] for key in keys}


FOUND = {}


def remembered(keys, servers):
    """Where a key was found once it is looked for again."""
    for key, server in placement(keys, servers).items():
        FOUND.setdefault(key, server)
    return {key: FOUND[key] for key in keys}


def round_robin(keys, servers):
    return {key: servers[i % len(servers)] for i, key in enumerate(keys)}


def in_ranges(keys, servers):
    ordered = sorted(keys)
    return {key: servers[i * len(servers) // len(keys)] for i, key in enumerate(ordered)}


def least_loaded(keys, servers):
    load = dict.fromkeys(servers, 0)
    place = {}
    for key in keys:
        place[key] = min(servers, key=load.get)
        load[place[key]] += 1
    return place


def by_letters(keys, servers):
    """The highest sum of letters wins: nothing moves needlessly, but the loads are what they are."""
    return {key: max(servers, key=lambda server: (stable(key[:6] + server), server)) for key in keys}


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


def messages_in_all(n):
    """Every n messages are a round, whatever their number."""
    had = []

    def receive(worker, number, value):
        had.append(value)
        if len(had) < n:
            return None
        total = sum(had)
        had.clear()
        return total
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


def added_on_arrival(n):
    totals, who = {}, {}

    def receive(worker, number, value):
        if worker in who.setdefault(number, set()):
            return None
        who[number].add(worker)
        totals[number] = totals.get(number, 0) + value
        return totals[number] if len(who[number]) == n else None
    return receive


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


def remembers_numbers(n):
    """Right, but the set of the closed rounds has a number more with every one."""
    rounds, closed = {}, set()

    def receive(worker, number, value):
        if number in closed:
            return None
        values = rounds.setdefault(number, {})
        values[worker] = value
        if len(values) < n:
            return None
        closed.add(number)
        del rounds[number]
        return sum(values[i] for i in range(n))
    return receive


def two_slots(n):
    """One for this round and one for the next, and a late repetition finds that of another."""
    slots = [{}, {}]

    def receive(worker, number, value):
        values = slots[number % 2]
        values[worker] = value
        if len(values) < n:
            return None
        slots[number % 2] = {}
        return sum(values[i] for i in range(n))
    return receive


def known_by_value(n):
    """A value that is there already is taken for a repetition."""
    rounds, closed = {}, [0]

    def receive(worker, number, value):
        values = rounds.setdefault(number, {})
        if number <= closed[0] or any(torch.equal(value, each) for each in values.values()):
            return None
        values[worker] = value
        if len(values) < n:
            return None
        closed[0] = number
        del rounds[number]
        return sum(values[i] for i in sorted(values))
    return receive


def when_the_last_comes(n):
    """The worker with the highest number closes the round."""
    rounds = {}

    def receive(worker, number, value):
        rounds.setdefault(number, {})[worker] = value
        return sum(rounds.pop(number).values()) if worker == n - 1 else None
    return receive


def sum_so_far(n):
    receive = added_on_arrival(n)
    totals = {}

    def always(worker, number, value):
        totals.setdefault(number, {})[worker] = value
        return receive(worker, number, value) if len(totals[number]) == n else sum(totals[number].values())
    return always


def the_last(n):
    """Knows when a round is complete, and returns what came last."""
    who = {}

    def receive(worker, number, value):
        if worker in who.setdefault(number, set()):
            return None
        who[number].add(worker)
        return value.clone() if len(who[number]) == n else None
    return receive


def the_mean(n):
    receive = count_workers(n)

    def divided(worker, number, value):
        total = receive(worker, number, value)
        return None if total is None else total / n
    return divided


def numbers_only(n):
    receive = count_workers(n)

    def summed(worker, number, value):
        total = receive(worker, number, value)
        return None if total is None else float(total.sum())
    return summed


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


def every_row_of_theirs(rows, cuts, ask):
    parts = {server: ask(server, list(range(cuts[server + 1] - cuts[server])))
             for server in sorted({part_of(cuts, row) for row in rows})}
    return torch.stack([parts[part_of(cuts, row)][row - cuts[part_of(cuts, row)]] for row in rows])


def one_by_one(rows, cuts, ask):
    return torch.cat([ask(part_of(cuts, row), [row - cuts[part_of(cuts, row)]]) for row in rows])


def one_by_one_without_repeats(rows, cuts, ask):
    found = {row: ask(part_of(cuts, row), [row - cuts[part_of(cuts, row)]])[0] for row in sorted(set(rows))}
    return torch.stack([found[row] for row in rows])


def by_division(rows, cuts, ask):
    """As if all parts were as long as the first."""
    size = cuts[1] - cuts[0]
    found = {}
    for server in sorted({row // size for row in rows}):
        here = sorted({row for row in rows if row // size == server})
        found.update(zip(here, ask(server, [row % size for row in here])))
    return torch.stack([found[row] for row in rows])


def cut_too_late(rows, cuts, ask):
    """The row at a cut is looked for before it."""
    found = {}
    for server, (start, stop) in enumerate(zip(cuts, cuts[1:])):
        here = sorted({row for row in rows if start < row <= stop or row == start == 0})
        if here:
            found.update(zip(here, ask(server, [row - start for row in here])))
    return torch.stack([found[row] for row in rows])


def by_runs(rows, cuts, ask):
    """A message for each run of neighboring rows."""
    found, run = {}, []
    for row in [*sorted(set(rows)), None]:
        if run and (row is None or row != run[-1] + 1 or part_of(cuts, row) != part_of(cuts, run[0])):
            server = part_of(cuts, run[0])
            found.update(zip(run, ask(server, [each - cuts[server] for each in run])))
            run = []
        run.append(row)
    return torch.stack([found[row] for row in rows]) if rows else torch.empty(0)


def by_first_cut(rows, cuts, ask):
    """Where two cuts are equal, the server between them has nothing, and is taken."""
    found = {}
    for server in sorted({cuts.index(max(cut for cut in cuts if cut <= row)) for row in rows}):
        here = sorted({row for row in rows if cuts.index(max(cut for cut in cuts if cut <= row)) == server})
        found.update(zip(here, ask(server, [row - cuts[server] for row in here])))
    return torch.stack([found[row] for row in rows]) if rows else torch.empty(0)


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


def asks_to_learn_the_width(rows, cuts, ask):
    return sparse_pull(rows, cuts, ask) if rows else ask(0, [])


def never_without_rows(rows, cuts, ask):
    """Nothing to stack is an error of torch."""
    return collected()(rows, cuts, ask)


def every_server(rows, cuts):
    return range(len(cuts) - 1)


def one_off(row, start):
    """Counted from 1."""
    return row - start - 1 if row > start else 0


WRONG = {
    "push-pull": {
        "too-early": [stored(answers_at_once)],
        "old-round": [stored(never_forgets), stored(last_total_at_once)],
        "not-added": [stored(last_value)],
        "wrong-sum": [stored(mean)],
        "counted-twice": [stored(first_again)],
        "own-missing": [stored(without_the_asker)],
        "keys-wait": [stored(all_keys_first)],
        "push-waits": [stored(push_waits_for_all, push=waiting_push)],
        "waits-first": [stored(right, pull=received_first)],
        "no-answer": [stored(never_answers)],
        "overtaken": [stored(counts_on)],
        "other-key": [stored(one_key_at_a_time), stored(told_to_all, pull=takes_the_next)],
        "serve-ended": [stored(handles_one), stored(lambda n, send, recv: None)],
        "too-many-messages": [stored(says_not_yet, pull=asks_again), stored(right, push=broken_up)],
        "whole-store": [stored(whole_store, pull=from_the_store), stored(first_of_many, push=all_in_every_push)],
        "too-many-bytes": [stored(ignores_copies, push=pushed_twice), stored(from_numbers, push=as_numbers),
                           stored(in_double)],
        "one-server": [stored(right, at=lambda key, servers: servers[0])],
        "uneven-servers": [stored(right, at=lambda key, servers: servers[min(key, len(servers) - 1)])],
        "past-the-wire": [behind_the_network],
        "not-the-value": [stored(takes_whatever_comes), stored(right, pull=with_the_sender)],
        "nothing-pulled": [stored(right, pull=without_a_return)],
        "changes-it": [stored(right, push=in_place)],
        "wrong-way": [among_workers, by_number],
        "not-three": [lambda workers, servers, send, recv: recv, lambda workers, servers, send, recv: (send, recv)],
        "unsendable": [stored(right, push=lambda server, send, recv: lambda key, value: send(server(key), {key}))],
        "nothing-returned": [lambda workers, servers, send, recv: None],
        "raised": [stored(lambda n, send, recv: send("worker0", recv()[2]))],
        "endless": [stored(right, pull=lambda server, send, recv: lambda key: [None for _ in iter(int, 1)])],
    },
    "placement": {
        "python-hash": [lambda keys, servers: {key: servers[hash(key) % len(servers)] for key in keys},
                        ringed(number=lambda text: hash(text)), ringed(key_number=lambda key: hash((key, "place"))), by_another_name, by_method],
        "modulo": [by_stretches, lambda keys, servers: {key: sorted(servers)[stable(key) % len(servers)] for key in keys},
                   lambda keys, servers: {key: servers[sum(map(ord, key)) % len(servers)] for key in keys}],
        "moves-between": [lambda keys, servers: ringed(virtual=600 // len(servers))(keys, servers)],
        "depends-on-others": [round_robin, in_ranges, least_loaded],
        "uneven": [ringed(virtual=1), by_letters],
        "one-server": [lambda keys, servers: dict.fromkeys(keys, max(servers))],
        "by-position": [ringed(name=lambda i, server: i), jumps],
        "changes": [lambda keys, servers: {key: random.choice(servers) for key in keys}],
        "other-keys": [lambda keys, servers: placement(keys[1:], servers),
                       lambda keys, servers: {place: key for key, place in placement(keys, servers).items()}],
        "other-servers": [lambda keys, servers: {key: servers.index(at) for key, at in placement(keys, servers).items()},
                          remembered],
        "not-a-dict": [lambda keys, servers: [servers[stable(key) % len(servers)] for key in keys]],
        "nothing-returned": [lambda keys, servers: None],
        "raised": [lambda keys, servers: {key: servers[key % len(servers)] for key in keys}],
        "not-general": [lambda keys, servers: highest(keys, servers) if len(servers) < 7 else 0 / 0],
    },
    "count-workers": {
        "counts-messages": [messages_counted, messages_in_all],
        "counted-twice": [tables(add=lambda old, new: old + new), added_again_on_arrival],
        "overwritten": [tables(by_round=False)],
        "early-lost": [tables(take=lambda number, now: number <= now)],
        "repeat-opens": [tables(late=True), tables(late=True, forget=False), two_slots, when_the_last_comes],
        "keeps-all": [remembers_numbers, tables(forget=False)],
        "arrival-order": [added_on_arrival, tables(order=list)],
        "too-soon": [sum_so_far, lambda n: lambda worker, number, value: True,
                     lambda n: lambda worker, number, value: value.clone()],
        "not-added": [the_last],
        "changes-it": [into_the_first],
        "wrong-sum": [the_mean],
        "not-the-sum": [numbers_only],
        "not-a-function": [lambda n: torch.zeros(4)],
        "nothing-returned": [lambda n: None],
        "raised": [lambda n: lambda worker, number, value: [][worker]],
        "stays-open": [known_by_value, lambda n: count_workers(n + 1), lambda n: tables(take=lambda number, now: number == 1)(n)],
    },
    "sparse-pull": {
        "everything": [every_row, every_row_of_theirs],
        "every-server": [collected(servers=every_server), asks_to_learn_the_width],
        "twice": [collected(wanted=list, put=lambda rows, found: torch.stack([found[row] for row in rows]))],
        "row-by-row": [one_by_one, one_by_one_without_repeats, by_runs],
        "wrong-offset": [collected(local=lambda row, start: row), collected(local=one_off)],
        "wrong-cut": [cut_too_late, by_division, by_first_cut],
        "not-general": [sixteen_wide, never_without_rows],
        "order-lost": [lambda rows, cuts, ask: sparse_pull(sorted(rows), cuts, ask)],
        "repeats-lost": [lambda rows, cuts, ask: sparse_pull(sorted(set(rows)), cuts, ask)],
        "rows-lost": [lambda rows, cuts, ask: sparse_pull(rows[:2], cuts, ask)],
        "not-rows-back": [collected(put=lambda rows, found: [found[row] for row in rows]),
                          collected(put=lambda rows, found: found),
                          collected(put=lambda rows, found: torch.cat([found[row] for row in rows]))],
        "not-rows": [lambda rows, cuts, ask: ask(0, slice(0, 2)), lambda rows, cuts, ask: ask(0, 2)],
        "strange-server": [lambda rows, cuts, ask: ask(len(cuts) - 1, [0]), lambda rows, cuts, ask: ask("server0", [0])],
        "nothing-returned": [lambda rows, cuts, ask: None],
        "raised": [lambda rows, cuts, ask: rows[99]],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import bisect
import hashlib

# ---- fault-tolerance


def fault_tolerance(me, peer, workers, send):
    view, members = 0, ()
    done, arrived = {}, {}
    safe = {}  # key → the round that the backup has, too

    def answer(key, who):
        if peer in members and safe.get(key, 0) < done[key][0]:
            return
        for worker in who:
            send(worker, ("value", view, key, *done[key][:2]))

    def push(worker, key, number, gradient):
        had, weights, velocity = done.get(key, (0, 0.0, 0.0))
        if number == had:
            answer(key, [worker])
        if number == had + 1:
            gradients = arrived.setdefault(key, {})
            gradients[worker] = gradient
            if len(gradients) == len(workers):
                velocity = 0.9 * velocity + sum(gradients[i] for i in workers)
                done[key] = (number, weights - 0.1 * velocity, velocity)
                del arrived[key]
                if peer in members:
                    send(peer, ("copy", view, key, done[key]))
                answer(key, workers)

    def on(sender, message):
        nonlocal view, members
        kind, number, *rest = message
        if kind == "view" and number > view:
            view, members = number, rest[0]
        if number != view:
            return
        if kind == "push" and members[0] == me:
            push(sender, *rest[1:])
        if kind == "copy":
            key, done[key] = rest
            send(peer, ("has", view, key, done[key][0]))
        if kind == "has":
            safe[rest[0]] = rest[1]
            answer(rest[0], workers)

    return on


# ---- count-once


def count_once(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            counts[worker] = number
            total += gradient
            disk.put(key, (counts, total))
        send(worker, key, number, total)

    return on


def hashing(keys, hosts, replicas):
    def number(name):
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")

    ring = sorted((number(f"{server} {i}"), server) for server in hosts for i in range(256))
    places = [place for place, _ in ring]
    copies = {}
    for key in keys:
        at, found = bisect.bisect(places, number(key)), []
        while len(found) <= replicas:
            server = ring[at % len(ring)][1]
            if hosts[server] not in [hosts[other] for other in found]:
                found.append(server)
            at += 1
        copies[key] = found
    return copies


class Pair:
    """The same pair in pieces, so that one of them can be wrong."""

    def __init__(self, me, peer, workers, send):
        self.me, self.peer, self.workers, self.send = me, peer, workers, send
        self.view, self.members = 0, ()
        self.done, self.safe, self.arrived = {}, {}, {}

    def __call__(self, sender, message):
        kind, view, *rest = message
        if kind == "view":
            self.hear(view, *rest)
        elif self.takes(kind, view):
            getattr(self, kind)(sender, view, *rest)

    def hear(self, view, members):
        self.view, self.members = view, members

    def takes(self, kind, view):
        return view == self.view

    def alone(self):
        return self.peer not in self.members

    def push(self, worker, view, id, key, number, gradient):
        had = self.done.get(key, (0, 0.0, 0.0))[0]
        if number == had:
            self.again(worker, key)
        if self.members[0] == self.me and number == had + 1:
            self.arrived.setdefault(key, {})[worker] = gradient
            if len(self.arrived[key]) == len(self.workers):
                gradients = self.arrived.pop(key)
                self.close(key, number, sum(gradients[worker] for worker in self.workers))

    def close(self, key, number, total):
        _, weights, velocity = self.done.get(key, (0, 0.0, 0.0))
        velocity = 0.9 * velocity + total
        self.done[key] = (number, weights - 0.1 * velocity, velocity)
        self.hand_on(key)
        self.tell(key, self.workers)

    def again(self, worker, key):
        self.tell(key, [worker])

    def tell(self, key, who):
        if self.alone() or self.safe.get(key, 0) >= self.done[key][0]:
            self.answer(key, who)

    def answer(self, key, who):
        for worker in who:
            self.send(worker, ("value", self.view, key, *self.done[key][:2]))

    def hand_on(self, key):
        if self.peer in self.members:
            self.send(self.peer, ("copy", self.view, key, self.done[key]))

    def copy(self, sender, view, key, state):
        self.done[key] = state
        self.send(self.peer, ("has", view, key, state[0]))

    def has(self, sender, view, key, number):
        self.safe[key] = number
        self.tell(key, self.workers)


class TellsAtOnce(Pair):
    def tell(self, key, who):
        self.answer(key, who)


class CopiesNoRound(Pair):
    def copy(self, sender, view, key, state):
        super().copy(sender, view, key, (self.done.get(key, (0,))[0], *state[1:]))
        self.send(self.peer, ("has", view, key, state[0]))


class CopiesWeights(Pair):
    def copy(self, sender, view, key, state):
        super().copy(sender, view, key, (*state[:2], 0.0))


class AnswersInEveryView(Pair):
    """In a new view it tells all workers, whether it is still the primary or not."""

    def hear(self, view, members):
        super().hear(view, members)
        for key in self.done:
            self.answer(key, self.workers)


class TakesWhatever(Pair):
    def takes(self, kind, view):
        return True


class NeverAlone(Pair):
    def alone(self):
        return self.me != self.members[0]


class PatienceEnds(Pair):
    """Asked often enough, it takes the other one for dead."""

    asked = 0

    def again(self, worker, key):
        self.asked += 1
        if self.asked > 2 * len(self.workers) and not self.alone():
            self.members = (self.me,)
        super().again(worker, key)


class AnswersOnce(Pair):
    def again(self, worker, key):
        pass


class AnswersTheLast(Pair):
    def tell(self, key, who):
        super().tell(key, who[-1:])


class OnlyTheFirst(Pair):
    def takes(self, kind, view):
        return super().takes(kind, view) and (kind != "push" or self.me == "server0")


class ForThree(Pair):
    """It knows how many workers there are."""

    def push(self, *given):
        self.workers = [*self.workers, -1, -2][:3]
        super().push(*given)


class OneMemory(Pair):
    """What belongs to the class belongs to all servers."""

    memory = {}

    def hear(self, view, members):
        super().hear(view, members)
        self.done = self.memory


class OneKey(Pair):
    """It takes the keys that it has seen, from a set that belongs to all servers."""

    known = {"w", "b"}

    def push(self, worker, view, id, key, *given):
        if key in self.known:
            super().push(worker, view, id, key, *given)


class Averages(Pair):
    def close(self, key, number, total):
        super().close(key, number, total / len(self.workers))


class TalksForEver(Pair):
    def has(self, sender, view, key, number):
        self.send(self.peer, ("has", view, key, number))


class SendsItself(Pair):
    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, self))


def once(*steps):
    """An answer that keeps counts and totals in memory as well, and takes these steps in their order."""
    def answer(disk, send):
        kept = {name: disk.get(name, {}) for name in ("counts", "totals")}

        def on(worker, id, key, number, gradient):
            if new := number > kept["counts"].get((worker, key), 0):
                kept["counts"][worker, key] = number
                kept["totals"][key] = kept["totals"].get(key, 0) + gradient
            for step in steps:
                if step == "send":
                    send(worker, key, number, kept["totals"][key])
                elif new:
                    disk.put(step, kept[step])

        return on
    return answer


def stored(is_new, note, nothing=dict):
    """Count and total are stored together; ``is_new(noted, …)`` says whether a push counts, ``note`` notes it."""
    def answer(disk, send):
        def on(worker, id, key, number, gradient):
            noted, total = disk.get(key, (nothing(), 0))
            if is_new(noted, worker, id, number):
                note(noted, worker, id, number)
                total += gradient
                disk.put(key, (noted, total))
            send(worker, key, number, total)
        return on
    return answer


by_id = stored(lambda seen, worker, id, number: id not in seen, lambda seen, worker, id, number: seen.add(id), set)
not_the_same = stored(
    lambda last, worker, id, number: number != last.get(worker, 0),
    lambda last, worker, id, number: last.update({worker: number}),
)
keeps_every_number = stored(
    lambda seen, worker, id, number: (worker, number) not in seen,
    lambda seen, worker, id, number: seen.add((worker, number)),
    set,
)
one_for_all_workers = stored(
    lambda last, worker, id, number: number > last.get("all", 0),
    lambda last, worker, id, number: last.update({"all": number}),
)


def remembers_the_last(many):
    """Only the last pushes are known, of all workers together."""
    def note(last, worker, id, number):
        last.append((worker, number))
        del last[:-many]
    return stored(lambda last, worker, id, number: (worker, number) not in last, note, list)


def one_for_all_keys(disk, send):
    def on(worker, id, key, number, gradient):
        counts, totals = disk.get("all", ({}, {}))
        if number > counts.get(worker, 0):
            counts[worker] = number
            totals[key] = totals.get(key, 0) + gradient
            disk.put("all", (counts, totals))
        send(worker, key, number, totals.get(key, 0))
    return on


def answers_as_before(disk, send):
    """A repetition gets the answer that was given first."""
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, (0, 0))[0]:
            total += gradient
            counts[worker] = number, total
            disk.put(key, (counts, total))
        send(worker, key, number, counts[worker][1])
    return on


def sends(change):
    """The solution, but for what it sends: nothing if ``change(worker, key, number, total)`` is None."""
    def answer(disk, send):
        told = set()

        def changed(*given):
            if (new := change(told, *given)) is not None:
                send(*new)
            told.add(given[:3])

        return count_once(disk, changed)
    return answer


outside = {}


def keeps_it_outside(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = outside.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            outside[key] = counts | {worker: number}, total + gradient
        send(worker, key, number, outside[key][1])
    return on


def number_of(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def around(places=256, number=number_of, host=True, server=True, wrap=True, count=lambda replicas: replicas + 1,
           order=list, name=lambda server, at, i: f"{server} {i}", of=lambda key, at: key):
    """An answer with one thing changed: the places, the walk around the ring, and who may not stand there twice."""
    def answer(keys, hosts, replicas):
        ring = sorted((number(name(each, at, i)), each) for at, each in enumerate(hosts) for i in range(places))
        copies = {}
        for place, key in enumerate(keys):
            start, found = bisect.bisect(ring, (number(of(key, place)), "")), []
            for step in range(start, start + len(ring)):
                if step >= len(ring) and not wrap:
                    break
                each = ring[step % len(ring)][1]
                taken = [hosts[other] for other in found] if host else found if server else []
                if len(found) < count(replicas) and (hosts[each] if host else each) not in taken:
                    found.append(each)
                if len(found) == count(replicas):
                    break
            copies[key] = order(found)
        return copies
    return answer


def remainder(keys, hosts, replicas):
    """The rest of a division says who is first, and the next ones follow."""
    servers, copies = sorted(hosts), {}
    for key in keys:
        at, found = number_of(key), []
        while len(found) <= replicas:
            each = servers[at % len(servers)]
            if hosts[each] not in [hosts[other] for other in found]:
                found.append(each)
            at += 1
        copies[key] = found
    return copies


def in_the_list(keys, hosts, replicas):
    """By their numbers in the list, on a ring."""
    return around(name=lambda server, at, i: f"{at} {i}")(keys, hosts, replicas)


def next_in_the_list(keys, hosts, replicas):
    """The first one is from the ring, and the others are those that follow by name: always the same."""
    first, servers = around()(keys, hosts, 0), sorted(hosts)
    copies = {}
    for key in keys:
        at, found = servers.index(first[key][0]), []
        while len(found) <= replicas:
            each = servers[at % len(servers)]
            if hosts[each] not in [hosts[other] for other in found]:
                found.append(each)
            at += 1
        copies[key] = found
    return copies


def a_ring_for_each(keys, hosts, replicas):
    """Each copy has a ring of its own, and where it falls on somebody who is there already, the next name is taken."""
    copies = {key: [] for key in keys}
    for copy in range(replicas + 1):
        for key, (each,) in around(of=lambda key, at, copy=copy: f"{copy} {key}")(keys, hosts, 0).items():
            servers = sorted(hosts)
            while hosts[each] in [hosts[other] for other in copies[key]]:
                each = servers[(servers.index(each) + 1) % len(servers)]
            copies[key].append(each)
    return copies


def in_turn(keys, hosts, replicas):
    """Fills the servers one after the other."""
    return around(of=lambda key, at: str(at))(keys, hosts, replicas)


def changed_copies(change):
    return lambda keys, hosts, replicas: change(hashing(keys, hosts, replicas))


WRONG = {
    "count-once": {
        "memory-only": [once("send")],
        "answers-first": [once("send", "counts", "totals")],
        "count-without-value": [once("counts", "totals", "send"), once("counts", "send")],
        "value-without-count": [once("totals", "counts", "send"), once("totals", "send")],
        "by-message": [by_id, not_the_same],
        "counts-repeats": [stored(lambda *_: True, lambda *_: None)],
        "one-count-for-all-keys": [one_for_all_keys],
        "one-count-for-all-workers": [one_for_all_workers],
        "keeps-all": [keeps_every_number],
        "forgets-old": [remembers_the_last(30)],
        "old-total": [answers_as_before],
        "answers-once": [sends(lambda told, *given: None if given[:3] in told else given), sends(lambda *_: None)],
        "shared-memory": [keeps_it_outside],
        "wrong-sum": [sends(lambda told, worker, key, number, total: (worker, key, number, total / 2))],
        "not-an-answer": [sends(lambda told, worker, key, number, total: (worker, key, number + 1, total))],
        "not-a-function": [lambda disk, send: "on"],
        "nothing-returned": [lambda disk, send: None],
    },
    "fault-tolerance": {
        "acked-too-early": [TellsAtOnce],
        "forgets-who-counted": [CopiesNoRound],
        "optimizer-lost": [CopiesWeights],
        "zombie": [AnswersInEveryView],
        "old-view-taken": [TakesWhatever],
        "waits-for-the-dead": [NeverAlone],
        "alone-unasked": [PatienceEnds],
        "nobody-answers": [AnswersOnce, AnswersTheLast],
        "never-takes-over": [OnlyTheFirst],
        "shared-memory": [OneMemory],
        "not-general": [ForThree, OneKey],
        "wrong-weights": [Averages],
        "talks-for-ever": [TalksForEver],
        "not-a-message": [SendsItself],
        "not-a-function": [lambda me, peer, workers, send: "on"],
        "nothing-returned": [lambda me, peer, workers, send: None],
    },
    "hashing": {
        "same-server": [around(host=False, server=False)],
        "same-host": [around(host=False)],
        "modulo": [remainder],
        "too-few-copies": [around(wrap=False), around(count=lambda replicas: replicas + 2)],
        "moves-between": [a_ring_for_each],
        "by-position": [in_the_list],
        "python-hash": [around(number=hash)],
        "depends-on-others": [in_turn],
        "uneven": [around(places=4), around(order=sorted)],
        "one-heir": [next_in_the_list],
        "not-a-dict": [changed_copies(lambda copies: dict(list(copies.items())[1:])),
                       changed_copies(lambda copies: {key: found[0] for key, found in copies.items()}),
                       changed_copies(lambda copies: list(copies.values()))],
        "nothing-returned": [lambda keys, hosts, replicas: None],
    },
}

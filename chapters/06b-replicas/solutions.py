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
        if self.peer in self.members:
            self.send(self.peer, ("copy", self.view, key, self.done[key]))
        self.tell(key, self.workers)

    def again(self, worker, key):
        self.tell(key, [worker])

    def tell(self, key, who):
        if self.alone() or self.safe.get(key, 0) >= self.done[key][0]:
            self.answer(key, who)

    def answer(self, key, who):
        for worker in who:
            self.send(worker, ("value", self.view, key, *self.done[key][:2]))

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


class AnswersOnce(Pair):
    def again(self, worker, key):
        pass


class Averages(Pair):
    def close(self, key, number, total):
        super().close(key, number, total / len(self.workers))


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
keeps_every_number = stored(
    lambda seen, worker, id, number: (worker, number) not in seen,
    lambda seen, worker, id, number: seen.add((worker, number)),
    set,
)
one_count_for_all_workers = stored(
    lambda last, worker, id, number: number > last.get("all", 0),
    lambda last, worker, id, number: last.update({"all": number}),
)


def silent_on_repeats(disk, send):
    told = set()

    def once_only(*answer):
        if answer[:3] not in told:
            send(*answer)
        told.add(answer[:3])

    return count_once(disk, once_only)


def number_of(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def around(places=256, number=number_of, host=True, server=True, name=lambda server, at, i: f"{server} {i}"):
    """An answer with one thing changed: the places on the ring, and who may not stand there twice."""
    def answer(keys, hosts, replicas):
        ring = sorted((number(name(each, at, i)), each) for at, each in enumerate(hosts) for i in range(places))
        copies = {}
        for key in keys:
            at, found = bisect.bisect(ring, (number(key), "")), []
            while len(found) <= replicas:
                each = ring[at % len(ring)][1]
                taken = [hosts[other] for other in found] if host else found if server else []
                if (hosts[each] if host else each) not in taken:
                    found.append(each)
                at += 1
            copies[key] = found
        return copies
    return answer


def by_name(first):
    """``first(keys, hosts)`` says where each key is first, and the other copies are on the next servers by name."""
    def answer(keys, hosts, replicas):
        servers, copies = sorted(hosts), {}
        for key, at in first(keys, hosts).items():
            copies[key] = found = []
            while len(found) <= replicas:
                each = servers[at % len(servers)]
                if hosts[each] not in [hosts[other] for other in found]:
                    found.append(each)
                at += 1
        return copies
    return answer


remainder = by_name(lambda keys, hosts: {key: number_of(key) for key in keys})
next_in_the_list = by_name(
    lambda keys, hosts: {key: sorted(hosts).index(found[0]) for key, found in hashing(keys, hosts, 0).items()}
)

WRONG = {
    "count-once": {
        "memory-only": [once("send")],
        "answers-first": [once("send", "counts", "totals")],
        "count-without-value": [once("counts", "totals", "send")],
        "value-without-count": [once("totals", "counts", "send")],
        "by-message": [by_id],
        "counts-repeats": [stored(lambda *_: True, lambda *_: None)],
        "keeps-all": [keeps_every_number],
        "answers-once": [silent_on_repeats],
        "differs": [one_count_for_all_workers],
    },
    "fault-tolerance": {
        "acked-too-early": [TellsAtOnce],
        "forgets-who-counted": [CopiesNoRound],
        "optimizer-lost": [CopiesWeights],
        "zombie": [AnswersInEveryView],
        "old-view-taken": [TakesWhatever],
        "waits-for-the-dead": [NeverAlone],
        "nobody-answers": [AnswersOnce],
        "differs": [Averages],
    },
    "hashing": {
        "same-server": [around(host=False, server=False)],
        "same-host": [around(host=False)],
        "modulo": [remainder],
        "by-position": [around(name=lambda server, at, i: f"{at} {i}")],
        "python-hash": [around(number=hash)],
        "uneven": [around(places=4)],
        "one-heir": [next_in_the_list],
        "differs": [lambda keys, hosts, replicas: hashing(keys, hosts, 0)],
    },
}

"""The solutions of this chapter's exercises, and typical wrong answers with the mistake that each must be told.

A solution bears its exercise's id as a name. ``WRONG`` maps exercise → mistake → answers.
"""

import bisect
import hashlib
import math
import random

# ---- fault-tolerance


def fault_tolerance(me, peer, workers, send):
    view, members = 0, ()
    done = {}  # key → (round, weights, velocity)
    safe = {}  # key → the round that the backup has, too
    arrived = {}  # key → worker → its gradient for the next round

    def tell(key, who):
        number, weights, _ = done[key]
        if peer in members and safe.get(key, 0) < number:
            send(peer, ("copy", view, key, done[key]))
            return
        for worker in who:
            send(worker, ("value", view, key, number, weights))

    def push(worker, key, number, gradient):
        had, weights, velocity = done.get(key, (0, 0.0, 0.0))
        if number == had:
            tell(key, [worker])
        if number == had + 1:
            gradients = arrived.setdefault(key, {})
            gradients[worker] = gradient
            if len(gradients) == len(workers):
                velocity = 0.9 * velocity + sum(gradients[i] for i in workers)
                done[key] = (number, weights - 0.1 * velocity, velocity)
                del arrived[key]
                tell(key, workers)

    def on(sender, message):
        nonlocal view, members
        kind, of, *rest = message
        if kind == "view" and of > view:
            view, members = of, rest[0]
        if of != view:
            return
        if kind == "push" and members[0] == me:
            push(sender, *rest[1:])
        if kind == "copy":
            key, state = rest
            if state[0] > done.get(key, (0,))[0]:
                done[key] = state
            send(peer, ("has", view, key, done[key][0]))
        if kind == "has" and rest[1] > safe.get(rest[0], 0):
            safe[rest[0]] = rest[1]
            tell(rest[0], workers)

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


def interval(n, hours, delta, restart):
    mtbf = hours * 3600 / n

    def takes(work):  # seconds for a second of work, but for a factor
        return math.expm1((work + delta) / mtbf) / work

    low, high = 0.0, mtbf
    while high - low > mtbf / 10000:
        third = (high - low) / 3
        if takes(low + third) < takes(high - third):
            high -= third
        else:
            low += third
    return low + (high - low) / 2


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


# What learners write instead. Each answer does one thing wrong.


class Pair:
    """The same server in pieces, so that one of them can be wrong."""

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
        if view > self.view:
            self.view, self.members = view, members

    def takes(self, kind, view):
        return view == self.view

    def state(self, key):
        return self.done.get(key, (0, 0.0, 0.0))

    def alone(self):
        return self.peer not in self.members

    def push(self, worker, view, id, key, number, gradient):
        if self.members[0] != self.me:
            return
        had = self.state(key)[0]
        if number == had:
            self.again(worker, key)
        if number == had + 1:
            self.arrived.setdefault(key, {})[worker] = gradient
            if len(self.arrived[key]) == len(self.workers):
                self.close(key, number)

    def total(self, gradients):
        return sum(gradients[worker] for worker in self.workers)

    def step(self, weights, velocity, total):
        velocity = 0.9 * velocity + total
        return weights - 0.1 * velocity, velocity

    def close(self, key, number):
        gradients = self.arrived.pop(key)
        self.done[key] = (number, *self.step(*self.state(key)[1:], self.total(gradients)))
        self.tell(key, self.workers)

    def again(self, worker, key):
        self.tell(key, [worker])

    def tell(self, key, who):
        if self.alone() or self.safe.get(key, 0) >= self.done[key][0]:
            self.answer(key, who)
        else:
            self.hand_on(key)

    def answer(self, key, who):
        number, weights, _ = self.done[key]
        for worker in who:
            self.send(worker, ("value", self.view, key, number, weights))

    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, self.done[key]))

    def copy(self, sender, view, key, state):
        if state[0] > self.state(key)[0]:
            self.done[key] = state
        self.send(self.peer, ("has", view, key, self.state(key)[0]))

    def has(self, sender, view, key, number):
        if number > self.safe.get(key, 0):
            self.safe[key] = number
            self.tell(key, self.workers)


class TellsAtOnce(Pair):
    def close(self, key, number):
        super().close(key, number)
        self.answer(key, self.workers)


class TellsFirst(Pair):
    def tell(self, key, who):
        self.answer(key, who)
        if not self.alone():
            self.hand_on(key)

    def has(self, sender, view, key, number):
        pass


class CopiesNothing(Pair):
    def alone(self):
        return True


class CopiesTheRoundBefore(Pair):
    """The new weights travel when the next round begins."""

    def push(self, worker, view, id, key, number, gradient):
        if not self.alone() and number == self.state(key)[0] + 1 and key in self.done:
            self.hand_on(key)
        super().push(worker, view, id, key, number, gradient)

    def tell(self, key, who):
        self.answer(key, who)


class CopiesNoRound(Pair):
    def copy(self, sender, view, key, state):
        had = self.state(key)[0]
        self.done[key] = (had, *state[1:])
        self.send(self.peer, ("has", view, key, state[0]))


class CountsTheRoundsItself(Pair):
    """Whatever n workers push is the next round; what has been counted is remembered here alone."""

    def __init__(self, *given):
        super().__init__(*given)
        self.counted = {}

    def push(self, worker, view, id, key, number, gradient):
        if self.members[0] != self.me:
            return
        if number <= self.counted.get((worker, key), 0):
            if key in self.done and number == self.done[key][0]:
                self.tell(key, [worker])
            return
        self.counted[worker, key] = number
        self.arrived.setdefault(key, {})[worker] = gradient
        if len(self.arrived[key]) == len(self.workers):
            self.close(key, number)


class SeenMessages(Pair):
    """What has been seen is a message with its number; what is said again has another one."""

    def __init__(self, *given):
        super().__init__(*given)
        self.seen = set()

    def push(self, worker, view, id, key, number, gradient):
        if self.members[0] != self.me or id in self.seen:
            return
        self.seen.add(id)
        gradients = self.arrived.setdefault(key, [])
        gradients.append((worker, gradient))
        if number == self.state(key)[0]:
            self.tell(key, [worker])
        if len(gradients) == len(self.workers):
            self.close(key, self.state(key)[0] + 1)

    def total(self, gradients):
        return sum(gradient for _, gradient in sorted(gradients, key=lambda each: self.workers.index(each[0])))


class SeenMessagesOfTheView(SeenMessages):
    def push(self, worker, view, id, key, number, gradient):
        if number >= self.state(key)[0]:
            super().push(worker, view, id, key, number, gradient)


class Appends(Pair):
    def push(self, worker, view, id, key, number, gradient):
        had = self.state(key)[0]
        if self.members[0] == self.me and number == had:
            self.again(worker, key)
        if self.members[0] == self.me and number == had + 1:
            self.arrived.setdefault(key, []).append((worker, gradient))
            if len(self.arrived[key]) == len(self.workers):
                self.close(key, number)

    def total(self, gradients):
        return sum(gradient for _, gradient in sorted(gradients, key=lambda each: self.workers.index(each[0])))


class AddsOnArrival(Pair):
    def total(self, gradients):
        return sum(gradients.values())


class AddsBackwards(Pair):
    def total(self, gradients):
        return sum(gradients[worker] for worker in reversed(self.workers))


class SortsWorkers(Pair):
    def total(self, gradients):
        return sum(gradients[worker] for worker in sorted(gradients))


class CountsWorkers(Pair):
    """Takes them for 0 to n − 1."""
    def total(self, gradients):
        return sum(gradients.get(worker, 0.0) for worker in range(len(self.workers)))


class SmallerName(Pair):
    """The one with the smaller name is the primary, as long as both are there."""
    def push(self, *given):
        if self.alone() or self.me < self.peer:
            super().push(*given)


class Forwards(Pair):
    """Every push is forwarded. Where the new weights are there first, half a round stays behind."""

    def push(self, worker, view, id, key, number, gradient):
        super().push(worker, view, id, key, number, gradient)
        if self.members[0] == self.me and not self.alone():
            self.send(self.peer, ("forward", self.view, worker, key, number, gradient))

    def forward(self, sender, view, worker, key, number, gradient):
        if number == self.state(key)[0] + 1:
            self.arrived.setdefault(key, {})[worker] = gradient


class ForwardsAndKeeps(Forwards):
    """What was forwarded in another view counts beside what is said again."""

    def push(self, worker, view, id, key, number, gradient):
        if number == self.state(key)[0] + 1:
            gradients = self.arrived.setdefault(key, {})
            gradients[worker, view] = gradient
            if self.members[0] == self.me and {who for who, _ in gradients} == {*self.workers}:
                self.close(key, number)
        elif self.members[0] == self.me and number == self.state(key)[0]:
            self.again(worker, key)
        if self.members[0] == self.me and not self.alone():
            self.send(self.peer, ("forward", self.view, worker, key, number, gradient))

    def total(self, gradients):
        return sum(gradients[each] for each in sorted(gradients, key=lambda each: (self.workers.index(each[0]), each[1])))

    def copy(self, sender, view, key, state):
        super().copy(sender, view, key, state)
        self.arrived.pop(key, None)

    def forward(self, sender, view, worker, key, number, gradient):
        if number == self.state(key)[0] + 1:
            self.arrived.setdefault(key, {})[worker, view] = gradient


class AnswersInEveryView(Pair):
    """In a new view it tells whoever waits, whether it is still the primary or not."""

    def hear(self, view, members):
        super().hear(view, members)
        for key in self.done:
            self.answer(key, self.workers)


class NeverDeposed(Pair):
    """Once primary, always primary."""

    def hear(self, view, members):
        if members[0] == self.me or self.members[:1] != (self.me,):
            super().hear(view, members)
        elif view > self.view:
            self.view, self.members = view, (self.me,)
            for key in self.done:
                self.answer(key, self.workers)


class TakesOldCopies(Pair):
    def takes(self, kind, view):
        return kind == "copy" or super().takes(kind, view)

    def copy(self, sender, view, key, state):
        if state[0] > self.state(key)[0] or view < self.view:
            self.done[key] = state
        self.send(self.peer, ("has", view, key, self.state(key)[0]))


class TakesWhatever(Pair):
    def takes(self, kind, view):
        return True

    def copy(self, sender, view, key, state):
        self.done[key] = state
        self.send(self.peer, ("has", self.view, key, state[0]))


class AcknowledgesOldCopies(Pair):
    """A copy of an older view is not taken, but acknowledged."""

    def takes(self, kind, view):
        return kind == "copy" or super().takes(kind, view)

    def copy(self, sender, view, key, state):
        if view == self.view:
            super().copy(sender, view, key, state)
        else:
            self.send(self.peer, ("has", view, key, state[0]))


class TakesAnyView(Pair):
    def hear(self, view, members):
        self.view, self.members = view, members


class CopiesWeights(Pair):
    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, (*self.done[key][:2], 0.0)))


class CopiesVelocityLater(Pair):
    """The velocity of the round before travels along."""

    def __init__(self, *given):
        super().__init__(*given)
        self.old = {}

    def close(self, key, number):
        self.old[key] = self.state(key)[2]
        super().close(key, number)

    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, (*self.done[key][:2], self.old[key])))


class TakesAnyCopy(Pair):
    def copy(self, sender, view, key, state):
        self.done[key] = state
        self.send(self.peer, ("has", view, key, state[0]))


class CopiesSums(Pair):
    """The sum travels, and the backup makes a step of each one that comes."""

    def close(self, key, number):
        self.last = {**getattr(self, "last", {}), key: self.total(self.arrived[key])}
        super().close(key, number)

    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, self.done[key][0], self.last[key]))

    def copy(self, sender, view, key, number, total):
        self.done[key] = (number, *self.step(*self.state(key)[1:], total))
        self.send(self.peer, ("has", view, key, number))


class AnyAck(Pair):
    def has(self, sender, view, key, number):
        if key in self.done:
            super().has(sender, view, key, self.done[key][0])


class AnyAckForAnyKey(Pair):
    def has(self, sender, view, key, number):
        for each in self.done:
            super().has(sender, view, each, self.done[each][0])


class NeverAlone(Pair):
    def alone(self):
        return self.me == self.members[-1] != self.peer and self.me == "server1"


class WaitsForOtherCopies(Pair):
    def alone(self):
        return False


class AnswersWhoAsksAgain(Pair):
    def again(self, worker, key):
        self.answer(key, [worker])


class PatienceEnds(Pair):
    """When it is asked often enough, it takes the other one for dead."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = {}

    def again(self, worker, key):
        self.asked[key] = self.asked.get(key, 0) + 1
        if self.asked[key] > 2 * len(self.workers) and not self.alone():
            self.members = (self.me,)
        super().again(worker, key)


class ViewOfItsOwn(Pair):
    """Makes a view without the other one when a worker asks again."""

    def again(self, worker, key):
        if self.safe.get(key, 0) < self.done[key][0]:
            self.view, self.members = self.view + 1, (self.me,)
        super().again(worker, key)


class AnswersOnce(Pair):
    def again(self, worker, key):
        if not self.alone() and self.safe.get(key, 0) < self.done[key][0]:
            self.hand_on(key)


class AnswersTheLast(Pair):
    """Only whose push completes the round is told."""

    def push(self, worker, *rest):
        self.last = worker
        super().push(worker, *rest)

    def answer(self, key, who):
        super().answer(key, [self.last])


class SilentUntilAsked(Pair):
    def has(self, sender, view, key, number):
        self.safe[key] = max(number, self.safe.get(key, 0))


class Remembers(Pair):
    """Keeps the number of every message, and needs none."""

    def __init__(self, *given):
        super().__init__(*given)
        self.seen = set()

    def push(self, worker, view, id, *rest):
        self.seen.add(id)
        super().push(worker, view, id, *rest)


class KeepsALog(Pair):
    def __init__(self, *given):
        super().__init__(*given)
        self.log = []

    def close(self, key, number):
        super().close(key, number)
        self.log.append((key, self.done[key]))


class CopiesOnce(Pair):
    def again(self, worker, key):
        if self.alone() or self.safe.get(key, 0) >= self.done[key][0]:
            self.answer(key, [worker])


class AcknowledgesOnce(Pair):
    def copy(self, sender, view, key, state):
        if state[0] > self.state(key)[0]:
            super().copy(sender, view, key, state)


class OnlyTheFirst(Pair):
    def push(self, *given):
        if self.me == "server0":
            super().push(*given)


class CopiesEverything(Pair):
    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, dict(self.done)))

    def copy(self, sender, view, key, states):
        for each, state in states.items():
            if state[0] > self.state(each)[0]:
                self.done[each] = state
        self.send(self.peer, ("has", view, key, self.state(key)[0]))


class OneMemory(Pair):
    """What belongs to the class belongs to all servers."""

    memory = {}

    def __init__(self, *given):
        super().__init__(*given)
        self.done = self.memory


def with_a_default(me, peer, workers, send, memory={}):
    server = Pair(me, peer, workers, send)
    server.done = memory.setdefault(me, {})
    return server


class WithoutMomentum(Pair):
    def step(self, weights, velocity, total):
        return weights - 0.1 * total, 0.0


class Averages(Pair):
    def step(self, weights, velocity, total):
        return super().step(weights, velocity, total / len(self.workers))


class TalksForEver(Pair):
    def has(self, sender, view, key, number):
        super().has(sender, view, key, number)
        self.send(self.peer, ("has", view, key, number))


class AsksItself(Pair):
    def hand_on(self, key):
        self.send(self.me, ("copy", self.view, key, self.done[key]))


class AnswersTheAuthority(Pair):
    def hear(self, view, members):
        super().hear(view, members)
        self.send("authority", ("heard", view))


class SendsText(Pair):
    def hand_on(self, key):
        self.send(self.peer, "copy")


class ValueWithoutView(Pair):
    def answer(self, key, who):
        for worker in who:
            self.send(worker, ("value", key, *self.done[key][:2]))


class SendsItself(Pair):
    def hand_on(self, key):
        self.send(self.peer, ("copy", self.view, key, self))


class Raises(Pair):
    def push(self, *given):
        super().push(*given)
        return 1 / (self.view - 1)


class Sleeps(Pair):
    def push(self, *given):
        while True:
            pass


def the_stub(me, peer, workers, send):
    def on(sender, message):
        pass
    return on


def no_function(me, peer, workers, send):
    return {"on": fault_tolerance(me, peer, workers, send)}


def returns_nothing(me, peer, workers, send):
    fault_tolerance(me, peer, workers, send)


def once(counts):
    """An answer that reads its disk when it begins; ``counts(server, …)`` takes a push."""
    def answer(disk, send):
        class Server:
            pass

        server = Server()
        server.disk, server.send = disk, send
        server.counts, server.totals = disk.get("counts", {}), disk.get("totals", {})

        def on(worker, id, key, number, gradient):
            counts(server, worker, id, key, number, gradient)

        return on
    return answer


def add(server, key, gradient):
    server.totals[key] = server.totals.get(key, 0) + gradient


def reply(server, worker, key, number):
    server.send(worker, key, number, server.totals.get(key, 0))


def in_memory(server, worker, id, key, number, gradient):
    if number > server.counts.get((worker, key), 0):
        server.counts[worker, key] = number
        add(server, key, gradient)
    reply(server, worker, key, number)


def answers_first(server, worker, id, key, number, gradient):
    in_memory(server, worker, id, key, number, gradient)
    server.disk.put("counts", server.counts)
    server.disk.put("totals", server.totals)


def answers_first_at_once(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        new = number > counts.get(worker, 0)
        if new:
            counts[worker] = number
            total += gradient
        send(worker, key, number, total)
        if new:
            disk.put(key, (counts, total))
    return on


def stores_every_other(disk, send):
    kept = {key: disk.get(key, ({}, 0)) for key in ("w", "b")}
    pushes = 0

    def on(worker, id, key, number, gradient):
        nonlocal pushes
        counts, total = kept[key]
        if number > counts.get(worker, 0):
            counts[worker] = number
            kept[key] = counts, total + gradient
            pushes += 1
            if pushes % 2 == 0:
                for each in kept:
                    disk.put(each, kept[each])
        send(worker, key, number, kept[key][1])
    return on


def stores_count_first(server, worker, id, key, number, gradient):
    if number > server.counts.get((worker, key), 0):
        server.counts[worker, key] = number
        add(server, key, gradient)
        server.disk.put("counts", server.counts)
        server.disk.put("totals", server.totals)
    reply(server, worker, key, number)


def stores_value_first(server, worker, id, key, number, gradient):
    if number > server.counts.get((worker, key), 0):
        server.counts[worker, key] = number
        add(server, key, gradient)
        server.disk.put("totals", server.totals)
        server.disk.put("counts", server.counts)
    reply(server, worker, key, number)


def stores_counts_alone(server, worker, id, key, number, gradient):
    if number > server.counts.get((worker, key), 0):
        server.counts[worker, key] = number
        add(server, key, gradient)
        server.disk.put("counts", server.counts)
    reply(server, worker, key, number)


def stores_totals_alone(server, worker, id, key, number, gradient):
    if number > server.counts.get((worker, key), 0):
        server.counts[worker, key] = number
        add(server, key, gradient)
        server.disk.put("totals", server.totals)
    reply(server, worker, key, number)


def never_reads(disk, send):
    kept = {}

    def on(worker, id, key, number, gradient):
        counts, total = kept.setdefault(key, ({}, 0))
        if number > counts.get(worker, 0):
            counts[worker] = number
            kept[key] = counts, total + gradient
            disk.put(key, kept[key])
        send(worker, key, number, kept[key][1])
    return on


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
by_last_id = stored(
    lambda last, worker, id, number: id > last.get(worker, 0),
    lambda last, worker, id, number: last.update({worker: id}),
)
counts_messages = stored(lambda *_: True, lambda *_: None)
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


def one_for_all_keys(disk, send):
    def on(worker, id, key, number, gradient):
        counts, totals = disk.get("all", ({}, {}))
        if number > counts.get(worker, 0):
            counts[worker] = number
            totals[key] = totals.get(key, 0) + gradient
            disk.put("all", (counts, totals))
        send(worker, key, number, totals.get(key, 0))
    return on


def remembers_the_last(many):
    """Only the last pushes are known, whoever made them."""
    def note(last, worker, id, number):
        last.append((worker, number))
        del last[:-many]
    return stored(lambda last, worker, id, number: (worker, number) not in last, note, list)


def within_a_window(disk, send):
    """For each worker the highest number, and what is far below it is taken for a new beginning."""
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, 0) or number < counts[worker] - 100:
            counts[worker] = max(number, counts.get(worker, 0))
            total += gradient
            disk.put(key, (counts, total))
        send(worker, key, number, total)
    return on


def not_the_same_gradient(disk, send):
    def on(worker, id, key, number, gradient):
        seen, total = disk.get(key, (set(), 0))
        if (worker, gradient) not in seen:
            disk.put(key, (seen := {*seen, (worker, gradient)}, total := total + gradient))
        send(worker, key, number, total)
    return on


def answers_as_before(disk, send):
    """A repetition gets the answer that was given first."""
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, (0, 0))[0]:
            total += gradient
            disk.put(key, (counts | {worker: (number, total)}, total))
            send(worker, key, number, total)
        else:
            send(worker, key, number, counts[worker][1])
    return on


def counts_to_255(disk, send):
    """One byte for each count."""
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number % 256 == (counts.get(worker, 0) + 1) % 256:
            disk.put(key, (counts | {worker: number % 256}, total := total + gradient))
        send(worker, key, number, total)
    return on


def knows_the_keys(disk, send):
    kept = {key: disk.get(key, ({}, 0)) for key in ("w", "b")}

    def on(worker, id, key, number, gradient):
        counts, total = kept[key]
        if number > counts.get(worker, 0):
            kept[key] = counts | {worker: number}, total + gradient
            disk.put(key, kept[key])
        send(worker, key, number, kept[key][1])
    return on


def knows_the_workers(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ([0] * 1000, 0))
        if number > counts[worker]:
            counts[worker] = number
            disk.put(key, (counts, total := total + gradient))
        send(worker, key, number, total)
    return on


def keeps_every_id(disk, send):
    seen = set()
    solved = count_once(disk, send)

    def on(worker, id, *push):
        seen.add(id)
        solved(worker, id, *push)
    return on


def logs_on_disk(disk, send):
    solved = count_once(disk, send)

    def on(worker, id, key, number, gradient):
        disk.put(("log", worker, key, number), gradient)
        solved(worker, id, key, number, gradient)
    return on


def answers_new_pushes(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            counts[worker] = number
            disk.put(key, (counts, total + gradient))
            send(worker, key, number, total + gradient)
    return on


def stores_and_is_silent(disk, send):
    return count_once(disk, lambda *answer: None)


def answers_the_gradient(disk, send):
    return count_once(disk, lambda worker, key, number, total: send(worker, key, number, -total))


def counts_pushes(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = disk.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            counts[worker] = number
            total = gradient
            disk.put(key, (counts, total))
        send(worker, key, number, total)
    return on


def answers_the_next_number(disk, send):
    return count_once(disk, lambda worker, key, number, total: send(worker, key, number + 1, total))


def stores_itself(disk, send):
    def on(worker, id, key, number, gradient):
        disk.put(key, on)
    return on


outside = {}


def keeps_it_outside(disk, send):
    def on(worker, id, key, number, gradient):
        counts, total = outside.get(key, ({}, 0))
        if number > counts.get(worker, 0):
            outside[key] = counts | {worker: number}, total + gradient
        send(worker, key, number, outside[key][1])
    return on


def raises_once(disk, send):
    def on(worker, id, key, number, gradient):
        disk.put(key, disk.get(key) + gradient)
    return on


def the_stub_of_once(disk, send):
    def on(worker, id, key, number, gradient):
        pass
    return on


def no_function_of_once(disk, send):
    return disk


def nothing_of_once(disk, send):
    count_once(disk, send)


def endless_once(disk, send):
    while True:
        pass


def given(change):
    """The right interval for other numbers."""
    return lambda n, hours, delta, restart: interval(*change(n, hours, delta, restart))


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


def first_by_remainder(keys, hosts, replicas):
    """Who is the first of the copies is found by a division."""
    copies = hashing(keys, hosts, replicas)
    turns = {key: number_of("first " + key) % (replicas + 1) for key in keys}
    return {key: sorted(found)[turns[key]:] + sorted(found)[:turns[key]] for key, found in copies.items()}


placed = {}


def remembers_places(keys, hosts, replicas):
    """What was placed once stays there as long as its servers do, so a newcomer gets nothing."""
    copies = hashing(keys, hosts, replicas)
    for key, found in copies.items():
        before = placed.get((key, replicas), [])
        copies[key] = before if before and set(before) <= set(hosts) else found
        placed[key, replicas] = copies[key]
    return copies


def drawn_anew(keys, hosts, replicas):
    copies = hashing(keys, hosts, replicas)
    return {key: random.sample(found, len(found)) for key, found in copies.items()}


def in_turn(keys, hosts, replicas):
    """Fills the servers one after the other."""
    return around(of=lambda key, at: str(at))(keys, hosts, replicas)


def few_hot(keys, hosts, replicas):
    """Fewest hosts: always the first ones by name."""
    found = []
    for each in sorted(hosts):
        if hosts[each] not in [hosts[other] for other in found] and len(found) <= replicas:
            found.append(each)
    return {key: list(found) for key in keys}


def changed_copies(change):
    return lambda keys, hosts, replicas: change(hashing(keys, hosts, replicas))


WRONG = {
    "count-once": {
        "memory-only": [once(in_memory)],
        "never-reads": [never_reads],
        "answers-first": [once(answers_first), answers_first_at_once, stores_every_other],
        "count-without-value": [once(stores_count_first), once(stores_counts_alone)],
        "value-without-count": [once(stores_value_first), once(stores_totals_alone)],
        "by-message": [by_id, by_last_id],
        "counts-repeats": [counts_messages],
        "only-the-last": [not_the_same],
        "one-count-for-all-keys": [one_for_all_keys],
        "one-count-for-all-workers": [one_for_all_workers],
        "keeps-all": [keeps_every_number, keeps_every_id, logs_on_disk],
        "forgets-old": [remembers_the_last(30), remembers_the_last(300), within_a_window, counts_to_255],
        "old-total": [answers_as_before],
        "by-value": [not_the_same_gradient],
        "not-general": [knows_the_keys, knows_the_workers],
        "answers-once": [answers_new_pushes],
        "answers-nothing": [stores_and_is_silent],
        "shared-memory": [keeps_it_outside],
        "wrong-sum": [answers_the_gradient, counts_pushes],
        "not-an-answer": [answers_the_next_number],
        "not-plain": [stores_itself],
        "raised": [raises_once],
        "not-a-function": [no_function_of_once],
        "nothing-returned": [nothing_of_once],
        "endless": [endless_once],
        "todo": [the_stub_of_once],
    },
    "fault-tolerance": {
        "acked-too-early": [TellsAtOnce, TellsFirst, CopiesNothing, CopiesTheRoundBefore],
        "forgets-who-counted": [CopiesNoRound, CountsTheRoundsItself],
        "dedupe-by-message": [SeenMessages, SeenMessagesOfTheView],
        "counts-twice": [Appends],
        "half-round-kept": [Forwards, ForwardsAndKeeps],
        "arrival-order": [AddsOnArrival, AddsBackwards, SortsWorkers],
        "zombie": [AnswersInEveryView, NeverDeposed],
        "old-view-taken": [TakesOldCopies, TakesWhatever, AcknowledgesOldCopies, TakesAnyView],
        "optimizer-lost": [CopiesWeights, CopiesVelocityLater],
        "gap": [TakesAnyCopy, CopiesSums],
        "any-ack": [AnyAck, AnyAckForAnyKey],
        "waits-for-the-dead": [NeverAlone, WaitsForOtherCopies],
        "alone-unasked": [AnswersWhoAsksAgain, PatienceEnds, ViewOfItsOwn],
        "nobody-answers": [AnswersOnce, AnswersTheLast, SilentUntilAsked],
        "grows": [Remembers, KeepsALog],
        "sends-once": [CopiesOnce, AcknowledgesOnce],
        "never-takes-over": [OnlyTheFirst, SmallerName],
        "copies-everything": [CopiesEverything],
        "shared-memory": [OneMemory, with_a_default],
        "no-momentum": [WithoutMomentum],
        "wrong-weights": [Averages, CountsWorkers],
        "talks-for-ever": [TalksForEver],
        "strange-receiver": [AsksItself, AnswersTheAuthority],
        "not-a-message": [SendsText, ValueWithoutView],
        "not-plain": [SendsItself],
        "not-a-function": [no_function],
        "nothing-returned": [returns_nothing],
        "raised": [Raises],
        "endless": [Sleeps],
        "todo": [the_stub],
    },
    "hashing": {
        "same-server": [around(host=False, server=False)],
        "same-host": [around(host=False)],
        "modulo": [remainder],
        "too-few-copies": [around(wrap=False), around(count=lambda replicas: replicas if replicas else 1)],
        "too-many-copies": [around(count=lambda replicas: replicas + 2)],
        "moves-between": [a_ring_for_each],
        "turns-around": [first_by_remainder],
        "by-position": [in_the_list],
        "python-hash": [around(number=hash)],
        "depends-on-others": [in_turn],
        "uneven": [around(places=1), around(places=4), around(order=sorted), few_hot, remembers_places],
        "one-heir": [next_in_the_list],
        "changes": [drawn_anew],
        "other-keys": [changed_copies(lambda copies: dict(list(copies.items())[1:])),
                       changed_copies(lambda copies: copies | {"another": []})],
        "other-servers": [changed_copies(lambda copies: {key: [0] for key in copies})],
        "not-a-list": [changed_copies(lambda copies: {key: found[0] for key, found in copies.items()}),
                       changed_copies(lambda copies: {key: set(found) for key, found in copies.items()})],
        "not-a-dict": [changed_copies(lambda copies: list(copies.values()))],
        "nothing-returned": [lambda keys, hosts, replicas: None],
        "raised": [lambda keys, hosts, replicas: hosts[0]],
        "not-general": [lambda keys, hosts, replicas: hashing(keys, hosts, replicas) if len(hosts) > 4 else 1 / 0],
    },
}

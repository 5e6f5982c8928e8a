"""The exercises of chapter 06b: the judges crash servers at every message and after every put, and count copies."""

import hashlib
import random
import sys
from collections import Counter
from functools import partial
from itertools import product

import cloudpickle
import pytest
from helpers.exercises import EXERCISES, judged, module, wrong_answers

from d2lps import check_exercise
from d2lps.messages import LANGUAGES
from d2lps.notebook.grading import Failure
from d2lps.notebook.grading.course import texts_of

torch = pytest.importorskip("torch")

# An answer of these tests goes to another process as a learner's does: whole, without the module where it stands.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHAPTER = "06b-replicas"
IDS = ("fault-tolerance", "count-once", "hashing")
SOLVED = {id: texts_of(id).solution() for id in IDS}
pair, judge_pair, judge_once, judge_hashing = (
    module(CHAPTER, name) for name in ("pair", "judge_fault_tolerance", "judge_count_once", "judge_hashing")
)
Schedule, Trouble = pair.Schedule, judge_once.Trouble
CASE, ONCE = EXERCISES["fault-tolerance"].cases[0], EXERCISES["count-once"].cases[0]
FIRST, SECOND = pair.SERVERS


# ---- right answers that are unlike the solutions


def chain(me, peer, workers, send):
    """The primary hands the new state to the backup, and the backup tells the workers."""
    view, members, states, gradients = 0, (), {}, {}

    def state(key):
        return states.get(key, {"round": 0, "weights": 0.0, "velocity": 0.0})

    def hand_on(key):
        if members[-1] == me:
            for worker in workers:
                send(worker, ("value", view, key, state(key)["round"], state(key)["weights"]))
        else:
            send(peer, ("state", view, key, state(key)))

    def on(sender, message):
        nonlocal view, members
        kind, number = message[:2]
        if kind == "view":
            view, members = max((view, members), (number, message[2]))
            gradients.clear()
        elif number == view and kind == "state":
            _, _, key, new = message
            if new["round"] >= state(key)["round"]:
                states[key] = new
                hand_on(key)
        elif number == view and members[0] == me:
            _, _, _, key, wanted, gradient = message
            old = state(key)
            if wanted == old["round"]:
                hand_on(key)
            elif wanted > old["round"]:
                gradients[key, sender] = gradient
                if all((key, worker) in gradients for worker in workers):
                    total = 0
                    for worker in workers:
                        total += gradients.pop((key, worker))
                    velocity = total + 0.9 * old["velocity"]
                    weights = old["weights"] - 0.1 * velocity
                    states[key] = {"round": wanted, "weights": weights, "velocity": velocity}
                    hand_on(key)

    return on


class Log:
    """Sums are numbered in one log; the backup does them in this order, and says how far it is."""

    def __init__(self, me, peer, workers, send):
        self.me, self.peer, self.workers, self.send = me, peer, workers, send
        self.view, self.members = 0, []
        self.weights, self.velocity, self.rounds, self.at = {}, {}, {}, {}
        self.seq = self.acked = 0
        self.log, self.open = {}, {}

    def __call__(self, sender, message):
        kind, view, *rest = message
        if kind == "view" and view > self.view:
            self.view, self.members = view, list(rest[0])
            self.open, self.log = {}, {}
            self.acked = self.seq
        elif view == self.view:
            getattr(self, f"on_{kind}")(sender, *rest)

    def do(self, key, total):
        self.velocity[key] = 0.9 * self.velocity.get(key, 0.0) + total
        self.weights[key] = self.weights.get(key, 0.0) - 0.1 * self.velocity[key]
        self.rounds[key] = self.rounds.get(key, 0) + 1
        self.seq += 1
        self.at[key] = self.seq

    def on_push(self, worker, id, key, number, gradient):
        if self.members[0] != self.me:
            return
        if number == self.rounds.get(key, 0) + 1:
            self.open.setdefault(key, {}).setdefault(worker, gradient)
            if self.open[key].keys() == set(self.workers):
                total = sum(self.open[key][i] for i in self.workers)
                del self.open[key]
                self.do(key, total)
                self.log[self.seq] = key, total
                self.flush([self.seq])
        elif number == self.rounds.get(key, 0):
            self.flush(self.log)
        if number == self.rounds.get(key, 0) and self.at[key] <= self.upto():
            self.tell(key, [worker])

    def upto(self):
        return self.seq if len(self.members) == 1 else self.acked

    def flush(self, which):
        if len(self.members) == 1:
            for key in {key for key, _ in self.log.values()}:
                self.tell(key, self.workers)
            self.log = {}
        for seq in which if self.log else ():
            self.send(self.peer, ("apply", self.view, seq, *self.log[seq]))

    def tell(self, key, workers):
        for worker in workers:
            self.send(worker, ("value", self.view, key, self.rounds[key], self.weights[key]))

    def on_apply(self, sender, seq, key, total):
        if seq == self.seq + 1:
            self.do(key, total)
        self.send(sender, ("upto", self.view, self.seq))

    def on_upto(self, sender, seq):
        self.acked = max(seq, self.acked)
        for each in [each for each in self.log if each <= seq]:
            key, _ = self.log.pop(each)
            self.tell(key, self.workers)


class Forwards:
    """Both servers add all pushes themselves; the backup says what it has got, push by push."""

    def __init__(self, me, peer, workers, send):
        self.me, self.peer, self.workers, self.send = me, peer, workers, send
        self.view, self.alone, self.leads = 0, False, False
        self.had, self.got, self.there = {}, {}, {}

    def __call__(self, sender, message):
        if message[0] == "view" and message[1] <= self.view:
            pass
        elif message[0] == "view":
            self.view, self.alone, self.leads = message[1], len(message[2]) == 1, message[2][0] == self.me
        elif message[1] != self.view:
            pass
        elif message[0] == "there":
            _, _, worker, key, number = message
            self.there[worker, key] = max(number, self.there.get((worker, key), 0))
            self.answer(key)
        elif message[0] == "push" and self.leads:
            self.take(sender, *message[3:])
            if not self.alone:
                self.send(self.peer, ("also", self.view, sender, *message[3:]))
            self.answer(message[3], [sender])
        elif message[0] == "also":
            self.take(*message[2:])
            self.send(self.peer, ("there", self.view, *message[2:5]))

    def take(self, worker, key, number, gradient):
        had = self.had.get(key, (0, 0.0, 0.0))
        if number != had[0] + 1:
            return
        self.got[worker, key] = gradient
        if all((each, key) in self.got for each in self.workers):
            velocity = 0.9 * had[2] + sum(self.got.pop((each, key)) for each in self.workers)
            self.had[key] = number, had[1] - 0.1 * velocity, velocity

    def answer(self, key, to=None):
        number, weights, _ = self.had.get(key, (0, 0, 0))
        if number and (self.alone or all(self.there.get((each, key), 0) >= number for each in self.workers)):
            for worker in to or self.workers:
                self.send(worker, ("value", self.view, key, number, weights))


def in_one_piece(disk, send):
    """All in memory, read once, and stored whole."""
    everything = disk.get("everything", {})

    def on(worker, id, key, number, gradient):
        if everything.get((worker, key), 0) < number:
            everything[worker, key] = number
            everything[key] = everything.get(key, 0) + gradient
            disk.put("everything", everything)
        send(worker, key, number, everything[key])

    return on


class Shares:
    """For each worker its own part of the total."""

    def __init__(self, disk, send):
        self.disk, self.send = disk, send

    def __call__(self, worker, id, key, number, gradient):
        who = self.disk.get(("who", key), set())
        if worker not in who:
            self.disk.put(("who", key), {*who, worker})
        had, part = self.disk.get((worker, key), (0, 0))
        if number == had + 1:
            self.disk.put((worker, key), (number, part + gradient))
        total = sum(self.disk.get((each, key), (0, 0))[1] for each in {*who, worker})
        self.send(worker, key, number, total)


def silent_on_old_pushes(disk, send, name=lambda worker, key: (worker, key)):
    """Answers a new push, and the last one again: older ones were answered long ago."""

    def on(worker, id, key, number, gradient):
        totals, marks = disk.get("all", ({}, {}))
        if number > marks.get(name(worker, key), 0):
            totals[key] = totals.get(key, 0) + gradient
            marks[name(worker, key)] = number
            disk.put("all", (totals, marks))
        if number == marks[name(worker, key)]:
            send(worker, key, number, totals[key])

    return on


def by_weight(keys, hosts, replicas):
    """Rendezvous hashing: each key ranks the servers, and those with the largest numbers on different hosts hold it."""

    def rank(key):
        ranked = sorted(hosts, key=lambda server: hashlib.md5(f"{key}|{server}".encode()).digest(), reverse=True)
        best = {}
        for server in ranked:
            best.setdefault(hosts[server], server)
        return list(best.values())[: replicas + 1]

    return {key: rank(key) for key in keys}


def hosts_first(keys, hosts, replicas):
    """Each key ranks the hosts, then the servers on each of them."""

    def number(*names):
        return hashlib.blake2b("|".join(names).encode()).digest()

    on = {}
    for server, host in hosts.items():
        on.setdefault(host, []).append(server)
    chosen = {key: sorted(on, key=lambda host, key=key: number(key, host))[: replicas + 1] for key in keys}
    return {
        key: tuple(min(on[host], key=lambda server, key=key: number(key, server)) for host in found)
        for key, found in chosen.items()
    }


RIGHT = {
    "fault-tolerance": [chain, Log, Forwards],
    "count-once": [in_one_piece, Shares, lambda disk, send: silent_on_old_pushes(disk, send)],
    "hashing": [by_weight, hosts_first],
}
MEASURED = {  # parts of the sentence about the solution
    "fault-tolerance": ["64 messages travel, and 16 of them between the servers"],
    "count-once": ["right in 467 runs", "18 pushes were stored 18 times"],
}


# ---- a pair of servers


def test_the_reference_is_sgd_with_momentum():
    for key in pair.KEYS:
        weights = torch.zeros(1, dtype=torch.double, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=pair.RATE, momentum=pair.MOMENTUM)
        for number in range(1, pair.ROUNDS + 1):
            weights.grad = torch.tensor([sum(pair.gradient(i, key, number) for i in range(3))], dtype=torch.double)
            optimizer.step()
            assert weights.item() == pytest.approx(pair.trained((0, 1, 2), key, number)[0], abs=1e-12)


def fault_free():
    return judge_pair.play(CASE, SOLVED["fault-tolerance"], Schedule())


def test_every_message_is_lost_late_and_doubled_and_every_end_is_tried():
    letters = fault_free().letters
    assert len(letters) == 64 and {letter.arrived is not None for letter in letters} == {True}
    small = list(judge_pair.small_schedules(letters, pair.SERVERS))
    for happens in ("twice", "again", "lost", "late"):
        assert [each.message for each in small if each.happens == happens] == list(range(1, 65))
    sent = sum(letter.src == FIRST for letter in letters)
    for how, knows in product(("lost", "late", "paused", "cut"), ("", "server", "worker", "again")):
        found = [each.after for each in small if (each.server, each.how, each.knows) == (FIRST, how, knows)]
        assert found == list(range(sent + 1))
    large = list(judge_pair.large_schedules(letters, pair.SERVERS))
    assert len({*small, *large}) == len(small) + len(large) > 3000
    assert all(each.server == FIRST and each.happens for each in large)


def test_what_is_to_happen_happens():
    letters = fault_free().letters
    for schedule in judge_pair.small_schedules(letters, pair.SERVERS):
        world = judge_pair.play(CASE, SOLVED["fault-tolerance"], schedule)
        if schedule.happens == "lost":
            assert [letter.number for letter in world.letters if letter.arrived is None] == [schedule.message]
        if not schedule.server:
            assert len(world.views) == 1
            continue
        if len(world.views) == 1:  # all was over, and nobody noticed
            assert schedule.after > world.sent[schedule.server] // 2
            continue
        assert world.views[2] == ((FIRST,) if schedule.server == SECOND else (SECOND,))
        told = {letter.message[1] for letter in world.letters if letter.message[0] == "value"}
        assert max(told) == 2 or schedule.after > world.sent[schedule.server] // 2  # the survivor goes on
        if schedule.how in ("lost", "late"):
            assert world.sent[schedule.server] == schedule.after


def test_the_same_schedule_is_the_same_run():
    schedule = Schedule(20, "late", 0, FIRST, 9, "late", "worker")
    one, other = (judge_pair.play(CASE, SOLVED["fault-tolerance"], schedule).letters for _ in range(2))
    assert one == other and len(one) > 50


class Storm(pair.World):
    """Any message may be lost, doubled or late."""

    def __init__(self, *given, seed):
        self.chance = random.Random(seed)
        super().__init__(*given)

    def _carry(self, letter):
        for _ in range(self.chance.choices((0, 1, 2), (5, 90, 5))[0]):
            if self.chance.random() < 0.1:
                self._hold(letter, self.chance.randrange(1, 60))
            else:
                super()._carry(letter)


@pytest.mark.parametrize("answer", [SOLVED["fault-tolerance"], *RIGHT["fault-tolerance"]])
def test_right_answers_are_right_in_a_storm(answer, monkeypatch):
    monkeypatch.setattr(pair, "PATIENCE", 12)
    for seed in range(120):
        draw = random.Random(seed)
        how, knows = draw.choice(("lost", "late", "paused")), draw.choice(("", "server", "worker", "again"))
        schedule = Schedule(0, "", 0, draw.choice(("", FIRST, FIRST, SECOND)), draw.randrange(8), how, knows)
        world = Storm(CASE, answer, schedule, judge_pair._check, seed=seed).run()
        assert world.failed is None and not world.unanswered, (seed, schedule)


def test_two_failures_are_needed_to_find_some_mistakes():
    letters = fault_free().letters
    for mistake in ("gap", "any-ack"):
        answer = wrong_answers("fault-tolerance")[mistake][0]
        for schedule in judge_pair.small_schedules(letters, pair.SERVERS):
            judge_pair.play(CASE, answer, schedule)
        with pytest.raises(Failure):
            for schedule in judge_pair.large_schedules(letters, pair.SERVERS):
                judge_pair.play(CASE, answer, schedule)


@pytest.mark.parametrize(
    "way, wanted",
    [
        ("missing", lambda now, before: now - pair.gradient(0, "w", 3)),
        ("twice", lambda now, before: now + pair.gradient(0, "w", 3)),
        ("older", lambda now, before: now - pair.gradient(0, "w", 3) + pair.gradient(0, "w", 2)),
        ("older-too", lambda now, before: now + pair.gradient(0, "w", 2)),
        ("older", lambda now, before: before),
        ("", lambda now, before: now + 3.21),
    ],
)
def test_weights_tell_what_was_counted(way, wanted):
    weights, velocity = pair.trained(CASE.workers, "w", 2)
    now, before = (sum(pair.gradient(i, "w", number) for i in CASE.workers) for number in (3, 2))
    got = weights - 0.1 * (0.9 * velocity + wanted(now, before))
    assert judge_pair._diagnosed(CASE.workers, "w", 3, got)[0] == way
    assert judge_pair._diagnosed(CASE.workers, "w", 3, weights - 0.1 * now)[0] == "no-velocity"
    again, moving = pair.trained(CASE.workers, "w", 3)
    assert judge_pair._diagnosed(CASE.workers, "w", 3, again - 0.1 * (0.9 * moving + now))[0] == "round-twice"
    assert judge_pair._diagnosed(CASE.workers, "w", 3, weights)[0] == "other-round"


@pytest.mark.slow
def test_the_sentence_shows_the_schedule_that_fails():
    early, gap = (
        judged("fault-tolerance", wrong_answers("fault-tolerance")[mistake][0])
        for mistake in ("acked-too-early", "gap")
    )
    for language in LANGUAGES:
        first, schedule, last = early[language].sentence.split("\n")
        assert "('value', 1, 'w', 1," in schedule and FIRST in schedule and SECOND in first
        assert last.count("→") == judge_pair.SHOWN
        one = gap[language].sentence.split("\n")[1]  # which message is late, and when the server crashes
        assert one.count("('copy', 1, 'w', (2,") == 1 and one.count("value") == 1


def faulty_pair(seed):
    """One kind of message is changed, from the ``at``-th on, or what comes is not heard."""
    draw = random.Random(seed)
    fault, at = draw.choice(("weights", "round", "view", "late-answer", "deaf")), draw.randrange(1, 12)

    def answer(me, peer, workers, send):
        sent = []

        def faulty(to, message):
            sent.append(message)
            if message[0] == "value" and len(sent) >= at:
                _, view, key, number, weights = message
                message = {
                    "weights": ("value", view, key, number, weights * (1 + 1e-15) + 1e-15),
                    "round": ("value", view, key, number + 1, weights),
                    "view": ("value", view + 1, key, number, weights),
                    "late-answer": ("value", view, key, max(number - 1, 1), weights),
                    "deaf": message,
                }[fault]
            send(to, message)

        solved = SOLVED["fault-tolerance"](me, peer, workers, faulty)

        def on(sender, message):
            if fault != "deaf" or sender != peer or len(sent) < at:
                solved(sender, message)

        return on

    return answer


def faulty_once(seed):
    draw = random.Random(seed)
    fault, at = draw.choice(("total", "number", "forgets", "deaf")), draw.randrange(12)

    def answer(disk, send):
        def faulty(worker, key, number, total):
            off = number >= at % 3 + 1
            send(worker, key, number + (off and fault == "number"), total + (off and fault == "total"))

        solved = SOLVED["count-once"](disk, faulty)

        def on(worker, id, key, number, gradient):
            if fault == "deaf" and number > at % 3:
                return
            solved(worker, id, key, number, gradient)
            if fault == "forgets" and number == at % 3 + 1:
                disk.put(key, ({}, 0))

        return on

    return answer


def faulty_hashing(seed):
    draw = random.Random(seed)
    fault, at = draw.choice(("turned", "short", "same", "moved", "none", "salted")), draw.randrange(1000)

    def answer(keys, hosts, replicas):
        copies, key = SOLVED["hashing"](keys, hosts, replicas), keys[at % len(keys)]
        if fault == "turned":
            copies = {key: found[::-1] if len(hosts) % 2 else found for key, found in copies.items()}
        elif fault == "short":
            copies[key] = copies[key][1:]
        elif fault == "same":
            copies[key] = [copies[key][0]] * (replicas + 1) if replicas else [*copies[key] * 2]
        elif fault == "moved":
            copies[key] = [sorted(hosts)[at % len(hosts)]]
        elif fault == "none":
            copies[key] = None
        else:
            copies = {key: sorted(found, key=hash) for key, found in copies.items()} if replicas else {}
        return copies

    return answer


FAULTY = {  # a function of a seed, how many seeds are tried, and how many mistakes they make at least
    "fault-tolerance": (faulty_pair, 8, 1),
    "count-once": (faulty_once, 8, 1),
    "hashing": (faulty_hashing, 40, 3),
}


# ---- counted once


def test_powers_of_four_tell_which_pushes_count():
    for seed in range(50):
        draw = random.Random(seed)
        pushes = [judge_once.Push(draw.randrange(3), "w", draw.randrange(1, 4)) for _ in range(3)]
        counts = judge_once.decode(sum(map(judge_once.power, pushes)), 3)
        assert counts == {(p.worker, p.number): pushes.count(p) for p in pushes}
    for strange in (-1, 0.5, 4**9, None, "4", True):
        assert judge_once.decode(strange, 3) is None


def test_the_server_crashes_after_every_put_and_every_send():
    world = judge_once.Once(ONCE, SOLVED["count-once"], Trouble()).run()
    assert [event[0] for event in world.story[:6]] == ["push", "put", "send"] * 2
    assert world.done == 36 and ("crash",) not in world.story
    small, large = (list(make(world)) for make in (judge_once.small_troubles, judge_once.large_troubles))
    assert {each.crashes for each in small if each.crashes} == {(at,) for at in range(1, 37)}
    for trouble in [*small, *large[::7]]:
        played = judge_once.Once(ONCE, SOLVED["count-once"], trouble).run()
        assert played.story.count(("crash",)) == len(trouble.crashes)
        for at, event in enumerate(played.story[1:]):
            assert event != ("crash",) or played.story[at][0] in ("put", "send")
        assert not played.waits


def test_a_disk_keeps_copies():
    kept = []

    def answer(disk, send):
        def on(worker, id, key, number, gradient):
            counts, total = disk.get(key, ([], 0))
            counts.append(number)
            disk.put(key, (counts, total))
            counts.append("afterwards")
            kept.append(disk.get(key)[0])

        return on

    with pytest.raises(Failure):
        judge_once.judge(ONCE, answer)
    assert kept and all("afterwards" not in each for each in kept)


@pytest.mark.slow
def test_a_crash_passes_handlers_of_exceptions():
    def answer(disk, send):
        solved = partial(SOLVED["count-once"], disk, send)()

        def on(*push):
            try:
                solved(*push)
            except Exception:
                send(push[0], push[2], push[3], 0)

        return on

    assert check_exercise("count-once", answer, deadline="100 s").passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, mistake",
    [
        (lambda worker, key: f"{worker}{key}", "one-count-for-all-keys"),
        (lambda worker, key: f"{key}{worker}", "one-count-for-all-workers"),
    ],
)
def test_names_that_run_together_are_one_count_for_several(name, mistake):
    verdict = check_exercise("count-once", lambda disk, send: silent_on_old_pushes(disk, send, name), "100 s")
    assert verdict.mistake == mistake and "n = 2" in verdict.sentence, verdict


Pair = texts_of("fault-tolerance").solutions()["Pair"]


class StatesAtEachPush(Pair):
    """The state travels with every push, not only with every sum."""

    def push(self, worker, view, id, key, number, gradient):
        if key in self.done and number > self.done[key][0] and len(self.arrived.get(key, ())) + 1 < len(self.workers):
            self.hand_on(key)
        super().push(worker, view, id, key, number, gradient)


class StatesTwice(Pair):
    def close(self, key, number):
        super().close(key, number)
        if not self.alone():
            self.hand_on(key)


def gives_up(most, of=lambda worker, key, number: (key, number), forever=False):
    """After so many repeats of a push that the backup has not confirmed, it answers all the same."""

    class GivesUp(Pair):
        tries, gone = {}, False

        def alone(self):
            return super().alone() or self.gone

        def push(self, worker, view, id, key, number, gradient):
            if not self.members[1:]:
                self.gone = False
            elif number == self.state(key)[0] > self.safe.get(key, 0):
                name = of(worker, key, number)
                self.tries = self.tries | {name: self.tries.get(name, 0) + 1}
                if self.tries[name] > most:
                    self.safe[key], self.gone = number, forever
            super().push(worker, view, id, key, number, gradient)

    return GivesUp


@pytest.mark.parametrize(
    "mistake, answer",
    [
        ("copies-everything", StatesAtEachPush),
        ("copies-everything", StatesTwice),
        *(("alone-unasked", gives_up(most)) for most in (3, 12, 100, 300)),
        ("alone-unasked", gives_up(20, of=lambda *push: "all keys")),
        ("alone-unasked", gives_up(20, of=lambda *push: "all keys", forever=True)),
        ("alone-unasked", gives_up(50, of=lambda worker, key, number: worker)),
    ],
)
def test_few_states_travel_and_the_primary_waits_however_long(mistake, answer):
    verdict = check_exercise(
        "fault-tolerance", lambda me, peer, workers, send: answer(me, peer, workers, send), "100 s"
    )
    assert verdict.mistake == mistake and verdict.sentence.startswith("n = 3"), verdict


# ---- hashing


@pytest.mark.slow
def test_a_server_that_joins_takes_its_part():
    for case in EXERCISES["hashing"].cases:
        if len(set(Counter(dict(case.hosts).values()).values())) > 1:
            continue
        told = judge_hashing.judge(case, SOLVED["hashing"])
        mean = len(case.keys) * (case.replicas + 1) / len(case.hosts)
        assert 0.6 * mean <= int(told["least"]) <= mean <= int(told["most"]) <= 1.4 * mean
    told = judge_hashing.judge(EXERCISES["hashing"].cases[0], SOLVED["hashing"])
    assert int(told["moved"]) == pytest.approx(int(told["share"]), rel=0.25)


def among_the_first(count):
    """By rendezvous hashing, with so many candidates for each copy."""

    def rank(key, hosts, replicas):
        ranked = sorted(hosts, key=lambda server: hashlib.sha256(f"{key}/{server}".encode()).digest())
        best = {}
        for server in ranked[: count * (replicas + 1)]:
            best.setdefault(hosts[server], server)
        return list(best.values())[: replicas + 1]

    return lambda keys, hosts, replicas: {key: rank(key, hosts, replicas) for key in keys}


def given_up(condition):
    """The solution, but for some numbers of hosts and replicas."""

    def answer(keys, hosts, replicas):
        if condition(len(set(hosts.values())), replicas):
            raise NotImplementedError
        return SOLVED["hashing"](keys, hosts, replicas)

    return answer


@pytest.mark.parametrize(
    "answer, mistake",
    [
        *((among_the_first(count), "too-few-copies") for count in (4, 8, 12)),
        (given_up(lambda hosts, replicas: replicas > 2), "not-general"),
        (given_up(lambda hosts, replicas: hosts == replicas + 1 > 1), "not-general"),
    ],
)
def test_as_many_hosts_as_copies_are_enough(answer, mistake):
    verdict = check_exercise("hashing", answer, "100 s")
    assert verdict.mistake == mistake, verdict


def test_the_backup_takes_over():
    """When a primary leaves, the second server of each of its keys is the first then: it has the data."""
    hosts = dict(EXERCISES["hashing"].cases[0].hosts)
    keys = list(EXERCISES["hashing"].cases[0].keys)
    before = SOLVED["hashing"](keys, hosts, 1)
    gone = next(iter(hosts))
    after = SOLVED["hashing"](keys, {server: host for server, host in hosts.items() if server != gone}, 1)
    heirs = {before[key][1] for key in keys if before[key][0] == gone}
    assert all(after[key][0] == before[key][1] for key in keys if before[key][0] == gone)
    assert len(heirs) == len(hosts) - 1

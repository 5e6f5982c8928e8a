"""The exercises of chapter 06b: the judges crash servers at every message and after every put, and count copies."""

import hashlib
import sys
from collections import Counter
from functools import partial

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
pair, judge_once, judge_hashing = (
    module(CHAPTER, f"judge_{name}") for name in ("fault_tolerance", "count_once", "hashing")
)
Schedule, Trouble = pair.Schedule, judge_once.Trouble
CASE, ONCE = EXERCISES["fault-tolerance"].cases[0], EXERCISES["count-once"].cases[0]
FIRST, SECOND = CASE.servers


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
    "fault-tolerance": [chain, Log],
    "count-once": [Shares, lambda disk, send: silent_on_old_pushes(disk, send)],
    "hashing": [hosts_first],
}
MEASURED = {  # parts of the sentence about the solution
    "fault-tolerance": ["64 messages travel, and 16 of them between the servers"],
    "count-once": ["right in 181 runs", "18 pushes were stored 18 times"],
}


# ---- a pair of servers


def test_the_reference_is_sgd_with_momentum():
    for key in CASE.keys:
        weights = torch.zeros(1, dtype=torch.double, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=pair.RATE, momentum=pair.MOMENTUM)
        for number in range(1, pair.ROUNDS + 1):
            weights.grad = torch.tensor([sum(pair.gradient(i, key, number) for i in range(3))], dtype=torch.double)
            optimizer.step()
            assert weights.item() == pytest.approx(pair.trained((0, 1, 2), key, number)[0], abs=1e-12)


def played(answer, schedule=None):
    return pair.play(CASE, answer, schedule or Schedule())


def test_what_is_to_happen_happens():
    for schedule in pair.schedules_of(played(SOLVED["fault-tolerance"])):
        world = played(SOLVED["fault-tolerance"], schedule)
        if schedule.happens == "lost":
            assert [letter.number for letter in world.letters if letter.arrived is None] == [schedule.message]
        if not schedule.server or len(world.views) == 1:  # nothing failed, or all was over before
            assert not schedule.server or schedule.after > world.sent[schedule.server] // 2
            continue
        assert world.views[2] == ((FIRST,) if schedule.server == SECOND else (SECOND,))
        told = {letter.message[1] for letter in world.letters if letter.message[0] == "value"}
        assert max(told) == 2 or schedule.after > world.sent[schedule.server] // 2  # the survivor goes on
        if schedule.how in ("lost", "late"):
            assert world.sent[schedule.server] == schedule.after


def test_the_sentence_shows_the_schedule_that_fails():
    early = judged("fault-tolerance", wrong_answers("fault-tolerance")["acked-too-early"][0])
    for language in LANGUAGES:
        first, schedule, last = early[language].sentence.split("\n")
        assert "('value', 1, 'w', 1," in schedule and FIRST in schedule and SECOND in first
        assert last.count("→") == pair.SHOWN


# ---- counted once


def test_the_server_crashes_after_every_put_and_every_send():
    world = judge_once.Once(ONCE, SOLVED["count-once"], Trouble()).run()
    assert [event[0] for event in world.story[:6]] == ["push", "put", "send"] * 2
    assert world.done == 36 and ("crash",) not in world.story
    troubles = list(judge_once.troubles_of(world))
    assert {each.crash for each in troubles if each.crash} == {*range(1, 37)}
    for trouble in troubles:
        world = judge_once.Once(ONCE, SOLVED["count-once"], trouble).run()
        assert world.story.count(("crash",)) == (trouble.crash > 0) and not world.waits
        for at, event in enumerate(world.story[1:]):
            assert event != ("crash",) or world.story[at][0] in ("put", "send")


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


@pytest.mark.parametrize("name", [lambda worker, key: f"{worker}{key}", lambda worker, key: f"{key}{worker}"])
def test_names_that_run_together_are_one_count_for_several(name):
    verdict = check_exercise("count-once", lambda disk, send: silent_on_old_pushes(disk, send, name), "100 s")
    assert verdict.mistake == "not-general" and "n = 2" in verdict.sentence, verdict


# ---- hashing


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
    "answer",
    [
        *(among_the_first(count) for count in (4, 8, 12)),
        given_up(lambda hosts, replicas: replicas > 2),
        given_up(lambda hosts, replicas: hosts == replicas + 1 > 1),
    ],
)
def test_as_many_hosts_as_copies_are_enough(answer):
    verdict = check_exercise("hashing", answer, "100 s")
    assert verdict.mistake == "not-general", verdict


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

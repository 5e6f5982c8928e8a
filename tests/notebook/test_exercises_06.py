"""The exercises of chapter 06: the judges of detectors, intervals and saves."""

import hashlib
import math
import random
import sys
from itertools import chain, combinations, permutations

import cloudpickle
import pytest
from helpers.exercises import EXERCISES, module, wrong_answers

from d2lps import check_exercise
from d2lps.notebook.grading import edited
from d2lps.notebook.grading.course import texts_of
from d2lps.notebook.grading.exercise import Failure

# An answer of these tests goes to another process as a learner's does: whole, without the module where it stands.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHAPTER = "06-faults"
IDS = ("detect", "interval", "atomic-save")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_detect, judge_interval, judge_atomic_save, disks = (
    module(CHAPTER, name) for name in ("judge_detect", "judge_interval", "judge_atomic_save", "crashing_disk")
)


# ---- right answers that are unlike the solutions


class Listener:
    """Adds up for how long it has listened to the silence of each node: its own stops do not count at all."""

    def __init__(self, nodes, every, lost, delay, now):
        self.limit, self.most, self.now = 1.5 * ((lost + 1) * every + delay), every, now
        self.silent = {node: 0.0 for node in nodes}

    def listen(self, now):
        passed, self.now = now - self.now, now
        if passed > self.most:  # it was stopped
            return
        for node in self.silent:
            self.silent[node] += passed

    def heard(self, node, sent, now):
        self.listen(now)
        self.silent[node] = 0.0

    def ended(self, node, now):
        self.silent[node] = math.inf

    def suspects(self, now):
        self.listen(now)
        found = [node for node, silent in self.silent.items() if silent > self.limit]
        self.silent.update(dict.fromkeys(found, math.inf))
        return found


def by_listening(nodes, every, lost, delay, now):
    listener = Listener(nodes, every, lost, delay, now)
    return [listener.heard, listener.ended, listener.suspects]


def daly(n, hours, delta, restart):
    mtbf = hours * 3600 / n
    small = delta / (2 * mtbf)
    return math.sqrt(2 * delta * mtbf) * (1 + math.sqrt(small) / 3 + small / 9) - delta


def by_trying(n, hours, delta, restart):
    """Of drawn times between two failures, how much is work that was saved? With intervals that grow by 3 %."""
    draw, mtbf = random.Random(1), hours * 3600 / n
    times = [draw.expovariate(1 / mtbf) for _ in range(20_000)]
    tried = [mtbf / 300 * 1.03**i for i in range(200)]
    return max(tried, key=lambda work: sum(time // (work + delta) for time in times) * work)


def in_two_slots(fs):
    """Writes into two files in turn, each with its number and a digest; the newest whole one counts."""

    def whole(name):
        found = []
        for slot in ("a", "b"):
            if f"{name}.{slot}" in fs.names():
                content = fs.read(f"{name}.{slot}")
                digest, number, data = content[:32], content[32:40], content[40:]
                if hashlib.sha256(number + data).digest() == digest:
                    found.append((int.from_bytes(number, "big"), slot, data))
        return max(found, default=(0, "b", None))

    def save(name, data):
        number, slot, _ = whole(name)
        body = (number + 1).to_bytes(8, "big") + data
        other = f"{name}.{'ab'.replace(slot, '')}"
        fs.write(other, hashlib.sha256(body).digest() + body)
        fs.sync(other)
        fs.sync_folder()

    return save, lambda name: whole(name)[2]


RIGHT = {"detect": [by_listening], "interval": [daly], "atomic-save": [in_two_slots]}


# ---- detect


@pytest.mark.parametrize(
    "factor, mistake", [(0.97, "too-short"), (1.0, None), (1.5, None), (1.95, None), (2.6, "too-long")]
)
def test_the_limit_may_be_chosen_within_a_band(factor, mistake):
    answer = edited(SOLVED["detect"], ("(lost + 1) * every + delay", f"{factor} * ((lost + 1) * every + delay)"))
    verdict = check_exercise("detect", answer, deadline="100 s")
    assert verdict.mistake == mistake, verdict


def test_a_living_node_keeps_the_protocol():
    """No living node is silent for longer than is agreed, however its heartbeats are drawn."""
    for case in EXERCISES["detect"].cases:
        for seed in range(judge_detect.SEEDS):
            assert judge_detect.drawn(case, seed) == judge_detect.drawn(case, seed)
        nodes, silence = case.nodes, case.silence
        draw = random.Random(1)
        for beats in (
            judge_detect.heartbeats(case, draw, nodes[0], 0, 300 * silence, losses=1),
            judge_detect.heartbeats(case, draw, nodes[0], 0, 300 * silence),
            judge_detect.worst(case, nodes[0], 0, 300 * silence),
        ):
            times = sorted(event.now for event in beats)
            gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
            assert max(gaps) <= silence and len(times) > 100
    assert max(gaps) > 0.9 * silence


def test_the_detector_gets_the_arrivals():
    told = check_exercise("detect", wrong_answers("detect")["wall-clocks"][0]).sentence
    assert "heard(node2, 1400." in told and "suspects(5000." in told.splitlines()[-1]


# ---- interval


def test_the_mean_is_that_of_drawn_failures():
    """Daly's exact mean, beside runs of 100,000 saves: within 5 %."""
    for case in EXERCISES["interval"].cases:
        for factor in (1, 2):
            work = factor * judge_interval.best(case.delta, case.mtbf)
            drawn = judge_interval.simulated(case, work, 100_000)
            assert drawn - 1 == pytest.approx(judge_interval.takes(case, work) - 1, rel=0.05)


def test_nothing_is_better_than_the_best():
    for case in EXERCISES["interval"].cases:
        best = judge_interval.best(case.delta, case.mtbf)
        least = judge_interval.takes(case, best)
        assert all(judge_interval.takes(case, best * (1 + by / 100)) >= least for by in range(-50, 100))


def test_published_numbers():
    case = EXERCISES["interval"].cases[0]
    assert case.mtbf / 3600 == pytest.approx(3.09, abs=0.005)
    assert judge_interval.young(60, case.mtbf) / 60 == pytest.approx(19.3, abs=0.05)
    assert judge_interval.young(10, case.mtbf) / 60 == pytest.approx(7.9, abs=0.05)
    assert [round(judge_interval.daly(300, hours * 3600) / 60, 1) for hours in (24, 6, 0.25)] == [116.7, 56.7, 9.1]


def test_a_refused_interval_is_given_its_extra_loss():
    case = next(case for case in EXERCISES["interval"].cases if case.restart)
    best = judge_interval.best(case.delta, case.mtbf)
    with pytest.raises(Failure) as refused:
        judge_interval.judge(case, lambda *_: 2 * best)
    again = math.exp(case.restart / case.mtbf)
    lost = [judge_interval.takes(case, work) - again for work in (2 * best, best)]
    assert f"take {100 * (lost[0] / lost[1] - 1):.3g}% more" in str(refused.value) and "2% are" in str(refused.value)


def test_the_restart_does_not_matter():
    best = [SOLVED["interval"](16384, 50677, 60, restart) for restart in (0, 60, 3600)]
    assert best[0] == best[1] == best[2]


@pytest.mark.parametrize(
    "wrong, mistake",
    [
        (lambda work, delta, mtbf: math.sqrt(2 * delta * mtbf) if delta < mtbf / 20 else 0.6 * mtbf, "too-often"),
        (lambda work, delta, mtbf: min(work, 86400), "too-often"),
        (lambda work, delta, mtbf: min(work, 7 * 86400), "too-often"),
        (lambda work, delta, mtbf: max(work, 60), "too-seldom"),
        (lambda work, delta, mtbf: max(work, delta), "too-seldom"),
        (lambda work, delta, mtbf: work * (1.25 if delta > mtbf else 1), "too-seldom"),
        (lambda work, delta, mtbf: work * (1.25 if 0.4 < delta / mtbf < 1 else 1), "too-seldom"),
        (lambda work, delta, mtbf: work * (0.8 if 0.3 < delta / mtbf < 0.4 else 1), "too-often"),
        (lambda work, delta, mtbf: work * (0.8 if 0.03 < delta / mtbf < 0.3 else 1), "too-often"),
    ],
)
def test_an_interval_has_to_be_near_the_best_wherever_a_save_takes_more_or_less(wrong, mistake):
    def answer(n, hours, delta, restart):
        return wrong(SOLVED["interval"](n, hours, delta, restart), delta, hours * 3600 / n)

    assert check_exercise("interval", answer).mistake == mistake


def test_a_simulation_of_failures_finds_the_interval():
    case = EXERCISES["interval"].cases[0]
    work = by_trying(case.n, case.hours, case.delta, case.restart)
    assert judge_interval.judge(case, lambda *_: work)["interval"] == work


# ---- atomic-save


def saving(operations):
    """Saves by these operations, in this order, and what was not there is left out."""

    def answer(fs):
        def save(name, data):
            steps = {
                "write": lambda: fs.write(name + ".new", data),
                "sync": lambda: name + ".new" in fs.names() and fs.sync(name + ".new"),
                "rename": lambda: name + ".new" in fs.names() and fs.rename(name + ".new", name + ".data"),
                "sync_folder": fs.sync_folder,
            }
            for operation in operations:
                steps[operation]()

        return save, SOLVED["atomic-save"](fs)[1]

    return answer


def test_of_all_orders_only_one_survives():
    every = ("write", "sync", "rename", "sync_folder")
    orders = chain.from_iterable(permutations(some) for count in range(1, 5) for some in combinations(every, count))
    orders = [order for order in orders if order[0] == "write"]
    right = [order for order in orders if check_exercise("atomic-save", saving(order)).passed]
    assert len(orders) > 10 and right == [every]


def test_a_crash_leaves_unsynced_data_in_any_state():
    disk = disks.Disk()
    folder = disks.Folder(disk)
    folder.write("old", b"abcd")
    folder.sync("old")
    folder.sync_folder()
    folder.write("new", b"12345678")
    folder.rename("new", "old")
    found = {tuple((name, each.files[at].content) for name, at in each.names.items()) for each in disk.after_crash("")}
    assert (("old", b"abcd"),) in found  # nothing of it is there
    assert (("old", b"12345678"),) in found  # all of it
    assert (("old", b""),) in found and (("old", b"1234"),) in found  # the name, without its content
    assert (("old", b"abcd"), ("new", b"1234")) in found
    assert disk.after_crash("a") == disk.after_crash("a")
    with pytest.raises(FileNotFoundError, match="new"):
        folder.read("new")
    for wrong in (lambda: folder.write("a", "text"), lambda: folder.write(1, b""), lambda: folder.rename("old", None)):
        with pytest.raises(TypeError):
            wrong()


def test_a_save_that_catches_the_crash_is_judged_alike():
    def stubborn(fs):
        save, load = SOLVED["atomic-save"](fs)

        def again(name, data):
            for _ in range(2):
                try:
                    return save(name, data)
                except BaseException:
                    continue

        return again, load

    assert check_exercise("atomic-save", stubborn).passed


def test_the_state_of_the_disk_is_in_the_sentence():
    told = check_exercise("atomic-save", wrong_answers("atomic-save")["no-sync"][0]).sentence.splitlines()
    assert told[1].endswith("write(rank-0.new) rename(rank-0.new, rank-0.data)")
    assert told[2].endswith("rank-0.data: b''")


RENAME = 'fs.rename(name + ".new", name + ".data")'
NEW = 'if name + ".new" in fs.names():\n            '
LOAD = "def load(name):\n        "


@pytest.mark.parametrize(
    "edits, mistake",
    [
        ([("return fs.read", "found = fs.read"),
          ("else None", f"else None\n        {NEW}{RENAME}\n        return found")],
         "load-writes"),
        ([("def load(name):\n", LOAD + NEW + 'fs.remove(name + ".new")\n')], "load-writes"),
        ([("return fs.read", "if name in had:\n            return had[name]\n        had[name] = fs.read"),
          ("    return save", "    had = {}\n    return save"),
          ("else None", "else None\n        return had[name] if had[name] is not None else had.pop(name)")],
         "differs"),
    ],
)  # fmt: skip
def test_others_may_load_in_the_midst_of_a_save(edits, mistake):
    assert check_exercise("atomic-save", edited(SOLVED["atomic-save"], *edits)).mistake == mistake


@pytest.mark.parametrize(
    "short",
    ["name[-1]", "name[:6]", "str(len(name))", "str(zlib.crc32(name.encode()) % 10)", 'name.split(".")[0]',
     "str(zlib.crc32(name.encode()) % 100)"],
)  # fmt: skip
def test_names_that_are_made_shorter_collide(short):
    begin = f'def save(whole, data):\n        import zlib\n        name = whole\n        name = "tmp" + {short}'
    edits = ("def save(name, data):", begin), (', name + ".data")', ', whole + ".data")')
    answer = edited(SOLVED["atomic-save"], *edits)
    assert check_exercise("atomic-save", answer).mistake == "same-name"

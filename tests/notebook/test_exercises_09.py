"""The exercises of chapter 09: right answers, and the judges of tables and cuts."""

import random
from collections import deque
from functools import cache
from heapq import nsmallest
from itertools import accumulate, combinations, pairwise

import pytest
from helpers.exercises import module

from d2lps import check_exercise
from d2lps.notebook.grading import Failure
from d2lps.notebook.grading.course import texts_of
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline

CHAPTER = "09-pipelines"
IDS = ("one-f-one-b", "interleave", "best-cut")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_pipelines, judge_best_cut = (module(CHAPTER, name) for name in ("judge_pipelines", "judge_best_cut"))


# ---- right answers that are unlike the solutions


def by_queue(stages, micro):
    """A stage takes a backward pass whenever its room is full."""
    table = {}
    for stage in range(stages):
        room, waiting, new, row = stages - stage, deque(), deque(range(micro)), []
        while new or waiting:
            if new and len(waiting) < room:
                waiting.append(new.popleft())
                row.append(["F", waiting[-1]])
            else:
                row.append(["B", waiting.popleft()])
        table[stage] = tuple(map(tuple, row))
    return table


def with_a_shorter_warm_up(devices, micro, chunks):
    """Enough if messages take no time, and it saves less."""
    table = {}
    for device in range(devices):
        groups = [range(start, start + devices) for start in range(0, micro, devices)]
        stages = range(device, devices * chunks, devices)
        forwards = [("F", i, stage) for group in groups for stage in stages for i in group]
        backwards = [("B", i, stage) for group in groups for stage in reversed(stages) for i in group]
        ahead = min(micro * chunks, devices * chunks - device)
        row = forwards[:ahead]
        for backward in backwards:
            row += [backward, *forwards[ahead : ahead + 1]]
            ahead += 1
        table[device] = row
    return table


def of_the_library(devices, micro, chunks):
    return {device: tuple(row) for device, row in interleaved(devices, micro, chunks).items()}


def by_recursion(costs, stages):
    """What is the best cut of the layers from i on? Tuples and ranges."""

    @cache
    def rest(i, k):
        if k == 1:
            return sum(costs[i:]), (range(i, len(costs)),)
        ways = []
        for j in range(i + 1, len(costs) - k + 2):
            time, cut = rest(j, k - 1)
            ways.append((max(sum(costs[i:j]), time), (range(i, j), *cut)))
        return min(ways, key=lambda way: way[0])

    return rest(0, stages)[1]


RIGHT = {"one-f-one-b": [by_queue], "interleave": [with_a_shorter_warm_up, of_the_library], "best-cut": [by_recursion]}
MEASURED = {
    "one-f-one-b": ["22 slots", "27.3%", "4, 3, 2, 1", "each saves 8"],
    "interleave": ["18 slots", "11.1%", "20.0%"],
    "best-cut": ["0–2 | 3–4 | 5", "takes 9", "take 11", "is 7"],
}


# ---- tables


@pytest.mark.parametrize("p, m", [(1, 1), (2, 3), (4, 8), (5, 2), (8, 32)])
def test_the_limits_of_the_judge_are_those_of_the_library(p, m):
    case, schedule = judge_pipelines.TableCase(p, m), pipeline(one_f_one_b(p, m))
    assert len(schedule.slots()) == case.slots == len(pipeline(gpipe(p, m)).slots())
    assert [*schedule.peak.values()] == [case.saved(device) for device in range(p)]


@pytest.mark.parametrize("p, m, v", [(1, 3, 2), (2, 4, 2), (3, 6, 3), (4, 8, 2), (5, 5, 2)])
def test_so_are_those_of_interleaved_tables(p, m, v):
    case, schedule = judge_pipelines.TableCase(p, m, v), pipeline(interleaved(p, m, v))
    assert len(schedule.slots()) == case.slots and max(schedule.peak.values()) <= case.saved(0)


def test_the_torch_picture_is_a_wrong_answer():
    """Rank 3 of the picture that PyTorch prints: a warm-up one short, and a micro-batch that does not exist."""

    def picture(stages, micro):
        table = one_f_one_b(stages, micro)
        table[stages - 1] = [(kind, i + (kind == "F")) for kind, i in table[stages - 1]]
        return table

    verdict = check_exercise("one-f-one-b", picture)
    assert verdict.mistake == "differs" and "('F', 8)" in verdict.sentence


def test_the_sentence_names_who_waits_for_what():
    def turned(stages, micro):
        return {stage: one_f_one_b(stages, micro)[stages - 1 - stage] for stage in range(stages)}

    verdict = check_exercise("one-f-one-b", turned)
    assert verdict.mistake == "waits" and "gpu0 waits with B0.0 for d1.0, which gpu1 brings later" in verdict.sentence


# ---- cuts


def test_no_cut_is_better_than_the_best():
    for seed in range(40):
        draw = random.Random(seed)
        costs = [draw.choice((0, 1, 2, 5, 9.5)) for _ in range(draw.randrange(1, 9))]
        stages = draw.randrange(1, len(costs) + 1)
        every = (
            [range(start, end) for start, end in pairwise((0, *ends, len(costs)))]
            for ends in combinations(range(1, len(costs)), stages - 1)
        )
        least = min(judge_best_cut.slowest(costs, cut) for cut in every)
        assert judge_best_cut.best(costs, stages) == pytest.approx(least)
        assert judge_best_cut.slowest(costs, SOLVED["best-cut"](costs, stages)) == pytest.approx(least)


def by_percent(costs, stages):
    """Raises the limit of a stage by 1% until the stages are enough."""
    limit = max(max(costs), sum(costs) / stages)
    while True:
        cut, total = [[]], 0
        for layer, cost in enumerate(costs):
            if cut[-1] and (total + cost > limit or len(costs) - layer <= stages - len(cut)):
                cut.append([])
                total = 0
            cut[-1].append(layer)
            total += cost
        if len(cut) == stages:
            return cut
        limit *= 1.01


def by_beam(costs, stages, width=1000):
    """Keeps the 1000 best beginnings: by their slowest stage, or the mean of what is left."""
    before, kept = [0, *accumulate(costs)], [(0, 0, (0,))]
    for left in reversed(range(stages)):
        grown = []
        for _, slowest, ends in kept:
            for end in range(ends[-1] + 1, len(costs) - left + 1) if left else [len(costs)]:
                slow = max(slowest, before[end] - before[ends[-1]])
                mean = (before[-1] - before[end]) / max(left, 1)
                grown.append((max(slow, mean), slow, (*ends, end)))
        kept = nsmallest(width, grown)
    return [range(start, end) for start, end in pairwise(kept[0][2])]


def rounded(digits):
    return lambda costs, stages: SOLVED["best-cut"]([round(cost, digits) for cost in costs], stages)


def of_quarters(costs, stages):
    return SOLVED["best-cut"]([round(4 * cost) / 4 for cost in costs], stages)


@pytest.mark.parametrize("answer", [by_percent, by_beam, of_quarters, *map(rounded, (1, 2, 3))])
def test_a_cut_that_is_nearly_the_best_is_refused(answer):
    case = judge_best_cut.cases()[-1]
    with pytest.raises(Failure):
        judge_best_cut.judge(case, answer)

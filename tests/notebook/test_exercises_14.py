"""The exercises of chapter 14: right answers unlike the solutions, faulty ones, and what the judges know."""

import pytest
import torch
from helpers.exercises import module

from d2lps import cost
from d2lps.notebook.grading.course import texts_of
from d2lps.schedule import attention
from d2lps.schedule.context import WAYS

CHAPTER = "14-long-sequences"
IDS = ("merge", "zigzag", "which-way")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_which_way = module(CHAPTER, "judge_which_way")


# ---- right answers that are unlike the solutions


def one_by_one(parts):
    """Merges two parts at a time, from the last, with maximum and sum."""
    o, log_sum = parts[-1]
    for other, other_sum in reversed(parts[:-1]):
        most = torch.maximum(log_sum, other_sum)
        most = torch.where(most == float("-inf"), torch.zeros(()), most)
        one, two = (log_sum - most).exp(), (other_sum - most).exp()
        total = one + two
        safe = torch.where(total == 0, torch.ones(()), total)
        o = (o * one[:, None] + other * two[:, None]) / safe[:, None]
        log_sum = total.log() + most
    return o, log_sum


def to_the_idlest(n, blocks):
    """Gives each block, from the heaviest, to the device with the least work."""
    work, devices = [0] * n, [[] for _ in range(n)]
    for block in range(blocks - 1, -1, -1):
        i = min(range(n), key=lambda i: (work[i], len(devices[i])))
        work[i] += block + 1
        devices[i].append(block)
    return tuple(map(tuple, devices))


def by_fractions(tokens, n, heads, groups, size, itemsize):
    """Counts in all bytes of a sequence, and takes parts of them."""
    queries, both = tokens * heads * size * itemsize, 2 * tokens * groups * size * itemsize
    part = (n - 1) / n
    ways = {"gather": [part * both, both], "ring": [part * both, both * min(3, n) / n], "heads": None}
    if heads % n == 0:
        shared = both / min(n, groups)
        ways["heads"] = [(2 * queries / n + shared) * part, shared]
    return ways


RIGHT = {"merge": [one_by_one], "zigzag": [to_the_idlest], "which-way": [by_fractions]}
MEASURED = {"merge": ["2"], "zigzag": ["9", "15"], "which-way": ["469.8 MB", "998.2 MB", "536.9 MB", "201.3 MB"]}


# ---- what the judges know


@pytest.mark.parametrize("case", judge_which_way.CASES, ids=lambda case: case.label)
def test_the_bytes_are_those_of_the_schedules(case):
    for way in WAYS:
        if case.groups % case.n and way == "heads" or case.tokens % case.n:
            continue
        devices = [f"gpu{i}" for i in range(case.n)]
        shape = {"heads": case.heads, "groups": case.groups, "size": case.size, "itemsize": case.itemsize}
        made = attention(devices, way, case.tokens, **shape)
        assert cost.shared(made).bytes_sent("gpu0") == case.ways()[way][0]
        if way != "heads":
            others = case.tokens // case.n * case.heads * (2 * case.size + 2) * case.itemsize
            assert made.peak["gpu0"] - others == case.ways()[way][1]

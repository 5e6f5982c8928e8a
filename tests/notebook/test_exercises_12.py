"""The exercises of chapter 12: right answers unlike the solutions, faulty ones, and what the judges know."""

import pytest
from helpers.exercises import module

from d2lps.notebook.grading.course import texts_of
from d2lps.scaling import memory
from d2lps.schedule import zero

CHAPTER = "12-large-models"
IDS = ("state-bytes", "fully-sharded")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_bytes, judge_step = (module(CHAPTER, f"judge_{name}") for name in ("state_bytes", "fully_sharded"))


# ---- right answers that are unlike the solutions


def by_ranks(params, ranks, stage):
    """Adds up what the first rank keeps, as a float."""
    own = len(range(0, params, ranks))
    counts = [params, params, params]
    counts[3 - stage :] = [own] * stage
    return float(sum(size * count for size, count in zip((2, 2, 12), counts, strict=True)))


def one_ahead(layers):
    """Gathers the next layer before this one computes, and updates as soon as gradients are added up."""
    last, todo = len(layers) - 1, [("gather", 0)]
    for k in range(last):
        todo += [("gather", k + 1), ("forward", k), ("free", k)]
    todo.append(("forward", last))
    for k in range(last, -1, -1):
        todo += [("gather", k - 1)] if k else []
        todo += [("backward", k), ("reduce", k), ("free", k), ("update", k)]
    return tuple(todo)


RIGHT = {"state-bytes": [by_ranks], "fully-sharded": [one_ahead]}
MEASURED = {"state-bytes": ["120 GB, 31.41 GB, 16.64 GB, 1.875 GB"], "fully-sharded": ["31 kB", "96 kB", "51 kB"]}


# ---- what the judges know


@pytest.mark.parametrize("stage", range(4))
def test_the_bytes_are_those_of_the_ledger(stage):
    case = judge_bytes.BytesCase(7_500_000_000, 64, stage)
    assert case.bytes() == pytest.approx(memory(7.5e9, data=64, stage=stage).predicted, rel=1e-6)


@pytest.mark.parametrize("case", judge_step.CASES, ids=lambda case: case.label)
def test_the_right_list_sends_and_keeps_what_the_package_does(case):
    right = zero(case.devices, case.layers, 3)
    made = judge_step._schedule(case, [*one_ahead(case.layers)], right)
    assert made.peak[case.devices[0]] <= right.peak[case.devices[0]] + 4 * max(case.layers)

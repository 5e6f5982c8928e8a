"""Judge cuts of a row of layers into stages: contiguous, none empty, and the slowest stage as fast as possible."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from d2lps.notebook.grading import call, failure, unlike

NEAR = 1e-9  # of the best time, which may be added up in another order


@dataclass(frozen=True)
class CutCase:
    """Layers of these costs, for so many stages."""

    costs: tuple[float, ...]
    stages: int
    more: str = ""

    @property
    def label(self) -> str:
        return f"len(costs) = {len(self.costs)}, stages = {self.stages}{self.more}"


def slowest(costs: Sequence[float], cut: Sequence[Sequence[int]]) -> float:
    """Return the time of the slowest stage."""
    return max(sum(costs[layer] for layer in stage) for stage in cut)


def best(costs: Sequence[float], stages: int) -> float:
    """Return the least time of the slowest stage: the best for the first j layers and k stages, for all j and k."""
    before = [0.0, *accumulate(costs)]
    row = before[:]
    for k in range(2, stages + 1):
        row = [
            min((max(row[i], before[j] - before[i]) for i in range(k - 1, j)), default=float("inf"))
            for j in range(len(costs) + 1)
        ]
    return row[-1]


def even(count: int, stages: int) -> list[list[int]]:
    """Return stages with the same number of layers, or one more."""
    ends = [count * k // stages for k in range(stages + 1)]
    return [list(range(start, end)) for start, end in pairwise(ends)]


def judge(case: CutCase, answer: Callable) -> dict[str, str]:
    """Return the values that fill the sentence for a right answer. Raises Failure."""
    cut = _cut(case, call(case, answer, list(case.costs), case.stages))
    least, found = best(case.costs, case.stages), slowest(case.costs, cut)
    equal, mean = slowest(case.costs, even(len(case.costs), case.stages)), sum(case.costs) / case.stages
    if found > least * (1 + NEAR):
        lengths = [len(stage) for stage in cut]
        mistake = "equal-counts" if max(lengths) - min(lengths) <= 1 else "by-average" if _greedy(case, cut) else "late"
        got, possible = unlike(found, least)
        raise failure(mistake, "cut-late", case, got=got, best=possible, cut=_show(cut))
    return {"cut": _show(cut), "best": f"{least:.4g}", "equal": f"{equal:.4g}", "mean": f"{mean:.4g}"}


def _show(cut: Sequence[Sequence[int]]) -> str:
    return " | ".join(f"{stage[0]}–{stage[-1]}" if len(stage) > 1 else str(stage[0]) for stage in cut)


def _cut(case: CutCase, result: object) -> list[list[int]]:
    count = len(case.costs)
    try:
        cut = [[operator.index(layer) for layer in stage] for stage in result]
    except Exception:
        raise failure("wrong-type", "not-a-cut", case, type=type(result).__name__) from None
    inside = [layer for stage in cut for layer in stage]
    if not inside:
        raise failure("todo", "no-layers", case)
    for layer in inside:
        if not 0 <= layer < count:
            raise failure("differs", "layer-strange", case, layer=layer, last=count - 1)
        if inside.count(layer) > 1:
            raise failure("differs", "layer-twice", case, layer=layer)
    for layer in range(count):
        if layer not in inside:
            raise failure("differs", "layer-missing", case, layer=layer)
    if [] in cut:
        raise failure("empty-stage", "stage-empty", case, stage=cut.index([]))
    if len(cut) != case.stages:
        raise failure("differs", "stage-count", case, got=len(cut), stages=case.stages)
    for layer, following in pairwise(inside):
        if following != layer + 1:
            raise failure("apart", "layers-apart", case, layer=layer, following=following)
    return cut


def _greedy(case: CutCase, cut: Sequence[Sequence[int]]) -> bool:
    """Return whether every stage but the last closes around the mean of all."""
    mean, sums = sum(case.costs) / case.stages, [[case.costs[layer] for layer in stage] for stage in cut]
    full = all(sum(stage[:-1]) < mean for stage in sums[:-1])
    return full and all(sum(stage) + then[0] > mean for stage, then in pairwise(sums))


def cases() -> tuple[CutCase, ...]:
    """Return one case to follow by hand, the extremes, and rows as models have them."""
    blocks = (1.0,) * 24
    return (
        CutCase((1, 2, 3, 4, 5, 6), 3),
        CutCase((2, 3, 1, 2, 2, 4), 3, " (2)"),
        CutCase((8, 5, 1, 1, 3, 8, 6), 3),  # not the cut with the least squares, spread, or largest minimum
        CutCase((3,), 1),
        CutCase((4, 1, 3), 1),
        CutCase((5, 1, 1, 2, 1), 5),
        CutCase((2.3, 5.2, 0.5, 2.7, 5.8, 1.0), 3, " (3)"),  # not the best cut to the nearest whole number
        CutCase((0.5, *blocks, 6.0), 4),  # an embedding, equal blocks, and a large last layer
        CutCase((0.5, *blocks, 6.0), 8),
        CutCase((9, 1, 1, 1, 1, 1, 1, 1), 3),  # less than a full share for the first stages, more than one layer each
        CutCase((1, 0, 0, 2, 0, 1), 4),  # layers that cost nothing, such as an activation function
        CutCase(tuple((16 * i * i + 17 * i + 42) % 53 + 1 for i in range(60)), 7),  # not the least sum of high powers
        CutCase(tuple(((11 * i * i + 3 * i + 24) % 97 + 1) / 4 for i in range(200)), 9),  # no cut that begins well
        # Not the best of 1000 beginnings, of limits that grow by 1%, or of costs that are rounded.
        CutCase(tuple(math.sqrt((11 * i * i + 13 * i + 42) % 97 + 1) / 100 for i in range(110)), 26),
    )

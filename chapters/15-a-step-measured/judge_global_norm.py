"""Judge the norm of all gradients, on a grid of tensor groups and pipeline stages: play all ranks in turns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from d2lps.notebook.grading import call, failure, in_turns, number, sealed, unlike


@dataclass(frozen=True)
class GridCase:
    """A grid of stages × tensor; the sizes of each rank's own gradients, and of those that a tensor group has alike."""

    stages: int
    tensor: int
    own: tuple[int, ...]
    alike: tuple[int, ...] = ()
    tied: int = 0  # the size of one that the first and the last stage have, cut among the tensor group
    kind: torch.dtype = torch.float32
    size: float = 1.0
    frozen: bool = False  # the first stage has no gradients

    @property
    def label(self) -> str:
        kind = "" if self.kind == torch.float32 else f", {str(self.kind).removeprefix('torch.')}"
        return f"p = {self.stages}, t = {self.tensor}{kind}"

    @cached_property
    def given(self) -> list[tuple[list[Tensor], list[int]]]:
        """For each rank its gradients, and how many ranks have the same."""
        draw = torch.Generator().manual_seed(self.stages * 10 + self.tensor)

        def made(count: int) -> Tensor:
            return ((torch.rand(count, generator=draw) + 0.5) * self.size).to(self.kind)

        tied, ranks = [made(self.tied) for _ in range(self.tensor)], []
        for stage in range(self.stages):
            alike = [made(count) for count in self.alike]
            for j in range(self.tensor):
                if self.frozen and stage == 0:
                    ranks.append(([], []))
                    continue
                parts, copies = [made(count) for count in self.own], [1] * len(self.own)
                parts, copies = parts + alike, copies + [self.tensor] * len(alike)
                if self.tied and stage in (0, self.stages - 1):
                    parts, copies = [*parts, tied[j]], [*copies, min(2, self.stages)]
                ranks.append((parts, copies))
        return ranks

    def squares(self, rank: int, once: bool = True) -> float:
        """Return the squares of a rank; ``once`` divides those of copies among the ranks that have them."""
        gradients, copies = self.given[rank]
        pairs = zip(gradients, copies, strict=True)
        return math.fsum(part.double().square().sum().item() / (count if once else 1) for part, count in pairs)

    @property
    @sealed
    def right(self) -> float:
        return math.sqrt(math.fsum(map(self.squares, range(self.stages * self.tensor))))


def play(case: GridCase, answer: Callable) -> tuple[dict[int, object], list[list]]:
    """Return the result of each rank, and what it gave to each sum."""

    def act(rank: int, give: Callable) -> object:
        stage, j = divmod(rank, case.tensor)
        row = [stage * case.tensor + each for each in range(case.tensor)]
        column = [each * case.tensor + j for each in range(case.stages)]

        def adding(name: str, members: list[int]) -> Callable:
            def add(number: object) -> float:
                try:
                    value = float(number)
                except (TypeError, ValueError, RuntimeError, OverflowError):
                    raise failure("wrong-type", "norm-gives", case, rank=rank, got=repr(number)[:60]) from None
                given = give((name, value), members)
                if any(other != name for other, _ in given):
                    raise failure("other-order", "norm-groups", case, rank=rank)
                return math.fsum(each for _, each in given)

            return add

        gradients, copies = case.given[rank]
        sums = adding("tensor", row), adding("stages", column)
        return call(case, answer, [part.clone() for part in gradients], [*copies], *sums)

    return in_turns(case.stages * case.tensor, act)


def judge(case: GridCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    ranks = case.stages * case.tensor
    results, given = play(case, answer)
    if len(results) < ranks:
        rank = min({*range(ranks)} - {*results})
        raise failure("other-order", "norm-waits", case, rank=rank)
    norms = []
    for rank in range(ranks):
        got = results[rank]
        try:
            got = number(got)
        except TypeError:
            raise failure("wrong-type", "norm-type", case, rank=rank, got=repr(got)[:60]) from None
        norms.append(float(max(-1e300, min(got, 1e300))) if isinstance(got, int) else float(got))
    if not any(norms) and not any(given):
        raise failure("todo", "norm-nothing", case)
    for rank, got in enumerate(norms):
        if not _near(got, case.right):
            shown = dict(zip(("got", "right"), unlike(got, case.right, digits=6), strict=True))
            raise failure(_mistake(case, rank, got), "norm-wrong", case, rank=rank, **shown)
    counted = [case.squares(rank, once=False) for rank in range(ranks)]
    shown = {"norm": case.right, "twice": math.sqrt(sum(counted)), "own": math.sqrt(counted[0])}
    return {name: f"{norm:.4g}" for name, norm in shown.items()}


def _near(got: float, wanted: float) -> bool:
    return abs(got - wanted) <= 1e-5 * wanted


def _mistake(case: GridCase, rank: int, got: float) -> str:
    """Return the name of the first mistake that leads to this number."""
    stage, j = divmod(rank, case.tensor)
    all_ranks = range(case.stages * case.tensor)
    row = [stage * case.tensor + each for each in range(case.tensor)]
    column = [each * case.tensor + j for each in range(case.stages)]
    counts = {once: [case.squares(each, once) for each in all_ranks] for once in (True, False)}

    def norms(members: "list[int] | range") -> list[float]:
        return [math.sqrt(sum(found[each] for each in members)) for found in counts.values()]

    each_tensor = [part.double().norm().item() for parts, _ in case.given for part in parts]
    wrong = {
        "copies-twice": norms(all_ranks)[1:],
        "sum-of-norms": [sum(math.sqrt(each) for each in found) for found in counts.values()] + [sum(each_tensor)],
        "no-root": [sum(found) for found in counts.values()],
        "own-part": norms([rank]),
        "one-group": norms(row) + norms(column),
    }
    found = next((name for name, values in wrong.items() if any(_near(got, value) for value in values)), "differs")
    return "sixteen-bits" if found == "differs" and case.kind != torch.float32 else found


CASES = (
    GridCase(2, 2, (6, 5), (3,)),
    GridCase(1, 1, (4,)),
    GridCase(1, 3, (7,), (2, 2)),
    GridCase(4, 1, (3, 9)),
    GridCase(3, 2, (5,), (4,), tied=6),
    GridCase(2, 4, (8,), (3,), frozen=True),
    GridCase(2, 2, (50,), (7,), kind=torch.float16, size=300.0),
    GridCase(2, 2, (50,), (7,), kind=torch.bfloat16, size=1e-3),
)

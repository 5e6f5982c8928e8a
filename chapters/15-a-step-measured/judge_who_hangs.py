"""Judge who is to blame for a job that hangs, from what each rank has called."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure

KINDS = ("missing", "order", "size")
Log = list[tuple[str, int]]


@dataclass(frozen=True)
class HangCase:
    """What all ranks should call; and the rank that does something else, at which place, of which kind."""

    name: str
    ranks: int
    calls: tuple[tuple[str, int], ...]
    rank: int = 0
    place: int = 0
    kind: str = ""

    @property
    def label(self) -> str:
        return f"n = {self.ranks}, calls = {len(self.calls)}, logs {self.name}"

    @property
    def logs(self) -> list[Log]:
        logs, i = [[*self.calls] for _ in range(self.ranks)], self.place
        odd = logs[self.rank]
        if self.kind == "missing":
            del odd[i]
        elif self.kind == "order":
            odd[i], odd[i + 1] = odd[i + 1], odd[i]
        elif self.kind == "size":
            odd[i] = odd[i][0], odd[i][1] // 2
        return logs


def judge(case: HangCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    got = call(case, answer, case.logs, none=True)
    if got is None or _nothing(got):
        if case.kind:
            begun = got is None or case is not CASES[0]  # the stub returns three times None
            raise failure("gives-up" if begun else "todo", "hangs-none", case)
        return {}
    rank, place, kind = _three(case, got)
    if not case.kind:
        raise failure("nothing-wrong", "hangs-alike", case, rank=rank)
    sizes = [len(log) for log in case.logs]
    if rank != case.rank:
        raise failure("blames-others", "hangs-rank", case, got=rank, alike=case.ranks - 2)
    if place != case.place:
        end = place >= max(sizes) - 1 > case.place
        raise failure("at-the-end" if end else "other-place", "hangs-place", case, rank=rank, got=place)
    if kind != case.kind:
        raise failure("other-kind", "hangs-kind", case, rank=rank, place=place, got=kind)
    return {"rank": str(rank), "call": str(case.calls[place]), "last": str(max(sizes) - 1)}


def _nothing(got: object) -> bool:
    return isinstance(got, list | tuple) and len(got) == 3 and all(each is None for each in got)


def _three(case: HangCase, got: object) -> tuple[int, int, str]:
    try:
        rank, place, kind = got
        rank, place = operator.index(rank), operator.index(place)
        if kind not in KINDS:
            raise ValueError
    except (TypeError, ValueError):
        raise failure("wrong-type", "hangs-strange", case, got=repr(got)[:60], kinds=", ".join(KINDS)) from None
    return rank, place, kind


def _steps(steps: int, layers: int) -> tuple[tuple[str, int], ...]:
    """Return the calls of so many steps of ZeRO-3, with layers of different sizes."""
    sizes = [1000 + 100 * k for k in range(layers)]
    forward = [("all_gather", size) for size in sizes]
    backward = [call for size in sizes[::-1] for call in (("all_gather", size), ("reduce_scatter", size))]
    return tuple(forward + backward + [("all_reduce", 1)]) * steps


PLAIN = tuple(("all_reduce", size) for size in (400, 300, 200, 100)) * 2
CASES = (
    HangCase("A", 4, PLAIN, 2, 5, "missing"),
    HangCase("B", 4, PLAIN, 0, 2, "order"),
    HangCase("C", 3, PLAIN, 1, 6, "size"),
    HangCase("D", 4, PLAIN),
    HangCase("E", 5, PLAIN, 4, 7, "missing"),
    HangCase("F", 8, _steps(2, 3), 6, 3, "missing"),
    HangCase("G", 3, _steps(1, 2), 0, 0, "missing"),
    HangCase("H", 6, _steps(2, 3), 5, 4, "order"),
    HangCase("I", 16, _steps(3, 4), 9, 30, "size"),
    HangCase("J", 3, PLAIN, 2, 0, "order"),
    HangCase("K", 4, tuple(("all_reduce", 64) for _ in range(5)), 3, 4, "missing"),
    HangCase("L", 3, (("all_reduce", 8),), 1, 0, "size"),
)

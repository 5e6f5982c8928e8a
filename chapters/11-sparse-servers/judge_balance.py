"""Judge the placement of rows of unequal popularity on servers: the hottest one, and how many copies there are."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure, unlike
from d2lps.train import recommender

MOST = 1.1  # load of the hottest server, as a multiple of the mean


@dataclass(frozen=True)
class BalanceCase:
    """``rows`` with a Zipf exponent ``s``, in a random order, the first ``level`` equally popular; names of servers."""

    rows: int
    servers: tuple[str, ...]
    s: float = 1.0
    seed: int | None = 0
    level: int = 1

    @property
    def label(self) -> str:
        return f"k = {len(self.servers)}, len(popularity) = {self.rows}"

    @property
    def chances(self) -> list[float]:
        chances = recommender.popularity(self.rows, self.s).tolist()
        chances[: self.level] = [sum(chances[: self.level]) / self.level] * self.level
        if self.seed is not None:
            random.Random(self.seed).shuffle(chances)
        return chances

    @property
    def copies(self) -> int:
        """How many there may be: each server has room for 4 further rows."""
        return self.rows + 4 * len(self.servers)


def hottest(case: BalanceCase, places: list[list[str]]) -> float:
    """Return the load of the hottest server, divided by the mean."""
    load = dict.fromkeys(case.servers, 0.0)
    for chance, own in zip(case.chances, places, strict=True):
        for server in own:
            load[server] += chance / len(own)
    return max(load.values()) * len(load)


def judge(case: BalanceCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    places = _places(case, call(case, answer, case.chances, list(case.servers)))
    copies, worst = sum(map(len, places)), hottest(case, places)
    if copies > case.copies:
        raise failure("everywhere", "balance-copies", case, got=copies, most=case.copies)
    if worst > MOST + 1e-9:
        values = {"worst": unlike(worst, MOST, digits=3)[0], "first": f"{max(case.chances) * len(case.servers):.2f}"}
        raise failure(_mistake(case, places), "balance-worst", case, **values)
    return {"worst": f"{worst:.3f}", "more": str(copies - case.rows), "servers": str(len(case.servers))}


def _places(case: BalanceCase, result: object) -> list[list[str]]:
    if isinstance(result, str | dict) or not isinstance(result, Iterable):
        raise failure("wrong-type", "balance-type", case, type=type(result).__name__)
    result = list(result)
    if not result:
        raise failure("todo", "balance-nothing", case)
    if len(result) != case.rows:
        raise failure("differs", "balance-count", case, got=len(result), right=case.rows)
    places = []
    for row, own in enumerate(result):
        if isinstance(own, str | dict) or not isinstance(own, Iterable):
            raise failure("wrong-type", "balance-row", case, row=row, got=repr(own)[:40])
        own = list(own)
        if not own:
            raise failure("differs", "balance-nowhere", case, row=row)
        for server in own:
            if not isinstance(server, str) or server not in case.servers:
                raise failure("differs", "balance-server", case, row=row, server=repr(server)[:40])
            if own.count(server) > 1:
                raise failure("differs", "balance-twice", case, row=row, server=server)
        places.append(own)
    return places


def _mistake(case: BalanceCase, places: list[list[str]]) -> str:
    if any(len(own) > 1 for own in places):
        return "still-hot"
    changes = sum(one != other for one, other in zip(places, places[1:], strict=False))
    return "range" if changes < len(case.servers) else "one-copy"


CASES = (
    BalanceCase(2000, tuple(f"server{i}" for i in range(16))),
    BalanceCase(500, ("east", "west"), seed=1),
    BalanceCase(701, ("c", "a", "b"), seed=2),
    BalanceCase(300, ("only",), seed=3),
    BalanceCase(1000, ("s3", "s1", "s4", "s9", "s5"), s=1.2, seed=None),
    BalanceCase(1200, tuple(f"n{5 * i % 16}" for i in range(16)), s=1.2, seed=5, level=6),
    BalanceCase(640, tuple(f"m{7 * i % 16}" for i in range(16)), s=0, seed=None),
)

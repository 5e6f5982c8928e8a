"""Judge how many machines pay: rent and time are added up for every number of machines, with failures."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import call, failure, number, sealed, unlike, withheld

NEAR = 1e-9


@dataclass(frozen=True)
class EvenCase:
    """A job of ``work`` hours on whole groups of ``group`` machines; ``sync`` hours go into messages."""

    work: float
    sync: float
    price: float
    worth: float
    life: float = 1e9
    save: float = 0.0
    most: int = 64
    group: int = 1

    @property
    def label(self) -> str:
        return f"n = 1…{self.most}, price = {self.price:g}, worth = {self.worth:g}, life = {self.life:g}"

    def hours(self, n: int) -> float:
        useful = n // self.group * self.group or 1
        return self.work / useful + self.sync * (useful - 1) / useful

    @withheld
    def total(self, n: int, price: float = 1, worth: float = 1, lost: Callable[[float], float] = math.sqrt) -> float:
        """Return rent + time; factors leave out what a wrong answer leaves out, ``lost`` is a function of 2δ/M."""
        longer = 1 + lost(2 * self.save * n / self.life)
        return (price * n * self.price + worth * self.worth) * self.hours(n) * longer

    @withheld
    def best(self, total: Callable[[int], float]) -> int:
        return min(range(1, self.most + 1), key=total)

    @sealed
    def totals(self) -> list[float]:
        """Return rent + time for 1, 2, … machines."""
        return [self.total(n) for n in range(1, self.most + 1)]

    @sealed
    def thoughts(self) -> dict[str, list[int]]:
        """Return the numbers to which known thoughts lead."""
        one = 2 * self.save / self.life  # 2δ/M of a single machine
        losses = (lambda x: 0, lambda x: x, lambda x: math.sqrt(x / 2), lambda x: math.sqrt(one))  # none, no root, no 2
        totals = [math.inf, *self.totals(), math.inf]
        return {
            "stops-early": [n for n in range(1, self.most + 1) if totals[n] <= min(totals[n - 1], totals[n + 1])],
            "failures": [self.best(lambda n, lost=lost: self.total(n, lost=lost)) for lost in losses],
            "fastest": [self.best(self.hours)],
            "rent-of-one": [self.best(lambda n: self.total(n, price=1 / n))],
            "cheapest": [self.best(lambda n: self.total(n, worth=0))],
        }


def judge(case: EvenCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""

    strange = []  # what the answer asked for; an error here would count as its own

    def hours(n: int) -> float:
        try:
            if 1 <= number(n) <= case.most and number(n) == int(n):
                return case.hours(int(n))
        except TypeError:
            pass
        strange.append(n)
        return math.inf

    got = call(case, answer, hours, case.price, case.worth, case.life, case.save, case.most)
    if strange:
        raise failure("out-of-range", "even-hours-of", case, got=repr(strange[0])[:20], most=case.most)
    try:
        if not abs(number(got)) < 1e15 or number(got) != int(got):
            raise TypeError
    except TypeError:
        raise failure("wrong-type", "even-not-a-count", case, got=repr(got)[:20]) from None
    got, totals = int(got), case.totals()
    if got == 0:
        raise failure("todo", "even-nothing", case)
    if not 1 <= got <= case.most:
        raise failure("out-of-range", "even-out-of-range", case, got=got, most=case.most)
    here, best = totals[got - 1], min(totals)
    if here > best * (1 + NEAR):
        shown = unlike(here, best, digits=6)
        raise failure(mistake_of(case, got), "even-more", case, got=got, here=shown[0], best=shown[1])
    return {
        "n": str(got),
        "rent": f"{got * case.price * here / (got * case.price + case.worth):.4g}",
        "total": f"{here:.4g}",
        "alone": f"{totals[0]:.4g}",
    }


def mistake_of(case: EvenCase, got: int) -> str:
    """Return which thought leads to a wrong number, if one is known."""
    return next((name for name, numbers in case.thoughts().items() if got in numbers), "differs")


CASES = (
    EvenCase(100, 5, 2, 100, life=50, save=0.5, most=60),
    EvenCase(100, 5, 2, 100, most=64),
    EvenCase(12, 0.5, 2, 0, most=3),
    EvenCase(50, 1, 3, 10, most=1),
    EvenCase(40, 2, 4, 90, most=5),
    EvenCase(100, 4, 6.88, 300, life=200, save=0.2, most=80, group=20),
    EvenCase(100, 5, 2, 300, life=50, save=0.5, most=60),
    EvenCase(900, 2, 1, 50, life=400, save=0.5, most=200),
    EvenCase(24, 0, 1, 1000, life=5e4, save=1 / 60, most=2),
)

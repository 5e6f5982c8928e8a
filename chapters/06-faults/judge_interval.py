"""Judge the time between two checkpoints by what a run takes with it, on average over all failures there can be.

Failures come at random, with a mean time of M between two of them, and also while the job saves or starts again. Then
the mean is known exactly (Daly 2006, section 3), and :func:`simulated` shows that it is so.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import Failure, call, failure, number, sealed, unlike, withheld

MARGIN = 0.02  # of the time that the best choice loses
SMALLER = (1 / 60, 1 / 3600)  # minutes or hours where seconds are meant


@dataclass(frozen=True)
class IntervalCase:
    """``n`` devices, each failing once in so many ``hours``; ``delta`` and ``restart`` are seconds."""

    n: int
    hours: float
    delta: float
    restart: float

    @property
    def label(self) -> str:
        return f"n = {self.n}, hours = {self.hours:g}, delta = {self.delta:g}, restart = {self.restart:g}"

    @property
    def mtbf(self) -> float:
        """Mean seconds between two failures of the job: the more devices, the fewer."""
        return self.hours * 3600 / self.n


def drawn_cases(count: int = 12) -> tuple[IntervalCase, ...]:
    """Cases in which a save takes from a thousandth of the mean time between two failures to all of it."""
    draw, cases = random.Random(6), []
    for i in range(count):
        part, mtbf = 10 ** (3 * (i + draw.random()) / count - 3), 10 ** draw.uniform(3, 6)
        n = int(10 ** draw.uniform(0, 4))
        hours, delta, restart = (float(f"{each:.3g}") for each in (n * mtbf / 3600, part * mtbf, mtbf * draw.random()))
        cases.append(IntervalCase(n, hours, delta, restart))
    return tuple(cases)


def takes(case: IntervalCase, work: float) -> float:
    """Mean seconds for a second of work, with ``work`` seconds of work between two saves.

    >>> f"{takes(IntervalCase(1, 24, 300, 0), 7000):.4f}"
    '1.0882'
    """
    mtbf = case.mtbf
    return math.exp(case.restart / mtbf) * mtbf * math.expm1(min((work + case.delta) / mtbf, 600)) / work


@withheld
def best(delta: float, mtbf: float) -> float:
    """The seconds of work between two saves that lose least: where 1 − e^(−(I+δ)/M) = I/M.

    >>> round(best(300, 24 * 3600) / 60), round(best(300, 6 * 3600) / 60), round(best(300, 15 * 60) / 60, 1)
    (117, 57, 9.2)
    """
    low, high = 0.0, mtbf
    for _ in range(100):
        work = (low + high) / 2
        low, high = (work, high) if -math.expm1(-(work + delta) / mtbf) > work / mtbf else (low, work)
    return work


def young(delta: float, mtbf: float) -> float:
    return math.sqrt(2 * delta * mtbf)


@withheld
def daly(delta: float, mtbf: float) -> float:
    """Daly's better formula.

    >>> [round(daly(300, hours * 3600) / 60, 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    small = delta / (2 * mtbf)
    return young(delta, mtbf) * (1 + math.sqrt(small) / 3 + small / 9) - delta if small < 1 else mtbf


@sealed
def known(case: IntervalCase) -> dict[str, list[float]]:
    """Return the best interval, and those of known thoughts that begin with a good rule."""
    delta, mtbf, rules = case.delta, case.mtbf, (best, daly, young)
    return {
        "best": [best(delta, mtbf)],
        "one-device": [rule(delta, of) for rule in rules for of in (mtbf * case.n, mtbf * case.n**2) if case.n > 1],
        "other-unit": [
            value
            for rule in rules
            for unit in SMALLER
            for value in (rule(delta, mtbf * unit), rule(delta, mtbf) * unit)
        ],
        "adds-restart": [rule(delta + case.restart, mtbf) for rule in rules if case.restart],
    }


def simulated(case: IntervalCase, work: float, saves: int, seed: int = 0) -> float:
    """Seconds for a second of work, in a run with so many ``saves`` whose failures are drawn."""
    draw = random.Random(f"{case.label} {work} {seed}")
    now, fails, done = 0.0, draw.expovariate(1 / case.mtbf), 0
    while done < saves:
        if fails > now + work + case.delta:
            now, done = now + work + case.delta, done + 1
            continue
        now = fails
        while True:  # it starts again, until no failure comes in between
            fails = now + draw.expovariate(1 / case.mtbf)
            if fails > now + case.restart:
                break
            now = fails
        now += case.restart
    return now / (saves * work)


def judge(case: IntervalCase, answer: Callable) -> dict[str, float]:
    """Return the losses of a right answer and its neighbours; raise Failure."""
    got = call(case, answer, case.n, case.hours, case.delta, case.restart)
    try:
        work = float(number(got))
    except (TypeError, OverflowError):
        raise failure("wrong-type", "not-a-number", case, type=type(got).__name__) from None
    if work == 0:
        raise failure("todo", "no-interval", case)
    if not 0 < work < math.inf:
        raise failure("differs", "interval-no-time", case, got=f"{work:g}")
    again = math.exp(case.restart / case.mtbf)  # what restarts add is the same factor for every interval
    enough, here = takes(case, known(case)["best"][0]), takes(case, work)
    if here - enough > MARGIN * (enough - again):
        raise _failure(case, work, here, enough, (here - enough) / (enough - again))
    return {
        "interval": work,
        "longer": here - 1,
        "drawn": simulated(case, work, 20_000) - 1,
        "twice": takes(case, 2 * work) - 1,
        "half": takes(case, work / 2) - 1,
    }


def _failure(case: IntervalCase, work: float, here: float, enough: float, more: float) -> Failure:
    mistake = mistake_of(case, work)
    times = unlike(here, enough, digits=5)
    parts = {"more": unlike(100 * more, 100 * MARGIN, digits=3)[0] + "%", "most": f"{MARGIN:.0%}"}
    return failure(mistake, "interval-loses", case, got=f"{work:.4g}", here=times[0], enough=times[1], **parts)


def mistake_of(case: IntervalCase, work: float) -> str:
    """Which thought leads to ``work``, if one is known."""
    delta, mtbf, thoughts = case.delta, case.mtbf, known(case)

    def near(values: list[float]) -> bool:
        return any(value > 0 and abs(work / value - 1) < 0.005 for value in values)

    if near([young(delta, mtbf)]):
        return "young-too-far"
    for mistake in ("one-device", "other-unit"):
        if near(thoughts[mistake]):
            return mistake
    if near([math.sqrt(delta * mtbf)]):
        return "without-two"
    if near(thoughts["adds-restart"]):
        return "adds-restart"
    return "too-often" if work < thoughts["best"][0] else "too-seldom"

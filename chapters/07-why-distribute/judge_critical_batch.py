"""Judge the least batch that is fast enough, for runs that obey q = q_min + e/V exactly."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from d2lps.notebook.grading import Failure, call, failure, number, sealed, unlike

NEAR = 1e-9


@dataclass(frozen=True)
class BatchCase:
    """Runs with these ``batches``; ``fewest`` is q_min, ``slope`` is q_min · V_c."""

    fewest: float
    slope: float
    batches: tuple[int, ...]
    steps: float

    @property
    def label(self) -> str:
        return f"k = {len(self.batches)}, q = {self.steps:g}"

    @property
    def measured(self) -> dict[int, float]:
        return {batch: self.steps_of(batch) for batch in self.batches}

    def steps_of(self, batch: float) -> float:
        return self.fewest + self.slope / batch

    @property
    @sealed
    def right(self) -> float:
        """The least batch, or infinity."""
        room = self.steps - self.fewest
        return max(1, math.ceil(self.slope / room * (1 - NEAR))) if room > NEAR * self.steps else math.inf


def judge(case: BatchCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    right = case.right
    try:
        got = call(case, answer, dict(case.measured), case.steps)
    except Failure as error:  # the formula without a guard divides by zero
        unguarded = right == math.inf and error.mistake == "raised"
        raise Failure("no-limit" if unguarded else error.mistake, error.sentence) from None
    try:
        got = number(got)
        if got != got or not (abs(got) < 1e300 or got == math.inf):
            raise TypeError
    except TypeError:
        raise failure("wrong-type", "not-a-batch", case, type=type(got).__name__) from None
    if got == 0:
        raise failure("todo", "batch-nothing", case)
    if got == math.inf != right:
        raise failure("gives-up", "batch-none", case, right=_show(right), steps=f"{case.steps_of(right):.4g}")
    if got < 0:
        raise failure("no-limit" if right == math.inf else "differs", "batch-negative", case, got=f"{got:.4g}")
    if got != math.inf and got != int(got):
        raise failure("differs", "batch-not-whole", case, got=float(got))
    if got != right:
        sentence = "batch-too-many" if got < right else "batch-not-least"
        mistake = "no-limit" if right == math.inf else mistake_of(case, int(got))
        raise failure(mistake, sentence, case, got=_show(got), takes=unlike(case.steps_of(got), case.steps)[0])
    return {"critical": f"{case.slope / case.fewest:.4g}", "fewest": f"{case.fewest:.4g}", "batch": _show(right)}


def _show(batch: float) -> str:
    return str(int(batch)) if batch < 1e15 else f"{batch:.3g}"


def mistake_of(case: BatchCase, got: int) -> str:
    """Return which thought leads to a wrong batch, if one is known."""
    right, known = case.right, sorted(case.measured.items())
    exact = case.slope / (case.steps - case.fewest)
    if got == right - 1 or (got == right + 1 and abs(exact - right) < NEAR * right):
        return "rounded"
    if got == min((batch for batch, steps in known if steps <= case.steps * (1 + NEAR)), default=None):
        return "measured-only"
    if any(_near(got, batch * steps / case.steps) for batch, steps in known):
        return "proportional"
    (small, many), (large, few) = known[0], known[-1]
    if _near(got, small + (large - small) * (many - case.steps) / (many - few)):
        return "straight-line"
    if case.steps > few and _near(got, (many - few) * small / (case.steps - few)):
        return "largest-is-fewest"
    return "differs"


def _near(got: int, value: float) -> bool:
    """Return whether a value was rounded to ``got``, up or to the nearest."""
    return got in (math.ceil(value - NEAR * abs(value)), round(value))


CASES = (
    BatchCase(20, 120, (2, 10, 70), 25),
    BatchCase(15, 600, (256, 2, 16), 45),
    BatchCase(17.5, 17.5 * 41.5, (2, 16), 18.25),
    BatchCase(20, 246, (1, 64), 40),
    BatchCase(20, 246, (16, 64), 70),
    BatchCase(20, 246, (1, 2), 20.05),
    BatchCase(18, 594, (1, 64), 18),
    BatchCase(18, 594, (1, 64), 12),
    BatchCase(100, 700, (5, 3, 80, 9, 1), 5000),
    BatchCase(72_000, 7.2e10, (65_536, 524_288), 100_000),
    BatchCase(7, 910, (3, 700), 8.5),
    BatchCase(250, 1000, (10, 40, 20), 260),
)

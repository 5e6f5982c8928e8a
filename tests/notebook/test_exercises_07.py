"""The exercises of chapter 07: right answers unlike the solutions, and what the judges know."""

import math
from fractions import Fraction

import pytest
from helpers.exercises import module

from d2lps.notebook.grading.course import texts_of

CHAPTER = "07-why-distribute"
IDS = ("critical-batch", "break-even")
SOLVED = {id: texts_of(id).solution() for id in IDS}
judge_batch, judge_even = (module(CHAPTER, name) for name in ("judge_critical_batch", "judge_break_even"))


# ---- right answers that are unlike the solutions


def by_least_squares(measured, steps):
    import numpy

    slope, fewest = numpy.polyfit([1 / batch for batch in measured], [*measured.values()], 1)
    return math.inf if steps <= fewest * (1 + 1e-9) else max(1, math.ceil(slope / (steps - fewest) * (1 - 1e-9)))


def exactly(measured, steps):
    (a, p), (b, q), *_ = [
        (Fraction(batch), Fraction(value).limit_denominator(10**9)) for batch, value in measured.items()
    ]
    slope = (p - q) / (1 / a - 1 / b)
    room = Fraction(steps) - (p - slope / a)
    return float("inf") if room <= Fraction(1, 10**6) else max(1, -(-(slope / room - Fraction(1, 10**6)) // 1))


def from_the_end(hours, price, worth, life, save, most):
    best, least = most, math.inf
    for n in reversed(range(1, most + 1)):
        total = hours(n) * (price * n + worth) * (1 + (2 * save * n / life) ** 0.5)
        if total < least:
            best, least = n, total
    return float(best)


RIGHT = {"critical-batch": [by_least_squares, exactly], "break-even": [from_the_end]}
MEASURED = {
    "critical-batch": ["fewest steps are 20", "critical batch is 6", "takes 24 examples"],
    "break-even": ["20 machines", "2228"],
}


# ---- what the judges know


@pytest.mark.parametrize("case", judge_batch.CASES, ids=lambda case: case.label)
def test_a_smaller_batch_takes_too_many_steps(case):
    right = case.right
    if right == math.inf:
        assert case.steps_of(10**15) >= case.steps
    else:
        assert case.steps_of(right) <= case.steps * (1 + 1e-9)
        assert right == 1 or case.steps_of(right - 1) > case.steps * (1 + 1e-9)


@pytest.mark.parametrize("case", judge_even.CASES, ids=lambda case: case.label)
def test_the_total_is_rent_and_time_of_a_longer_job(case):
    n = case.most
    longer = 1 + math.sqrt(2 * case.save / (case.life / n))
    assert case.total(n) == pytest.approx((n * case.price + case.worth) * case.hours(n) * longer)

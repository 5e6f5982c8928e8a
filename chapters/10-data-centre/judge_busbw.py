"""Judge the bus bandwidth of a collective against that of a plan, costed on a switch."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from d2lps import (
    all_gather,
    all_to_all,
    bandwidth,
    broadcast,
    cost,
    gather,
    nvswitch,
    reduce,
    reduce_scatter,
    ring,
    scatter,
)
from d2lps.notebook.grading import call, failure, number, number_text, size_text, unlike

GATHERS = ("all_gather", "gather")  # S is n times what a rank has before
PLANS = {  # by the names of torch.distributed
    "broadcast": broadcast,
    "reduce": reduce,
    "scatter": scatter,
    "gather": gather,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": ring,
    "all_to_all": all_to_all,
}


@dataclass(frozen=True)
class BusCase:
    """``nbytes``: what a rank, or the root, has before."""

    collective: str
    n: int
    nbytes: int

    @property
    def label(self) -> str:
        return f"n = {self.n}, {self.collective}"

    @property
    def size(self) -> int:
        """S of nccl-tests: the largest buffer of a rank."""
        return self.nbytes * self.n if self.collective in GATHERS else self.nbytes

    def measured(self) -> tuple[float, float]:
        """Return the seconds of a run, and the bus bandwidth that ``d2lps.bandwidth`` makes of it."""
        plan = PLANS[self.collective]([f"gpu{i}" for i in range(self.n)])
        total = self.size * (self.n if self.collective == "all_to_all" else 1)
        trace = cost.shared(plan, nvswitch(self.n, links=18, latency="1.7 us"), total)
        return trace.duration, bandwidth(trace).busbw


def judge(case: BusCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    seconds, right = case.measured()
    got = _number(case, call(case, answer, case.collective, case.n, case.nbytes, seconds))
    if not got:
        raise failure("todo", "busbw-nothing", case)
    if not math.isclose(got, right, rel_tol=1e-6):
        named = (name for name, wrong in _wrong(case, seconds) if math.isclose(got, wrong, rel_tol=1e-6))
        shown = unlike(got, right, _rate)
        raise failure(next(named, "differs"), "busbw-wrong", case, got=shown[0], right=shown[1])
    return {"rate": _rate(right), "alg": _rate(case.size / seconds)}


def _number(case: BusCase, got: object) -> float:
    with suppress(TypeError, OverflowError):  # a whole number may be too large
        if math.isfinite(rate := float(number(got))):
            return rate
    raise failure("wrong-type", "busbw-not-a-rate", case, got=repr(got)[:40])


def _wrong(case: BusCase, seconds: float) -> list[tuple[str, float]]:
    """Return the rate that each mistake leads to; the first that fits names it."""
    n, s, rooted = case.n, case.size / seconds, case.collective in ("broadcast", "reduce")
    factor = 2 * (n - 1) / n if case.collective == "all_reduce" else 1 if rooted else (n - 1) / n
    gathers = case.collective in GATHERS
    return [
        ("differs", 8 * s * factor),  # in bits; with 8 ranks it would look like "every-rank"
        ("no-factor", s),
        ("one-rank", s / n * factor) if gathers else ("every-rank", s * n * factor),
        ("all-reduce-everywhere", s * 2 * (n - 1) / n),
        ("rooted", s * (n - 1) / n),
        ("inverted", s / factor),
    ]


def _rate(rate: float, digits: int = 4) -> str:
    return size_text(rate, digits) + "/s" if 0 < rate < 1e18 else number_text(rate, digits)


CASES = (
    BusCase("all_reduce", 8, 10**9),
    BusCase("all_gather", 8, 125 * 10**6),
    BusCase("broadcast", 8, 10**9),
    BusCase("reduce_scatter", 5, 4 * 10**8),
    BusCase("all_to_all", 5, 10**8),
    BusCase("scatter", 3, 3 * 10**8),
    BusCase("gather", 4, 10**8),
    BusCase("reduce", 3, 10**8),
    BusCase("all_reduce", 3, 3 * 10**6),
    BusCase("all_gather", 16, 10**6),
)

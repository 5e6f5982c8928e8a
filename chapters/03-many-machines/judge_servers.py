"""Judge a number of servers: is it the least with which one more would save no time, as the cost model has it?"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from d2lps import cost, machines, sharded
from d2lps.notebook.grading import call, failure, number, sealed, time_text, unlike
from d2lps.units import bandwidth, size

NBYTES = size("20 MB")


@dataclass(frozen=True)
class ServersCase:
    """``m`` machines with a network card each, and servers with other ones."""

    m: int
    machine: str
    server: str

    @property
    def label(self) -> str:
        return f"m = {self.m}, machine = {spaced(self.machine)}, server = {spaced(self.server)}"

    def takes(self, k: int) -> float:
        """Seconds with ``k`` servers, by the cost model."""
        hosts, servers = [f"host{i}/cpu" for i in range(self.m)], [f"server{j}" for j in range(k)]
        cards = [self.machine] * self.m + [self.server] * k
        return cost.shared(sharded(hosts, servers), machines(self.m, 0, cards, servers=k), NBYTES).duration

    @sealed
    def enough(self) -> int:
        """Return the least number with which one more saves no time; a test compares it with the cost model."""
        return max(1, ceil(self.m * Fraction(bandwidth(self.machine)) / Fraction(bandwidth(self.server))))


def spaced(rate: str) -> str:
    """With a no-break space before the unit."""
    return rate.replace(" ", "\u00a0")


def judge(case: ServersCase, answer: Callable) -> ServersCase:
    """Return the case; raise Failure."""
    machine, server = float(bandwidth(case.machine)), float(bandwidth(case.server))  # as an answer graded elsewhere
    got, enough = call(case, answer, case.m, machine, server), case.enough()
    try:
        got = number(got)
    except TypeError:
        raise failure("wrong-type", "not-a-number", case, type=type(got).__name__) from None
    if got <= 0:
        raise failure("todo", "no-servers-yet", case)
    if got % 1:
        raise failure("rounding", "not-whole", case, got=float(got))
    got = int(got)
    if got < enough:
        now, then = unlike(case.takes(got), case.takes(got + 1), time_text)
        raise failure(_mistake(case, got, enough), "too-few-servers", case, got=got, now=now, then=then)
    if got > enough:
        least = time_text(case.takes(enough))
        raise failure(_mistake(case, got, enough), "too-many-servers", case, got=got, enough=enough, time=least)
    return case


def told(case: ServersCase) -> dict[str, str]:
    """Return what fills the sentence for a right answer: the time with each number of servers."""
    times = [time_text(case.takes(k)) for k in range(1, case.enough() + 2)]
    return {"case": case.label, "enough": str(case.enough()), "times": ", ".join(times)}


def _mistake(case: ServersCase, got: int, enough: int) -> str:
    ratio = bandwidth(case.machine) / bandwidth(case.server)
    if got == case.m:
        return "bandwidths-ignored"
    if got == int(case.m * ratio):
        return "rounding"
    if got == ceil(case.m / ratio):
        return "ratio-turned"
    if got == ceil(2 * case.m * ratio):
        return "both-directions"
    return "rounding" if got == enough + 1 else "differs"

"""The demands of this chapter's exercises on an answer, and its typical mistakes."""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from d2lps import Trace, cost, machines, ring
from d2lps.notebook.grading import NBYTES, Counts, Exercise, PlanCase, PlanJudge, failure, size_text, time_text, unlike
from d2lps.plan import Plan, sends
from d2lps.units import bandwidth

from . import judge_best_mix, judge_servers, judge_seven_steps
from .judge_best_mix import mix_case
from .judge_servers import ServersCase
from .judge_seven_steps import StepsCase

CARD, INSIDE = "100 Gbit/s", "150 GB/s"
FIRST_MIX = mix_case(4, "400 Mbit/s", "400 Mbit/s", "200 Mbit/s")


# Two levels


def hierarchy_case(numbers: Sequence[int], gpus: Sequence[int]) -> PlanCase:
    """Machines and GPUs with these numbers: a sum of shards inside, one between the machines, and back."""
    hosts = [[f"host{i}/gpu{j}" for j in gpus] for i in numbers]
    m, n = len(numbers), len(gpus)
    workers = tuple(gpu for some in hosts for gpu in some)
    inside, across = Fraction(n - 1, n), Fraction(m - 1, m)
    wires = {rate: NBYTES / Fraction(bandwidth(rate)) for rate in (CARD, INSIDE)}
    return PlanCase(
        f"m = {m}, {n} GPU",
        (hosts,),
        workers,
        machines(max(numbers) + 1, max(gpus) + 1, CARD, INSIDE),
        steps=sys.maxsize,  # they may be many: this network has no latency
        per_step=dict.fromkeys(workers, inside or across or Fraction(1)),
        bound=2 * max(Fraction(len(workers) - 1, len(workers)) * wires[INSIDE], across * wires[CARD]),
        allowed=2 * (inside * wires[INSIDE] + across * wires[CARD]),
    )


def host_of(node: str) -> str:
    """
    >>> host_of("host1/gpu0")
    'host1'
    """
    return node.partition("/")[0]


def over_cards(plan: Plan) -> Mapping[tuple[str, str], Fraction]:
    """(machine, "out" or "in") → the part of the gradient that passes its network card."""
    passed: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for step in plan.steps:
        for src, dst, key, _ in sends(step):
            if host_of(src) != host_of(dst):
                passed[host_of(src), "out"] += plan.share[key]
                passed[host_of(dst), "in"] += plan.share[key]
    return passed


def require_one_crossing(counts: Counts) -> None:
    """Over no network card passes more than 2(m−1)/m of the gradient each way."""
    case, passed = counts.case, over_cards(counts.plan)
    count = len({host_of(node) for node in case.workers})
    enough, rate = Fraction(2 * (count - 1), count), Fraction(bandwidth(CARD))
    (host, way), most = max(passed.items(), key=lambda item: item[1], default=(("", "out"), Fraction(0)))
    if most > enough:
        got, least = unlike(most * NBYTES, enough * NBYTES, size_text)
        time, bound = unlike(most * NBYTES / rate, enough * NBYTES / rate, time_text)
        values = {"node": host, "got": got, "enough": least, "time": time, "bound": bound}
        mistake = "flat" if len(set(passed.values())) == 1 else "one-machine"
        raise failure(mistake, f"card-{way}", case, counts.trace, **values)


def hierarchy_mistake(counts: Counts) -> str:
    """Why a plan that passes little over the cards takes long all the same."""
    for step in counts.busy:
        inside = defaultdict(Fraction)
        for (src, dst), part in counts.between(step).items():
            if host_of(src) == host_of(dst):
                inside[src, "out"] += part
                inside[dst, "in"] += part
        if any(part > counts.case.per_step[node] for (node, _), part in inside.items()):
            return "one-leader"
    return "one-after-another"


def time_beside_a_flat_ring(trace: Trace) -> dict[str, str]:
    flat = cost.shared(ring(trace.plan.nodes), trace.topology, NBYTES)
    return {"flat": time_text(flat.duration)}


EXERCISES = {
    "servers": Exercise(
        ("m", "machine", "server"),
        (
            ServersCase(7, "400 Mbit/s", "1200 Mbit/s"),
            ServersCase(4, "400 Mbit/s", "400 Mbit/s"),
            ServersCase(7, "1 Gbit/s", "6.993 Gbit/s"),  # 1.001: with any rounding but up, one too few
            ServersCase(6, "10 Gbit/s", "4.5 Gbit/s"),
            ServersCase(3, "10 Gbit/s", "4 Gbit/s"),
            ServersCase(1, "400 Mbit/s", "400 Mbit/s"),
            ServersCase(2, "1 Gbit/s", "10 Gbit/s"),
            ServersCase(8, "25 Gbit/s", "100 Gbit/s"),
        ),
        judge_servers.judge,
        fills=judge_servers.told,
    ),
    "seven-steps": Exercise(
        ("trace",),
        (
            StepsCase((0, 1, 2), 2, 1),
            StepsCase((1, 0), 4, 2, leader="gpu0"),
            StepsCase((0, 1, 2, 3), 2, 1, chunks=3),
            StepsCase((3, 1, 5), 2, 3, colocated=True),
            StepsCase((10, 1, 100, 101), 1, 2, chunks=2, colocated=True, updates=False),
            StepsCase((4, 2), 0, 1),
            StepsCase((7,), 3, 1),
        ),
        judge_seven_steps.judge,
        fills=dict,
    ),
    "hierarchy": Exercise(
        ("hosts",),
        (
            hierarchy_case(range(4), range(2)),
            hierarchy_case(range(2), range(4)),
            hierarchy_case((10, 1, 12), (2, 0, 3)),
            hierarchy_case((5, 3, 4, 1, 2), (1, 0)),
            hierarchy_case(range(8), range(4)),
            hierarchy_case((2, 1, 4), (3,)),
            hierarchy_case((1,), (3, 2, 1, 0)),
            hierarchy_case((0,), (0,)),
        ),
        PlanJudge(hierarchy_mistake, require_one_crossing),
        fills=time_beside_a_flat_ring,
    ),
    "best-mix": Exercise(
        ("machines", "bandwidth", "servers"),
        (
            FIRST_MIX,
            mix_case(4, "400 Mbit/s", "400 Mbit/s", "400 Mbit/s"),
            mix_case(8, "10 Gbit/s", "10 Gbit/s", "10 Gbit/s", "25 Gbit/s", first=3),
            mix_case(3, "400 Mbit/s", "100 Mbit/s"),
            mix_case(5, "10 Gbit/s", first=1),
            mix_case(7, "3 Gbit/s", "700 Mbit/s", "1100 Mbit/s", first=2),
            mix_case(4, "10 Gbit/s", "25 Gbit/s", "15 Gbit/s"),
            mix_case(3, "1 Gbit/s", "2 Gbit/s", "1 Gbit/s", "1 Gbit/s"),
            mix_case(2, "400 Mbit/s", "400 Mbit/s"),
            # More servers than machines, and yet less bandwidth than theirs, or more.
            mix_case(2, "400 Mbit/s", "200 Mbit/s", "200 Mbit/s"),
            mix_case(3, "400 Mbit/s", *["100 Mbit/s"] * 2, *["60 Mbit/s"] * 3, first=2),
            mix_case(2, "400 Mbit/s", *["300 Mbit/s"] * 3),
        ),
        judge_best_mix.judge,
        fills=lambda trace: judge_best_mix.times(FIRST_MIX),
    ),
}

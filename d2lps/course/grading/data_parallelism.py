"""The exercises of chapter 01: what each asks of an answer, and what its typical mistakes look like."""

from collections.abc import Mapping
from fractions import Fraction

from d2lps import units
from d2lps.course.grading.asked import NBYTES, Case, Exercise
from d2lps.course.grading.attempt import Counts
from d2lps.plan.acts import sends
from d2lps.topology import Topology, both_ways
from d2lps.topology.hosts import pcie_server

RATE = "16 GB/s"
SPEED = Fraction(units.bandwidth(RATE)) / NBYTES  # gradients per second over a link


def _gpus(count: int) -> list[str]:
    return [f"gpu{i}" for i in range(count)]


def _own_gpu(n: int) -> Case:
    gpus, part = _gpus(n), Fraction(n - 1, n)
    return Case(
        f"n = {n}",
        (gpus,),
        tuple(gpus),
        (),
        pcie_server(n, RATE),
        steps=2,
        in_all=dict.fromkeys(gpus, 2 * part),
        per_step=dict.fromkeys(gpus, part or Fraction(1)),
        bound=2 * part / SPEED,
    )


def _own_gpu_mistake(counts: Counts) -> str:
    every = [send for step in counts.plan.steps for send in sends(step)]
    over = counts.over()
    if over and len({send.dst for send in every if send.op == "add"}) == 1:
        return "all-on-one"
    if over and (len(counts.keys) == 1 or len(over) == len(counts.case.workers)):
        return "whole-gradient"
    if over or len(counts.busy) <= 2:
        return "uneven"
    return "one-after-another" if counts.late else "ring"


def _overlap(n: int, chunks: int) -> Case:
    gpus, whole, part = _gpus(n), Fraction(1), Fraction(1, chunks)
    return Case(
        f"n = {n}, c = {chunks}",
        (gpus, "cpu", chunks),
        tuple(gpus),
        ("cpu",),
        pcie_server(n, RATE),
        steps=chunks + 1,
        in_all=dict.fromkeys(gpus, whole) | {"cpu": n * whole},
        per_step=dict.fromkeys(gpus, part) | {"cpu": n * part},
        bound=(1 + part) * n / SPEED,
    )


def _overlap_mistake(counts: Counts) -> str:
    chunks = counts.case.steps - 1
    both = [step for step in counts.busy if counts.moved("cpu", "src", step) and counts.moved("cpu", "dst", step)]
    if counts.over():
        return "too-many-bytes"
    if len(counts.keys) < chunks:
        return "chunks-ignored"
    if not both:
        return "not-overlapped"
    if len(counts.busy) <= counts.case.steps:
        return "unequal-chunks"
    return "other-chunks" if len(counts.keys) > chunks else "waits-too-long"


def _split(n: int, *rates: str) -> Case:
    gpus, servers = _gpus(n), {f"cpu{i}": units.bandwidth(rate) for i, rate in enumerate(rates)}
    ends = dict.fromkeys(gpus, units.bandwidth(RATE)) | servers
    links = [link for end, rate in ends.items() for link in both_ways(end, "switch", rate)]
    kinds = dict.fromkeys(gpus, "gpu") | {"switch": "switch"} | dict.fromkeys(servers, "cpu")
    phase = max(n / sum(map(_speed, servers.values())), 1 / SPEED)
    return Case(
        ", ".join([f"n = {n}", *(f"{name} {rate}" for name, rate in servers.items())]).replace(" GB", "\u00a0GB"),
        (gpus, servers),
        tuple(gpus),
        tuple(servers),
        Topology("pcie_server", kinds, tuple(links)),
        steps=2,
        in_all=dict.fromkeys(gpus, Fraction(1)),
        per_step=dict.fromkeys(gpus, Fraction(1)) | {name: _speed(rate) * phase for name, rate in servers.items()},
        bound=2 * phase,
    )


def _speed(rate: float) -> Fraction:
    return Fraction(rate) / NBYTES


def _split_mistake(counts: Counts) -> str:
    case = counts.case
    servers: Mapping[str, float] = case.arguments[1]
    if counts.over():
        return "too-many-bytes"
    if len(counts.busy) > 2:
        return "one-after-another" if counts.late else "overlapped"
    given = [counts.moved(name, "dst") / len(case.workers) for name in servers]
    inverse = [1 / Fraction(rate) for rate in servers.values()]
    if max(given) == 1 and len(given) > 1:
        return "all-on-one"
    if len(set(given)) == 1:
        return "equal-split"
    return "inverse-split" if given == [part / sum(inverse) for part in inverse] else "wrong-split"


EXERCISES = {
    "own-gpu": Exercise(("gpus",), tuple(map(_own_gpu, (4, 2, 3, 5, 8, 1))), _own_gpu_mistake, ("n = 4",)),
    "overlap": Exercise(
        ("gpus", "cpu", "chunks"),
        tuple(_overlap(n, chunks) for n, chunks in ((4, 4), (4, 1), (4, 2), (4, 8), (3, 5), (2, 3), (5, 7), (1, 2))),
        _overlap_mistake,
        ("n = 4, c = 1", "n = 4, c = 2", "n = 4, c = 4", "n = 4, c = 8"),
    ),
    "split": Exercise(
        ("gpus", "servers"),
        (
            _split(4, "16 GB/s", "8 GB/s"),
            _split(4, "8 GB/s", "16 GB/s"),
            _split(3, "12 GB/s", "4 GB/s"),
            _split(5, "4 GB/s", "16 GB/s", "8 GB/s"),
            _split(8, "10 GB/s", "6 GB/s", "10 GB/s"),
            _split(3, "8 GB/s", "8 GB/s"),
            _split(2, "5 GB/s", "7 GB/s"),
            _split(1, "16 GB/s", "8 GB/s"),
        ),
        _split_mistake,
        ("n = 4, cpu0 16\u00a0GB/s, cpu1 8\u00a0GB/s",),
    ),
}

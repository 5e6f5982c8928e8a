"""The demands of this chapter's exercises on an answer, and its typical mistakes."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from d2lps import Topology
from d2lps.notebook.grading import NBYTES, Counts, Exercise, PlanCase, PlanJudge, failure
from d2lps.plan import sends
from d2lps.topology import both_ways
from d2lps.units import bandwidth

RATE = "16 GB/s"
SPEED = Fraction(bandwidth(RATE)) / NBYTES  # gradients per second over a link


def gpu_names(count: int) -> list[str]:
    return [f"gpu{i}" for i in range(count)]


def one_switch(gpus: Sequence[str], servers: Mapping[str, float]) -> Topology:
    """GPUs and servers on one switch, by any names: an answer has to take those that it is given."""
    ends = dict.fromkeys(gpus, bandwidth(RATE)) | servers
    links = [link for end, rate in ends.items() for link in both_ways(end, "switch", rate)]
    kinds = dict.fromkeys(gpus, "gpu") | {"switch": "switch"} | dict.fromkeys(servers, "cpu")
    return Topology("pcie_server", kinds, tuple(links))


def own_gpu_case(n: int, names: str = "") -> PlanCase:
    gpus, part = names.split() or gpu_names(n), Fraction(n - 1, n)
    return PlanCase(
        f"n = {n}" + (f", {', '.join(gpus)}" if names else ""),
        (gpus,),
        tuple(gpus),
        one_switch(gpus, {}),
        steps=2,
        in_all=dict.fromkeys(gpus, 2 * part),
        per_step=dict.fromkeys(gpus, part or Fraction(1)),
        bound=2 * part / SPEED,
    )


def own_gpu_mistake(counts: Counts) -> str:
    every = [send for step in counts.plan.steps for send in sends(step) if counts.plan.share[send.key]]
    over = counts.over()
    if over and len({send.dst for send in every if send.op == "add"}) == 1:
        return "all-on-one"
    if over and (len(counts.keys) == 1 or len(over) == len(counts.case.workers)):
        return "whole-gradient"
    if over or len(counts.busy) <= 2:
        return "uneven"
    return "one-after-another" if counts.late else "ring"


def require_servers_between(counts: Counts) -> None:
    """Workers do not talk to each other: at one end of every message is a server."""
    workers = counts.case.workers
    for number in counts.busy:
        for src, dst in counts.between(number):
            if src in workers and dst in workers:
                values = {"step": number, "src": src, "dst": dst}
                raise failure("between-workers", "between-workers", counts.case, counts.trace, **values)


def overlap_case(n: int, chunks: int, cpu: str = "cpu", names: str = "") -> PlanCase:
    gpus, whole, part = names.split() or gpu_names(n), Fraction(1), Fraction(1, chunks)
    return PlanCase(
        f"n = {n}, c = {chunks}" + (f", {cpu}, {', '.join(gpus)}" if names else ""),
        (gpus, cpu, chunks),
        tuple(gpus),
        one_switch(gpus, {cpu: bandwidth(RATE)}),
        servers=(cpu,),
        steps=chunks + 1,
        in_all=dict.fromkeys(gpus, whole) | {cpu: n * whole},
        per_step=dict.fromkeys(gpus, part) | {cpu: n * part},
        bound=(1 + part) * n / SPEED,
    )


def overlap_mistake(counts: Counts) -> str:
    chunks = counts.case.steps - 1
    (cpu,) = counts.case.servers
    both = [step for step in counts.busy if counts.moved(cpu, "src", step) and counts.moved(cpu, "dst", step)]
    if counts.over():
        return "too-many-bytes"
    if len(counts.keys) < chunks:
        return "chunks-ignored"
    if not both:
        return "not-overlapped"
    if len(counts.busy) <= counts.case.steps:
        return "unequal-chunks"
    return "other-chunks" if len(counts.keys) > chunks else "waits-too-long"


def split_case(n: int, *rates: str, names: str = "cpu0 cpu1 cpu2") -> PlanCase:
    gpus, servers = gpu_names(n), dict(zip(names.split(), map(bandwidth, rates), strict=False))
    phase = max(n / sum(map(speed, servers.values())), 1 / SPEED)
    return PlanCase(
        ", ".join([f"n = {n}", *(f"{name} {rate}" for name, rate in servers.items())]).replace(" GB", "\u00a0GB"),
        (gpus, servers),
        tuple(gpus),
        one_switch(gpus, servers),
        servers=tuple(servers),
        steps=2,
        in_all=dict.fromkeys(gpus, Fraction(1)),
        per_step=dict.fromkeys(gpus, Fraction(1)) | {name: speed(rate) * phase for name, rate in servers.items()},
        bound=2 * phase,
    )


def speed(rate: float) -> Fraction:
    return Fraction(rate) / NBYTES


def split_mistake(counts: Counts) -> str:
    case = counts.case
    servers: Mapping[str, float] = case.arguments[1]
    if counts.over():
        return "too-many-bytes"
    if len(counts.busy) > 2:
        return "one-after-another" if counts.late else "overlapped"
    parts = [counts.moved(name, "dst") / len(case.workers) for name in servers]
    inverse = [1 / Fraction(rate) for rate in servers.values()]
    if max(parts) == 1 and len(parts) > 1:
        return "all-on-one"
    if len(set(parts)) == 1:
        return "equal-split"
    return "inverse-split" if parts == [part / sum(inverse) for part in inverse] else "wrong-split"


EXERCISES = {
    "own-gpu": Exercise(
        ("gpus",),
        (*map(own_gpu_case, (4, 2, 3, 5, 8, 1)), own_gpu_case(3, "gpu4 gpu0 gpu7")),
        PlanJudge(own_gpu_mistake),
        shows=("n = 4",),
    ),
    "overlap": Exercise(
        ("gpus", "cpu", "chunks"),
        (
            *(overlap_case(*size) for size in ((4, 4), (4, 1), (4, 2), (4, 8), (3, 5), (2, 3), (5, 7), (1, 2))),
            overlap_case(2, 2, "cpu1", "gpu6 gpu3"),
        ),
        PlanJudge(overlap_mistake, require_servers_between),
        shows=("n = 4, c = 1", "n = 4, c = 2", "n = 4, c = 4", "n = 4, c = 8"),
    ),
    "split": Exercise(
        ("gpus", "servers"),
        (
            split_case(4, "16 GB/s", "8 GB/s"),
            split_case(4, "8 GB/s", "16 GB/s"),
            split_case(3, "12 GB/s", "4 GB/s"),
            split_case(5, "4 GB/s", "16 GB/s", "8 GB/s"),
            split_case(8, "10 GB/s", "6 GB/s", "10 GB/s"),
            split_case(3, "8 GB/s", "8 GB/s"),
            split_case(2, "5 GB/s", "7 GB/s"),
            split_case(1, "16 GB/s", "8 GB/s"),
            split_case(4, "32 GB/s", "8 GB/s"),
            split_case(4, "15.753 GB/s", "7.877 GB/s"),
            split_case(2, "6 GB/s", "10 GB/s", names="cpu5 cpu2").renamed("gpu6", "gpu3"),
        ),
        PlanJudge(split_mistake, require_servers_between),
        shows=("n = 4, cpu0 16\u00a0GB/s, cpu1 8\u00a0GB/s",),
    ),
}

"""The exercises of chapter 02: what each asks of an answer, and what its typical mistakes look like."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from d2lps import cost, units
from d2lps.algorithms import bidirectional_ring, ring
from d2lps.course.grading import around, combining
from d2lps.course.grading.around import NVLINK
from d2lps.course.grading.asked import NBYTES, Case, Exercise
from d2lps.course.grading.attempt import Counts, time
from d2lps.plan.acts import sends
from d2lps.topology import Topology, both_ways
from d2lps.topology.hosts import nvswitch
from d2lps.trace import Trace

LATENCY = "5 us"
ALPHA = Fraction(units.seconds(LATENCY))
SMALL = units.size("64 kB")
Hop = tuple[str, str]


def _gpus(count: int) -> list[str]:
    return [f"gpu{i}" for i in range(count)]


def _seconds(part: Fraction, rate: str, nbytes: int = NBYTES) -> Fraction:
    """How long that part of the gradient takes over a link."""
    return part * nbytes / Fraction(units.bandwidth(rate))


def _lg(n: int) -> int:
    """⌈lg n⌉."""
    return (n - 1).bit_length()


def _loop(rates: Sequence[str], latency: str = "0 s") -> Topology:
    """GPUs in a circle, with links between neighbours only; ``rates[i]`` is that between number i and the next."""
    gpus, links = _gpus(len(rates)), []
    if len(gpus) == 2:  # there the next one is also the one before
        links = both_ways(*gpus, rates[0], latency, count=2)
    elif len(gpus) > 2:
        hops = zip(gpus, gpus[1:] + gpus[:1], rates, strict=True)
        links = [link for src, dst, rate in hops for link in both_ways(src, dst, rate, latency)]
    return Topology("loop", dict.fromkeys(gpus, "gpu"), links)


# Both ways round


def _both_ways(n: int) -> Case:
    gpus, part, bare = _gpus(n), Fraction(n - 1, n), _seconds(Fraction(n - 1, n), NVLINK)
    return Case(
        f"n = {n}",
        (gpus,),
        tuple(gpus),
        (),
        _loop([NVLINK] * n, LATENCY),
        steps=2 * (n - 1),
        in_all=dict.fromkeys(gpus, 2 * part),
        per_step=dict.fromkeys(gpus, part and Fraction(1, n) or Fraction(1)),
        bound=n // 2 * ALPHA + bare,
        allowed=2 * (n - 1) * ALPHA + bare,
        per_link=Fraction(1, n if n == 2 else 2 * n),  # two neighbours that are one get both halves
    )


def _one_port(n: int) -> Case:
    """The same GPUs, each with one port to a switch, which carries one link's rate each way."""
    gpus, bare = _gpus(n), _seconds(Fraction(2 * (n - 1), n), NVLINK)
    return Case(
        f"n = {n}, switch",
        (gpus,),
        tuple(gpus),
        (),
        nvswitch(n, NVLINK, float(ALPHA) / 2, links=1),
        2 * (n - 1),
        in_all={},
        per_step={},
        bound=ALPHA + bare,
        allowed=2 * (n - 1) * ALPHA + bare,
    )


def _both_ways_mistake(counts: Counts) -> str:
    n = len(counts.case.workers)
    if counts.over():
        uneven = len({counts.plan.share[key] for key in counts.keys}) > 1
        return "whole-tensors" if len(counts.keys) < n else "uneven-chunks" if uneven else "too-many-bytes"
    totals: dict[Hop, Fraction] = {}
    for step in counts.busy:
        for hop, part in counts.between(step).items():
            totals[hop] = totals.get(hop, Fraction(0)) + part
    ways = [
        sum(part for (src, dst), part in totals.items() if (int(dst[3:]) - int(src[3:])) % n == by) for by in (1, n - 1)
    ]
    if not all(ways):
        return "one-way"
    if len(counts.busy) > counts.case.steps:
        return "one-after-another"
    return "uneven-halves" if ways[0] != ways[1] else "uneven-chunks"


# Few steps


def _few_steps(n: int, nbytes: int = SMALL) -> Case:
    gpus, host = _gpus(n), nvswitch(n, latency=LATENCY)
    rate, latency = host.links[0].capacity, 2 * ALPHA
    whole, part = Fraction(nbytes) / Fraction(rate), Fraction(2 * (n - 1), n)
    return Case(
        f"n = {n}" if nbytes == SMALL else f"n = {n}, {units.show_size(nbytes)}",
        (gpus,),
        tuple(gpus),
        (),
        host,
        steps=2 * _lg(n),
        in_all={},
        per_step={},
        bound=_lg(n) * latency + part * whole,
        allowed=2 * _lg(n) * (latency + whole),
        one_at_a_time=True,
        nbytes=nbytes,
    )


def _few_steps_mistake(counts: Counts) -> str:
    every = [send for step in counts.plan.steps for send in sends(step)]
    n, goals = len(counts.case.workers), {}
    for send in every:
        goals.setdefault(send.src, set()).add(send.dst)
    if n > 2 and all(len(goal) == 1 for goal in goals.values()):
        return "ring"
    up = [step for step in counts.busy if any(send.op == "add" for send in sends(counts.plan.steps[step - 1]))]
    if len(up) <= _lg(n):
        return "slow-way-back"
    return "one-by-one" if all(len(counts.between(step)) == 1 for step in counts.busy) else "too-many-steps"


def _beside_the_ring(trace: Trace) -> dict[str, str]:
    around_it = ring(_gpus(8))
    large = [cost.shared(plan, trace.topology, NBYTES).duration for plan in (trace.plan, around_it)]
    return {
        "ring": time(cost.shared(around_it, trace.topology, SMALL).duration),
        "large": time(large[0]),
        "large_ring": time(large[1]),
    }


# Unequal links


def _unequal(chunks: int, *rates: str) -> Case:
    n, gpus = len(rates), _gpus(len(rates))
    bandwidths = {gpu: units.bandwidth(rate) for gpu, rate in zip(gpus, rates, strict=True)}
    slowest, *others = sorted(rates, key=units.bandwidth)
    chain = _seconds(Fraction(1), others[0]) if n > 1 else Fraction(0)  # every cut of the chain passes the whole sum
    both = sum(Fraction(units.bandwidth(rate)) for rate in (slowest, *others[:1])) if n > 2 else 0
    bound = NBYTES / both if both else chain
    steps = chunks + 2 * n - 3 if n > 1 else 0
    topology = _loop(rates) if n != 2 else Topology("loop", dict.fromkeys(gpus, "gpu"), both_ways(*gpus, rates[0]))
    label = f"n = {n}, c = {chunks}" + (f", {gpus[rates.index(slowest)]} {slowest}" if n > 2 else "")
    return Case(
        label.replace(" GB", "\u00a0GB"),
        (gpus, bandwidths, chunks),
        tuple(gpus),
        (),
        topology,
        steps,
        in_all=dict.fromkeys(gpus, Fraction(2)),
        per_step={},
        bound=bound,
        allowed=chain * Fraction(steps, chunks),
    )


def _slowest(case: Case) -> set[str]:
    """The two ends of the slowest link."""
    gpus, bandwidths, _ = case.arguments
    i = min(range(len(gpus)), key=lambda i: bandwidths[gpus[i]])
    return {gpus[i], gpus[(i + 1) % len(gpus)]}


def _unequal_mistake(counts: Counts) -> str:
    steps = [sends(step) for step in counts.plan.steps]
    chunks, slow = counts.case.arguments[2], _slowest(counts.case)
    if len(counts.case.workers) > 2 and any({send.src, send.dst} == slow for step in steps for send in step):
        return "over-the-slow-link"
    if counts.over():
        return "too-many-bytes"
    if len(counts.keys) < chunks:
        return "chunks-ignored"
    if len({counts.plan.share[key] for key in counts.keys}) > 1:
        return "unequal-chunks"
    return "waits-too-long" if any(len({send.op for send in step}) == 2 for step in steps) else "not-overlapped"


def _beside_a_ring(trace: Trace) -> dict[str, str]:
    return {"ring": time(cost.shared(bidirectional_ring(trace.plan.nodes), trace.topology, NBYTES).duration)}


# Labels are not device ids

_DOUBLE = [(0, 3), (3, 2), (2, 1), (1, 5), (5, 6), (6, 7), (7, 4), (4, 0)]
_SINGLE = [(0, 1), (1, 3), (3, 7), (7, 5), (5, 4), (4, 6), (6, 2), (2, 0)]
_LINKS: Mapping[tuple[int, int], int] = dict.fromkeys(_DOUBLE, 2) | dict.fromkeys(_SINGLE, 1)
# The two rings as the chapter's figure labels its GPUs, from 1.
FIGURE = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7))


def _host(label: str, width: int, *gpus: int) -> Case:
    return around.host(label, around.printed(gpus, _LINKS), width)


def _labels_mistake(order: Sequence[str]) -> str:
    """Whether a hop without NVLink comes from taking the figure's labels for ids, from 0 or from 1."""
    ids = {tuple(f"gpu{label - 1}" for label in labels) for labels in FIGURE}
    return "labels-as-ids" if tuple(order) in ids else "no-nvlink"


EXERCISES = {
    "both-ways": Exercise(
        ("gpus",),
        (*map(_both_ways, (4, 2, 3, 5, 8, 1)), _one_port(4)),
        _both_ways_mistake,
        ("n = 4, switch",),
        tells=lambda trace: {"allowed": time(_both_ways(4).allowed)},
    ),
    "few-steps": Exercise(
        ("gpus",),
        (*map(_few_steps, (8, 3, 5, 2, 13, 1)), _few_steps(8, NBYTES)),
        _few_steps_mistake,
        ("n = 8",),
        tells=_beside_the_ring,
    ),
    "labels": Exercise(
        ("table",),
        (
            _host("n = 8", 2, 0, 1, 2, 3, 4, 5, 6, 7),
            _host("n = 8 (2)", 2, 2, 0, 3, 1, 4, 7, 6, 5),
            _host("n = 8 (3)", 2, 6, 4, 5, 7, 1, 3, 0, 2),
            _host("n = 5", 1, 4, 0, 5, 3, 1),
            _host("n = 4", 1, 0, 1, 2, 3),
            _host("n = 3", 1, 0, 2, 3),
            _host("n = 2", 2, 0, 3),
            _host("n = 1", 1, 0),
        ),
        _labels_mistake,
        ("n = 8", "n = 8 (2)", "n = 8 (3)"),
        judge=around.judge,
    ),
    "unequal-links": Exercise(
        ("gpus", "bandwidths", "chunks"),
        (
            _unequal(16, "18 GB/s", "18 GB/s", "18 GB/s", "2 GB/s"),
            _unequal(20, "18 GB/s", "4 GB/s", "18 GB/s", "18 GB/s", "18 GB/s"),
            _unequal(8, "2 GB/s", "18 GB/s", "18 GB/s"),
            _unequal(32, "18 GB/s", "18 GB/s", "18 GB/s", "18 GB/s", "18 GB/s", "3 GB/s", "18 GB/s", "18 GB/s"),
            _unequal(12, "12 GB/s", "18 GB/s", "3 GB/s", "9 GB/s"),
            _unequal(4, "18 GB/s", "18 GB/s"),
            _unequal(4, "18 GB/s"),
        ),
        _unequal_mistake,
        (),
        tells=_beside_a_ring,
    ),
    "beyond-sums": Exercise(
        (),
        tuple(combining.through(name, n) for n in (8, 3, 5, 2, 1) for name in combining.PLANS),
        combining.diagnosed,
        (),
        judge=combining.judge,
        keeps=("overflow", "minus-infinity", "wrong-identity", "not-commutative", "not-associative", "other-reduction"),
    ),
}

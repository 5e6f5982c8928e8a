"""The demands of this chapter's exercises on an answer, and its typical mistakes."""

from collections.abc import Sequence
from fractions import Fraction

from d2lps import Plan, Topology, Trace, bidirectional_ring, cost, nvswitch, ring
from d2lps.notebook.grading import NBYTES, Counts, Exercise, PlanCase, PlanJudge, failure, time_text
from d2lps.plan import sends
from d2lps.topology import both_ways
from d2lps.units import bandwidth, seconds, show_size, size

from . import judge_beyond_sums, judge_labels
from .judge_beyond_sums import PLANS, reduction_case
from .judge_labels import NVLINK, host_case

LATENCY = "5 us"
ALPHA = Fraction(seconds(LATENCY))
SMALL = size("64 kB")


def gpu_names(count: int) -> list[str]:
    return [f"gpu{i}" for i in range(count)]


def link_time(part: Fraction, rate: str, nbytes: int = NBYTES) -> Fraction:
    """How long that part of the gradient takes over a link."""
    return part * nbytes / Fraction(bandwidth(rate))


def levels(n: int) -> int:
    """⌈lg n⌉."""
    return (n - 1).bit_length()


def loop(rates: Sequence[str], latency: str = "0 s") -> Topology:
    """GPUs in a circle, with links between neighbours only; ``rates[i]`` is that between number i and the next."""
    gpus, links = gpu_names(len(rates)), []
    if len(gpus) == 2:  # there the next one is also the one before
        links = both_ways(*gpus, rates[0], latency, count=2)
    elif len(gpus) > 2:
        hops = zip(gpus, gpus[1:] + gpus[:1], rates, strict=True)
        links = [link for src, dst, rate in hops for link in both_ways(src, dst, rate, latency)]
    return Topology("loop", dict.fromkeys(gpus, "gpu"), links)


# Both ways round


def both_ways_case(n: int) -> PlanCase:
    gpus, part, bare = gpu_names(n), Fraction(n - 1, n), link_time(Fraction(n - 1, n), NVLINK)
    return PlanCase(
        f"n = {n}",
        (gpus,),
        tuple(gpus),
        loop([NVLINK] * n, LATENCY),
        steps=2 * (n - 1),
        in_all=dict.fromkeys(gpus, 2 * part),
        per_step=dict.fromkeys(gpus, part and Fraction(1, n) or Fraction(1)),
        bound=n // 2 * ALPHA + bare,
        allowed=2 * (n - 1) * ALPHA + bare,
        per_link=Fraction(1, n if n == 2 else 2 * n),  # two neighbours that are one get both halves
    )


def one_port_case(n: int) -> PlanCase:
    """The same GPUs, each with one port to a switch, which carries one link's rate each way."""
    gpus, bare = gpu_names(n), link_time(Fraction(2 * (n - 1), n), NVLINK)
    return PlanCase(
        f"n = {n}, switch",
        (gpus,),
        tuple(gpus),
        nvswitch(n, NVLINK, float(ALPHA) / 2, links=1),
        steps=2 * (n - 1),
        bound=ALPHA + bare,
        allowed=2 * (n - 1) * ALPHA + bare,
    )


def fewest_steps(n: int) -> Fraction:
    """Return the seconds that neighbors need: each key goes to its owner and back by the shortest ways."""
    return 2 * (n // 2) * ALPHA + link_time(Fraction(n - 1, n), NVLINK)


def both_ways_mistake(counts: Counts) -> str:
    n = len(counts.case.workers)
    if counts.over():
        uneven = len({counts.plan.share[key] for key in counts.keys}) > 1
        return "whole-tensors" if len(counts.keys) < n else "uneven" if uneven else "differs"
    place = counts.case.workers.index
    ways = {(place(dst) - place(src)) % n for step in counts.busy for src, dst in counts.between(step)}
    if not {1, n - 1} <= ways:
        return "one-way"
    return "one-after-another" if len(counts.busy) > counts.case.steps else "uneven"


# Few steps


def few_steps_case(n: int, nbytes: int = SMALL) -> PlanCase:
    gpus, host = gpu_names(n), nvswitch(n, latency=LATENCY)
    rate, latency = host.links[0].capacity, 2 * ALPHA
    whole, part = Fraction(nbytes) / Fraction(rate), Fraction(2 * (n - 1), n)
    return PlanCase(
        f"n = {n}" if nbytes == SMALL else f"n = {n}, {show_size(nbytes)}",
        (gpus,),
        tuple(gpus),
        host,
        steps=2 * levels(n),
        bound=levels(n) * latency + part * whole,
        allowed=2 * levels(n) * (latency + whole),
        nbytes=nbytes,
    )


def require_one_at_a_time(counts: Counts) -> None:
    """In a step every node sends to one other at most, and receives from one."""
    for step in counts.busy:
        pairs = counts.between(step)
        for node in counts.plan.nodes:
            for end, sentence in ((1, "receives-at-once"), (0, "sends-at-once")):
                others = sum(pair[end] == node for pair in pairs)
                if others > 1:
                    raise failure("at-once", sentence, counts.case, counts.trace, step=step, node=node, got=others)


def few_steps_mistake(counts: Counts) -> str:
    every = [send for step in counts.plan.steps for send in sends(step)]
    n, goals = len(counts.case.workers), {}
    for send in every:
        goals.setdefault(send.src, set()).add(send.dst)
    if n > 2 and all(len(goal) == 1 for goal in goals.values()):
        return "ring"
    up = [step for step in counts.busy if any(send.op == "add" for send in sends(counts.plan.steps[step - 1]))]
    if len(up) <= levels(n):
        return "slow-way-back"
    return "one-by-one" if all(len(counts.between(step)) == 1 for step in counts.busy) else "too-many-steps"


def times_beside_the_ring(trace: Trace) -> dict[str, str]:
    def takes(plan: Plan, nbytes: int) -> str:
        return time_text(cost.shared(plan, trace.topology, nbytes).duration)

    rival = ring(gpu_names(8))
    return {"ring": takes(rival, SMALL), "large": takes(trace.plan, NBYTES), "large_ring": takes(rival, NBYTES)}


# Unequal links


def unequal_case(chunks: int, *rates: str) -> PlanCase:
    n, gpus = len(rates), gpu_names(len(rates))
    bandwidths = {gpu: bandwidth(rate) for gpu, rate in zip(gpus, rates, strict=True)}
    slowest, *others = sorted(rates, key=bandwidth)
    chain = link_time(Fraction(1), others[0]) if n > 1 else Fraction(0)  # every cut of the chain passes the whole sum
    both = sum(Fraction(bandwidth(rate)) for rate in (slowest, *others[:1])) if n > 2 else 0
    # Behind the two slowest links lies what both sides want to know of each other; and all links have to move, in all,
    # what n nodes send.
    every = 2 * sum(Fraction(bandwidth(rate)) for rate in rates)
    bound = max(NBYTES / both, 2 * (n - 1) * NBYTES / every) if both else chain
    steps = chunks + 2 * n - 3 if n > 1 else 0
    topology = loop(rates) if n != 2 else Topology("loop", dict.fromkeys(gpus, "gpu"), both_ways(*gpus, rates[0]))
    label = f"n = {n}, c = {chunks}" + (f", {gpus[rates.index(slowest)]} {slowest}" if n > 2 else "")
    return PlanCase(
        label.replace(" GB", "\u00a0GB"),
        (gpus, bandwidths, chunks),
        tuple(gpus),
        topology,
        steps,
        in_all=dict.fromkeys(gpus, Fraction(2)),
        bound=bound,
        allowed=chain * Fraction(steps, chunks),
    )


def slowest_link(case: PlanCase) -> set[str]:
    """The two ends of the slowest link."""
    gpus, bandwidths, _ = case.arguments
    i = min(range(len(gpus)), key=lambda i: bandwidths[gpus[i]])
    return {gpus[i], gpus[(i + 1) % len(gpus)]}


def unequal_mistake(counts: Counts) -> str:
    steps = [sends(step) for step in counts.plan.steps]
    chunks, slow = counts.case.arguments[2], slowest_link(counts.case)
    if len(counts.case.workers) > 2 and any({send.src, send.dst} == slow for step in steps for send in step):
        return "over-the-slow-link"
    if counts.over():
        return "differs"
    if len(counts.keys) < chunks:
        return "chunks-ignored"
    if len({counts.plan.share[key] for key in counts.keys}) > 1:
        return "unequal-chunks"
    return "waits-too-long" if any(len({send.op for send in step}) == 2 for step in steps) else "not-overlapped"


def time_beside_a_ring(trace: Trace) -> dict[str, str]:
    return {"ring": time_text(cost.shared(bidirectional_ring(trace.plan.nodes), trace.topology, NBYTES).duration)}


EXERCISES = {
    "both-ways": Exercise(
        ("gpus",),
        (*map(both_ways_case, (4, 2, 3, 5, 8, 1)), both_ways_case(3).renamed("gpu6", "a", "gpu0"), one_port_case(4)),
        PlanJudge(both_ways_mistake),
        shows=("n = 4, switch",),
        fills=lambda trace: {"allowed": time_text(both_ways_case(4).allowed), "fewest": time_text(fewest_steps(4))},
    ),
    "few-steps": Exercise(
        ("gpus",),
        (
            *map(few_steps_case, (8, 3, 5, 2, 13, 1)),
            few_steps_case(8, NBYTES),
            few_steps_case(3).renamed("gpu6", "a", "gpu0"),
        ),
        PlanJudge(few_steps_mistake, require_one_at_a_time),
        shows=("n = 8",),
        fills=times_beside_the_ring,
    ),
    "labels": Exercise(
        ("table",),
        (
            host_case("n = 8", 2, 0, 1, 2, 3, 4, 5, 6, 7),
            host_case("n = 8 (2)", 2, 2, 0, 3, 1, 4, 7, 6, 5),
            host_case("n = 8 (3)", 2, 6, 4, 5, 7, 1, 3, 0, 2),
            host_case("n = 5", 1, 4, 0, 5, 3, 1),
            host_case("n = 5 (2)", 1, 4, 0, 1, 2, 5),  # the widest link next leads into a dead end
            host_case("n = 5 (3)", 1, 0, 7, 2, 3, 6),  # a way through all of them need not lead back
            host_case("n = 6", 1, 7, 1, 6, 0, 5, 2),  # both, from whichever GPU
            host_case("n = 4", 1, 0, 1, 2, 3),
            host_case("n = 3", 1, 0, 2, 3),
            host_case("n = 2", 2, 0, 3),
            host_case("n = 1", 1, 0),
        ),
        judge_labels.judge,
        shows=("n = 8", "n = 8 (2)", "n = 8 (3)"),
    ),
    "unequal-links": Exercise(
        ("gpus", "bandwidths", "chunks"),
        (
            unequal_case(16, "18 GB/s", "18 GB/s", "18 GB/s", "2 GB/s"),
            unequal_case(20, "18 GB/s", "4 GB/s", "18 GB/s", "18 GB/s", "18 GB/s"),
            unequal_case(8, "2 GB/s", "18 GB/s", "18 GB/s"),
            unequal_case(32, "18 GB/s", "18 GB/s", "18 GB/s", "18 GB/s", "18 GB/s", "3 GB/s", "18 GB/s", "18 GB/s"),
            unequal_case(12, "12 GB/s", "18 GB/s", "3 GB/s", "9 GB/s"),
            unequal_case(4, "18 GB/s", "18 GB/s"),
            unequal_case(4, "18 GB/s"),
            unequal_case(8, "2 GB/s", "18 GB/s", "18 GB/s").renamed("gpu6", "a", "gpu0"),
        ),
        PlanJudge(unequal_mistake),
        fills=time_beside_a_ring,
    ),
    "beyond-sums": Exercise(
        (), tuple(reduction_case(name, n) for n in (8, 3, 5, 2, 1) for name in PLANS), judge_beyond_sums.judge
    ),
}

"""Bandwidth as nccl-tests prints it: algbw, bytes per second of the buffer, and busbw, that of the busiest link."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from d2lps.messages import text
from d2lps.plan.lazy import Cells, Product
from d2lps.plan.plan import Plan
from d2lps.plan.share import Share
from d2lps.trace import Trace, TraceError
from d2lps.units import Bandwidth, show_size


@dataclass(frozen=True)
class BusBandwidth:
    """The two bandwidths of a collective: see :func:`bandwidth`.

    Args:
        nbytes: S: the bytes of the largest buffer of one node, before or after.
        seconds: The duration.
        factor: The least bytes that the busiest link must carry, as a part of S.
    """

    nbytes: "int | Fraction"
    seconds: float
    factor: Fraction

    @property
    def algbw(self) -> Bandwidth:
        """Bytes per second of the buffer: S / t."""
        return Bandwidth(float(self.nbytes) / self.seconds)

    @property
    def busbw(self) -> Bandwidth:
        """Bytes per second of the busiest link, if the algorithm is as good as possible: factor · S / t."""
        return Bandwidth(float(self.nbytes * self.factor) / self.seconds)

    def __str__(self) -> str:
        size = show_size(float(self.nbytes))
        return text("bandwidth.line", size=size, algbw=self.algbw, factor=self.factor, busbw=self.busbw)


def bandwidth(trace: Trace) -> BusBandwidth:
    """Return the algorithm and the bus bandwidth of a collective, predicted or measured.

    algbw is S/t. busbw is algbw times a factor, so that it can be compared with the speed of a link, whatever the
    collective and the number of nodes. The factor follows from what nodes hold before and want after: to add up a key
    that h nodes hold takes h − 1 messages, and to hand it to all w that want it as many more, and each of the n nodes
    sends and receives at one link's speed. So an all-reduce has 2(n−1)/n; all-gather, reduce-scatter, all-to-all,
    gather and scatter have (n−1)/n; broadcast and reduce have 1.

    Args:
        trace: Of a plan, with a duration above 0.

    Returns:
        With ``algbw`` and ``busbw`` in bytes per second, one way.

    Raises:
        TraceError: For the trace of a schedule, and for one that takes no time or sends nothing.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.

    Example:
        >>> from d2lps import cost, nvswitch, ring
        >>> trace = cost.shared(ring([f"gpu{i}" for i in range(8)]), nvswitch(8, links=18), "1 GB")
        >>> print(bandwidth(trace))
        1 GB: 257.1 GB/s of the buffer × 7/4 = 450 GB/s on the bus
    """
    plan = trace.plan
    if not isinstance(plan, Plan) or not trace.duration or not trace.nbytes:
        raise TraceError(text("bandwidth.nothing"))
    least, largest = _moved(plan)
    if not least:
        raise TraceError(text("bandwidth.nothing"))
    size = trace.nbytes * largest
    return BusBandwidth(int(size) if size.denominator == 1 else size, trace.duration, least / largest)


def _moved(plan: Plan) -> tuple[Fraction, Fraction]:
    """Return what the busiest link must carry at least, and the largest buffer of a node, as parts of all bytes."""
    if isinstance(plan.holds, Cells) and isinstance(plan.wants, Cells):
        n = len(plan.nodes)  # each node has n of the n² parts, and all but one of them go to another
        return Fraction(n - 1, n * n), Fraction(1, n)
    have, want = Placed.of(plan.holds), Placed.of(plan.wants)
    total = Fraction(0)  # of all messages that are needed
    for key, part in plan.share.items():
        if wanting := want.count(key):
            total += part * (have.count(key) - 1 + wanting - have.meets(want, key))
    sides = [_sums(have, want, plan.share), _sums(want, have, plan.share)]
    members = {node for whole, _ in sides for node in whole}  # switches and servers neither hold nor want anything
    busiest = [part for _, crossing in sides for part in crossing.values()]
    least = max([total / max(len(members), 1), *busiest], default=Fraction(0))
    return least, max([part for whole, _ in sides for part in whole.values()], default=Fraction(0))


class Placed(NamedTuple):
    """Which nodes have which keys: those that have all keys, and for each key the others. One of both is empty."""

    everywhere: frozenset[str]
    own: Mapping[str, set[str]]

    @classmethod
    def of(cls, pairs: Sequence[tuple]) -> "Placed":
        if isinstance(pairs, Product):
            return cls(frozenset(pairs.nodes), {})
        own = defaultdict(set)
        for node, key, *_ in pairs:
            own[key].add(node)
        return cls(frozenset(), dict(own))

    def nodes(self, key: str) -> Collection[str]:
        return self.everywhere or self.own.get(key, ())

    def count(self, key: str) -> int:
        return len(self.nodes(key))

    def meets(self, other: "Placed", key: str) -> bool:
        """Return True if a node has the key in both placements."""
        few, many = sorted((self.nodes(key), other.nodes(key)), key=len)
        return any(node in many for node in few)


def _sums(side: Placed, other: Placed, share: Share) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Return node → the parts of its keys, and of those that some other node has on the other side."""
    whole: dict[str, Fraction] = defaultdict(Fraction)
    crossing: dict[str, Fraction] = defaultdict(Fraction)
    if side.everywhere:
        whole |= dict.fromkeys(side.everywhere, sum(share.values(), Fraction(0)))
        crossing |= dict.fromkeys(
            side.everywhere, sum((part for key, part in share.items() if other.count(key)), Fraction(0))
        )
    for key, part in share.items():
        for node in side.own.get(key, ()):
            whole[node] += part
            crossing[node] += part if other.count(key) else 0
        if other.count(key) == 1 and (node := next(iter(other.nodes(key)))) in side.nodes(key):
            crossing[node] -= part
    return whole, crossing

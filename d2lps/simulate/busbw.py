"""Bandwidth as nccl-tests prints it: algbw, bytes per second of the buffer, and busbw, that of the busiest link."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.trace import Trace, TraceError
from d2lps.units import Bandwidth, show_size


@dataclass(frozen=True)
class BusBandwidth:
    """The two bandwidths of a collective: see :func:`bandwidth`.

    Parameters
    ----------
    nbytes : int or Fraction
        S: the bytes of the largest buffer of one node, before or after.
    seconds : float
        The duration.
    factor : Fraction
        The least bytes that the busiest link must carry, as a part of S.
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

    Parameters
    ----------
    trace : Trace
        Of a plan, with a duration above 0.

    Returns
    -------
    BusBandwidth
        With ``algbw`` and ``busbw`` in bytes per second, one way.

    Raises
    ------
    TraceError
        For the trace of a schedule, and for one that takes no time or sends nothing.

    References
    ----------
    NVIDIA nccl-tests, doc/PERFORMANCE.md.

    Examples
    --------
    >>> from d2lps import cost, nvswitch, ring
    >>> trace = cost.shared(ring([f"gpu{i}" for i in range(8)]), nvswitch(8, links=18), "1 GB")
    >>> print(bandwidth(trace))
    1 GB: 257.1 GB/s of the buffer × 7/4 = 450 GB/s on the bus
    """
    plan = trace.plan
    if not isinstance(plan, Plan) or not trace.duration or not trace.nbytes:
        raise TraceError(text("bandwidth.nothing"))
    holders, wanting = defaultdict(set), defaultdict(set)
    for node, key in plan.holds:
        holders[key].add(node)
    for node, key, _ in plan.wants:
        wanting[key].add(node)
    held, wanted, sent, received = (defaultdict(Fraction) for _ in range(4))
    total = Fraction(0)  # of all messages that are needed
    for key, part in plan.share.items():
        have, want = holders[key], wanting[key]
        if want:
            total += part * (len(have) - 1 + len(want) - bool(have & want))
        for node in have:
            held[node] += part
            sent[node] += part * bool(want - {node})
        for node in want:
            wanted[node] += part
            received[node] += part * bool(have - {node})
    largest = max([*held.values(), *wanted.values()], default=Fraction(0))
    members = len({*held, *wanted})  # switches and servers neither hold nor want anything
    least = max([total / max(members, 1), *sent.values(), *received.values()], default=Fraction(0))
    if not least:
        raise TraceError(text("bandwidth.nothing"))
    size = trace.nbytes * largest
    return BusBandwidth(int(size) if size.denominator == 1 else size, trace.duration, least / largest)

"""The parts of a topology: links, the kinds of nodes, and the limits of a node itself."""

from dataclasses import dataclass

from d2lps import units
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.units import Bandwidth

KINDS = ("gpu", "cpu", "memory", "switch", "machine")
FORWARDING = ("cpu", "memory", "switch")

PCIE = "16 GB/s"  # version 3.0 with 16 lanes: 15.75 GB/s before overheads
NVLINK = "25 GB/s"  # versions 2, 3 and 4: each link, each direction
BETWEEN_CPUS = "19.2 GB/s"  # assumed: one QPI link of 9.6 GT/s with 2 bytes each, one way
# Bytes per second of one lane. Of the bits transferred, 8 of 10 are data in versions 1 and 2, then 128 of 130, 242 of
# 256.
LANES = {1: 2.5e9 / 10, 2: 5e9 / 10, 3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130}
LANES |= {6: 64e9 / 8 * 242 / 256}


class TopologyError(Brief, ValueError):
    """An inconsistent topology, an unknown node, or a missing route."""


@dataclass(frozen=True)
class Link:
    """A directed link from ``src`` to ``dst``, one way.

    Args:
        src, dst: The nodes that it joins.
        bandwidth: Bytes per second of one of the ``count`` parallel links, such as ``"16 GB/s"``.
        latency: Seconds (or ``"5 us"``) from the last byte sent to the last byte received.
        count: The number of parallel links.

    Raises:
        UnitError, TopologyError: For a bad bandwidth or latency, and for a count below 1.

    Example:
        >>> Link("gpu0", "gpu1", "25 GB/s", latency="5 us", count=2).capacity
        50000000000.0
    """

    src: str
    dst: str
    bandwidth: Bandwidth
    latency: float = 0.0
    count: int = 1

    def __post_init__(self):
        object.__setattr__(self, "bandwidth", units.bandwidth(self.bandwidth))
        object.__setattr__(self, "latency", units.seconds(self.latency))
        if not units.is_count(self.count, least=1):
            raise TopologyError(text("topology.count", src=self.src, dst=self.dst, count=repr(self.count)))

    @property
    def capacity(self) -> float:
        """Bytes per second of all parallel links together."""
        return self.bandwidth * self.count


@dataclass(frozen=True)
class Resource:
    """The limits of a node itself. None means no limit and no cost.

    Args:
        through: Bytes per second of all messages that pass through the node on their way between others.
        adding: Bytes per second at which it adds the values that pass through it or arrive at its port.
        overhead: Least seconds (or ``"20 us"``) of its own time for each message through it, however small.
        port: Bytes per second that it sends and receives together, such as a process with one thread.
        computing: FLOP per second at which it does the tasks of a schedule.
        memory: Bytes that fit on it, such as ``"80 GB"``.

    Raises:
        UnitError: For a bad bandwidth, time, rate or size.
    """

    through: Bandwidth | None = None
    adding: Bandwidth | None = None
    overhead: float | None = None
    port: Bandwidth | None = None
    computing: float | None = None
    memory: int | None = None

    def __post_init__(self):
        read = {"overhead": units.seconds, "computing": units.flops, "memory": units.meant_size}
        for name, value in vars(self).items():
            if value is not None:
                object.__setattr__(self, name, read.get(name, units.bandwidth)(value))


def require_counts(least: int = 1, **counts: object) -> None:
    """Raise TopologyError, which names the count, unless all are whole numbers of ``least`` or more."""
    for name, count in counts.items():
        if not units.is_count(count, least):
            raise TopologyError(text("topology.hosts", what=name, count=repr(count), least=least))


def both_ways(a: str, b: str, bandwidth: "str | Bandwidth", latency: "float | str" = 0.0, count: int = 1) -> list[Link]:
    """Return a full-duplex link: ``bandwidth`` in each of the two directions.

    Args:
        a, b: The nodes that it joins.
        bandwidth, latency, count: As for :class:`Link`, the same in both directions.

    Returns:
        The link from a to b, and the one from b to a.
    """
    rate, seconds = units.bandwidth(bandwidth), units.seconds(latency)
    return [Link(a, b, rate, seconds, count), Link(b, a, rate, seconds, count)]


def kind_of(node: str) -> str:
    """Return the kind of node that a name suggests: ``gpu3`` is a GPU, ``cpu`` a CPU, any other name a machine.

    Args:
        node: Its name.

    Returns:
        ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` or ``"machine"``.
    """
    letters = node.rstrip("0123456789")
    return letters if letters in KINDS else "machine"

"""What a topology is made of: links, and nodes of a kind that may themselves be a limit."""

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


class TopologyError(Brief, ValueError):
    """A topology that does not fit: a node that is not there, a route that does not exist."""


@dataclass(frozen=True)
class Link:
    """A directed link: what flows from ``src`` to ``dst``, one way.

    Parameters
    ----------
    src, dst : str
        The nodes that it joins.
    bandwidth : str or Bandwidth
        Bytes per second of one of the ``count`` parallel links, such as ``"16 GB/s"``.
    latency : float or str
        Seconds (or ``"5 us"``) from the last byte sent to the last byte received.
    count : int
        How many parallel links there are.

    Raises
    ------
    UnitError, TopologyError
        For a bandwidth or a latency that is none, and for a count below 1.

    Examples
    --------
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
    """What a node can do itself, where that is limited. What is None limits nothing, and takes no time.

    Parameters
    ----------
    through : str or Bandwidth, optional
        Bytes per second of all that passes through the node on its way between others.
    adding : str or Bandwidth, optional
        Bytes per second at which it adds what is to be added: what passes through it, or arrives at its port.
    overhead : float or str, optional
        Seconds (or ``"20 us"``) of its own time that each message through it takes at least, however small it is.
    port : str or Bandwidth, optional
        Bytes per second that it sends and receives, both together, such as a process with one thread.

    Raises
    ------
    UnitError
        For what is no bandwidth, or no time.
    """

    through: Bandwidth | None = None
    adding: Bandwidth | None = None
    overhead: float | None = None
    port: Bandwidth | None = None

    def __post_init__(self):
        for name, value in vars(self).items():
            if value is not None:
                read = units.seconds if name == "overhead" else units.bandwidth
                object.__setattr__(self, name, read(value))


def both_ways(a: str, b: str, bandwidth: "str | Bandwidth", latency: "float | str" = 0.0, count: int = 1) -> list[Link]:
    """A full-duplex link: ``bandwidth`` in each of the two directions.

    Parameters
    ----------
    a, b : str
        The nodes that it joins.
    bandwidth, latency, count
        Of either direction, as for :class:`Link`.

    Returns
    -------
    list of Link
        From a to b, and from b to a.
    """
    return [Link(a, b, bandwidth, latency, count), Link(b, a, bandwidth, latency, count)]


def kind_of(node: str) -> str:
    """The kind that a name stands for: ``gpu3`` is a GPU, ``cpu`` a CPU, anything else a machine.

    Parameters
    ----------
    node : str
        Its name.

    Returns
    -------
    str
        One of ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` and ``"machine"``.
    """
    letters = node.rstrip("0123456789")
    return letters if letters in KINDS else "machine"

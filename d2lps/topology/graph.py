"""Topologies: nodes of different kinds, joined by directed links.

>>> from d2lps import pcie_server
>>> server = pcie_server(gpus=4, bandwidth="16 GB/s")
>>> [f"{link.src}→{link.dst}" for link in server.route("gpu1", "gpu0")]
['gpu1→switch', 'switch→gpu0']
>>> server.route("gpu1", "gpu0")[0].bandwidth
bandwidth('16 GB/s')

Switches and processors forward; GPUs never do: on an NVLink mesh a plain shortest path would go through a
third GPU, which no hardware does by itself.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from d2lps import units
from d2lps.plan.parse import names
from d2lps.units import Bandwidth

KINDS = ("gpu", "cpu", "memory", "switch", "machine")
FORWARDING = ("cpu", "memory", "switch")


class TopologyError(ValueError):
    """A topology that does not fit: a node that is not there, a route that does not exist."""


@dataclass(frozen=True)
class Link:
    """A directed link: what flows from ``src`` to ``dst``, one way.

    bandwidth
        bytes per second of one of the ``count`` parallel links: ``"16 GB/s"``.
    latency
        seconds (or ``"5 us"``) from the last byte sent to the last byte received.
    """

    src: str
    dst: str
    bandwidth: Bandwidth
    latency: float = 0.0
    count: int = 1

    def __post_init__(self):
        object.__setattr__(self, "bandwidth", units.bandwidth(self.bandwidth))
        object.__setattr__(self, "latency", units.seconds(self.latency))
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise TopologyError(f"link {self.src}→{self.dst} has count {self.count!r}: a whole number, 1 or more")

    @property
    def capacity(self) -> float:
        """Bytes per second of all parallel links together."""
        return self.bandwidth * self.count


@dataclass(frozen=True)
class Topology:
    """Nodes, each of a kind, and the directed links between them. Equal by content, and hashable.

    kinds
        node → ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` or ``"machine"``; the order is the drawing's.
    links
        :class:`Link`; between two nodes at most one in each direction (parallel ones are its ``count``).
    through
        node → bytes per second of all that passes through it on its way between others, for nodes that are
        a bottleneck themselves.
    adding
        node of ``through`` → bytes per second at which it adds what passes through it, node of ``ports`` → those at
        which it adds what arrives at it, for messages that are added; adding costs nothing where it is left out.
    overhead
        node of ``through`` → seconds (or ``"20 us"``) of its own time that each message through it takes at least,
        however small it is.
    ports
        node → bytes per second that it sends and receives, both together, for nodes that do the one or the other,
        such as a process with one thread.
    """

    name: str
    kinds: Mapping[str, str]
    links: tuple[Link, ...]
    through: Mapping[str, Bandwidth] = field(default_factory=dict)
    adding: Mapping[str, Bandwidth] = field(default_factory=dict)
    overhead: Mapping[str, float] = field(default_factory=dict)
    ports: Mapping[str, Bandwidth] = field(default_factory=dict)

    def __post_init__(self):
        if not self.kinds:
            raise TopologyError(f"{self.name} has no node: a topology has 1 or more")
        names(self.kinds)
        object.__setattr__(self, "kinds", dict(self.kinds))
        object.__setattr__(self, "links", tuple(self.links))
        for own, read in (
            ("through", units.bandwidth),
            ("adding", units.bandwidth),
            ("overhead", units.seconds),
            ("ports", units.bandwidth),
        ):
            object.__setattr__(self, own, {node: read(value) for node, value in getattr(self, own).items()})
        for node, kind in self.kinds.items():
            if kind not in KINDS:
                raise TopologyError(f"{node} is of kind {kind!r}: the kinds are {', '.join(KINDS)}")
        seen = set()
        for link in self.links:
            self.known(link.src)
            self.known(link.dst)
            if link.src == link.dst:
                raise TopologyError(f"{link.src} is linked to itself")
            if (link.src, link.dst) in seen:
                raise TopologyError(f"two links {link.src}→{link.dst}: write one with count=2")
            seen.add((link.src, link.dst))
        for node in (*self.through, *self.adding, *self.overhead, *self.ports):
            self.known(node)
        for where, given in ((self.through.keys() | self.ports, self.adding), (self.through, self.overhead)):
            for node in given:
                if node not in where:
                    raise TopologyError(
                        f"{node} takes time for what passes, but nothing says how fast it passes: give its bandwidth "
                        "in through, Bandwidth('inf') where nothing limits it"
                    )

    def __hash__(self):
        return hash((self.name, self.links))  # what is equal by content has these in common

    @classmethod
    def from_nvidia_smi(
        cls,
        text: str,
        nvlink: "str | Bandwidth" = "25 GB/s",
        pcie: "str | Bandwidth | Mapping[str, str | Bandwidth]" = "16 GB/s",
        between_cpus: "str | Bandwidth" = "19.2 GB/s",
        latency: "float | str" = 0.0,
    ) -> "Topology":
        """The host whose ``nvidia-smi topo -m`` printed ``text``: see :func:`d2lps.topology.nvidia.read`.

        nvlink, pcie, between_cpus
            bytes per second, one way, of one NVLink, of each PCIe link (or GPU → that of its own) and of the link
            between two CPUs. The table does not tell them: the defaults are NVLink 2 to 4, PCIe 3.0 with 16 lanes,
            and, assumed, one QPI link.
        latency
            seconds of each link.

        Raises TopologyError, which names the line, where the text is no such table.

        >>> text = "        GPU0  GPU1  CPU Affinity\\nGPU0     X    NV4   0-15\\nGPU1    NV4    X    0-15"
        >>> pair = Topology.from_nvidia_smi(text)
        >>> print(pair.kinds, pair.route("gpu0", "gpu1")[0].count)
        {'gpu0': 'gpu', 'gpu1': 'gpu', 'cpu': 'cpu'} 4
        """
        from d2lps.topology.nvidia import read

        return read(text, nvlink, pcie, between_cpus, latency)

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """The links from ``src`` to ``dst``, through forwarding nodes only.

        Of several ways it is the widest, since a message takes all its links at once; of equally wide ones
        that of least latency, then of fewest links. Raises TopologyError where there is none.
        """
        self.known(src)
        self.known(dst)
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def resources(self, src: str, dst: str) -> tuple["Link | str", ...]:
        """What a message from ``src`` to ``dst`` occupies: its links, the limited nodes on its way, its ends' ports."""
        route = self.route(src, dst)
        passed = [link.dst for link in route[:-1] if link.dst in self.through]
        return (*route, *passed, *(end for end in (src, dst) if end in self.ports))

    def capacity(self, resource: "Link | str") -> float:
        """Bytes per second of a link or of a limited node."""
        return resource.capacity if isinstance(resource, Link) else (self.ports | self.through)[resource]

    def known(self, node: str) -> None:
        """Raises TopologyError if there is no such node here."""
        if node not in self.kinds:
            raise TopologyError(f"there is no node {node!r} on {self.name} (nodes: {' '.join(self.kinds)})")

    @cached_property
    def _routes(self) -> dict[tuple[str, str], tuple[Link, ...]]:
        return {}

    @cached_property
    def _by_ends(self) -> dict[tuple[str | None, str | None], list[Link]]:
        """(src, dst) → links, all forwarding nodes taken together as None."""
        found = defaultdict(list)
        for link in self.links:
            found[self._end(link.src), self._end(link.dst)].append(link)
        return found

    def _end(self, node: str) -> str | None:
        return None if self.kinds[node] in FORWARDING else node

    def _find(self, src: str, dst: str) -> tuple[Link, ...]:
        import networkx

        if src == dst:
            return ()
        # Nodes that do not forward are passed by, and may be many: only links of these two and of the others count.
        a, b = self._end(src), self._end(dst)
        pairs = dict.fromkeys([(a, b), (a, None), (None, None), (None, b)])
        links = [link for pair in pairs for link in self._by_ends.get(pair, ())]
        for width in sorted({link.capacity for link in links}, reverse=True):
            wide = networkx.DiGraph()
            wide.add_nodes_from([src, dst])
            wide.add_edges_from((link.src, link.dst, {"link": link}) for link in links if link.capacity >= width)
            if networkx.has_path(wide, src, dst):
                path = networkx.shortest_path(wide, src, dst, weight=_longer)
                return tuple(wide.edges[hop]["link"] for hop in pairwise(path))
        raise TopologyError(
            f"there is no route from {src} to {dst} on {self.name}: only nodes of kind "
            f"{', '.join(FORWARDING)} forward, and none of them joins the two"
        )


def _longer(a: str, b: str, edge: Mapping[str, Link]) -> Fraction:
    # Exactly the latency, and of ways of equal latency the one of fewest links: no real one is as small as this.
    return Fraction(edge["link"].latency) + Fraction(1, 10**24)


def both_ways(a: str, b: str, bandwidth: "str | Bandwidth", latency: "float | str" = 0.0, count: int = 1) -> list[Link]:
    """A full-duplex link: ``bandwidth`` in each of the two directions."""
    return [Link(a, b, bandwidth, latency, count), Link(b, a, bandwidth, latency, count)]


def kind_of(node: str) -> str:
    """The kind that a name stands for: ``gpu3`` is a GPU, ``cpu`` a CPU, anything else a machine."""
    letters = node.rstrip("0123456789")
    return letters if letters in KINDS else "machine"

"""Topologies: nodes of different kinds, joined by directed links.

>>> server = pcie_server(gpus=4, bandwidth="16 GB/s")
>>> [f"{link.src}→{link.dst}" for link in server.route("gpu1", "gpu0")]
['gpu1→switch', 'switch→gpu0']
>>> server.route("gpu1", "gpu0")[0].bandwidth
bandwidth('16 GB/s')

Switches and processors forward; GPUs never do: on an NVLink mesh a plain shortest path would go through a
third GPU, which no hardware does by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from d2lps import units
from d2lps.reading import names
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
    """Nodes, each of a kind, and the directed links between them.

    kinds
        node → ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` or ``"machine"``; the order is the drawing's.
    links
        :class:`Link`; between two nodes at most one in each direction (parallel ones are its ``count``).
    through
        node → bytes per second of all that passes through it on its way between others, for nodes that are
        a bottleneck themselves.
    """

    name: str
    kinds: Mapping[str, str]
    links: tuple[Link, ...]
    through: Mapping[str, Bandwidth] = field(default_factory=dict)

    def __post_init__(self):
        if not self.kinds:
            raise TopologyError(f"{self.name} has no node: a topology has 1 or more")
        names(self.kinds)
        object.__setattr__(self, "kinds", dict(self.kinds))
        object.__setattr__(self, "links", tuple(self.links))
        limits = {node: units.bandwidth(rate) for node, rate in self.through.items()}
        object.__setattr__(self, "through", limits)
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
        for node in limits:
            self.known(node)

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
        """What a message from ``src`` to ``dst`` occupies: its links, and the limited nodes it passes through."""
        route = self.route(src, dst)
        passed = [link.dst for link in route[:-1] if link.dst in self.through]
        return (*route, *passed)

    def capacity(self, resource: "Link | str") -> float:
        """Bytes per second of a link or of a limited node."""
        return resource.capacity if isinstance(resource, Link) else self.through[resource]

    def known(self, node: str) -> None:
        """Raises TopologyError if there is no such node here."""
        if node not in self.kinds:
            raise TopologyError(f"there is no node {node!r} on {self.name} (nodes: {' '.join(self.kinds)})")

    @cached_property
    def _routes(self) -> dict[tuple[str, str], tuple[Link, ...]]:
        return {}

    @cached_property
    def _graph(self):
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.kinds)
        for link in self.links:
            graph.add_edge(link.src, link.dst, link=link)
        return graph

    def _find(self, src: str, dst: str) -> tuple[Link, ...]:
        import networkx

        def passes(node: str) -> bool:
            return node in (src, dst) or self.kinds[node] in FORWARDING

        links = self._graph.edges
        for width in sorted({link.capacity for link in self.links}, reverse=True):
            wide = networkx.subgraph_view(
                self._graph, filter_node=passes, filter_edge=lambda a, b, w=width: links[a, b]["link"].capacity >= w
            )
            if networkx.has_path(wide, src, dst):
                # The tiny term decides between ways of equal latency, and is lost beside any real one.
                path = networkx.shortest_path(
                    wide, src, dst, weight=lambda a, b, _: links[a, b]["link"].latency + 1e-18
                )
                return tuple(links[hop]["link"] for hop in zip(path, path[1:], strict=False))
        raise TopologyError(
            f"there is no route from {src} to {dst} on {self.name}: only nodes of kind "
            f"{', '.join(FORWARDING)} forward, and none of them joins the two"
        )


def both_ways(a: str, b: str, bandwidth: "str | Bandwidth", latency: "float | str" = 0.0, count: int = 1) -> list[Link]:
    """A full-duplex link: ``bandwidth`` in each of the two directions."""
    return [Link(a, b, bandwidth, latency, count), Link(b, a, bandwidth, latency, count)]


def pcie_server(
    gpus: int = 4,
    bandwidth: "str | Bandwidth | Sequence[str | Bandwidth]" = "16 GB/s",
    latency: "float | str" = 0.0,
) -> Topology:
    """GPUs and one CPU on a PCIe switch, every node with a link of its own of ``bandwidth`` each way.

    A sequence of bandwidths gives each GPU its own and, as the last, the CPU's.
    Nodes: ``gpu0`` …, ``switch``, ``cpu``. PCIe 3.0 with 16 lanes is taken as 16 GB/s (15.75 before overheads).
    """
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise TopologyError(f"gpus = {gpus!r}: a server has a whole number of GPUs, 1 or more")
    ends = [*(f"gpu{i}" for i in range(gpus)), "cpu"]
    several = isinstance(bandwidth, Sequence) and not isinstance(bandwidth, str)
    rates = list(bandwidth) if several else [bandwidth] * len(ends)
    if len(rates) != len(ends):
        raise TopologyError(f"{len(rates)} bandwidths for {len(ends)} links: one for each GPU and one for the CPU")
    kinds = {**dict.fromkeys(ends[:-1], "gpu"), "switch": "switch", "cpu": "cpu"}
    links = [link for end, rate in zip(ends, rates, strict=True) for link in both_ways(end, "switch", rate, latency)]
    return Topology("pcie_server", kinds, links)


def one_memory(nodes: Iterable[str], bandwidth: "str | Bandwidth") -> Topology:
    """Devices that really share one memory or one processor: every route crosses the same ``bandwidth``.

    It is the honest model of a laptop on which several devices are played: whatever moves, moves through
    the one memory.
    """
    nodes = names(nodes)
    if "memory" in nodes:
        raise TopologyError("a node is named 'memory', which is what all nodes share here: name it otherwise")
    kinds = {node: kind_of(node) for node in nodes} | {"memory": "memory"}
    links = [link for node in nodes for link in both_ways(node, "memory", Bandwidth("inf"))]
    return Topology("one_memory", kinds, links, {"memory": units.bandwidth(bandwidth)})


def kind_of(node: str) -> str:
    """The kind that a name stands for: ``gpu3`` is a GPU, ``cpu`` a CPU, anything else a machine."""
    letters = node.rstrip("0123456789")
    return letters if letters in KINDS else "machine"

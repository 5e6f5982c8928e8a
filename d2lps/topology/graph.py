"""The Topology: nodes of different kinds, joined by directed links, and the routes between them.

>>> from d2lps import pcie_server
>>> server = pcie_server(gpus=4, bandwidth="16 GB/s")
>>> [f"{link.src}→{link.dst}" for link in server.route("gpu1", "gpu0")]
['gpu1→switch', 'switch→gpu0']
>>> server.route("gpu1", "gpu0")[0].bandwidth
bandwidth('16 GB/s')

Switches and processors forward messages, GPUs never do: on an NVLink mesh a plain shortest path would go through a
third GPU, but no hardware forwards there by itself.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from d2lps.messages import text
from d2lps.plan.parse import names
from d2lps.topology import amd, nccl, nvidia
from d2lps.topology.links import BETWEEN_CPUS, FORWARDING, KINDS, PCIE, Link, Resource, TopologyError
from d2lps.units import Bandwidth


@dataclass(frozen=True, init=False, repr=False)
class Topology:
    """Nodes, each of a kind, and the directed links between them. Equal by content, and hashable.

    Args:
        name: The name in pictures and errors.
        kinds: Node → ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` or ``"machine"``, in the order of the drawing.
        links: At most one from a node to another (parallel ones are its ``count``).
        through, adding, overhead, ports, computing, memory: Node → the limit with that name in
            :class:`~d2lps.topology.Resource` (``ports``: its ``port``).
        limits: Node → all its limits at once, for nodes that are a bottleneck.
        nics: GPU → the network card that it uses, which :func:`d2lps.rails` joins to those of other hosts. It changes
            nothing inside the host, and is not compared.

    Raises:
        TopologyError, PlanError, UnitError: For nodes, kinds, links and limits that do not fit together, names that
            cannot be nodes, and bad units.

    Example:
        >>> host = Topology("host", {"a": "gpu", "m": "cpu"}, [Link("a", "m", "16 GB/s")], through={"m": "10 GB/s"})
        >>> host.limits["m"].through
        bandwidth('10 GB/s')
    """

    name: str
    kinds: Mapping[str, str]
    links: tuple[Link, ...]
    limits: Mapping[str, Resource]
    nics: Mapping[str, str] = field(compare=False)
    _leaving: dict[str, list[Link]] = field(init=False, compare=False)
    _arriving: dict[str, list[Link]] = field(init=False, compare=False)
    _widths: list[float] = field(init=False, compare=False)  # of links between forwarding nodes, the widest first
    _routes: dict[tuple[str, str], tuple[Link, ...]] = field(init=False, compare=False)
    _trees: dict[tuple[str, float], dict[str, Link]] = field(init=False, compare=False)

    def __init__(
        self,
        name: str,
        kinds: Mapping[str, str],
        links: Iterable[Link],
        through: "Mapping[str, str | Bandwidth] | None" = None,
        adding: "Mapping[str, str | Bandwidth] | None" = None,
        overhead: "Mapping[str, float | str] | None" = None,
        ports: "Mapping[str, str | Bandwidth] | None" = None,
        limits: Mapping[str, Resource] | None = None,
        computing: Mapping[str, float] | None = None,
        memory: "Mapping[str, str | int] | None" = None,
        nics: Mapping[str, str] | None = None,
    ):
        if not kinds:
            raise TopologyError(text("topology.no-nodes", name=name))
        names(kinds)
        limits = dict(limits or {})
        given: dict[str, Mapping[str, Any] | None] = {"through": through, "adding": adding, "overhead": overhead}
        given |= {"port": ports, "computing": computing, "memory": memory}
        for limit, values in given.items():
            for node, value in (values or {}).items():
                limits[node] = replace(limits.get(node, Resource()), **{limit: value})
        content = {
            "name": name,
            "kinds": dict(kinds),
            "links": tuple(links),
            "limits": limits,
            "nics": dict(nics or {}),
        }
        vars(self).update(content)
        self._require_sound()
        # Made here although seldom needed, because threads share a topology.
        leaving: dict[str, list[Link]] = defaultdict(list)
        arriving: dict[str, list[Link]] = defaultdict(list)
        for link in self.links:
            leaving[link.src].append(link)
            arriving[link.dst].append(link)
        inner = [link for link in self.links if self.forwards(link.src) and self.forwards(link.dst)]
        widths = sorted({link.capacity for link in inner}, reverse=True)
        vars(self).update(_leaving=dict(leaving), _arriving=dict(arriving), _widths=widths, _routes={}, _trees={})

    def _require_sound(self) -> None:
        for node, kind in self.kinds.items():
            if kind not in KINDS:
                raise TopologyError(text("topology.kind", node=node, kind=repr(kind), kinds=", ".join(KINDS)))
        seen = set()
        for link in self.links:
            self.require_node(link.src)
            self.require_node(link.dst)
            if link.src == link.dst:
                raise TopologyError(text("topology.to-itself", node=link.src))
            if (link.src, link.dst) in seen:
                raise TopologyError(text("topology.two-links", src=link.src, dst=link.dst))
            seen.add((link.src, link.dst))
        for node, limit in self.limits.items():
            self.require_node(node)
            if limit.through is None and (limit.overhead is not None or (limit.adding and limit.port is None)):
                raise TopologyError(text("topology.no-speed", node=node))
        for node in self.nics:
            self.require_node(node)

    def __hash__(self):
        return hash((self.name, self.links))  # equal topologies have equal names and links

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(self.kinds.values()).items())
        return f"<Topology: {self.name}, {kinds}, {len(self.links)} links>"

    @classmethod
    def from_nvidia_smi(
        cls,
        text: str,
        nvlink: "str | Bandwidth | None" = None,
        pcie: "str | Bandwidth | Mapping[str, str | Bandwidth]" = PCIE,
        between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
        latency: "float | str" = 0.0,
    ) -> "Topology":
        """Return the host on which ``nvidia-smi topo -m`` printed ``text``.

        * ``NV4``: four links of ``nvlink`` between two GPUs. If a GPU would need more in all than its model has (18 if
          the text does not name it), the GPUs meet at NVSwitch, each by the largest number in its row, as in
          :func:`d2lps.nvswitch`.
        * ``PIX``, ``PXB``: both devices are on one PCIe switch (drawn as one, even if there are a few in a row).
        * ``PHB``, ``NODE``: both are on one CPU; a GPU that shares no switch is linked to its CPU.
        * ``SYS``: both are on one CPU if their CPU affinities are equal (without those: their NUMA affinities), else on
          two. Each pair of CPUs is linked by ``between_cpus``.

        Network cards show the PCIe switches that NVLinks hide. ``nics`` maps each GPU to its closest card, by the name
        in the legend if there is one; ``rails(hosts=16, gpus=topology)`` joins 16 such hosts.

        Args:
            text: The complete output; that of ``nvidia-smi nvlink -s`` or ``nvidia-smi -L`` may follow.
            nvlink, pcie, between_cpus: Bytes per second, one way, of one NVLink, of each PCIe link from a GPU or switch
                upwards, and of the link between two CPUs. The table does not contain them. The default of ``nvlink``
                follows from the rates or names after the table (50 GB/s for Blackwell), else it is that of versions 2
                to 4, 25 GB/s. The others are PCIe 3.0 with 16 lanes, and an assumed QPI link. ``pcie`` may also map
                each GPU to the bandwidth of its own link (16 GB/s for the missing ones); the link above a switch is
                then as fast as its fastest GPU.
            latency: Seconds of each link.

        Returns:
            ``gpu0`` … as numbered in the table, then ``switch`` and ``cpu``, numbered if there are several.

        Raises:
            TopologyError, UnitError: If the text is not such a table (the sentence names the line), or for bad units.

        Example:
            >>> text = "        GPU0  GPU1  CPU Affinity\\nGPU0     X    NV4   0-15\\nGPU1    NV4    X    0-15"
            >>> pair = Topology.from_nvidia_smi(text)
            >>> print(pair.kinds, pair.route("gpu0", "gpu1")[0].count)
            {'gpu0': 'gpu', 'gpu1': 'gpu', 'cpu': 'cpu'} 4
        """
        host = nvidia.read(text, nvlink, pcie, between_cpus, latency)
        return cls(host.name, host.kinds, host.links, nics=host.nics)

    @classmethod
    def from_rocm_smi(
        cls,
        text: str,
        xgmi: "str | Bandwidth" = amd.XGMI,
        pcie: "str | Bandwidth" = PCIE,
        between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
        latency: "float | str" = 0.0,
    ) -> "Topology":
        """Return the host on which ``rocm-smi --showtopo`` or ``amd-smi topology`` printed ``text``.

        * ``XGMI``: a link of ``xgmi`` between two GPUs, if the weight is the least in the table (15). A way of more
          weight leads through other GPUs: it is no link here, and messages take PCIe.
        * ``PCIE``: both are on one CPU up to a weight of 40, and on two above.
        * Where weights do not tell, GPUs of one NUMA node are on one CPU.

        Args:
            text: The complete output; the tables of link types and weights are read.
            xgmi: Bytes per second, one way, of the XGMI between two GPUs: 50 GB/s for a link of MI200, 64 of MI300X,
                76.8 of MI350.
            pcie, between_cpus, latency: As for :meth:`from_nvidia_smi`.

        Returns:
            ``gpu0`` … as numbered in the tables (by ``amd-smi``: in their order), then the CPUs.

        Raises:
            TopologyError, UnitError: If the text has no such tables (the sentence names the line), or for bad units.

        Example:
            >>> text = "Link Type between two GPUs\\n      GPU0  GPU1\\nGPU0  0     XGMI\\nGPU1  XGMI  0"
            >>> pair = Topology.from_rocm_smi(text, xgmi="64 GB/s")
            >>> print(pair.kinds, pair.route("gpu0", "gpu1")[0].bandwidth)
            {'gpu0': 'gpu', 'gpu1': 'gpu', 'cpu': 'cpu'} 64 GB/s
        """
        host = amd.read(text, xgmi, pcie, between_cpus, latency)
        return cls(host.name, host.kinds, host.links)

    @classmethod
    def from_nccl(cls, source: str, latency: "float | str" = 0.0) -> "Topology":
        """Return the host that NCCL describes in ``NCCL_TOPO_DUMP_FILE``: see :meth:`from_nvidia_smi`.

        Args:
            source: The XML, which has the rates of PCIe and the generation of the GPUs.
            latency: Seconds of each link.

        Returns:
            GPUs, switches and CPUs, with ``nics``.

        Raises:
            TopologyError, UnitError: For other text, and for bad units.
        """
        host, _ = nccl.read(source, latency)
        return cls(host.name, host.kinds, host.links, nics=host.nics)

    def _limited(self, field: str) -> dict:
        values = {node: getattr(limit, field) for node, limit in self.limits.items()}
        return {node: value for node, value in values.items() if value is not None}

    @property
    def through(self) -> dict[str, Bandwidth]:
        """Node → bytes per second of all messages that pass through it, for nodes that are a bottleneck."""
        return self._limited("through")

    @property
    def adding(self) -> dict[str, Bandwidth]:
        """Node → bytes per second at which it adds, for nodes on which adding takes time."""
        return self._limited("adding")

    @property
    def overhead(self) -> dict[str, float]:
        """Node → least seconds of its own time for each message through it."""
        return self._limited("overhead")

    @property
    def ports(self) -> dict[str, Bandwidth]:
        """Node → bytes per second that it sends and receives together."""
        return self._limited("port")

    @property
    def computing(self) -> dict[str, float]:
        """Node → FLOP per second at which it does the tasks of a schedule."""
        return self._limited("computing")

    @property
    def memory(self) -> dict[str, int]:
        """Node → bytes that fit on it, for nodes whose memory is limited."""
        return self._limited("memory")

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """Return the links from ``src`` to ``dst``, through forwarding nodes only.

        The widest route is chosen, since a message takes all its links at once; of equally wide routes the one with
        the least latency, then the one with the fewest links.

        Args:
            src, dst: Two nodes.

        Returns:
            Links in order; empty if both are the same node.

        Raises:
            TopologyError: If there is no route, or no such node.
        """
        self.require_node(src)
        self.require_node(dst)
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def slowed(self, node: str, by: float) -> "Topology":
        """Return a copy in which every link of a node is slower: a straggler.

        Args:
            node: The node.
            by: The factor, above 0: 2 for links of half the bandwidth.

        Returns:
            Like this one otherwise.

        Raises:
            TopologyError, UnitError: If there is no such node, and for a factor that is not above 0.

        Example:
            >>> from d2lps import nvswitch
            >>> nvswitch(4).slowed("gpu2", by=2).route("gpu0", "gpu2")[-1].bandwidth
            bandwidth('12.5 GB/s')
        """
        self.require_node(node)
        links = [
            replace(link, bandwidth=Bandwidth(link.bandwidth / by if by else -1))
            if node in (link.src, link.dst)
            else link
            for link in self.links
        ]
        return Topology(self.name, self.kinds, links, limits=self.limits, nics=self.nics)

    def resources(self, src: str, dst: str) -> tuple["Link | str", ...]:
        """Return the links and nodes that a message from ``src`` to ``dst`` occupies.

        Args:
            src, dst: Two nodes.

        Returns:
            The links of its route, the limited nodes between them, and its ends if they have a limited port.
        """
        route = self.route(src, dst)
        passed = [link.dst for link in route[:-1] if self._limit(link.dst).through is not None]
        return (*route, *passed, *(end for end in (src, dst) if self._limit(end).port is not None))

    def capacity(self, resource: "Link | str") -> float:
        """Return the bytes per second of a link or of a limited node.

        Args:
            resource: An item of :meth:`resources`.

        Returns:
            Infinite if there is no limit.
        """
        if isinstance(resource, Link):
            return resource.capacity
        limit = self.limits[resource]
        rate = limit.port if limit.through is None else limit.through
        return math.inf if rate is None else rate

    def require_node(self, node: str) -> None:
        """Raise TopologyError unless ``node`` is a node of this topology.

        Args:
            node: Its name.

        Raises:
            TopologyError: If there is no such node; the sentence lists all nodes.
        """
        if node not in self.kinds:
            nodes = " ".join(self.kinds)
            raise TopologyError(text("topology.unknown-node", node=repr(node), name=self.name, nodes=nodes))

    def _limit(self, node: str) -> Resource:
        return self.limits.get(node, _UNLIMITED)

    def forwards(self, node: str) -> bool:
        """Return True if a node passes on messages between others.

        Args:
            node: One of the topology's.

        Returns:
            True for switches, processors and memories.
        """
        return self.kinds[node] in FORWARDING

    def leaving(self, node: str) -> "Sequence[Link]":
        """Return the links that begin at a node.

        Args:
            node: One of the topology's.

        Returns:
            In the topology's order.
        """
        return self._leaving.get(node, ())

    def arriving(self, node: str) -> "Sequence[Link]":
        """Return the links that end at a node.

        Args:
            node: One of the topology's.

        Returns:
            In the topology's order.
        """
        return self._arriving.get(node, ())

    def _find(self, src: str, dst: str) -> tuple[Link, ...]:
        if src == dst:
            return ()
        # Nodes that do not forward may be many: between the first and the last link only forwarding nodes count.
        first: list[tuple[Link, ...]] = [()] if self.forwards(src) else [(link,) for link in self.leaving(src)]
        last: list[tuple[Link, ...]] = [()] if self.forwards(dst) else [(link,) for link in self.arriving(dst)]
        routes = [head for head in first if head and head[0].dst == dst]
        for head in first:
            for tail in last:
                a, b = head[0].dst if head else src, tail[0].src if tail else dst
                if self.forwards(a) and self.forwards(b):
                    inner = self._between(a, b, min([link.capacity for link in head + tail], default=math.inf))
                    routes += [head + inner + tail] if inner is not None else []
        if not routes:
            forwarding = ", ".join(FORWARDING)
            raise TopologyError(text("topology.no-route", src=src, dst=dst, name=self.name, forwarding=forwarding))
        if len(routes) == 1:
            return routes[0]
        widths = [min(link.capacity for link in route) for route in routes]
        return min((route for route, width in zip(routes, widths, strict=True) if width == max(widths)), key=_length)

    def _between(self, a: str, b: str, enough: float) -> tuple[Link, ...] | None:
        """Return the best route between forwarding nodes: ``enough`` wide if there is one, else the widest."""
        if a == b:
            return ()
        for width in [enough, *(width for width in self._widths if width < enough)]:
            if (a, width) not in self._trees:
                self._trees[a, width] = self._tree(a, width)
            if b in self._trees[a, width]:
                route, node = [], b
                while node != a:
                    route.append(self._trees[a, width][node])
                    node = route[-1].src
                return tuple(reversed(route))
        return None

    def _tree(self, root: str, width: float) -> dict[str, Link]:
        """Return node → the last link of its shortest route from ``root`` over links of this width (Dijkstra)."""
        last: dict[str, Link] = {}
        near: dict[str, tuple] = {root: (Fraction(0), 0)}  # exact latency, then the number of links
        queue, count = [(near[root], 0, root)], 0
        while queue:
            (latency, links), _, node = heappop(queue)
            for link in self.leaving(node) if near[node] == (latency, links) else ():
                if link.capacity < width or not self.forwards(link.dst):  # most lead to a node that does not forward
                    continue
                far = latency + Fraction(link.latency), links + 1
                if far < near.get(link.dst, (math.inf, 0)):
                    near[link.dst], last[link.dst], count = far, link, count + 1
                    heappush(queue, (far, count, link.dst))
        return last


def _length(route: tuple[Link, ...]) -> tuple[Fraction, int]:
    return total_latency(tuple(link.latency for link in route)), len(route)


@lru_cache(4096)  # routes are many, but their latencies are few
def total_latency(latencies: tuple[float, ...]) -> Fraction:
    """Return the exact sum of the latencies of links, in seconds."""
    return sum(map(Fraction, latencies), Fraction(0))


_UNLIMITED = Resource()

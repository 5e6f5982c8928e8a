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

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

from d2lps.messages import text
from d2lps.plan.parse import names
from d2lps.topology import nvidia
from d2lps.topology.links import BETWEEN_CPUS, FORWARDING, KINDS, NVLINK, PCIE, Link, Resource, TopologyError
from d2lps.units import Bandwidth


@dataclass(frozen=True, init=False, repr=False)
class Topology:
    """Nodes, each of a kind, and the directed links between them. Equal by content, and hashable.

    Parameters
    ----------
    name : str
        What it is called in pictures and errors.
    kinds : mapping of str to str
        Node → ``"gpu"``, ``"cpu"``, ``"memory"``, ``"switch"`` or ``"machine"``; the order is the drawing's.
    links : iterable of Link
        Between two nodes at most one in each direction (parallel ones are its ``count``).
    through, adding, overhead, ports : mapping, optional
        Node → the bandwidth or time that :class:`~d2lps.topology.Resource` calls so (``port``), one by one.
    limits : mapping of str to Resource, optional
        The same as one: node → what it can do itself, for nodes that are a bottleneck.

    Raises
    ------
    TopologyError, PlanError, UnitError
        For nodes, kinds, links and limits that do not fit together, names that cannot be nodes, and bad units.

    Examples
    --------
    >>> host = Topology("host", {"a": "gpu", "m": "cpu"}, [Link("a", "m", "16 GB/s")], through={"m": "10 GB/s"})
    >>> host.limits["m"].through
    bandwidth('10 GB/s')
    """

    name: str
    kinds: Mapping[str, str]
    links: tuple[Link, ...]
    limits: Mapping[str, Resource]

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
    ):
        if not kinds:
            raise TopologyError(text("topology.no-nodes", name=name))
        names(kinds)
        limits = dict(limits or {})
        for field, values in {"through": through, "adding": adding, "overhead": overhead, "port": ports}.items():
            for node, value in (values or {}).items():
                limits[node] = replace(limits.get(node, Resource()), **{field: value})
        for field, value in {"name": name, "kinds": dict(kinds), "links": tuple(links), "limits": limits}.items():
            object.__setattr__(self, field, value)
        self._require_sound()
        # Made here, however seldom they are needed: threads share a topology.
        by_ends: dict[tuple[str | None, str | None], list[Link]] = defaultdict(list)  # forwarding nodes are all None
        for link in self.links:
            by_ends[self._end(link.src), self._end(link.dst)].append(link)
        object.__setattr__(self, "_by_ends", dict(by_ends))
        object.__setattr__(self, "_routes", {})

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

    def __hash__(self):
        return hash((self.name, self.links))  # what is equal by content has these in common

    def __repr__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(self.kinds.values()).items())
        return f"<Topology: {self.name}, {kinds}, {len(self.links)} links>"

    @classmethod
    def from_nvidia_smi(
        cls,
        text: str,
        nvlink: "str | Bandwidth" = NVLINK,
        pcie: "str | Bandwidth | Mapping[str, str | Bandwidth]" = PCIE,
        between_cpus: "str | Bandwidth" = BETWEEN_CPUS,
        latency: "float | str" = 0.0,
    ) -> "Topology":
        """The host whose ``nvidia-smi topo -m`` printed ``text``: what joins two devices is said in its legend.

        * ``NV4``: four links of ``nvlink`` between two GPUs. Where all pairs have equally many, and a GPU would need
          more than 18 in all, they meet at NVSwitch, as in :func:`d2lps.nvswitch`, by so many each.
        * ``PIX``, ``PXB``: both are on one PCIe switch (one for them all, where there may be a few in a row).
        * ``PHB``, ``NODE``: both are on one CPU; a GPU that shares no switch is linked to its CPU.
        * ``SYS``: each is on a CPU of its own; the CPUs are linked, each pair by ``between_cpus``.

        Network cards only help to find the PCIe switches, which NVLinks between two GPUs hide.

        Parameters
        ----------
        text : str
            The whole of what it printed.
        nvlink, pcie, between_cpus : str or Bandwidth
            Bytes per second, one way, of one NVLink, of each PCIe link of a GPU or switch to what is above it, and of
            the link between two CPUs. The table does not tell them: the defaults are NVLink 2 to 4, PCIe 3.0 with 16
            lanes, and, assumed, one QPI link. ``pcie`` may also be a mapping, GPU → that of its own link, 16 GB/s for
            those it lacks; a switch then goes up as fast as its fastest GPU.
        latency : float or str
            Seconds of each link.

        Returns
        -------
        Topology
            With ``gpu0`` … as the table numbers them, then ``switch`` and ``cpu``, numbered where there are several.

        Raises
        ------
        TopologyError, UnitError
            Where the text is no such table, in a sentence that names the line, or a unit is none.

        Examples
        --------
        >>> text = "        GPU0  GPU1  CPU Affinity\\nGPU0     X    NV4   0-15\\nGPU1    NV4    X    0-15"
        >>> pair = Topology.from_nvidia_smi(text)
        >>> print(pair.kinds, pair.route("gpu0", "gpu1")[0].count)
        {'gpu0': 'gpu', 'gpu1': 'gpu', 'cpu': 'cpu'} 4
        """
        return cls(*nvidia.read(text, nvlink, pcie, between_cpus, latency))

    def _limited(self, field: str) -> dict:
        values = {node: getattr(limit, field) for node, limit in self.limits.items()}
        return {node: value for node, value in values.items() if value is not None}

    @property
    def through(self) -> dict[str, Bandwidth]:
        """Node → bytes per second of all that passes through it, for nodes that are a bottleneck themselves."""
        return self._limited("through")

    @property
    def adding(self) -> dict[str, Bandwidth]:
        """Node → bytes per second at which it adds, for nodes where that takes time."""
        return self._limited("adding")

    @property
    def overhead(self) -> dict[str, float]:
        """Node → seconds of its own time that each message through it takes at least."""
        return self._limited("overhead")

    @property
    def ports(self) -> dict[str, Bandwidth]:
        """Node → bytes per second that it sends and receives, both together."""
        return self._limited("port")

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """The links from ``src`` to ``dst``, through forwarding nodes only.

        Of several ways it is the widest, since a message takes all its links at once; of equally wide ones
        that of least latency, then of fewest links.

        Parameters
        ----------
        src, dst : str
            Two nodes.

        Returns
        -------
        tuple of Link
            In the order of the way; empty where both are the same node.

        Raises
        ------
        TopologyError
            Where there is no way, or no such node.
        """
        self.require_node(src)
        self.require_node(dst)
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def resources(self, src: str, dst: str) -> tuple["Link | str", ...]:
        """What a message from ``src`` to ``dst`` occupies.

        Parameters
        ----------
        src, dst : str
            Two nodes.

        Returns
        -------
        tuple of Link or str
            The links of its route, the limited nodes on its way, and those of its ends that have a limited port.
        """
        route = self.route(src, dst)
        passed = [link.dst for link in route[:-1] if self._limit(link.dst).through is not None]
        return (*route, *passed, *(end for end in (src, dst) if self._limit(end).port is not None))

    def capacity(self, resource: "Link | str") -> float:
        """Bytes per second of a link or of a limited node.

        Parameters
        ----------
        resource : Link or str
            One of those that :meth:`resources` names.

        Returns
        -------
        float
            Infinite where nothing limits it.
        """
        if isinstance(resource, Link):
            return resource.capacity
        limit = self.limits[resource]
        return limit.port if limit.through is None else limit.through

    def require_node(self, node: str) -> None:
        """Raise unless there is such a node here.

        Parameters
        ----------
        node : str
            Its name.

        Raises
        ------
        TopologyError
            If there is none; its sentence lists those there are.
        """
        if node not in self.kinds:
            nodes = " ".join(self.kinds)
            raise TopologyError(text("topology.unknown-node", node=repr(node), name=self.name, nodes=nodes))

    def _limit(self, node: str) -> Resource:
        return self.limits.get(node, _UNLIMITED)

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
            wide.add_edges_from(
                (link.src, link.dst, {"link": link, "weight": _length(link.latency)})
                for link in links
                if link.capacity >= width
            )
            with suppress(networkx.NetworkXNoPath):
                path = networkx.shortest_path(wide, src, dst, weight="weight")
                return tuple(wide.edges[hop]["link"] for hop in pairwise(path))
        forwarding = ", ".join(FORWARDING)
        raise TopologyError(text("topology.no-route", src=src, dst=dst, name=self.name, forwarding=forwarding))


_UNLIMITED = Resource()


@cache
def _length(latency: float) -> Fraction:
    # Exactly the latency, and of ways of equal latency the one of fewest links: no real one is as small as this.
    return Fraction(latency) + Fraction(1, 10**24)

"""The rings of a topology: which cycles through all its GPUs the direct links form, and how wide each is.

>>> from d2lps.topology.hosts import dgx1_v100
>>> for ring in rings(dgx1_v100()):
...     print(ring.count, *ring.nodes)
2 gpu0 gpu3 gpu2 gpu1 gpu5 gpu6 gpu7 gpu4
1 gpu0 gpu1 gpu3 gpu7 gpu5 gpu4 gpu6 gpu2

Numbering differs between machines, so rings are found from the links and never written down.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.topology.graph import Topology
from d2lps.topology.links import TopologyError

MOST = 50_000  # steps of the search, each some microseconds, before a topology is too large to be searched
MORE = 5_000  # steps that may go into finding as many links in fewer rings
Pair = tuple[int, int]


class Ring(NamedTuple):
    """A cycle through nodes and back to the first, with links between neighbors for itself.

    Parameters
    ----------
    nodes : tuple of str
        In the order in which they follow one another.
    count : int
        How many parallel links it has between two neighbors.
    """

    nodes: tuple[str, ...]
    count: int


def rings(topology: Topology) -> tuple[Ring, ...]:
    """The rings through all GPUs over direct links that together have the largest count, in as few rings as that takes.

    No two rings share a link: the counts of the rings between two neighbors are together at most the count of their
    link, which is the smaller one of its two directions. That no others have a larger count is proven; that fewer
    rings have none as large is as well, unless there are thousands of ways to choose them. The answer is always the
    same: wide rings first, each from the topology's first node towards that one of its two neighbors that comes first.

    Where there are no GPUs the machines take part, or else the CPUs. Two form a ring there and back, one a ring
    by itself. Where none has a direct link to another (they meet at switches), the ring is that of the topology's
    order, its count the smallest of the links that its routes take.

    Parameters
    ----------
    topology : Topology
        Of which only the links between two of its GPUs count.

    Returns
    -------
    tuple of Ring
        One or more.

    Raises
    ------
    TopologyError
        Where the direct links form no ring, which says why, and where there is too much to search.

    Examples
    --------
    >>> from d2lps.topology.hosts import nvswitch
    >>> rings(nvswitch(gpus=4))
    (Ring(nodes=('gpu0', 'gpu1', 'gpu2', 'gpu3'), count=6),)
    """
    nodes = _taking_part(topology)
    counts = _counts(topology, nodes)
    if len(nodes) == 1:
        return (Ring(nodes, 1),)
    if not counts:
        around = [link for hop in pairwise((*nodes, nodes[0])) for link in topology.route(*hop)]
        return (Ring(nodes, min(link.count for link in around)),)
    if len(nodes) == 2:
        return (Ring(nodes, counts[0, 1]),)
    search = _Search(topology.name, len(nodes), counts)
    if not search.cycles:
        raise TopologyError(_why_none(topology, nodes, counts))
    packed = [Ring(tuple(nodes[i] for i in search.cycles[c]), count) for c, count in search.packing().items()]
    return tuple(sorted(packed, key=lambda ring: (-ring.count, [nodes.index(node) for node in ring.nodes])))


def _taking_part(topology: Topology) -> tuple[str, ...]:
    for kind in ("gpu", "machine", "cpu"):
        if nodes := tuple(node for node, its in topology.kinds.items() if its == kind):
            return nodes
    raise TopologyError(text("topology.nothing-to-ring", name=topology.name))


def _counts(topology: Topology, nodes: tuple[str, ...]) -> dict[Pair, int]:
    """(i, j), i < j → how many links join nodes i and j in both directions."""
    at = {node: i for i, node in enumerate(nodes)}
    one_way = {(at[k.src], at[k.dst]): k.count for k in topology.links if k.src in at and k.dst in at}
    return {
        (i, j): min(count, one_way[j, i]) for (i, j), count in sorted(one_way.items()) if i < j and (j, i) in one_way
    }


def _why_none(topology: Topology, nodes: tuple[str, ...], counts: dict[Pair, int]) -> str:
    import networkx

    graph = networkx.Graph((nodes[i], nodes[j]) for i, j in counts)
    graph.add_nodes_from(nodes)
    few = [node for node in nodes if graph.degree[node] < 2]
    apart = sorted({*nodes} - networkx.node_connected_component(graph, nodes[0]), key=nodes.index)
    cuts = sorted(networkx.articulation_points(graph), key=nodes.index)
    if few:
        others = " ".join(graph[few[0]])
        why = text("topology.few", node=few[0], others=others) if others else text("topology.alone", node=few[0])
    elif apart:
        why = text("topology.apart", src=nodes[0], dst=apart[0])
    elif cuts:
        why = text("topology.cut", node=cuts[0])
    else:
        why = text("topology.no-cycle")
    return text("topology.no-ring", name=topology.name, nodes=" ".join(nodes), why=why)


class _Search:
    """All cycles through ``n`` nodes, as bit sets, and the best packing of them.

    networkx's simple_cycles finds them as well, among all the shorter ones, and takes 5 to 15 times as long.
    """

    def __init__(self, name: str, n: int, counts: dict[Pair, int]):
        self.name, self.left = name, MOST
        self.room = list(counts.values())
        self.at = [[e for e, pair in enumerate(counts) if node in pair] for node in range(n)]  # node → its edges
        near = [sum(1 << j for pair in counts if i in pair for j in pair if j != i) for i in range(n)]
        self.cycles = list(self._cycles(near))
        edges = {pair: e for e, pair in enumerate(counts)}
        self.passed = [[edges[min(hop), max(hop)] for hop in pairwise((*cycle, 0))] for cycle in self.cycles]
        self.users = [0] * len(edges)  # edge → the bit set of the cycles over it
        for c, passed in enumerate(self.passed):
            for e in passed:
                self.users[e] |= 1 << c

    def packing(self) -> dict[int, int]:
        """Cycle → how often: as many as fit in all, and of these the fewest different ones."""
        everything = (1 << len(self.cycles)) - 1
        total = min(sum(self.room[e] for e in edges) for edges in self.at) // 2
        while (best := self._pack(total, total, self.room, everything)) is None:
            total -= 1
        self.left = MORE
        for kinds in range(1, len(best)):
            try:
                if (fewer := self._pack(total, kinds, self.room, everything)) is not None:
                    return fewer
            except TopologyError:  # too many choices, and one as large is found already
                break
        return best

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TopologyError(text("topology.too-many-rings", name=self.name))

    def _cycles(self, near: list[int]) -> Iterator[tuple[int, ...]]:
        """All cycles through all nodes, from node 0, each in one of its two directions, in lexicographic order."""
        everyone, path, inside, options = (1 << len(near)) - 1, [0], 1, [near[0]]
        while path:
            if not options[-1]:
                inside ^= 1 << path.pop()
                options.pop()
                continue
            self._step()
            bit = options[-1] & -options[-1]
            options[-1] ^= bit
            path.append(bit.bit_length() - 1)
            inside |= bit
            rest = everyone & ~inside
            back = near[0] >> path[1] + 1 << path[1] + 1  # it comes back from a later node than it left to
            options.append(near[path[-1]] & rest if back & rest else 0)
            if not rest and back & bit:
                yield tuple(path)

    def _pack(self, total: int, kinds: int, room: list[int], alive: int) -> dict[int, int] | None:
        """``total`` cycles out of ``alive`` on the ``room`` that is left, of at most ``kinds`` different ones."""
        if not total:
            return {}
        room = list(room)
        while kinds:
            self._step()
            need = -(-total // kinds)
            wide = alive
            for e, left in enumerate(room):
                if left < need:
                    wide &= ~self.users[e]
                if not left:
                    alive &= ~self.users[e]
            if not wide:
                return None
            if kinds == 1:
                return {(wide & -wide).bit_length() - 1: total}
            uses = [(alive & users).bit_count() for users in self.users]
            spare = [sum(min(room[e], total) for e in edges if uses[e]) - 2 * total for edges in self.at]
            if min(spare) < 0:
                return None
            # Every cycle passes through every node, so the one with least to spare leaves the fewest choices.
            tight = min((e for e in self.at[spare.index(min(spare))] if uses[e]), key=uses.__getitem__)
            through = alive & self.users[tight]
            while through:
                c = (through & -through).bit_length() - 1
                through, alive = through & ~(1 << c), alive & ~(1 << c)
                for count in range(min(total, *(room[e] for e in self.passed[c])), 0, -1):
                    less = list(room)
                    for e in self.passed[c]:
                        less[e] -= count
                    if (more := self._pack(total - count, kinds - 1, less, alive)) is not None:
                        return {c: count} | more
            room[tight] = 0
        return None

"""The rings of a topology: the cycles through all GPUs that its direct links form, with the width of each.

>>> from d2lps.topology.hosts import dgx1_v100
>>> for ring in rings(dgx1_v100()):
...     print(ring.count, *ring.nodes)
2 gpu0 gpu3 gpu2 gpu1 gpu5 gpu6 gpu7 gpu4
1 gpu0 gpu1 gpu3 gpu7 gpu5 gpu4 gpu6 gpu2

The numbering of GPUs differs between machines, so rings are computed from the links and never hard-coded.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.topology.graph import Topology
from d2lps.topology.links import TopologyError

MOST = 50_000  # search steps, each some microseconds, before a topology counts as too large
MORE = 5_000  # steps that may be spent on packing the same links into fewer rings
Pair = tuple[int, int]


class Ring(NamedTuple):
    """A cycle through nodes and back to the first, which shares no link with another ring.

    Args:
        nodes: The nodes in the order of the cycle.
        count: The number of parallel links between two neighbors.
    """

    nodes: tuple[str, ...]
    count: int  # type: ignore[assignment]  # hides the method of tuples


def rings(topology: Topology) -> tuple[Ring, ...]:
    """Return the rings through all GPUs over direct links with the largest total count, in as few rings as possible.

    No two rings share a link: the counts of all rings between two neighbors add up to at most the count of their link
    (the smaller of its two directions). The search proves that no other rings have a larger total, and that no fewer
    rings reach it, unless there are thousands of ways to choose them. The result is deterministic: wide rings first,
    each from the topology's first node towards the earlier of its two neighbors.

    Without GPUs the machines take part, or else the CPUs. Two nodes form a ring there and back, one node a ring by
    itself. If no node has a direct link to another (they meet at switches), the ring follows the topology's order, and
    its count is the smallest of the links that its routes take.

    Args:
        topology: Only the links between two of its GPUs count.

    Returns:
        One ring or more.

    Raises:
        TopologyError: If the direct links form no ring (the sentence says why), or if there is too much to search.

    Example:
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
    for wanted in ("gpu", "machine", "cpu"):
        if nodes := tuple(node for node, kind in topology.kinds.items() if kind == wanted):
            return nodes
    raise TopologyError(text("topology.nothing-to-ring", name=topology.name))


def _counts(topology: Topology, nodes: tuple[str, ...]) -> dict[Pair, int]:
    """Return (i, j), i < j → the number of links that join nodes i and j in both directions."""
    index = {node: i for i, node in enumerate(nodes)}
    one_way = {(index[k.src], index[k.dst]): k.count for k in topology.links if k.src in index and k.dst in index}
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

    networkx.simple_cycles finds them too, but also all shorter cycles, and takes 5 to 15 times as long.
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
        """Return cycle → its count: the largest total that fits, in the fewest different cycles."""
        everything = (1 << len(self.cycles)) - 1
        total = min(sum(self.room[e] for e in edges) for edges in self.at) // 2
        while (best := self._pack(total, total, self.room, everything)) is None:
            total -= 1
        self.left = MORE
        for kinds in range(1, len(best)):
            try:
                if (fewer := self._pack(total, kinds, self.room, everything)) is not None:
                    return fewer
            except TopologyError:  # too many choices, but a packing of this total is known already
                break
        return best

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TopologyError(text("topology.too-many-rings", name=self.name))

    def _cycles(self, near: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield all cycles through all nodes, from node 0, each in one direction only, in lexicographic order."""
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
            back = near[0] >> path[1] + 1 << path[1] + 1  # the last node must come after the second one
            options.append(near[path[-1]] & rest if back & rest else 0)
            if not rest and back & bit:
                yield tuple(path)

    def _pack(self, total: int, kinds: int, room: list[int], alive: int) -> dict[int, int] | None:
        """Choose ``total`` cycles out of ``alive`` on the remaining ``room``, at most ``kinds`` different ones."""
        if not total:
            return {}
        room = list(room)
        while kinds:
            self._step()
            need = -(-total // kinds)
            fitting = alive
            for e, left in enumerate(room):
                if left < need:
                    fitting &= ~self.users[e]
                if not left:
                    alive &= ~self.users[e]
            if not fitting:
                return None
            if kinds == 1:
                return {(fitting & -fitting).bit_length() - 1: total}
            uses = [(alive & users).bit_count() for users in self.users]
            spare = [sum(min(room[e], total) for e in edges if uses[e]) - 2 * total for edges in self.at]
            if min(spare) < 0:
                return None
            # Every cycle passes through every node, so the node with the least spare room leaves the fewest choices.
            tight = min((e for e in self.at[spare.index(min(spare))] if uses[e]), key=uses.__getitem__)
            through = alive & self.users[tight]
            while through:
                c = (through & -through).bit_length() - 1
                through, alive = through & ~(1 << c), alive & ~(1 << c)
                for count in range(min(total, *(room[e] for e in self.passed[c])), 0, -1):
                    remaining = list(room)
                    for e in self.passed[c]:
                        remaining[e] -= count
                    if (others := self._pack(total - count, kinds - 1, remaining, alive)) is not None:
                        return {c: count} | others
            room[tight] = 0
        return None

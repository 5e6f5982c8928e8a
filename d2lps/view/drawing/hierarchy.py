"""Everyone above what hangs below: trees with switches as bars, trees of nodes, servers above their workers.

>>> from d2lps import pcie_server
>>> tree = hierarchy(pcie_server(gpus=2), Participants.on(pcie_server(gpus=2)))
>>> tree.root, tree.above, tree.below
('switch', ['cpu'], {'switch': ['gpu0', 'gpu1']})
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from d2lps.topology import Topology
from d2lps.view.drawing.boxes import WIDEST, Box, Participants, host
from d2lps.view.drawing.hosts import EDGE, tops

MOST = 8  # nodes in one row below a bar
BAR, ENDS = 46.0, 26.0  # how high a bar is, and how far it reaches beyond what it joins
PASSAGE = 32.0  # the room between two boxes with lanes through it
DROP, BETWEEN = 68.0, 30.0  # the length of a lane to a bar, the distance of two rows of nodes


@dataclass(frozen=True)
class Hierarchy:
    """Who hangs below whom from ``root`` on, and who stands above it; ``bars`` are drawn as wide as what hangs below.

    The root "" is no node, only the gap between those above and those below. ``tops`` are the uppermost of hosts.
    """

    root: str
    below: dict[str, list[str]]
    above: list[str] = field(default_factory=list)
    bars: frozenset[str] = frozenset()
    tops: frozenset[str] = frozenset()

    def staggered(self, node: str) -> bool:
        """Whether what hangs below ``node`` stands in two rows."""
        near = self.below.get(node, [])
        return node in self.bars and len(near) > MOST and not any(child in self.below for child in near)

    def span(self, node: str) -> float:
        """How many nodes have room side by side below ``node``."""
        near = self.below.get(node, [])
        return math.ceil(len(near) / 2) + 0.5 if self.staggered(node) else max(1.0, sum(map(self.span, near)))

    def edges(self, node: str) -> float:
        """The room for the edges of hosts below ``node``, and for its own."""
        return sum(map(self.edges, self.below.get(node, []))) + (2 * EDGE if node in self.tops else 0)


def hierarchy(topology: Topology, participants: Participants) -> Hierarchy | None:
    """Who stands below whom in ``topology``; None where it is no tree, and no servers deal with workers only."""
    import networkx

    order, servers, inner = list(topology.kinds), participants.servers, participants.inner(topology)
    if servers and not inner and all((link.src in servers) != (link.dst in servers) for link in topology.links):
        return Hierarchy("", {"": [node for node in order if node not in servers]}, list(servers))
    graph = subgraph(topology, order)
    if not networkx.is_tree(graph):
        return None
    named = any(map(host, order))  # after hosts: of a single one the network is an end, and yet above it
    inside = [node for node, degree in graph.degree if degree > 1 or (named and node in inner)] or inner
    if not inner and (len(graph) <= 4 or any(degree > 2 for _, degree in graph.degree)):
        inside = order  # nodes only, and no long chain
    elif not inner or not set(inside) <= set(inner):
        return None
    far = networkx.eccentricity(graph)
    root = min(inside, key=lambda node: (host(node) != "", far[node], -graph.degree[node]))
    below = dict(networkx.bfs_successors(graph, root, sort_neighbors=lambda near: sorted(near, key=order.index)))
    bars = frozenset(
        node for node in below if inner and (node == root or len(below[node]) > 1 or (host(node) and node in inner))
    )
    above = _above(root, below, topology, participants) if inner else []
    below[root] = [node for node in below.get(root, []) if node not in above]
    return Hierarchy(root, below, above, bars, tops(order, below) if bars else frozenset())


def _above(root: str, below: dict[str, list[str]], topology: Topology, participants: Participants) -> list[str]:
    """Who stands above the uppermost bar: what has no worker's part (processors, servers), half of a memory's many."""
    leaves = [node for node in below[root] if node not in below]
    servers = [node for node in leaves if node in participants.servers]
    above = [n for n in leaves if topology.kinds[n] == "cpu" and (n not in participants.nodes or n in servers)]
    above = above or servers
    if not above and topology.kinds[root] == "memory" and len(leaves) == len(below[root]) > 6:
        above = leaves[: len(leaves) // 2]
    return above if len(above) < len(below[root]) else []


def subgraph(topology: Topology, nodes: Iterable[str]):
    """The graph of ``nodes`` and of the links between them, whichever way."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((link.src, link.dst) for link in topology.links if link.src in graph and link.dst in graph)
    return graph


def place_boxes(tree: Hierarchy, participants: Participants, widest: float) -> dict[str, Box]:
    """The boxes of all in ``tree``, none wider than ``widest`` but the bars."""
    root, above = tree.root, tree.above
    span = max(tree.span(root), len(above), 2)
    room = math.ceil(span)
    least = 40.0 if tree.tops and room <= 16 else 30.0  # within a host "gpu0" is told from "cpu"
    width = min(widest, 104.0 if room <= 5 else 86.0 if room <= 7 else max(least, min(70.0, WIDEST / room - 20)))
    gap = 14 if width > 80 else 20 if width > 40 else 12
    if any(map(tree.staggered, tree.bars)):  # between two boxes pass the lanes of the one below
        width, gap = min(width, max(30.0, WIDEST // room - PASSAGE)), PASSAGE
    pitch = width + gap
    boxes = {}

    def high(nodes: Sequence[str]) -> float:
        return max((participants.size(node, width)[1] for node in nodes), default=0)

    def line(nodes: Sequence[str], middle: float, y: float, pitch: float = pitch) -> None:
        for i, node in enumerate(nodes):
            w, h = participants.size(node, width)
            boxes[node] = Box(middle + (i - (len(nodes) - 1) / 2) * pitch - w / 2, y, w, h)

    def broad(node: str) -> float:
        return tree.span(node) * pitch + tree.edges(node)

    def put(node: str, left: float, y: float) -> None:
        wide, near = broad(node), tree.below.get(node, [])
        if node in tree.bars:
            inset = EDGE if node in tree.tops else 6
            boxes[node] = Box(left + inset, y, wide - 2 * inset, BAR)
        elif node:
            line([node], left + wide / 2, y)
        if node:
            y = boxes[node].y + boxes[node].h + (DROP if node in tree.bars else _drop(len(near)))
        if tree.staggered(node):  # the second row stands under the gaps of the first, through which its lanes pass
            half = math.ceil(len(near) / 2)
            for i, child in enumerate(near):
                row, column = divmod(i, half)
                put(child, left + (column + 0.5 * row) * pitch, y + row * (high(near) + BETWEEN))
            return
        x = left + (wide - sum(map(tree.span, near)) * pitch - sum(map(tree.edges, near))) / 2
        for child in near:
            put(child, x, y)
            x += broad(child)

    gap = 0 if not above else DROP if root else _drop(len(above) * len(tree.below[root]))
    left, top = max(0.0, (span * pitch - broad(root)) / 2), high(above) + gap
    put(root, left, top)
    middle = left + broad(root) / 2
    across = pitch + (EDGE if tree.tops else 0)
    line(above, middle, top - gap - high(above), across if root else pitch * min(1.7, span / len(above)))
    if root in tree.bars:
        wide = max(span * pitch, broad(root), len(above) * across) + 2 * ENDS
        boxes[root] = Box(middle - wide / 2, top, wide, BAR)
    return boxes


def _drop(lanes: int) -> float:
    """The way down that so many lanes need to fan out without running behind a box."""
    return DROP * (1.0 if lanes <= 3 else 1.7 if lanes <= 8 else 2.2)

"""Hierarchies of nodes: trees with switches as bars, trees of nodes, servers above their workers.

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
BAR, ENDS = 46.0, 26.0  # the height of a bar, and its overhang at either end
PASSAGE = 32.0  # the gap between two boxes with lanes through it
DROP, BETWEEN = 68.0, 30.0  # the length of a lane to a bar, the distance of two rows of nodes


@dataclass(frozen=True)
class Hierarchy:
    """The children of each node from ``root`` on (``below``), and the nodes above the root.

    ``bars`` are drawn as wide as their children, and ``tops`` are the uppermost nodes of hosts. The root "" is not a
    node, only the gap between the nodes above and those below.
    """

    root: str
    below: dict[str, list[str]]
    above: list[str] = field(default_factory=list)
    bars: frozenset[str] = frozenset()
    tops: frozenset[str] = frozenset()

    def staggered(self, node: str) -> bool:
        """Return True if the children of ``node`` form two rows."""
        near = self.below.get(node, [])
        return node in self.bars and len(near) > MOST and not any(child in self.below for child in near)

    def span(self, node: str) -> float:
        """Return the number of nodes side by side below ``node``."""
        near = self.below.get(node, [])
        return math.ceil(len(near) / 2) + 0.5 if self.staggered(node) else max(1.0, sum(map(self.span, near)))

    def edges(self, node: str) -> float:
        """Return the room for the edges of the hosts below ``node``, and of its own host."""
        return sum(map(self.edges, self.below.get(node, []))) + (2 * EDGE if node in self.tops else 0)


def hierarchy(topology: Topology, participants: Participants) -> Hierarchy | None:
    """Return the hierarchy of ``topology``: a tree, or servers linked only with workers; None for any other."""
    import networkx

    order, servers, inner = list(topology.kinds), participants.servers, participants.inner(topology)
    if servers and not inner and all((link.src in servers) != (link.dst in servers) for link in topology.links):
        return Hierarchy("", {"": [node for node in order if node not in servers]}, list(servers))
    graph = subgraph(topology, order)
    if not networkx.is_tree(graph):
        return None
    has_hosts = any(map(host, order))  # in hosts: the network is above a single host although it is a leaf
    inside = [node for node, degree in graph.degree if degree > 1 or (has_hosts and node in inner)] or inner
    if not inner and (len(graph) <= 4 or any(degree > 2 for _, degree in graph.degree)):
        inside = order  # nodes only, and no long chain
    elif not inner or not set(inside) <= set(inner):
        return None
    far = networkx.eccentricity(graph)
    root = min(inside, key=lambda node: (host(node) != "", far[node], -graph.degree[node]))
    below = dict(networkx.bfs_successors(graph, root, sort_neighbors=lambda near: sorted(near, key=order.index)))
    bars = frozenset(
        node for node in below if inner and (node == root or len(below[node]) > 1 or (has_hosts and node in inner))
    )
    above = _above(root, below, topology, participants) if inner else []
    below[root] = [node for node in below.get(root, []) if node not in above]
    return Hierarchy(root, below, above, bars, tops(order, below) if bars else frozenset())


def _above(root: str, below: dict[str, list[str]], topology: Topology, participants: Participants) -> list[str]:
    """Return the nodes above the uppermost bar: processors and servers, or half of the many nodes of one memory."""
    leaves = [node for node in below[root] if node not in below]
    servers = [node for node in leaves if node in participants.servers]
    above = [n for n in leaves if topology.kinds[n] == "cpu" and (n not in participants.nodes or n in servers)]
    above = above or servers
    if not above and topology.kinds[root] == "memory" and len(leaves) == len(below[root]) > 6:
        above = leaves[: len(leaves) // 2]
    return above if len(above) < len(below[root]) else []


def subgraph(topology: Topology, nodes: Iterable[str]):
    """Return the undirected graph of ``nodes`` and the links between them."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((link.src, link.dst) for link in topology.links if link.src in graph and link.dst in graph)
    return graph


def place_boxes(tree: Hierarchy, participants: Participants, widest: float) -> dict[str, Box]:
    """Return the boxes of all nodes in ``tree``; except for bars none is wider than ``widest``."""
    root, above = tree.root, tree.above
    span = max(tree.span(root), len(above), 2)
    room = math.ceil(span)
    least = 40.0 if tree.tops and room <= 16 else 30.0  # within a host "gpu0" and "cpu" must stay legible
    width = min(widest, 104.0 if room <= 5 else 86.0 if room <= 7 else max(least, min(70.0, WIDEST / room - 20)))
    gap = 14 if width > 80 else 20 if width > 40 else 12
    if any(map(tree.staggered, tree.bars)):  # the lanes of the second row pass between two boxes of the first
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
        breadth, children = broad(node), tree.below.get(node, [])
        if node in tree.bars:
            inset = EDGE if node in tree.tops else 6
            boxes[node] = Box(left + inset, y, breadth - 2 * inset, BAR)
        elif node:
            line([node], left + breadth / 2, y)
        if node:
            y = boxes[node].y + boxes[node].h + (DROP if node in tree.bars else _drop(len(children)))
        if tree.staggered(node):  # the second row is under the gaps of the first, through which its lanes pass
            half = math.ceil(len(children) / 2)
            for i, child in enumerate(children):
                row, column = divmod(i, half)
                put(child, left + (column + 0.5 * row) * pitch, y + row * (high(children) + BETWEEN))
            return
        x = left + (breadth - sum(map(tree.span, children)) * pitch - sum(map(tree.edges, children))) / 2
        for child in children:
            put(child, x, y)
            x += broad(child)

    gap = 0 if not above else DROP if root else _drop(len(above) * len(tree.below[root]))
    left, top = max(0.0, (span * pitch - broad(root)) / 2), high(above) + gap
    put(root, left, top)
    middle = left + broad(root) / 2
    across = pitch + (EDGE if tree.tops else 0)
    line(above, middle, top - gap - high(above), across if root else pitch * min(1.7, span / len(above)))
    if root in tree.bars:
        breadth = max(span * pitch, broad(root), len(above) * across) + 2 * ENDS
        boxes[root] = Box(middle - breadth / 2, top, breadth, BAR)
    return boxes


def _drop(lanes: int) -> float:
    """Return the distance that this number of lanes needs to fan out without running behind a box."""
    return DROP * (1.0 if lanes <= 3 else 1.7 if lanes <= 8 else 2.2)

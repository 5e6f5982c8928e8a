"""Everyone above what hangs below: trees with switches as bars, trees of nodes, servers above their workers.

>>> from d2lps import pcie_server
>>> root = hierarchy(pcie_server(gpus=2), Participants.on(pcie_server(gpus=2)))
>>> root.name, root.above, [branch.name for branch in root.below]
('switch', ['cpu'], ['gpu0', 'gpu1'])
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from d2lps.topology.graph import Topology
from d2lps.view.drawing.boxes import MARGIN, WIDEST, Box, Participants

MOST = 8  # nodes in one row below a bar
BAR, ENDS = 46.0, 26.0  # how high a bar is, and how far it reaches beyond what it joins
DROP, BETWEEN = 58.0, 30.0  # the length of a lane to a bar, the distance of two rows of nodes


@dataclass
class Branch:
    """A node with the branches below it; for the root also nodes above it. ``bar``: drawn as wide as its branches.

    A root without a name is only the gap between those above and those below.
    """

    name: str = ""
    below: list["Branch"] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    bar: bool = False

    @property
    def staggered(self) -> bool:
        """Whether what hangs below stands in two rows."""
        return self.bar and len(self.below) > MOST and not any(branch.below for branch in self.below)

    @property
    def span(self) -> float:
        """How many nodes have room side by side below."""
        if self.staggered:
            return math.ceil(len(self.below) / 2) + 0.5
        return max(1.0, sum(branch.span for branch in self.below))


def hierarchy(topology: Topology, participants: Participants) -> Branch | None:
    """Who stands below whom in ``topology``; None where it is no tree, and no servers deal with workers only."""
    import networkx

    kinds, servers = topology.kinds, participants.servers
    inner = participants.inner(topology)
    workers = [node for node in kinds if node not in servers]
    if servers and not inner and all((link.src in servers) != (link.dst in servers) for link in topology.links):
        return Branch(below=[Branch(node) for node in workers], above=list(servers))
    graph = joined(topology, kinds)
    if not networkx.is_tree(graph):
        return None
    inside = [node for node, degree in graph.degree if degree > 1] or inner
    if not inner and (len(graph) <= 4 or any(degree > 2 for _, degree in graph.degree)):
        inside = list(graph)  # nodes only, and no long chain
    elif not inner or not set(inside) <= set(inner):
        return None
    far = networkx.eccentricity(graph)
    middle = min(inside, key=lambda node: (far[node], -graph.degree[node]))
    order = list(kinds)
    below = dict(networkx.bfs_successors(graph, middle, sort_neighbors=lambda near: sorted(near, key=order.index)))

    def grow(node: str) -> Branch:
        children = [grow(child) for child in below.get(node, ())]
        return Branch(node, children, bar=bool(inner) and (len(children) > 1 or node == middle))

    root = grow(middle)
    root.above = _above(root, topology, participants) if inner else []
    root.below = [branch for branch in root.below if branch.name not in root.above]
    return root


def _above(root: Branch, topology: Topology, participants: Participants) -> list[str]:
    """Who stands above the uppermost bar: what has no worker's part (processors, servers), half of a memory's many."""
    leaves = [branch.name for branch in root.below if not branch.below]
    servers = [node for node in leaves if node in participants.servers]
    aside = [n for n in leaves if topology.kinds[n] == "cpu" and (n not in participants.nodes or n in servers)]
    above = aside or servers
    if not above and topology.kinds[root.name] == "memory" and len(leaves) == len(root.below) > 6:
        above = leaves[: len(leaves) // 2]
    return above if len(above) < len(root.below) else []


def joined(topology: Topology, nodes: Iterable[str]):
    """The graph of ``nodes`` and of the links between them, whichever way."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from((link.src, link.dst) for link in topology.links if link.src in graph and link.dst in graph)
    return graph


def stand(root: Branch, participants: Participants, widest: float) -> tuple[dict[str, Box], set[str]]:
    """The boxes of all below and above ``root``, none wider than ``widest`` but the bars, and which those are."""
    span = max(root.span, len(root.above), 2)
    room = math.ceil(span)
    width = min(widest, 104.0 if room <= 5 else 86.0 if room <= 7 else max(30.0, min(70.0, WIDEST / room - 20)))
    pitch = width + (14 if width > 80 else 20 if width > 40 else 12)
    boxes, bars = {}, set()

    def line(nodes: Sequence[str], middle: float, y: float, pitch: float = pitch) -> None:
        for i, node in enumerate(nodes):
            w, h = participants.size(node, width)
            boxes[node] = Box(middle + (i - (len(nodes) - 1) / 2) * pitch - w / 2, y, w, h)

    def put(branch: Branch, left: float, y: float) -> None:
        wide = branch.span * pitch
        if branch.bar:
            bars.add(branch.name)
            boxes[branch.name] = Box(left + 6, y, wide - 12, BAR)
        elif branch.name:
            line([branch.name], left + wide / 2, y)
        if branch.name:
            y = boxes[branch.name].y + boxes[branch.name].h + (DROP if branch.bar else _drop(len(branch.below)))
        x = left + (wide - sum(child.span for child in branch.below if not branch.staggered) * pitch) / 2
        high = max((participants.size(child.name, width)[1] for child in branch.below), default=0)
        for i, child in enumerate(branch.below):
            if branch.staggered:  # the second row stands under the gaps of the first, through which its lanes pass
                row, column = divmod(i, math.ceil(len(branch.below) / 2))
                put(child, left + (column + 0.5 * row) * pitch, y + row * (high + BETWEEN))
            else:
                put(child, x, y)
                x += child.span * pitch

    first = max((participants.size(node, width)[1] for node in root.above), default=0)
    gap = 0 if not root.above else DROP if root.name else _drop(len(root.above) * len(root.below))
    left, top = MARGIN + ENDS + max(0.0, (span - root.span) * pitch / 2), MARGIN + first + gap
    put(root, left, top)
    middle = left + root.span * pitch / 2
    line(root.above, middle, top - gap - first, pitch if root.name else pitch * min(1.7, span / len(root.above)))
    if root.bar:
        boxes[root.name] = Box(middle - span * pitch / 2 - ENDS, top, span * pitch + 2 * ENDS, BAR)
    return boxes, bars


def _drop(lanes: int) -> float:
    """The way down that so many lanes need to fan out without running behind a box."""
    return DROP * (1.0 if lanes <= 3 else 1.7 if lanes <= 8 else 2.2)

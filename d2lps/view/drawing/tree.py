"""A topology as a tree: what hangs below what.

>>> from d2lps import pcie_server
>>> root = branches(pcie_server(gpus=2), Guests.on(pcie_server(gpus=2)))
>>> root.name, root.above, [branch.name for branch in root.below]
('switch', ['cpu'], ['gpu0', 'gpu1'])
"""

import math
from dataclasses import dataclass, field

from d2lps.topology.graph import FORWARDING, Topology
from d2lps.view.drawing.boxes import Guests

MOST = 8  # nodes in one row below a bar


@dataclass
class Branch:
    """A node with the branches below it; for the root also nodes above it. ``bar``: drawn as wide as its branches."""

    name: str
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


def branches(topology: Topology, guests: Guests) -> Branch | None:
    """The tree of ``topology`` below its middlemost switch; None where it is not a tree with switches inside."""
    near, nodes = _near(topology), guests.nodes
    switches = [node for node, kind in topology.kinds.items() if kind in FORWARDING and node not in nodes]
    inside = [node for node, others in near.items() if len(others) > 1] or switches
    if not inside or not set(inside) <= set(switches) or not _is_tree(near):
        return None
    middle = min(inside, key=lambda node: (max(_reached(near, node).values()), -len(near[node])))
    root = _grow(middle, None, near, list(topology.kinds))
    root.bar = True
    # What has no worker's part stands above: processors, servers.
    leaves = [branch.name for branch in root.below if not branch.below]
    aloft = [n for n in leaves if topology.kinds[n] == "cpu" and (n not in nodes or n in guests.servers)]
    aloft = aloft or [n for n in leaves if n in guests.servers]
    if not aloft and topology.kinds[middle] == "memory" and 6 < len(leaves) == len(root.below):
        aloft = leaves[: len(leaves) // 2]
    if len(aloft) < len(root.below):
        root.above = aloft
        root.below = [branch for branch in root.below if branch.name not in aloft]
    return root


def descent(topology: Topology) -> Branch | None:
    """The tree of nodes without switches below the middlemost of them; None where it is not one, or a long chain."""
    near = _near(topology)
    if not _is_tree(near) or len(near) > 4 and max(map(len, near.values())) < 3:
        return None
    root = _grow(
        min(near, key=lambda node: (max(_reached(near, node).values()), -len(near[node]))), None, near, list(near)
    )
    todo = [root]
    for branch in todo:
        branch.bar = False
        todo += branch.below
    return root


def _near(topology: Topology) -> dict[str, list[str]]:
    """Node → the nodes that a link joins it with, either way."""
    near: dict[str, list[str]] = {node: [] for node in topology.kinds}
    for link in topology.links:
        for a, b in ((link.src, link.dst), (link.dst, link.src)):
            if b not in near[a]:
                near[a].append(b)
    return near


def _is_tree(near: dict[str, list[str]]) -> bool:
    return sum(map(len, near.values())) == 2 * (len(near) - 1) and len(_reached(near, next(iter(near)))) == len(near)


def _grow(node: str, parent: str | None, near: dict[str, list[str]], order: list[str]) -> Branch:
    children = sorted((other for other in near[node] if other != parent), key=order.index)
    return Branch(node, [_grow(child, node, near, order) for child in children], bar=len(children) > 1)


def _reached(near: dict[str, list[str]], start: str) -> dict[str, int]:
    """Node → number of links from ``start``."""
    far, todo = {start: 0}, [start]
    for node in todo:
        for other in near[node]:
            if other not in far:
                far[other] = far[node] + 1
                todo.append(other)
    return far

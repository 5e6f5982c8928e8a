"""The layout: the boxes of nodes, the lanes of links, the routes of messages. Numbers only, no SVG.

>>> from d2lps import aggregate_at, pcie_server
>>> place = arrange(pcie_server(gpus=2), aggregate_at(["gpu0", "gpu1"], "gpu0"))
>>> place.boxes["cpu"].y < place.boxes["switch"].y < place.boxes["gpu0"].y == place.boxes["gpu1"].y
True

A topology that is a tree is drawn as a *tree*, its switches and memories as bars above the nodes they join. If servers
are linked only with workers, or one node with all others, it is drawn as two *rows*. Any other is drawn as a *circle*,
in the order of a ring if there is one, with forwarding nodes in the background in its middle. Merged nodes
(:func:`d2lps.fold`) are drawn in *tiers*: switches by their distance from the GPUs, those within hosts below. Every
link is a lane on the right-hand side of its direction, so that the two directions of a link lie side by side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from d2lps.plan.plan import Plan
from d2lps.topology import Link, Topology
from d2lps.view.drawing.boxes import MARGIN, Box, Participants, host, local_name
from d2lps.view.drawing.circle import circle
from d2lps.view.drawing.hierarchy import PASSAGE, hierarchy, place_boxes
from d2lps.view.drawing.hosts import enclosed
from d2lps.view.drawing.svg import Line, Point, along, beside
from d2lps.view.drawing.tiers import tiers

MANY = 24  # nodes: among more of them every line is blocked
BESIDE = 60.0  # the room at both sides of tiers
WIDE, MEDIUM, FEW = 14.0, 6.0, 10  # the lane with the largest load, among few lanes or many


@dataclass(frozen=True)
class Layout:
    """Boxes and lanes on a sheet of ``width`` × ``height``."""

    width: float
    height: float
    boxes: dict[str, Box]  # of every node of the topology
    cells: dict[str, dict[str, Box]]  # node of the plan → key → the cell of its buffer
    lanes: dict[tuple[str, str], Line]
    bars: frozenset[str]  # the nodes along which messages travel sideways
    faint: frozenset[str]  # the nodes in the background, with their links
    room: float  # the breadth of one lane
    labelled: bool  # True if the keys have room for their names
    hosts: dict[str, Box]  # the box around the nodes of each host
    shown: dict[str, str]  # the text in each box
    widths: dict[tuple[str, str], float]  # the widths of lanes that are not as wide as the others

    def route(self, hops: Sequence[tuple[str, str]], start: Point, end: Point, aside: Sequence[float], row: float):
        """Return the points of a message's way over the lanes ``hops``, from ``start`` to ``end``.

        On lane i it keeps ``aside[i]`` to the right of the middle; ``row`` (0 … 1) is its height within a bar.
        """
        points = [start]
        for (src, dst), offset in zip(hops, aside, strict=True):
            a, b = beside(self.lanes[src, dst], offset)
            if src in self.bars:
                box = self.boxes[src]
                y = box.y + box.h * (0.31 + 0.38 * row)
                points += [(points[-1][0], y), (a[0], y)]
            points += [a, b]
        return [*points, end]


def arrange(
    topology: Topology, plan: Plan | None = None, widest: float = 104.0, loads: Mapping[Link, float] | None = None
) -> Layout:
    """Return the layout of ``plan`` on ``topology``, or of the topology alone, whose nodes then have no buffers.

    In a hierarchy no node is wider than ``widest``. With ``loads`` of the links it is a layout in tiers, in which each
    lane is as wide as its load.
    """
    participants = Participants.of(plan) if plan is not None else Participants.on(topology)
    hosts, tree = {}, None
    if loads is not None:
        boxes, bars, faint = tiers(topology, participants), frozenset(), frozenset()
    elif tree := hierarchy(topology, participants):
        boxes, bars, faint = place_boxes(tree, participants, widest), tree.bars, frozenset()
        if tree.tops:
            joining = [node for node in participants.inner(topology) if not host(node) and node in tree.bars]
            hosts = enclosed(boxes, joining, tree.above)
    else:
        boxes, bars, faint = circle(topology, participants), frozenset(), frozenset(participants.inner(topology))
    every = [*boxes.values(), *hosts.values()]
    if loads is not None:  # room for the numbers beside the lanes
        left, right = min(box.x for box in every), max(box.x + box.w for box in every)
        every.append(Box(left - BESIDE, every[0].y, right - left + 2 * BESIDE, 0.0))
    left, top = min(box.x for box in every), min(box.y for box in every)
    boxes, hosts = (
        {name: box.moved(MARGIN - left, MARGIN - top) for name, box in group.items()} for group in (boxes, hosts)
    )
    width = max(box.x + box.w for box in every) - left + 2 * MARGIN
    height = max(box.y + box.h for box in every) - top + 2 * MARGIN
    if loads is not None:
        apart = 10.0
    elif bars:
        passages = any(map(tree.staggered, bars))
        apart = min(PASSAGE / 4 if passages else 16.0, min(boxes[node].w for node in participants.nodes) / 6)
    else:
        links = [link for link in topology.links if link.src not in faint and link.dst not in faint]
        busiest = max([sum(node in (x.src, x.dst) for x in links) for node in topology.kinds], default=0)
        apart = 14.0 if busiest <= 4 else 8.0 if busiest <= 8 else 5.0 if busiest <= 14 else 2.5
    ends, lanes = dict.fromkeys((link.src, link.dst) for link in topology.links), {}
    for src, dst in ends:
        back = not {src, dst}.isdisjoint(faint)
        # A link without one in the other direction has the middle for itself.
        aside = 0.0 if (dst, src) not in ends else 2.5 if back else apart
        if src in bars or dst in bars:
            lanes[src, dst] = _upright(boxes[src], boxes[dst], aside)
        else:
            others = [] if back else [box for node, box in boxes.items() if node not in (src, dst)]
            lanes[src, dst] = _lane(boxes[src], boxes[dst], others, (width / 2, height / 2), aside)
    cells = {node: participants.cells(boxes[node]) for node in participants.nodes}
    labelled = all(participants.labelled(boxes[node].w) for node in participants.nodes)
    # A node that is a host by itself has its name outside its box and its kind inside.
    shown = {
        node: kind if node in hosts else local_name(node) if hosts or loads is not None else node
        for node, kind in topology.kinds.items()
    }
    most, wide = max((loads or {}).values(), default=0.0), WIDE if len(loads or {}) <= FEW else MEDIUM
    widths = {(link.src, link.dst): max(1.0, wide * load / most) for link, load in (loads or {}).items() if most}
    return Layout(width, height, boxes, cells, lanes, bars, faint, 2 * apart - 2, labelled, hosts, shown, widths)


def _lane(a: Box, b: Box, others: list[Box], middle: Point, aside: float) -> Line:
    """Return the lane from ``a`` to ``b``: straight, else from a lower to an upper edge, else nearer the ``middle``."""
    p, q = a.center, b.center
    if len(others) > MANY or not any(box.hides(p, q) for box in others):
        p, q = beside((p, q), aside)
        return along((p, q), a.exit(p, q)), along((q, p), b.exit(q, p))
    upper, lower = (a, b) if p[1] < q[1] else (b, a)
    steep = (upper.center[0], upper.y + upper.h), (lower.center[0], lower.y)
    if steep[0][1] < steep[1][1] and not any(box.hides(*steep) for box in others):
        return _ending(beside(steep if upper is a else steep[::-1], aside), a, b)
    ends = along((p, middle), a.exit(p, middle)), along((q, middle), b.exit(q, middle))
    return _ending(beside(ends, aside), a, b)


def _ending(line: Line, a: Box, b: Box) -> Line:
    """Let the line begin and end at the edges of ``a`` and ``b``, which a slanting line that was moved aside misses."""
    for box in (a, b):
        start, end = line
        far = math.dist(start, end) or 1.0
        inside = along(line, -min(40.0, box.w / 2, box.h / 2) / far)
        if box.x <= inside[0] <= box.x + box.w and box.y <= inside[1] <= box.y + box.h:
            line = along((inside, end), box.exit(inside, end)), end
        line = line[::-1]
    return line


def _upright(a: Box, b: Box, aside: float) -> Line:
    """Return the vertical lane between a bar and a box."""
    x, down = (a if a.w < b.w else b).center[0], a.center[1] < b.center[1]
    return beside(((x, a.y + a.h if down else a.y), (x, b.y if down else b.y + b.h)), aside)

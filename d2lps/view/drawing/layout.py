"""Where everything stands: the boxes of nodes, the lanes of links, the routes of messages. Numbers only, no SVG.

>>> from d2lps import aggregate_at, pcie_server
>>> place = arrange(pcie_server(gpus=2), aggregate_at(["gpu0", "gpu1"], "gpu0"))
>>> place.boxes["cpu"].y < place.boxes["switch"].y < place.boxes["gpu0"].y == place.boxes["gpu1"].y
True

A topology is drawn as a *tree* where it is one, its switches and memories as bars above what they join; as two
*rows* where servers deal with workers only, or one node with all others; else as a *circle*, in the order of a ring
if there is one, with what forwards in the middle of it, in the background. Every link is a lane on the right-hand
side of its direction, so that the two directions of a link lie side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from d2lps.plan.plan import Plan
from d2lps.topology.graph import FORWARDING, Topology
from d2lps.view.drawing.boxes import MARGIN, WIDEST, Box, Guests, Line, Point
from d2lps.view.drawing.circle import circle
from d2lps.view.drawing.svg import along
from d2lps.view.drawing.tree import Branch, branches, descent

BAR, ENDS = 46.0, 26.0  # how high a bar is, and how far it reaches beyond what it joins
DROP, BETWEEN = 58.0, 30.0  # the length of a lane to a bar, the distance of two rows of nodes
MANY = 24  # nodes: with more of them something is always in the way


@dataclass(frozen=True)
class Layout:
    """Boxes and lanes on a sheet of ``width`` × ``height``."""

    width: float
    height: float
    boxes: dict[str, Box]  # of every node of the topology
    cells: dict[str, dict[str, Box]]  # node of the plan → key → the cell of its buffer
    lanes: dict[tuple[str, str], Line]
    bars: frozenset[str]  # the nodes along which messages travel sideways
    faint: frozenset[str]  # the nodes that stand in the background, with their links
    room: float  # the breadth of one lane
    labelled: bool  # whether the keys have room for their names

    def route(self, hops: Sequence[tuple[str, str]], start: Point, end: Point, aside: Sequence[float], row: float):
        """The way of a message over the lanes ``hops``, from ``start`` to ``end``, as points.

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


def arrange(topology: Topology, plan: Plan | None = None, widest: float = 104.0) -> Layout:
    """The layout of ``plan``'s nodes on ``topology``; in a tree no node is wider than ``widest``.

    Without a plan it is that of the topology alone, whose nodes then have no buffers.
    """
    guests = Guests.of(plan) if plan is not None else Guests.on(topology)
    inner = [node for node, kind in topology.kinds.items() if node not in guests.nodes and kind in FORWARDING]
    outer = [node for node in topology.kinds if node not in inner]
    faint = ()
    if tree := branches(topology, guests):
        boxes, bars = _tree(tree, guests, widest)
    elif not inner and (top := _above(topology, guests)):
        boxes, bars = _rows(top, [node for node in topology.kinds if node not in top], guests), ()
    elif not inner and (tree := descent(topology)):
        boxes, bars = _tree(tree, guests, widest)
    else:
        boxes, bars, faint = circle(outer, inner, topology, guests), (), inner
    return _finish(topology, guests, boxes, frozenset(bars), frozenset(faint))


def _above(topology: Topology, guests: Guests) -> Sequence[str]:
    """Who stands in a row of its own above the others: servers that only workers talk to, or the centre of a star."""
    pairs = [{link.src, link.dst} for link in topology.links]
    for top in (guests.servers, *((node,) for node in guests.nodes)):
        if 0 < len(top) < len(topology.kinds) - 1 and pairs and all(len(pair & set(top)) == 1 for pair in pairs):
            return top
    return ()


def _across(count: int) -> float:
    """How wide a node may be where ``count`` of them share a line."""
    return 104.0 if count <= 5 else 86.0 if count <= 7 else max(30.0, min(70.0, WIDEST / count - 20))


def _line(nodes: Sequence[str], guests: Guests, width: float, pitch: float, middle: float, y: float) -> dict[str, Box]:
    """Boxes side by side, their common middle at ``middle``, their upper edge at ``y``."""
    boxes = {}
    for i, node in enumerate(nodes):
        w, h = guests.size(node, width)
        boxes[node] = Box(middle + (i - (len(nodes) - 1) / 2) * pitch - w / 2, y, w, h)
    return boxes


def _tree(root: Branch, guests: Guests, widest: float) -> tuple[dict[str, Box], set[str]]:
    """Everyone above what hangs below it, bars as wide as that; some nodes stand above the uppermost bar."""
    span = max(root.span, len(root.above), 2)
    width = min(widest, _across(math.ceil(span)))
    pitch = width + (14 if width > 80 else 20 if width > 40 else 12)
    boxes, bars = {}, set()
    first = max((guests.size(node, width)[1] for node in root.above), default=0)
    top = MARGIN + (first + DROP if root.above else 0)

    def put(branch: Branch, left: float, y: float) -> None:
        wide = branch.span * pitch
        if branch.bar:
            bars.add(branch.name)
            boxes[branch.name] = Box(left + 6, y, wide - 12, BAR)
        else:
            boxes.update(_line([branch.name], guests, width, pitch, left + wide / 2, y))
        y += boxes[branch.name].h + DROP
        x = left + (wide - sum(child.span for child in branch.below if not branch.staggered) * pitch) / 2
        high = max((guests.size(child.name, width)[1] for child in branch.below), default=0)
        for i, child in enumerate(branch.below):
            if branch.staggered:  # the second row stands under the gaps of the first, through which its lanes pass
                half = math.ceil(len(branch.below) / 2)
                row, column = divmod(i, half)
                put(child, left + (column + 0.5 * row) * pitch, y + row * (high + BETWEEN))
            else:
                put(child, x, y)
                x += child.span * pitch

    left = MARGIN + ENDS + max(0.0, (span - root.span) * pitch / 2)
    put(root, left, top)
    middle = left + root.span * pitch / 2
    for node, box in _line(root.above, guests, width, pitch, middle, 0).items():
        boxes[node] = Box(box.x, top - DROP - box.h, box.w, box.h)
    if root.bar:
        boxes[root.name] = Box(middle - span * pitch / 2 - ENDS, top, span * pitch + 2 * ENDS, BAR)
    return boxes, bars


def _rows(top: Sequence[str], bottom: Sequence[str], guests: Guests) -> dict[str, Box]:
    count = max(len(top), len(bottom))
    width = _across(count)
    pitch = width + (18 if width > 80 else 10)
    middle = MARGIN + max(count, 2) * pitch / 2
    boxes = _line(top, guests, width, pitch * min(1.7, count / len(top)), middle, MARGIN)
    y = MARGIN + max(box.h for box in boxes.values()) + (2.2 if len(top) * len(bottom) > 8 else 1.7) * DROP
    return boxes | _line(bottom, guests, width, pitch, middle, y)


def _finish(
    topology: Topology, guests: Guests, boxes: dict[str, Box], bars: frozenset[str], faint: frozenset[str]
) -> Layout:
    width = max(box.x + box.w for box in boxes.values()) + MARGIN
    height = max(box.y + box.h for box in boxes.values()) + MARGIN
    apart = min(16.0, min(boxes[node].w for node in guests.nodes) / 6)
    if not bars:
        links = [link for link in topology.links if not {link.src, link.dst} & faint]
        most = max([sum(node in (x.src, x.dst) for x in links) for node in topology.kinds], default=0)
        apart = 14.0 if most <= 4 else 8.0 if most <= 8 else 5.0 if most <= 14 else 2.5
    middle = width / 2, height / 2
    ends, lanes = {(link.src, link.dst): link for link in topology.links}, {}
    for src, dst in ends:
        a, b = boxes[src], boxes[dst]
        # A link that goes one way only has the middle for itself.
        aside = 0.0 if (dst, src) not in ends else 2.5 if {src, dst} & faint else apart
        if {src, dst} & bars:
            # Straight up or down, wherever the bar is met.
            x = (a if a.w < b.w else b).centre[0]
            down = a.centre[1] < b.centre[1]
            lanes[src, dst] = beside(((x, a.y + a.h if down else a.y), (x, b.y if down else b.y + b.h)), aside)
        else:
            others = [] if {src, dst} & faint else [box for node, box in boxes.items() if node not in (src, dst)]
            lanes[src, dst] = _between(a, b, others, middle, aside)
    labelled = all(guests.labelled(boxes[node].w) for node in guests.nodes)
    cells = {node: guests.cells(boxes[node]) for node in guests.nodes}
    return Layout(width, height, boxes, cells, lanes, bars, faint, 2 * apart - 2, labelled)


def _between(a: Box, b: Box, others: list[Box], middle: Point, aside: float) -> Line:
    """From the edge of ``a`` to that of ``b``: straight, else from below to above, else nearer to the ``middle``."""
    p, q = a.centre, b.centre
    if len(others) > MANY or not any(box.hides(p, q) for box in others):
        p, q = beside((p, q), aside)
        return along((p, q), a.exit(p, q)), along((q, p), b.exit(q, p))
    upper, lower = (a, b) if p[1] < q[1] else (b, a)
    steep = (upper.centre[0], upper.y + upper.h), (lower.centre[0], lower.y)
    if steep[0][1] < steep[1][1] and not any(box.hides(*steep) for box in others):
        return beside(steep if upper is a else steep[::-1], aside)
    return beside((along((p, middle), a.exit(p, middle)), along((q, middle), b.exit(q, middle))), aside)


def beside(line: Line, offset: float) -> Line:
    """The line moved by ``offset`` to the right of its direction."""
    (ax, ay), (bx, by) = line
    length = math.dist(*line) or 1.0
    dx, dy = -(by - ay) / length * offset, (bx - ax) / length * offset
    return (ax + dx, ay + dy), (bx + dx, by + dy)

"""Where everything stands: the boxes of nodes, the lanes of links, the routes of messages. Numbers only, no SVG.

>>> from d2lps import aggregate_at, pcie_server
>>> place = arrange(pcie_server(gpus=2), aggregate_at(["gpu0", "gpu1"], "gpu0"))
>>> place.boxes["cpu"].y < place.boxes["switch"].y < place.boxes["gpu0"].y == place.boxes["gpu1"].y
True

A topology is drawn as a *tree* where it is one, its switches and memories as bars above what they join; as two
*rows* where servers deal with workers only, or one node with all others; else as a *circle*, with what forwards in
the middle of what it joins. Every link is a lane on the right-hand side of its direction, so that the two
directions of a link lie side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from d2lps.drawing.tree import Branch, branches
from d2lps.plan import Plan
from d2lps.topology import FORWARDING, Topology

Point = tuple[float, float]
Line = tuple[Point, Point]

MARGIN, PAD, LABEL, KEYS = 10.0, 6.0, 20.0, 13.0
WIDEST = 760.0
BAR, ENDS = 46.0, 26.0  # how high a bar is, and how far it reaches beyond what it joins
DROP, BETWEEN = 58.0, 30.0  # the length of a lane to a bar, the distance of two rows of nodes


@dataclass(frozen=True)
class Box:
    """A rectangle: its left upper corner, width and height."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> Point:
        return self.x + self.w / 2, self.y + self.h / 2

    def overlaps(self, other: "Box", gap: float = 0.0) -> bool:
        """Whether the two are nearer to each other than ``gap``."""
        return (self.x < other.x + other.w + gap and other.x < self.x + self.w + gap
                and self.y < other.y + other.h + gap and other.y < self.y + self.h + gap)  # fmt: skip

    def edge(self, towards: Point) -> float:
        """Which part of the way from the centre to ``towards`` lies inside."""
        (cx, cy), (x, y) = self.centre, towards
        return min([1.0, *(half / abs(d) for half, d in ((self.w / 2, x - cx), (self.h / 2, y - cy)) if d)])


@dataclass(frozen=True)
class Layout:
    """Boxes and lanes on a sheet of ``width`` × ``height``."""

    width: float
    height: float
    boxes: dict[str, Box]  # of every node of the topology
    cells: dict[str, dict[str, Box]]  # node of the plan → key → the cell of its buffer
    lanes: dict[tuple[str, str], Line]
    bars: frozenset[str]  # the nodes along which messages travel sideways
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


def arrange(topology: Topology, plan: Plan, widest: float = 104.0) -> Layout:
    """The layout of ``plan``'s nodes on ``topology``; in a tree no node is wider than ``widest``."""
    holders = {node for node, _ in plan.holds}
    servers = [node for node in plan.nodes if node not in holders]
    inner = [node for node, kind in topology.kinds.items() if node not in plan.nodes and kind in FORWARDING]
    if tree := branches(topology, plan, servers):
        boxes, bars = _tree(tree, plan, widest)
    elif not inner and (top := _above(topology, plan, servers)):
        boxes, bars = _rows(top, [node for node in topology.kinds if node not in top], plan), ()
    else:
        boxes, bars = _circle([node for node in topology.kinds if node not in inner], inner, topology, plan), ()
    return _finish(topology, plan, boxes, frozenset(bars))


def _above(topology: Topology, plan: Plan, servers: list[str]) -> list[str]:
    """Who stands in a row of its own above the others: servers that only workers talk to, or the centre of a star."""
    pairs = [{link.src, link.dst} for link in topology.links]
    for top in (servers, *([node] for node in plan.nodes)):
        if 0 < len(top) < len(topology.kinds) - 1 and pairs and all(len(pair & set(top)) == 1 for pair in pairs):
            return top
    return []


def _across(count: int) -> float:
    """How wide a node may be where ``count`` of them share a line."""
    return 104.0 if count <= 5 else 86.0 if count <= 7 else max(30.0, min(70.0, WIDEST / count - 20))


def _size(node: str, plan: Plan, width: float) -> tuple[float, float]:
    """Width and height of a node's box; nodes without a buffer are small."""
    if node not in plan.nodes:
        return min(width, 76.0), 30.0
    return width, PAD + LABEL + _tall(plan) + (KEYS if _labelled(plan, width) else 0) + PAD


def _tall(plan: Plan) -> float:
    return 48.0 if len(plan.nodes) <= 8 else 44.0


def _labelled(plan: Plan, width: float) -> bool:
    narrowest = min((part for part in plan.share.values() if part), default=0)
    return len(plan.share) > 1 and float(narrowest) * (width - 2 * PAD) >= 20


def _line(nodes: Sequence[str], plan: Plan, width: float, pitch: float, middle: float, y: float) -> dict[str, Box]:
    """Boxes side by side, their common middle at ``middle``, their upper edge at ``y``."""
    boxes = {}
    for i, node in enumerate(nodes):
        w, h = _size(node, plan, width)
        boxes[node] = Box(middle + (i - (len(nodes) - 1) / 2) * pitch - w / 2, y, w, h)
    return boxes


def _tree(root: Branch, plan: Plan, widest: float) -> tuple[dict[str, Box], set[str]]:
    """Every bar above what it joins, as wide as that; some nodes stand above the uppermost bar."""
    span = max(root.span, len(root.above), 2)
    width = min(widest, _across(math.ceil(span)))
    pitch = width + (14 if width > 80 else 20 if width > 40 else 12)
    boxes, bars = {}, set()
    first = max((_size(node, plan, width)[1] for node in root.above), default=0)
    top = MARGIN + (first + DROP if root.above else 0)

    def put(branch: Branch, left: float, y: float) -> None:
        wide = branch.span * pitch
        if branch.bar:
            bars.add(branch.name)
            boxes[branch.name] = Box(left + 6, y, wide - 12, BAR)
        else:
            boxes.update(_line([branch.name], plan, width, pitch, left + wide / 2, y))
        y += boxes[branch.name].h + DROP
        x = left + (wide - sum(child.span for child in branch.below if not branch.staggered) * pitch) / 2
        high = max((_size(child.name, plan, width)[1] for child in branch.below), default=0)
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
    for node, box in _line(root.above, plan, width, pitch, middle, 0).items():
        boxes[node] = Box(box.x, top - DROP - box.h, box.w, box.h)
    boxes[root.name] = Box(middle - span * pitch / 2 - ENDS, top, span * pitch + 2 * ENDS, BAR)
    return boxes, bars


def _rows(top: list[str], bottom: list[str], plan: Plan) -> dict[str, Box]:
    count = max(len(top), len(bottom))
    width = _across(count)
    pitch = width + (18 if width > 80 else 10)
    middle = MARGIN + max(count, 2) * pitch / 2
    boxes = _line(top, plan, width, pitch * min(1.7, count / len(top)), middle, MARGIN)
    y = MARGIN + max(box.h for box in boxes.values()) + (2.2 if len(top) * len(bottom) > 8 else 1.7) * DROP
    return boxes | _line(bottom, plan, width, pitch, middle, y)


def _circle(outer: list[str], inner: list[str], topology: Topology, plan: Plan) -> dict[str, Box]:
    """``outer`` at equal distances on a rounded figure, just as large as the boxes need; ``inner`` in between."""
    count = len(outer)
    dense = len(topology.links) > 4 * count or bool(inner)
    widths = ((5, 104.0), (8, 92.0), (12, 64.0 if dense else 84.0), (16, 64.0 if dense else 78.0), (10**9, 44.0))
    width = next(w for most, w in widths if count <= most)
    sizes = [_size(node, plan, width) for node in outer]
    if count <= 2:
        spots = [(sign * width * 1.1, 0.0) for sign in ((-1, 1) if count == 2 else (0,))]
    else:
        size, gap = 90.0, 46.0 if count <= 5 or (dense and count <= 8) else 36.0 if count <= 8 else 24.0
        while True:
            # Chords should not cross boxes, so only what is (almost) a ring may be square.
            most = (WIDEST - width) / 2 * max(1.0, count / 16)
            spots = _around(count, min(size, most), size * 0.62, 2.0 if dense else 2.6)
            boxes = [Box(x - w / 2, y - h / 2, w, h) for (x, y), (w, h) in zip(spots, sizes, strict=True)]
            if not any(a.overlaps(b, gap) for i, a in enumerate(boxes) for b in boxes[:i]):
                break
            size += 4
    at = dict(zip(outer, spots, strict=True)) | dict.fromkeys(inner, (0.0, 0.0))
    for _ in range(60 if inner else 0):
        for node in inner:
            near = [at[link.dst] for link in topology.links if link.src == node] or [(0.0, 0.0)]
            at[node] = sum(x for x, _ in near) / len(near), sum(y for _, y in near) / len(near)
    boxes = {}
    for node, (x, y) in at.items():
        w, h = _size(node, plan, width)
        boxes[node] = Box(x - w / 2, y - h / 2, w, h)
    left, top = min(box.x for box in boxes.values()), min(box.y for box in boxes.values())
    return {node: Box(box.x - left + MARGIN, box.y - top + MARGIN, box.w, box.h) for node, box in boxes.items()}


def _around(count: int, across: float, down: float, power: float) -> list[Point]:
    """``count`` points at equal distances along |x|ᵖ + |y|ᵖ = 1 (a circle for p = 2), clockwise from its top."""

    def bent(value: float) -> float:
        return math.copysign(abs(value) ** (2 / power), value)

    turn = [(across * bent(math.sin(a)), -down * bent(math.cos(a))) for a in (math.tau * i / 2000 for i in range(2001))]
    length = [0.0]
    for a, b in zip(turn, turn[1:], strict=False):
        length.append(length[-1] + math.dist(a, b))
    found, i = [], 0
    for k in range(count):
        while length[i] < length[-1] * k / count - 1e-9:
            i += 1
        found.append(turn[i])
    return found


def _finish(topology: Topology, plan: Plan, boxes: dict[str, Box], bars: frozenset[str]) -> Layout:
    width = max(box.x + box.w for box in boxes.values()) + MARGIN
    height = max(box.y + box.h for box in boxes.values()) + MARGIN
    narrowest = min(boxes[node].w for node in plan.nodes)
    apart = min(16.0, narrowest / 6)
    if not bars:
        most = max([sum(node in (x.src, x.dst) for x in topology.links) for node in topology.kinds], default=0)
        apart = 14.0 if most <= 4 else 8.0 if most <= 8 else 5.0 if most <= 14 else 2.5
    lanes = {}
    for link in topology.links:
        a, b = boxes[link.src], boxes[link.dst]
        if {link.src, link.dst} & bars:
            # Straight up or down, wherever the bar is met.
            x = (a if a.w < b.w else b).centre[0]
            down = a.centre[1] < b.centre[1]
            line = ((x, a.y + a.h if down else a.y), (x, b.y if down else b.y + b.h))
        else:
            (ax, ay), (bx, by) = a.centre, b.centre
            s, e = a.edge(b.centre), 1 - b.edge(a.centre)
            line = ((ax + (bx - ax) * s, ay + (by - ay) * s), (ax + (bx - ax) * e, ay + (by - ay) * e))
        lanes[link.src, link.dst] = beside(line, apart)
    labelled = all(_labelled(plan, boxes[node].w) for node in plan.nodes)
    cells = {node: _cells(plan, boxes[node]) for node in plan.nodes}
    return Layout(width, height, boxes, cells, lanes, bars, 2 * apart - 2, labelled)


def _cells(plan: Plan, box: Box) -> dict[str, Box]:
    """A cell per key, its width the key's share of the buffer."""
    across, done, found = box.w - 2 * PAD, 0.0, {}
    for key, part in plan.share.items():
        found[key] = Box(box.x + PAD + done, box.y + PAD + LABEL, across * float(part), _tall(plan))
        done += across * float(part)
    return found


def beside(line: Line, offset: float) -> Line:
    """The line moved by ``offset`` to the right of its direction."""
    (ax, ay), (bx, by) = line
    length = math.dist(*line) or 1.0
    dx, dy = -(by - ay) / length * offset, (bx - ax) / length * offset
    return (ax + dx, ay + dy), (bx + dx, by + dy)

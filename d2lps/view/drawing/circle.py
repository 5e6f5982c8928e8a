"""Nodes round a circle, so that neighbours stand side by side; what only forwards stands in its middle.

>>> from d2lps.topology import Topology, both_ways
>>> links = [both_ways(a, b, "25 GB/s") for a, b in ("ab", "bd", "dc", "ca")]
>>> in_order(list("abcd"), Topology("four", dict.fromkeys("abcd", "gpu"), tuple(sum(links, []))))
['a', 'b', 'd', 'c']
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, product

from d2lps.topology.cycles import rings
from d2lps.topology.graph import Topology, TopologyError
from d2lps.view.drawing.boxes import MARGIN, WIDEST, Box, Guests, Point
from d2lps.view.drawing.svg import along

INNER = 54.0, 24.0  # the size of what only forwards
PITCHES = 60.0, 70.0, 84.0, 98.0, 112.0  # how far apart it may stand in a row
MANY = 64  # links: with more of them something is always in the way


def circle(outer: list[str], inner: list[str], topology: Topology, guests: Guests) -> dict[str, Box]:
    """``outer`` at equal distances on a rounded figure, just as large as the boxes need; ``inner`` in between."""
    count, direct = len(outer), _direct(outer, topology)
    chords = len(direct) > count or bool(inner)
    widths = ((5, 104.0), (8, 92.0), (12, 70.0 if chords else 100.0), (16, 64.0 if chords else 96.0), (10**9, 44.0))
    width = next(w for most, w in widths if count <= most)
    spots = _spots(outer, width, guests, chords, roomy=bool(inner))
    boxes = {
        node: Box.around(spot, *guests.size(node, width))
        for node, spot in zip(in_order(outer, topology), spots, strict=True)
    }
    boxes |= _middle(inner, boxes, direct, topology)
    left, top = min(box.x for box in boxes.values()), min(box.y for box in boxes.values())
    return {
        node: Box(boxes[node].x - left + MARGIN, boxes[node].y - top + MARGIN, boxes[node].w, boxes[node].h)
        for node in topology.kinds
    }


def in_order(nodes: list[str], topology: Topology) -> list[str]:
    """``nodes`` in the order of a ring of direct links through all of them, if there is one that spares crossings."""
    direct = _direct(nodes, topology)
    if not len(nodes) <= len(direct) <= 3 * len(nodes):
        return nodes
    found = min([nodes, *_rings(nodes, direct, topology)], key=lambda order: _crossings(order, direct))
    start = found.index(nodes[0])
    return found[start:] + found[:start]


def _direct(nodes: Iterable[str], topology: Topology) -> set[frozenset[str]]:
    """The pairs of ``nodes`` that a link joins."""
    pairs = (frozenset((link.src, link.dst)) for link in topology.links)
    return {pair for pair in pairs if pair <= set(nodes)}


def _rings(nodes: list[str], direct: set[frozenset[str]], topology: Topology) -> list[list[str]]:
    """The rings of ``topology`` through all of ``nodes``, or the one that the direct links are."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(sorted(sorted(pair, key=nodes.index) for pair in direct))
    if all(degree == 2 for _, degree in graph.degree) and networkx.is_connected(graph):
        return [list(networkx.dfs_preorder_nodes(graph, nodes[0]))]
    if len(nodes) > 8:  # rings in larger meshes are many, and none of them untangles the rest
        return []
    try:
        found = rings(topology)
    except TopologyError:
        return []
    return [list(ring.nodes) for ring in found if set(ring.nodes) == set(nodes)]


def _crossings(order: list[str], direct: set[frozenset[str]]) -> int:
    """How many pairs of links cross where ``order`` stands round a circle."""
    rank = {node: i for i, node in enumerate(order)}
    ends = [tuple(sorted(rank[node] for node in pair)) for pair in direct]
    return sum(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(ends, 2))


def _spots(outer: list[str], width: float, guests: Guests, chords: bool, roomy: bool) -> list[Point]:
    """Where the middles of the boxes stand, the first at the top, or beside it where something stands in between."""
    count = len(outer)
    if count <= 2:
        return [(sign * width * 1.1, 0.0) for sign in ((-1, 1) if count == 2 else (0,))]
    sizes = [guests.size(node, width) for node in outer]
    gap = 46.0 if count <= 5 or (chords and count <= 8) else 36.0 if count <= 8 else 24.0
    gap = gap if guests.share else gap + 24.0  # bare boxes are low, and let too little be seen of the links
    size = 230.0 if roomy else 90.0
    while True:
        # Chords should not cross boxes, so only what is a ring may be square.
        most, power = (WIDEST - width) / 2 * max(1.0, count / 16), 2.0 if chords else 2.6 if count <= 12 else 5.0
        spots = _around(count, min(size, most), size * (0.8 if roomy else 0.62), power, roomy)
        boxes = [Box.around(spot, w, h) for spot, (w, h) in zip(spots, sizes, strict=True)]
        if not any(a.overlaps(b, gap) for a, b in combinations(boxes, 2)):
            return spots
        size += 4


def _around(count: int, across: float, down: float, power: float, turned: bool) -> list[Point]:
    """``count`` points at equal distances along |x|ᵖ + |y|ᵖ = 1 (a circle for p = 2), clockwise from its top.

    ``turned``: by half a distance, so that they stand to the left and right of the axis.
    """

    def bent(value: float) -> float:
        return math.copysign(abs(value) ** (2 / power), value)

    turn = [(across * bent(math.sin(a)), -down * bent(math.cos(a))) for a in (math.tau * i / 2000 for i in range(2001))]
    length = [0.0]
    for a, b in zip(turn, turn[1:], strict=False):
        length.append(length[-1] + math.dist(a, b))
    found, i = [], 0
    for k in range(count):
        far = length[-1] * (k + turned / 2) / count
        while length[i + 1] < far:
            i += 1
        found.append(along((turn[i], turn[i + 1]), (far - length[i]) / (length[i + 1] - length[i])))
    return found


def _middle(inner: list[str], boxes: dict[str, Box], direct: set[frozenset[str]], topology: Topology) -> dict[str, Box]:
    """``inner`` in rows, such that few links run behind a box; above the outer nodes if they leave no room."""
    if not inner:
        return {}
    near = {node: [link.dst for link in topology.links if link.src == node] for node in inner}
    rows = _levels(inner, near, boxes)
    ways = [tuple(boxes[node].centre for node in pair) for pair in direct] if len(direct) <= MANY else []
    pitches = product(PITCHES, repeat=len(rows)) if len(rows) <= 2 else [[pitch] * len(rows) for pitch in PITCHES]
    tried = [_stacked(rows, each, low) for each, low in product(pitches, (0, 18, 36))]

    def price(found: dict[str, Box]) -> tuple:
        own = [(a, b, found[a].centre, (found | boxes)[b].centre) for a in inner for b in near[a]]
        hidden = sum(box.hides(*way) for box in found.values() for way in ways)
        hidden += sum(box.hides(p, q, 2) for node, box in found.items() for a, b, p, q in own if node not in (a, b))
        return _meeting(found, boxes), hidden, sum(math.dist(p, q) for _, _, p, q in own)

    best = min(tried, key=price)
    lift = 0.0
    if _meeting(best, boxes):
        lift = max(box.y + box.h for box in best.values()) - min(box.y for box in boxes.values()) + 30
    return {node: Box(box.x, box.y - lift, box.w, box.h) for node, box in best.items()}


def _levels(inner: list[str], near: dict[str, list[str]], boxes: dict[str, Box]) -> list[list[str]]:
    """Rows of ``inner``: the neighbours of outer nodes, then theirs, each from left to right as its neighbours are."""
    at = {node: box.centre[0] for node, box in boxes.items()} | dict.fromkeys(inner, 0.0)
    for _ in range(60):  # everyone goes to the middle of its neighbours
        for node in inner:
            others = [at[other] for other in near[node]] or [0.0]
            at[node] = sum(others) / len(others)
    rows, left, known = [], list(inner), set(boxes)
    while left:
        row = [node for node in left if known & set(near[node])] or left
        rows.append(sorted(row, key=lambda node: round(at[node])))
        known |= set(row)
        left = [node for node in left if node not in row]
    return rows


def _stacked(rows: list[list[str]], pitches: Sequence[float], low: float) -> dict[str, Box]:
    """The rows one above the other, the first at height ``low``."""
    found = {}
    for k, (row, pitch) in enumerate(zip(rows, pitches, strict=True)):
        for i, node in enumerate(row):
            found[node] = Box.around(((i - (len(row) - 1) / 2) * pitch, low - 46.0 * k), *INNER)
    return found


def _meeting(found: dict[str, Box], boxes: dict[str, Box]) -> int:
    """How many of the two are too near to each other."""
    return sum(box.overlaps(other, 8) for box in found.values() for other in boxes.values())

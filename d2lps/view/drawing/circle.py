"""Nodes on a circle with neighbors side by side, and nodes that only forward in its middle.

>>> from d2lps.topology import Topology, both_ways
>>> links = [both_ways(a, b, "25 GB/s") for a, b in ("ab", "bd", "dc", "ca")]
>>> in_order(list("abcd"), Topology("four", dict.fromkeys("abcd", "gpu"), tuple(sum(links, []))))
['a', 'b', 'd', 'c']
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, combinations, pairwise

from d2lps.topology import Topology, TopologyError
from d2lps.topology.cycles import rings
from d2lps.view.drawing.boxes import WIDEST, Box, Participants
from d2lps.view.drawing.hierarchy import subgraph
from d2lps.view.drawing.svg import Point, along

INNER = 54.0, 24.0  # the size of nodes that only forward
ACROSS, DOWN = (84.0, 70.0), 46.0  # their distance in the first row and in those above, and the distance of rows


def circle(topology: Topology, participants: Participants) -> dict[str, Box]:
    """Place the participants at equal distances on a rounded figure as large as their boxes need, the others inside."""
    inner = participants.inner(topology)
    outer = in_order([node for node in topology.kinds if node not in inner], topology)
    chords = subgraph(topology, outer).number_of_edges() > len(outer) or bool(inner)
    widths = ((5, 104.0), (8, 92.0), (12, 70.0 if chords else 100.0), (16, 64.0 if chords else 96.0))
    width = next((width for limit, width in widths if len(outer) <= limit), 44.0)
    boxes = _around(outer, width, participants, chords, bool(inner))
    boxes |= _middle(inner, boxes, topology)
    return {node: boxes[node] for node in topology.kinds}


def in_order(nodes: list[str], topology: Topology) -> list[str]:
    """Return ``nodes`` in the order of a ring of direct links through all of them, if that avoids crossings."""
    import networkx

    graph = subgraph(topology, nodes)
    if not len(nodes) <= graph.number_of_edges() <= 3 * len(nodes):
        return nodes
    # Larger meshes have many rings, none of which untangles the others; a single ring is found by walking along it.
    orders = [list(networkx.dfs_preorder_nodes(graph, nodes[0]))] if max(dict(graph.degree).values()) == 2 else []
    if not orders and len(nodes) <= 8:
        try:
            orders = [list(ring.nodes) for ring in rings(topology)]
        except TopologyError:
            orders = []
    rank = [{node: i for i, node in enumerate(order)} for order in (nodes, *orders) if {*order} == {*nodes}]
    ends = [[sorted((place[a], place[b])) for a, b in graph.edges] for place in rank]
    crossings = [sum(a < c < b < d or c < a < d < b for (a, b), (c, d) in combinations(lines, 2)) for lines in ends]
    best = list(rank[crossings.index(min(crossings))])
    return best[best.index(nodes[0]) :] + best[: best.index(nodes[0])]


def _around(nodes: list[str], width: float, participants: Participants, chords: bool, roomy: bool) -> dict[str, Box]:
    """Return the boxes of ``nodes``, the first at the top, or beside it if nodes stand in the middle (``roomy``)."""
    count = len(nodes)
    sizes = [participants.size(node, width) for node in nodes]

    def boxes(spots: Iterable[Point]) -> list[Box]:
        return [Box.around(spot, *size) for spot, size in zip(spots, sizes, strict=True)]

    if count <= 2:
        spots = [(-width * 1.1, 0.0), (width * 1.1, 0.0)] if count == 2 else [(0.0, 0.0)]
        return dict(zip(nodes, boxes(spots), strict=True))
    gap = 46.0 if count <= 5 or (chords and count <= 8) else 36.0 if count <= 8 else 24.0
    gap = gap if participants.share else gap + 24.0  # boxes without buffers are low and would hide the links
    # Chords should not cross boxes, so only a plain ring may be almost square.
    limit, power = (WIDEST - width) / 2 * max(1.0, count / 16), 2.0 if chords else 2.6 if count <= 12 else 5.0
    size = 230.0 if roomy else 90.0
    while True:
        placed = boxes(_spots(count, min(size, limit), size * (0.8 if roomy else 0.62), power, roomy))
        if not any(a.overlaps(b, gap) for a, b in combinations(placed, 2)):
            return dict(zip(nodes, placed, strict=True))
        size += 4


def _spots(count: int, across: float, down: float, power: float, turned: bool) -> list[Point]:
    """Return ``count`` points at equal distances along |x|ᵖ + |y|ᵖ = 1 (a circle for p = 2), clockwise from its top.

    ``turned`` shifts them by half a distance, to the left and right of the axis.
    """

    def bent(value: float) -> float:
        return math.copysign(abs(value) ** (2 / power), value)

    turn = [(across * bent(math.sin(a)), -down * bent(math.cos(a))) for a in (math.tau * i / 2000 for i in range(2001))]
    length = [*accumulate((math.dist(*pair) for pair in pairwise(turn)), initial=0.0)]
    spots = []
    for k in range(count):
        far = length[-1] * (k + turned / 2) / count
        i = max(0, bisect_left(length, far) - 1)
        spots.append(along((turn[i], turn[i + 1]), (far - length[i]) / (length[i + 1] - length[i])))
    return spots


def _middle(inner: list[str], boxes: dict[str, Box], topology: Topology) -> dict[str, Box]:
    """Place ``inner`` in rows: neighbors of the outer nodes, then their neighbors; on top if the middle has no room."""
    import networkx

    if not inner:
        return {}
    x, middle = {node: box.center[0] for node, box in boxes.items()}, {}
    graph = subgraph(topology, topology.kinds)
    layers = [*networkx.bfs_layers(graph, list(boxes))][1:]
    layers.append(set(inner).difference(*layers))  # nodes without a path to the outer nodes
    rows = [[node for node in inner if node in layer] for layer in layers]
    for k, row in enumerate(rows):
        near = {node: [x[other] for other in graph[node] if other in x] or [0.0] for node in row}
        row = sorted(row, key=lambda node: round(sum(near[node]) / len(near[node])))
        for i, node in enumerate(row):
            x[node] = (i - (len(row) - 1) / 2) * ACROSS[k > 0]
            middle[node] = Box.around((x[node], -DOWN * k), *INNER)

    def behind(placed: dict[str, Box]) -> bool:
        """Return True if a link runs behind a node that it does not join, and seems to end there."""
        every = boxes | placed
        return any(
            box.hides(every[a].center, every[b].center)
            for a, b in graph.edges
            if a in placed or b in placed
            for node, box in placed.items()
            if node not in (a, b)
        )

    for far in range(0, 97, 8):  # move the upper rows away from the links of those below
        higher = {node: box.moved(0, box.center[1] / DOWN * far) for node, box in middle.items()}
        if not behind(higher):
            middle = higher
            break
    lift = 0.0
    if any(box.overlaps(other, 8) for box in middle.values() for other in boxes.values()):
        lift = max(box.y + box.h for box in middle.values()) - min(box.y for box in boxes.values()) + 30
    return {node: box.moved(0, -lift) for node, box in middle.items()}

"""Boxes, and the nodes that take part in a picture, each as large as its buffer needs.

>>> from d2lps import pcie_server, sharded
>>> Participants.of(sharded(["gpu0", "gpu1"])).size("gpu0", 104)
(104, 93.0)
>>> Participants.on(pcie_server(gpus=2)).nodes
('gpu0', 'gpu1')
>>> host("host0/gpu1"), local_name("host0/gpu1"), host("gpu1"), local_name("gpu1")
('host0', 'gpu1', '', 'gpu1')

Hosts as boxes: nodes whose names share the part before "/" are inside one box, which has that name.

>>> from d2lps import machines
>>> sorted(tops(machines(hosts=2, gpus_per_host=1).kinds, {"network": ["host0/switch", "host1/switch"]}))
['host0/switch', 'host1/switch']

Tiers: nodes in a row, the switches above them by their distance, and the switches within hosts below.

>>> from d2lps import rails
>>> place = rails(hosts=2, gpus=1)
>>> boxes = tiers(place, Participants.on(place))
>>> boxes["spine"].y < boxes["rail0"].y < boxes["host0/gpu0"].y < boxes["host0/nvswitch"].y
True

Hierarchies of nodes: trees with switches as bars, trees of nodes, servers above their workers.

>>> from d2lps import pcie_server
>>> tree = hierarchy(pcie_server(gpus=2), Participants.on(pcie_server(gpus=2)))
>>> tree.root, tree.above, tree.below
('switch', ['cpu'], {'switch': ['gpu0', 'gpu1']})

Nodes on a circle with neighbors side by side, and nodes that only forward in its middle.

>>> from d2lps.topology import Topology, both_ways
>>> links = [both_ways(a, b, "25 GB/s") for a, b in ("ab", "bd", "dc", "ca")]
>>> in_order(list("abcd"), Topology("four", dict.fromkeys("abcd", "gpu"), tuple(sum(links, []))))
['a', 'b', 'd', 'c']

The layout: the boxes of nodes, the lanes of links, the routes of messages. Numbers only, no SVG.

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
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

from d2lps.messages import named
from d2lps.plan.plan import Plan
from d2lps.topology import Link, Topology, TopologyError
from d2lps.topology.cycles import rings
from d2lps.topology.graph import FORWARDING
from d2lps.view.drawing.svg import Line, Point, along, area, beside, block, escape, short, tag, words

MARGIN, PAD, LABEL, KEYS = 10.0, 6.0, 20.0, 13.0
KEY = 5.5  # the width of a letter of a key's name
WIDEST = 760.0


@dataclass(frozen=True)
class Box:
    """A rectangle: its left upper corner, width and height."""

    x: float
    y: float
    w: float
    h: float

    @property
    def center(self) -> Point:
        return self.x + self.w / 2, self.y + self.h / 2

    @classmethod
    def around(cls, center: Point, w: float, h: float) -> "Box":
        return cls(center[0] - w / 2, center[1] - h / 2, w, h)

    def moved(self, x: float, y: float) -> "Box":
        return Box(self.x + x, self.y + y, self.w, self.h)

    def overlaps(self, other: "Box", gap: float = 0.0) -> bool:
        """Return True if the two are nearer to each other than ``gap``."""
        return (
            self.x < other.x + other.w + gap
            and other.x < self.x + self.w + gap
            and self.y < other.y + other.h + gap
            and other.y < self.y + self.h + gap
        )

    def exit(self, a: Point, b: Point) -> float:
        """Return the part of the line from ``a``, which is inside, to ``b`` that lies inside."""
        axes = (a[0], b[0], self.x, self.x + self.w), (a[1], b[1], self.y, self.y + self.h)
        return max(0.0, min([1.0, *(((high if q > p else low) - p) / (q - p) for p, q, low, high in axes if p != q)]))

    def hides(self, a: Point, b: Point, gap: float = 6.0) -> bool:
        """Return True if the line from ``a`` to ``b`` runs behind the box, or nearer to it than ``gap``."""
        low, high = 0.0, 1.0
        for p, q, start, size in ((a[0], b[0], self.x, self.w), (a[1], b[1], self.y, self.h)):
            start, end = start - gap, start + size + gap
            if p == q and not start < p < end:
                return False
            if p != q:
                first, last = sorted(((start - p) / (q - p), (end - p) / (q - p)))
                low, high = max(low, first), min(high, last)
        return low < high


def host(node: str) -> str:
    """Return the host in the name of ``node``, or "" if there is none."""
    return node.rpartition("/")[0]


def spoken(topology: Topology) -> str:
    """Return the name of a topology in the language in force, without underscores."""
    return named(topology.name).replace("_", " ")


def local_name(node: str) -> str:
    """Return the name of ``node`` within its host."""
    return node.rpartition("/")[2]


@dataclass(frozen=True)
class Participants:
    """The nodes that take part, the servers among them, and the shares of their buffers (empty: no buffers)."""

    nodes: tuple[str, ...]
    servers: tuple[str, ...] = ()
    share: Mapping[str, Fraction] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> "Participants":
        """Return the participants of a plan; servers are the nodes that hold nothing at the start."""
        holders = {node for node, _ in plan.holds}
        return cls(plan.nodes, tuple(node for node in plan.nodes if node not in holders), plan.share)

    @classmethod
    def on(cls, topology: Topology) -> "Participants":
        """Return the nodes that could take part: all that do not only forward, or else the processors of hosts."""
        kinds = topology.kinds
        nodes = [node for node, kind in kinds.items() if kind not in FORWARDING]
        if not nodes and any(map(host, kinds)):
            nodes = [node for node, kind in kinds.items() if kind == "cpu"]
        return cls(tuple(nodes or kinds))

    def inner(self, topology: Topology) -> list[str]:
        """Return the nodes of ``topology`` that only forward."""
        return [node for node, kind in topology.kinds.items() if node not in self.nodes and kind in FORWARDING]

    def size(self, node: str, width: float) -> tuple[float, float]:
        """Return width and height of a node's box; nodes without a buffer are small."""
        if node not in self.nodes or not self.share:
            return min(width, 76.0), 30.0
        return width, PAD + LABEL + self.tall + (KEYS if self.labelled(width) else 0) + PAD

    @property
    def tall(self) -> float:
        """The height of a buffer: slots for sixteen workers are still visible."""
        return 48.0 if len(self.nodes) <= 12 else 52.0

    def labelled(self, width: float) -> bool:
        """Return True if the keys have room for distinct names; a key without a share has no room and needs none."""
        rooms = {key: float(part) * (width - 2 * PAD) for key, part in self.share.items() if part}
        shown = {short(key, room, KEY) for key, room in rooms.items()}
        return len(self.share) > 1 and min(rooms.values(), default=0) >= 20 and len(shown) == len(rooms)

    def cells(self, box: Box) -> dict[str, Box]:
        """Return a cell per key, as wide as the key's share of the buffer."""
        width, offset, cells = box.w - 2 * PAD, 0.0, {}
        for key, part in self.share.items():
            cells[key] = Box(box.x + PAD + offset, box.y + PAD + LABEL, width * float(part), self.tall)
            offset += width * float(part)
        return cells


SIDE, TOP, CAPTION = 8.0, 5.0, 22.0  # from the nodes to the edge of their host: beside, above, on the side of its name
EDGE = 12.0  # extra room of a host on either side, so that two hosts are apart


def tops(nodes: Iterable[str], below: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the uppermost node of each host, of the nodes ``below`` others; empty if no two nodes share a host.

    A node without a host that joins no others is a host by itself.
    """
    hosts = [host(node) for node in nodes if host(node)]
    if len(hosts) == len({*hosts}):
        return frozenset()
    pairs = [(node, above) for above, near in below.items() for node in near]
    return frozenset(a for a, b in pairs if host(a) != host(b) or (not host(a) and a not in below))


def enclosed(boxes: Mapping[str, Box], joining: Iterable[str], above: Iterable[str] = ()) -> dict[str, Box]:
    """Return the box of every host, by name; no box at all if another node is in the way.

    A node without a host is a host by itself, except for those ``joining`` hosts. The name of a host is below its
    nodes, where no lanes are; if they are ``above`` everything else, it is above them.
    """
    members: dict[str, list[str]] = {}
    for node in boxes:
        if node not in joining:
            members.setdefault(host(node) or node, []).append(node)
    around = {name: _around([boxes[node] for node in inside], inside[0] in above) for name, inside in members.items()}
    others = [(box, boxes[node]) for name, box in around.items() for node in boxes if node not in members[name]]
    if any(a.overlaps(b) for a, b in [*others, *combinations(around.values(), 2)]):
        return {}
    return around


def _around(inside: Sequence[Box], above: bool) -> Box:
    left, top = min(box.x for box in inside) - SIDE, min(box.y for box in inside) - (CAPTION if above else TOP)
    right, low = max(box.x + box.w for box in inside) + SIDE, max(box.y + box.h for box in inside)
    return Box(left, top, right - left, low + (TOP if above else CAPTION) - top)


def host_boxes(hosts: Mapping[str, Box], boxes: Mapping[str, Box]) -> str:
    """Draw the boxes of hosts with their names, which belong below all other parts."""
    parts = []
    for name, around in hosts.items():
        first = min(box.y for box in boxes.values() if box.overlaps(around))
        y = around.y + 16 if first - around.y > TOP else around.y + around.h - 6
        inside = tag("title", escape(name)) + block(around, rx=12, **area("band"))
        inside += words(name, around.center[0], y, "note", "soft", font_weight=600)
        parts.append(tag("g", inside, class_="d2-host"))
    return "".join(parts)


TIER, GAP, HIGH = 78.0, 26.0, 34.0  # between tiers, between boxes of a tier, the height of a switch
ROW = 8  # nodes in a row


def tiers(topology: Topology, participants: Participants) -> dict[str, Box]:
    """Return the boxes of all nodes, each tier in the middle of the sheet."""
    rows: dict[float, list[str]] = {}
    for node, far in _distances(topology, participants.nodes).items():
        rows.setdefault(0.5 if far and host(node) else -far, []).append(node)
    nodes = rows.pop(0)
    inside = rows.pop(0.5, [])
    ordered = [rows[far] for far in sorted(rows)]
    ordered += [nodes[i : i + ROW] for i in range(0, len(nodes), ROW)]
    boxes, y = {}, 0.0
    for row in [*ordered, inside]:
        wide = 104.0 if len(row) <= 4 else 80.0
        sizes = [participants.size(node, wide) if node in participants.nodes else (wide, HIGH) for node in row]
        x = -(sum(w for w, _ in sizes) + GAP * (len(row) - 1)) / 2
        for node, (w, h) in zip(row, sizes, strict=True):
            boxes[node] = Box(x, y, w, h)
            x += w + GAP
        y += max([h for _, h in sizes], default=0.0) + TIER
    return boxes


def _distances(topology: Topology, nodes: tuple[str, ...]) -> dict[str, int]:
    """Return node → the number of links from it to the nearest of ``nodes``, in the topology's order."""
    far, queue = dict.fromkeys(nodes, 0), [*nodes]
    for node in queue:  # grows meanwhile
        near = [link.dst for link in topology.leaving(node)] + [link.src for link in topology.arriving(node)]
        new = dict.fromkeys(other for other in near if other not in far)
        far |= dict.fromkeys(new, far[node] + 1)
        queue += new
    return {node: far.get(node, 0) for node in topology.kinds}


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
    gap = 14.0 if width > 80 else 20.0 if width > 40 else 12.0
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

    drop = 0 if not above else DROP if root else _drop(len(above) * len(tree.below[root]))
    left, top = max(0.0, (span * pitch - broad(root)) / 2), high(above) + drop
    put(root, left, top)
    middle = left + broad(root) / 2
    across = pitch + (EDGE if tree.tops else 0)
    line(above, middle, top - drop - high(above), across if root else pitch * min(1.7, span / len(above)))
    if root in tree.bars:
        breadth = max(span * pitch, broad(root), len(above) * across) + 2 * ENDS
        boxes[root] = Box(middle - breadth / 2, top, breadth, BAR)
    return boxes


def _drop(lanes: int) -> float:
    """Return the distance that this number of lanes needs to fan out without running behind a box."""
    return DROP * (1.0 if lanes <= 3 else 1.7 if lanes <= 8 else 2.2)


INNER = 54.0, 24.0  # the size of nodes that only forward
ACROSS, DOWN = (84.0, 70.0), 46.0  # their distance in the first row and in those above, and the distance of rows


def circle(topology: Topology, participants: Participants) -> dict[str, Box]:
    """Place the participants at equal distances on a rounded figure as large as their boxes need, the others inside."""
    inner = participants.inner(topology)
    outer = in_order([node for node in topology.kinds if node not in inner], topology)
    chords = subgraph(topology, outer).number_of_edges() > len(outer) or bool(inner)
    widths = ((5, 104.0), (8, 92.0), (12, 70.0 if chords else 100.0), (16, 64.0 if chords else 96.0))
    width = next((width for limit, width in widths if len(outer) <= limit), 44.0)
    boxes = _on_circle(outer, width, participants, chords, bool(inner))
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


def _on_circle(nodes: list[str], width: float, participants: Participants, chords: bool, roomy: bool) -> dict[str, Box]:
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
    tree = hierarchy(topology, participants) if loads is None else None
    if loads is not None:
        placed = _in_tiers(topology, participants)
    elif tree:
        placed = _as_tree(tree, topology, participants, widest)
    else:
        placed = _as_circle(topology, participants)
    every = [*placed.boxes.values(), *placed.hosts.values()]
    left, top = min(box.x for box in every) - placed.sides, min(box.y for box in every)
    width = max(box.x + box.w for box in every) + placed.sides - left + 2 * MARGIN
    height = max(box.y + box.h for box in every) - top + 2 * MARGIN
    boxes = {node: box.moved(MARGIN - left, MARGIN - top) for node, box in placed.boxes.items()}
    hosts = {name: box.moved(MARGIN - left, MARGIN - top) for name, box in placed.hosts.items()}
    cells = {node: participants.cells(boxes[node]) for node in participants.nodes}
    lanes = _lanes(topology, placed, boxes, (width / 2, height / 2))
    labelled = all(participants.labelled(boxes[node].w) for node in participants.nodes)
    # A node that is a host by itself has its name outside its box and its kind inside.
    name = local_name if placed.local else str
    shown = {node: kind if node in hosts else name(node) for node, kind in topology.kinds.items()}
    most, wide = max((loads or {}).values(), default=0.0), WIDE if len(loads or {}) <= FEW else MEDIUM
    widths = {(link.src, link.dst): max(1.0, wide * load / most) for link, load in (loads or {}).items() if most}
    room = 2 * placed.apart - 2
    return Layout(width, height, boxes, cells, lanes, placed.bars, placed.faint, room, labelled, hosts, shown, widths)


@dataclass(frozen=True)
class _Placed:
    """The nodes of a layout, and the distance of a lane from the middle of its link (``apart``)."""

    boxes: dict[str, Box]
    apart: float
    bars: frozenset[str] = frozenset()
    faint: frozenset[str] = frozenset()
    hosts: dict[str, Box] = field(default_factory=dict)
    local: bool = False  # True if the names in boxes are those within the hosts
    sides: float = 0.0  # room on the left and right


def _in_tiers(topology: Topology, participants: Participants) -> _Placed:
    """Place the nodes in tiers, with room for the numbers beside the lanes."""
    return _Placed(tiers(topology, participants), apart=10.0, local=True, sides=BESIDE)


def _as_tree(tree: Hierarchy, topology: Topology, participants: Participants, widest: float) -> _Placed:
    """Place the nodes of a tree below their bars, in the boxes of their hosts, or in two rows."""
    boxes, hosts = place_boxes(tree, participants, widest), {}
    if tree.tops:
        joining = [node for node in participants.inner(topology) if not host(node) and node in tree.bars]
        hosts = enclosed(boxes, joining, tree.above)
    if not tree.bars:
        return _Placed(boxes, _fanned(topology), hosts=hosts, local=bool(hosts))
    passages = any(map(tree.staggered, tree.bars))
    apart = min(PASSAGE / 4 if passages else 16.0, min(boxes[node].w for node in participants.nodes) / 6)
    return _Placed(boxes, apart, tree.bars, hosts=hosts, local=bool(hosts))


def _as_circle(topology: Topology, participants: Participants) -> _Placed:
    """Place the nodes on a circle, and those that only forward in its middle."""
    faint = frozenset(participants.inner(topology))
    return _Placed(circle(topology, participants), _fanned(topology, faint), faint=faint)


def _fanned(topology: Topology, faint: frozenset[str] = frozenset()) -> float:
    """Return how far apart lanes run straight from box to box: the more meet at one box, the less room each has."""
    pairs = [{link.src, link.dst} for link in topology.links if link.src not in faint and link.dst not in faint]
    busiest = max(Counter(node for pair in pairs for node in pair).values(), default=0)
    return next((apart for most, apart in ((4, 14.0), (8, 8.0), (14, 5.0)) if busiest <= most), 2.5)


def _lanes(topology: Topology, placed: _Placed, boxes: dict[str, Box], middle: Point) -> dict[tuple[str, str], Line]:
    """Return the lane of every link between ``boxes``."""
    ends, lanes = dict.fromkeys((link.src, link.dst) for link in topology.links), {}
    for src, dst in ends:
        back = not {src, dst}.isdisjoint(placed.faint)
        # A link without one in the other direction has the middle for itself.
        aside = 0.0 if (dst, src) not in ends else 2.5 if back else placed.apart
        if src in placed.bars or dst in placed.bars:
            lanes[src, dst] = _upright(boxes[src], boxes[dst], aside)
        else:
            others = [] if back else [box for node, box in boxes.items() if node not in (src, dst)]
            lanes[src, dst] = _lane(boxes[src], boxes[dst], others, middle, aside)
    return lanes


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

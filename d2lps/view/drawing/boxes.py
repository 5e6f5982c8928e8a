"""Boxes, and the nodes that take part in a picture, each as large as its buffer needs.

>>> from d2lps import pcie_server, sharded
>>> Participants.of(sharded(["gpu0", "gpu1"])).size("gpu0", 104)
(104, 93.0)
>>> Participants.on(pcie_server(gpus=2)).nodes
('gpu0', 'gpu1')
>>> host("host0/gpu1"), local_name("host0/gpu1"), host("gpu1"), local_name("gpu1")
('host0', 'gpu1', '', 'gpu1')
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from d2lps.messages import named
from d2lps.plan.plan import Plan
from d2lps.topology.graph import FORWARDING, Topology
from d2lps.view.drawing.svg import Point, short

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

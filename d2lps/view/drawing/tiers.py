"""Tiers: nodes in a row, the switches above them by their distance, and the switches within hosts below.

>>> from d2lps import rails
>>> place = rails(hosts=2, gpus=1)
>>> boxes = tiers(place, Participants.on(place))
>>> boxes["spine"].y < boxes["rail0"].y < boxes["host0/gpu0"].y < boxes["host0/nvswitch"].y
True
"""

from d2lps.topology import Topology
from d2lps.view.drawing.boxes import Box, Participants, host

DROP, GAP, HIGH = 78.0, 26.0, 34.0  # between tiers, between boxes of a tier, the height of a switch
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
        y += max([h for _, h in sizes], default=0.0) + DROP
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

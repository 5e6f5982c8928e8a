"""Hosts as boxes: nodes whose names share the part before "/" are inside one box, which has that name.

>>> from d2lps import machines
>>> sorted(tops(machines(hosts=2, gpus_per_host=1).kinds, {"network": ["host0/switch", "host1/switch"]}))
['host0/switch', 'host1/switch']
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from d2lps.view.drawing.boxes import Box, host
from d2lps.view.drawing.svg import area, block, escape, tag, words

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

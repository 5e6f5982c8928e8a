"""Hosts as boxes: nodes whose names are the same before "/" stand in one box, which is called so.

>>> from d2lps import machines
>>> sorted(tops(machines(hosts=2, gpus_per_host=1).kinds, {"network": ["host0/switch", "host1/switch"]}))
['host0/switch', 'host1/switch']
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from d2lps.view.drawing.boxes import Box, host
from d2lps.view.drawing.svg import area, block, escape, tag, words

SIDE, TOP, CAPTION = 8.0, 5.0, 22.0  # from those inside to the edge of their box: beside, above, where its name stands
EDGE = 12.0  # what a host takes more on either side than those inside, so that two of them stand apart


def tops(nodes: Iterable[str], below: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Who, of those that hang ``below`` others, is the uppermost of its host; nobody where no two share one."""
    named = [host(node) for node in nodes if host(node)]
    if len(named) == len({*named}):
        return frozenset()
    return frozenset(node for above, near in below.items() for node in near if host(node) != host(above))


def enclosed(boxes: Mapping[str, Box], joining: Iterable[str], above: Iterable[str] = ()) -> dict[str, Box]:
    """The box of every host, by name; none at all where another node stands in the way.

    Who is named after no host is one alone; but those ``joining`` are between hosts. Names stand below those inside,
    where no lanes are; of those ``above`` everything, they stand above.
    """
    members: dict[str, list[str]] = {}
    for node in boxes:
        if node not in joining:
            members.setdefault(host(node) or node, []).append(node)
    around = {name: _around([boxes[node] for node in inside], inside[0] in above) for name, inside in members.items()}
    strangers = [(box, boxes[node]) for name, box in around.items() for node in boxes if node not in members[name]]
    if any(one.overlaps(other) for one, other in [*strangers, *combinations(around.values(), 2)]):
        return {}
    return around


def _around(inside: Sequence[Box], above: bool) -> Box:
    left, top = min(box.x for box in inside) - SIDE, min(box.y for box in inside) - (CAPTION if above else TOP)
    right, low = max(box.x + box.w for box in inside) + SIDE, max(box.y + box.h for box in inside)
    return Box(left, top, right - left, low + (TOP if above else CAPTION) - top)


def host_boxes(hosts: Mapping[str, Box], boxes: Mapping[str, Box]) -> str:
    """The boxes of hosts with their names, to be drawn first: all else lies on them."""
    parts = []
    for name, around in hosts.items():
        first = min(box.y for box in boxes.values() if box.overlaps(around))
        y = around.y + 16 if first - around.y > TOP else around.y + around.h - 6
        called = words(name, around.center[0], y, "note", "soft", font_weight=600)
        parts.append(
            tag("g", tag("title", escape(name)) + block(around, rx=12, **area("band")) + called, class_="d2-host")
        )
    return "".join(parts)

"""A topology by itself: its nodes and links, with nothing on them."""

from d2lps.topology.graph import Topology
from d2lps.view.drawing.layout import Layout, arrange
from d2lps.view.drawing.links import breadth, lanes, passing, rates
from d2lps.view.drawing.svg import area, fine, letters, num, say, short, tag
from d2lps.view.drawing.theme import STYLE, THIN


def sketch(topology: Topology) -> str:
    """The picture of ``topology``, as one SVG."""
    place = arrange(topology)
    wide, high, top = place.width, place.height, 28.0
    parts = [
        tag("title", say(topology.name)),
        tag("style", STYLE + THIN),
        tag("rect", width=wide, height=top + high, rx=10, **area("paper")),
        tag("text", say(topology.name), x=14, y=20, **letters("note")),
        network(topology, place, y=top, width=wide, height=high),
    ]
    return tag(
        "svg",
        "".join(parts),
        class_="d2lps d2-still",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        viewBox=f"0 0 {num(wide)} {num(top + high)}",
        width=wide,
    )


def network(topology: Topology, place: Layout, whole: Topology | None = None, **where: object) -> str:
    """The nodes and links of ``topology`` where they have their ``place``; in ``whole`` if it is a part of that."""
    wide = breadth(whole or topology, place)
    nodes = [_node(place, node) if node in place.cells else passing(topology, place, node) for node in topology.kinds]
    parts = [lanes(topology, place, wide=wide), *nodes, "" if whole else rates(topology, place)]
    return tag(
        "svg",
        "".join(parts),
        class_="d2-scene",
        viewBox=f"0 0 {num(place.width)} {num(place.height)}",
        style=f"--d2-wide:{fine(wide)}",
        **where,
    )


def _node(place: Layout, node: str) -> str:
    box = place.boxes[node]
    parts = [
        tag("title", say(node)),
        tag("rect", x=box.x, y=box.y, width=box.w, height=box.h, rx=8, **area("box", 1)),
        tag("text", short(node, box.w - 8), x=box.centre[0], y=box.centre[1] + 4.5, **letters("name", "ink", "middle")),
    ]
    return tag("g", "".join(parts))

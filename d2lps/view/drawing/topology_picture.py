"""The picture of a topology by itself: its nodes and links, without buffers and messages."""

from d2lps.topology import Topology
from d2lps.view.drawing.boxes import spoken
from d2lps.view.drawing.hosts import host_boxes
from d2lps.view.drawing.layout import Layout, arrange
from d2lps.view.drawing.links import breadth, forwarding_box, lanes, node_label, rates
from d2lps.view.drawing.svg import area, block, escape, fine, num, page, short, tag, words


def topology_picture(topology: Topology) -> str:
    """Return the SVG of ``topology``."""
    layout, top = arrange(topology), 28.0
    name = words(spoken(topology), 14, 20, "note", "soft", None)
    picture = network(topology, layout, y=top, width=layout.width, height=layout.height)
    return page(spoken(topology), layout.width, top + layout.height, name, picture)


def network(topology: Topology, layout: Layout, whole: Topology | None = None, **place: object) -> str:
    """Draw the nodes and links of ``topology`` in ``layout``, which is that of ``whole`` if it is only a part."""
    width = breadth(whole or topology, layout)
    parts = [host_boxes(layout.hosts, layout.boxes), lanes(topology, layout, width=width)]
    for node in topology.kinds:
        parts.append(_node(layout, node) if node in layout.cells else _forwarding(topology, layout, node))
    parts.append("" if whole else rates(topology, layout))
    view = f"0 0 {num(layout.width)} {num(layout.height)}"
    return tag("svg", "".join(parts), class_="d2-scene", viewBox=view, style=f"--d2-wide:{fine(width)}", **place)


def _forwarding(topology: Topology, layout: Layout, node: str) -> str:
    return forwarding_box(topology, layout, node) + node_label(topology, layout, node)


def _node(layout: Layout, node: str) -> str:
    box = layout.boxes[node]
    name = words(short(layout.shown[node], box.w - 8), box.center[0], box.center[1] + 4.5)
    return tag("g", tag("title", escape(node)) + block(box, **area("box", 1)) + name)

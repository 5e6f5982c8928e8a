"""Links drawn as lanes, switches and memories as bars, each in its state, with its bandwidth.

The picture of a topology by itself: its nodes and links, without buffers and messages.
"""

import math

from d2lps.topology import Link, Topology
from d2lps.units import Bandwidth
from d2lps.view.drawing.layout import MOST, Box, Layout, arrange, host, host_boxes, spoken
from d2lps.view.drawing.svg import (
    Line,
    along,
    area,
    beside,
    block,
    corners,
    escape,
    fine,
    line,
    num,
    page,
    short,
    stroke,
    tag,
    words,
)
from d2lps.view.drawing.theme import LIGHT
from d2lps.view.drawing.traffic import DECIDES, GONE, IDLE, Traffic

THIN = 3.0  # thinner lines have no room for a head inside
LINK = GONE + 1  # the state of a lane without traffic, in the picture of a topology
STATES = "", " d2-busy", " d2-busy d2-fast", " d2-decides", " d2-gone", " d2-link"  # CSS classes by state
COLORS = "lane", "flow", "flow", "warm", "edge", "busy"
BROAD = 0.2, 0.5, 1.0, 1.6, 0.2, 1.0  # parts of a lane's breadth: a lane in use below full speed stays thin


def lanes(
    topology: Topology, layout: Layout, load: Traffic | None = None, at: float = 0.0, width: float | None = None
) -> str:
    """Draw every lane and bar: first those that no message ever uses, then the others in their state at a moment.

    Without traffic the picture is about the links, and none of them is drawn as idle.
    """
    width = width or breadth(topology, layout)
    states = zip(load.motion.sharing, load.states_at(at), strict=True) if load else ()
    parts = [used_lane(layout, resource, width, state) for resource, state in states]
    return idle_lanes(topology, layout, load, width) + "".join(parts)


def idle_lanes(topology: Topology, layout: Layout, load: Traffic | None, width: float | None = None) -> str:
    """Draw the lanes and bars that no message ever uses."""
    width, used = width or breadth(topology, layout), {*load.motion.sharing} if load else set()
    # The background comes first, so that all other parts are drawn over it.
    links = sorted(topology.links, key=lambda link: not _faint(layout, link))
    unused = [link for link in links if link not in used]
    parts = [_lane(layout, link, width, IDLE if load or _faint(layout, link) else LINK) for link in unused]
    parts += [_bar(layout, node, IDLE) for node in topology.kinds if node in layout.bars and node not in used]
    return "".join(parts)


def used_lane(layout: Layout, resource: "Link | str", width: float, state: int) -> str:
    """Draw a lane or bar that messages use, in a state."""
    if isinstance(resource, Link):
        return _lane(layout, resource, width, state, "d2-share")
    return tag("g", _bar(layout, resource, state), class_="d2-share" + STATES[state])


def _faint(layout: Layout, link: Link) -> bool:
    return link.src in layout.faint or link.dst in layout.faint


def breadth(topology: Topology, layout: Layout) -> float:
    """Return the width of the line of a link: parallel links have a line each and share one lane."""
    most = 1 if layout.widths else max((link.count for link in topology.links), default=1)
    return max(1.2, min(7.0, layout.room * 0.45)) if most == 1 else max(0.7, min(2.6, layout.room * 0.55 / most))


def _lane(layout: Layout, link: Link, width: float, state: int, name: str = "") -> str:
    own = layout.widths.get((link.src, link.dst))
    count, width = (1, own) if own else (link.count, width)  # a lane as wide as its load stands for all its links
    lane, faint, fine = layout.lanes[link.src, link.dst], _faint(layout, link), width < THIN
    width, length = 1.0 if faint else width, math.dist(*layout.lanes[link.src, link.dst]) or 1.0
    color = "edge" if faint and state in (IDLE, LINK) else COLORS[state]
    thick = width * (1.0 if (own and state != IDLE) or (state == IDLE and (fine or faint)) else BROAD[state])
    kinds = [" d2-load"] * bool(own) + [" d2-thin"] * (fine or faint) + [" d2-faint"] * faint
    look = stroke("lane", thick, color) | {"class_": f"d2-lane{''.join(kinds)}"}
    if not (fine or faint) and state in (IDLE, GONE):
        look["stroke_dasharray"] = "5 3"
    # A line ends where its head begins; it would blot the head otherwise.
    half, part = min(4.5, max(3.2, width * 0.85 * count + 1.4)), max(0.5, 1 - 8 / length)
    stem = (lane[0], along(lane, part)) if fine and not faint else lane
    offsets = [(i - (count - 1) / 2) * width * 1.7 for i in range(count)]
    title = f"{link.src}→{link.dst}" + ("" if math.isinf(link.capacity) else f" · {_rate(link)}")
    parts = [tag("title", escape(title)), tag("path", d="".join(line(*beside(stem, x)) for x in offsets), **look)]
    if fine and not faint:
        rest = along(lane, part), lane[1]
        head = corners(lane[1], beside(rest, half)[0], beside(rest, -half)[0])
        parts.append(tag("path", d=head, class_="d2-point", fill=LIGHT[color]))
    elif not faint:
        tip = "paper" if BROAD[state] >= 1 else COLORS[state]  # inside the lane if that has room
        parts.append(tag("path", d=_tip(lane, width * 0.45), class_="d2-tip", fill=LIGHT[tip]))
    more = {"style": f"--d2-wide:{num(own)}"} if own else {}
    return tag("g", "".join(parts), class_=(name + STATES[state]).strip() or None, **more)


def _rate(link: Link) -> str:
    return (f"{link.count} × " if link.count > 1 else "") + str(Bandwidth(link.bandwidth))


def _tip(lane: Line, half: float) -> str:
    """Return the arrow-head that shows the direction of a lane."""
    (ax, ay), (bx, by) = lane
    length = math.dist(*lane) or 1.0
    x, y = along(lane, max(0.5, 1 - 8 / length))
    ux, uy = (bx - ax) / length * half, (by - ay) / length * half
    return corners((x + ux, y + uy), (x - ux - uy, y - uy + ux), (x - ux + uy, y - uy - ux))


def _bar(layout: Layout, node: str, state: int) -> str:
    return block(layout.boxes[node], rx=10, **(area("bar", 3, "warm") if state == DECIDES else area("bar", 1)))


def rates(topology: Topology, layout: Layout) -> str:
    """Write each finite bandwidth: on one link if all or nearly all links have it, else on every link.

    Where lanes are as wide as their loads there is no room for numbers that stand for many links.
    """
    if layout.widths:
        return ""
    alike: dict[tuple, list[Link]] = {}
    for link in topology.links:
        if not math.isinf(link.capacity):
            alike.setdefault((link.bandwidth, link.count), []).append(link)
    parts: list[str] = []
    taken: list[Box] = []
    for links in sorted(alike.values(), key=len):  # small groups come first, since they leave no choice
        sentence = _rate(links[0])
        pairs = {_once(topology, layout, link): link for link in reversed(links)}  # one of the two directions
        majority = 2 * len(links) > sum(map(len, alike.values())) and not layout.hosts
        # The lines themselves distinguish many parallel links from few.
        once = len(alike) == 1 or len(pairs) > 3 and (majority or not layout.bars)
        if once:
            spots = [_beside_lane(layout, link, part) for part in (0.5, 0.35, 0.65, 0.2, 0.8) for link in links]
        else:
            spots = [
                _in_bar(layout, *ends) if len(ends) == 1 else _beside_lane(layout, link, 0.5)
                for ends, link in pairs.items()
            ]
        bars = [layout.boxes[node] for node in layout.bars]
        # There is no room beside a lane between two rows of nodes, nor below a bar with nothing above it.
        crowded = len(layout.boxes) > MOST + 2 or min(box.y for box in layout.boxes.values()) in [b.y for b in bars]
        costs = {spot: (_covering(layout, links, taken, sentence, *spot), spot[1]) for spot in spots} if once else {}
        if once and bars and (crowded or min(costs.values())[0] >= 1000):
            spots = [_in_bar(layout, max(layout.bars, key=lambda node: layout.boxes[node].w))]
        elif once:  # the uppermost spot that covers no box; of several at that height one with nothing at its right
            spots = [min(spots, key=lambda spot: (*costs[spot], -spot[0] if spot[2] is None else 0))]
        taken += [_around(sentence, x, y) for x, y, anchor in spots if anchor == "middle"]
        look = {"size": "note", "color": "soft", "class_": "d2-note d2-soft d2-rate"}
        parts += [words(sentence, x, y, anchor=anchor, **look) for x, y, anchor in spots]
    return "".join(parts)


def _once(topology: Topology, layout: Layout, link: Link) -> frozenset[str]:
    """Return the two ends of a link; in a drawn host all of whose links are alike, only the bar that they share."""
    bars = {link.src, link.dst} & layout.bars if layout.hosts else ()
    for bar in sorted(bars, key=lambda bar: layout.boxes[bar].y):  # the upper one first
        if host(bar) != _within(link):
            continue
        near = [other for other in topology.links if bar in (other.src, other.dst) and _within(other) == host(bar)]
        room = layout.boxes[bar].w - 10 * len(_rate(link)) - 19  # also on a phone, whose words are larger
        if room > 0 and len({(other.bandwidth, other.count) for other in near}) == 1:
            return frozenset((bar,))
    return frozenset((link.src, link.dst))


def _within(link: Link) -> str:
    """Return the host within which a link is, or ""."""
    return host(link.src) if host(link.src) == host(link.dst) else ""


def _covering(
    layout: Layout, links: list[Link], taken: list[Box], sentence: str, x: float, y: float, anchor: str | None
) -> int:
    """Return the number of lanes that words at a spot would cover; a box or the edge of the sheet counts 1000.

    Words of links in the background may cover their own lines.
    """
    spot, excused = _around(sentence, x, y), {(link.src, link.dst) for link in links if _faint(layout, link)}
    if anchor is None:
        room = Box(x, y - 10, 10 * len(sentence), 14)  # also on a phone, whose words are larger
        return 1000 * (x + room.w > layout.width or any(room.hides(*lane, 1) for lane in layout.lanes.values()))
    beyond = min(spot.x, spot.y, layout.width - spot.x - spot.w) < 0
    boxes = sum(box.overlaps(spot) for box in (*layout.boxes.values(), *taken))
    covered = sum(spot.hides(*lane, 1) for ends, lane in layout.lanes.items() if ends not in excused)
    return 1000 * (beyond + boxes) + covered


def _around(sentence: str, x: float, y: float) -> Box:
    """Return the box of words with their middle at (x, y)."""
    return Box.around((x, y - 4), 6.5 * len(sentence), 14)


def _in_bar(layout: Layout, bar: str) -> tuple[float, float, str]:
    """Return the spot at the right end of a bar; in a host, which is narrow, below its name."""
    box = layout.boxes[bar]
    return box.x + box.w - 10, box.y + box.h - 8 if host(bar) else box.center[1] + 4, "end"


def _beside_lane(layout: Layout, link: Link, part: float) -> tuple[float, float, str | None]:
    """Return the spot of a link's bandwidth: x, y, and the anchor of the words (None: their beginning)."""
    ends, lane = {link.src, link.dst}, layout.lanes[link.src, link.dst]
    if ends & layout.bars:  # to the right of both lanes, above the backlog of a node, or below a node
        (x, ay), (_, by) = lane
        box = layout.boxes[min(ends, key=lambda node: layout.boxes[node].w)]
        y = (ay + by) / 2 + 1 if box.center[1] > (ay + by) / 2 else box.y + box.h + 15
        return x + (19 if by < ay else layout.room + 21), y, None  # beyond the bar of the backlog
    # In the background, beside the boxes that it joins, or over the line.
    faint = ends & layout.faint
    # The backlog of a lane is at its right; without a lane in the other direction its left is free.
    side = 1 if (link.dst, link.src) in layout.lanes else -1
    x, y = along(beside(lane, -24 if faint == ends else 0 if faint else side * (layout.room / 2 + 12)), part)
    return x, y + 4, "middle"


def forwarding_box(topology: Topology, layout: Layout, node: str) -> str:
    """Draw a node that only forwards, without its name."""
    box = layout.boxes[node]
    return tag("g", tag("title", escape(node)) + ("" if node in layout.bars else block(box, **area("box"))))


def node_label(topology: Topology, layout: Layout, node: str) -> str:
    """Write the name of a forwarding node, and its rate if it has a limit."""
    box, bar, rate = layout.boxes[node], node in layout.bars, topology.through.get(node, math.inf)
    size, middle = "note" if node in layout.faint else "name", box.center[1] + 4 - (7 if rate < math.inf else 0)
    if bar and host(node) and layout.hosts:
        middle = box.y + 18
    x, anchor = (box.x + 9, None) if bar else (box.center[0], "middle")
    name = words(short(layout.shown[node], 62 if bar else box.w, 6.6), x, middle, size, "soft", anchor)
    limit = words(str(Bandwidth(rate)), x, middle + 14, "note", "soft", anchor) if rate < math.inf else ""
    return name + limit


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

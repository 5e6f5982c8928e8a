"""Links as lanes, switches and memories as bars; how many messages share them, and how fast they are."""

import math

from d2lps.topology import Link, Topology
from d2lps.units import Bandwidth
from d2lps.view.drawing.boxes import Box
from d2lps.view.drawing.hierarchy import MOST
from d2lps.view.drawing.layout import Layout
from d2lps.view.drawing.motion import Motion
from d2lps.view.drawing.svg import Line, along, area, beside, block, corners, line, say, short, stroke, tag, words
from d2lps.view.drawing.theme import LIGHT

THIN = 3.0  # lines thinner than that are too faint in the colour of idle lanes, and have no room for a head inside


def lanes(
    topology: Topology, layout: Layout, motion: Motion | None = None, at: float = 0.0, wide: float | None = None
) -> str:
    """Every lane and bar: first those that no message ever uses, then the others as they are at a moment.

    Without a motion it is the links that there is to see, and all are drawn as if they were in use.
    """
    crowds = dict(zip(motion.sharing, motion.crowds_at(at), strict=True)) if motion else {}
    wide = wide or breadth(topology, layout)
    # What stands in the background comes first, and all else is drawn over it.
    links = sorted(topology.links, key=lambda link: not _faint(layout, link))
    idle = [link for link in links if link not in crowds]
    parts = [_lane(layout, link, wide, 0 if motion or _faint(layout, link) else 1) for link in idle]
    parts += [_bar(layout, node, 0) for node in topology.kinds if node in layout.bars and node not in crowds]
    for resource, crowd in crowds.items():
        if isinstance(resource, Link):
            parts.append(_lane(layout, resource, wide, crowd, "d2-share"))
        else:
            parts.append(tag("g", _bar(layout, resource, crowd), class_="d2-share" + _state(crowd)))
    return "".join(parts)


def _faint(layout: Layout, link: Link) -> bool:
    return link.src in layout.faint or link.dst in layout.faint


def _state(crowd: int) -> str:
    return " d2-crowded" if crowd > 1 else " d2-busy" if crowd else ""


def breadth(topology: Topology, layout: Layout) -> float:
    """How wide the line of a link is drawn: parallel links have a line each, and all of them share a lane."""
    most = max((link.count for link in topology.links), default=1)
    return max(1.2, min(7.0, layout.room * 0.45)) if most == 1 else max(0.7, min(2.6, layout.room * 0.55 / most))


def _lane(layout: Layout, link: Link, wide: float, crowd: int, name: str = "") -> str:
    lane, faint, fine = layout.lanes[link.src, link.dst], _faint(layout, link), wide < THIN
    wide = 1.0 if faint else wide
    colour = "warm" if crowd > 1 else ("soft" if fine else "busy") if crowd else "edge" if fine else "lane"
    look = stroke("lane", wide * 1.6 if crowd > 1 else wide, colour)
    if fine or faint:
        look["class_"] += " d2-thin d2-faint" if faint else " d2-thin"
    beside_each_other = [(i - (link.count - 1) / 2) * wide * 1.7 for i in range(link.count)]
    parts = [tag("path", d="".join(line(*beside(lane, offset)) for offset in beside_each_other), **look)]
    if fine and not faint:  # a head that is seen beside the lines, instead of inside the only one
        half = min(4.5, max(3.0, wide * 0.85 * link.count + 0.8))
        parts.append(tag("path", d=_tip(lane, half), class_="d2-point", fill=LIGHT[colour]))
    elif not faint:
        parts.append(tag("path", d=_tip(lane, wide * 0.45), class_="d2-tip", fill=LIGHT["paper" if crowd else "edge"]))
    return tag("g", "".join(parts), class_=(name + _state(crowd)).strip() or None)


def _tip(lane: Line, half: float) -> str:
    """An arrow-head that says which way a lane goes."""
    (ax, ay), (bx, by) = lane
    length = math.dist(*lane) or 1.0
    x, y = along(lane, max(0.5, 1 - 8 / length))
    ux, uy = (bx - ax) / length * half, (by - ay) / length * half
    return corners((x + ux, y + uy), (x - ux - uy, y - uy + ux), (x - ux + uy, y - uy - ux))


def _bar(layout: Layout, node: str, crowd: int) -> str:
    return block(layout.boxes[node], rx=10, **(area("bar", 3, "warm") if crowd > 1 else area("bar", 1)))


def badges(layout: Layout, motion: Motion, at: float) -> str:
    """For every place that messages share: how many."""
    parts, aside = [], 22.0 if layout.room > 26 else 17.0 if layout.room > 20 else 0.0
    for resource, crowd in zip(motion.sharing, motion.crowds_at(at), strict=True):
        if isinstance(resource, Link):
            # Nearer to a bar than to a box: there the rates stand.
            part = 0.4 if resource.src in layout.bars else 0.6 if resource.dst in layout.bars else 0.5
            x, y = along(beside(layout.lanes[resource.src, resource.dst], aside), part)
        else:
            box = layout.boxes[resource]
            x, y = box.x + box.w - 22, box.y + box.h / 2
        look = {"font_size": 13 if layout.room > 14 else 10, "font_weight": 700, "class_": "d2-badge d2-warm"}
        look |= {"fill": LIGHT["warm"], "text_anchor": "middle", "display": None if crowd > 1 else "none"}
        parts.append(tag("text", f"×{crowd}", x=x, y=y + 4.5, **look))
    return "".join(parts)


def rates(topology: Topology, layout: Layout) -> str:
    """Each finite bandwidth once: on every link if they differ, else on one of them."""
    alike: dict[tuple, list[Link]] = {}
    for link in topology.links:
        if not math.isinf(link.capacity):
            alike.setdefault((link.bandwidth, link.count), []).append(link)
    parts = []
    for (bandwidth, count), links in alike.items():
        sentence = (f"{count} × " if count > 1 else "") + str(Bandwidth(bandwidth))
        pairs = {frozenset((link.src, link.dst)): link for link in reversed(links)}  # the first of each two
        once = len(alike) == 1 or not layout.bars and len(pairs) > 3  # the lines themselves tell many from few
        spots = [_beside_lane(layout, link) for link in (links if once else pairs.values())]
        if once and layout.bars and len(layout.boxes) > MOST + 2:  # no room beside a lane between two rows of nodes
            bar = max((layout.boxes[node] for node in layout.bars), key=lambda box: box.w)
            spots = [(bar.x + bar.w - 10, bar.centre[1] + 4, "end")]
        elif once:  # where it covers no box, and of such places at the uppermost
            spots = [min(spots, key=lambda spot: (_covering(layout, sentence, *spot), spot[1]))]
        look = {"size": "note", "colour": "soft", "class_": "d2-note d2-soft d2-rate"}
        parts += [words(sentence, x, y, anchor=anchor, **look) for x, y, anchor in spots]
    return "".join(parts)


def _covering(layout: Layout, sentence: str, x: float, y: float, anchor: str | None) -> bool:
    """Whether words in the middle of a lane would lie on a box, or beside the picture."""
    spot = Box.around((x, y - 4), 6.5 * len(sentence), 14)
    beyond = min(spot.x, spot.y, layout.width - spot.x - spot.w) < 0
    return anchor is not None and (beyond or any(box.overlaps(spot) for box in layout.boxes.values()))


def _beside_lane(layout: Layout, link: Link) -> tuple[float, float, str | None]:
    """Where a link's bandwidth stands: x, y, and whether they are its beginning or its middle."""
    ends, lane = {link.src, link.dst}, layout.lanes[link.src, link.dst]
    if ends & layout.bars:  # to the right of both lanes, at the end that is not the bar's
        (x, ay), (_, by) = lane
        box = layout.boxes[min(ends, key=lambda node: layout.boxes[node].w)]
        y = box.y - 7 if box.centre[1] > (ay + by) / 2 else box.y + box.h + 15
        return x + (9 if by < ay else layout.room + 11), y, None
    # In the background, beside the boxes that it joins, or over the line.
    faint = ends & layout.faint
    x, y = along(beside(lane, -24 if faint == ends else 0 if faint else layout.room / 2 + 12), 0.5)
    return x, y + 4, "middle"


def forwarding(topology: Topology, layout: Layout, node: str) -> str:
    """A node that only forwards: its name, and its rate where that is limited."""
    box, bar, rate = layout.boxes[node], node in layout.bars, topology.through.get(node, math.inf)
    size, middle = "note" if node in layout.faint else "name", box.centre[1] + 4 - (7 if rate < math.inf else 0)
    x, anchor = (box.x + 9, None) if bar else (box.centre[0], "middle")
    parts = [tag("title", say(node)), "" if bar else block(box, **area("box"))]
    parts.append(words(short(node, 62 if bar else box.w, 6.6), x, middle, size, "soft", anchor))
    if rate < math.inf:
        parts.append(words(str(Bandwidth(rate)), x, middle + 14, "note", "soft", anchor))
    return tag("g", "".join(parts))

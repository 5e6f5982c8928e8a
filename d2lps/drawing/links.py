"""Links as lanes, switches and memories as bars; how many messages share them, and how fast they are."""

import math

from d2lps.drawing.layout import Layout, Line
from d2lps.drawing.motion import Motion
from d2lps.drawing.svg import Point, along, area, corners, letters, line, say, short, stroke, tag
from d2lps.drawing.theme import LIGHT
from d2lps.topology import Link, Topology
from d2lps.units import Bandwidth


def lanes(topology: Topology, place: Layout, motion: Motion, at: float) -> str:
    """Every lane and bar: first those that no message ever uses, then the others as they are at a moment."""
    crowds = dict(zip(motion.sharing, motion.crowds_at(at), strict=True))
    parts = [tag("g", _lane(place, link, 0)) for link in topology.links if link not in crowds]
    parts += [_bar(place, node, 0) for node in topology.kinds if node in place.bars and node not in crowds]
    for resource, crowd in crowds.items():
        state = "d2-share" + (" d2-crowded" if crowd > 1 else " d2-busy" if crowd else "")
        shape = _lane(place, resource, crowd) if isinstance(resource, Link) else _bar(place, resource, crowd)
        parts.append(tag("g", shape, class_=state))
    return "".join(parts)


def breadth(place: Layout) -> float:
    """How wide a lane is drawn."""
    return max(1.2, min(7.0, place.room * 0.45))


def _lane(place: Layout, link: Link, crowd: int) -> str:
    a, b = place.lanes[link.src, link.dst]
    wide, colour = breadth(place), "warm" if crowd > 1 else "busy" if crowd else "lane"
    path = tag("path", d=line(a, b), **stroke("lane", wide * 1.6 if crowd > 1 else wide, colour))
    return path + tag("path", d=_tip((a, b), wide), class_="d2-tip", fill=LIGHT["paper" if crowd else "edge"])


def _tip(lane: Line, wide: float) -> str:
    """An arrow-head that says which way a lane goes."""
    (ax, ay), (bx, by) = lane
    length, half = math.dist(*lane) or 1.0, max(1.6, wide * 0.45)
    x, y = along(lane, max(0.5, 1 - 8 / length))
    ux, uy = (bx - ax) / length * half, (by - ay) / length * half
    return corners((x + ux, y + uy), (x - ux - uy, y - uy + ux), (x - ux + uy, y - uy - ux))


def _bar(place: Layout, node: str, crowd: int) -> str:
    box = place.boxes[node]
    look = area("bar", 3, "warm") if crowd > 1 else area("bar", 1)
    return tag("rect", x=box.x, y=box.y, width=box.w, height=box.h, rx=10, **look)


def badges(place: Layout, motion: Motion, at: float) -> str:
    """For every place that messages share: how many."""
    parts, aside = [], 22.0 if place.room > 26 else 17.0 if place.room > 20 else 0.0
    for resource, crowd in zip(motion.sharing, motion.crowds_at(at), strict=True):
        if isinstance(resource, Link):
            # Nearer to a bar than to a box: there the rates stand.
            part = 0.4 if resource.src in place.bars else 0.6 if resource.dst in place.bars else 0.5
            x, y = _aside(place.lanes[resource.src, resource.dst], part, aside)
        else:
            box = place.boxes[resource]
            x, y = box.x + box.w - 22, box.y + box.h / 2
        parts.append(tag("text", f"×{crowd}", x=x, y=y + 4.5, font_size=13 if place.room > 14 else 10, font_weight=700,
                         class_="d2-badge d2-warm", fill=LIGHT["warm"], text_anchor="middle",
                         display=None if crowd > 1 else "none"))  # fmt: skip
    return "".join(parts)


def _aside(lane: Line, part: float, aside: float) -> Point:
    """A point beside a lane, to the right of its direction."""
    (ax, ay), (bx, by) = lane
    length, (x, y) = math.dist(*lane) or 1.0, along(lane, part)
    return x - (by - ay) / length * aside, y + (bx - ax) / length * aside


def rates(topology: Topology, place: Layout) -> str:
    """Each finite bandwidth once: on every link if they differ, else on one of them."""
    finite = [link for link in topology.links if not math.isinf(link.capacity)]
    if len({(link.bandwidth, link.count) for link in finite}) == 1:
        # The uppermost has most room around it.
        finite = [min(finite, key=lambda link: sum(y for _, y in place.lanes[link.src, link.dst]))]
    seen, parts = set(), []
    for link in finite:
        ends, lane = frozenset((link.src, link.dst)), place.lanes[link.src, link.dst]
        if ends in seen:
            continue
        seen.add(ends)
        words = (f"{link.count} × " if link.count > 1 else "") + str(Bandwidth(link.bandwidth))
        look = letters("note", class_="d2-note d2-soft d2-rate")
        if ends & place.bars:
            # To the right of both lanes, at the end that is not the bar's.
            (x, ay), (_, by) = lane
            x += 9 if by < ay else place.room + 11
            box = place.boxes[min(ends, key=lambda node: place.boxes[node].w)]
            y = box.y - 7 if box.centre[1] > (ay + by) / 2 else box.y + box.h + 15
        else:
            x, y = _aside(lane, 0.5, place.room / 2 + 12)
            y, look = y + 4, look | {"text_anchor": "middle"}
        parts.append(tag("text", say(words), x=x, y=y, **look))
    return "".join(parts)


def passing(topology: Topology, place: Layout, node: str) -> str:
    """A node that only forwards: its name, and its rate where that is limited."""
    box, rate = place.boxes[node], topology.through.get(node)
    parts, x, anchor = [tag("title", say(node))], box.x + 9, None
    if node not in place.bars:
        x, anchor = box.centre[0], "middle"
        parts.append(tag("rect", x=box.x, y=box.y, width=box.w, height=box.h, rx=8, **area("box")))
    middle = box.centre[1] + 4 - (7 if rate else 0)
    parts.append(tag("text", short(node, 62 if node in place.bars else box.w, 6.6), x=x, y=middle,
                     **letters("name", anchor=anchor)))  # fmt: skip
    if rate:
        parts.append(tag("text", say(str(Bandwidth(rate))), x=x, y=middle + 14, **letters("note", anchor=anchor)))
    return tag("g", "".join(parts))

"""Links as lanes, switches and memories as bars; how many messages share them, and how fast they are."""

import math

from d2lps.topology.graph import Link, Topology
from d2lps.units import Bandwidth
from d2lps.view.drawing.boxes import Box
from d2lps.view.drawing.hierarchy import MOST
from d2lps.view.drawing.layout import Layout
from d2lps.view.drawing.motion import Motion
from d2lps.view.drawing.svg import Line, Point, along, area, beside, corners, letters, line, say, short, stroke, tag
from d2lps.view.drawing.theme import LIGHT

THIN = 3.0  # lines thinner than that are too faint in the colour of idle lanes, and have no room for a head inside


def lanes(
    topology: Topology, place: Layout, motion: Motion | None = None, at: float = 0.0, wide: float | None = None
) -> str:
    """Every lane and bar: first those that no message ever uses, then the others as they are at a moment.

    Without a motion it is the links that there is to see, and all are drawn as if they were in use.
    """
    crowds = dict(zip(motion.sharing, motion.crowds_at(at), strict=True)) if motion else {}
    wide = wide or breadth(topology, place)
    # What stands in the background comes first, and all else is drawn over it.
    links = sorted(topology.links, key=lambda link: not _faint(place, link))
    parts = [
        _lane(place, link, wide, 0 if motion or _faint(place, link) else 1) for link in links if link not in crowds
    ]
    parts += [_bar(place, node, 0) for node in topology.kinds if node in place.bars and node not in crowds]
    for resource, crowd in crowds.items():
        if isinstance(resource, Link):
            parts.append(_lane(place, resource, wide, crowd, "d2-share"))
        else:
            parts.append(tag("g", _bar(place, resource, crowd), class_="d2-share" + _state(crowd)))
    return "".join(parts)


def _faint(place: Layout, link: Link) -> bool:
    return link.src in place.faint or link.dst in place.faint


def _state(crowd: int) -> str:
    return " d2-crowded" if crowd > 1 else " d2-busy" if crowd else ""


def breadth(topology: Topology, place: Layout) -> float:
    """How wide the line of a link is drawn: parallel links have a line each, and all of them share a lane."""
    most = max((link.count for link in topology.links), default=1)
    return max(1.2, min(7.0, place.room * 0.45)) if most == 1 else max(0.7, min(2.6, place.room * 0.55 / most))


def _lane(place: Layout, link: Link, wide: float, crowd: int, name: str = "") -> str:
    lane, faint, fine = place.lanes[link.src, link.dst], _faint(place, link), wide < THIN
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
        parts.append(
            tag(
                "text",
                f"×{crowd}",
                x=x,
                y=y + 4.5,
                font_size=13 if place.room > 14 else 10,
                font_weight=700,
                class_="d2-badge d2-warm",
                fill=LIGHT["warm"],
                text_anchor="middle",
                display=None if crowd > 1 else "none",
            )
        )
    return "".join(parts)


def _aside(lane: Line, part: float, aside: float) -> Point:
    """A point beside a lane, to the right of its direction."""
    (ax, ay), (bx, by) = lane
    length, (x, y) = math.dist(*lane) or 1.0, along(lane, part)
    return x - (by - ay) / length * aside, y + (bx - ax) / length * aside


def rates(topology: Topology, place: Layout) -> str:
    """Each finite bandwidth once: on every link if they differ, else on one of them."""
    alike: dict[tuple, list[Link]] = {}
    for link in topology.links:
        if not math.isinf(link.capacity):
            alike.setdefault((link.bandwidth, link.count), []).append(link)
    parts = []
    for (bandwidth, count), links in alike.items():
        words = (f"{count} × " if count > 1 else "") + str(Bandwidth(bandwidth))
        pairs = {frozenset((link.src, link.dst)): link for link in reversed(links)}  # the first of each two
        once = len(alike) == 1 or not place.bars and len(pairs) > 3  # the lines themselves tell many from few
        if once and place.bars and len(place.boxes) > MOST + 2:
            parts.append(_on_the_bar(place, words))  # between two rows of nodes there is no room beside a lane
            continue
        looks = [_rate(place, link) for link in (links if once else pairs.values())]
        # If once, then where it covers no box, and of such places at the uppermost.
        looks = [min(looks, key=lambda look: (_covering(place, look, words), look["y"]))] if once else looks
        parts += [tag("text", say(words), **look) for look in looks]
    return "".join(parts)


def _on_the_bar(place: Layout, words: str) -> str:
    bar = max((place.boxes[node] for node in place.bars), key=lambda box: box.w)
    look = letters("note", anchor="end", class_="d2-note d2-soft d2-rate")
    return tag("text", say(words), x=bar.x + bar.w - 10, y=bar.centre[1] + 4, **look)


def _covering(place: Layout, look: dict, words: str) -> bool:
    """Whether words in the middle of a lane would lie on a box, or beside the picture."""
    if look["text_anchor"] is None:
        return False
    spot = Box.around((look["x"], look["y"] - 4), 6.5 * len(words), 14)
    beyond = min(spot.x, spot.y, place.width - spot.x - spot.w) < 0
    return beyond or any(box.overlaps(spot) for box in place.boxes.values())


def _rate(place: Layout, link: Link) -> dict:
    """Where the words stand, and how."""
    ends, lane = {link.src, link.dst}, place.lanes[link.src, link.dst]
    look = letters("note", class_="d2-note d2-soft d2-rate")
    if ends & place.bars:
        # To the right of both lanes, at the end that is not the bar's.
        (x, ay), (_, by) = lane
        x += 9 if by < ay else place.room + 11
        box = place.boxes[min(ends, key=lambda node: place.boxes[node].w)]
        return {"x": x, "y": box.y - 7 if box.centre[1] > (ay + by) / 2 else box.y + box.h + 15} | look
    # In the background, beside the boxes that it joins, or over the line.
    x, y = _aside(lane, 0.5, -24 if ends <= place.faint else 0 if ends & place.faint else place.room / 2 + 12)
    return {"x": x, "y": y + 4} | look | {"text_anchor": "middle"}


def passing(topology: Topology, place: Layout, node: str) -> str:
    """A node that only forwards: its name, and its rate where that is limited."""
    box, rate, faint = place.boxes[node], topology.through.get(node), node in place.faint
    rate = None if rate == math.inf else rate
    parts, x, anchor = [tag("title", say(node))], box.x + 9, None
    if node not in place.bars:
        x, anchor = box.centre[0], "middle"
        parts.append(tag("rect", x=box.x, y=box.y, width=box.w, height=box.h, rx=8, **area("box")))
    middle = box.centre[1] + 4 - (7 if rate else 0)
    parts.append(
        tag(
            "text",
            short(node, 62 if node in place.bars else box.w, 6.6),
            x=x,
            y=middle,
            **letters("note" if faint else "name", anchor=anchor),
        )
    )
    if rate:
        parts.append(tag("text", say(str(Bandwidth(rate))), x=x, y=middle + 14, **letters("note", anchor=anchor)))
    return tag("g", "".join(parts))

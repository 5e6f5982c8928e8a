"""A placement of keys as a picture: the ring of hashes with the arcs of each server, and a large array in ranges."""

import math
from itertools import pairwise

from d2lps.algorithms.placement import Placement
from d2lps.view.drawing.shapes import sheet
from d2lps.view.drawing.svg import escape, fine, letters, tag, words, worker

OUTER, INNER, MIDDLE = 92.0, 66.0, 104.0  # radii of the ring, and its center
NUMBERED = 0.025  # of a turn: a longer arc has its server's number too, since colors may look alike
LINE = 21.0  # the distance of lines of the legend


def hash_ring(place: Placement) -> str:
    """Return the SVG of a placement: every arc of the ring has the color of its server."""
    arcs: dict[int, list[str]] = {server: [] for server in place.servers}
    numbers = []
    before = (place.ring[-1][0] - 2**64, place.ring[-1][1])
    for (start, _), (end, owner) in pairwise((before, *place.ring)):
        arcs[owner].append(_arc(start / 2**64, end / 2**64))
        if end - start > NUMBERED * 2**64:
            x, y = _at((start + end) / 2**65, INNER - 10)
            numbers.append(words(str(owner), x, y + 4, "note"))
    parts = [tag("path", d="".join(pieces), **worker(i)) for i, pieces in enumerate(arcs.values())] + numbers
    left, top = 2 * MIDDLE + 24, MIDDLE - LINE * (len(place.servers) + 2) / 2
    for i, server in enumerate(place.servers):
        y = top + LINE * i
        parts.append(tag("rect", x=left, y=y - 9, width=11, height=11, rx=2, **worker(i)))
        parts.append(tag("text", escape(f"server{server}"), x=left + 19, y=y, **letters("name", "ink")))
        share = escape(f"{place.share(server):.1%}")
        parts.append(tag("text", share, x=left + 150, y=y, **letters("name", "soft", "end")))
    y, width = top + LINE * len(place.servers) + 8, 150.0 / len(place.servers)
    for i in range(len(place.servers)):
        parts.append(tag("rect", x=left + i * width, y=y, width=width - 1, height=14, **worker(i)))
    parts.append(tag("text", escape(f"≥ {place.large:,}".replace(",", "\u202f")), x=left, y=y + 30, **letters("note")))
    return sheet(left + 170, 2 * MIDDLE, " ".join(f"server{server}" for server in place.servers), *parts)


def _arc(start: float, end: float) -> str:
    """Return the arc of the ring from one part of a turn to another."""
    ends = ((start, OUTER), (end, OUTER), (end, INNER), (start, INNER))
    points = [" ".join(map(fine, _at(turn, radius))) for turn, radius in ends]
    long = int(end - start > 0.5)
    return (
        f"M{points[0]}A{OUTER:g} {OUTER:g} 0 {long} 1 {points[1]}L{points[2]}"
        f"A{INNER:g} {INNER:g} 0 {long} 0 {points[3]}Z"
    )


def _at(turn: float, radius: float) -> tuple[float, float]:
    """Return the point at a part of a turn, clockwise from the top."""
    angle = 2 * math.pi * turn - math.pi / 2
    return MIDDLE + radius * math.cos(angle), MIDDLE + radius * math.sin(angle)

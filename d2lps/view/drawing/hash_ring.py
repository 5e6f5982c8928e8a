"""A placement of keys as a picture: the ring of hashes with the arcs of each server, and a large array in ranges.

Two placements are two rings, one in the other: what belongs to the same server in both is pale.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

from d2lps.algorithms.placement import Placement
from d2lps.messages import text
from d2lps.units import show_integer
from d2lps.view.drawing.svg import area, escape, fine, letters, sheet, tag, words, worker

OUTER, INNER, MIDDLE = 92.0, 66.0, 104.0  # radii of the ring, and its center
NUMBERED = 0.025  # of a turn: a longer arc has its server's number too, since colors may look alike
LINE = 21.0  # the distance of lines of the legend


def hash_ring(place: Placement) -> str:
    """Return the SVG of a placement: every arc of the ring has the color of its server."""
    arcs: dict[int, list[str]] = {server: [] for server in place.servers}
    for start, end, owner in _own(place):
        arcs[owner].append(_arc(start, end))
    parts = [tag("path", d="".join(pieces), **worker(server)) for server, pieces in arcs.items()]
    parts += _numbers(place, INNER - 10, NUMBERED)
    left, top = 2 * MIDDLE + 24, MIDDLE - LINE * (len(place.servers) + 2) / 2
    for i, server in enumerate(place.servers):
        parts += _entry(server, left, top + LINE * i, 150, f"{place.share(server):.1%}")
    y, width = top + LINE * len(place.servers) + 8, 150.0 / len(place.servers)
    for i, server in enumerate(place.servers):
        parts.append(tag("rect", x=left + i * width, y=y, width=width - 1, height=14, **worker(server)))
    parts.append(tag("text", escape(f"≥ {show_integer(place.large)}"), x=left, y=y + 30, **letters("note")))
    return sheet(left + 170, 2 * MIDDLE, " ".join(f"server{server}" for server in place.servers), *parts)


def _own(place: Placement) -> Iterator[tuple[float, float, int]]:
    """Yield (start, end, server) of the arcs of a ring, as parts of a turn."""
    before = (place.ring[-1][0] - 2**64, place.ring[-1][1])
    for (start, _), (end, owner) in pairwise((before, *place.ring)):
        yield start / 2**64, end / 2**64, owner


def _numbers(place: Placement, radius: float, least: float) -> list[str]:
    """Write the server's number beside each arc that is longer than that part of a turn."""
    numbers = []
    for start, end, owner in _own(place):
        if end - start > least:
            x, y = _at((start + end) / 2, radius)
            numbers.append(words(str(owner), x, y + 4, "note"))
    return numbers


def moved(before: Placement, after: Placement) -> float:
    """Return the fraction of the ring, and thus of the small keys, that has another server after than before."""
    return sum(end - start for start, end, one, other in _arcs(before, after) if one != other) / 2**64


def _arcs(before: Placement, after: Placement) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, server before, server after) of the arcs between the places of both rings."""
    places = [[place for place, _ in each.ring] for each in (before, after)]
    cuts = sorted({*places[0], *places[1]})
    for start, end in pairwise((cuts[-1] - 2**64, *cuts)):
        one, other = (
            each.ring[bisect_left(own, end) % len(own)][1] for each, own in zip((before, after), places, strict=True)
        )
        yield start, end, one, other


def two_rings(before: Placement, after: Placement) -> str:
    """Return the SVG of two placements: inside before, outside after; only what moves has its full color."""
    radii = (62.0, 42.0), (88.0, 68.0)
    full: dict[int, list[str]] = {}
    pale: dict[int, list[str]] = {}
    for start, end, *owners in _arcs(before, after):
        for owner, (outer, inner) in zip(owners, radii, strict=True):
            pieces = pale if owners[0] == owners[1] else full
            pieces.setdefault(owner, []).append(_arc(start / 2**64, end / 2**64, outer, inner))
    parts = [
        tag("path", d="".join(pieces), **worker(server), style="--d2-rim:.4")
        for server, pieces in (*pale.items(), *full.items())
    ]
    cover = tag("path", d="".join(piece for pieces in pale.values() for piece in pieces), **area("paper"), opacity=0.6)
    parts.insert(len(pale), cover)
    parts += _numbers(before, 42.0 - 9, 1.6 * NUMBERED) + _numbers(after, 88.0 + 8, NUMBERED)
    servers = sorted({*before.servers, *after.servers})
    left, top = 2 * MIDDLE + 24, MIDDLE - LINE * len(servers) / 2
    for i, server in enumerate(servers):
        shares = (f"{each.share(server):.1%}" if server in each.servers else "–" for each in (before, after))
        parts += _entry(server, left, top + LINE * i, 224, " → ".join(shares))
    sentence = text("hash-ring.moved", share=f"{moved(before, after):.1%}")
    parts.append(words(sentence, left, top + LINE * len(servers) + 8, "note", "soft", None))
    return sheet(left + 244, 2 * MIDDLE, sentence, *parts)


def _entry(server: int, left: float, y: float, long: float, share: str) -> list[str]:
    """Write a line of the legend: the color and the name of a server, and its share."""
    return [
        tag("rect", x=left, y=y - 9, width=11, height=11, rx=2, **worker(server)),
        tag("text", escape(f"server{server}"), x=left + 19, y=y, **letters("name", "ink")),
        tag("text", escape(share), x=left + long, y=y, **letters("name", "soft", "end")),
    ]


def _arc(start: float, end: float, outer: float = OUTER, inner: float = INNER) -> str:
    """Return the arc of the ring from one part of a turn to another."""
    ends = ((start, outer), (end, outer), (end, inner), (start, inner))
    points = [" ".join(map(fine, _at(turn, radius))) for turn, radius in ends]
    long = int(end - start > 0.5)
    return (
        f"M{points[0]}A{outer:g} {outer:g} 0 {long} 1 {points[1]}L{points[2]}"
        f"A{inner:g} {inner:g} 0 {long} 0 {points[3]}Z"
    )


def _at(turn: float, radius: float) -> tuple[float, float]:
    """Return the point at a part of a turn, clockwise from the top."""
    angle = 2 * math.pi * turn - math.pi / 2
    return MIDDLE + radius * math.cos(angle), MIDDLE + radius * math.sin(angle)

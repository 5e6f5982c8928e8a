"""The backlog of every link as a bar beside its lane: the bytes that have not passed yet, a color for each sender.

All bars of a picture have one scale, and a bar lies at the beginning of the lane, where its bytes wait.
"""

import math
from itertools import combinations
from typing import NamedTuple

from d2lps.topology import Link
from d2lps.units import show_size
from d2lps.view.drawing.boxes import Box
from d2lps.view.drawing.layout import Layout
from d2lps.view.drawing.svg import Line, along, area, beside, fine, num, tag, words, worker
from d2lps.view.drawing.traffic import Traffic

HIGH = 8.0  # the breadth of a bar
LONGEST = 92.0


class Gauge(NamedTuple):
    """The start of a bar, its direction in degrees, the place of its number, and its breadth (1 if there is room)."""

    x: float
    y: float
    turned: float
    words: tuple[float, float, str]
    broad: float

    @property
    def where(self) -> str:
        """The transformation that places the bar."""
        narrow = f" scale(1 {fine(self.broad)})" if self.broad < 1 else ""
        return f"translate({num(self.x)} {num(self.y)}) rotate({num(self.turned)}){narrow}"


def gauges(layout: Layout, load: Traffic) -> tuple[list[Gauge], float]:
    """Return a gauge for each place that messages use, and the length of the longest bar."""
    aside = _half(layout, load) + HIGH / 2 + 2 if layout.room > 14 else 0.0
    over = max(0.4, layout.room / 24)  # the breadth of a bar that lies on its lane and must not hide it
    lines = [_line(layout, resource) for resource in load.motion.sharing]
    long = min([LONGEST, *(max(24.0, math.dist(*line)) for line in lines)])
    places = []
    for resource, (a, b) in zip(load.motion.sharing, lines, strict=True):
        length, is_link = math.dist(a, b) or 1.0, isinstance(resource, Link)
        (x, y), _ = beside((a, b), aside if is_link else 0.0)
        ux, uy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        nx, ny = -uy, ux  # to the right of the lane, where there is room
        # Beside its beginning: of two lanes that run up and down, one has it below and the other above.
        part = 0.5 if not is_link or abs(nx) < 0.9 else min(0.5, (6 if uy < 0 else 12) / length)
        wx, wy = along(beside((a, b), aside + HIGH / 2 + 3 if is_link else -HIGH), part)
        anchor = "start" if nx > 0.4 else "end" if nx < -0.4 else "middle"
        shift = 4.0 if anchor != "middle" else 9.0 if ny > 0 else 0.0
        places.append(Gauge(x, y, math.degrees(math.atan2(uy, ux)), (wx, wy + shift, anchor), 1.0 if aside else over))
    return places, long


def _half(layout: Layout, load: Traffic) -> float:
    """Return half the breadth of the broadest lane, most of which messages may use."""
    links = [resource for resource in load.motion.sharing if isinstance(resource, Link)]
    return layout.room / 2 if any(link.count > 1 for link in links) else 6.0


def _line(layout: Layout, resource: "Link | str") -> Line:
    """Return the lane of a link, or a line within the box of a limited node."""
    if isinstance(resource, Link):
        return layout.lanes[resource.src, resource.dst]
    box = layout.boxes[resource]
    y = box.y + box.h - HIGH
    return (box.x + box.w - min(box.w - 12, LONGEST) - 8, y), (box.x + box.w - 8, y)


def label_level(layout: Layout, load: Traffic, letter: float) -> int:
    """Return 2 if every number has room with its unit, 1 if only without it, else 0: only the bottleneck has a number.

    ``letter`` is the breadth of a letter.
    """
    places, _ = gauges(layout, load)
    if layout.room <= 14 or len(places) > 40:
        return 0
    for level, letters in ((2, 6), (1, 3)):
        spots = [_spot(place, letters * letter) for place in places]
        lanes = [beside(_line(layout, resource), -2.0) for resource in load.motion.sharing]
        if not any(a.overlaps(b) for a, b in combinations(spots, 2)) and not any(
            spot.hides(*lane, 1) for i, spot in enumerate(spots) for k, lane in enumerate(lanes) if i != k
        ):
            return level
    return 0


def _spot(place: Gauge, width: float) -> Box:
    x, y, anchor = place.words
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return Box(left, y - 9, width, 11)


def backlogs(layout: Layout, load: Traffic, at: float, peak: float, level: int) -> str:
    """Draw the bars and their numbers at a moment; ``peak`` bytes fill a bar; ``level`` is :func:`label_level`."""
    places, longest = gauges(layout, load)
    decides, parts = load.decides_at(at), []
    for i, (place, left) in enumerate(zip(places, load.backlogs_at(at), strict=True)):
        bars, x = [], 0.0
        for color, size in left.items():
            width = size / (peak or 1) * longest
            look = worker(color) if color >= 0 else area("soft")
            bars.append(tag("rect", x=fine(x), width=fine(width), y=-HIGH / 2, height=HIGH, **look))
            x += width
        parts.append(tag("g", "".join(bars), class_="d2-tank", transform=place.where))
        x, y, anchor = place.words
        shown = bool(left) and (level > 0 or i == decides)
        look = {"font_weight": 700, "class_": "d2-note d2-left d2-ink", "display": None if shown else "none"}
        size = show_size(round(sum(left.values())))
        parts.append(words(size.split(" ")[0] if level == 1 else size, x, y, "note", "ink", anchor, **look))
    return "".join(parts)

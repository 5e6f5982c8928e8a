"""A recorded network in virtual time: a row per node with its states, and an arrow from sender to receiver per message.

>>> from d2lps.simulate import Network
>>> class Silent:
...     def receive(self, src, message, now):
...         pass
>>> net = Network(seed=1)
>>> net.nodes |= {"a": Silent(), "b": Silent()}
>>> net.record()
>>> net.after(0.01, net.crash, "b")
>>> net.run(until=0.03)
>>> [(band.node, band.look, band.start, band.end) for band in bands(net, 0, 0.03)]
[('a', 'plain', 0.0, 0.03), ('b', 'plain', 0.0, 0.01), ('b', 'crashed', 0.01, 0.03)]
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.simulate import Delivery, Network, Trouble
from d2lps.view.drawing.legend import draw_entries
from d2lps.view.drawing.svg import (
    Point,
    area,
    corners,
    escape,
    fine,
    hatch,
    line,
    page,
    rect,
    short,
    stroke,
    tag,
    words,
)
from d2lps.view.drawing.theme import RIMS, STYLE, WORKERS

WIDE, TOP, TALL, LETTER = 600.0, 34.0, 22.0, 8.6  # of the picture; the height of a band; a letter on a phone
STATES = {"leader": "solid", "primary": "solid", "suspects": "solid", "candidate": "pale"}  # all others are plain
KNOWN = (*STATES, "follower", "backup", "paused", "crashed")  # states with a name in each language
HUES = (3, 4, 6, 5, 7, 0, 12, 15)  # the colors of kinds of messages; further kinds are gray
DASHES = (None, "7 3", "2 2.5", "9 3 2 3", "4 2", "12 4", "6 2 2 2 2 2", "1.5 1.5")
LOOKS = (
    ".d2-accent{fill:var(--d2-accent)}.d2-outline{stroke:var(--d2-accent)}.d2-hatched{stroke:var(--d2-lane)}"
    ".d2-grid{stroke:var(--d2-edge)}.d2-on{fill:var(--d2-paper)}.d2-over{paint-order:stroke;stroke:var(--d2-band);"
    "stroke-width:4;stroke-linejoin:round}.d2-over.d2-soft{stroke:var(--d2-paper)}"
)


class Band(NamedTuple):
    """A node in one state; ``look`` is solid, pale, plain, paused or crashed."""

    node: Hashable
    look: str
    state: str
    start: float
    end: float


def lasting(troubles: list[Trouble], until: float) -> Iterator[Trouble]:
    """Yield each trouble, cut short by a later one of the same nodes."""
    for i, one in enumerate(troubles):
        later = (other.start for other in troubles[i + 1 :] if other[2:] == one[2:])
        end = min(one.end, until, *later)
        if one.start < end:
            yield one._replace(end=end)


def bands(net: Network, start: float, end: float) -> list[Band]:
    """Return what the nodes are from ``start`` to ``end``, node by node and in order of time."""
    found = []
    for node in dict.fromkeys(node for _, node, _ in net.states):
        turns = [
            (time, STATES.get(state.split(" ")[0], "plain"), state) for time, name, state in net.states if name == node
        ]
        turns += [(time, "crashed", "crashed") for time, name in net.deaths if name == node]
        turns.sort(key=lambda turn: turn[0])
        stops = [one for one in lasting(net.troubles, end) if one[2:] == (node, None)]
        for (since, look, state), (until, *_) in pairwise([*turns, (end, "", "")]):
            at = max(since, start)
            for stop in stops if look != "crashed" else ():
                left, right = max(stop.start, at), min(stop.end, until)
                if left < right:
                    found += [Band(node, look, state, at, left), Band(node, "paused", "paused", left, right)]
                    at = right
            found.append(Band(node, look, state, at, min(until, end)))
    return [band for band in found if band.start < band.end]


def messages(net: Network, start: float, end: float) -> list[Delivery]:
    """Return the messages that are under way between ``start`` and ``end``, or get lost then."""
    started = (each for each in net.deliveries or () if each.start < end)
    return [each for each in started if (each.start >= start if each.end is None else each.end > start)]


def kind(message: object) -> str:
    """Return the kind of a message: itself if it is a word, the first word in a tuple, else the name of its class."""
    parts = message if isinstance(message, tuple) else (message,)
    return next((part for part in parts if isinstance(part, str)), type(message).__name__)


def named_state(state: str) -> str:
    """Return a state in the language in force: its first word is translated if it is known."""
    word, *rest = state.split(" ")
    return " ".join([text(f"space-time.{word}") if word in KNOWN else word, *rest])


class _Sheet:
    """Where times and nodes lie."""

    def __init__(self, net: Network, start: float, end: float):
        self.start, self.end = start, end
        self.bands, self.sent = bands(net, start, end), messages(net, start, end)
        self.cuts = [each for each in lasting(net.troubles, end) if each.dst is not None and each.end > start]
        # A node without any state is left out if it neither sends nor receives.
        nodes = [band.node for band in self.bands]
        used = {node for each in self.sent for node in (each.src, each.dst)} | {b.node for b in self.bands if b.state}
        rows = [node for node in dict.fromkeys([*nodes, *used]) if node in used] or dict.fromkeys(nodes)
        self.rows = {node: i for i, node in enumerate(rows)}
        self.bands = [band for band in self.bands if band.node in self.rows]
        self.row = 64.0 if len(self.rows) <= 4 else 56.0
        self.left = 22 + LETTER * min(9, max((len(str(node)) for node in self.rows), default=0))
        self.scale = (WIDE - self.left - 16) / (end - start)
        self.bottom = TOP + self.row * (len(self.rows) - 1) + TALL
        # Numbered over the whole record: a kind looks the same in each picture of it.
        shown = {kind(each.message) for each in self.sent}
        kinds = dict.fromkeys(kind(each.message) for each in net.deliveries or ())
        self.kinds = {name: i for i, name in enumerate(kinds) if name in shown}
        self.dead: dict[Hashable, list[Band]] = {}
        for band in self.bands:
            if band.look == "crashed":
                self.dead.setdefault(band.node, []).append(band)

    def x(self, time: float) -> float:
        return self.left + (time - self.start) * self.scale

    def y(self, node: Hashable) -> float:
        return TOP + self.row * self.rows[node]

    def is_cut(self, row: int, time: float) -> bool:
        """Return whether the gap below a row is hatched at a moment."""
        return any(each.start <= time < each.end and self.gap(each) == row for each in self.cuts)

    def gap(self, cut: Trouble) -> int | None:
        """Return the number of the row above the gap between two neighbors; None if they are no neighbors."""
        one, other = sorted(self.rows.get(node, -9) for node in (cut.src, cut.dst))
        return one if other - one == 1 else None

    def died(self, node: Hashable, time: float) -> bool:
        return any(band.start <= time <= band.end for band in self.dead.get(node, ()))


def space_time(net: Network, start: float, end: float) -> str:
    """Return the SVG of what a network recorded between two moments."""
    sheet = _Sheet(net, start, end)
    parts = [
        tag("desc", escape(f"{_summed(sheet)} {_described(sheet)}")),
        words(text("space-time.heading"), 14, 20, "note", "soft", None),
    ]
    parts += [*_axis(sheet), *(_gap(sheet, each) for each in sheet.cuts), *(_arrow(sheet, each) for each in sheet.sent)]
    parts += [part for band in sheet.bands for part in _band(sheet, band)]
    for node in sheet.rows:
        parts.append(
            words(short(str(node), sheet.left - 14, LETTER), sheet.left - 8, sheet.y(node) + 16, "note", "ink", "end")
        )
    legend, high = draw_entries(_entries(sheet), 14, sheet.bottom + 36, WIDE - 28, LETTER, 2)
    return page(text("space-time.heading"), WIDE, sheet.bottom + 40 + high, *parts, legend, looks=STYLE + LOOKS)


def _summed(sheet: _Sheet) -> str:
    """Return a sentence with the messages, how many of them are lost, and the kind sent most often."""
    lost = sum(each.end is None or sheet.died(each.dst, each.end) for each in sheet.sent)
    most = Counter(kind(each.message) for each in sheet.sent).most_common(1)
    values = {"messages": len(sheet.sent), "start": f"{sheet.start:.4g}", "end": f"{sheet.end:.4g}", "lost": lost}
    return text("described.sent", **values, kind=most[0][0] if most else "–")


def _described(sheet: _Sheet) -> str:
    """List the states of each node in words."""
    nodes = []
    for node in sheet.rows:
        own = [f"{named_state(b.state)} {b.start:.4g}–{b.end:.4g} s".strip() for b in sheet.bands if b.node == node]
        nodes.append(f"{node}: {', '.join(own)}")
    return "; ".join(nodes)


def _axis(sheet: _Sheet) -> list[str]:
    """Draw a line for each round moment, with its time below."""
    parts, rough = [], (sheet.end - sheet.start) / 5
    every = next(
        f * 10.0 ** math.floor(math.log10(rough))
        for f in (1, 2, 5, 10)
        if f * 10 ** math.floor(math.log10(rough)) >= rough
    )
    unit, name = (1.0, "s") if sheet.end >= 0.1 else (1e-3, "ms")
    for i in range(math.ceil(sheet.start / every - 1e-9), math.floor(sheet.end / every + 1e-9) + 1):
        x = sheet.x(i * every)
        parts.append(tag("path", d=line((x, TOP - 6), (x, sheet.bottom + 6)), **stroke("grid", 1, "edge")))
        moment = f"{round(i * every / unit, 6):g} {name}"
        side = "end" if x > WIDE - 40 else "middle"
        parts.append(words(moment, min(x, WIDE - 6), sheet.bottom + 22, "note", "soft", side))
    return parts


def _gap(sheet: _Sheet, cut: Trouble) -> str:
    """Hatch the gap between the rows of two neighbors while they are cut off from one another."""
    if (row := sheet.gap(cut)) is None:
        return ""
    y, x = TOP + sheet.row * row + TALL + 3, sheet.x(max(cut.start, sheet.start))
    place = x, y, sheet.x(cut.end) - x, sheet.row - TALL - 6
    return tag("path", d=rect(*place), **area("band")) + tag("path", d=hatch(*place, 10), **_hatched())


def _hatched() -> dict[str, object]:
    return stroke("hatched", 0.8, "lane")


def _band(sheet: _Sheet, band: Band) -> Iterator[str]:
    """Draw a node in one state, and write the state if there is room."""
    x, y, wide = sheet.x(band.start), sheet.y(band.node), (band.end - band.start) * sheet.scale
    place = {"x": fine(x), "y": y, "width": fine(max(wide - 1, 0.6)), "height": TALL, "rx": min(3.0, wide / 3)}
    if band.look == "crashed":
        yield tag(
            "path",
            d=line((x + 8, y + TALL / 2), (x + wide, y + TALL / 2)),
            **stroke("hatched", 1.2, "lane"),
            stroke_dasharray="3 4",
        )
        if band.start > sheet.start:
            yield _cross((x + 4, y + TALL / 2), 6.0, **stroke("done", 2.5))
    elif band.look == "paused":
        yield tag("rect", **place, **area("band"))
        yield tag("path", d=hatch(x, y, wide - 1, TALL, 6), **_hatched())
    else:
        look = area({"solid": "accent", "pale": "paper"}.get(band.look, "well"))
        yield tag("rect", **place, **look)
        if band.look == "pale":
            inside = {"x": x + 1, "y": y + 1, "width": max(wide - 3, 0.6), "height": TALL - 2, "rx": min(3.0, wide / 3)}
            yield tag("rect", **inside, **stroke("outline", 2, "accent"))
    label = named_state(band.state)
    for shown in (label, band.state.split(" ")[-1] if band.state[-1:].isdigit() else ""):
        if shown and LETTER * sum(1 + (letter > "\u2e80") for letter in shown) + 4 <= wide:
            color, over = ("paper", " d2-on") if band.look == "solid" else ("ink", "")
            color, over = ("soft", " d2-over") if band.look == "crashed" else (color, over)
            over = " d2-over" if band.look == "paused" else over
            crossed = band.look == "crashed" and band.start > sheet.start  # the word stands beside the cross
            middle, anchor = (x + 14, None) if crossed else (x + wide / 2, "middle")
            yield words(shown, middle, y + 16, "note", color, anchor, class_=f"d2-note d2-{color}{over}")
            return


def _cross(at: Point, half: float, **look: object) -> str:
    (x, y), h = at, half
    return tag("path", d=line((x - h, y - h), (x + h, y + h)) + line((x + h, y - h), (x - h, y + h)), **look)


def _pen(number: int, width: float = 1.5) -> dict[str, object]:
    """Return the look of the arrows of a kind of messages."""
    if number >= len(HUES):
        return stroke("hatched", width, "lane")
    hue = HUES[number]
    rim = RIMS[hue] != WORKERS[hue]
    look = {"fill": "none", "stroke": RIMS[hue][0], "style": f"stroke:var(--d2-{'r' if rim else 'w'}{hue})"}
    return look | {"stroke_width": width, "stroke_dasharray": DASHES[number]}


def _arrow(sheet: _Sheet, sent: Delivery) -> str:
    """Draw a message; a lost one ends in a cross on its way, one to a dead node in a cross at its end."""
    up = sheet.rows[sent.src] > sheet.rows[sent.dst]
    a = sheet.x(sent.start), sheet.y(sent.src) + (0 if up else TALL)
    gone = sent.end is None or sheet.died(sent.dst, sent.end)
    if sent.end is None:
        src, dst = sheet.rows[sent.src], sheet.rows[sent.dst]
        passed = range(src - 1, dst - 1, -1) if up else range(src, dst)  # the gaps between them
        row = next((row for row in passed if sheet.is_cut(row, sent.start)), passed[0])
        b = a[0] + 4 * (1 + abs(row - passed[0])), TOP + sheet.row * row + (sheet.row + TALL) / 2
    else:
        b = sheet.x(sent.end), sheet.y(sent.dst) + (TALL if up else 0)
    look = _pen(sheet.kinds[kind(sent.message)])
    low, high = sheet.x(sheet.start), sheet.x(sheet.end)
    shown = [_clipped(a, b, low, high), _clipped(b, a, low, high)]
    whole = low <= b[0] <= high
    tip = (_cross(b, 3.5, **look | {"stroke_dasharray": None}) if gone else _tip(a, b, look)) if whole else ""
    times = f"{sent.start:.4g}–{'' if sent.end is None else format(sent.end, '.4g')} s"
    title = tag("title", escape(f"{sent.src} → {sent.dst}  {sent.message!r}  {times}"))
    return tag("g", title + tag("path", d=line(shown[0], shown[1]), **look) + tip)


def _clipped(a: Point, b: Point, low: float, high: float) -> Point:
    """Return ``a``, or the point on the way to ``b`` at which the line enters the picture."""
    x = min(max(a[0], low), high)
    return a if x == a[0] else (x, a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0]))


def _tip(a: Point, b: Point, look: dict) -> str:
    """Draw the head of an arrow."""
    long = math.dist(a, b) or 1.0
    ux, uy = (b[0] - a[0]) / long, (b[1] - a[1]) / long
    back = b[0] - 7 * ux, b[1] - 7 * uy
    shape = corners(b, (back[0] - 3 * uy, back[1] + 3 * ux), (back[0] + 3 * uy, back[1] - 3 * ux))
    filled = {"fill": look["stroke"], "style": look.get("style", "stroke:var(--d2-lane)").replace("stroke", "fill")}
    return tag("path", d=shape, **filled)


def _entries(sheet: _Sheet) -> list[tuple[str, str]]:
    """Return (mark, meaning) for all that is shown."""
    entries = []
    for name, i in sheet.kinds.items():
        if i < len(HUES):
            entries.append((tag("path", d=line((0, 8), (20, 8)), **_pen(i)) + _tip((0, 8), (26, 8), _pen(i)), name))
    if any(i >= len(HUES) for i in sheet.kinds.values()):
        entries.append((tag("path", d=line((0, 8), (26, 8)), **_pen(len(HUES))), text("space-time.others")))
    shown, cross = {band.look for band in sheet.bands}, _cross((13, 8), 4, **stroke("done", 1.6))
    hatching = tag("path", d=rect(2, 1, 22, 14), **area("band")) + tag("path", d=hatch(2, 1, 22, 14, 6), **_hatched())
    lost = any(each.end is None or sheet.died(each.dst, each.end) for each in sheet.sent)
    lines = [("lost", lost, cross), ("hatched-pause", "paused" in shown, hatching), ("cut", bool(sheet.cuts), hatching)]
    return entries + [(mark, text(f"space-time.{name}")) for name, used, mark in lines if used]

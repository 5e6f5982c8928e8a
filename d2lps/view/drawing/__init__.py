"""A trace as a picture: nodes with what they hold, messages under way, a timeline. SVG, and nothing else.

>>> from d2lps import aggregate_at, cost, draw, pcie_server
>>> trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), pcie_server(gpus=2), "160 MB")
>>> str(draw(trace, at="5 ms"))[:26]
'<svg class="d2lps d2-still'

Each node shows its buffer, a cell per key. A cell has a slot per worker, filled with that worker's colour once
its gradient is contained. A frame round a cell: the sum is complete. Hatched: it has been turned into new weights.
"""

import re
from collections import Counter
from pathlib import Path

from d2lps import units
from d2lps.algorithms.placement import Placement
from d2lps.messages import text
from d2lps.topology.graph import FORWARDING, Topology
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.hash_ring import hash_ring
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.sketch import sketch
from d2lps.view.drawing.svg import area, corners, letters, num, say, short, tag
from d2lps.view.drawing.theme import STYLE, THIN
from d2lps.view.drawing.timeline import timeline

MOST_NODES, MOST_EVENTS = 64, 20_000


class DrawingError(ValueError):
    """Something that cannot be drawn: its sentence says what would be drawn."""


def draw(what: "Trace | Topology | Placement", at: "float | str | None" = None) -> "Drawing":
    """The picture of a trace at one moment: notebooks show it, ``str()`` gives the SVG, ``.save(path)`` writes it.

    ``at`` is a time such as ``"7.5 ms"`` (or seconds); if left out, the moment that tells most: when most
    messages are under way, and of several such moments the middlemost. Of a topology, the picture of its
    nodes and links; of a placement of keys, the ring of hashes. Raises DrawingError, also for what is too large to be
    seen.
    """
    if isinstance(what, Topology):
        _drawable("draw", what)
        return Drawing(sketch(what), what.name)
    if isinstance(what, Placement):
        return Drawing(hash_ring(what), f"{len(what.servers)} servers")
    scene = Scene(wanted(what, "draw"))
    at = scene.motion.telling() if at is None else units.seconds(at)
    return Drawing(still(scene, at=at), f"{what!r} at {show_seconds(at)}", at)


def wanted(trace: object, name: str) -> Trace:
    """``trace``, if it is one and can be seen. Raises DrawingError for whoever calls ``name`` with something else."""
    if not isinstance(trace, Trace):
        raise DrawingError(text("draw.not-a-trace", name=name, given=type(trace).__name__))
    _drawable(name, trace.topology, len(trace.events))
    return trace


def _drawable(name: str, topology: Topology, events: int = 0) -> None:
    """Raises DrawingError where a picture would be a blur, and long in coming."""
    nodes = max(Counter(kind in FORWARDING for kind in topology.kinds.values()).values())
    for number, most, what in ((nodes, MOST_NODES, "nodes"), (events, MOST_EVENTS, "events")):
        if number > most:
            raise DrawingError(
                f"{name} shows up to {most} {what}, and there are {number} here: take fewer nodes or chunks for the "
                "picture, and for the large run its numbers, such as trace.duration and trace.bytes_sent(node)"
            )


def origin(trace: Trace) -> str:
    """How a trace came about, where, and with how many bytes, in the language in force."""
    words = [text("draw.measured"), trace.origin] if trace.measured else [text(f"draw.{trace.origin}")]
    where = [] if trace.topology.name == "pairs" else [trace.topology.name]
    return " · ".join([*words, *where, show_size(trace.nbytes)])


class Drawing:
    """A finished picture ``of`` something, at a moment or at none."""

    def __init__(self, svg: str, of: str, at: float | None = None):
        self._svg, self._of, self.at = svg, of, at

    def __str__(self) -> str:
        return self._svg

    def __repr__(self) -> str:
        return f"<Drawing: {self._of}>"

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: "str | Path") -> Path:
        """Write the SVG to ``path``."""
        path = Path(path)
        path.write_text(str(self), "utf-8")
        return path


def still(scene: Scene, name: str = "", at: float | None = None) -> str:
    """The whole picture at a moment: a line of words, the scene, the timeline with its rows named."""
    trace, place = scene.trace, scene.layout
    left, top, wide = 70.0, 28.0, max(place.width, 400.0)
    at = min(scene.motion.telling() if at is None else at, trace.duration)
    below, row = top + place.height + 16, 20.0 if len(trace.plan.nodes) <= 8 else 14.0
    bottom = below + row * len(trace.plan.nodes)
    long = wide - left - 14
    parts = [
        tag("title", say(f"{origin(trace)}, {show_seconds(at)} / {show_seconds(trace.duration)}")),
        tag("style", STYLE + THIN),
        tag("rect", width=wide, height=bottom + 24, rx=10, **area("paper")),
        tag(
            "text",
            (tag("tspan", say(name), font_weight=700) + " · " if name else "") + say(origin(trace)),
            x=14,
            y=20,
            **letters("note"),
        ),
        scene.svg(at, x=(wide - place.width) / 2, y=top, width=place.width, height=place.height),
        timeline(trace, scene.motion, at, x=left, y=below, width=long, height=bottom - below),
    ]
    for i, node in enumerate(trace.plan.nodes):
        parts.append(
            tag(
                "text",
                short(node, left - 24, 6),
                x=left - 14,
                y=below + row * (i + 0.5) + 3.5,
                **letters("note", anchor="end"),
            )
        )
        parts.append(tag("path", d=_arrows(left - 7, below + row * i, row), **area("busy")))
    parts += [
        tag("text", str(number), x=left + long * middle, y=below - 4, **letters("key", anchor="middle"))
        for number, middle in step_labels(trace)
    ]
    parts += _axis(trace, at, left, long, bottom + 14)
    return tag(
        "svg",
        "".join(parts),
        class_="d2lps d2-still",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        viewBox=f"0 0 {num(wide)} {num(bottom + 24)}",
        width=wide,
    )


def step_labels(trace: Trace, longest: float | None = None) -> list[tuple[int, float]]:
    """The number of each step and its middle as a part of the whole, for those that have room for it.

    ``longest``: how long what stands on the same scale takes, if something does.
    """
    if not trace.duration:
        return []
    found: list[tuple[int, float]] = []
    room = 0.035 * (longest or trace.duration) / trace.duration
    for i, (start, end) in enumerate(trace.step_times(), 1):
        middle = (start + end) / 2 / trace.duration
        apart = min((abs(middle - other) for _, other in found[-3:]), default=1.0)  # steps may overlap in time
        if min((end - start) / trace.duration, apart) >= room:
            found.append((i, middle))
    return found


def _arrows(x: float, y: float, row: float) -> str:
    """Up beside what a node sends, down beside what it receives."""
    r = row * 0.14
    up, down = y + row * 0.27, y + row * 0.73
    return corners((x - r, up + r / 2), (x + r, up + r / 2), (x, up - r)) + corners(
        (x - r, down - r / 2), (x + r, down - r / 2), (x, down + r)
    )


def _axis(trace: Trace, at: float, left: float, long: float, y: float) -> list[str]:
    """The moment below the play-head, and the ends of the axis where they do not stand in its way."""
    part = at / trace.duration if trace.duration else 1.0
    side = "middle" if 0.06 < part < 0.94 else "end" if part > 0.5 else "start"
    look = letters("note", "ink", side, font_weight=600)
    now = tag("text", say(show_seconds(at)), x=left + long * part, y=y, **look)
    zero = tag("text", "0", x=left, y=y, **letters("note"))
    end = tag("text", say(show_seconds(trace.duration)), x=left + long, y=y, **letters("note", anchor="end"))
    return [zero if part > 0.12 else "", now, end if part < 0.8 else ""]


def stacked(stills: list[str]) -> str:
    """Several stills below each other, as one SVG."""
    sizes = [tuple(map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', still).groups())) for still in stills]
    parts, y = [], 0.0
    for picture, (_, height) in zip(stills, sizes, strict=True):
        parts.append(picture.replace("<svg ", f'<svg y="{num(y)}" ', 1))
        y += height + 8
    wide = max(width for width, _ in sizes)
    return tag(
        "svg",
        "".join(parts),
        class_="d2lps",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        viewBox=f"0 0 {num(wide)} {num(y)}",
        width=wide,
    )


def figures() -> dict[str, str]:
    """The course's figures, name → SVG, as they stand in ``img/``."""
    from d2lps.view.drawing import plates

    return plates.figures()

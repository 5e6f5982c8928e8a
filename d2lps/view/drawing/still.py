"""The whole picture of a trace at a moment: words, the scene, the timeline with the names of its rows, the legend."""

import re
from collections.abc import Sequence

from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.axis import axis, ended, shared_part
from d2lps.view.drawing.boxes import host
from d2lps.view.drawing.lanes import Lanes, source
from d2lps.view.drawing.lanes_still import BREADTH, lanes_still
from d2lps.view.drawing.legend import draw_legend
from d2lps.view.drawing.reason import awaited, place_name, reason
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import area, corners, escape, letters, num, page, root, short, tag, words
from d2lps.view.drawing.theme import LIGHT
from d2lps.view.drawing.timeline import mortal, step_runs, timeline

SMALL = 480.0  # a phone shows pictures of this breadth nearly as large, so their words need to grow less


def origin(trace: Trace) -> str:
    """Return the origin of a trace, its topology and its bytes, in the language in force."""
    return " · ".join([*source(trace), show_size(trace.nbytes)])


def state(scene: Scene, at: float) -> tuple[str, str, str]:
    """Return three sentences: the number of full links, the backlog of the bottleneck, or that there never is one."""
    load, duration = scene.load, scene.trace.duration
    loss = next((sentence for time, sentence in reversed(scene.losses) if time <= at), "")
    full = text("draw.full", full=load.full_at(at), links=load.links) if load.links else ""
    decides = load.decides_at(at)
    if loss or decides < 0 and scene.losses:
        return full, loss, ""
    if decides < 0:
        return full, "", "" if awaited(load, duration) else reason(load, duration)[1]
    size = show_size(round(sum(load.backlogs_at(at)[decides].values())))
    return full, text("draw.to-go", place=place_name(scene.motion.sharing[decides]), size=size), ""


def breadth(scene: "Scene | Lanes") -> float:
    """Return the breadth of the whole picture of a scene."""
    return BREADTH if isinstance(scene, Lanes) else max(scene.view[2], 400.0)


def still(
    scene: "Scene | Lanes",
    name: str = "",
    at: float | None = None,
    explained: Sequence[Scene] | None = None,
    heading: str | None = None,
    beside: "Sequence[Scene] | Sequence[Lanes]" = (),
    **more: object,
) -> str:
    """Draw ``scene`` at a moment as one SVG with a legend for all scenes in ``explained``.

    ``name`` and ``heading`` (by default the origin of the trace) are written above it. It shares its axis of time with
    the scenes ``beside`` it. ``more`` are attributes of the whole picture.
    """
    if isinstance(scene, Lanes):
        return lanes_still(scene, name, at, explained, heading, beside, **more)
    trace, (_, _, width, height) = scene.trace, scene.view
    named = [node for each in (scene, *beside) for node in each.trace.plan.nodes]
    names = max((len(node) for node in named if host(node)), default=0)  # cut, they would be the same
    left, top, page_width = max(70.0, 30 + 7.0 * min(names, 14)), 46.0, breadth(scene)
    at = min(scene.motion.telling() if at is None else at, trace.duration)
    below, row = top + height + 16, 20.0 if len(trace.plan.nodes) <= 8 else 14.0
    bottom, room = below + row * len(trace.plan.nodes), page_width - left - 14
    part = shared_part(scene, beside)
    length = room * part
    first_line = [tag("tspan", escape(name), font_weight=700)] * bool(name)
    first_line += [escape(origin(trace) if heading is None else heading)] * (heading != "")
    parts = [
        tag("text", " · ".join(first_line), x=14, y=20, **letters("note")),
        _state(scene, at),
        scene.svg(at, x=(page_width - width) / 2, y=top, width=width, height=height),
        ended(left, below, room, length, bottom - below),
        timeline(trace, scene.motion, at, x=left, y=below, width=length, height=bottom - below),
    ]
    for i, node in enumerate(trace.plan.nodes):
        parts.append(words(short(node, left - 24, 6), left - 14, below + row * (i + 0.5) + 3.5, "note", "soft", "end"))
        parts.append(tag("path", d=_arrows(left - 7, below + row * i, row), **area("busy")))
    for number, middle in step_labels(trace, trace.duration / part):
        parts.append(words(str(number), left + length * middle, below - 4, "key", "soft"))
    parts += axis(at, trace.duration, left, length, room, bottom + 14)
    title = f"{origin(trace)}, {show_seconds(at)} / {show_seconds(trace.duration)}"
    small = page_width <= SMALL
    legend, legend_height = draw_legend(
        [scene] if explained is None else explained, 14, bottom + 28, page_width - 28, 6.1 if small else 7.4
    )
    if small:
        more["style"] = ";".join(filter(None, ["--d2-zoom:1.12", more.get("style")]))
    return page(title, page_width, bottom + 24 + (legend_height + 8 if legend_height else 0), *parts, legend, **more)


def _state(scene: Scene, at: float) -> str:
    full, decides, spread = state(scene, at)
    mark = tag("tspan", "● ", class_="d2-warm", fill=LIGHT["warm"]) if decides else ""
    why = mark + escape(decides or spread)
    return tag("text", " · ".join(filter(None, [escape(full), why])), x=14, y=37, **letters("note"))


def step_labels(trace: Trace, longest: float | None = None) -> list[tuple[int, float]]:
    """Return (number, middle as a part of the whole) of each run of a step whose number has room.

    ``longest`` is the duration of the longest trace on the same scale, if there are others.
    """
    if not trace.duration:
        return []
    labels: list[tuple[int, float]] = []
    room = 0.035 * (longest or trace.duration) / trace.duration
    dies = mortal(trace)  # the round in which a node dies is short, and has its number nevertheless
    for i, start, end in step_runs(trace):
        middle = (start + end) / 2 / trace.duration
        apart = min((abs(middle - other) for _, other in labels[-3:]), default=1.0)  # steps may overlap in time
        if min(1.0 if dies else (end - start) / trace.duration, apart) >= room:
            labels.append((i, middle))
    return labels


def _arrows(x: float, y: float, row: float) -> str:
    """Return two arrows: up beside the sends of a node, down beside its receipts."""
    r, ends = row * 0.14, ((y + row * 0.27, -1), (y + row * 0.73, 1))
    return "".join(
        corners((x - r, middle - way * r / 2), (x + r, middle - way * r / 2), (x, middle + way * r))
        for middle, way in ends
    )


def stacked(stills: list[str], columns: int = 1) -> str:
    """Return several stills below each other, or in rows of so many, as one SVG."""
    sizes = [tuple(map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', still).groups())) for still in stills]
    parts, x, y, width = [], 0.0, 0.0, 0.0
    for i, (picture, (wide, high)) in enumerate(zip(stills, sizes, strict=True), 1):
        # A picture inside another one has no CSS size, so its height is an attribute.
        left = f'x="{num(x)}" ' if x else ""
        placed = picture.replace("<svg ", f'<svg {left}y="{num(y)}" height="{num(high)}" ', 1)
        parts.append(placed.replace('class="d2lps d2-still"', 'class="d2lps"', 1))
        x, width = x + wide, max(width, x + wide)
        if i % columns == 0 or i == len(stills):
            first = (i - 1) // columns * columns
            x, y = 0.0, y + max(high for _, high in sizes[first:i]) + 8
    return root("".join(parts), width, y)

"""The whole picture of a trace at a moment: words, the scene, the timeline with its rows named, the legend."""

import re
from collections.abc import Sequence

from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.boxes import host
from d2lps.view.drawing.legend import draw_legend
from d2lps.view.drawing.reason import awaited, place_name, reason
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import area, corners, escape, letters, num, page, root, short, tag, words
from d2lps.view.drawing.theme import LIGHT
from d2lps.view.drawing.timeline import timeline

SMALL = 480.0  # the breadth of a picture that a phone shows without making it smaller, so that words need not grow


def origin(trace: Trace) -> str:
    """How a trace came about, where, and with how many bytes, in the language in force."""
    how = [text("draw.measured"), trace.origin] if trace.measured else [text(f"draw.{trace.origin}")]
    where = [] if trace.topology.name == "pairs" else [trace.topology.name]
    return " · ".join([*how, *where, show_size(trace.nbytes)])


def state(scene: Scene, at: float) -> tuple[str, str, str]:
    """How many links are full; what the one that decides has still to pass; or, all along, that none ever does."""
    load, duration = scene.load, scene.trace.duration
    full, decides = text("draw.full", full=load.full_at(at), links=load.links), load.decides_at(at)
    if decides < 0:
        return full if load.links else "", "", "" if awaited(load, duration) else reason(load, duration)[1]
    size = show_size(round(sum(load.backlogs_at(at)[decides].values())))
    return full, text("draw.to-go", place=place_name(scene.motion.sharing[decides]), size=size), ""


def breadth(scene: Scene) -> float:
    """How broad the whole picture of a scene is."""
    return max(scene.view[2], 400.0)


def still(
    scene: Scene,
    name: str = "",
    at: float | None = None,
    explained: Sequence[Scene] | None = None,
    said: str | None = None,
    **more: object,
) -> str:
    """The SVG of ``scene`` at a moment, under ``name`` and what is ``said`` of its origin; its legend is about all
    scenes in ``explained``. ``more`` are attributes of the whole picture."""
    trace, (_, _, width, height) = scene.trace, scene.view
    names = max((len(node) for node in trace.plan.nodes if host(node)), default=0)  # cut, they would be the same
    left, top, wide = max(70.0, 30 + 7.0 * min(names, 14)), 46.0, breadth(scene)
    at = min(scene.motion.telling() if at is None else at, trace.duration)
    below, row = top + height + 16, 20.0 if len(trace.plan.nodes) <= 8 else 14.0
    bottom, long = below + row * len(trace.plan.nodes), wide - left - 14
    heading = [tag("tspan", escape(name), font_weight=700)] * bool(name)
    heading += [escape(origin(trace) if said is None else said)] * (said != "")
    parts = [
        tag("text", " · ".join(heading), x=14, y=20, **letters("note")),
        _state(scene, at),
        scene.svg(at, x=(wide - width) / 2, y=top, width=width, height=height),
        timeline(trace, scene.motion, at, x=left, y=below, width=long, height=bottom - below),
    ]
    for i, node in enumerate(trace.plan.nodes):
        parts.append(words(short(node, left - 24, 6), left - 14, below + row * (i + 0.5) + 3.5, "note", "soft", "end"))
        parts.append(tag("path", d=_arrows(left - 7, below + row * i, row), **area("busy")))
    for number, middle in step_labels(trace):
        parts.append(words(str(number), left + long * middle, below - 4, "key", "soft"))
    parts += _axis(trace, at, left, long, bottom + 14)
    title = f"{origin(trace)}, {show_seconds(at)} / {show_seconds(trace.duration)}"
    small = wide <= SMALL
    legend, high = draw_legend(
        [scene] if explained is None else explained, 14, bottom + 28, wide - 28, 5.4 if small else 7.4
    )
    if small:
        more["style"] = ";".join(filter(None, ["--d2-zoom:1", more.get("style")]))
    return page(title, wide, bottom + 24 + (high + 8 if high else 0), *parts, legend, **more)


def _state(scene: Scene, at: float) -> str:
    full, decides, spread = state(scene, at)
    mark = tag("tspan", "● ", class_="d2-warm", fill=LIGHT["warm"]) if decides else ""
    why = mark + escape(decides or spread)
    return tag("text", escape(full) + (" · " if why else "") + why, x=14, y=37, **letters("note"))


def step_labels(trace: Trace, longest: float | None = None) -> list[tuple[int, float]]:
    """The number of each step and its middle as a part of the whole, for those that have room for it.

    ``longest``: how long what stands on the same scale takes, if something does.
    """
    if not trace.duration:
        return []
    labels: list[tuple[int, float]] = []
    room = 0.035 * (longest or trace.duration) / trace.duration
    for i, (start, end) in enumerate(trace.step_times(), 1):
        middle = (start + end) / 2 / trace.duration
        apart = min((abs(middle - other) for _, other in labels[-3:]), default=1.0)  # steps may overlap in time
        if min((end - start) / trace.duration, apart) >= room:
            labels.append((i, middle))
    return labels


def _arrows(x: float, y: float, row: float) -> str:
    """Up beside what a node sends, down beside what it receives."""
    r, ends = row * 0.14, ((y + row * 0.27, -1), (y + row * 0.73, 1))
    return "".join(
        corners((x - r, middle - way * r / 2), (x + r, middle - way * r / 2), (x, middle + way * r))
        for middle, way in ends
    )


def _axis(trace: Trace, at: float, left: float, long: float, y: float) -> list[str]:
    """The moment below the play-head, and the ends of the axis where they do not stand in its way."""
    part = at / trace.duration if trace.duration else 1.0
    side = "middle" if 0.06 < part < 0.94 else "end" if part > 0.5 else "start"
    return [
        words("0", left, y, "note", "soft", None) if part > 0.12 else "",
        words(show_seconds(at), left + long * part, y, "note", "ink", side, font_weight=600),
        words(show_seconds(trace.duration), left + long, y, "note", "soft", "end") if part < 0.8 else "",
    ]


def stacked(stills: list[str]) -> str:
    """Several stills below each other, as one SVG."""
    sizes = [tuple(map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', still).groups())) for still in stills]
    parts, y = [], 0.0
    for picture, (_, height) in zip(stills, sizes, strict=True):
        parts.append(picture.replace("<svg ", f'<svg y="{num(y)}" ', 1))
        y += height + 8
    return root("".join(parts), max(width for width, _ in sizes), y, class_="d2lps")

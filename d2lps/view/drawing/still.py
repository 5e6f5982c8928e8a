"""The axis of time below the rows of a still: runs of one race share it, so that a shorter run is a shorter line.

The whole picture of a schedule, or of a trace of one: words, lanes with their letters, memory bars, the legend.

The whole picture of a trace at a moment: words, the scene, the timeline with the names of its rows, the legend.

A sentence for those who do not see the picture.
"""

from collections.abc import Sequence
from typing import Any

from d2lps.messages import text
from d2lps.trace import Trace
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.lanes import GAUGE, LOOKS, WIDE, Lanes, source
from d2lps.view.drawing.layout import host
from d2lps.view.drawing.legend import draw_legend
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import SIZES, area, corners, escape, letters, num, page, root, short, size, tag, words
from d2lps.view.drawing.theme import LIGHT, STYLE
from d2lps.view.drawing.timeline import mortal, step_runs, timeline
from d2lps.view.drawing.traffic import awaited, place_name, reason

LETTER, GAP = 6.6, 8.0  # the width of a letter on the axis, and the least distance of two words


def shared_part(scene, beside: Sequence) -> float:
    """Return the part of the axis that a run takes: 1 for the longest of those ``beside`` it, and for one alone."""
    longest = max((each.trace.duration for each in (scene, *beside)), default=0.0)
    return scene.trace.duration / longest if scene.trace.duration else 1.0


def ended(left: float, top: float, room: float, length: float, height: float) -> str:
    """Draw the rest of the axis, after the end of a run that is shorter than another one."""
    if length >= room:
        return ""
    rest = tag("rect", x=left, y=top, width=room, height=height, **area("box", 0))
    return rest + tag("rect", x=left + length, y=top, width=2, height=height, **area("ink"))


def axis(at: float | None, end: float, left: float, length: float, room: float, y: float) -> list[str]:
    """Write the moment below the play-head, if there is one, and the ends of the run where they have room.

    The run takes ``length`` of the ``room``.
    """
    parts, taken, last = [], left, show_seconds(end)  # up to `taken` there are words
    if at is not None:
        half = LETTER * len(show_seconds(at)) / 2
        x = min(max(left + (length * at / end if end else length), left + half), left + room - half)
        parts.append(words(show_seconds(at), x, y, "note", "ink", font_weight=600))
        taken = x + half + GAP
    if at is None or taken - 2 * (half + GAP) >= left + LETTER:
        parts.append(words("0", left, y, "note", "soft", None))
        taken = max(taken, left + LETTER + GAP)
    right = max(taken + LETTER * len(last), left + length)
    if (at is None or at < end) and right <= left + room + 1:
        parts.append(words(last, right, y, "note", "soft", "end"))
    return parts


BREADTH, TOP = 720.0, 58.0
CELL_LETTER = 6.4  # the width of a letter in a cell


def lanes_still(
    scene: Lanes,
    name: str = "",
    at: float | None = None,
    explained: Sequence[Scene | Lanes] | None = None,
    heading: str | None = None,
    beside: Sequence[Lanes] = (),
    **more: Any,
) -> str:
    """Draw ``scene`` as one SVG, at a moment or as a whole: see :func:`d2lps.view.drawing.still.still`."""
    names = max(len(node) for each in (scene, *beside) for node in each.nodes)
    left = 26 + 7.2 * min(names, 12)
    room = BREADTH - left - GAUGE - 28
    long = room * shared_part(scene, beside)
    first_line = [tag("tspan", escape(name), font_weight=700)] * bool(name)
    first_line += [escape(scene.heading() if heading is None else heading)] * (heading != "")
    parts = [
        tag("text", " · ".join(first_line), x=14, y=20, **letters("note")),
        words(scene.bubble(), 14, 37, "note", "soft", None),
        ended(left, TOP, room, long, scene.height),
        scene.lanes(at, x=left, y=TOP, width=long, height=scene.height),
        *_cells(scene, left, long),
        scene.gauges(at, x=left + room + 13, y=TOP, width=GAUGE + 2, height=scene.height),
    ]
    for i, node in enumerate(scene.nodes):
        y = TOP + scene.row * (i + (0.5 if scene.slots or not scene.network else 0.4)) + 3.5
        parts.append(words(short(node, left - 22, 6), left - 8, y, "note", "soft", "end"))
    bottom = TOP + scene.height - (14 if scene.slots else 0)  # slots have their numbers above the lanes
    parts += _axis(scene, at, left, long, room, bottom + 14)
    legend, high = draw_legend([scene] if explained is None else explained, 14, bottom + 28, BREADTH - 28, 8.2, 2)
    title = " · ".join(filter(None, [scene.heading(), scene.bubble()]))
    height = bottom + 24 + (high + 8 if high else 0)
    return page(title, BREADTH, height, *parts, legend, looks=STYLE + LOOKS, **more)


def _cells(scene: Lanes, left: float, long: float) -> list[str]:
    """Write the label of each task that has room for it, else its shortest label, else nothing."""
    parts = []
    for block, label, least, color in scene.letters():
        x, w = (value * long / WIDE for value in scene.spot(block))
        top, high = scene.level(block)
        shown = next((words_ for words_ in (label, least) if CELL_LETTER * len(words_) + 2 <= w), "")
        if shown:
            where = {"x": left + x + w / 2, "y": TOP + top + high / 2 + 3.6, "text_anchor": "middle"}
            parts.append(
                tag("text", escape(shown), **where, font_size=SIZES["note"] - 0.5, class_=f"d2-cell d2-on{color}")
            )
    return parts


def _axis(scene: Lanes, at: float | None, left: float, long: float, room: float, y: float) -> list[str]:
    """Write the numbers of slots above the lanes, or the moment above and the ends of the time below them."""
    end = scene.duration
    if scene.slots:
        count = round(end)
        every = next(
            k for k in (1, 2, 5, 10, 20, 50, 100, 1000, 10**6) if k * long / max(1, count) >= 7 * len(str(count))
        )
        numbers = range(0, count, every)
        return [words(str(i), left + long * (i + 0.5) / count, TOP - 5, "key", "soft") for i in numbers]
    moment = [] if at is None else [words(show_seconds(at), left + long * at / (end or 1), TOP - 5, "note", "ink")]
    return [*moment, *axis(None, end, left, long, room, y)]


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
    left = show_size(round(sum(load.backlogs_at(at)[decides].values())))
    return full, text("draw.to-go", place=place_name(scene.motion.sharing[decides]), size=left), ""


def breadth(scene: "Scene | Lanes") -> float:
    """Return the breadth of the whole picture of a scene."""
    return BREADTH if isinstance(scene, Lanes) else max(scene.view[2], 400.0)


def still(
    scene: "Scene | Lanes",
    name: str = "",
    at: float | None = None,
    explained: Sequence[Scene | Lanes] | None = None,
    heading: str | None = None,
    beside: Sequence[Scene | Lanes] = (),
    **more: Any,
) -> str:
    """Draw ``scene`` at a moment as one SVG with a legend for all scenes in ``explained``.

    ``name`` and ``heading`` (by default the origin of the trace) are written above it. It shares its axis of time with
    the scenes ``beside`` it. ``more`` are attributes of the whole picture.
    """
    if isinstance(scene, Lanes):
        tables = [each for each in beside if isinstance(each, Lanes)]
        return lanes_still(scene, name, at, explained, heading, tables, **more)
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
    sizes = [size(still) for still in stills]
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


# ---------------------------------------------------------------- in words


def described(scene: "Scene | Lanes", what: str) -> str:
    """Return a sentence for those who do not see a picture: ``what`` runs there, how long, and who is waited for.

    >>> from d2lps import aggregate_at, cost, pcie_server
    >>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
    >>> described(Scene(cost.shared(aggregate_at(gpus, "gpu0"), pcie_server(), "160 MB")), "at GPU 0")
    'at GPU 0: 6 messages in 2 steps take 60 ms; everything waits for switch→gpu0, then gpu0→switch.'
    """
    if isinstance(scene, Lanes):
        return _of_lanes(scene, what)
    trace, (full, decides) = scene.trace, reason(scene.load, scene.trace.duration)
    why = (scene.losses[-1][1] if scene.losses else decides) or full
    counts = {"messages": len(scene.motion.messages), "steps": trace.steps, "time": show_seconds(trace.duration)}
    return text("described.run", what=what, **counts, why=why) if why else text("described.plain", what=what, **counts)


def told(svg: str, sentence: str) -> str:
    """Return a picture with the sentence as its description."""
    return svg.replace("</title>", f"</title>{tag('desc', escape(sentence))}", 1)


def _of_lanes(scene: Lanes, what: str) -> str:
    works = dict.fromkeys(range(len(scene.nodes)), 0.0)
    for task in scene.tasks:
        works[task.row] += task.end - task.start
    rests, fullest = min(works, key=works.__getitem__), max(scene.peaks, key=scene.peaks.__getitem__)
    even = max(works.values()) - works[rests] <= 0.01 * scene.duration
    why = text("described.even") if even else text("described.rests", node=scene.nodes[rests])
    time = f"{round(scene.duration)}" if scene.slots else show_seconds(scene.duration)
    peak = scene.peaks[fullest]
    memory = text("described.memory", node=fullest, peak=show_size(peak)) if peak else ""
    reasons = text("described.between").join(filter(None, [scene.bubble(), why, memory]))
    return text("described.lanes", what=what, tasks=len(scene.tasks), time=time, why=reasons)

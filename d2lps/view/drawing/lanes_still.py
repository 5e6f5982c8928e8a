"""The whole picture of a schedule, or of a trace of one: words, lanes with their letters, memory bars, the legend."""

from collections.abc import Sequence

from d2lps.units import show_seconds
from d2lps.view.drawing.axis import axis, ended, shared_part
from d2lps.view.drawing.lanes import GAUGE, LOOKS, WIDE, Lanes
from d2lps.view.drawing.legend import draw_legend
from d2lps.view.drawing.svg import SIZES, escape, letters, page, short, tag, words
from d2lps.view.drawing.theme import STYLE

BREADTH, TOP = 720.0, 58.0
LETTER = 6.4  # the width of a letter in a cell


def lanes_still(
    scene: Lanes,
    name: str = "",
    at: float | None = None,
    explained: Sequence[Lanes] | None = None,
    heading: str | None = None,
    beside: Sequence[Lanes] = (),
    **more: object,
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
    size = bottom + 24 + (high + 8 if high else 0)
    return page(title, BREADTH, size, *parts, legend, looks=STYLE + LOOKS, **more)


def _cells(scene: Lanes, left: float, long: float) -> list[str]:
    """Write the label of each task that has room for it, else its shortest label, else nothing."""
    parts = []
    for block, label, least, color in scene.letters():
        x, w = (value * long / WIDE for value in scene.spot(block))
        top, high = scene.level(block)
        shown = next((words_ for words_ in (label, least) if LETTER * len(words_) + 2 <= w), "")
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

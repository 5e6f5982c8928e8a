"""The table of a pipeline as a reader edits it: a cell moves, and at once it is clear whether the schedule can be done.

>>> table = edit("1f1b", devices=2, micro=2)
>>> table
<ScheduleTable: 2 devices, 8 tasks>
>>> print(table.schedule)
slot   0  1  2  3  4  5
gpu0   F0 F1    B0    B1
gpu1      F0 B0 F1 B1

Without a kernel, on a page of the site, the same module judges the same table: ``schedule_table.js`` has the law of
:mod:`d2lps.schedule.pipelines` for tasks of one slot each, and a test compares the two.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from d2lps.messages import html_language, language, only, text
from d2lps.notebook.predict_page import as_data
from d2lps.schedule import Schedule, ScheduleError, gpipe, interleaved, one_f_one_b, pipeline, zero_bubble
from d2lps.schedule.pipelines import Cell, Table
from d2lps.units import is_count
from d2lps.view.drawing.lanes import LOOKS, PALE, on
from d2lps.view.drawing.theme import STYLE, WORKERS
from d2lps.view.player import has_front_end, without_view
from d2lps.view.widgets import AnyWidget, Dict, List

HERE = Path(__file__).parent
EDIT = (HERE / "schedule_table.js").read_text("utf-8")
LOOK = (HERE / "schedule_table.css").read_text("utf-8")

KINDS: dict[str, Callable[..., Table]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
}
MOST_DEVICES, MOST_MICRO, CHUNKS = 8, 16, (2, 4)  # what the menus offer
# Sentences of the verdict that a table of d2lps.schedule has, too; the other ones are those of the editor alone.
ERRORS = {
    "stages": ("stages",),
    "two-homes": ("stage", "nodes"),
    "backward-alone": ("node", "cell", "missing"),
    "cell-missing": ("node", "cell"),
    "cell-twice": ("node", "cell"),
    "uneven-groups": ("micro", "devices"),
    "not-a-grid": ("line",),
    "not-a-cell": ("rank", "slot", "cell"),
    "deadlock": ("waits",),
}
OWN = {"legal": ("slots",), "memory": ("node", "cell", "needed", "room")}
OWN |= {"waits": ("node", "cell", "other", "by"), "waits-own": ("node", "cell", "other")}
WORDS = (
    "schedule gpipe 1f1b interleaved zb-h1 own devices micro chunks room unlimited total relative slots slot peak grid "
    "cell left right up down empty undo reset keys paste field read"
).split()


def edit(
    schedule: "str | Mapping[int, Sequence[Cell]] | Schedule" = "1f1b",
    devices: int = 4,
    micro: int = 8,
    chunks: int = 2,
    room: int | None = None,
    paste: str = "",
) -> "ScheduleTable":
    """Show the table of a pipeline, to be edited: devices × slots, with the verdict, the bubbles and the memory.

    Args:
        schedule: ``"gpipe"``, ``"1f1b"``, ``"interleaved"`` or ``"zb-h1"``, for ``devices`` and ``micro``; or a table
            such as :func:`~d2lps.schedule.one_f_one_b` returns, or the schedule of a pipeline.
        devices, micro, chunks: How many devices (1 to 8) and micro-batches (1 to 16); how many stages per device if
            they are interleaved (2 to 4).
        room: How many micro-batches a device can save (1 to 16); None for no limit.
        paste: The text in the field for schedules that torch or torchtitan has printed.

    Returns:
        A notebook shows it; ``table`` and ``schedule`` return what the reader has made of it.

    Raises:
        ScheduleError: For numbers that the menus do not offer, an unknown name, or a schedule that is not that of a
            pipeline.

    Example:
        >>> edit("gpipe", devices=2, micro=2).table[1]
        [('F', 0, 1), ('F', 1, 1), ('B', 0, 1), ('B', 1, 1)]
    """
    limits = {"devices": (devices, 1, MOST_DEVICES), "micro": (micro, 1, MOST_MICRO), "chunks": (chunks, *CHUNKS)}
    limits |= {} if room is None else {"room": (room, 1, MOST_MICRO)}
    for name, (value, least, most) in limits.items():
        if not is_count(value, least=least, most=most):
            raise ScheduleError("between", name=name, value=repr(value), least=least, most=most)
    if not isinstance(schedule, str):
        rows = _rows(schedule)
        kind, micro, chunks = _known(rows)
    elif schedule in KINDS:
        kind, rows = schedule, _rows(_made(schedule, devices, micro, chunks))
    else:
        raise ScheduleError("kind", given=repr(schedule), names=" ".join(map(repr, KINDS)))
    return ScheduleTable(rows, {"kind": kind, "micro": micro, "chunks": chunks, "room": room, "paste": paste})


def _made(kind: str, devices: int, micro: int, chunks: int) -> Table:
    """Return the table of a schedule that the menus offer."""
    return KINDS[kind](devices, micro, *([chunks] if kind == "interleaved" else []))


def _known(rows: list[list[list]]) -> tuple[str, int, int]:
    """Return which schedule of the menus a table is, or ``"own"``; its micro-batches; its stages per device."""
    cells = [cell for row in rows for cell in row]
    micro = min(MOST_MICRO, max(1, len({batch for _, batch, _ in cells})))
    chunks = min(max(CHUNKS), max(min(CHUNKS), len({stage for *_, stage in cells}) // len(rows)))
    for kind in KINDS if len(rows) <= MOST_DEVICES else ():
        with suppress(ScheduleError):
            if _rows(_made(kind, len(rows), micro, chunks)) == rows:
                return kind, micro, chunks
    return "own", micro, chunks


def _rows(schedule: "Mapping[int, Sequence[Cell]] | Schedule") -> list[list[list]]:
    """Return the rows of a table, each cell with its stage."""
    if isinstance(schedule, Schedule):
        tasks = {node: [task for task in schedule.tasks if task.node == node] for node in schedule.nodes}
        for task in schedule.tasks:
            if task.name not in PALE or not task.of.isdecimal() or task.batch is None:
                raise ScheduleError("not-a-pipeline", what=task)
        return [[[task.name, task.batch, int(task.of)] for task in row] for row in tasks.values()]
    if not isinstance(schedule, Mapping) or [*schedule] != [*range(len(schedule))] or not schedule:
        raise ScheduleError("not-a-pipeline", what=repr(schedule))
    return [[[*cell, device][:3] for cell in row] for device, row in schedule.items()]


class ScheduleTable(AnyWidget):
    """The result of :func:`edit`.

    Attributes:
        table (dict of int to list of (str, int, int)): Device → its tasks in order, as the reader has left them: kind,
            micro-batch, stage.
        schedule: Made of the table. Raises ScheduleError if it cannot be done.
    """

    _esm = EDIT
    _css = STYLE + LOOKS + LOOK
    data = Dict().tag(sync=True)
    rows = List().tag(sync=True)

    def __init__(self, rows: list[list[list]], settings: dict):
        self._settings = settings
        super().__init__(data=only(language(), lambda: self._data(rows)), rows=rows)

    @property
    def table(self) -> Table:
        """The table as it is now."""
        return {device: [tuple(cell) for cell in row] for device, row in enumerate(self.rows)}

    @property
    def schedule(self) -> Schedule:
        """The schedule of the table as it is now."""
        return pipeline(self.table)

    def _data(self, rows: list[list[list]]) -> dict:
        """Return everything that the module needs, in the language in force."""

        def sentence(key: str, names: Sequence[str]) -> str:
            return text(key, **{name: f"{{{name}}}" for name in names})

        words = {word: text(f"edit.{word}") for word in WORDS}
        words |= {reason: sentence(f"acts.{reason}", names) for reason, names in ERRORS.items()}
        words |= {reason: sentence(f"edit.{reason}", names) for reason, names in OWN.items()}
        hues = [{name: on(hue, name) for name in PALE} for hue in range(len(WORKERS))]
        return self._settings | {"rows": rows, "words": words, "hues": hues, "lang": html_language()}

    def __repr__(self) -> str:
        return f"<ScheduleTable: {len(self.rows)} devices, {sum(map(len, self.rows))} tasks>"

    def _repr_html_(self) -> str:
        """Return the editor for pages without a kernel; without scripts it is the printed table."""
        data = as_data(self._data(self.rows))
        name = "d2lps-" + hashlib.sha256(data.encode()).hexdigest()[:12]
        start = (
            f"for(const el of document.querySelectorAll('#{name}:not([data-plays])'))"
            "{el.dataset.plays='';edit(el,JSON.parse(el.querySelector('script').textContent))}"
        )
        return (
            f'<div id="{name}"><style>{STYLE}{LOOKS}{LOOK}</style>{self._printed()}{data}</div>'
            f'<script type="module">{EDIT}\n{start}</script>'
        )

    def _printed(self) -> str:
        """Return the picture of the schedule, or nothing if it cannot be done."""
        from d2lps.view.drawing import draw

        try:
            return str(draw(self.schedule)).replace(f"<style>{STYLE}{LOOKS}</style>", "")
        except ScheduleError:
            return ""

    def _repr_mimebundle_(self, **kwargs: object):
        widget = super()._repr_mimebundle_(**kwargs)
        bundle, meta = widget if isinstance(widget, tuple) else (widget or {}, {})
        bundle = bundle | {"text/html": self._repr_html_(), "text/plain": repr(self)}
        return (bundle if has_front_end() else without_view(bundle)), meta

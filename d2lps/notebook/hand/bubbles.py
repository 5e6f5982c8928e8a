"""Schedules of a pipeline on one axis of time: how much of it is idle, for each number of micro-batches.

>>> [f"{way.trace.bubble():.3f}" for way in bubbles(devices=2, most=4).ways["gpipe"]]
['0.500', '0.333', '0.250', '0.200']
"""

from fractions import Fraction
from typing import NamedTuple, cast

from d2lps.messages import text
from d2lps.notebook.hand import Hand
from d2lps.schedule import Schedule, ScheduleError, interleaved, pipeline
from d2lps.schedule.pipelines import SCHEDULES
from d2lps.simulate import cost
from d2lps.trace import Event, Trace
from d2lps.units import is_count
from d2lps.view.drawing.lanes import LOOKS, PALE, on
from d2lps.view.drawing.svg import area, page, rect, tag, words, worker
from d2lps.view.drawing.theme import STYLE, WORKERS

CHUNKS = 2  # stages per device of the interleaved schedule
WORK = {"F": 1, "B": 2, "I": 1, "W": 1}  # slots
LEFT, WIDE, LANE, HEAD = 14, 692, 13, 30  # of the still


class Way(NamedTuple):
    """A schedule for one number of micro-batches: its trace, or the sentence why there is none."""

    trace: Trace | None
    refused: str = ""


def bubbles(devices: int = 4, micro: int = 4, most: int = 12) -> "Bubbles":
    """Show GPipe, 1F1B, interleaved 1F1B (two stages per device) and ZB-H1 on one axis, with a slider for m.

    A forward pass takes one slot, a backward pass two; ZB-H1 halves it into I and W. Dragged, the picture pushes the
    idle time of each device into one pile at the end of its row: the bubble.

    Args:
        devices: How many devices, 2 to 8.
        micro: How many micro-batches (m) at the start.
        most: How many at most, 2 to 16.

    Returns:
        A notebook shows it.

    Raises:
        ScheduleError: For numbers outside these ranges.

    Example:
        >>> bubbles(micro=8)
        <Bubbles: GPipe 27.3 %, 1F1B 27.3 %, interleaved 1F1B 15.8 %, ZB-H1 11.1 %, m = 8 of 12>
    """
    limits = {"devices": (devices, 2, 8), "most": (most, 2, 16), "micro": (micro, 1, most)}
    for name, (value, least, greatest) in limits.items():
        if not is_count(value, least=least, most=greatest):
            raise ScheduleError("between", name=name, value=repr(value), least=least, most=greatest)
    return Bubbles(devices, micro, most)


class Bubbles(Hand):
    """The result of :func:`bubbles`.

    Attributes:
        ways (dict of str to list of Way): The name of a schedule → its runs for m = 1, 2, 3, …
    """

    def __init__(self, devices: int, micro: int, most: int):
        self.ways = {kind: [_way(kind, devices, m) for m in range(1, most + 1)] for kind in SCHEDULES}
        self._at = micro - 1
        super().__init__()

    def content(self) -> dict:
        """Return the picture's words, and each schedule's tasks for every number of micro-batches."""
        said = {name: text(f"bubbles.{name}") for name in ("micro", "pile", "key")}
        said |= {"m": text("bubbles.m", m="{m}"), "row": text("bubbles.row", bubble="{bubble}", saved="{saved}")}
        hues = [{name: on(hue, name) for name in PALE} for hue in range(len(WORKERS))]
        rows = [
            {"name": text(f"edit.{kind}"), "work": _work(kind), "runs": [*map(_run, ways)]}
            for kind, ways in self.ways.items()
        ]
        return {"kind": "bubbles", "words": said, "rows": rows, "at": self._at, "hues": hues}

    def still(self) -> str:
        """Return the schedules as they run, below each other."""
        traces = {kind: ways[self._at].trace for kind, ways in self.ways.items()}
        scale = WIDE / max(trace.duration for trace in traces.values() if trace)
        drawn, y = [words(text("bubbles.m", m=self._at + 1), LEFT, 24, "name", "ink", "start", font_weight=700)], 34.0
        for kind, trace in traces.items():
            if trace is None:
                continue
            name = text(f"edit.{kind}")
            said = text("bubbles.row", bubble=_percent(trace), saved=_saved(trace))
            high = LANE * len(trace.plan.nodes)
            drawn.append(words(f"{name}: {said}", LEFT, y + 18, "note", "ink", "start"))
            bed = LEFT, y + HEAD, trace.duration * scale, high - 2
            drawn.append(tag("path", d=rect(*bed), **area("well")))
            pieces: dict[tuple[int, str], str] = {}
            for task in _tasks(trace):
                top = y + HEAD + LANE * trace.plan.nodes.index(task.src)
                piece = rect(LEFT + task.start * scale, top, (task.end - task.start) * scale - 0.8, LANE - 2)
                look = _batch(task), task.op
                pieces[look] = pieces.get(look, "") + piece
            for (batch, op), path in sorted(pieces.items()):
                drawn.append(tag("path", d=path, **worker(batch)))
                drawn += [tag("path", d=path, **area("paper"), opacity=PALE[op])] * (PALE[op] > 0)
            y += HEAD + high + 8
        return page(text("bubbles.micro"), WIDE + 2 * LEFT, y + 6, *drawn, looks=STYLE + LOOKS)

    def __repr__(self) -> str:
        said = [
            f"{text(f'edit.{kind}')} {_percent(way.trace) if (way := ways[self._at]).trace else '–'}"
            for kind, ways in self.ways.items()
        ]
        return f"<Bubbles: {', '.join(said)}, m = {self._at + 1} of {len(self.ways['gpipe'])}>"


def _work(kind: str) -> "dict[str | tuple[str, int], float]":
    """Return the slots that a task takes; a stage of the interleaved schedule has fewer layers than a device."""
    return {name: slots / (CHUNKS if kind == "interleaved" else 1) for name, slots in WORK.items()}


def _way(kind: str, devices: int, micro: int) -> Way:
    make = SCHEDULES[kind]
    try:
        table = make(devices, micro, CHUNKS) if make is interleaved else make(devices, micro)
        return Way(cost.shared(pipeline(table, _work(kind), saved=Fraction(_work(kind)["F"]))))
    except ScheduleError as error:
        return Way(None, str(error))


def _run(way: Way) -> dict:
    """Return what the script needs of a run: the kinds, micro-batches and starts of each device's tasks."""
    trace = way.trace
    if trace is None:
        return {"refused": way.refused}
    tasks = []
    for node in trace.plan.nodes:
        own = [task for task in _tasks(trace) if task.src == node]
        starts = [int(task.start) if task.start.is_integer() else task.start for task in own]
        tasks.append(["".join(task.op for task in own), [*map(_batch, own)], starts])
    said = {"bubble": _percent(trace), "saved": _saved(trace)}
    return {"tasks": tasks, "length": trace.duration, "share": trace.bubble()} | said


def _tasks(trace: Trace) -> list[Event]:
    return [event for event in trace.events if event.kind == "task"]


def _batch(task: Event) -> int:
    """Return the micro-batch of a task, whose key is its stage and its micro-batch."""
    return int(task.key.split(".")[1])


def _saved(trace: Trace) -> str:
    """Return the most micro-batches that each device saves."""
    return "\u00a0·\u00a0".join(f"{float(peak):g}" for peak in cast(Schedule, trace.plan).peak.values())


def _percent(trace: Trace) -> str:
    return f"{100 * trace.bubble():.3g} %"

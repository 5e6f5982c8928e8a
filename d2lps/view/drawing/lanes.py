"""A trace of a schedule as a table of lanes: the tasks of each device, its messages, and its memory.

>>> from d2lps import cost
>>> from d2lps.schedule import gpipe, pipeline
>>> scene = Lanes(cost.shared(pipeline(gpipe(2, 2))))
>>> [(block.label, block.start) for block in scene.tasks if block.row == 1]
[('F0', 1.0), ('F1', 2.0), ('B0', 3.0), ('B1', 4.0)]

A color is a micro-batch, or an operator if there are no micro-batches. Forward passes are solid; backward passes are
pale within a frame, gradients of weights paler. Its width is time and can be stretched: 1000 units, without text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from d2lps.messages import named, text
from d2lps.plan import Send
from d2lps.schedule import Collective, Schedule, Task
from d2lps.schedule.acts import Size, made_by
from d2lps.simulate import cost
from d2lps.trace import Trace
from d2lps.units import show_integer, show_number, show_seconds, show_size
from d2lps.view.drawing.layout import spoken
from d2lps.view.drawing.motion import seats
from d2lps.view.drawing.svg import area, escape, fine, hatch, rect, shift, short, tag, words, worker
from d2lps.view.drawing.theme import LIGHT, THEME, WORKERS, contrast

WIDE, GAUGE = 1000, 88.0  # the width of the lanes, which is stretched, and of a memory bar, which is not
BEYOND = 10.0  # how far the words below a memory bar may reach beyond it
ROOMY, DENSE, MANY = 34.0, 22.0, 8  # the height of a row, for up to MANY devices and for more
PALE = {"F": 0.0, "B": 0.5, "I": 0.5, "W": 0.78, "M": 0.0, "K": 0.5}  # how much paper covers the color
PLAIN = {"U": "ink"}  # tasks without a color; all other names are soft
ON = (("#ffffff", "#ffffff"), ("#ffffff", "#000000"), ("#000000", "#ffffff"), ("#000000", "#000000"))
LOOKS = (
    ".d2-amount{font-size:min(var(--d2-most,13px),clamp(9.5px,calc(10.3px*var(--d2-zoom,1)),13px))}"
    ".d2-cell{font-size:10px}@media (max-width:520px){.d2-still .d2-cell{display:none}}"
    ".d2-idle{stroke:var(--d2-lane);vector-effect:non-scaling-stroke}"
    + "".join(
        f".d2-on{i}{{--d2-on:light-dark({light},{dark});fill:var(--d2-on)}}" for i, (light, dark) in enumerate(ON)
    )
)


class Block(NamedTuple):
    """A task or a message in its lane; ``hue`` is the number of a color, or -1 for a task without one."""

    row: int
    network: bool
    start: float
    end: float
    name: str  # of the kind of task; of a message, that of the task whose result it carries
    hue: int
    label: str
    title: str


class Lanes:
    """The drawable content of a trace of a schedule. Races give all ``peak`` bytes, the scale of their bars, in common.

    Args:
        trace: Of a schedule.
        slots: Whether the times are slots, counted from 0.
    """

    def __init__(self, trace: Trace, slots: bool = False):
        self.trace, self.slots, self.duration = trace, slots, trace.duration
        self.scale = WIDE / (self.duration or 1)
        self.schedule = _schedule_of(trace)
        self.hues = _hues(self.schedule)
        memory = {node: trace.memory(node) for node in trace.plan.nodes}
        limits = trace.topology.memory | dict(self.schedule.memory)
        self.alike, blocks = _merged(
            _blocks(trace, self.schedule, self.hues), {node: (memory[node], limits.get(node)) for node in memory}
        )
        self.nodes = tuple(self.alike)
        self.row = ROOMY if len(self.nodes) <= MANY else DENSE
        self.height = self.row * len(self.nodes)
        self.memory = {shown: memory[nodes[0]] for shown, nodes in self.alike.items()}
        # In slots, as the check of the schedule counts: values come in the order of its list.
        peaks = self.schedule.peak if slots else {node: max(size for _, size in memory[node]) for node in memory}
        self.peaks = {shown: peaks[nodes[0]] for shown, nodes in self.alike.items()}
        self.limits = {shown: limits[nodes[0]] for shown, nodes in self.alike.items() if nodes[0] in limits}
        self.peak = max([1, *self.peaks.values(), *self.limits.values()])
        self.tasks, self.messages = (
            [block for block in blocks if block.network == network] for network in (False, True)
        )
        self.network = bool(self.messages) and not slots  # whether messages have a lane
        sends = [act for act in self.schedule.acts if isinstance(act, Send)]
        # Rows are streams if all that passes between them are events: copies of nothing.
        self.streams = bool(sends) and all(
            send.op == "copy" and not self.schedule.values[send.key].nbytes for send in sends
        )
        self.starts = sorted({block.start for block in self.tasks})

    @classmethod
    def of_slots(cls, schedule: Schedule) -> "Lanes":
        """Return the lanes of a schedule without times: each task takes one slot, and messages take no time."""
        acts = [act._replace(work=1) if isinstance(act, Task) else act for act in schedule.acts]
        even = Schedule(schedule.nodes, schedule.values, acts, schedule.holds, schedule.wants, schedule.memory)
        return cls(cost.shared(even), slots=True)

    def bubble(self, relative: bool = False) -> str:
        """Return the sentence with the bubble, of the total or ``relative`` to ideal; empty if no task takes time."""
        if not any(block.end > block.start for block in self.tasks):
            return ""
        share = 100 * self.trace.bubble(relative)
        shown = f"{share:.3g}" if share < 999.5 else show_integer(round(share))
        return text("lanes.ideal" if relative else "lanes.bubble", share=shown)

    def working(self) -> list[tuple[float, int]]:
        """Return (time, how many devices more, or less, compute from then on), in order."""
        counts = [len(nodes) for nodes in self.alike.values()]
        return sorted((time, way * counts[b.row]) for b in self.tasks for time, way in ((b.start, 1), (b.end, -1)))

    def memory_at(self, node: str, at: float | None) -> Size:
        """Return the bytes on a node at a moment; without one, its peak."""
        if at is None:
            return self.peaks[node]
        return [amount for time, amount in self.memory[node] if time <= at][-1]

    def level(self, block: Block) -> tuple[float, float]:
        """Return the upper edge and the height of the lane of a block."""
        top, share = block.row * self.row, 0.62 if self.network else 0.84
        return (top + 0.74 * self.row, 0.2 * self.row) if block.network else (top + 0.08 * self.row, share * self.row)

    def lanes(self, at: float | None = None, **place: object) -> str:
        """Draw the lanes, with a play-head if there is a moment."""
        solid: dict[int, list[str]] = {}
        pale: dict[float, list[str]] = {}
        parts = [tag("rect", width=WIDE, height=self.height, **area("paper")), self._idle()]
        for block, top, high in self._placed():
            x, w = self.spot(block)
            w = max(w - 0.8, 0.4 * w)
            solid.setdefault(block.hue if block.hue >= 0 or block.name in PLAIN else -2, []).append(
                rect(x, top, w, high)
            )
            if (cover := PALE.get(block.name, 0)) and block.hue >= 0:
                edge, rim = min(2.4, w / 5), min(1.6, high / 5)
                pale.setdefault(cover, []).append(rect(x + edge, top + rim, w - 2 * edge, high - 2 * rim))
        for hue, pieces in sorted(solid.items()):
            look = worker(hue) if hue >= 0 else area({-1: "ink", -2: "soft"}[hue])
            parts.append(tag("path", d="".join(pieces), **look))
        for cover, pieces in pale.items():
            parts.append(tag("path", d="".join(pieces), **area("paper"), opacity=fine(cover)))
        if at is not None:
            head = {"class_": "d2-head d2-ink", "fill": LIGHT["ink"], "transform": shift(at * self.scale, 0)}
            parts.append(tag("rect", x=-1.5, width=3, y=0, height=self.height, **head))
        look = {"class_": "d2-time", "viewBox": f"0 0 {WIDE} {fine(self.height)}", "preserveAspectRatio": "none"}
        return tag("svg", "".join(parts), **look, **place)

    def spot(self, block: Block) -> tuple[float, float]:
        """Return the left edge of a block and its width; a message that takes no time is a thin line."""
        least = 3.0 if block.network else 0.6
        width = max(least, (block.end - block.start) * self.scale)
        return min(block.start * self.scale, WIDE - width), width

    def _placed(self) -> Iterator[tuple[Block, float, float]]:
        """Yield (block, upper edge, height): messages of one device at the same time share the height of the lane."""
        yield from ((block, *self.level(block)) for block in self.tasks)
        sent: dict[int, list[Block]] = {}
        for block in self.messages if self.network else ():
            sent.setdefault(block.row, []).append(block)
        for messages in sent.values():
            for block, (seat, crowd) in zip(messages, seats(messages), strict=True):
                top, high = self.level(block)
                yield block, top + high * seat / crowd, high / crowd

    def _idle(self) -> str:
        """Hatch the time in which devices do not compute."""
        ground, lines = [], []
        for row in range(len(self.nodes)):
            tasks = sorted((b for b in self.tasks if b.row == row), key=lambda b: b.start)
            top, high = self.level(Block(row, False, 0, 0, "", 0, "", ""))
            until = 0.0
            for start, end in [*((b.start, b.end) for b in tasks), (self.duration, 0.0)]:
                if (start - until) * self.scale > 1:
                    x, w = until * self.scale, (start - until) * self.scale
                    ground.append(rect(x, top, w - 0.8, high))
                    lines.append(hatch(x, top, w - 0.8, high, 14.0))
                until = max(until, end)
        look = {"class_": "d2-idle", "fill": "none", "stroke": LIGHT["lane"], "stroke_width": 0.7}
        return tag("path", d="".join(ground), **area("band")) + tag("path", d="".join(lines), **look)

    def gauges(self, at: float | None = None, **place: object) -> str:
        """Draw a memory bar per device: its bytes at a moment, or the peak; the peak and the limit as lines."""
        high = 0.3 * self.row
        parts = [words(text("lanes.held"), 0, -4, "key", "soft", None, class_="d2-soft d2-key d2-held")]
        for i, node in enumerate(self.nodes):
            now, inside = self.memory_at(node, at), [tag("title", escape(node))]
            y = (i + 0.1) * self.row
            inside.append(tag("rect", class_="d2-box d2-well", fill=LIGHT["well"], width=GAUGE, y=y, height=high, rx=2))
            inside.append(
                tag("rect", width=self.long(now), y=y, height=high, class_="d2-memory d2-flow", fill=LIGHT["flow"])
            )
            for size, color in ((self.peaks[node], "ink"), (self.limits.get(node), "warm")):
                if size is not None:
                    x = min(self.long(size), GAUGE - 1)
                    inside.append(tag("rect", x=x - 1, width=2, y=y - 2, height=high + 4, **area(color)))
            sentence = _of(now, self.limits[node]) if at is None and node in self.limits else show_size(now)
            sentence = text("lanes.peak", size=sentence) if at is None else sentence * bool(now)  # an empty bar says so
            largest = f"--d2-most:{fine((GAUGE + BEYOND) / (0.6 * max(1, len(sentence))))}px"
            look = {"class_": "d2-soft d2-key d2-amount", "style": largest}
            inside.append(words(sentence, 0, y + 0.76 * self.row, "key", "soft", None, **look))
            parts.append(tag("g", "".join(inside), class_="d2-node"))
        parts.append(tag("g", "", class_="d2-tiles"))
        view = f"-1 0 {fine(GAUGE + 2)} {fine(self.height)}"
        place |= {"visibility": "hidden"} if self.peak == 1 else {}  # in no run anything is held
        return tag("svg", "".join(parts), class_="d2-scene d2-gauges", viewBox=view, overflow="visible", **place)

    def long(self, size: Size) -> float:
        """Return the length of a memory bar."""
        return float(GAUGE * size / self.peak)

    def letters(self) -> list[tuple[Block, str, str, int]]:
        """Return (block, its label, the shortest one, the number in :data:`ON` of the color that is legible on it).

        In a narrow block a color is the micro-batch, so the kind of task is left; without a color it is the number.
        """
        labels = [(block, block.label, re.sub(r"^\D+(?=\d+$)", "", block.label)) for block in self.tasks]
        return [(b, label, label[:1] if b.name in PALE else number, on(b.hue, b.name)) for b, label, number in labels]

    def heading(self, timed: bool = True) -> str:
        """Return the origin of the trace and, if ``timed``, its duration, in the language in force."""
        trace = self.trace
        if self.slots:
            return text("lanes.slots", slots=round(self.duration))
        return " · ".join(source(trace) + [show_seconds(self.duration)] * timed)


def source(trace: Trace) -> list[str]:
    """Return the origin of a trace, cut to fit into a heading, and its topology, in the language in force."""
    measured = [text("draw.measured"), short(named(trace.origin.removeprefix("dist_")), 400)]
    origin = measured if trace.measured else [text(f"draw.{trace.origin}")]
    return origin + [spoken(trace.topology)] * (trace.topology.name != "pairs")


def _of(size: Size, limit: Size) -> str:
    """Return bytes and their limit, with their unit once if it is the same."""
    (number, unit), whole = show_size(size).split(" "), show_size(limit)
    return f"{show_number(float(number), 3)}/{whole}" if whole.split(" ")[1] == unit else f"{number} {unit}/{whole}"


def _schedule_of(trace: Trace) -> Schedule:
    if not isinstance(trace.plan, Schedule):
        raise TypeError("the trace of a plan is drawn as a Scene")
    return trace.plan


def _hues(schedule: Schedule) -> dict[object, int]:
    """Return micro-batch, or operator of the tasks without one → number of its color."""
    tasks = [task for task in schedule.tasks if task.name in PALE]
    batches = sorted({task.batch for task in tasks if task.batch is not None})
    return {hue: i for i, hue in enumerate([*batches, *dict.fromkeys(t.of for t in tasks if t.batch is None)])}


def _meaning(schedule: Schedule) -> str:
    """Return what the colors of :func:`_hues` tell apart; empty if all tasks have one color."""
    if "kv0" in schedule.values:  # of context parallelism
        return "keys"
    numbers = {(task.node, task.batch) for task in schedule.tasks if task.name in PALE and task.batch is not None}
    if len({batch for _, batch in numbers}) > 1:
        return "batches" if len(numbers) > len({node for node, _ in numbers}) else "replicas"
    return "operators" if len(_hues(schedule)) > 1 else ""


def _blocks(trace: Trace, schedule: Schedule, hues: Mapping[object, int]) -> list[Block]:
    """Return everything that is drawn in the lanes."""
    rows = {node: i for i, node in enumerate(schedule.nodes)}
    makers = {name: task for task in schedule.tasks for name, _ in made_by(task)}
    labels, blocks = schedule.labels, []
    for event in trace.events:
        act = schedule.acts[event.step - 1]
        task = act if isinstance(act, Task) else makers.get(act.value if isinstance(act, Collective) else act.key)
        name = "U" if event.kind == "update" else task.name if task else ""
        hue = hues.get(task.of if task.batch is None else task.batch, -1) if task and name in PALE else -1
        if isinstance(act, Task):
            label, title = labels[act], str(act)
        elif event.kind == "update":
            label, title = "U", f"{event.src} U {event.key}"
        else:
            label, title = "", f"{event.src}→{event.dst} {event.key} · {show_size(event.nbytes)}"
        blocks.append(Block(rows[event.src], event.kind == "send", event.start, event.end, name, hue, label, title))
    return blocks


def _merged(blocks: list[Block], kept: Mapping[str, object]) -> tuple[dict[str, list[str]], list[Block]]:
    """Return shown name → nodes, and the blocks of these rows: among more than MANY nodes, equal ones share a row.

    ``kept`` has what else belongs to the row of a node.
    """
    if len(kept) <= MANY:
        return {node: [node] for node in kept}, blocks
    done: dict[int, list[tuple]] = {row: [] for row in range(len(kept))}
    for b in sorted(blocks):
        done[b.row].append((b.network, f"{b.start:.9g}", f"{b.end:.9g}", b.name, b.hue, b.label))
    groups: dict[str, list[int]] = {}
    for (row, does), other in zip(done.items(), kept.values(), strict=True):
        groups.setdefault(repr((does, other)), []).append(row)
    nodes, first = list(kept), {rows[0]: number for number, rows in enumerate(groups.values())}
    shown = {nodes[rows[0]] + f" ×{len(rows)}" * (len(rows) > 1): [nodes[i] for i in rows] for rows in groups.values()}
    return shown, [block._replace(row=first[block.row]) for block in blocks if block.row in first]


def on(hue: int, name: str) -> int:
    """Return the number in :data:`ON` of the letters that are legible on a task, in both themes."""
    if hue < 0:
        return 1  # ink and soft are dark on light paper, and light on dark paper
    best = []
    for theme in (0, 1):
        color, paper = WORKERS[hue % len(WORKERS)][theme], THEME["paper"][theme]
        mixed = "#" + "".join(
            f"{round(int(color[i : i + 2], 16) * (1 - PALE[name]) + int(paper[i : i + 2], 16) * PALE[name]):02x}"
            for i in (1, 3, 5)
        )
        best.append(contrast(mixed, "#000000") > contrast(mixed, "#ffffff"))
    return 2 * best[0] + best[1]


def marks(scenes: Sequence[Lanes]) -> list[tuple[str, str]]:
    """Return (mark, meaning) for all that the ``scenes`` show; a mark is a piece of SVG of 26 × 16."""
    names = {block.name for scene in scenes for block in scene.tasks}
    hues = {_meaning(scene.schedule) for scene in scenes}

    def task(name: str, hue: int = 0) -> str:
        look = worker(hue) if name in PALE else area(PLAIN.get(name, "soft"))
        cover = tag("path", d=rect(6.2, 4.4, 13.6, 7.2), **area("paper"), opacity=fine(PALE.get(name, 0)))
        return tag("path", d=rect(4, 3, 18, 10), **look) + (cover if PALE.get(name) else "")

    colors = "".join(tag("path", d=rect(1 + 8 * i, 3, 7, 10), **worker(i)) for i in range(3))
    hatched = tag(
        "path", d=hatch(3, 2, 20, 12, 6), class_="d2-idle", fill="none", stroke=LIGHT["lane"], stroke_width=0.7
    )

    def bar(*lines: tuple[float, str]) -> str:
        well = tag("rect", class_="d2-box d2-well", fill=LIGHT["well"], y=4, width=26, height=8)
        used = tag("rect", y=4, width=11, height=8, **area("flow"))
        return well + used + "".join(tag("rect", x=x, y=2, width=2, height=12, **area(color)) for x, color in lines)

    others = sorted(names - {*PALE, *PLAIN})
    entries = {
        **{name: (name in hues, colors) for name in ("batches", "replicas", "operators", "keys")},
        **{name: (name in names, task(name)) for name in (*PALE, *PLAIN)},
        "others": (others, task("")),
        "idle": (True, tag("path", d=rect(3, 2, 20, 12), **area("band")) + hatched),
        "network": (any(s.network for s in scenes), tag("path", d=rect(2, 6, 11, 4) + rect(16, 6, 8, 4), **worker(0))),
        "memory": (any(scene.peak > 1 for scene in scenes), bar((17, "ink"))),
        "limit": (any(scene.limits for scene in scenes), bar((23, "warm"))),
    }
    found = [(mark, text(f"lanes.{name}", names=" ".join(others))) for name, (used, mark) in entries.items() if used]
    merged = any(len(nodes) > 1 for scene in scenes for nodes in scene.alike.values())
    return found + [(words("×", 13, 13), text("legend.merged"))] * merged


def race(scenes: Sequence[Lanes]) -> None:
    """Give all memory bars one scale."""
    peak = max(scene.peak for scene in scenes)
    for scene in scenes:
        scene.peak = peak

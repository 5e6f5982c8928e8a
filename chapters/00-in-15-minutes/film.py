"""A trace as a picture that moves by itself: SVG with CSS animations and no script, for pages without controls.

It repeats from the beginning to the end of the slowest trace, where it rests for a while. A reader who prefers reduced
motion, or a viewer that cannot animate, sees the moment ``at``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from d2lps.units import show_size
from d2lps.view.drawing.layout import host_boxes
from d2lps.view.drawing.links import breadth, forwarding_box, idle_lanes, rates, used_lane
from d2lps.view.drawing.motion import REACH, Change, Look, MessagePath
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import area, fine, num, shift, tag, words, worker
from d2lps.view.drawing.timeline import WIDE, timeline
from d2lps.view.drawing.traffic import HIGH, IDLE, gauges

WAITS, LASTS, STAYS = 0.8, 11.0, 3.2  # seconds: before the start, during the slowest trace, at the end
UPDATES = 40  # changes of the numbers during the slowest trace

Span = tuple[float, float]


class Clock:
    """The CSS animations of one film, whose slowest trace takes ``longest`` seconds."""

    def __init__(self, longest: float, at: float):
        self.longest, self.at = longest, at
        self._rules: dict[tuple[str, str], str] = {}

    def part(self, time: float) -> float:
        """Return a moment of the traces as a percentage of the film."""
        seconds = WAITS + LASTS * min(1.0, time / self.longest)
        return 100 * seconds / (WAITS + LASTS + STAYS)

    def seen(self, spans: Sequence[Span], still: bool | None = None) -> dict[str, str]:
        """Return the attributes that show an element only during ``spans``, and if ``still`` also without motion."""
        if still is None:
            still = any(start <= self.at < end for start, end in spans)
        look = {} if still else {"visibility": "hidden"}
        if [*spans] == [(0.0, math.inf)]:
            return look
        frames = [] if spans and spans[0][0] <= 0 else [(0.0, "hidden")]
        for start, end in spans:
            frames.append((0.0 if start <= 0 else self.part(start), "visible"))
            frames += [(self.part(end), "hidden")] if end < math.inf else []
        return look | self._rule("step-end", ((part, f"visibility:{state}") for part, state in frames))

    def moved(self, places: Iterable[tuple[float, str]]) -> dict[str, str]:
        """Return the attributes that move an element through ``places``: (seconds, transformation) in order."""
        frames = [(self.part(time), f"transform:{transform}") for time, transform in places]
        frames = [(0.0, frames[0][1]), *frames, (100.0, frames[-1][1])]
        last, needed = len(frames) - 1, []
        for i, (part, style) in enumerate(frames):  # without frames in the middle of a rest
            if i in (0, last) or not frames[i - 1][1] == style == frames[i + 1][1]:
                needed.append((part, style))
        return self._rule("linear", needed)

    def _rule(self, timing: str, frames: Iterable[tuple[float, str]]) -> dict[str, str]:
        rule = "".join(f"{part:.2f}%{{{style}}}" for part, style in frames)
        return {"class_": self._rules.setdefault((timing, rule), f"f{len(self._rules)}")}

    def style(self) -> str:
        """Return all rules."""
        seconds = WAITS + LASTS + STAYS
        rules = [
            f"@keyframes {name}{{{rule}}}.{name}{{animation:{name} {seconds:g}s {timing} infinite}}"
            for (timing, rule), name in self._rules.items()
        ]
        return "".join(rules) + "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"


def film(scene: Scene, clock: Clock, **place: object) -> str:
    """Return the moving scene; ``clock`` collects its rules."""
    topology, layout = scene.trace.topology, scene.layout
    parts = [host_boxes(layout.hosts, layout.boxes), idle_lanes(topology, layout, scene.load), *_lanes(scene, clock)]
    for node, box in layout.boxes.items():
        if node not in layout.cells:
            parts.append(forwarding_box(topology, layout, node))
            continue
        parts.append(scene.node(node, box))
        if working := _during(scene, scene.motion.work, node):
            parts.append(tag("g", scene.node(node, box, busy=True), **clock.seen(working)))
        if gone := _during(scene, scene.motion.gone, node):
            parts.append(tag("g", scene.node(node, box, gone=True), **clock.seen(gone)))
    parts += [*_contents(scene, clock), *_backlogs(scene, clock), *_messages(scene, clock)]
    parts += [rates(topology, layout), scene.names()]
    view = " ".join(map(num, scene.view))
    return tag("svg", "".join(parts), class_="d2-scene", viewBox=view, style=scene.looks(), **place)


def film_of_time(scene: Scene, clock: Clock, **place: object) -> str:
    """Return the timeline with a moving play-head."""
    end = scene.trace.duration
    head = clock.moved([(0.0, "translate(0,0)"), (end, f"translate({WIDE}px,0)")])
    return timeline(scene.trace, scene.motion, min(clock.at, end), head["class_"], **place)


def _spans(states: Iterable[tuple[float, object]], wanted: Callable[[object], bool]) -> list[Span]:
    """Return the spans during which the state is wanted; ``states`` has (start, state) in order."""
    spans: list[Span] = []
    for (start, state), (end, _) in pairwise([*states, (math.inf, None)]):
        if not wanted(state) or start == end:
            continue
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


def _during(scene: Scene, counted: Iterable[Change], node: str) -> list[Span]:
    """Return the spans in which a node is ``counted``: in the middle of an update, or dead."""
    number = scene.trace.plan.nodes.index(node)
    changes = [(change.time, change.after) for change in counted if change.place == number]
    return _spans([(0.0, 0), *changes], bool) if changes else []


def _lanes(scene: Scene, clock: Clock) -> list[str]:
    """Return every lane that messages use, once in each of its states."""
    parts, width = [], breadth(scene.trace.topology, scene.layout)
    states = [[(0.0, IDLE)] for _ in scene.motion.sharing]
    for change in scene.load.states:
        states[change.place].append((change.time, change.after))
    for resource, turns in zip(scene.motion.sharing, states, strict=True):
        for state in dict.fromkeys(state for _, state in turns):
            shown = clock.seen(_spans(turns, lambda other, state=state: other == state))
            parts.append(tag("g", used_lane(scene.layout, resource, width, state), **shown))
    return parts


def _contents(scene: Scene, clock: Clock) -> list[str]:
    """Return the contents of the cells of each node: each slot, hatching and frame, for as long as it is visible."""
    motion, keys, parts = scene.motion, len(scene.across), []
    looks: list[list[tuple[float, Look]]] = [[(0.0, motion.looks[i])] for i in motion.first]
    for change in motion.changes:
        looks[change.place].append((change.time, motion.looks[change.after]))
    for i, node in enumerate(scene.trace.plan.nodes):
        cells = looks[i * keys : (i + 1) * keys]

        def seen(wanted: Callable[[Look], bool], pieces: Sequence[str], draw: Callable[[str], str], cells=cells) -> str:
            """Draw cells that look alike all the time as one."""
            alike: dict[tuple[Span, ...], str] = {}
            for cell, piece in zip(cells, pieces, strict=True):
                spans = tuple(_spans(cell, wanted))
                alike[spans] = alike.get(spans, "") + piece
            return "".join(tag("g", draw(path), **clock.seen(spans)) for spans, path in alike.items() if spans)

        inside = [
            seen(lambda look, w=w: w in look.who, scene.slot, lambda pieces, w=w: scene.filling(w, pieces))
            for w in range(len(motion.contributors))
        ]
        inside.append(seen(lambda look: look.updated, scene.hatch, scene.hatching))
        inside += [scene.between(), seen(lambda look: look.complete, scene.frame, scene.frames)]
        parts.append(tag("g", "".join(inside), class_="d2-fill", transform=scene.corner(node)))
    return parts


def _backlogs(scene: Scene, clock: Clock) -> list[str]:
    """Return the bars of the backlogs, and their numbers."""
    load, (places, longest) = scene.load, gauges(scene.layout, scene.load)
    edges = sorted({0.0, *(t for m in scene.motion.messages for t in (m.start, m.end))})
    before = 3e-4 * clock.longest  # a new message appears at once, not gradually since the previous edge
    moments = [moment for edge in edges for moment in (edge - before, edge)][1:]
    backlogs = {moment: load.backlogs_at(moment) for moment in moments}
    now = load.backlogs_at(clock.at)
    parts = []
    for i, place in enumerate(places):
        bars = []
        for color in dict.fromkeys(color for backlog in backlogs.values() for color in backlog[i]):

            def extent(left: dict[int, float], color=color) -> tuple[str, str]:
                """Return the start and the length of the bar; a browser cannot stretch a bar of length 0."""
                below = sum(size for other, size in left.items() if other < color)
                x, length = (size / (scene.peak or 1) * longest for size in (below, left.get(color, 0.0)))
                return fine(x), fine(max(0.01, length))

            states = [(moment, extent(backlogs[moment][i])) for moment in moments]
            moved = clock.moved((time, f"translate({x}px,0)scale({length},1)") for time, (x, length) in states)
            bar = tag("rect", width=1, y=-HIGH / 2, height=HIGH, **(worker(color) if color >= 0 else area("soft")))
            bars.append(tag("g", bar, transform="translate({} 0) scale({} 1)".format(*extent(now[i])), **moved))
        parts.append(tag("g", "".join(bars), class_="d2-bars", transform=place.where))
        parts += _numbers(scene, clock, i, place.words)
    return parts


def _numbers(scene: Scene, clock: Clock, i: int, spot: tuple[float, float, str]) -> list[str]:
    """Return the numbers of the backlog of place ``i``, each for as long as it is shown."""
    pace, load = clock.longest / UPDATES, scene.load
    edges = {0.0, *(t for m in scene.motion.messages for t in (m.start, m.end))}
    times = sorted(edges | {k * pace for k in range(UPDATES) if k * pace < scene.trace.duration})
    states = []
    for time in times:
        left = load.backlogs_at(time)[i]
        shown = left and (scene.label_level > 0 or load.decides_at(time) == i)
        states.append((time, _size(sum(left.values()), scene.label_level) if shown else ""))
    x, y, anchor = spot
    parts = []
    for size in dict.fromkeys(size for _, size in states if size):
        seen = clock.seen(_spans(states, lambda other, size=size: other == size))
        look = {"font_weight": 700, "class_": "d2-note d2-left d2-ink"}
        parts.append(tag("g", words(size, x, y, "note", "ink", anchor, **look), **seen))
    return parts


def _size(nbytes: float, level: int) -> str:
    """Return bytes with few digits, legible while they count down; ``level`` is :func:`gauges.label_level`."""
    value, unit = show_size(round(nbytes)).split(" ")
    value = f"{float(value):.0f}" if float(value) >= 10 else value
    return value if level == 1 else f"{value} {unit}"


def _messages(scene: Scene, clock: Clock) -> list[str]:
    keys, parts = list(scene.trace.plan.share), []
    for message, path in zip(scene.motion.messages, scene.paths, strict=True):
        key, seconds = keys.index(message.key), message.end - message.start
        look = scene.motion.looks[message.look]
        if not seconds:
            continue

        def transform(x: float, y: float, grown: float, key=key) -> str:
            width, height = (1 + (size - 1) * grown for size in scene.growth[key])
            return f"translate({num(x)}px,{num(y)}px)scale({width:.2f},{height:.2f})"

        moved = clock.moved((message.start + part * seconds, transform(*path.at(part))) for part in _turns(path))
        under_way = message.start <= clock.at < message.end
        x, y, _ = path.at((clock.at - message.start) / seconds if under_way else 0.0)
        tile = tag("g", scene.tile(key, look, 1.0), **moved, transform=shift(x, y))
        parts.append(tag("g", tile, **clock.seen([(message.start, message.end)])))
    return parts


def _turns(path: MessagePath) -> list[float]:
    """Return the parts of its time (0 … 1) at which a message turns, or begins or ends to grow."""
    lengths = [math.dist(*pair) for pair in pairwise(path.points)]
    whole, far, turns = sum(lengths) + path.last, 0.0, {0.0, 1.0}
    for length in lengths:
        turns |= {(far + path.behind) / whole, (far + length + path.behind) / whole}
        far += length
    turns |= {REACH / whole, 1 - REACH / whole} if whole > 2 * REACH else {0.5}
    return sorted(turn for turn in turns if 0 <= turn <= 1)

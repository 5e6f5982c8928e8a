"""The traffic on links: the backlog of each, the number of full links, and the link that decides the duration.

A message is assumed to pass evenly from its start to its end, since its event has no more information.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> from d2lps.view.drawing.motion import follow
>>> trace = cost.shared(aggregate_at(["gpu0", "gpu1", "gpu2"], "gpu0"), pcie_server(gpus=3), "160 MB")
>>> motion = follow(trace)
>>> load = traffic(trace, motion)
>>> link = motion.sharing[load.decides_at(0.005)]
>>> link.src, link.dst, load.backlogs_at(0.005)[load.decides_at(0.005)]
('switch', 'gpu0', {1: 120000000.0, 2: 120000000.0})
>>> load.full_at(0.005), load.links
(1, 8)

The reason for the duration of a run: the mean number of full links, and the places for which everything waits.

>>> from d2lps import aggregate_at, cost, pcie_server, sharded
>>> from d2lps.view.drawing.motion import follow
>>> from d2lps.view.drawing.traffic import traffic
>>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
>>> for plan in aggregate_at(gpus, "gpu0"), sharded(gpus):
...     trace = cost.shared(plan, pcie_server(), "160 MB")
...     load = traffic(trace, follow(trace))
...     mean_full(load, trace.duration), [place.dst for place in awaited(load, trace.duration)]
(1.0, ['gpu0', 'switch'])
(8.0, [])

The backlog of every link as a bar beside its lane: the bytes that have not passed yet, a color for each sender.

All bars of a picture have one scale, and a bar lies at the beginning of the lane, where its bytes wait.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise
from typing import NamedTuple

from d2lps.messages import text
from d2lps.topology import Link
from d2lps.trace import Trace
from d2lps.units import show_size
from d2lps.view.drawing.layout import Box, Layout
from d2lps.view.drawing.motion import Change, Message, Motion, replayed
from d2lps.view.drawing.svg import Line, along, area, beside, fine, num, tag, words, worker

ENOUGH = 0.9  # of the bandwidth: a link slowed by latency still counts as full, one at two thirds does not
# A place passes nothing, something, as much as it can; it is the bottleneck; it, or one of its ends, is dead.
IDLE, BUSY, FULL, DECIDES, GONE = range(5)


@dataclass(frozen=True)
class Traffic:
    """The ``places`` (numbers of ``motion.sharing``) that each message passes, and the states that follow from them.

    ``full`` changes the links at full speed (1), of ``links`` in all, or 0 in a measured run, whose links have no known
    speed; ``deciding`` the place that decides (-1: none, -n: n links together); ``states`` the state of each place,
    IDLE to GONE, for every drawing; ``peak`` is the largest backlog of any place at any time.

    To find the place that decides, start from the message that arrives last and go back to the one that ended latest
    before it began (in a measured run, of those that its sender sent or received), and so on: these messages make up
    the time of the run. Of the places that such a message passes, the one with most seconds of work meanwhile decides,
    unless a place elsewhere has as much.
    """

    motion: Motion
    places: tuple[tuple[int, ...], ...]
    links: int
    full: tuple[Change, ...]
    deciding: tuple[Change, ...]
    states: tuple[Change, ...]
    peak: float

    def backlogs_at(self, time: float) -> list[dict[int, float]]:
        """Return the backlog of each place: sender's color → remaining bytes of its messages under way."""
        left: list[dict[int, float]] = [{} for _ in self.motion.sharing]
        for message, places in zip(self.motion.messages, self.places, strict=True):
            if message.start <= time < message.end:
                part = (message.end - time) / (message.end - message.start) * message.nbytes
                color = self.motion.color(message.src)
                for place in places:
                    left[place][color] = left[place].get(color, 0.0) + part
        return [dict(sorted(backlog.items())) for backlog in left]

    def full_at(self, time: float) -> int:
        """Return the number of links at full speed at ``time``."""
        return sum(replayed([0] * len(self.motion.sharing), self.full, time))

    def decides_at(self, time: float) -> int:
        """Return the number of the place that decides at ``time``; below 0 if no place does so alone."""
        at = bisect_right(self.deciding, time, key=lambda change: change.time)
        return self.deciding[at - 1].after if at else -1

    def states_at(self, time: float) -> list[int]:
        """Return the state of each place at ``time``, IDLE to GONE."""
        return replayed([IDLE] * len(self.motion.sharing), self.states, time)


def traffic(trace: Trace, motion: Motion) -> Traffic:
    """Return the traffic of ``trace``, whose motion is ``motion``."""
    number = {resource: i for i, resource in enumerate(motion.sharing)}
    ways = {ends: trace.topology.resources(*ends) for ends in dict.fromkeys((m.src, m.dst) for m in motion.messages)}
    places = tuple(tuple(number[resource] for resource in ways[m.src, m.dst]) for m in motion.messages)
    users: list[list[Message]] = [[] for _ in motion.sharing]  # in order of their start
    for message, passed in zip(motion.messages, places, strict=True):
        for place in passed:
            users[place].append(message)
    capacity = [trace.topology.capacity(resource) for resource in motion.sharing]
    steps = [_sums(messages) for messages in users]
    peak = max((left for sums in steps for *_, left in sums), default=0.0)
    full = _full({i: steps[i] for i, resource in enumerate(motion.sharing) if isinstance(resource, Link)}, capacity)
    deciding = _deciding(trace, motion, dict(zip(motion.messages, places, strict=True)), users, capacity)
    states = _states(motion, full, deciding, trace.plan.nodes)
    links = 0 if trace.measured else len(trace.topology.links)
    return Traffic(motion, places, links, full, deciding, states, peak)


def _sums(messages: list[Message]) -> list[tuple[float, int, float, float]]:
    """Return (time, number of messages, their bytes per second, their bytes left) for each change."""
    edges: dict[float, list[Message]] = defaultdict(list)
    for message in messages:
        if message.start < message.end:
            edges[message.start].append(message)
            edges[message.end].append(message)
    sums, now, rate, left, before = [], 0, 0.0, 0.0, 0.0
    for time in sorted(edges):
        left = max(0.0, left - rate * (time - before))
        for message in edges[time]:
            sign = 1 if message.start == time else -1
            now += sign
            rate += sign * message.nbytes / (message.end - message.start)
            left += message.nbytes if sign > 0 else 0.0
        rate, left, before = (rate, left, time) if now else (0.0, 0.0, time)  # drop rounding errors
        sums.append((time, now, rate, left))
    return sums


def _full(steps: dict[int, list], capacity: list[float]) -> tuple[Change, ...]:
    """Return the changes of the places (links only) that become full (1) or cease to be full (0)."""
    changes = []
    for place, sums in steps.items():
        limit, before = capacity[place], 0
        for time, now, rate, _ in sums:
            is_full = int(now > 0 and (math.isinf(limit) or rate >= ENOUGH * limit))
            if is_full != before:
                changes.append(Change(time, place, before, is_full))
            before = is_full
    return tuple(sorted(changes))


def _states(
    motion: Motion, full: tuple[Change, ...], deciding: tuple[Change, ...], nodes: tuple[str, ...]
) -> tuple[Change, ...]:
    """Merge the changes of crowds, full links, the deciding place and deaths into those of each place's state."""
    ends = [{place.src, place.dst} if isinstance(place, Link) else {place} for place in motion.sharing]
    dead: set[str] = set()
    number = len(motion.sharing)
    crowd, is_full, decides, state = [0] * number, [0] * number, -1, [IDLE] * number
    changes = []
    edges = sorted(
        (c.time, kind, c) for kind, group in enumerate((motion.crowd, full, deciding, motion.gone)) for c in group
    )
    for time, group in groupby(edges, key=lambda edge: edge[0]):
        touched = set()
        for _, kind, change in group:
            if kind == 2:
                touched |= {place for place in (change.before, change.after) if place >= 0}
                decides = change.after
            elif kind == 3:
                (dead.add if change.after else dead.discard)(nodes[change.place])
                touched |= {place for place, both in enumerate(ends) if nodes[change.place] in both}
            else:
                (crowd, is_full)[kind][change.place] = change.after
                touched.add(change.place)
        for place in sorted(touched):
            now = DECIDES if place == decides else FULL if is_full[place] else BUSY if crowd[place] else IDLE
            now = GONE if ends[place] & dead else now
            if now != state[place]:
                changes.append(Change(time, place, state[place], now))
                state[place] = now
    return tuple(changes)


def _deciding(trace: Trace, motion: Motion, places: dict, users: list, capacity: list[float]) -> tuple[Change, ...]:
    """Return the changes of the place that decides."""
    longest = [max((m.end - m.start for m in messages), default=0.0) for messages in users]
    starts = [[m.start for m in messages] for messages in users]

    def work(place: int, during: Message) -> tuple[float, float]:
        """Return the work of ``place`` during a message: seconds, and bytes."""
        first = bisect_left(starts[place], during.start - longest[place])
        last, size = bisect_left(starts[place], during.end), 0.0
        for other in users[place][first:last]:
            both = min(other.end, during.end) - max(other.start, during.start)
            size += max(0.0, both) / (other.end - other.start or 1) * other.nbytes
        return (0.0 if math.isinf(capacity[place]) else size / capacity[place]), size

    changes, later, until = [], -1, math.inf
    for message in _chain(trace, motion):
        todo = [tuple(round(x, 12) for x in work(place, message)) for place in range(len(users))]
        best = max(places[message], key=lambda place: (todo[place], place == later))
        if any(todo[place] >= todo[best] for place in range(len(users)) if place not in places[message]):
            tied = [place for place in range(len(users)) if todo[place] >= todo[best]]
            links = all(isinstance(motion.sharing[place], Link) for place in tied)
            best = -len(tied) if links and any(0 < each[0] < todo[best][0] for each in todo) else -1
        if message.end < until:
            changes.append(Change(message.end, 0, best, -1))
        changes.append(Change(message.start, 0, -1, best))
        later, until = best, message.start
    return _tidy(changes[::-1])


def _tidy(changes: list[Change]) -> tuple[Change, ...]:
    """Drop changes to the present state, and let each begin with the state before it."""
    tidy, state = [], -1
    for change in changes:
        if change.after != state:
            tidy.append(Change(change.time, 0, state, change.after))
            state = change.after
    return tuple(tidy)


def _chain(trace: Trace, motion: Motion) -> list[Message]:
    """Return the messages that follow one another up to the one that arrives last, beginning with that one."""
    timed = sorted((m for m in motion.messages if m.start < m.end), key=lambda m: m.end)
    by_node: dict[str | None, list[Message]] = defaultdict(list)  # in a predicted run all are under None
    for message in timed:
        for node in {message.src, message.dst} if trace.measured else {None}:
            by_node[node].append(message)
    ends = {node: [m.end for m in messages] for node, messages in by_node.items()}
    chain = timed[-1:]
    while chain:
        node = chain[-1].src if trace.measured else None
        before = bisect_right(ends[node], chain[-1].start)
        if not before:
            break
        chain.append(by_node[node][before - 1])
    return chain


MOST = 0.9  # of the time: if places decide for longer, everything waits for them
FEW = 2  # places that are named
SOME = 4  # nodes that are named


def mean_full(load: Traffic, duration: float) -> float:
    """Return the number of full links, on average over the run."""
    seconds = sum((change.after - change.before) * (duration - change.time) for change in load.full)
    return seconds / duration if duration else 0.0


def awaited(load: Traffic, duration: float) -> list["Link | str"]:
    """Return the places that decide, one after the other, nearly all the time; none if the work is spread."""
    if _decided(load, duration) < MOST * duration:
        return []
    places = [place for place, seconds in _decisions(load, duration) if place >= 0 < seconds]
    return [load.motion.sharing[place] for place in dict.fromkeys(places)]


def _decided(load: Traffic, duration: float) -> float:
    """Return the seconds for which some place decides."""
    return sum(seconds for place, seconds in _decisions(load, duration) if place >= 0)


def _decisions(load: Traffic, duration: float) -> list[tuple[int, float]]:
    """Return (place that decides, -1 for none or -n for n links together; seconds), one after the other."""
    turns = [(0.0, -1), *((change.time, change.after) for change in load.deciding), (duration, -1)]
    return [(place, end - start) for (start, place), (end, _) in pairwise(turns)]


def place_name(resource: "Link | str") -> str:
    """Return the name of a link, or of a node that is itself a limit."""
    return f"{resource.src}→{resource.dst}" if isinstance(resource, Link) else resource


def reason(load: Traffic, duration: float) -> tuple[str, str]:
    """Return two sentences: the mean number of full links, and the places that are waited for; empty if unknown."""
    if not load.motion.sharing or not duration:
        return "", ""
    mean = mean_full(load, duration)
    shown = round(mean) if mean >= 10 else f"{mean:.2g}"
    average = text("draw.mean-full", full=shown, links=load.links) if load.links else ""
    names = [place_name(place) for place in awaited(load, duration)]
    if not names:
        held: dict[int, float] = defaultdict(float)
        for place, seconds in _decisions(load, duration):
            held[place] += seconds
        longest = max(held, key=held.__getitem__)
        if longest < -1 and held[longest] >= MOST * duration:
            return average, text("draw.tied", count=-longest)
        return average, text("draw.spread") if _decided(load, duration) <= (1 - MOST) * duration else ""
    places = text("draw.then", first=names[0], second=names[1]) if len(names) == FEW else ", ".join(names[:FEW])
    return average, text("draw.awaited", places=places + (" …" if len(names) > FEW else ""))


def losses(trace: Trace, motion: Motion) -> list[tuple[float, str]]:
    """Return (moment, the sentence from then on) about the dead and those that wait for them; none if no node dies.

    The wait for a node is the longest time without a message after its death. If its death is two events, the others
    have given it up when the first ends.
    """
    if not motion.gone:
        return []
    deaths, done = [e for e in trace.events if e.kind == "gone"], [e for e in trace.events if e.kind != "gone"]
    until, silent = 0.0, []
    for start, end in sorted([*((e.start, e.end) for e in done), (trace.duration, trace.duration)]):
        silent += [(until, start)] if start > until else []
        until = max(until, end)
    waits = []
    for death in deaths:
        spans = [(max(start, death.start), min(end, death.end)) for start, end in silent]
        start, end = max(spans, key=lambda span: span[1] - span[0], default=(0.0, 0.0))
        given_up = any(other.src == death.src and other.end == death.start for other in deaths)
        waits += [(start, end, death.src)] if start < end and not given_up else []
    found = []
    for time in sorted({c.time for c in motion.gone} | {time for *span, _ in waits for time in span}):
        dead = [trace.plan.nodes[i] for i in sorted(motion.gone_at(time))]
        missed = [node for start, end, node in waits if start <= time < end]
        known = {node for e in done if e.start < time for node in (e.src, e.dst)}
        who = [node for node in trace.plan.nodes if node in known and node not in dead]
        names = {"dead": _list(missed or dead), "who": _list(who)}
        found.append((time, text("draw.waiting" if missed and who else "draw.dead", **names) if dead else ""))
    return found


def _list(names: list[str]) -> str:
    return text("list.comma").join(names[:SOME]) + " …" * (len(names) > SOME)


HIGH = 8.0  # the breadth of a bar
LONGEST = 92.0


class Gauge(NamedTuple):
    """The start of a bar, its direction in degrees, the place of its number, and its breadth (1 if there is room)."""

    x: float
    y: float
    turned: float
    words: tuple[float, float, str]
    broad: float

    @property
    def where(self) -> str:
        """The transformation that places the bar."""
        narrow = f" scale(1 {fine(self.broad)})" if self.broad < 1 else ""
        return f"translate({num(self.x)} {num(self.y)}) rotate({num(self.turned)}){narrow}"


def gauges(layout: Layout, load: Traffic) -> tuple[list[Gauge], float]:
    """Return a gauge for each place that messages use, and the length of the longest bar."""
    aside = _half(layout, load) + HIGH / 2 + 2 if layout.room > 14 else 0.0
    over = max(0.4, layout.room / 24)  # the breadth of a bar that lies on its lane and must not hide it
    lines = [_line(layout, resource) for resource in load.motion.sharing]
    long = min([LONGEST, *(max(24.0, math.dist(*line)) for line in lines)])
    places = []
    for resource, (a, b) in zip(load.motion.sharing, lines, strict=True):
        length, is_link = math.dist(a, b) or 1.0, isinstance(resource, Link)
        (x, y), _ = beside((a, b), aside if is_link else 0.0)
        ux, uy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        nx, ny = -uy, ux  # to the right of the lane, where there is room
        # Beside its beginning: of two lanes that run up and down, one has it below and the other above.
        part = 0.5 if not is_link or abs(nx) < 0.9 else min(0.5, (6 if uy < 0 else 12) / length)
        wx, wy = along(beside((a, b), aside + HIGH / 2 + 3 if is_link else -HIGH), part)
        anchor = "start" if nx > 0.4 else "end" if nx < -0.4 else "middle"
        shift = 4.0 if anchor != "middle" else 9.0 if ny > 0 else 0.0
        places.append(Gauge(x, y, math.degrees(math.atan2(uy, ux)), (wx, wy + shift, anchor), 1.0 if aside else over))
    return places, long


def _half(layout: Layout, load: Traffic) -> float:
    """Return half the breadth of the broadest lane, most of which messages may use."""
    links = [resource for resource in load.motion.sharing if isinstance(resource, Link)]
    return layout.room / 2 if any(link.count > 1 for link in links) else 6.0


def _line(layout: Layout, resource: "Link | str") -> Line:
    """Return the lane of a link, or a line within the box of a limited node."""
    if isinstance(resource, Link):
        return layout.lanes[resource.src, resource.dst]
    box = layout.boxes[resource]
    y = box.y + box.h - HIGH
    return (box.x + box.w - min(box.w - 12, LONGEST) - 8, y), (box.x + box.w - 8, y)


def label_level(layout: Layout, load: Traffic, letter: float) -> int:
    """Return 2 if every number has room with its unit, 1 if only without it, else 0: only the bottleneck has a number.

    ``letter`` is the breadth of a letter.
    """
    places, _ = gauges(layout, load)
    if layout.room <= 14 or len(places) > 40:
        return 0
    for level, letters in ((2, 6), (1, 3)):
        spots = [_spot(place, letters * letter) for place in places]
        lanes = [beside(_line(layout, resource), -2.0) for resource in load.motion.sharing]
        if not any(a.overlaps(b) for a, b in combinations(spots, 2)) and not any(
            spot.hides(*lane, 1) for i, spot in enumerate(spots) for k, lane in enumerate(lanes) if i != k
        ):
            return level
    return 0


def _spot(place: Gauge, width: float) -> Box:
    x, y, anchor = place.words
    left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
    return Box(left, y - 9, width, 11)


def backlogs(layout: Layout, load: Traffic, at: float, peak: float, level: int) -> str:
    """Draw the bars and their numbers at a moment; ``peak`` bytes fill a bar; ``level`` is :func:`label_level`."""
    places, longest = gauges(layout, load)
    decides, parts = load.decides_at(at), []
    for i, (place, left) in enumerate(zip(places, load.backlogs_at(at), strict=True)):
        bars, x = [], 0.0
        for color, size in left.items():
            width = size / (peak or 1) * longest
            look = worker(color) if color >= 0 else area("soft")
            bars.append(tag("rect", x=fine(x), width=fine(width), y=-HIGH / 2, height=HIGH, **look))
            x += width
        parts.append(tag("g", "".join(bars), class_="d2-tank", transform=place.where))
        x, y, anchor = place.words
        shown = bool(left) and (level > 0 or i == decides)
        bold = {"font_weight": 700, "class_": "d2-note d2-left d2-ink", "display": None if shown else "none"}
        total = show_size(round(sum(left.values())))
        parts.append(words(total.split(" ")[0] if level == 1 else total, x, y, "note", "ink", anchor, **bold))
    return "".join(parts)

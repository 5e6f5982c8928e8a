"""The motion of a trace: the contents of every cell, the messages under way, the crowd on every link. No geometry.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), pcie_server(gpus=2), "160 MB")
>>> motion = follow(trace)
>>> [[motion.contributors[i] for i in look.who] for look in motion.cells_at(0)]
[['gpu0'], ['gpu1']]
>>> [motion.looks[m.look].who for m in motion.under_way(0.005)]
[(1,)]
>>> [look.complete for look in motion.cells_at(trace.duration)]
[True, True]

Contents come from :func:`d2lps.plan.checking.replay`: a message carries the value that its sender held at the beginning
of the step, and takes effect when its event ends. If no plan determines its value, the event has recorded it.

The paths of messages over the lanes, such that messages that meet are distinguishable.

Messages that meet on a lane go side by side if it is wide enough, else one behind the other.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple, Protocol

from d2lps.plan.acts import PlanError
from d2lps.plan.checking import Holding, Holdings, NodeKey, complete, replay
from d2lps.plan.plan import Plan
from d2lps.schedule import Schedule
from d2lps.trace import Event, Trace
from d2lps.view.drawing.layout import Layout
from d2lps.view.drawing.svg import Point

SERVER = -1  # instead of the number of a color, for nodes that are not workers


class Look(NamedTuple):
    """The look of one key in a cell or message: the numbers of its contributors, complete or not, updated or not."""

    who: tuple[int, ...]
    complete: bool = False
    updated: bool = False


EMPTY = Look(())


class Message(NamedTuple):
    """One message: its times, its sender and receiver, the number of its look, and its bytes."""

    start: float
    end: float
    step: int
    src: str
    dst: str
    key: str
    look: int
    nbytes: float = 0


class Change(NamedTuple):
    """At ``time`` the cell, link or node ``place`` changes from ``before`` to ``after``."""

    time: float
    place: int
    before: int
    after: int


class Timed(Protocol):
    """Whatever begins and ends."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@dataclass(frozen=True)
class Motion:
    """All changes during a trace, in order of time. Cells are numbered node by node, key by key.

    ``contributors`` are the workers, and ``colors`` has the number of each one's color in ``theme.WORKERS``.
    ``looks[0]`` is the empty look; ``first`` has the look of each cell at the beginning; ``sharing`` are the links and
    limited nodes that messages use. ``crowd`` changes the number of messages on each of these, ``work`` the number of
    updates at each node, ``gone`` that of its deaths.
    """

    contributors: tuple[str, ...]
    colors: dict[str, int]
    looks: tuple[Look, ...]
    first: tuple[int, ...]
    changes: tuple[Change, ...]
    messages: tuple[Message, ...]
    sharing: tuple
    crowd: tuple[Change, ...]
    work: tuple[Change, ...]
    gone: tuple[Change, ...] = ()

    def color(self, node: str) -> int:
        """Return the number of a node's color, or SERVER."""
        return self.colors.get(node, SERVER)

    def cells_at(self, time: float) -> list[Look]:
        """Return the look of each cell at ``time``, changes at that very moment included."""
        return [self.looks[i] for i in replayed(list(self.first), self.changes, time)]

    def working_at(self, time: float) -> set[int]:
        """Return the numbers of the nodes that are in the middle of an update."""
        return _on(self.work, time)

    def gone_at(self, time: float) -> set[int]:
        """Return the numbers of the nodes that are dead."""
        return _on(self.gone, time)

    def under_way(self, time: float) -> list[Message]:
        """Return the messages that have started and not arrived."""
        return [m for m in self.messages if m.start <= time < m.end]

    def telling(self) -> float:
        """Return the middle of the span with most messages under way; of several such spans, of the middle one."""
        edges = sorted({t for m in self.messages for t in (m.start, m.end)})
        if len(edges) < 2:
            return edges[0] if edges else 0.0
        counts = Counter(m.start for m in self.messages)
        counts.subtract(m.end for m in self.messages)
        spans, busy = [], 0
        for start, end in zip(edges, edges[1:], strict=False):
            busy += counts[start]
            spans.append((busy, (start + end) / 2))
        best = [moment for number, moment in spans if number == max(spans)[0]]
        return best[(len(best) - 1) // 2]


def _on(changes: tuple[Change, ...], time: float) -> set[int]:
    counts = {change.place: 0 for change in changes}
    return {place for place, count in replayed(counts, changes, time).items() if count}


def replayed(state, changes: tuple[Change, ...], time: float):
    """Apply all ``changes`` up to ``time`` to ``state`` and return it."""
    for change in changes:
        if change.time > time:
            break
        state[change.place] = change.after
    return state


def plan_of(trace: Trace) -> Plan:
    """Return the plan of a trace; that of a schedule has no motion, but is a table of lanes."""
    if isinstance(trace.plan, Schedule):
        raise TypeError("the trace of a schedule is drawn as Lanes")
    return trace.plan


def follow(trace: Trace) -> Motion:
    """Return the motion of ``trace``. A broken plan is followed up to the step that breaks it."""
    plan = plan_of(trace)
    holders = {node for node, _ in plan.holds}
    contributors = tuple(node for node in plan.nodes if node in holders)
    number = {node: i for i, node in enumerate(contributors)}
    bits = [(1 << i, number[node]) for i, node in enumerate(plan.nodes) if node in holders]
    everyone, looks = complete(plan), {EMPTY: 0}

    def look(key: str, value: Holding | None) -> int:
        if value is None:
            return 0
        contained = tuple(i for bit, i in bits if value.who & bit)
        return looks.setdefault(Look(contained, value.who == everyone[key], value.updated), len(looks))

    run = _Run(trace)
    recorded = any(event.carries is not None for event in trace.events)
    place = {cell: i for i, cell in enumerate((node, key) for node in plan.nodes for key in plan.share)}
    first = (0,) * len(place) if recorded else tuple(look(cell[1], run.before[0].get(cell)) for cell in place)
    now, reached = [*first], [0.0] * len(place)
    messages: list[Message] = []
    changes: list[Change] = []
    for event, value, written in _recorded(run) if recorded else _planned(run):
        if event.kind == "send":
            ends = event.start, event.end, event.step, event.src, event.dst, event.key
            messages.append(Message(*ends, look(event.key, value), event.nbytes))
        for time, cell, new in written:
            i, after = place[cell], look(cell[1], new)
            # A cell goes through its steps in order, even if the clocks of several hosts disagree.
            reached[i] = max(time, reached[i])
            changes.append(Change(reached[i], i, now[i], after))
            now[i] = after
    occupied = trace.occupied()
    crowd: list[Change] = []
    work: list[Change] = []
    gone: list[Change] = []
    for i, (resource, events) in enumerate(occupied.items()):
        # On a place without a limit messages do not delay each other.
        crowd += _counts(events, i, 1 if trace.topology.capacity(resource) == inf else len(events))
    for i, node in enumerate(plan.nodes):
        work += _counts([e for e in trace.events if e.kind == "update" and e.dst == node], i, 1)
        deaths = [e for e in trace.events if e.kind == "gone" and e.dst == node]
        gone += [turn for turn in _counts(deaths, i, 1) if turn.time < trace.duration]
    rows = [tuple(sorted(each, key=lambda change: change.time)) for each in (changes, crowd, work, gone)]
    messages.sort(key=lambda message: message.start)
    return Motion(contributors, number, tuple(looks), first, rows[0], tuple(messages), tuple(occupied), *rows[1:])


class _Written(NamedTuple):
    """At ``time`` a cell gets a new value, or loses the one that it had."""

    time: float
    cell: NodeKey
    value: Holding | None


# An event, the value that it carries if it is a message, and the cells that it changes.
_Followed = Iterator[tuple[Event, Holding | None, list[_Written]]]


class _Run:
    """What the nodes of a trace hold (``have``) while its events are followed one by one."""

    def __init__(self, trace: Trace):
        self.plan, self.events = plan_of(trace), trace.events
        self.have: Holdings = {}
        self.before: list[Holdings] = []  # by step, as the plan says
        with suppress(PlanError):  # messages after the step that breaks the plan carry the values from before it
            for _, have in replay(self.plan):
                self.before.append(have)
        # Arrivals at a dead node change nothing; a node that is dead at the end stays dead.
        self.dead: dict[str, list[tuple[float, float]]] = {}
        for event in self.events:
            if event.kind == "gone":
                end = event.end if event.end < trace.duration else inf
                self.dead.setdefault(event.dst, []).append((event.start, end))

    def sent(self, event: Event) -> Holding | None:
        """Return the value of a message by the plan: its sender's at the beginning of the step."""
        return self.before[min(event.step, len(self.before)) - 1].get((event.src, event.key))

    def lost(self, event: Event) -> bool:
        """Return True if a message arrives at a dead node."""
        return any(start <= event.end < end for start, end in self.dead.get(event.dst, ()))

    def write(self, event: Event, arrived: Holding | None) -> list[_Written]:
        """Let an event change ``have``, and return what it writes."""
        if event.kind == "gone":
            cells = [(event.src, key) for key in self.plan.share if (event.src, key) in self.have]
            for cell in cells:
                del self.have[cell]
            return [_Written(event.start, cell, None) for cell in cells]
        cell = event.dst, event.key
        present = self.have.get(cell)
        if event.kind == "update":
            value = Holding(present.who if present else 0, updated=True)
        elif arrived is None or self.lost(event):
            return []
        elif present and event.op == "add":
            value = Holding(present.who | arrived.who, present.updated)
        else:
            value = arrived
        self.have[cell] = value
        return [_Written(event.end, cell, value)]


def _ends(event: Event) -> float:
    """Return when an event takes effect."""
    return event.start if event.kind == "gone" else event.end


def _planned(run: _Run) -> _Followed:
    """Follow a run whose plan determines what messages carry: step by step, and every gradient is there at first."""
    run.have = dict(run.before[0])
    for event in sorted(run.events, key=lambda event: (event.step, _ends(event))):
        value = run.sent(event) if event.kind == "send" else None
        yield event, value, run.write(event, value)


def _recorded(run: _Run) -> _Followed:
    """Follow a run that recorded what messages carry: by the clock, and a gradient is there when it is sent."""
    bit = {node: 1 << i for i, node in enumerate(run.plan.nodes)}
    holders = {node for node, _ in run.plan.holds}
    for event in sorted(run.events, key=lambda event: (_ends(event), event.step)):
        value, written = None, []
        if event.kind == "send":
            source = event.src, event.key
            present = run.have.get(source)
            if event.carries is None:
                value = run.sent(event)
            else:
                who = sum(bit[node] for node in holders.intersection(event.carries))
                value = Holding(who, present.updated if present else False)
            if event.op == "add" and present is None and value is not None and not run.lost(event):
                run.have[source] = value
                written.append(_Written(event.start, source, value))
        yield event, value, written + run.write(event, value)


def _counts(events: list[Event], place: int, limit: int) -> Iterator[Change]:
    """Yield the changes of the number of ``events`` going on, at most ``limit``; those without duration are ignored."""
    steps, now = Counter(e.start for e in events), 0
    steps.subtract(e.end for e in events)
    for time in sorted(t for t, by in steps.items() if by):
        yield Change(time, place, min(now, limit), min(now + steps[time], limit))
        now += steps[time]


TILE = 20.0  # the height of a message
GAP = 2.5
REACH = 36.0  # the distance from its cell over which a message takes on the cell's size


class MessagePath(NamedTuple):
    """The way of one message, from the middle of its sender's cell to that of its receiver's.

    ``points`` are the corners of the line. The messages of a crowd start and arrive at the same moments; if a lane is
    too narrow for all side by side, they follow each other. ``behind`` is the distance of this message from the first,
    and ``last`` that of the last one. So the first waits at its end, and the others at their beginnings.
    """

    points: tuple[Point, ...]
    behind: float = 0.0
    last: float = 0.0

    def at(self, part: float) -> tuple[float, float, float]:
        """Return x and y at ``part`` (0 … 1) of its time, and how far the message has grown to its cell's size."""
        lengths = [math.dist(*pair) for pair in pairwise(self.points)]
        whole = sum(lengths) + self.last
        grown = max(0.0, 1 - min(part, 1 - part) * whole / REACH)
        left = min(max(0.0, part * whole - self.behind), sum(lengths))
        for ((ax, ay), (bx, by)), length in zip(pairwise(self.points), lengths, strict=True):
            if left <= length:
                return ax + (bx - ax) * left / (length or 1), ay + (by - ay) * left / (length or 1), grown
            left -= length
        return *self.points[-1], grown


def paths(trace: Trace, layout: Layout, motion: Motion, widths: Sequence[float]) -> list[MessagePath]:
    """Return the path of each message of ``motion``; ``widths`` has the width of the messages of each key."""
    pitch = max(widths) + GAP
    length = max(TILE, pitch) + 6  # from one message to the next behind it
    abreast = max(1, int((layout.room + GAP) // pitch))
    hops = [[(link.src, link.dst) for link in trace.topology.route(m.src, m.dst)] for m in motion.messages]
    meeting: dict[tuple, list[int]] = defaultdict(list)
    for i, route in enumerate(hops):
        for hop in route:
            meeting[hop].append(i)
    seat: dict[tuple, tuple[int, int]] = {}
    for hop, members in meeting.items():
        seat |= zip(((hop, i) for i in members), seats([motion.messages[i] for i in members]), strict=True)
    rank = {node: i / max(1, len(trace.plan.nodes) - 1) for i, node in enumerate(trace.plan.nodes)}
    every = []
    for i, message in enumerate(motion.messages):
        aside, queue = [], (1, 0)
        for hop in hops[i]:
            number, crowd = seat[hop, i]
            columns = min(abreast, crowd)
            aside.append((number % columns - (columns - 1) / 2) * pitch)
            queue = max(queue, (-(-crowd // columns), number // columns))
        start, end = (layout.cells[node][message.key].center for node in (message.src, message.dst))
        points = layout.route(hops[i], start, end, aside, rank[message.src])
        every.append(MessagePath(tuple(points), queue[1] * length, (queue[0] - 1) * length))
    return every


def seats(messages: Sequence[Timed]) -> list[tuple[int, int]]:
    """Return for each message its seat, and the number of seats of its crowd.

    Messages under way at the same time have different seats. A crowd is a set of messages that overlap in time,
    directly or through others, of any steps: without a barrier steps overlap too.
    """
    seated: list[tuple[int, list[float]]] = [(0, [])] * len(messages)
    crowd: list[float] = []  # the end of the last message on each seat of the present crowd
    for i in sorted(range(len(messages)), key=lambda i: messages[i].start):
        if messages[i].start >= max(crowd, default=0.0):
            crowd = []
        seat = next((k for k, end in enumerate(crowd) if end <= messages[i].start), len(crowd))
        crowd[seat : seat + 1] = [messages[i].end]
        seated[i] = seat, crowd
    return [(seat, len(crowd)) for seat, crowd in seated]

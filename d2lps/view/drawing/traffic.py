"""What links have to carry: the backlog at each, how many are full, and which one decides when all is over.

A message is taken to pass evenly from its start to its end: more than that its event does not say.

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
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from d2lps.topology import Link
from d2lps.trace import Trace
from d2lps.view.drawing.motion import Change, Message, Motion, replayed

ENOUGH = 0.9  # of its bandwidth: what latency costs still counts as full, two messages of three do not
SERVER = -1  # instead of a worker's number, for what has no worker's color
IDLE, BUSY, FULL, DECIDES = range(4)  # a place passes nothing, something, all that it can; the end waits for it


@dataclass(frozen=True)
class Traffic:
    """Of each message the ``places`` (numbers of ``motion.sharing``) that it passes, and what follows from it.

    ``full`` says which links pass all that they can (1) from when on, of ``links`` in all; ``deciding`` which place
    decides (-1: none); ``states`` what each place is, IDLE to DECIDES, for all who draw it; ``most`` is the largest
    backlog of any place at any time, and ``colors`` has the number of each sender.

    The place that decides: begin with the message that arrives last and go back to the one that ended latest before
    it began (where runs are measured, of those that its sender sent or received), and so on. So the time of the run is
    theirs. Of the places that such a message passes, the one with most seconds of work meanwhile decides; none does
    where others, elsewhere, have as much.
    """

    motion: Motion
    places: tuple[tuple[int, ...], ...]
    colors: dict[str, int]
    links: int
    full: tuple[Change, ...]
    deciding: tuple[Change, ...]
    states: tuple[Change, ...]
    most: float

    def backlogs_at(self, time: float) -> list[dict[int, float]]:
        """Of each place the bytes that have still to pass of the messages under way, by number of their sender."""
        left: list[dict[int, float]] = [{} for _ in self.motion.sharing]
        for message, places in zip(self.motion.messages, self.places, strict=True):
            if message.start <= time < message.end:
                part = (message.end - time) / (message.end - message.start) * message.nbytes
                color = self.colors[message.src]
                for place in places:
                    left[place][color] = left[place].get(color, 0.0) + part
        return [dict(sorted(each.items())) for each in left]

    def full_at(self, time: float) -> int:
        """How many links pass at ``time`` all that they can."""
        return sum(replayed([0] * len(self.motion.sharing), self.full, time))

    def decides_at(self, time: float) -> int:
        """The number of the place that decides at ``time``, or -1."""
        at = bisect_right(self.deciding, time, key=lambda change: change.time)
        return self.deciding[at - 1].after if at else -1

    def states_at(self, time: float) -> list[int]:
        """What each place is at ``time``, IDLE to DECIDES."""
        return replayed([IDLE] * len(self.motion.sharing), self.states, time)


def traffic(trace: Trace, motion: Motion) -> Traffic:
    """The traffic of ``trace``, whose motion is ``motion``."""
    number = {resource: i for i, resource in enumerate(motion.sharing)}
    ways = {ends: trace.topology.resources(*ends) for ends in dict.fromkeys((m.src, m.dst) for m in motion.messages)}
    places = tuple(tuple(number[resource] for resource in ways[m.src, m.dst]) for m in motion.messages)
    users: list[list[Message]] = [[] for _ in motion.sharing]  # in order of their start
    for message, passed in zip(motion.messages, places, strict=True):
        for place in passed:
            users[place].append(message)
    capacity = [trace.topology.capacity(resource) for resource in motion.sharing]
    steps = [_sums(messages) for messages in users]
    most = max((each for peak in steps for *_, each in peak), default=0.0)
    links = [i for i, resource in enumerate(motion.sharing) if isinstance(resource, Link)]
    full = _full({i: steps[i] for i in links}, capacity)
    colors = {node: SERVER for node in trace.plan.nodes} | {node: i for i, node in enumerate(motion.contributors)}
    deciding = _deciding(trace, motion, dict(zip(motion.messages, places, strict=True)), users, capacity)
    states = _states(motion, full, deciding)
    return Traffic(motion, places, colors, len(trace.topology.links), full, deciding, states, most)


def _sums(messages: list[Message]) -> list[tuple[float, int, float, float]]:
    """From when on there are how many messages, at how many bytes per second in all, with how many bytes left."""
    edges: dict[float, list[Message]] = defaultdict(list)
    for message in messages:
        if message.start < message.end:
            edges[message.start].append(message)
            edges[message.end].append(message)
    sums, now, rate, left, before = [], 0, 0.0, 0.0, 0.0
    for time in sorted(edges):
        left = max(0.0, left - rate * (time - before))
        for message in edges[time]:
            way = 1 if message.start == time else -1
            now += way
            rate += way * message.nbytes / (message.end - message.start)
            left += message.nbytes if way > 0 else 0.0
        rate, left, before = (rate, left, time) if now else (0.0, 0.0, time)  # no remainder of rounding stays
        sums.append((time, now, rate, left))
    return sums


def _full(steps: dict[int, list], capacity: list[float]) -> tuple[Change, ...]:
    """Which of the links, by the number of their place, are full from when on (1), or no longer (0)."""
    changes = []
    for place, sums in steps.items():
        most, was = capacity[place], 0
        for time, now, rate, _ in sums:
            is_full = int(now > 0 and (math.isinf(most) or rate >= ENOUGH * most))
            if is_full != was:
                changes.append(Change(time, place, was, is_full))
            was = is_full
    return tuple(sorted(changes))


def _states(motion: Motion, full: tuple[Change, ...], deciding: tuple[Change, ...]) -> tuple[Change, ...]:
    """What each place is from when on: what passes it, whether it is full, and which decides, in one."""
    number = len(motion.sharing)
    crowd, is_full, decides, state = [0] * number, [0] * number, -1, [IDLE] * number
    changes = []
    edges = sorted((c.time, kind, c) for kind, all in enumerate((motion.crowd, full, deciding)) for c in all)
    for time, group in groupby(edges, key=lambda edge: edge[0]):
        touched = set()
        for _, kind, change in group:
            if kind == 2:
                touched |= {change.before, change.after} - {-1}
                decides = change.after
            else:
                (crowd, is_full)[kind][change.place] = change.after
                touched.add(change.place)
        for place in sorted(touched):
            now = DECIDES if place == decides else FULL if is_full[place] else BUSY if crowd[place] else IDLE
            if now != state[place]:
                changes.append(Change(time, place, state[place], now))
                state[place] = now
    return tuple(changes)


def _deciding(trace: Trace, motion: Motion, places: dict, users: list, capacity: list[float]) -> tuple[Change, ...]:
    """Which place decides from when on."""
    longest = [max((m.end - m.start for m in each), default=0.0) for each in users]
    starts = [[m.start for m in each] for each in users]

    def work(place: int, during: Message) -> tuple[float, float]:
        """Seconds, and bytes, of what ``place`` has to pass during a message."""
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
            best = -1  # all that have as much to do decide together: none of them stands out
        if message.end < until:
            changes.append(Change(message.end, 0, best, -1))
        changes.append(Change(message.start, 0, -1, best))
        later, until = best, message.start
    return _tidy(changes[::-1])


def _tidy(changes: list[Change]) -> tuple[Change, ...]:
    """The same, each from what was there before it."""
    tidy, state = [], -1
    for change in changes:
        if change.after != state:
            tidy.append(Change(change.time, 0, state, change.after))
            state = change.after
    return tuple(tidy)


def _chain(trace: Trace, motion: Motion) -> list[Message]:
    """The messages that follow one another up to the one that arrives last, from that one back."""
    timed = sorted((m for m in motion.messages if m.start < m.end), key=lambda m: m.end)
    of: dict[str | None, list[Message]] = defaultdict(list)
    for message in timed:
        for key in {message.src, message.dst} if trace.measured else {None}:
            of[key].append(message)
    ends = {key: [m.end for m in each] for key, each in of.items()}
    chain = timed[-1:]
    while chain:
        key = chain[-1].src if trace.measured else None
        before = bisect_right(ends[key], chain[-1].start)
        if not before:
            break
        chain.append(of[key][before - 1])
    return chain

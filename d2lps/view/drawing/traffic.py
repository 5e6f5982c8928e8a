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
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from d2lps.topology import Link
from d2lps.trace import Trace
from d2lps.view.drawing.motion import Change, Message, Motion, replayed

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
    links = [i for i, resource in enumerate(motion.sharing) if isinstance(resource, Link)]
    full = _full({i: steps[i] for i in links}, capacity)
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

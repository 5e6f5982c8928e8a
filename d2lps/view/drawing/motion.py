"""What moves when: whose gradients are where, which messages are under way, how many share a link. No geometry.

>>> from d2lps import aggregate_at, cost, pcie_server
>>> trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), pcie_server(gpus=2), "160 MB")
>>> motion = follow(trace)
>>> [[motion.contributors[i] for i in look.who] for look in motion.cells_at(0)]
[['gpu0'], ['gpu1']]
>>> [motion.looks[m.look].who for m in motion.under_way(0.005)]
[(1,)]
>>> [look.complete for look in motion.cells_at(trace.duration)]
[True, True]

Contents come from :func:`d2lps.plan.checking.replay`: a message carries what its sender had when the step began, and
takes effect when its event ends. Where no plan says what it carries, its event does.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from d2lps.plan.acts import PlanError
from d2lps.plan.checking import Holding, Holdings, complete, replay
from d2lps.trace import Event, Trace


class Look(NamedTuple):
    """What there is to see of one key somewhere: contributors (by number), and whether it is all, and updated."""

    who: tuple[int, ...]
    complete: bool = False
    updated: bool = False


EMPTY = Look(())


class Message(NamedTuple):
    """One message: when, from which cell to which, what it carries (number of a look), and how many bytes."""

    start: float
    end: float
    step: int
    src: str
    dst: str
    key: str
    look: int
    nbytes: float = 0


class Change(NamedTuple):
    """At ``time`` the cell (or link) ``place`` goes over from ``before`` to ``after``."""

    time: float
    place: int
    before: int
    after: int


@dataclass(frozen=True)
class Motion:
    """All that changes during a trace, in order of time. Cells are numbered node by node, key by key.

    ``looks[0]`` is the empty look; ``first`` has the look of each cell at the beginning; ``sharing`` are the links
    and limited nodes that are used, and ``crowd`` says how many messages each of them carries from when on;
    ``work`` says the same of each node of the plan and its updates, and ``gone`` of each and its deaths.
    """

    contributors: tuple[str, ...]
    looks: tuple[Look, ...]
    first: tuple[int, ...]
    changes: tuple[Change, ...]
    messages: tuple[Message, ...]
    sharing: tuple
    crowd: tuple[Change, ...]
    work: tuple[Change, ...]
    gone: tuple[Change, ...] = ()

    def cells_at(self, time: float) -> list[Look]:
        """The look of each cell at ``time``; what happens at that very moment has happened."""
        return [self.looks[i] for i in replayed(list(self.first), self.changes, time)]

    def crowds_at(self, time: float) -> list[int]:
        """How many messages each of ``sharing`` carries at ``time``."""
        return replayed([0] * len(self.sharing), self.crowd, time)

    def working_at(self, time: float) -> set[int]:
        """The nodes, by number, that are in the midst of an update."""
        return _on(self.work, time)

    def gone_at(self, time: float) -> set[int]:
        """The nodes, by number, that are dead."""
        return _on(self.gone, time)

    def under_way(self, time: float) -> list[Message]:
        """The messages that have started and not arrived."""
        return [m for m in self.messages if m.start <= time < m.end]

    def telling(self) -> float:
        """The moment that tells most: most messages under way; of several such, the middle of the middlemost one."""
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
    """``state`` after all ``changes`` up to ``time``."""
    for change in changes:
        if change.time > time:
            break
        state[change.place] = change.after
    return state


def follow(trace: Trace) -> Motion:
    """The motion of ``trace``. A broken plan is followed up to the step that breaks it."""
    plan = trace.plan
    holders = {node for node, _ in plan.holds}
    contributors = tuple(node for node in plan.nodes if node in holders)
    number = {node: i for i, node in enumerate(contributors)}
    bits = [(1 << i, number[node]) for i, node in enumerate(plan.nodes) if node in holders]
    everyone, looks, before = complete(plan), {EMPTY: 0}, []
    with suppress(PlanError):  # what comes after the step that breaks the plan carries what there was before it
        for _, have in replay(plan):
            before.append(dict(have))  # a copy: replay may go on with the same mapping

    def look(key: str, part: Holding | None) -> int:
        if part is None:
            return 0
        contained = tuple(i for bit, i in bits if part.who & bit)
        return looks.setdefault(Look(contained, part.who == everyone[key], part.updated), len(looks))

    def part(event: Event, have: Holdings) -> Holding | None:
        """What a message carries: what its sender had when the step began, or what was recorded."""
        if event.carries is None:
            return before[min(event.step, len(before)) - 1].get((event.src, event.key))
        own = have.get((event.src, event.key))
        return Holding(sum(bit for bit, i in bits if contributors[i] in event.carries), own.updated if own else False)

    place = {cell: i for i, cell in enumerate((node, key) for node in plan.nodes for key in plan.share)}
    recorded = any(event.carries is not None for event in trace.events)
    have = {} if recorded else dict(before[0])
    # What arrives meanwhile changes nothing; the dead stay so at the end.
    dead: dict[str, list[tuple[float, float]]] = {}
    for event in trace.events:
        if event.kind == "gone":
            dead.setdefault(event.dst, []).append((event.start, event.end if event.end < trace.duration else inf))
    first = tuple(look(key, have.get((node, key))) for node, key in place)
    messages, changes, reached = [], [], {}

    def change(cell: tuple[str, str], time: float, now: Holding) -> None:
        # A cell goes through its steps in order, whatever the clocks of several hosts say.
        reached[cell] = max(time, reached.get(cell, 0.0))
        changes.append(Change(reached[cell], place[cell], look(cell[1], have.get(cell)), look(cell[1], now)))
        have[cell] = now

    def order(event: Event) -> tuple[float, float]:
        end = event.start if event.kind == "gone" else event.end
        return (end, event.step) if recorded else (event.step, end)

    for event in sorted(trace.events, key=order):
        if event.kind == "gone":
            for key in plan.share:
                if (event.src, key) in have:
                    change((event.src, key), event.start, Holding(0))
                    del have[event.src, key]
            continue
        cell, own = (event.dst, event.key), have.get((event.dst, event.key))
        if event.kind == "update":
            change(cell, event.end, Holding(own.who if own else 0, updated=True))
            continue
        arrived = part(event, have)
        ends = event.start, event.end, event.step, event.src, *cell
        messages.append(Message(*ends, look(event.key, arrived), event.nbytes))
        if arrived is None or any(start <= event.end < end for start, end in dead.get(event.dst, ())):
            continue
        if recorded and event.op == "add" and (event.src, event.key) not in have:  # its own gradient is there by now
            change((event.src, event.key), event.start, arrived)
        added = Holding(own.who | arrived.who, own.updated) if own and event.op == "add" else arrived
        change(cell, event.end, added)
    occupied, crowd, work, gone = trace.occupied(), [], [], []
    for i, (resource, events) in enumerate(occupied.items()):
        # Where there is room without limit, nobody is in anybody's way.
        crowd += _counts(events, i, 1 if trace.topology.capacity(resource) == float("inf") else len(events))
    for i, node in enumerate(plan.nodes):
        work += _counts([e for e in trace.events if e.kind == "update" and e.dst == node], i, 1)
        deaths = [e for e in trace.events if e.kind == "gone" and e.dst == node]
        gone += [turn for turn in _counts(deaths, i, 1) if turn.time < trace.duration]
    changes, crowd, work, gone = (tuple(sorted(rows, key=lambda c: c.time)) for rows in (changes, crowd, work, gone))
    messages = tuple(sorted(messages, key=lambda m: m.start))
    return Motion(contributors, tuple(looks), first, changes, messages, tuple(occupied), crowd, work, gone)


def _counts(events: list[Event], place: int, most: int) -> Iterator[Change]:
    """How many of ``events`` are going on from when on, at most ``most``; those that take no time are left out."""
    steps, now = Counter(e.start for e in events), 0
    steps.subtract(e.end for e in events)
    for time in sorted(t for t, by in steps.items() if by):
        yield Change(time, place, min(now, most), min(now + steps[time], most))
        now += steps[time]

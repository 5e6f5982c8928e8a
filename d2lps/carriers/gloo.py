"""One rank's part of a program over gloo: sockets between processes, tensors in main memory.

Everything that can be known before is worked out before (:meth:`Gloo.load`): on a small machine a step of small
messages takes as long as the Python around it.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.carriers.background import Progress
from d2lps.carriers.base import Executed, Operation, Program, Step, Timed

SEGMENT = 1 << 20  # bytes that travel at once: added while they are still in the cache, and the next ones on their way
STRETCH = 1 << 24  # of what is only copied, straight to its place: few calls, and yet a sign of life on slow links
AHEAD = 2  # segments that a receiver asks for before it adds the first


class Departure(NamedTuple):
    """A segment that leaves for ``rank``: ``tag`` tells it from the others of its step."""

    sent: Operation
    parts: list[Tensor]
    rank: int
    tag: int


class Arrival(NamedTuple):
    """A segment that arrives in ``parts`` and is then ``put`` where it belongs; None if it already is there."""

    index: int
    parts: list[Tensor]
    rank: int
    tag: int
    put: Callable[[], object] | None


class GlooStep(NamedTuple):
    """What one rank does in a step; ``leave``: earlier sends that must have left, as it overwrites what they read."""

    number: int
    leave: list[Operation]
    copies: list[Callable[[], object]]
    departures: list[Departure]
    arrivals: list[Arrival]
    updates: list[tuple[int, list[Operation], Callable[[], object]]]


class Gloo:
    """The connections of one rank to all others. ``progress`` tells how far it has come, at most ``patience`` apart."""

    def __init__(self, store: dist.Store, rank: int, size: int, patience: timedelta, progress: Progress):
        self._progress, self._patience = progress, patience
        with progress.of():
            self._group = dist.ProcessGroupGloo(store, rank, size, patience)

    def load(self, program: Program, ranks: Mapping[str, int]) -> Callable[[], Executed]:
        """What executes ``program``, where ``ranks`` says who plays which node. It raises Closed."""
        length = max(1, SEGMENT // program.like.element_size())
        scratch = [torch.empty(length, dtype=program.like.dtype) for _ in range(AHEAD)]
        return partial(self._execute, [_loaded(step, program, ranks, scratch) for step in program.steps])

    def _execute(self, steps: list[GlooStep]) -> Executed:
        now, progress, limit = time.perf_counter, self._progress, self._patience
        timed, begun = [], now()
        leaving: dict[Operation, list[tuple[int, dist.Work]]] = {}  # what was sent, until it is overwritten

        def left(sent: Operation) -> None:
            for rank, work in leaving.pop(sent, ()):
                with progress.of(rank):
                    work.wait(limit)

        for step in steps:
            progress.at(step.number)
            started, ends = now(), {}
            for sent in step.leave:
                left(sent)
            for copy in step.copies:
                copy()
            for sent, parts, rank, tag in step.departures:
                with progress.of(rank):
                    leaving.setdefault(sent, []).append((rank, self._group.send(parts, rank, tag)))
                ends[sent.index] = now()  # of leaving; when it has arrived, the other end knows
            asked = [self._asked(arrival) for arrival in step.arrivals[:AHEAD]]
            for i, (index, _, rank, _, put) in enumerate(step.arrivals):
                if asked[i] is not None:
                    with progress.of(rank):
                        asked[i].wait(limit)
                if put is not None:
                    put()
                if i + AHEAD < len(step.arrivals):
                    asked.append(self._asked(step.arrivals[i + AHEAD]))
                ends[index] = now()
            timed += [Timed(step.number, index, started, end) for index, end in ends.items()]
            for index, leave, update in step.updates:
                for sent in leave:
                    left(sent)
                started = now()
                update()
                timed.append(Timed(step.number, index, started, now()))
        for sent in [*leaving]:
            left(sent)
        return Executed(begun, timed)

    def _asked(self, arrival: Arrival) -> dist.Work | None:
        if not arrival.parts:
            return None
        with self._progress.of(arrival.rank):
            return self._group.recv(arrival.parts, arrival.rank, arrival.tag)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        with self._progress.of():
            self._group.barrier().wait(self._patience)

    def abort(self) -> None:
        """Close all connections of this rank, so that nobody waits for it, nor a thread of its own for others."""
        for rank in set(range(self._group.size())) - {self._group.rank()}:
            with suppress(RuntimeError):  # gloo has no other way to say so: a wait that ends too early closes all
                self._group.recv([torch.empty(1)], rank, 0x7FFFFFFF).wait(timedelta(milliseconds=1))


def _loaded(step: Step, program: Program, ranks: Mapping[str, int], scratch: list[Tensor]) -> GlooStep:
    def departed(operations: list[Operation]) -> list[Operation]:
        before = dict.fromkeys(earlier for done in operations for earlier in done.after)
        return [done for done in before if program.part(done.writes) is None]

    departures, arrivals = [], []
    for sent, source, target in program.bound(step.sends):
        index, begins = sent.index, sent.begins
        if not (source if target is None else target).numel():
            arrivals.append(Arrival(index, [], -1, 0, None))  # nothing travels, and yet it has been sent
        elif target is None:
            to = ranks[sent.writes.node]
            departures += [Departure(sent, [part], to, tag) for tag, part in _cut(index, begins, source)]
        elif source is not None:
            arrivals.append(Arrival(index, [], -1, 0, partial(program.write, begins, target, source)))
        else:
            for tag, part in _cut(index, begins, target):
                room, put = part, None
                if not (begins and part.is_contiguous()):
                    room = scratch[len(arrivals) % AHEAD]
                    room = room[: part.numel()] if part.numel() <= room.numel() else room.new_empty(part.numel())
                    put = partial(program.write, begins, part, room)
                arrivals.append(Arrival(index, [room], ranks[sent.reads.node], tag, put))
    copies = [partial(spare.copy_, source) for _, source, spare in program.bound(step.kept)]
    changes = [
        (change.index, departed([change]), partial(program.update, change.act, gradient))
        for change, gradient, _ in program.bound(step.updates)
    ]
    return GlooStep(step.number, departed([*step.kept, *step.sends]), copies, departures, arrivals, changes)


def _cut(index: int, begins: bool, buffer: Tensor) -> list[tuple[int, Tensor]]:
    """(tag, part) of each segment of a step's send number ``index``; both its ends cut alike."""
    length = max(1, (STRETCH if begins else SEGMENT) // buffer.element_size())
    first = index << 16 & 0x7FFFFFFF  # where tags come again, gloo keeps the order in which they are sent
    return [(first | i, part) for i, part in enumerate(buffer.split(length))]

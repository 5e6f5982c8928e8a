"""One rank's part of a program over gloo: sockets between processes, tensors in main memory.

Everything that can be known before is worked out before (:meth:`Gloo.load`): on a small machine a step of small
messages takes as long as the Python around it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.carriers.background import Progress
from d2lps.carriers.base import Executed, Operation, Program, Step, Timed
from d2lps.plan.acts import Send, Update, sends


class Cut(NamedTuple):
    """How messages are cut: bytes of a segment that is added, and of one that is only copied, straight to its place.

    ``ahead``: how many segments a receiver asks for before it has written the first.
    """

    added: int
    copied: int
    ahead: int


# Added while they are still in the cache, and the next on their way; copied in few calls, and yet with a sign of life.
PLAIN = Cut(added=1 << 20, copied=1 << 24, ahead=2)
# Between hosts, where two send to each other at once, or several to several: asking for a segment is a message of its
# own, which waits behind what is being sent to the same rank, and of several senders gloo lets some wait.
CROWDED = Cut(added=1 << 16, copied=1 << 16, ahead=12)


class Departure(NamedTuple):
    """A segment that leaves for ``rank``: ``tag`` tells it from the others of its step."""

    sent: Operation
    parts: list[Tensor]
    rank: int
    tag: int


class Arrival(NamedTuple):
    """A segment that arrives in ``parts``, and what is then ``put`` where it belongs: nothing where it already is."""

    index: int
    parts: list[Tensor]
    rank: int
    tag: int
    put: list[Callable[[], object]]


class Piece(NamedTuple):
    """A segment of a message for a node of this rank: the ``part`` to write, and what is written if it is ``here``."""

    index: int
    begins: bool
    part: Tensor | None
    here: Tensor | None
    rank: int
    tag: int


class GlooStep(NamedTuple):
    """What one rank does in a step; ``leave``: earlier sends that must have left, as it overwrites what they read."""

    number: int
    leave: list[Operation]
    copies: list[Callable[[], object]]
    departures: list[Departure]
    arrivals: list[Arrival]
    updates: list[tuple[int, list[Operation], Callable[[], object]]]
    ahead: int


class Gloo:
    """The connections of one rank to all others. ``progress`` tells how far it has come, at most ``patience`` apart."""

    def __init__(self, store: dist.Store, rank: int, size: int, patience: timedelta, progress: Progress):
        self._progress, self._patience = progress, patience
        with progress.of():
            self._group = dist.ProcessGroupGloo(store, rank, size, patience)

    def load(self, program: Program, ranks: Mapping[str, int], hosts: Sequence[str]) -> Callable[[], Executed]:
        """What executes ``program``; ``ranks``: who plays which node; ``hosts``: by rank. It raises Closed."""
        rank, scratch = self._group.rank(), []
        return partial(self._execute, [_loaded(step, program, ranks, rank, hosts, scratch) for step in program.steps])

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
            # Asked for first: to ask is a message, too, and would have to wait behind what is sent to the same rank.
            asked = [self._asked(arrival) for arrival in step.arrivals[: step.ahead]]
            for sent, parts, rank, tag in step.departures:
                with progress.of(rank):
                    leaving.setdefault(sent, []).append((rank, self._group.send(parts, rank, tag)))
                ends[sent.index] = now()  # of leaving; when it has arrived, the other end knows
            for i, (index, _, rank, _, put) in enumerate(step.arrivals):
                if asked[i] is not None:
                    with progress.of(rank):
                        asked[i].wait(limit)
                for each in put:
                    each()
                if i + step.ahead < len(step.arrivals):
                    asked.append(self._asked(step.arrivals[i + step.ahead]))
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


def _loaded(
    step: Step, program: Program, ranks: Mapping[str, int], rank: int, hosts: Sequence[str], scratch: list[Tensor]
) -> GlooStep:
    def departed(operations: list[Operation]) -> list[Operation]:
        before = dict.fromkeys(earlier for done in operations for earlier in done.after)
        return [done for done in before if program.part(done.writes) is None]

    cut = _cut(program.plan.steps[step.number - 1], ranks, hosts)
    departures, coming = [], []
    for sent, source, target in program.bound(step.sends):
        index, begins, src = sent.index, sent.begins, ranks[sent.reads.node]
        if not (source if target is None else target).numel():
            coming.append([Piece(index, begins, None, None, src, 0)])  # nothing travels, and yet it has been sent
        elif target is None:
            to = ranks[sent.writes.node]
            departures += [Departure(sent, [part], to, tag) for tag, part in _segments(index, begins, source, cut)]
        else:
            there = _segments(index, begins, target, cut)
            here = [(0, None)] * len(there) if source is None else _segments(index, begins, source, cut)
            pairs = zip(there, here, strict=True)
            coming.append([Piece(index, begins, part, own, src, tag) for (tag, part), (_, own) in pairs])
    copies = [partial(spare.copy_, source) for _, source, spare in program.bound(step.kept)]
    changes = [
        (change.index, departed([change]), partial(program.update, change.act, gradient))
        for change, gradient, _ in program.bound(step.updates)
    ]
    rooms = Rooms(scratch, len(coming) + cut.ahead - 1)
    arrivals = _in_turn(coming, program, lambda piece: (rank - piece.rank) % len(hosts), rooms)
    return GlooStep(step.number, departed([*step.kept, *step.sends]), copies, departures, arrivals, changes, cut.ahead)


def _cut(step: Iterable[Send | Update], ranks: Mapping[str, int], hosts: Sequence[str]) -> Cut:
    """How the messages of a step are cut; all ranks see it alike."""
    pairs = {(ranks[send.src], ranks[send.dst]) for send in sends(step)}
    apart = {(src, dst) for src, dst in pairs if hosts[src] != hosts[dst]}
    both_ways = any((dst, src) in apart for src, dst in apart)
    several = all(len({*ends}) < len(apart) for ends in zip(*apart, strict=True))
    return CROWDED if apart and (both_ways or several) else PLAIN


def _in_turn(coming: list[list[Piece]], program: Program, far: Callable[[Piece], int], rooms: "Rooms") -> list[Arrival]:
    """What is asked for, in this order: a piece of every sender, then the next piece of each.

    Everybody asks the rank before it first, then the one before that (``far``), so that not all ask the same one. What
    is written to one place is written in the order of the plan nevertheless, when all of a turn is there; until then
    it has room of its own.
    """
    arrivals = []
    for turn in zip_longest(*coming):
        pieces = [piece for piece in turn if piece is not None]
        arrived = {}
        for piece in sorted(pieces, key=far):
            parts, room = [], piece.here
            if piece.part is not None and room is None:
                straight = piece.begins and piece.part.is_contiguous()
                room = piece.part if straight else rooms.room(len(arrivals), piece.part)
                parts = [room]
            arrivals.append(Arrival(piece.index, parts, piece.rank, piece.tag, []))
            arrived[piece.index] = room
        for piece in pieces:
            if (room := arrived[piece.index]) is not piece.part:
                arrivals[-1].put.append(partial(program.write, piece.begins, piece.part, room))
    return arrivals


class Rooms(NamedTuple):
    """Room for segments on their way: ``count`` of them are in use at once, the same ones in all steps."""

    scratch: list[Tensor]
    count: int

    def room(self, number: int, part: Tensor) -> Tensor:
        """Room for ``part``, the segment of this number."""
        number, scratch = number % self.count, self.scratch
        scratch += [part[:0]] * (number + 1 - len(scratch))
        if scratch[number].numel() < part.numel():
            scratch[number] = part.new_empty(part.numel())
        return scratch[number][: part.numel()]


def _segments(index: int, begins: bool, buffer: Tensor, cut: Cut) -> list[tuple[int, Tensor]]:
    """(tag, part) of each segment of a step's send number ``index``; both its ends cut alike."""
    length = max(1, (cut.copied if begins else cut.added) // buffer.element_size())
    first = index << 16 & 0x7FFFFFFF  # where tags come again, gloo keeps the order in which they are sent
    return [(first | i, part) for i, part in enumerate(buffer.split(length))]

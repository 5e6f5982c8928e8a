"""One rank's part of a program over gloo: sockets between processes, tensors in main memory.

:meth:`Gloo.load` prepares as much as possible before the run: on a small machine a step of small messages takes as
long as the Python code around it.
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
    """The sizes of segments, in bytes: of one that is ``added``, and of one that is ``copied`` straight to its place.

    ``ahead``: the number of segments a receiver requests before it has written the first.
    """

    added: int
    copied: int
    ahead: int


# Small enough to be added while in the cache; a copy takes few calls, and still shows a sign of life now and then.
PLAIN = Cut(added=1 << 20, copied=1 << 24, ahead=2)
# Between hosts, if two send to each other at once, or several to several: a request for a segment is a message, too,
# which waits behind the data being sent to the same rank, and gloo delays some of several senders.
CROWDED = Cut(added=1 << 16, copied=1 << 16, ahead=12)


class Departure(NamedTuple):
    """A segment that is sent to ``rank``; its ``tag`` is unique in its step."""

    send: Operation
    parts: list[Tensor]
    rank: int
    tag: int


class Arrival(NamedTuple):
    """A segment that arrives in ``parts``, and the ``writes`` to do then; none if it arrives in its place."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    parts: list[Tensor]
    rank: int
    tag: int
    writes: list[Callable[[], object]]


class Piece(NamedTuple):
    """A segment of a message for a node of this rank: the ``part`` to write, and the ``source`` if it is local."""

    index: int  # type: ignore[assignment]
    begins: bool
    part: Tensor | None
    source: Tensor | None
    rank: int
    tag: int


class GlooStep(NamedTuple):
    """One rank's part of a step; ``flush``: earlier sends that must be finished, because it overwrites their source."""

    number: int
    flush: list[Operation]
    copies: list[Callable[[], object]]
    departures: list[Departure]
    arrivals: list[Arrival]
    updates: list[tuple[int, list[Operation], Callable[[], object]]]
    ahead: int


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
HEADER = 8  # numbers: of a dtype, of dimensions, and their sizes


class Messages:
    """Single tensors between ranks: a receiver waits, a sender goes on."""

    def __init__(self, group: dist.ProcessGroupGloo, progress: Progress, patience: timedelta):
        self.rank, self._group, self._progress, self._patience = group.rank(), group, progress, patience
        self._leaving: list[tuple[int, dist.Work, torch.Tensor]] = []

    def at(self, step: int) -> None:
        """Note that a step begins: the sentence about a lost rank names it."""
        self._progress.at(step)

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Send a tensor, which must not change before :meth:`flush`; ``tag`` tells it from others to this rank."""
        with self._progress.of(rank):
            self._leaving.append((rank, self._group.send([tensor], rank, tag), tensor))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Wait until the tensor is full."""
        with self._progress.of(rank):
            self._group.recv([tensor], rank, tag).wait(self._patience)

    def announce(self, tensor: torch.Tensor, rank: int, tag: int) -> None:
        """Send the dtype and the shape of a tensor, for a receiver that does not know them."""
        header = torch.zeros(HEADER, dtype=torch.int64)
        header[: tensor.dim() + 2] = torch.tensor([DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape])
        self.send(header, rank, tag)

    def announced(self, rank: int, tag: int) -> tuple[torch.dtype, tuple[int, ...]]:
        """Wait for the dtype and the shape that :meth:`announce` sends."""
        header = torch.zeros(HEADER, dtype=torch.int64)
        self.receive(header, rank, tag)
        dtype, dimensions, *sizes = header.tolist()
        return DTYPES[dtype], tuple(sizes[:dimensions])

    def flush(self) -> None:
        """Wait until everything sent has left."""
        for rank, work, _ in self._leaving:
            with self._progress.of(rank):
                work.wait(self._patience)
        self._leaving.clear()


class Gloo:
    """The connections of one rank to all others; ``progress`` has its step, a wait takes at most ``patience``."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        patience: timedelta,
        progress: Progress,
        address: str | None = None,  # of this host, if gloo would not find it
    ):
        self._progress, self._patience = progress, patience
        options = patience
        with progress.of():
            if address is not None:
                options = dist.ProcessGroupGloo._Options()
                options._timeout, options._threads = patience, 2
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            self._group = dist.ProcessGroupGloo(store, rank, size, options)

    def load(self, program: Program, ranks: Mapping[str, int], hosts: Sequence[str]) -> Callable[[], Executed]:
        """Return a function that executes ``program`` or raises Closed; ``ranks``: node → rank; ``hosts``: by rank."""
        rank = self._group.rank()
        scratch: list[Tensor] = []
        return partial(self._execute, [_loaded(step, program, ranks, rank, hosts, scratch) for step in program.steps])

    def _execute(self, steps: list[GlooStep]) -> Executed:
        now, progress, limit = time.perf_counter, self._progress, self._patience
        timed, begun = [], now()
        leaving: dict[Operation, list[tuple[int, dist.Work]]] = {}  # sends under way

        def flush(send: Operation) -> None:
            for rank, work in leaving.pop(send, ()):
                with progress.of(rank):
                    work.wait(limit)

        for step in steps:
            progress.at(step.number)
            started, ends = now(), {}
            for send in step.flush:
                flush(send)
            for copy in step.copies:
                copy()
            # Request first: a request is a message, too, and would wait behind the data sent to the same rank.
            requests = [self._request(arrival) for arrival in step.arrivals[: step.ahead]]
            for send, parts, rank, tag in step.departures:
                with progress.of(rank):
                    leaving.setdefault(send, []).append((rank, self._group.send(parts, rank, tag)))
                ends[send.index] = now()  # of sending; the receiver knows when it has arrived
            for i, (index, _, rank, _, writes) in enumerate(step.arrivals):
                if (request := requests[i]) is not None:
                    with progress.of(rank):
                        request.wait(limit)
                for write in writes:
                    write()
                if i + step.ahead < len(step.arrivals):
                    requests.append(self._request(step.arrivals[i + step.ahead]))
                ends[index] = now()
            timed += [Timed(step.number, index, started, end) for index, end in ends.items()]
            for index, read_before, update in step.updates:
                for send in read_before:
                    flush(send)
                started = now()
                update()
                timed.append(Timed(step.number, index, started, now()))
        for send in [*leaving]:
            flush(send)
        return Executed(begun, timed)

    def _request(self, arrival: Arrival) -> dist.Work | None:
        if not arrival.parts:
            return None
        with self._progress.of(arrival.rank):
            return self._group.recv(arrival.parts, arrival.rank, arrival.tag)

    def messages(self) -> "Messages":
        """Return what sends and receives single tensors."""
        return Messages(self._group, self._progress, self._patience)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Add up ``tensor`` over all ranks, in place."""
        with self._progress.of():
            self._group.allreduce([tensor]).wait(self._patience)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        with self._progress.of():
            self._group.barrier().wait(self._patience)

    def abort(self) -> None:
        """Close all connections of this rank, so that no other rank waits for it, and no thread of it for others."""
        for rank in set(range(self._group.size())) - {self._group.rank()}:
            with suppress(RuntimeError):  # gloo has no call for this, but a wait that times out closes all connections
                self._group.recv([torch.empty(1)], rank, 0x7FFFFFFF).wait(timedelta(milliseconds=1))


def _loaded(
    step: Step, program: Program, ranks: Mapping[str, int], rank: int, hosts: Sequence[str], scratch: list[Tensor]
) -> GlooStep:
    def sent_before(operations: list[Operation]) -> list[Operation]:
        before = dict.fromkeys(earlier for operation in operations for earlier in operation.after)
        return [earlier for earlier in before if program.part(earlier.writes) is None]

    cut = _cut(program.plan.steps[step.number - 1], ranks, hosts)
    departures, messages = [], []
    for send, source, target in program.bound(step.sends):
        index, begins, src = send.index, send.begins, ranks[send.reads.node]
        if not (source if target is None else target).numel():
            messages.append([Piece(index, begins, None, None, src, 0)])  # no bytes travel, but the send is timed
        elif target is None:
            to = ranks[send.writes.node]
            departures += [Departure(send, [part], to, tag) for tag, part in _segments(index, begins, source, cut)]
        else:
            targets = _segments(index, begins, target, cut)
            sources = [(0, None)] * len(targets) if source is None else _segments(index, begins, source, cut)
            pairs = zip(targets, sources, strict=True)
            messages.append([Piece(index, begins, part, local, src, tag) for (tag, part), (_, local) in pairs])
    copies: list[Callable[[], object]] = [
        partial(spare.copy_, source) for _, source, spare in program.bound(step.copies)
    ]
    changes: list[tuple[int, list[Operation], Callable[[], object]]] = [
        (change.index, sent_before([change]), partial(program.update, change.act, gradient))
        for change, gradient, _ in program.bound(step.updates)
    ]
    rooms = Rooms(scratch, len(messages) + cut.ahead - 1)
    arrivals = _in_turn(messages, program, lambda piece: (rank - piece.rank) % len(hosts), rooms)
    flush = sent_before([*step.copies, *step.sends])
    return GlooStep(step.number, flush, copies, departures, arrivals, changes, cut.ahead)


def _cut(step: Iterable[Send | Update], ranks: Mapping[str, int], hosts: Sequence[str]) -> Cut:
    """Choose the sizes of the segments of a step, alike on all ranks."""
    pairs = {(ranks[send.src], ranks[send.dst]) for send in sends(step)}
    apart = {(src, dst) for src, dst in pairs if hosts[src] != hosts[dst]}
    both_ways = any((dst, src) in apart for src, dst in apart)
    several = all(len({*ends}) < len(apart) for ends in zip(*apart, strict=True))
    return CROWDED if apart and (both_ways or several) else PLAIN


def _in_turn(
    messages: list[list[Piece]], program: Program, distance: Callable[[Piece], int], rooms: "Rooms"
) -> list[Arrival]:
    """Return the arrivals in the order of their requests: a piece of every message, then the next piece of each.

    A rank requests from the rank before it first, then from the one before that (``distance``), so that not all
    request from the same one. The pieces of a turn are written in the order of the plan, when all of them are there;
    until then they wait in ``rooms``.
    """
    arrivals: list[Arrival] = []
    for turn in zip_longest(*messages):
        pieces = [piece for piece in turn if piece is not None]
        arrived = {}
        for piece in sorted(pieces, key=distance):
            parts, room = [], piece.source
            if piece.part is not None and room is None:
                straight = piece.begins and piece.part.is_contiguous()
                room = piece.part if straight else rooms.room(len(arrivals), piece.part)
                parts = [room]
            arrivals.append(Arrival(piece.index, parts, piece.rank, piece.tag, []))
            arrived[piece.index] = room
        for piece in pieces:
            if (room := arrived[piece.index]) is not piece.part:
                arrivals[-1].writes.append(partial(program.write, piece.begins, piece.part, room))
    return arrivals


class Rooms(NamedTuple):
    """Buffers for arriving segments: ``count`` of them are in use at once, the same ones in all steps."""

    scratch: list[Tensor]
    count: int  # type: ignore[assignment]  # a tuple has a method of this name

    def room(self, number: int, part: Tensor) -> Tensor:
        """Return a buffer for ``part``, the segment of this number."""
        number, scratch = number % self.count, self.scratch
        scratch += [part[:0]] * (number + 1 - len(scratch))
        if scratch[number].numel() < part.numel():
            scratch[number] = part.new_empty(part.numel())
        return scratch[number][: part.numel()]


def _segments(index: int, begins: bool, buffer: Tensor, cut: Cut) -> list[tuple[int, Tensor]]:
    """Return (tag, part) for each segment of the send with this index; sender and receiver cut alike."""
    length = max(1, (cut.copied if begins else cut.added) // buffer.element_size())
    first = index << 16 & 0x7FFFFFFF  # if tags repeat, gloo keeps the order in which they are sent
    return [(first | i, part) for i, part in enumerate(buffer.split(length))]

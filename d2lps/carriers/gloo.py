"""One rank's part of a plan over gloo: sockets between processes, tensors in main memory.

Everything that can be known before is worked out before (`compiled`): on a small machine a step of small
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

from d2lps.carriers.execute import Message, Timed, Work
from d2lps.plan.acts import sends, updates

SEGMENT = 1 << 20  # bytes that travel at once: added while they are still in the cache, and the next ones on their way
STRETCH = 1 << 24  # of what is only copied, straight to its place: few calls, and yet a sign of life on slow links
AHEAD = 2  # segments that a receiver asks for before it adds the first


class Closed(ConnectionError):
    """A connection broke: that to one of ``ranks``, if it is known."""

    def __init__(self, ranks: tuple[int, ...], why: str):
        super().__init__(why)
        self.ranks = ranks


Place = tuple[str, str]  # (node, key)


class Departure(NamedTuple):
    """A segment that leaves ``place`` (None: a copy of its own): ``tag`` tells it from the others of its step."""

    index: int
    parts: list[Tensor]
    rank: int
    tag: int
    place: Place | None


class Arrival(NamedTuple):
    """A segment that arrives in ``parts`` and is then ``put`` where it belongs; None if it already is there."""

    index: int
    parts: list[Tensor]
    rank: int
    tag: int
    put: Callable[[], object] | None


class Step(NamedTuple):
    """What one rank does in a step.

    ``written``: what it overwrites, and may still be on its way out; ``before``: copies of what it sends and
    overwrites; ``after``: its updates.
    """

    number: int
    written: set[Place]
    before: list[Callable[[], object]]
    departures: list[Departure]
    arrivals: list[Arrival]
    after: list[tuple[int, Place, Callable[[], object]]]


class Progress:
    """How far a rank has come, for the thread that watches over it; ``with progress.of(ranks):`` is a wait for them."""

    step: int | None = None
    waiting: tuple[int, ...] = ()
    since = 0.0

    def at(self, step: int | None) -> None:
        """A step begins, or something that is no step of a plan."""
        self.step, self.waiting, self.since = step, (), time.monotonic()

    def of(self, *ranks: int) -> "Progress":
        self.waiting = ranks
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, _, error: BaseException | None, __) -> None:
        if isinstance(error, RuntimeError):
            raise Closed(self.waiting, str(error)) from error
        self.since = time.monotonic()


def compiled(work: Work, ranks: Mapping[str, int]) -> list[Step]:
    """The steps of ``work``, where ``ranks`` says who plays which node."""
    length = max(1, SEGMENT // work.like.element_size())
    scratch = [torch.empty(length, dtype=work.like.dtype) for _ in range(AHEAD)]
    return [_step(number, messages, work, ranks, scratch) for number, messages in enumerate(work.messages, 1)]


def _step(number: int, messages: list[Message], work: Work, ranks: Mapping[str, int], scratch: list[Tensor]) -> Step:
    written = {(m.send.dst, m.send.key) for m in messages if m.target is not None}
    spares: dict[Place, Tensor] = {}
    before, departures, arrivals = [], [], []
    for m in messages:
        source, place = m.source, (m.send.src, m.send.key)
        if source is not None and (place in written or not source.is_contiguous()):
            if place not in spares:
                spares[place] = torch.empty_like(source, memory_format=torch.contiguous_format)
                before.append(partial(spares[place].copy_, source))
            source, place = spares[place], None
        if not (source if m.target is None else m.target).numel():
            arrivals.append(Arrival(m.index, [], -1, 0, None))  # nothing travels, and yet it has been sent
        elif m.target is None:
            to = ranks[m.send.dst]
            departures += [Departure(m.index, [part], to, tag, place) for tag, part in _cut(m, source)]
        elif source is not None:
            arrivals.append(Arrival(m.index, [], -1, 0, partial(m.write, source)))  # both ends are played here
        else:
            for tag, part in _cut(m, m.target):
                if m.begins and part.is_contiguous():
                    arrivals.append(Arrival(m.index, [part], ranks[m.send.src], tag, None))
                    continue
                room = scratch[len(arrivals) % AHEAD]
                buffer = room[: part.numel()] if part.numel() <= room.numel() else room.new_empty(part.numel())
                put = partial(m.put, part, buffer)
                arrivals.append(Arrival(m.index, [buffer], ranks[m.send.src], tag, put))
    step = work.plan.steps[number - 1]
    after = [
        (index, act[:2], partial(work.update, act))
        for index, act in enumerate(updates(step), len(sends(step)))
        if act.node in work.tensors
    ]
    return Step(number, written, before, departures, arrivals, after)


def _cut(message: Message, buffer: Tensor) -> list[tuple[int, Tensor]]:
    """(tag, part) of each segment; both its ends cut alike."""
    length = max(1, (STRETCH if message.begins else SEGMENT) // buffer.element_size())
    first = message.index << 16 & 0x7FFFFFFF  # where tags come again, gloo keeps the order in which they are sent
    return [(first | i, part) for i, part in enumerate(buffer.split(length))]


def carried(program: list[Step], group: dist.ProcessGroup, progress: Progress, patience: float) -> list[Timed]:
    """Do it once. Raises Closed when a connection breaks; how far it has come stands in ``progress``."""
    now, limit = time.perf_counter, timedelta(seconds=patience)
    timed, begin = [], now()
    leaving: dict[Place | None, list[tuple[int, dist.Work]]] = {}  # what was sent, until it is overwritten

    def left(place: Place | None) -> None:
        for rank, work in leaving.pop(place, ()):
            with progress.of(rank):
                work.wait(limit)

    for step in program:
        progress.at(step.number)
        started, ends = now() - begin, {}
        for place in step.written:
            left(place)
        for copy in step.before:
            copy()
        for index, parts, rank, tag, place in step.departures:
            with progress.of(rank):
                leaving.setdefault(place, []).append((rank, group.send(parts, rank, tag)))
            ends[index] = now() - begin  # of leaving; when it has arrived, the other end knows
        asked = [_asked(group, progress, arrival) for arrival in step.arrivals[:AHEAD]]
        for i, (index, _, rank, _, put) in enumerate(step.arrivals):
            if asked[i] is not None:
                with progress.of(rank):
                    asked[i].wait(limit)
            if put is not None:
                put()
            if i + AHEAD < len(step.arrivals):
                asked.append(_asked(group, progress, step.arrivals[i + AHEAD]))
            ends[index] = now() - begin
        timed += [Timed(step.number, index, started, end) for index, end in ends.items()]
        for index, place, update in step.after:
            left(place)
            started = now() - begin
            update()
            timed.append(Timed(step.number, index, started, now() - begin))
    for place in [*leaving]:
        left(place)
    return timed


def _asked(group: dist.ProcessGroup, progress: Progress, arrival: Arrival) -> dist.Work | None:
    if not arrival.parts:
        return None
    with progress.of(arrival.rank):
        return group.recv(arrival.parts, arrival.rank, arrival.tag)


def met(group: dist.ProcessGroup, progress: Progress, patience: float) -> None:
    """Wait until all ranks are here."""
    with progress.of():
        group.barrier().wait(timedelta(seconds=patience))


def abort(group: dist.ProcessGroup) -> None:
    """Close all connections of this rank, so that nobody waits for it, nor a thread of its own for others."""
    for rank in set(range(group.size())) - {group.rank()}:
        with suppress(RuntimeError):  # gloo has no other way to say so: a wait that ends too early closes everything
            group.recv([torch.empty(1)], rank, 0x7FFFFFFF).wait(timedelta(milliseconds=1))

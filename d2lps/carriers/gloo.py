"""One rank's part of a plan over gloo: sockets between processes, tensors in main memory.

Everything that can be known before is worked out before (`compiled`): on a small machine a step of small
messages takes as long as the Python around it.
"""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps.execute import Message, Timed, Work
from d2lps.steps import sends, updates

SEGMENT = 1 << 20  # bytes that travel at once: added while they are still in the cache, and the next ones on their way
AHEAD = 2  # segments that a receiver asks for before it adds the first


class Closed(ConnectionError):
    """The connection to ``rank`` broke."""

    def __init__(self, rank: int, why: str):
        super().__init__(why)
        self.rank = rank


class Departure(NamedTuple):
    """A segment that leaves: ``tag`` tells it from the others of its step."""

    index: int
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


class Step(NamedTuple):
    """What one rank does in a step. ``before``: copies of what this very step overwrites; ``after``: the updates."""

    number: int
    before: list[Callable[[], object]]
    departures: list[Departure]
    arrivals: list[Arrival]
    after: list[tuple[int, Callable[[], object]]]


class Progress:
    """How far a rank has come, for the thread that watches over it."""

    step: int | None = None
    waiting: tuple[int, ...] = ()
    since = 0.0


def compiled(work: Work, ranks: Mapping[str, int]) -> list[Step]:
    """The steps of ``work``, where ``ranks`` says who plays which node."""
    length = max(1, SEGMENT // work.like.element_size())
    scratch = [torch.empty(length, dtype=work.like.dtype) for _ in range(AHEAD)]
    return [_step(number, messages, work, ranks, length, scratch) for number, messages in enumerate(work.messages, 1)]


def _step(number: int, messages: list[Message], work: Work, ranks: Mapping[str, int], length: int, scratch) -> Step:
    written = {(m.send.dst, m.send.key) for m in messages if m.target is not None}
    spares: dict[tuple[str, str], Tensor] = {}
    before, departures, arrivals = [], [], []
    for m in messages:
        source, place = m.source, (m.send.src, m.send.key)
        if source is not None and (place in written or not source.is_contiguous()):
            if place not in spares:
                spares[place] = torch.empty_like(source, memory_format=torch.contiguous_format)
                before.append(partial(spares[place].copy_, source))
            source = spares[place]
        if m.target is None:
            departures += [Departure(m.index, [part], ranks[m.send.dst], tag) for tag, part in _cut(m, source, length)]
        elif source is not None:
            arrivals.append(Arrival(m.index, [], -1, 0, partial(m.write, source)))  # both ends are played here
        else:
            for tag, part in _cut(m, m.target, length):
                if m.begins and part.is_contiguous():
                    arrivals.append(Arrival(m.index, [part], ranks[m.send.src], tag, None))
                    continue
                buffer = scratch[len(arrivals) % AHEAD][: part.numel()]
                put = partial(m.put, part, buffer)
                arrivals.append(Arrival(m.index, [buffer], ranks[m.send.src], tag, put))
    step = work.plan.steps[number - 1]
    after = [(index, partial(work.update, act)) for index, act in enumerate(updates(step), len(sends(step)))
             if act.node in work.tensors]  # fmt: skip
    return Step(number, before, departures, arrivals, after)


def _cut(message: Message, buffer: Tensor, length: int) -> list[tuple[int, Tensor]]:
    """(tag, part) of each segment; a tensor without elements does not travel."""
    return [(message.index << 16 | i, part) for i, part in enumerate(buffer.split(length))] if buffer.numel() else []


def carried(program: list[Step], group: dist.ProcessGroup, progress: Progress, patience: float) -> list[Timed]:
    """Do it once. Raises Closed when a connection breaks; how far it has come stands in ``progress``."""
    now, limit = time.perf_counter, timedelta(seconds=patience)
    timed, begin = [], now()
    try:
        for step in program:
            progress.step, progress.since = step.number, time.monotonic()
            started, ends = now() - begin, {}
            for copy in step.before:
                copy()
            sent = []
            for index, parts, rank, tag in step.departures:
                progress.waiting = (rank,)
                sent.append((index, rank, group.send(parts, rank, tag)))
            asked = [_asked(group, arrival) for arrival in step.arrivals[:AHEAD]]
            for i, (index, _, rank, _, put) in enumerate(step.arrivals):
                if asked[i] is not None:
                    progress.waiting = (rank,)
                    asked[i].wait(limit)
                    progress.since = time.monotonic()
                if put is not None:
                    put()
                if i + AHEAD < len(step.arrivals):
                    asked.append(_asked(group, step.arrivals[i + AHEAD]))
                ends[index] = now() - begin
            for index, rank, work in sent:
                progress.waiting = (rank,)
                work.wait(limit)
                progress.since = time.monotonic()
                ends[index] = now() - begin
            timed += [Timed(step.number, index, started, end) for index, end in ends.items()]
            for index, update in step.after:
                started = now() - begin
                update()
                timed.append(Timed(step.number, index, started, now() - begin))
    except RuntimeError as error:
        raise Closed(progress.waiting[0] if progress.waiting else -1, str(error)) from error
    return timed


def _asked(group: dist.ProcessGroup, arrival: Arrival) -> dist.Work | None:
    return group.recv(arrival.parts, arrival.rank, arrival.tag) if arrival.parts else None

"""Who pushes when, and with how old weights: the rules by which workers wait for each other, in virtual time.

Nothing is computed here. A :class:`Schedule` says in which order gradients came to a server, and which weights each of
them was computed with; :func:`d2lps.train.by_schedule.fit` then computes them.

>>> def seconds(random, rank):
...     return 3.0 if rank == 2 else 1.0
>>> everybody = synchronous(workers=3, steps=4, seconds=seconds)
>>> two_of_three = synchronous(workers=3, steps=4, seconds=seconds, backup=1)
>>> nobody = asynchronous(workers=3, steps=12, seconds=seconds)
>>> [one.steps[-1].seconds for one in (everybody, two_of_three, nobody)]
[12.0, 4.0, 6.0]
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import NamedTuple

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.plan import Plan
from d2lps.simulate.events import Events
from d2lps.topology import Link, Topology
from d2lps.trace import Event, Trace
from d2lps.units import Bandwidth

Seconds = Callable[[Random, int], float]


class ScheduleError(Brief, ValueError):
    """A schedule that cannot be."""


class Push(NamedTuple):
    """A gradient that came to the server.

    Parameters
    ----------
    rank : int
        Whose it is.
    number : int
        For which round it is, from 1; where there are no rounds, the how many-th of this worker.
    read : int
        After how many steps of the server its weights were read.
    start, end : float
        Virtual seconds: when they were read, and when the gradient arrived.
    """

    rank: int
    number: int
    read: int
    start: float
    end: float


class Step(NamedTuple):
    """A step of the server: an update of the weights.

    Parameters
    ----------
    seconds : float
        Virtual seconds since the beginning.
    pushes : tuple of Push
        The gradients whose mean it takes.
    """

    seconds: float
    pushes: tuple[Push, ...]


@dataclass(frozen=True)
class Schedule:
    """What happened at a server.

    Parameters
    ----------
    workers : int
        How many there are.
    steps : tuple of Step
        In order of time.
    dropped : tuple of Push
        What came too late, and was thrown away.
    idle : float
        The part of their time, from 0 to 1, that workers waited for one another.
    travel : float
        Seconds for which a message was under way.
    """

    workers: int
    steps: tuple[Step, ...]
    dropped: tuple[Push, ...] = ()
    idle: float = 0.0
    travel: float = 0.0

    @property
    def staleness(self) -> list[int]:
        """Of every gradient that counts: how many steps the server had made since its weights were read."""
        return [i - push.read for i, step in enumerate(self.steps) for push in step.pushes]

    def trace(self, nbytes: int = 8_000_000) -> Trace:
        """What :func:`d2lps.watch` plays: a key is a worker's push of that number, as where a store is recorded.

        A gradient that is thrown away carries nobody's colour.

        Parameters
        ----------
        nbytes : int
            Of a gradient, and of the weights.

        Returns
        -------
        Trace
            Of nodes ``w0``, ``w1``, … and ``server``.

        Raises
        ------
        ScheduleError
            If messages take no time: nothing could be seen of them.
        """
        if not self.travel > 0:
            raise ScheduleError(text("schedule.travel"))
        names = [f"w{rank}" for rank in range(self.workers)]
        pushes = sorted([*self.dropped, *(push for step in self.steps for push in step.pushes)], key=lambda p: p.end)
        keys = [str(number) for number in range(1, max(push.number for push in pushes) + 1)]
        events = [self._gradient(push, nbytes) for push in pushes]
        events += [self._update(step, nbytes) for step in self.steps]
        events += self._weights(pushes, nbytes)
        ends = [pair for name in names for pair in ((name, "server"), ("server", name))]
        links = [Link(*pair, Bandwidth(nbytes / self.travel)) for pair in ends]
        network = Topology("network", dict.fromkeys([*names, "server"], "machine"), links)
        share = {key: Fraction(1, len(keys)) for key in keys}
        plan = Plan([*names, "server"], share, [[] for _ in keys], holds=names, wants=[])
        return Trace("shared", plan, network, nbytes * len(keys), tuple(sorted(events, key=lambda e: e.start)))

    def _gradient(self, push: Push, nbytes: float) -> Event:
        name, key = f"w{push.rank}", str(push.number)
        carries = () if push in self.dropped else (name,)
        return Event("send", push.number, push.end - self.travel, push.end, name, "server", key, "add", nbytes, carries)

    def _update(self, step: Step, nbytes: float) -> Event:
        number = max(push.number for push in step.pushes)
        return Event("update", number, step.seconds, step.seconds, "server", "server", str(number), "sgd", nbytes)

    def _weights(self, pushes: list[Push], nbytes: float) -> list[Event]:
        """What each worker reads: of every number that brings something new, whose gradients are in the weights."""
        events, had = [], [0] * self.workers
        for push in sorted(pushes, key=lambda push: push.start):
            inside: dict[int, set[int]] = {}
            news = set()
            for i, step in enumerate(self.steps[: push.read]):
                for one in step.pushes:
                    inside.setdefault(one.number, set()).add(one.rank)
                    if i >= had[push.rank]:
                        news.add(one.number)
            had[push.rank] = push.read
            ends = push.start, push.start + self.travel, "server", f"w{push.rank}"
            for number in sorted(news):
                carries = tuple(f"w{rank}" for rank in sorted(inside[number]))
                events.append(Event("send", number, *ends, str(number), "copy", nbytes / len(news), carries))
        return events


class _Server:
    """What both rules have in common: workers read, compute, and push."""

    def __init__(self, workers: int, steps: int, seconds: Seconds, travel: float, seed: int):
        self.world, self.seconds, self.travel, self.wanted = Events(seed), seconds, travel, steps
        self.steps, self.dropped = [], []
        self.clock, self.since, self.waited = [0] * workers, {}, 0.0

    def read(self, rank: int) -> None:
        """A worker gets the weights, and begins to compute."""
        now = self.world.now
        self.waited += now - self.since.pop(rank, now)
        takes = 2 * self.travel + self.seconds(self.world.random, rank)
        push = Push(rank, self.number(rank), len(self.steps), now, now + takes)
        self.world.after(takes, self.arrives, push)

    def arrives(self, push: Push) -> None:
        """Its gradient is there; once there are enough steps, nothing happens any more."""
        if len(self.steps) < self.wanted:
            self.since[push.rank] = self.world.now
            self.push(push)

    def push(self, push: Push) -> None:
        raise NotImplementedError

    def number(self, rank: int) -> int:
        raise NotImplementedError

    def step(self, *pushes: Push) -> None:
        self.steps.append(Step(self.world.now, pushes))

    def schedule(self) -> Schedule:
        workers = len(self.clock)
        for rank in range(workers):
            self.read(rank)
        self.world.run()
        end = self.steps[-1].seconds if self.steps else 0.0
        waited = self.waited + sum(end - since for since in self.since.values())
        idle = waited / (workers * end) if end else 0.0
        return Schedule(workers, tuple(self.steps), tuple(self.dropped), idle, self.travel)


class _Rounds(_Server):
    """A step per round, as soon as enough gradients of it are there."""

    def __init__(self, enough: int, *more: object):
        super().__init__(*more)
        self.enough, self.open = enough, []

    def number(self, rank: int) -> int:
        return len(self.steps) + 1

    def push(self, push: Push) -> None:
        if push.read < len(self.steps):
            self.dropped.append(push)
            self.read(push.rank)
            return
        self.open.append(push)
        if len(self.open) == self.enough:
            self.step(*self.open)
            done, self.open = self.open, []
            for one in done:
                self.read(one.rank)


class _Bounded(_Server):
    """A step per push; a worker reads again as soon as the slowest is not too far behind it."""

    def __init__(self, staleness: float, *more: object):
        super().__init__(*more)
        self.staleness = staleness

    def number(self, rank: int) -> int:
        return self.clock[rank] + 1

    def push(self, push: Push) -> None:
        self.step(push)
        self.clock[push.rank] += 1
        for rank in sorted(self.since, key=self.since.get):
            if self.clock[rank] - min(self.clock) <= self.staleness:
                self.read(rank)


def synchronous(
    workers: int, steps: int, seconds: Seconds, backup: int = 0, travel: float = 0.0, seed: int = 0
) -> Schedule:
    """Rounds: the server makes a step when all gradients of the round have come, or all but ``backup``.

    Who comes too late has computed for nothing; it reads the new weights and takes part in the round that is open.

    Parameters
    ----------
    workers : int
        How many compute, with those that are not waited for.
    steps : int
        How many steps the server makes.
    seconds : callable
        ``seconds(random, rank)``: how long a worker computes; called once per gradient.
    backup : int
        For how many of a round the server does not wait: less than ``workers``.
    travel : float
        Seconds for which a message is under way, each way.
    seed : int
        Of what ``seconds`` draws from.

    Returns
    -------
    Schedule
        The same for the same seed.

    Raises
    ------
    ScheduleError
        For counts that cannot be.
    """
    _require(workers, steps)
    if not 0 <= backup < workers:
        raise ScheduleError(text("schedule.backup", backup=backup, workers=workers))
    return _Rounds(workers - backup, workers, steps, seconds, travel, seed).schedule()


def asynchronous(
    workers: int, steps: int, seconds: Seconds, staleness: float = math.inf, travel: float = 0.0, seed: int = 0
) -> Schedule:
    """Every push is a step; a worker that is more than ``staleness`` pushes ahead of the slowest waits.

    Parameters
    ----------
    workers : int
        How many compute.
    steps : int
        How many steps the server makes, all workers together.
    seconds : callable
        ``seconds(random, rank)``: how long a worker computes; called once per gradient.
    staleness : float
        0 or more; infinity where nobody ever waits.
    travel : float
        Seconds for which a message is under way, each way.
    seed : int
        Of what ``seconds`` draws from.

    Returns
    -------
    Schedule
        The same for the same seed.

    Raises
    ------
    ScheduleError
        For counts that cannot be.
    """
    _require(workers, steps)
    if not staleness >= 0:
        raise ScheduleError(text("schedule.staleness", staleness=staleness))
    return _Bounded(staleness, workers, steps, seconds, travel, seed).schedule()


def _require(workers: int, steps: int) -> None:
    if workers < 1 or steps < 1:
        raise ScheduleError(text("schedule.counts", workers=workers, steps=steps))

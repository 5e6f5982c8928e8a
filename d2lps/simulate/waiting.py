"""The rules by which workers wait for each other, in virtual time: the order of their pushes, the age of their weights.

No gradient is computed here. A :class:`History` has the order in which gradients arrive at a server, and the weights
with which each is computed; :func:`d2lps.train.by_history.fit` then computes them.

>>> def seconds(random, rank):
...     return 3.0 if rank == 2 else 1.0
>>> all_three = synchronous(workers=3, steps=4, seconds=seconds)
>>> two_of_three = synchronous(workers=3, steps=4, seconds=seconds, backup=1)
>>> no_waiting = asynchronous(workers=3, steps=12, seconds=seconds)
>>> [history.steps[-1].seconds for history in (all_three, two_of_three, no_waiting)]
[12.0, 4.0, 6.0]
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.plan import Plan
from d2lps.schedule import Schedule, Task, Value
from d2lps.simulate.events import Events
from d2lps.topology import Link, Topology
from d2lps.trace import Event, Trace
from d2lps.units import Bandwidth

Seconds = Callable[[Random, int], float]


class HistoryError(Brief, ValueError):
    """A simulation of workers with impossible numbers."""


class Push(NamedTuple):
    """A gradient that arrived at the server.

    Args:
        rank: The worker that computed it.
        number: The round for which it is, from 1; without rounds, the number of the push of this worker.
        read: The number of steps that the server had made when the worker read its weights.
        start, end: Virtual seconds at which the weights were read and the gradient arrived.
    """

    rank: int
    number: int
    read: int
    start: float
    end: float


class Step(NamedTuple):
    """A step of the server: an update of the weights.

    Args:
        seconds: Virtual seconds since the beginning.
        pushes: The gradients whose mean it takes.
    """

    seconds: float
    pushes: tuple[Push, ...]


@dataclass(frozen=True)
class History:
    """The steps of a server, with the pushes that each used.

    Args:
        workers: The number of workers.
        steps: The steps in order of time.
        dropped: Pushes that came too late and were thrown away.
        idle: The fraction of their time, from 0 to 1, that workers waited for one another.
        travel: Seconds for which a message was under way.
        unfinished: Gradients that were still under way at the last step; each ends at the second of its own arrival.
    """

    workers: int
    steps: tuple[Step, ...]
    dropped: tuple[Push, ...] = ()
    idle: float = 0.0
    travel: float = 0.0
    unfinished: tuple[Push, ...] = ()

    @property
    def staleness(self) -> list[int]:
        """The number of server steps between reading and pushing, for every gradient that was used."""
        return [i - push.read for i, step in enumerate(self.steps) for push in step.pushes]

    def trace(self, nbytes: int = 8_000_000) -> Trace:
        """Return a trace for :func:`d2lps.watch`; its keys are the numbers of pushes, as in a recorded store.

        A gradient that is thrown away carries no worker's color.

        Args:
            nbytes: The size in bytes of a gradient, and of the weights.

        Returns:
            A trace of the nodes ``w0``, ``w1``, … and ``server``.

        Raises:
            HistoryError: If messages take no time and so would be invisible.
        """
        if not self.travel > 0:
            raise HistoryError(text("history.travel"))
        names, pushes = self._names, self._pushes
        keys = [str(number) for number in range(1, max(push.number for push in pushes) + 1)]
        events = [self._gradient(push, nbytes) for push in pushes]
        events += [self._update(step, nbytes) for step in self.steps]
        events += self._weights(pushes, nbytes)
        network = self._network(Bandwidth(nbytes / self.travel))
        share = {key: Fraction(1, len(keys)) for key in keys}
        plan = Plan([*names, "server"], share, [[] for _ in keys], holds=names, wants=[])
        return Trace("shared", plan, network, nbytes * len(keys), tuple(sorted(events, key=lambda e: e.start)))

    def lanes(self, nbytes: int = 8_000_000) -> Trace:
        """Return a trace of what the workers compute, for :func:`d2lps.watch`: between its tasks a worker waits.

        The task ``G`` is a gradient: it is computed from the arrival of the weights on; the push follows. The last ones
        end with the last step.

        Args:
            nbytes: The size in bytes of the weights that each worker keeps.

        Returns:
            A trace of a schedule with the nodes ``w0``, ``w1``, …

        Example:
            >>> history = synchronous(workers=2, steps=3, seconds=lambda random, rank: 1.0 + rank)
            >>> f"{history.lanes().bubble():.0%} {history.idle:.0%}"
            '25% 25%'
        """
        pushes, last = [*self._pushes, *self.unfinished], self.steps[-1].seconds
        spans = [(push.start + self.travel, min(push.end - self.travel, last)) for push in pushes]
        begun = [(push, *span) for push, span in zip(pushes, spans, strict=True) if span[0] < span[1]]
        tasks = [Task(f"w{push.rank}", "G", "", push.number, ("w",)) for push, *_ in begun]
        schedule = Schedule(self._names, {"w": Value(nbytes)}, tasks, [(name, "w") for name in self._names])
        events = [
            Event("task", i, start, end, task.node, task.node, task.label, task.name, 0)
            for i, (task, (_, start, end)) in enumerate(zip(tasks, begun, strict=True), 1)
        ]
        network = self._network(Bandwidth("inf"))
        return Trace("shared", schedule, network, 0, tuple(sorted(events, key=lambda event: event.start)))

    def _network(self, bandwidth: Bandwidth) -> Topology:
        ends = [pair for name in self._names for pair in ((name, "server"), ("server", name))]
        kinds = dict.fromkeys([*self._names, "server"], "machine")
        return Topology("network", kinds, [Link(*pair, bandwidth) for pair in ends])

    @property
    def _names(self) -> list[str]:
        return [f"w{rank}" for rank in range(self.workers)]

    @property
    def _pushes(self) -> list[Push]:
        """All pushes that arrived, in the order of their arrival."""
        return sorted([*self.dropped, *(push for step in self.steps for push in step.pushes)], key=lambda p: p.end)

    def _gradient(self, push: Push, nbytes: float) -> Event:
        name, key = f"w{push.rank}", str(push.number)
        carries = () if push in self.dropped else (name,)
        return Event("send", push.number, push.end - self.travel, push.end, name, "server", key, "add", nbytes, carries)

    def _update(self, step: Step, nbytes: float) -> Event:
        number = max(push.number for push in step.pushes)
        return Event("update", number, step.seconds, step.seconds, "server", "server", str(number), "sgd", nbytes)

    def _weights(self, pushes: list[Push], nbytes: float) -> list[Event]:
        """Return the messages in which workers read weights: one per number with gradients that are new to the worker.

        Each carries all workers whose gradients of that number are in the weights.
        """
        events, seen = [], [0] * self.workers  # seen: the number of steps whose pushes a worker has read
        for push in sorted(pushes, key=lambda push: push.start):
            ranks: dict[int, set[int]] = {}
            fresh = set()
            for i, step in enumerate(self.steps[: push.read]):
                for merged in step.pushes:
                    ranks.setdefault(merged.number, set()).add(merged.rank)
                    if i >= seen[push.rank]:
                        fresh.add(merged.number)
            seen[push.rank] = push.read
            ends = push.start, push.start + self.travel, "server", f"w{push.rank}"
            for number in sorted(fresh):
                carries = tuple(f"w{rank}" for rank in sorted(ranks[number]))
                events.append(Event("send", number, *ends, str(number), "copy", nbytes / len(fresh), carries))
        return events


class _Server:
    """The common part of both rules: workers read, compute, and push."""

    def __init__(self, workers: int, steps: int, seconds: Seconds, travel: float, seed: int):
        self.world, self.seconds, self.travel, self.wanted = Events(seed), seconds, travel, steps
        self.steps: list[Step] = []
        self.dropped: list[Push] = []
        self.since: dict[int, float] = {}  # by rank: when it began to wait
        self.clock, self.waited = [0] * workers, 0.0
        self.begun: dict[int, Push] = {}  # by rank: what it computes, or pushes

    def read(self, rank: int) -> None:
        """Let a worker read the weights and begin to compute."""
        now = self.world.now
        self.waited += now - self.since.pop(rank, now)
        seconds = 2 * self.travel + self.seconds(self.world.random, rank)
        push = Push(rank, self.number(rank), len(self.steps), now, now + seconds)
        self.begun[rank] = push
        self.world.after(seconds, self.arrives, push)

    def arrives(self, push: Push) -> None:
        """Take a gradient that has arrived, unless all steps have been made."""
        if len(self.steps) < self.wanted:
            self.since[push.rank] = self.world.now
            del self.begun[push.rank]
            self.push(push)

    def push(self, push: Push) -> None:
        raise NotImplementedError

    def number(self, rank: int) -> int:
        raise NotImplementedError

    def step(self, *pushes: Push) -> None:
        self.steps.append(Step(self.world.now, pushes))

    def history(self) -> History:
        workers = len(self.clock)
        for rank in range(workers):
            self.read(rank)
        self.world.run()
        end = self.steps[-1].seconds if self.steps else 0.0
        waited = self.waited + sum(end - since for since in self.since.values())
        idle = waited / (workers * end) if end else 0.0
        return History(workers, tuple(self.steps), tuple(self.dropped), idle, self.travel, tuple(self.begun.values()))


class _Rounds(_Server):
    """A step per round, as soon as enough of its gradients have arrived."""

    def __init__(self, enough: int, *more: Any):
        super().__init__(*more)
        self.enough = enough
        self.open: list[Push] = []

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
            closed, self.open = self.open, []
            for push in closed:
                self.read(push.rank)


class _Bounded(_Server):
    """A step per push; a worker reads again once it is at most ``staleness`` pushes ahead of the slowest."""

    def __init__(self, staleness: float, *more: Any):
        super().__init__(*more)
        self.staleness = staleness

    def number(self, rank: int) -> int:
        return self.clock[rank] + 1

    def push(self, push: Push) -> None:
        self.step(push)
        self.clock[push.rank] += 1
        for rank in sorted(self.since, key=self.since.__getitem__):
            if self.clock[rank] - min(self.clock) <= self.staleness:
                self.read(rank)


def synchronous(
    workers: int, steps: int, seconds: Seconds, backup: int = 0, travel: float = 0.0, seed: int = 0
) -> History:
    """Play rounds: the server makes a step when all gradients of the round have arrived, or all but ``backup``.

    A gradient that comes too late is thrown away; its worker reads the new weights and joins the open round.

    Args:
        workers: The number of workers, backup workers included.
        steps: The number of steps that the server makes.
        seconds: ``seconds(random, rank)``: the seconds a worker computes; called once per gradient.
        backup: The number of gradients per round for which the server does not wait: less than ``workers``.
        travel: Seconds for which a message is under way, each way.
        seed: The seed of ``random``.

    Returns:
        The same for the same seed.

    Raises:
        HistoryError: For impossible counts.
    """
    _require(workers, steps)
    if not 0 <= backup < workers:
        raise HistoryError(text("history.backup", backup=backup, workers=workers))
    return _Rounds(workers - backup, workers, steps, seconds, travel, seed).history()


def asynchronous(
    workers: int, steps: int, seconds: Seconds, staleness: float = math.inf, travel: float = 0.0, seed: int = 0
) -> History:
    """Play pushes without rounds: each is a step; a worker more than ``staleness`` pushes ahead of the slowest waits.

    Args:
        workers: The number of workers.
        steps: The number of steps that the server makes, for all workers together.
        seconds: ``seconds(random, rank)``: the seconds a worker computes; called once per gradient.
        staleness: 0 or more; infinity if no worker ever waits.
        travel: Seconds for which a message is under way, each way.
        seed: The seed of ``random``.

    Returns:
        The same for the same seed.

    Raises:
        HistoryError: For impossible counts.
    """
    _require(workers, steps)
    if not staleness >= 0:
        raise HistoryError(text("history.staleness", staleness=staleness))
    return _Bounded(staleness, workers, steps, seconds, travel, seed).history()


def _require(workers: int, steps: int) -> None:
    if workers < 1 or steps < 1:
        raise HistoryError(text("history.counts", workers=workers, steps=steps))

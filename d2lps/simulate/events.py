"""A world of virtual time: a seed decides what happens when, and the same seed gives the same run, event by event.

>>> world = Events(seed=1)
>>> for worker in range(3):
...     world.after(world.random.expovariate(1.0), print, "worker", worker, "is done")
>>> world.run()
worker 0 is done
worker 2 is done
worker 1 is done
>>> round(world.now, 3)
1.88
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple


class Events:
    """What is still to happen, in order of time; what is to happen at the same time keeps the order of its calls.

    Parameters
    ----------
    seed : int
        Of ``random``, the only source of chance.

    Attributes
    ----------
    now : float
        Virtual seconds since the beginning.
    random : random.Random
        For whoever draws times or choices.
    count : int
        How many events have happened.

    Examples
    --------
    >>> world = Events(seed=0)
    >>> world.after(2.0, print, "late"), world.after(1.0, print, "early")
    (None, None)
    >>> world.run(until=1.5), world.now
    early
    (None, 1.5)
    """

    def __init__(self, seed: int = 0):
        self.now, self.random, self.count = 0.0, Random(seed), 0
        self._waiting: list[tuple] = []
        self._calls = 0

    def after(self, seconds: float, function: Callable, *arguments: object) -> None:
        """Call ``function(*arguments)`` once ``seconds`` have passed.

        Parameters
        ----------
        seconds : float
            From now; not negative.
        function : callable
            May call ``after`` itself.
        *arguments : object
            For it.

        Raises
        ------
        ValueError
            For a time that has passed, or that is no number.
        """
        if not seconds >= 0:
            raise ValueError(f"after({seconds!r}, …): nothing happens in the past; give 0 or more seconds")
        self._calls += 1
        heappush(self._waiting, (self.now + seconds, self._calls, function, arguments))

    def run(self, until: float = math.inf) -> None:
        """Let everything happen that is to happen up to ``until``, also what is added meanwhile.

        Parameters
        ----------
        until : float
            Virtual seconds; the clock then stands there, or at the last event where nothing was said.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= until:
            self.now, _, function, arguments = heappop(waiting)
            self.count += 1
            function(*arguments)
        if until < math.inf:
            self.now = max(self.now, until)


@dataclass(frozen=True)
class Faults:
    """What a network does to messages until virtual second ``until``; after it, all arrive once and soon.

    Parameters
    ----------
    lost, doubled, slow : float
        The parts of all messages that are lost, that come twice, and that take up to ``long`` instead of ``delay``.
    delay, long : tuple of float, float
        Seconds from and to; ``long`` is how much longer a slow message may take.
    until : float
        Virtual seconds.
    """

    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    delay: tuple[float, float] = (0.5e-3, 5e-3)
    long: float = 0.17
    until: float = math.inf


class Delivery(NamedTuple):
    """A message as it travelled.

    Parameters
    ----------
    start : float
        Virtual seconds.
    end : float or None
        When it arrives; None if it is lost.
    src, dst : hashable
        Names of nodes.
    message : object
        What was sent.
    """

    start: float
    end: float | None
    src: Hashable
    dst: Hashable
    message: Any


class Network(Events):
    """Nodes that send one another messages, which may be late, lost or doubled, and overtake one another.

    A node is whatever has ``receive(src, message, now)``. It may crash (it is taken out, and what is on the way to it
    is lost), be paused (what comes waits) and be cut off from another, one way or both.

    Parameters
    ----------
    seed : int
        Decides everything.
    faults : Faults
        What happens to messages.

    Attributes
    ----------
    nodes : dict
        Name → node.
    deliveries : list of Delivery or None
        Every message, where ``record()`` was called before.
    deaths : list of (float, hashable)
        Virtual seconds and names of the nodes that crashed.

    Examples
    --------
    >>> class Echo:
    ...     def receive(self, src, message, now):
    ...         print(f"{src} said {message} after {now:.3f} s")
    >>> net = Network(seed=3, faults=Faults(doubled=1.0))
    >>> net.nodes["b"] = Echo()
    >>> net.send("a", "b", "hello")
    >>> net.run()
    a said hello after 0.002 s
    a said hello after 0.002 s
    """

    def __init__(self, seed: int = 0, faults: Faults = Faults()):
        super().__init__(seed)
        self.faults, self.nodes, self.deliveries, self.deaths = faults, {}, None, []
        self._paused: dict[Hashable, float] = {}
        self._cut: dict[tuple[Hashable, Hashable], float] = {}

    def record(self) -> None:
        """Keep every message from now on in ``deliveries``."""
        self.deliveries = []

    def send(self, src: Hashable, dst: Hashable, message: Any) -> None:
        """Put a message on its way; what becomes of it, chance decides.

        Parameters
        ----------
        src, dst : hashable
            Names of nodes.
        message : object
            Handed on as it is: it is not to change any more.
        """
        faults, chance = self.faults, self.random.random
        troubled = self.now < faults.until
        if troubled and (self.is_cut(src, dst) or (faults.lost and chance() < faults.lost)):
            if self.deliveries is not None:
                self.deliveries.append(Delivery(self.now, None, src, dst, message))
            return
        self._deliver(src, dst, message, self._delay(troubled))
        if troubled and faults.doubled and chance() < faults.doubled:
            self._deliver(src, dst, message, self._delay(troubled))

    def pause(self, node: Hashable, seconds: float) -> None:
        """Let what comes to ``node`` wait.

        Parameters
        ----------
        node : hashable
            Its name.
        seconds : float
            From now.
        """
        self._paused[node] = self.now + seconds

    def cut(self, src: Hashable, dst: Hashable, seconds: float) -> None:
        """Lose what ``src`` sends to ``dst``, and not the other way.

        Parameters
        ----------
        src, dst : hashable
            Names of nodes, or of what else is asked for with :meth:`is_cut`.
        seconds : float
            From now.
        """
        self._cut[src, dst] = self.now + seconds

    def is_cut(self, src: Hashable, dst: Hashable) -> bool:
        """Whether what ``src`` would send to ``dst`` now is lost by a cut.

        Parameters
        ----------
        src, dst : hashable
            As for :meth:`cut`.

        Returns
        -------
        bool
            True while the cut lasts.
        """
        return bool(self._cut) and self._cut.get((src, dst), 0.0) > self.now

    def crash(self, node: Hashable) -> object:
        """Take a node out, with what is on the way to it.

        Parameters
        ----------
        node : hashable
            Its name.

        Returns
        -------
        object
            What it was.
        """
        self._paused.pop(node, None)
        self.deaths.append((self.now, node))
        return self.nodes.pop(node)

    def paused(self, node: Hashable) -> float:
        """For how long a node is still paused.

        Parameters
        ----------
        node : hashable
            Its name.

        Returns
        -------
        float
            Seconds; 0 if it is not.
        """
        return max(0.0, self._paused[node] - self.now) if node in self._paused else 0.0

    def _delay(self, troubled: bool) -> float:
        faults, chance = self.faults, self.random.random
        if troubled and faults.slow and chance() < faults.slow:
            return faults.delay[1] + faults.long * chance()
        return faults.delay[0] + (faults.delay[1] - faults.delay[0]) * chance()

    def _deliver(self, src: Hashable, dst: Hashable, message: Any, seconds: float) -> None:
        if self.deliveries is not None:
            self.deliveries.append(Delivery(self.now, self.now + seconds, src, dst, message))
        self.after(seconds, self._arrive, src, dst, message)

    def _arrive(self, src: Hashable, dst: Hashable, message: Any) -> None:
        node = self.nodes.get(dst)
        if node is None:
            return
        if self._paused and (wait := self.paused(dst)):
            self.after(wait, self._arrive, src, dst, message)
        else:
            node.receive(src, message, self.now)

"""A world of virtual time: a seed decides all chance, and the same seed gives the same run, event by event.

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
    """A queue of future calls in order of time; calls for the same time keep the order in which they were added.

    Args:
        seed: The seed of ``random``, the only source of chance.

    Attributes:
        now (float): Virtual seconds since the beginning.
        random (random.Random): The generator for times and choices.
        count (int): The number of events that have happened.

    Example:
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

        Args:
            seconds: Virtual seconds from now; not negative.
            function: A function, which may call ``after`` itself.
            *arguments: Its arguments.

        Raises:
            ValueError: For a negative time, or one that is not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"after({seconds!r}, …): nothing happens in the past; give 0 or more seconds")
        self._calls += 1
        heappush(self._waiting, (self.now + seconds, self._calls, function, arguments))

    def run(self, until: float = math.inf) -> None:
        """Make all calls that are due up to ``until``, including those added meanwhile.

        Args:
            until: Virtual seconds, to which the clock is set; by default it stops at the last event.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= until:
            self.now, _, function, arguments = heappop(waiting)
            self.count += 1
            function(*arguments)
            self._happened()
        if until < math.inf:
            self.now = max(self.now, until)

    def _happened(self) -> None:
        """Look at the world after an event; a plain world has nothing to look at."""


@dataclass(frozen=True)
class Faults:
    """The faults of a network until virtual second ``until``; afterwards every message arrives once and soon.

    Args:
        lost, doubled, slow: The fractions of messages that are lost, that arrive twice, and that are slow.
        delay: The least and the largest delay of a message, in seconds.
        long: Additional seconds that a slow message may take.
        until: Virtual seconds.
    """

    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    delay: tuple[float, float] = (0.5e-3, 5e-3)
    long: float = 0.17
    until: float = math.inf


class Delivery(NamedTuple):
    """A recorded message.

    Args:
        start: Virtual second at which it leaves.
        end: Virtual second at which it arrives; None if it is lost.
        src, dst: Names of nodes.
        message: Its content.
    """

    start: float
    end: float | None
    src: Hashable
    dst: Hashable
    message: Any


class Trouble(NamedTuple):
    """A pause of a node, or a cut between two nodes. A later one of the same nodes replaces what is left of it.

    Args:
        start, end: Virtual seconds.
        src: The node that is paused, or whose messages are cut off.
        dst: The node that they do not reach; None for a pause.
    """

    start: float
    end: float
    src: Hashable
    dst: Hashable = None


class State(NamedTuple):
    """What a node became, until its next state or its death.

    Args:
        start: Virtual seconds.
        node: Its name.
        state: Words such as ``"leader 2"``; empty if nothing is to be said about it.
    """

    start: float
    node: Hashable
    state: str


class Network(Events):
    """Nodes that exchange messages, which may be late, lost or doubled, and may overtake one another.

    A node is any object with ``receive(src, message, now)``. It may crash (messages on the way to it are lost), be
    paused (arriving messages wait) and be cut off from another node, in one direction or both.

    Args:
        seed: The seed of all chance.
        faults: The faults of the network.

    Attributes:
        nodes (dict): Name → node.
        deliveries (list of Delivery or None): Every message since ``record()`` was called.
        states (list of State): The states of each node since ``record()`` was called.
        troubles (list of Trouble): All pauses and cuts.
        deaths (list of (float, hashable)): Virtual seconds and names of the nodes that crashed.

    Example:
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
        self.faults = faults
        self.nodes: dict[Hashable, Any] = {}
        self.deliveries: list[Delivery] | None = None
        self.deaths: list[tuple[float, Hashable]] = []
        self._paused: dict[Hashable, float] = {}
        self._cut: dict[tuple[Hashable, Hashable], float] = {}
        self.states: list[State] = []
        self.troubles: list[Trouble] = []
        self._state: Callable[[Hashable, Any, float], str] | None = None
        self._last: dict[Hashable, str] = {}

    def record(self, state: "Callable[[Hashable, Any, float], str] | None" = None) -> None:
        """Record from now on every message in ``deliveries`` and the states of nodes in ``states``; see :func:`draw`.

        Args:
            state: ``state(name, node, now)`` returns the state of a node, such as ``"leader 2"``. It is asked after
                every event. The default is an empty state.

        Example:
            >>> class Counter:
            ...     count = 0
            ...     def receive(self, src, message, now):
            ...         self.count += message
            >>> net = Network(seed=1)
            >>> net.nodes["b"] = Counter()
            >>> net.record(lambda name, node, now: f"has {node.count}")
            >>> net.send("a", "b", 5)
            >>> net.run()
            >>> [state for _, _, state in net.states]
            ['has 0', 'has 5']
        """
        self.deliveries, self.states, self._last, self._state = [], [], {}, state
        self._happened()

    def _happened(self) -> None:
        if self.deliveries is None:
            return
        for name, node in self.nodes.items():
            state = self._state(name, node, self.now) if self._state else ""
            if self._last.get(name) != state:
                self._last[name] = state
                self.states.append(State(self.now, name, state))

    def send(self, src: Hashable, dst: Hashable, message: Any) -> None:
        """Send a message; chance decides if and when it arrives.

        Args:
            src, dst: Names of nodes.
            message: Handed on as it is: it is not to change any more.
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
        """Let messages to ``node`` wait.

        Args:
            node: Its name.
            seconds: Virtual seconds from now.
        """
        self._paused[node] = self.now + seconds
        self.troubles.append(Trouble(self.now, self.now + seconds, node))

    def cut(self, src: Hashable, dst: Hashable, seconds: float) -> None:
        """Lose messages from ``src`` to ``dst``, but not those in the other direction.

        Args:
            src, dst: Names of nodes, or any other names to be used with :meth:`is_cut`.
            seconds: Virtual seconds from now.
        """
        self._cut[src, dst] = self.now + seconds
        self.troubles.append(Trouble(self.now, self.now + seconds, src, dst))

    def is_cut(self, src: Hashable, dst: Hashable) -> bool:
        """Return True while messages from ``src`` to ``dst`` are cut.

        Args:
            src, dst: As for :meth:`cut`.

        Returns:
            True while the cut lasts.
        """
        return bool(self._cut) and self._cut.get((src, dst), 0.0) > self.now

    def crash(self, node: Hashable) -> object:
        """Remove a node; messages on the way to it are lost.

        Args:
            node: Its name.

        Returns:
            The removed node.
        """
        self._paused.pop(node, None)
        self._last.pop(node, None)
        self.deaths.append((self.now, node))
        return self.nodes.pop(node)

    def paused(self, node: Hashable) -> float:
        """Return the seconds for which a node is still paused.

        Args:
            node: Its name.

        Returns:
            Seconds; 0 if it is not paused.
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

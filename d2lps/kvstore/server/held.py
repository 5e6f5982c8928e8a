"""One part of a key at one server: its value, its open round, and who waits for it."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import KVError, Refused, Timeout
from d2lps.kvstore.saving import State


class Found(NamedTuple):
    """What a pull gets: the value, how many rounds (asynchronously: pushes) are in it, and how many were summed."""

    value: Tensor
    version: int
    counted: int


Reply = Callable[["list[Found] | KVError"], object]


class Pending:
    """What a worker pulls together: ``reply`` gets all parts of it when the last may be read, or the first error."""

    def __init__(self, rank: int, count: int, until: float, reply: Reply):
        self.rank, self.until, self.reply = rank, until, reply
        self.found: list[Found | None] = [None] * count
        self._left, self._lock = count, threading.Lock()

    @property
    def over(self) -> bool:
        """Whether it is answered, or about to be."""
        return self._left <= 0

    def came(self, count: int) -> None:
        """So many more parts of :attr:`found` are there."""
        with self._lock:
            before, self._left = self._left, self._left - count
        if before > 0 and self._left == 0:
            self.reply(self.found)

    def fail(self, error: KVError) -> None:
        with self._lock:
            before, self._left = self._left, -1
        if before > 0:
            self.reply(error)


class Waiting(NamedTuple):
    """One part of a pull, its ``place`` in it, which may be read after round (or clock) ``need``."""

    pull: Pending
    place: int
    need: int


class Held:
    """One part of a key at one server."""

    def __init__(self, number: int, name: str, elements: int, dtype: torch.dtype, workers: int):
        self.number, self.name, self.elements, self.dtype = number, name, elements, dtype
        self.value: Tensor | None = None
        self.version, self.counted, self.skip = 0, 0, False
        self.rounds = [0] * workers  # how many pushes of each worker are counted
        self.arrived: dict[int, tuple[Tensor, bool]] = {}  # of the open round, not yet in the sum; whether it may stay
        self.summed: list[int] = []
        self.sum: Tensor | None = None
        self.own = False  # whether the sum may stay where it is
        self.memory: dict = {}
        self.waiting: list[Waiting] = []
        self.lock = threading.Lock()
        self.changed, self.queued = threading.Condition(self.lock), 0  # and how many pushes wait for the next round

    def until(self, *what) -> None:
        """As :func:`until`, for a push that waits for a round to close."""
        self.queued += 1
        try:
            until(self.changed, *what)
        finally:
            self.queued -= 1

    @property
    def found(self) -> Found:
        return Found(self.value, self.version, self.counted)


def answer(done: "list[tuple[Waiting, Found | KVError]]") -> None:
    """Outside of the lock: a reply may take its time."""
    for waiting, found in done:
        if isinstance(found, KVError):
            waiting.pull.fail(found)
        else:
            waiting.pull.found[waiting.place] = found
            waiting.pull.came(1)


def workers(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"


def until(
    condition: threading.Condition,
    done: Callable[[], bool],
    seconds: float,
    what: str,
    missing: Callable[[], list[int]],
) -> None:
    """Wait until ``done``. Raises Timeout, which says who is ``missing`` for ``what``."""
    end = time.monotonic() + seconds
    while not done():
        if not condition.wait(min(1.0, max(0.0, end - time.monotonic()))) and time.monotonic() >= end:
            ranks = missing()
            lacking = f", {workers(ranks)} missing" if ranks else ""
            raise Timeout(f"{what}: {seconds:g} s are over{lacking}")


def state_of(held: Held) -> State:
    """The state of a part as it is now. Raises Refused in the midst of a round."""
    with held.changed:
        if held.value is None or held.arrived or held.summed:
            raise Refused(f"key {held.name} is in the midst of a round: save at a barrier")
        return {"value": held.value} | {
            name: one.clone() if isinstance(one, Tensor) else one for name, one in held.memory.items()
        }


def put_back(held: Held, state: State) -> None:
    """The part is as it was when :func:`state_of` gave ``state``. Raises Refused, and nothing has changed."""
    value = state.pop("value", None)
    sizes = {one.numel() for one in (value, *state.values()) if isinstance(one, Tensor)}
    if not isinstance(value, Tensor) or value.dtype != held.dtype or sizes != {held.elements}:
        raise Refused(f"key {held.name} has {held.elements} elements of {held.dtype} here: load what was saved of it")
    with held.changed:
        if held.arrived or held.summed:
            raise Refused(f"key {held.name} is in the midst of a round: load at a barrier")
        held.value, held.memory = value, state

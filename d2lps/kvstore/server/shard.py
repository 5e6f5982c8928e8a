"""A server's part of a key: its value, its open round, and who waits for it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, Timeout
from d2lps.kvstore.optimizers import Memory, Optimizer, lent, remembered, validate_state

log = logging.getLogger("d2lps.kvstore.server")


class Snapshot(NamedTuple):
    """What a pull gets: the value, how many rounds (asynchronously: pushes) are in it, how many were summed; of which
    load it is, 0 of none."""

    value: Tensor
    version: int
    counted: int
    load: int = 0


Reply = Callable[["list[Snapshot] | KVError"], object]


class PendingPull:
    """What a worker pulls at once: ``reply`` gets all parts of it when the last may be read, or the first error."""

    def __init__(self, rank: int, count: int, until: float, reply: Reply):
        self.rank, self.until, self.reply = rank, until, reply
        self.snapshots: list[Snapshot | None] = [None] * count
        self._left, self._lock = count, threading.Lock()

    @property
    def over(self) -> bool:
        """Whether it is answered, or about to be."""
        return self._left <= 0

    def came(self, count: int) -> None:
        """So many more of the snapshots are there."""
        with self._lock:
            before, self._left = self._left, self._left - count
        if before > 0 and self._left == 0:
            self.reply(self.snapshots)

    def fail(self, error: KVError) -> None:
        with self._lock:
            before, self._left = self._left, -1
        if before > 0:
            self.reply(error)


class Waiting(NamedTuple):
    """One part of a pull, its ``place`` in it, which may be read after round (or clock) ``need``."""

    pull: PendingPull
    place: int
    need: int


class KeyPart:
    """What a server's part of a key is like, and what of it may be asked for."""

    value: Tensor | None

    def __init__(self, number: int, name: str, elements: int, dtype: torch.dtype):
        self.number, self.name, self.elements, self.dtype = number, name, elements, dtype

    def validate_push(self, elements: int, dtype: torch.dtype) -> None:
        """Raises Refused unless so much may be pushed to it."""
        if (self.elements, self.dtype) != (elements, dtype):
            raise Refused(
                f"key {self.name} has {self.elements} elements of {self.dtype} here, and {elements} of "
                f"{dtype} are pushed: push what was initialized"
            )
        if self.value is None:
            raise Refused(f"key {self.name} has no value yet: init it before the first push")

    def validate_rows(self, width: int, rows: Tensor) -> None:
        """Raises Refused unless it has these rows of ``width`` elements."""
        if width > max(1, self.elements) or self.elements % width:
            raise Refused(f"key {self.name} has {self.elements} elements here, which are no rows of {width}")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.elements // width:
            raise Refused(f"key {self.name} has rows 0 to {self.elements // width - 1} here")


class Shard(KeyPart):
    """A server's part of a key. Whoever looks at more than one thing of it has its ``lock``."""

    def __init__(self, number: int, name: str, elements: int, dtype: torch.dtype, workers: int):
        super().__init__(number, name, elements, dtype)
        self.value: Tensor | None = None
        self.memory: Memory = {}  # what the optimizer keeps
        self.staged: State | None = None  # what is being loaded
        self.failed: KVError | None = None  # since an update failed: rounds close without a step, and nobody may read
        self.version, self.counted, self.load = 0, 0, 0
        self.rounds = [0] * workers  # how many pushes of each worker are counted
        # Of the open round: by worker what is not yet in the sum, and whether it may stay where it is; who is in it.
        self.arrived: dict[int, tuple[Tensor, bool]] = {}
        self.summed: list[int] = []
        self.sum: Tensor | None = None
        self.own = False  # whether the sum may stay where it is
        self.skip = False  # whether the round will change nothing
        self.waiting: list[Waiting] = []
        self.lock = threading.Lock()
        self.changed, self.queued = threading.Condition(self.lock), 0  # and how many pushes wait for the next round

    @property
    def busy(self) -> bool:
        """Whether it is in the midst of a round."""
        return bool(self.arrived or self.summed)

    @property
    def snapshot(self) -> Snapshot:
        """What may be read now."""
        return Snapshot(self.value, self.version, self.counted, self.load)

    def wait(self, done: Callable[[], bool], seconds: float, what: str, missing: Callable[[], list[int]]) -> None:
        """As :func:`wait_until`, for a push that waits for a round to close."""
        self.queued += 1
        try:
            wait_until(self.changed, done, seconds, what, missing)
        finally:
            self.queued -= 1

    def fail(self, error: Exception) -> None:
        """What it holds may be half of something: it is not given to anybody until it is loaded anew."""
        log.exception("key %s could not be updated", self.name)
        self.failed = self.failed or KVError(
            f"key {self.name} could not be updated in round {self.version + 1} ({type(error).__name__}: {error}): "
            "load what was saved of it"
        )

    def state(self, optimizer: Optimizer | None) -> State:
        """What it is now, to be saved, and stays so. Raises Refused in the midst of a round."""
        with self.lock:
            if self.failed:
                raise self.failed
            if self.value is None or self.busy:
                raise Refused(f"key {self.name} is in the midst of a round: save at a barrier")
            return {"value": self.value} | remembered(optimizer, lent(self.memory))

    def stage(self, state: State, optimizer: Optimizer | None) -> None:
        """Have a state ready that another shard's :meth:`state` gave. Raises Refused, and nothing has changed."""
        validate_state(state, optimizer, self.elements, self.dtype, self.name)
        with self.lock:
            if self.busy:
                raise Refused(f"key {self.name} is in the midst of a round: load at a barrier")
            self.staged = state

    def restore(self, optimizer: Optimizer | None, load: int) -> None:
        """Be what was staged, of this load."""
        with self.lock:
            memory, self.load = dict(self.staged), load
            self.value, self.staged, self.failed = memory.pop("value"), None, None
            self.memory = {optimizer.rule: memory} if optimizer and memory else {}


def deliver(done: "list[tuple[Waiting, Snapshot | KVError]]") -> None:
    """Outside of the lock: a reply may take its time."""
    for waiting, snapshot in done:
        if isinstance(snapshot, KVError):
            waiting.pull.fail(snapshot)
        else:
            waiting.pull.snapshots[waiting.place] = snapshot
            waiting.pull.came(1)


def workers(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"


def wait_until(
    condition: threading.Condition,
    done: Callable[[], bool],
    seconds: float,
    what: str,
    missing: Callable[[], list[int]],
) -> None:
    """Wait until ``done``. Raises Timeout, which says who is ``missing`` for ``what``."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            ranks = missing()
            lacking = f", {workers(ranks)} missing" if ranks else ""
            raise Timeout(f"{what}: {seconds:g} s are over{lacking}")
        condition.wait(min(1.0, left))

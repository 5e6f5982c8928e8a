"""A server's part of a key: its value, its open round, and the pulls that wait for it."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, Timeout
from d2lps.kvstore.optimizers import Memory, Optimizer, lent, remembered
from d2lps.kvstore.told import told

log = logging.getLogger("d2lps.kvstore.server")
LOOK = 1.0  # seconds after which a thread that waits looks again, also if no other thread has woken it


class Pulled(NamedTuple):
    """The answer to a pull: the value, how many rounds (or pushes) are in it, and how many pushes were summed last."""

    value: Tensor
    version: int
    counted: int


Reply = Callable[["list[Pulled] | KVError"], object]


class JointPull:
    """The parts that a worker pulls at once: ``reply`` gets all when the last may be read, or the first error."""

    def __init__(self, rank: int, count: int, until: float, reply: Reply):
        self.rank, self.until, self.reply = rank, until, reply
        self.pulled: list[Pulled | None] = [None] * count
        self._left, self._lock = count, threading.Lock()

    @property
    def over(self) -> bool:
        """Whether it is answered, or about to be."""
        return self._left <= 0

    def came(self, count: int) -> None:
        """Count parts that have come, and reply after the last."""
        with self._lock:
            before, self._left = self._left, self._left - count
        if before > 0 and self._left == 0:
            self.reply(self.pulled)

    def fail(self, error: KVError) -> None:
        with self._lock:
            before, self._left = self._left, -1
        if before > 0:
            self.reply(error)


class Waiting(NamedTuple):
    """One part of a pull, its ``place`` in it, and the round (or clock) ``need`` after which it may be read."""

    pull: JointPull
    place: int
    need: int


class KeyPart:
    """The description of a server's part of a key."""

    value: Tensor | None = None

    def __init__(self, number: int, name: str, elements: int, dtype: torch.dtype):
        self.number, self.name, self.elements, self.dtype = number, name, elements, dtype

    def validate_push(self, elements: int, dtype: torch.dtype) -> None:
        """Raise Refused unless so many elements may be pushed to it."""
        if (self.elements, self.dtype) != (elements, dtype):
            raise Refused(
                f"key {self.name} has {self.elements} elements of {self.dtype} here, and {elements} of "
                f"{dtype} are pushed: push what was initialized"
            )
        if self.value is None:
            raise Refused(told("store.told.no-value", key=self.name, call="push"))

    def validate_rows(self, width: int, rows: Tensor) -> None:
        """Raise Refused unless it has these rows of ``width`` elements."""
        if width > max(1, self.elements) or self.elements % width:
            raise Refused(f"key {self.name} has {self.elements} elements here, which are no rows of {width}")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.elements // width:
            raise Refused(f"key {self.name} has rows 0 to {self.elements // width - 1} here")

    @property
    def busy(self) -> bool:
        """Whether a round is open: some workers have pushed, and others have not."""
        raise NotImplementedError

    def require_between_rounds(self, name: str) -> None:
        """Raise Refused if a round is open; ``name``: of the call."""
        if self.busy:
            raise Refused(told("store.told.open-round", key=self.name, call=name))

    def not_updated(self, why: str) -> KVError:
        """Return the error for a value that may be half of something."""
        return KVError(told("store.told.not-updated", key=self.name, why=why))


class Shard(KeyPart):
    """A server's part of a key. A caller that uses more than one attribute holds its ``lock``."""

    def __init__(self, number: int, name: str, elements: int, dtype: torch.dtype, workers: int):
        super().__init__(number, name, elements, dtype)
        self.memory: Memory = {}  # the state of the optimizer
        self.failed: KVError | None = None  # since an update failed: rounds close without a step, and none may read
        self.version, self.counted = 0, 0
        self.rounds = [0] * workers  # how many pushes of each worker are counted
        # Of the open round: by worker what is not yet in the sum, and if it may stay in its place; who is in the sum.
        self.arrived: dict[int, tuple[Tensor, bool]] = {}
        self.summed: list[int] = []
        self.sum: Tensor | None = None
        self.own = False  # the sum may stay in its place
        self.waiting: list[Waiting] = []
        self.lock = threading.Lock()
        self.changed, self.queued = threading.Condition(self.lock), 0  # queued: pushes that wait for the next round

    @property
    def busy(self) -> bool:
        return bool(self.arrived or self.summed)

    @property
    def snapshot(self) -> Pulled:
        """The answer to a pull now."""
        return Pulled(self.value, self.version, self.counted)

    def wait(self, done: Callable[[], bool], seconds: float, what: str, missing: Callable[[], list[int]]) -> None:
        """Wait like :func:`wait_until`, for a push that waits for a round to close."""
        self.queued += 1
        try:
            wait_until(self.changed, done, seconds, what, missing)
        finally:
            self.queued -= 1

    def fail(self, error: Exception) -> None:
        """Give the value to no worker until it is loaded anew: it may be half of something."""
        log.exception("key %s could not be updated", self.name)
        why = f"{type(error).__name__}: {error}"
        self.failed = self.failed or self.not_updated(why)

    def state(self, optimizer: Optimizer | None) -> State:
        """Return its present state, which is never changed. Raises Refused in the midst of a round."""
        with self.lock:
            if self.failed:
                raise self.failed
            self.require_between_rounds("save")
            if self.value is None:
                raise Refused(told("store.told.no-value", key=self.name, call="save"))
            return {"value": self.value} | remembered(optimizer, lent(self.memory))

    def restore(self, state: State, optimizer: Optimizer | None) -> None:
        """Replace its state by one that :meth:`state` of another shard returned."""
        memory = dict(state)
        with self.lock:
            self.value, self.failed = memory.pop("value"), None
            self.memory = {optimizer.rule: memory} if optimizer and memory else {}


def deliver(done: "list[tuple[Waiting, Pulled | KVError]]") -> None:
    """Reply to pulls. The caller holds no lock: a reply may take its time."""
    for waiting, pulled in done:
        if isinstance(pulled, KVError):
            waiting.pull.fail(pulled)
        else:
            waiting.pull.pulled[waiting.place] = pulled
            waiting.pull.came(1)


def workers(ranks: Iterable[int]) -> str:
    """Return the sentence's part that names workers."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return told("store.told.worker", ranks=ranks[0])
    return told("store.told.workers", ranks=", ".join(map(str, ranks)))


def over(what: str, seconds: float, missing: list[int]) -> str:
    """Return the sentence for a wait that was too long: which wait, and for which workers."""
    if missing:
        return told("store.told.missing", what=what, seconds=f"{seconds:g}", workers=workers(missing))
    return told("store.told.over", what=what, seconds=f"{seconds:g}")


def wait_until(
    condition: threading.Condition,
    done: Callable[[], bool],
    seconds: float,
    what: str,
    missing: Callable[[], list[int]],
) -> None:
    """Wait until ``done``. Raises Timeout with the workers that are ``missing`` for ``what``."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            raise Timeout(over(what, seconds, missing()))
        condition.wait(min(LOOK, left))

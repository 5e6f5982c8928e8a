"""What is common to the two kinds of store at a server: its settings, and what it refuses."""

import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from d2lps.kvstore.errors import Late, Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.options import validate_deadline, validate_staleness
from d2lps.kvstore.record import Record
from d2lps.kvstore.server.shard import KeyPart, Waiting, over, workers
from d2lps.kvstore.told import told
from d2lps.kvstore.wire.arena import SHARED, Arena

KINDS = ("dist_sync", "dist_async", "dist_ssp")
LOST = ("fail", "drop")
EARLIER = 0.75  # of a deadline: with lost="drop" a worker counts as lost before the others give up


class BaseStore:
    """The part of a store at a server that does not depend on where its values lie.

    Each kind of store has, as attributes or properties, what is declared below.
    """

    live: Collection[int] = frozenset()  # the workers that are not lost
    failed: WorkerLost | None = None  # for all workers: they cannot go on
    left: WorkerLost | None = None  # for workers that still push: they would wait in vain
    shards: Sequence[KeyPart] = ()
    updates: Optimizer | None = None
    record: Record | None = None
    arena: Arena | None = None  # for large values, which workers of this host can read there

    def __init__(self, kind: str, workers: int, staleness: int, lost: str, deadline: float):
        for name, value, known in (("kind", kind, KINDS), ("lost", lost, LOST)):
            if value not in known:
                raise Refused(told("store.told.option", name=name, value=repr(value), known=", ".join(known)))
        self.kind, self.workers, self.lost = kind, workers, lost
        self.staleness, self.deadline = validate_staleness(staleness), validate_deadline(deadline)

    def shard(self, number: object) -> KeyPart:
        """Return the shard with this number. Raises Refused if there is none.

        Args:
            number (int): As :meth:`init` gave it.

        Returns:
            (Shard): This server's part of one key.
        """
        if type(number) is not int or not 0 <= number < len(self.shards):
            raise Refused(f"there is no part {number} here: init the key first")
        return self.shards[number]

    def require_live(self, rank: int) -> None:
        """Raise WorkerLost if this worker counts as lost, or one without which the others cannot go on.

        Args:
            rank: The worker.
        """
        if self.failed:
            raise self.failed
        if rank not in self.live:
            raise lost_here(rank)

    def admit(self, rank: int, number: int, elements: int, dtype: torch.dtype, round_: int) -> bool:
        """Decide about a push before it is received, and wait if this worker's last push is in the open round.

        One push per worker and key is kept; further ones stay in the socket.

        Args:
            rank, number: The worker, and the shard.
            elements, dtype: Of what it pushes.
            round_: The number of this push, counted from 1.

        Returns:
            False if it is counted already. Raises Refused, WorkerLost or Timeout if it cannot be counted.
        """
        shard = self.shard(number)
        shard.validate_push(elements, dtype)
        if self.kind != "dist_sync" and self.updates is None:
            raise Refused(told("store.told.no-optimizer", kind=self.kind))
        self.require_live(rank)
        with shard.lock:
            counted = shard.rounds[rank]
            if round_ <= counted:
                return False
            self.require_complete()
            if round_ > counted + 1:
                raise Refused(f"push {round_} of worker {rank} to key {shard.name} comes before push {counted + 1}")
            if self.kind == "dist_sync" and shard.version < round_ - 1:
                shard.wait(
                    lambda: shard.version >= round_ - 1 or rank not in self.live or self.is_over,
                    self.deadline,
                    told("store.told.push-waits", push=round_, key=shard.name, round=round_ - 1),
                    lambda: self.missing(shard, shard.version + 1),
                )
                self.require_live(rank)
        return True

    @property
    def patience(self) -> float:
        """The seconds of silence after which a worker counts as lost."""
        return self.deadline * (EARLIER if self.lost == "drop" else 1.0)

    @property
    def is_over(self) -> bool:
        """Whether a worker is lost without which the others cannot go on."""
        return bool(self.failed)

    def require_complete(self) -> None:
        """Raise WorkerLost if no round can close any more, as a worker has left."""
        if self.left and self.kind == "dist_sync":
            raise self.left

    def allocate(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return memory for a value: in the arena, if there is one and the value is large."""
        large = self.arena is not None and elements * dtype.itemsize >= SHARED
        place = self.arena.tensor(elements, dtype) if large else None
        return torch.empty(elements, dtype=dtype) if place is None else place

    def missing(self, shard: KeyPart, need: int) -> list[int]:
        """Return the workers that have not pushed so often."""
        return [rank for rank in sorted(self.live) if shard.rounds[rank] < need]

    def waits(self, shard: KeyPart, waiting: Waiting) -> str:
        """Return the sentence for a pull that has waited for a whole deadline."""
        need = waiting.need - (self.staleness if self.kind == "dist_ssp" else 0)
        seconds, missing = f"{self.deadline:g}", workers(self.missing(shard, need))
        return told("store.told.pull-late", key=shard.name, seconds=seconds, push=need, workers=missing)

    def late(self, name: str, missing: list[int], expected: float) -> Timeout:
        """Return the error for a worker that has waited at a barrier for a whole deadline.

        ``expected``: when worker 0 last said that it is on its way.
        """
        where = told("store.told.barrier", name=name) if name else told("store.told.the-barrier")
        kind = Late if time.monotonic() - expected <= self.deadline else Timeout
        return kind(over(where, self.deadline, missing))


def gone(rank: int, why: str, left: bool) -> str:
    """Return the sentence for a worker that is lost, or has left."""
    return told("store.told.left", rank=rank, why=why) if left else told("store.told.lost", rank=rank, why=why)


def lost_here(rank: int) -> WorkerLost:
    """Return the error for a worker that this server has given up."""
    return WorkerLost(told("store.told.without", rank=rank), (rank,))


def require_same_shape(name: str, there: tuple, rank: int, here: tuple) -> None:
    """Raise Refused unless a worker initialises a part as another one did: (elements, dtype)."""
    if there != here:
        (elements, dtype), (others, other) = there, here
        given = {"elements": elements, "dtype": dtype, "rank": rank, "others": others, "other": other}
        raise Refused(told("store.told.unlike", key=name, **given))


def require_one_dtype(shards: Sequence[KeyPart]) -> None:
    """Raise Refused unless values can be pulled together."""
    if len({shard.dtype for shard in shards}) > 1:
        raise Refused("what is pulled together is of one dtype")


def no_value(name: str, purpose: str) -> Refused:
    """Return the error for a key without a value."""
    return Refused(told("store.told.no-value", key=name, call=purpose))


def not_kept(save: int) -> Refused:
    """Return the error for a worker that reads what was kept for a save that is over."""
    return Refused(f"what was kept for save {save} is not here any more: save again")

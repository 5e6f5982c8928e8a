"""When a round closes, and what comes of it: the sum in the order of the ranks, the step, and who may read it."""

import threading
import time

import torch
from torch import Tensor

from d2lps.kvstore.errors import WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import Record, VersionRecord
from d2lps.kvstore.server.shard import Shard, Waiting, workers
from d2lps.kvstore.wire.arena import SHARED, Arena


class Merging:
    """What a store does with the pushes to a shard, whose lock is held.

    A sum or a step that fails closes its round as if nothing had been pushed, and the shard is read no more.
    """

    kind: str
    workers: int
    staleness: int
    deadline: float
    live: set[int]
    failed: WorkerLost | None
    updates: Optimizer | None
    ready: tuple[int, Optimizer | None] | None
    shards: list[Shard]
    _changed: threading.Condition
    arena: Arena | None
    record: Record | None

    def pushes(self, number: int) -> list[int]:
        """How many pushes of each worker to a shard are counted.

        Parameters
        ----------
        number : int
            The shard.

        Returns
        -------
        list of int
            By worker; -1 of one that is lost.
        """
        rounds = self.shards[number].rounds
        return [count if rank in self.live else -1 for rank, count in enumerate(rounds)]

    def require_live(self, rank: int) -> None:
        """Raise WorkerLost if one has gone that the others cannot do without, or this one counts as gone.

        Parameters
        ----------
        rank : int
            The worker.
        """
        if self.failed:
            raise self.failed
        if rank not in self.live:
            raise WorkerLost(f"worker {rank} counts as lost here, and the others went on without it", (rank,))

    def set_optimizer(self, rank: int, optimizer: Optimizer | None, number: int | None = None) -> None:
        """Update by it from the next round on that closes. The same rule goes on with what it remembers, others do not.

        Parameters
        ----------
        rank, optimizer : int, Optimizer or None
            The worker; a rule with its numbers. Raises Refused where a key has whole numbers, which no rule steps.
        number : int, optional
            To have it ready under that number, until :meth:`take_optimizer`.
        """
        self.require_live(rank)
        with self._changed:
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            if number is None:
                self.updates = optimizer
            else:
                self.ready = number, optimizer

    def take_optimizer(self, rank: int, number: int) -> None:
        """Update by the one that is ready under that number; where another worker has said so before, nothing changes.

        Parameters
        ----------
        rank, number : int, int
            The worker, and which optimizer.
        """
        self.require_live(rank)
        with self._changed:
            if self.ready and self.ready[0] == number:
                (_, self.updates), self.ready = self.ready, None

    def _allocate(self, shard: Shard) -> Tensor:
        """Room for a value: in the arena, where there is one and the value is large."""
        large = self.arena is not None and shard.elements * shard.dtype.itemsize >= SHARED
        room = self.arena.tensor(shard.elements, shard.dtype) if large else None
        return torch.empty(shard.elements, dtype=shard.dtype) if room is None else room

    def _merge(self, shard: Shard) -> list:
        """Add to the open round what can be added in the order of the ranks; close it when that was the last."""
        for rank in range(self.workers):
            if rank not in shard.arrived:
                if rank in self.live and rank not in shard.summed:
                    return []
                continue
            value, own = shard.arrived.pop(rank)
            shard.summed.append(rank)
            try:
                if shard.sum is None:
                    shard.sum, shard.own = value, own
                elif shard.own or self.updates or self.live.difference(shard.summed):
                    shard.sum.add_(value)
                else:  # the last one: the sum goes straight to where it will stay
                    shard.sum, shard.own = torch.add(shard.sum, value, out=self._allocate(shard)), True
            except Exception as error:  # no memory left
                shard.fail(error)
        if not shard.summed or self.failed:
            return []
        total, ranks = None if shard.skip else shard.sum, shard.summed
        shard.sum, shard.summed, shard.skip = None, [], False
        self._publish(shard, total, shard.own, ranks)
        if shard.queued:
            shard.changed.notify_all()
        return self._readable(shard)

    def _publish(self, shard: Shard, gradient: Tensor | None, own: bool, ranks: list[int]) -> None:
        """The next version, with the pushes of ``ranks``; without a gradient the value stays as it is."""
        start = time.monotonic()
        if shard.failed:
            gradient = None
        if gradient is not None:
            try:
                self._update(shard, gradient, own, len(ranks))
            except Exception as error:
                shard.fail(error)
        shard.counted, shard.version = len(ranks), shard.version + 1
        if self.record:
            pushes = [] if gradient is None else [(rank, shard.rounds[rank]) for rank in ranks]
            self.record.add(VersionRecord(shard.number, shard.version, pushes, start, time.monotonic()))

    def _update(self, shard: Shard, gradient: Tensor, own: bool, counted: int) -> None:
        updates = self.updates  # which another thread may set meanwhile
        if updates is None and own:  # as with MXNet, without an optimizer the sum is the new value
            shard.value = gradient
            return
        room = self._allocate(shard)
        if updates is None:
            shard.value = room.copy_(gradient)
        else:
            shard.value = updates.stepped(shard.value, gradient, shard.memory, counted, room)

    def _readable(self, shard: Shard) -> list:
        """Those who wait no longer, with what they get."""
        if not shard.waiting:
            return []
        done = [
            (waiting, shard.failed or shard.snapshot)
            for waiting in shard.waiting
            if self._may_read(shard, waiting.need)
        ]
        if done:
            shard.waiting = [waiting for waiting in shard.waiting if not self._may_read(shard, waiting.need)]
        return done

    def _may_read(self, shard: Shard, need: int) -> bool:
        if self.kind == "dist_sync":
            return shard.version >= need
        if self.kind == "dist_async":
            return True
        return all(shard.rounds[rank] >= need - self.staleness for rank in self.live)

    def _missing(self, shard: Shard, need: int) -> list[int]:
        return [rank for rank in sorted(self.live) if shard.rounds[rank] < need]

    def _waits(self, shard: Shard, waiting: Waiting) -> str:
        need = waiting.need - (self.staleness if self.kind == "dist_ssp" else 0)
        return (
            f"the pull of key {shard.name} has waited {self.deadline:g} s for push {need} of "
            f"{workers(self._missing(shard, need))}"
        )

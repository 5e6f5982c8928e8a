"""The values that a server holds, and the rounds in which pushes change them. No sockets: each caller speaks for one
worker.

A **round** of a key is one push of every worker. It counts workers, not messages: a push has a number, and one that
was counted is answered again, not counted again. The sum is taken in the order of the ranks, in whatever order pushes
come, so its bits are the same for any number of servers. A value that was published is never changed: a pull gets all
of it while the next round closes.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.record import Record, VersionRecord
from d2lps.kvstore.server.barriers import Barriers
from d2lps.kvstore.server.base import BaseStore, gone, no_value, not_kept, require_one_dtype, require_same_shape
from d2lps.kvstore.server.shard import JointPull, Reply, Shard, Waiting, deliver, wait_until
from d2lps.kvstore.server.staged import Staged


class ShardStore(BaseStore):
    """The shards of one server: its part of every key.

    Args:
        kind: ``"dist_sync"``: a pull gets exactly the round that its worker has pushed; ``"dist_async"``: every push is
            applied as it comes; ``"dist_ssp"``: the same, and a worker in its clock c (c pushes of the key are done)
            waits until every worker's pushes of the clocks up to c−s−1 are in, s = ``staleness``.
        workers: How many push.
        staleness: Clocks that the slowest worker may be behind with ``"dist_ssp"``.
        lost: The effect of a lost worker on the others: ``"fail"`` (all calls raise WorkerLost), or ``"drop"`` (rounds
            close over those who are left, and ``counted`` says how many that were).
        deadline: Seconds that a call may wait.
        record: Whether to remember who pushed and pulled what when (:mod:`d2lps.kvstore.record`).

    Attributes:
        shards (list of Shard): By their numbers; each has a ``version`` (rounds that are closed) and a ``value``.

    Example:
        >>> server = ShardStore("dist_sync", workers=2)
        >>> for rank in range(2):
        ...     number = server.init(rank, "w", 1, torch.float32, torch.zeros(1))
        >>> for rank in (1, 1, 0):  # one of them comes twice
        ...     if server.admit(rank, number, 1, torch.float32, round_=1):
        ...         server.push(rank, number, 1, torch.tensor([4.0**rank]))
        >>> server.shards[number].version, server.shards[number].value
        (1, tensor([5.]))
    """

    def __init__(
        self,
        kind: str,
        workers: int,
        *,
        staleness: int = 0,
        lost: str = "fail",
        deadline: float = DEADLINE,
        record: bool = False,
    ):
        super().__init__(kind, workers, staleness, lost, deadline)
        self.record = Record() if record else None
        self.live = set(range(workers))
        self.shards: list[Shard] = []
        self.chosen = self.loaded = 0  # the numbers of the last optimizer and the last load
        self._names: dict[str, int] = {}
        self._staged, self._kept = Staged(), (0, ())  # kept: the number of a save, and the states of all shards
        self._barriers = Barriers()
        self._changed = threading.Condition()

    # ---- requests of workers

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        """Make a shard, unless it exists; the value of rank 0 counts, as with MXNet.

        Args:
            rank: The worker.
            name, elements, dtype: Of the shard, the same from all workers; otherwise it is Refused.
            value (Tensor of shape (elements,), or None): The first value, from worker 0.

        Returns:
            Its number.
        """
        with self._changed:
            if name not in self._names:
                self.updates and self.updates.validate_dtype(dtype, name)
                self._names[name] = len(self.shards)
                self.shards.append(Shard(len(self.shards), name, elements, dtype, self.workers))
            shard = self.shards[self._names[name]]
        require_same_shape(name, (shard.elements, shard.dtype), rank, (elements, dtype))
        with shard.lock:
            if shard.value is None and value is not None:
                shard.value = self.allocate(shard.elements, shard.dtype).copy_(value)
        return shard.number

    def counting(self, rank: int) -> AbstractContextManager:
        """Return a context within which the pushes of one frame are counted.

        Args:
            rank: The worker. Raises WorkerLost if its pushes cannot count.

        Returns:
            For a ``with`` block.
        """
        self.require_live(rank)
        self.require_complete()
        return nullcontext()

    def push(self, rank: int, number: int, round_: int, value: Tensor, own: bool = True) -> None:
        """Count a push, and close the round if it was the last. Raises WorkerLost if this worker counts as lost.

        Args:
            rank, number, round_: As in :meth:`admit`.
            value (Tensor of shape (elements,)): It stays as it is until the round closes.
            own: Whether the store may keep ``value`` for ever.
        """
        shard = self.shard(number)
        with shard.lock:
            if round_ <= shard.rounds[rank]:
                return
            if rank not in self.live:
                self.require_live(rank)
            shard.rounds[rank] = round_
            if self.kind == "dist_sync":
                shard.arrived[rank] = value, own
                done = self._merge(shard)
            else:
                self._publish(shard, value, own, [rank])
                done = self._readable(shard)
        deliver(done)

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Reply) -> bool:
        """Give a worker the values of several shards, now or when all of them may be read.

        Args:
            rank: The worker.
            wanted: For each shard its number, and the pushes of this worker that have to be in it.
            reply: Called once, with a list of :class:`Pulled` or a KVError.

        Returns:
            Whether it was called at once.
        """
        self.require_live(rank)
        shards = [(self.shard(number), need) for number, need in wanted]
        require_one_dtype([shard for shard, _ in shards])
        if empty := [shard.name for shard, _ in shards if shard.value is None]:
            raise no_value(empty[0], "pull")
        pull, here, failed = JointPull(rank, len(shards), own_time() + self.deadline, reply), 0, None
        for place, (shard, need) in enumerate(shards):
            with shard.lock:
                failed = failed or shard.failed
                if self._may_read(shard, need):
                    pull.pulled[place] = shard.snapshot
                    here += 1
                else:
                    shard.waiting.append(Waiting(pull, place, need))
        if failed := self.failed or failed:  # perhaps before all of them waited
            pull.fail(failed)
        pull.came(here)
        return pull.over

    def barrier(
        self, rank: int, number: int, name: str = "", note: str | None = None, coming: bool = False
    ) -> str | None:
        """Wait until every worker has come. Raises WorkerLost, or Timeout after the deadline.

        Args:
            rank, number, name: The worker; the number and name of the barrier. It may come again to the last four of a
                name.
            note: The note of worker 0 for all.
            coming: Worker 0 is on its way, and does not wait yet: until it comes, the others get Late instead of
                Timeout.

        Returns:
            The note of worker 0.
        """
        if coming:
            with self._changed:
                return self._barriers.expect(name, number)
        return self.wait_at(self.come(rank, number, name, note))

    def come(self, rank: int, number: int, name: str = "", note: str | None = None) -> tuple:
        """Come to a barrier, and do not wait yet.

        Args:
            rank, number, name, note: As :meth:`barrier` takes them.

        Returns:
            The argument of :meth:`wait_at`.
        """
        self.require_live(rank)
        with self._changed:
            barrier = self._barriers.find(name, number)
            call = barrier.come(rank, note)
            self._changed.notify_all()
            return name, barrier, call

    def wait_at(self, place: tuple) -> str | None:
        """Wait at a barrier. Raises WorkerLost, or Timeout.

        Args:
            place: As :meth:`come` returned it.

        Returns:
            The note of worker 0.
        """
        name, barrier, call = place
        with self._changed:
            try:
                done = lambda: barrier.passes(self.live) or self.failed  # noqa: E731
                wait_until(self._changed, done, self.deadline, "", lambda: [])
            except Timeout:
                missing = sorted(self.live - barrier.came)
                barrier.leave(call)  # or the next one to come would find it here
                raise self.late(name, missing, barrier.expected) from None
            if (error := self.failed or self.left) and len(barrier.came) < self.workers:
                raise error
            return barrier.note

    def last_barrier(self, rank: int, name: str) -> int:
        """Return the number of the last barrier that all have passed; at a later one this worker has not come.

        Args:
            rank, name: The worker; of the barrier.

        Returns:
            0 if there is none.
        """
        with self._changed:
            return self._barriers.last(name, rank)

    def set_optimizer(self, rank: int, optimizer: Optimizer | None, number: int | None = None) -> None:
        """Update by an optimizer from the next round on that closes. The same rule goes on with its state.

        Args:
            rank, optimizer: The worker; a rule with its numbers. Raises Refused if a key has whole numbers, which no
                rule steps.
            number: Of the call: one that comes again, or late, changes nothing.
        """
        self.require_live(rank)
        with self._changed:
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            number = self.chosen + 1 if number is None else number
            if number > self.chosen:
                self.chosen, self.updates = number, optimizer

    def keep(self, rank: int, save: int, keep: bool) -> None:
        """Keep all shards as they are now, for a save instead of any before it; or let go of them.

        Args:
            rank, save: The worker, and the number of the save. Raises Refused in the midst of a round.
            keep: Whether they are kept from here on. Nothing is copied until it is changed.
        """
        self.require_live(rank)
        with self._changed:
            if keep:
                self._kept = save, [shard.state(self.updates) for shard in self.shards]
            elif save == self._kept[0]:
                self._kept = save, ()

    def kept(self, save: int, number: int) -> State:
        """Return the state that was kept of a shard. Raises Refused if it is not here any more.

        Args:
            save, number: The number of the save, and of the shard.

        Returns:
            Its value, and what the optimizer remembers of it, by name.
        """
        kept, states = self._kept
        if save != kept or number >= len(states):
            raise not_kept(save)
        return states[number]

    def stage(self, rank: int, load: int, number: int, state: State, optimizer: Optimizer | None) -> None:
        """Make a state ready that is loaded into a shard, until :meth:`commit` or :meth:`drop`.

        Args:
            rank, load, number: The worker; the number of the load, instead of any before it; the shard. Raises Refused
                in the midst of a round.
            state, optimizer: The value, and what the optimizer, which is loaded with it, remembers of it.
        """
        self.require_live(rank)
        with self._changed:
            shard = self.shard(number)
            with shard.lock:
                shard.require_between_rounds("load")
            self._staged.add(load, shard, state, optimizer)

    def commit(self, rank: int, load: int, parts: int, optimizer: Optimizer | None) -> None:
        """Take all that was staged at once. Raises Refused, and nothing has changed, unless all of it is there.

        Args:
            rank, load, parts: The worker; the number of the load; how many shards were staged. The same again changes
                nothing.
            optimizer: From now on.
        """
        self.require_live(rank)
        with self._changed:
            if load <= self.loaded:
                return
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            for number, state in self._staged.take(load, parts, optimizer).items():
                self.shards[number].restore(state, optimizer)
            self.updates, self.loaded = optimizer, load

    def drop(self, load: int) -> None:
        """Forget what was staged.

        Args:
            load: The number of the load.
        """
        with self._changed:
            self._staged.drop(load)

    # ---- lost workers, and time

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        """Go on, or fail, without a worker.

        Args:
            rank, why: The worker, and the reason.
            left: Whether it has said goodbye: then only those that still wait for it fail.
        """
        with self._changed:
            if rank not in self.live:
                return
            error = WorkerLost(gone(rank, why, left), (rank,))
            if self.lost == "fail" and left and not any(shard.busy or shard.waiting for shard in list(self.shards)):
                self.left = error  # those that push from now on wait in vain
            elif self.lost == "fail" or self.live == {rank}:
                self.failed = self.failed or error
            self.live.discard(rank)
            if rank == 0:
                self._kept = 0, ()  # no other worker reads it
            self._changed.notify_all()
        for shard in list(self.shards):
            with shard.lock:
                if self.failed:
                    done = [(waiting, self.failed) for waiting in shard.waiting]
                    shard.waiting.clear()
                else:
                    done = self._merge(shard) if self.kind == "dist_sync" else self._readable(shard)
                shard.changed.notify_all()
            deliver(done)

    def expire(self) -> None:
        """Answer the pulls that have waited for longer than the deadline. To be called several times per deadline."""
        now = own_time()
        for shard in list(self.shards):
            if not shard.waiting:
                continue
            with shard.lock:
                late = [waiting for waiting in shard.waiting if waiting.pull.until < now]
                shard.waiting = [waiting for waiting in shard.waiting if waiting.pull.until >= now]
            deliver([(waiting, Timeout(self.waits(shard, waiting))) for waiting in late])

    # ---- rounds; the lock of the shard is held

    def _merge(self, shard: Shard) -> list:
        """Add to the open round what can be added in the order of the ranks, and close it after the last.

        A sum or a step that fails closes its round as if nothing had been pushed, and the shard is read no more.
        """
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
                    place = self.allocate(shard.elements, shard.dtype)
                    shard.sum, shard.own = torch.add(shard.sum, value, out=place), True
            except Exception as error:  # no memory left
                shard.fail(error)
        if not shard.summed or self.failed:
            return []
        total, ranks = shard.sum, shard.summed
        shard.sum, shard.summed = None, []
        self._publish(shard, total, shard.own, ranks)
        if shard.queued:
            shard.changed.notify_all()
        return self._readable(shard)

    def _publish(self, shard: Shard, gradient: Tensor | None, own: bool, ranks: list[int]) -> None:
        """Publish the next version, with the pushes of ``ranks``; without a gradient the value stays as it is."""
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
        room = self.allocate(shard.elements, shard.dtype)
        if updates is None:
            shard.value = room.copy_(gradient)
        else:
            shard.value = updates.stepped(shard.value, gradient, shard.memory, counted, room)

    def _readable(self, shard: Shard) -> list:
        """Return the pulls that need not wait any longer, with their answers."""
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

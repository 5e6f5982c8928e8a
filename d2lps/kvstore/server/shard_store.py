"""What a server holds, and when a round closes. No sockets: whoever calls is a thread that speaks for one worker.

A **round** of a key is one push of every worker. It counts workers, not messages: a push carries its number, and one
that has been counted is answered again, not counted again. The sum is taken in the order of the ranks, whatever
order the pushes come in, so it is the same bits for any number of servers. A value that has been published is never
changed: what is being pulled while the next round closes stays whole.
"""

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.record import Record, VersionRecord
from d2lps.kvstore.server.shard import PendingPull, Reply, Shard, Waiting, deliver, wait_until, workers
from d2lps.kvstore.values import is_finite
from d2lps.kvstore.wire.arena import SHARED, Arena

KINDS = ("dist_sync", "dist_async", "dist_ssp")
NAN = ("propagate", "reject", "skip")
LOST = ("fail", "drop")


class ShardStore:
    """The shards of one server: its part of every key.

    Parameters
    ----------
    kind : str
        ``"dist_sync"``: a pull gets exactly the round that its worker has pushed; ``"dist_async"``: every push is
        applied as it comes; ``"dist_ssp"``: the same, and a worker in its clock c (c pushes of the key are done)
        waits until every worker's pushes of the clocks up to c−s−1 are in, s = ``staleness``.
    workers : int
        How many push.
    staleness : int
        Clocks that the slowest worker may be behind with ``"dist_ssp"``.
    nan : str
        What is done with a push that is not finite: ``"propagate"`` it, ``"reject"`` it (an error to that worker,
        who may push again), or ``"skip"`` the whole round for all.
    lost : str
        What a lost worker does to the others: ``"fail"`` (all calls raise WorkerLost), or ``"drop"`` (rounds close
        over those who are left, and ``counted`` says how many that were).
    deadline : float
        Seconds that a call may wait.
    record : bool
        Whether to remember who pushed and pulled what when (:mod:`d2lps.kvstore.record`).

    Attributes
    ----------
    shards : list of Shard
        By their numbers; each has a ``version`` (rounds that are closed) and a ``value``.

    Examples
    --------
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
        nan: str = "propagate",
        lost: str = "fail",
        deadline: float = 30.0,
        record: bool = False,
    ):
        for what, value, known in (("kind", kind, KINDS), ("nan", nan, NAN), ("lost", lost, LOST)):
            if value not in known:
                raise Refused(f"{what} = {value!r}: it is one of {', '.join(known)}")
        self.kind, self.workers, self.staleness, self.nan, self.lost = kind, workers, staleness, nan, lost
        self.deadline, self.record = deadline, Record() if record else None
        self.live = set(range(workers))  # who is not lost
        self.failed = self.left = None  # WorkerLost: for all, or for who still pushes
        self.shards: list[Shard] = []
        self.updates: Optimizer | None = None  # without one a sum is the new value
        self.arena: Arena | None = None  # where large values lie, for workers of this host to read
        self._names: dict[str, int] = {}
        self._barriers: dict[int, set[int]] = {}
        self._barrier_changed = threading.Condition()

    # ---- what workers ask for

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        """Make a shard, unless it is there; the value of rank 0 counts, as with MXNet.

        Parameters
        ----------
        rank : int
            The worker.
        name, elements, dtype : str, int, torch.dtype
            Of the shard, the same from all workers; others are Refused.
        value : Tensor of shape (elements,), or None
            The first value, from the worker that has it.

        Returns
        -------
        int
            Its number.
        """
        with self._barrier_changed:
            if name not in self._names:
                self._names[name] = len(self.shards)
                self.shards.append(Shard(len(self.shards), name, elements, dtype, self.workers))
            shard = self.shards[self._names[name]]
        if (shard.elements, shard.dtype) != (elements, dtype):
            raise Refused(
                f"key {name} has {shard.elements} elements of {shard.dtype} here, and worker {rank} "
                f"initialises {elements} of {dtype}: all initialise the same"
            )
        with shard.lock:
            if shard.value is None and value is not None:
                shard.value = self._allocate(shard).copy_(value)
        return shard.number

    def admit(self, rank: int, number: int, elements: int, dtype: torch.dtype, round_: int) -> bool:
        """Say whether a push may come, before it is received.

        Where this worker's push of the open round is here, it waits: one push per worker and key is kept, and what
        comes beyond stays in the socket.

        Parameters
        ----------
        rank, number : int
            The worker, and the shard.
        elements, dtype : int, torch.dtype
            Of what it pushes.
        round_ : int
            Its how-manieth push that is, counted from 1.

        Returns
        -------
        bool
            False where it is counted already. Raises Refused, WorkerLost or Timeout where it cannot be.
        """
        shard = self.shard(number)
        shard.validate_push(elements, dtype)
        if self.kind != "dist_sync" and self.updates is None:
            raise Refused(f"{self.kind} applies every push as it comes: set_optimizer before the first push")
        self.require_live(rank)
        with shard.lock:
            if round_ <= shard.rounds[rank]:
                return False
            if round_ > shard.rounds[rank] + 1:
                raise Refused(
                    f"push {round_} of worker {rank} to key {shard.name} comes before push {shard.rounds[rank] + 1}"
                )
            if self.kind == "dist_sync" and shard.version < round_ - 1:
                shard.wait(
                    lambda: shard.version >= round_ - 1 or rank not in self.live or self.failed,
                    self.deadline,
                    f"push {round_} to key {shard.name} waits for round {round_ - 1} to close",
                    lambda: self._missing(shard, shard.version + 1),
                )
                self.require_live(rank)
        return True

    def check_finite(self, rank: int, number: int, round_: int, value: Tensor, finite: bool) -> bool:
        """Look at what was received, where ``nan`` wants it. Raises Refused where it is not finite and rejected.

        Parameters
        ----------
        rank, number, round_ : int
            As in :meth:`admit`.
        value, finite : Tensor of shape (elements,), bool
            What is pushed, and whether the rest of the key is finite, which other servers have.

        Returns
        -------
        bool
            Whether it is to be added.
        """
        if self.nan == "propagate":
            return True
        finite = finite and is_finite(value)
        if not finite and self.nan == "reject":
            raise Refused(
                f"push {round_} of worker {rank} to key {self.shard(number).name} is not finite, and "
                "nan='reject': nothing of it is counted"
            )
        return finite

    def push(self, rank: int, number: int, round_: int, value: Tensor, finite: bool = True, own: bool = True) -> None:
        """Count a push, and close the round where it was the last. Raises WorkerLost.

        Parameters
        ----------
        rank, number, round_ : int
            As in :meth:`admit`.
        value : Tensor of shape (elements,)
            This store's until the round closes.
        finite, own : bool
            Whether it is to be added, or the round skipped; whether ``value`` is this store's for ever.
        """
        shard = self.shard(number)
        with shard.lock:
            self.require_live(rank)
            if round_ <= shard.rounds[rank]:
                return
            if self.left and self.kind == "dist_sync":
                raise self.left
            shard.rounds[rank] = round_
            if self.kind == "dist_sync":
                shard.skip |= not finite
                shard.arrived[rank] = value, own
                done = self._merge(shard)
            else:
                self._publish(shard, value if finite else None, own, [rank])
                done = self._readable(shard)
        deliver(done)

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Reply) -> bool:
        """Give a worker what it is to see of several shards, now or when all of it is there.

        Parameters
        ----------
        rank : int
            The worker.
        wanted : sequence of (int, int)
            For each shard its number, and after how many pushes of this worker it is to be seen.
        reply : callable
            Called once, with a list of snapshots (``value``, ``version``, ``counted``) or a KVError.

        Returns
        -------
        bool
            Whether it was called at once.
        """
        self.require_live(rank)
        shards = [(self.shard(number), need) for number, need in wanted]
        if len({shard.dtype for shard, _ in shards}) > 1:
            raise Refused("what is pulled together is of one dtype")
        if empty := [shard.name for shard, _ in shards if shard.value is None]:
            raise Refused(f"key {empty[0]} has no value yet: init it before the first pull")
        pull, here = PendingPull(rank, len(shards), time.monotonic() + self.deadline, reply), 0
        for place, (shard, need) in enumerate(shards):
            with shard.lock:
                if self._may_read(shard, need):
                    pull.snapshots[place] = shard.snapshot
                    here += 1
                else:
                    shard.waiting.append(Waiting(pull, place, need))
        pull.came(here)
        if self.failed:  # perhaps before all of them waited
            pull.fail(self.failed)
        return pull.over

    def set_optimizer(self, rank: int, optimizer: Optimizer | None) -> None:
        """Update by ``optimizer``, or by none, from the next round on that closes.

        Parameters
        ----------
        rank, optimizer : int, Optimizer or None
            The worker; a rule with its numbers.
        """
        self.require_live(rank)
        self.updates = optimizer

    def barrier(self, rank: int, number: int) -> None:
        """Wait until every worker has come. Raises WorkerLost, or Timeout after the deadline.

        Parameters
        ----------
        rank, number : int
            The worker, and which of its barriers this is.
        """
        self.require_live(rank)
        with self._barrier_changed:
            self._barriers.setdefault(number, set()).add(rank)
            self._barriers.pop(number - 2, None)  # nobody can still be there
            self._barrier_changed.notify_all()
            wait_until(
                self._barrier_changed,
                lambda: not self._absent(number) or self.failed,
                self.deadline,
                "the barrier",
                lambda: sorted(self._absent(number)),
            )
            if self.failed and self._absent(number):
                raise self.failed

    def _absent(self, number: int) -> set[int]:
        return self.live - self._barriers.get(number, self.live)

    # ---- what happens to workers

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        """Go on, or fail, without a worker.

        Parameters
        ----------
        rank, why : int, str
            The worker, and what is known of it.
        left : bool
            Whether it has said goodbye: then it fails only those who still wait for it.
        """
        with self._barrier_changed:
            if rank not in self.live:
                return
            error = WorkerLost(f"worker {rank} {'has left' if left else 'is lost'} ({why})", (rank,))
            if self.lost == "fail" and left and not any(shard.busy or shard.waiting for shard in list(self.shards)):
                self.left = error  # whoever pushes from now on waits in vain
            elif self.lost == "fail" or self.live == {rank}:
                self.failed = self.failed or error
            self.live.discard(rank)
            self._barrier_changed.notify_all()
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
        """Answer the pulls that have waited for longer than the deadline. To be called now and then."""
        now = time.monotonic()
        for shard in list(self.shards):
            if not shard.waiting:
                continue
            with shard.lock:
                late = [waiting for waiting in shard.waiting if waiting.pull.until < now]
                shard.waiting = [waiting for waiting in shard.waiting if waiting.pull.until >= now]
            deliver([(waiting, Timeout(self._waits(shard, waiting))) for waiting in late])

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

    def shard(self, number: object) -> Shard:
        """The shard of this number. Raises Refused where there is none.

        Parameters
        ----------
        number : int
            As :meth:`init` gave it.

        Returns
        -------
        Shard
        """
        if type(number) is not int or not 0 <= number < len(self.shards):
            raise Refused(f"there is no part {number} here: init the key first")
        return self.shards[number]

    room = admit  # as it was called before

    parts = property(lambda self: self.shards, doc="As ``shards``, which it was called before.")

    # ---- inside; the lock of the shard is held

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
            if shard.sum is None:
                shard.sum, shard.own = value, own
            elif shard.own or self.updates or self.live.difference(shard.summed):
                shard.sum.add_(value)
            else:  # the last one: the sum goes straight to where it will stay
                shard.sum, shard.own = torch.add(shard.sum, value, out=self._allocate(shard)), True
        if not shard.summed:
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
        if gradient is not None:
            self._update(shard, gradient, own, len(ranks))
        shard.counted, shard.version = len(ranks), shard.version + 1
        if self.record:
            pushes = [] if gradient is None else [(rank, shard.rounds[rank]) for rank in ranks]
            self.record.add(VersionRecord(shard.number, shard.version, pushes, start, time.monotonic()))

    def _update(self, shard: Shard, gradient: Tensor, own: bool, counted: int) -> None:
        if self.updates is None and own:  # as with MXNet, without an optimizer the sum is the new value
            shard.value = gradient
            return
        room = self._allocate(shard)
        if self.updates is None:
            shard.value = room.copy_(gradient)
        else:
            shard.value = self.updates.stepped(shard.value, gradient, shard.memory, counted, room)

    def _readable(self, shard: Shard) -> list:
        """Those who wait no longer, with what they get."""
        if not shard.waiting:
            return []
        done = [(waiting, shard.snapshot) for waiting in shard.waiting if self._may_read(shard, waiting.need)]
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

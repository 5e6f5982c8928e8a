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

from d2lps.kvstore.errors import Late, Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.options import validate_deadline, validate_staleness
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.record import Record
from d2lps.kvstore.server.barriers import Barriers
from d2lps.kvstore.server.keeping import Keeping
from d2lps.kvstore.server.loading import Loading, ShardLoading
from d2lps.kvstore.server.merging import Merging
from d2lps.kvstore.server.shard import PendingPull, Reply, Shard, Waiting, deliver, wait_until
from d2lps.kvstore.values import is_finite
from d2lps.kvstore.wire.arena import Arena

KINDS = ("dist_sync", "dist_async", "dist_ssp")
NAN = ("propagate", "reject", "skip")
LOST = ("fail", "drop")


class ShardStore(ShardLoading, Merging, Keeping):
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
        self.kind, self.workers, self.nan, self.lost = kind, workers, nan, lost
        self.staleness = validate_staleness(staleness)
        self.deadline, self.record = validate_deadline(deadline), Record() if record else None
        self.live = set(range(workers))  # who is not lost
        self.failed = self.left = None  # WorkerLost: for all, or for who still pushes
        self.shards: list[Shard] = []
        self.updates: Optimizer | None = None  # without one a sum is the new value
        self.ready: tuple[int, Optimizer | None] | None = None  # the next one, by its number
        self.arena: Arena | None = None  # where large values lie, for workers of this host to read
        self._names: dict[str, int] = {}
        self._loading, self._pushing = Loading(), 0
        self._barriers = Barriers()
        self._changed = threading.Condition()

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
        with self._changed:
            if name not in self._names:
                self.updates and self.updates.validate_dtype(dtype, name)
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
            if self.left and self.kind == "dist_sync":
                raise self.left
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
        """Count a push, and close the round where it was the last. Raises WorkerLost where this worker counts as lost.

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
            if round_ <= shard.rounds[rank]:
                return
            if rank not in self.live:
                self.require_live(rank)
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
        pull, here, failed = PendingPull(rank, len(shards), own_time() + self.deadline, reply), 0, None
        for place, (shard, need) in enumerate(shards):
            with shard.lock:
                failed = failed or shard.failed
                if self._may_read(shard, need):
                    pull.snapshots[place] = shard.snapshot
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

        Parameters
        ----------
        rank, number, name : int, int, str
            The worker, and which barrier of that name this is. To one of the last four it may come again.
        note : str, optional
            What worker 0 tells all others there.
        coming : bool
            Worker 0 is on its way, and does not wait yet: whose deadline is over meanwhile hears so (Late).

        Returns
        -------
        str or None
            What worker 0 told.
        """
        self.require_live(rank)
        with self._changed:
            if coming:
                return self._barriers.expect(name, number)
            barrier = self._barriers.come(name, number, rank, note)
            self._changed.notify_all()
            what, missing = f"barrier {name}" if name else "the barrier", lambda: sorted(self.live - barrier.came)
            try:
                wait_until(
                    self._changed, lambda: barrier.came >= self.live or self.failed, self.deadline, what, missing
                )
            except Timeout as late:
                barrier.leave(rank)  # or the next one to come would find it here
                raise late if time.monotonic() - barrier.expected > self.deadline else Late(str(late)) from None
            if (gone := self.failed or self.left) and len(barrier.came) < self.workers:
                raise gone
            return barrier.note

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
        with self._changed:
            if rank not in self.live:
                return
            error = WorkerLost(f"worker {rank} {'has left' if left else 'is lost'} ({why})", (rank,))
            if self.lost == "fail" and left and not any(shard.busy or shard.waiting for shard in list(self.shards)):
                self.left = error  # whoever pushes from now on waits in vain
            elif self.lost == "fail" or self.live == {rank}:
                self.failed = self.failed or error
            self.live.discard(rank)
            if rank == 0:
                self._kept = 0, [], []  # nobody else reads it
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
        """Answer the pulls that have waited for longer than the deadline. To be called now and then."""
        now = own_time()
        for shard in list(self.shards):
            if not shard.waiting:
                continue
            with shard.lock:
                late = [waiting for waiting in shard.waiting if waiting.pull.until < now]
                shard.waiting = [waiting for waiting in shard.waiting if waiting.pull.until >= now]
            deliver([(waiting, Timeout(self._waits(shard, waiting))) for waiting in late])

    def shard(self, number: object) -> Shard:
        """The shard of this number. Raises Refused where there is none.

        Parameters
        ----------
        number : int
            As :meth:`init` gave it.

        Returns
        -------
        Shard
            This server's part of one key.
        """
        if type(number) is not int or not 0 <= number < len(self.shards):
            raise Refused(f"there is no part {number} here: init the key first")
        return self.shards[number]

    room = admit  # as it was called before

    parts = property(lambda self: self.shards, doc="As ``shards``, which it was called before.")

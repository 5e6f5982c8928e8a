"""The values that a server holds, and the rounds in which pushes change them. No sockets: each caller speaks for one
worker. A request is checked here, and may wait here; the rules of replication decide what it changes, also for a server
without replicas, which is a group of one.

A **round** of a key is one push of every worker. It counts workers, not messages: a push has a number, and one that
was counted is answered again, not counted again. The sum is taken in the order of the ranks, in whatever order pushes
come, so its bits are the same for any number of servers. A value that was published is never changed: a pull gets all
of it while the next round closes.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.rendezvous import DEADLINE, require_seconds
from d2lps.kvstore.checkpoint import layout, piece
from d2lps.kvstore.errors import KVError, Late, Refused, Timeout, WorkerLost, server_text
from d2lps.kvstore.optimizers import Optimizer, State, remembered
from d2lps.kvstore.record import Record, VersionRecord
from d2lps.kvstore.replication import Replica, View
from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.replication.commands import KEPT
from d2lps.kvstore.replication.messages import Name
from d2lps.kvstore.server.coding import StoredValue
from d2lps.kvstore.server.parts import Gradient, Shard, Staged, WaitingPull, lost_here, no_value
from d2lps.kvstore.server.slot import Slot, over, workers
from d2lps.kvstore.threads import own_time
from d2lps.kvstore.wire.frames import Broken, Entry
from d2lps.kvstore.wire.shared_buffer import SHARED, SharedBuffer
from d2lps.messages import text

log = logging.getLogger("d2lps.kvstore.server")
KINDS = ("dist_sync", "dist_async", "dist_ssp")
LOST = ("fail", "drop")
EARLIER = 0.75  # of a deadline: with lost="drop" a worker counts as lost before the others give up
LOOK = 0.02  # seconds between two looks at what a worker at a barrier waits for
PATIENCE = 1.0  # seconds of silence after which another server is taken for dead
DEFERRED = 1 << 16  # bytes of a gradient, from which on it is added while other requests are served


class SlotStore:
    """The part of every key that one server of a slot holds; at first the slot has no other server.

    Every method raises Broken if this server is not the primary of its slot: the worker finds the connection ended, and
    goes to another server.

    The arguments are those of :func:`d2lps.kvstore.create`. With ``"dist_ssp"``, a worker in its clock c (c pushes of
    the key are done) waits until every worker's pushes of the clocks up to c−s−1 are in, s = ``staleness``. With
    ``lost="drop"``, ``counted`` of a value says how many pushes its round had.

    Example:
        >>> server = SlotStore("dist_sync", workers=2)
        >>> for rank in range(2):
        ...     number = server.init(rank, "w", 1, torch.float32, torch.zeros(1))
        >>> for rank in (1, 1, 0):  # one of them comes twice
        ...     if server.admit(rank, torch.float32, [Entry(number, 0, 0, elements=1, round=1)]) == [True]:
        ...         server.push(rank, [(number, 1, torch.tensor([4.0**rank]))])
        >>> server.shards[number].version, server.shards[number].value
        (1, tensor([5.]))
    """

    shared_buffer: SharedBuffer | None = None  # for large values, which workers of this host can read there

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
        for name, value, known in (("kind", kind, KINDS), ("lost", lost, LOST)):
            if value not in known:
                raise Refused(server_text("store.server.option", name=name, value=repr(value), known=", ".join(known)))
        self.kind, self.workers, self.lost = kind, workers, lost
        if type(staleness) is not int or not 0 <= staleness < 1 << 53:  # JSON has no larger integers
            raise Refused(text("store.staleness", value=repr(staleness)))
        self.staleness, self.deadline = staleness, require_seconds("deadline", deadline, Refused)
        self.record = Record() if record else None
        self._shards: list[Shard] = []
        self._staged = Staged()  # on the primary alone: worker 0 loads again if that is lost before it counts
        self._pulls: dict[WaitingPull, int] = {}  # the number of its request
        self._expected: dict[tuple[str, int], float] = {}  # a barrier, and when worker 0 last was on its way to it
        self.open(0, (0, "", ""))

    def open(self, number: int, name: Name, *group: object) -> None:
        """Become replica ``name`` of slot ``number``, in a group of servers: see :class:`Slot`."""
        self.slot = Slot(number, name, partial(self._rules, name), *group)

    def _rules(self, name: Name, view: View) -> Replica:
        """Return the rules of a replica as they are at first in ``view``."""
        settings = self.workers, self.kind, self.staleness, PATIENCE
        copied = lambda stored: stored and stored.copied()  # noqa: E731
        replica = Replica(name, view, (), *settings, self._added, self._published, copied)
        replica.defers = lambda gradient: gradient.tensor is not None and gradient.tensor.nbytes >= DEFERRED
        return replica

    @property
    def _sends(self) -> bool:
        """Whether a sum has to stay as it is until other servers have it."""
        core = self.slot.core
        return core.is_primary and bool(core.followers)

    def _added(self, total: Gradient | None, gradient: Gradient | None, last: bool) -> Gradient | Tensor | None:
        """Return a sum with one more gradient. The last one is a tensor, or None if the sum has failed."""
        if total is None and not last:
            return gradient
        keeps = last and (self.updates is None or self._sends)  # the sum is the new value, or is still to be sent
        try:
            if total is None:
                total = gradient
            elif gradient and total.tensor is not None:
                if keeps and not total.own:  # it goes straight to its place
                    place = self.allocate(total.tensor.numel(), total.tensor.dtype)
                    return torch.add(total.tensor, gradient.tensor, out=place)
                else:
                    total.tensor.add_(gradient.tensor)
            if not last:
                return total
            if keeps and not total.own and total.tensor is not None:
                return self.allocate(total.tensor.numel(), total.tensor.dtype).copy_(total.tensor)
        except Exception:  # no memory left
            log.exception("pushes to slot %d could not be added", self.slot.number)
            total = Gradient(None, True)
        return total.tensor if last else total

    def _published(self, stored: StoredValue, add: m.Add, optimizer: Optimizer | None) -> StoredValue:
        """Return the next value of a part."""
        start, counted = time.monotonic() if self.record else 0.0, len(add.pushes)
        if stored.failed:
            stored = stored._replace(counted=counted)
        elif optimizer is None and add.total is not None:  # as with MXNet, the sum is the new value
            stored = StoredValue(add.total, stored.memory, counted)
        else:
            stored = self._stepped(stored, add.total, optimizer, counted)
        if self.record:
            version = self.slot.core.parts[add.part].version + 1
            pushes = [] if stored.failed else [*add.pushes]
            self.record.add(VersionRecord(add.part, version, pushes, start, time.monotonic()))
        return stored

    def _stepped(self, stored: StoredValue, total: Tensor | None, optimizer: Optimizer, counted: int) -> StoredValue:
        try:
            if total is None:
                raise MemoryError("the pushes could not be added")
            if optimizer.scale not in (1, 1.0) and self._sends:
                total = total.clone()
            place = self.allocate(total.numel(), total.dtype)
            value = optimizer.stepped(stored.value, total, stored.memory, counted, place)
            return stored._replace(value=value, counted=counted)
        except Exception as error:  # the state of the optimizer may be half of something
            log.exception("a key of slot %d could not be updated", self.slot.number)
            return stored._replace(counted=counted, failed=f"{type(error).__name__}: {error}")

    # ---- what is known

    @property
    def live(self) -> frozenset[int]:
        return self.slot.core.live

    @property
    def needed(self) -> bool:
        """Whether there are workers, or its backup does not know yet that there are none."""
        core = self.slot.core
        return bool(core.live) or core.is_primary and core.commit < core.seq

    @property
    def updates(self) -> Optimizer | None:
        return self.slot.core.chosen.optimizer

    @property
    def shards(self) -> list[Shard]:
        core = self.slot.core
        if len(self._shards) != len(core.specs):
            known = zip(core.names, core.specs, strict=False)
            self._shards = [Shard(self.slot, number, name, spec) for number, (name, spec) in enumerate(known)]
        return self._shards

    @property
    def failed(self) -> WorkerLost | None:
        """The error for all workers, once the backup knows of it, too."""
        return self._loss("failed")

    @property
    def left(self) -> WorkerLost | None:
        """The error for workers that still push."""
        return self._loss("left")

    def _loss(self, how: str) -> WorkerLost | None:
        core = self.slot.core
        for rank, lose in [*core.losses.items()]:
            if lose.why[1] == how and core.lost_at[rank] <= core.commit:
                return WorkerLost(lose.why[0], (rank,))
        return None

    @property
    def patience(self) -> float:
        """The seconds of silence after which a worker counts as lost."""
        return self.deadline * (EARLIER if self.lost == "drop" else 1.0)

    def shard(self, number: object) -> Shard:
        """Return the part with this number, as :meth:`init` gave it. Raises Refused if there is none."""
        shards = self.shards
        if type(number) is not int or not 0 <= number < len(shards):
            raise Refused(f"there is no part {number} here: init the key first")
        return shards[number]

    def require_live(self, rank: int) -> None:
        """Raise WorkerLost if this worker counts as lost, or one without which the others cannot go on."""
        with self.slot.leading() as core:
            if rank in core.live and not core.losses:
                return
            known = server_text("store.server.loss-waits")
            self.slot.wait(lambda: core.commit >= max(core.lost_at.values()), self.deadline, known, list)
            if failed := self.failed:
                raise failed
            if rank not in self.live:
                raise lost_here(rank)

    def require_complete(self) -> None:
        """Raise WorkerLost if no round can close any more, as a worker has left."""
        if self.kind == "dist_sync" and (left := self.left):
            raise left

    def allocate(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return memory for a value: in the shared buffer, if there is one and the value is large."""
        large = self.shared_buffer is not None and elements * dtype.itemsize >= SHARED
        place = self.shared_buffer.tensor(elements, dtype) if large else None
        return torch.empty(elements, dtype=dtype) if place is None else place

    # ---- requests of workers

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        """Make a part, unless it exists, and return its number; the value of rank 0 counts, as with MXNet.

        Raises Refused unless all workers give the same ``name``, ``elements`` and ``dtype``.
        """
        with self.slot.leading() as core:
            if name in core.names:
                others, other = core.specs[core.names[name]]
                if (others, other) != (elements, dtype):
                    given = {"elements": others, "dtype": other, "rank": rank, "others": elements, "other": dtype}
                    raise Refused(server_text("store.server.unlike", key=name, **given))
            elif self.updates:
                self.updates.validate_dtype(dtype, name)
            stored = None if value is None else StoredValue(self.allocate(elements, dtype).copy_(value), {})
            self.slot.ask(rank, m.Do(0, 0, rank, m.Begin(name, (elements, dtype), stored)))
            return core.names[name]

    def admit(self, rank: int, dtype: torch.dtype, pushes: Sequence[Entry]) -> list[bool]:
        """Return for each push of a frame, before it is received, False if it is counted already.

        It waits if this worker's last push is in the open round: one push per worker and key is kept, and further ones
        stay in the socket. Raises Refused, WorkerLost or Timeout if a push cannot be counted.
        """
        synchronous, new = self.kind == "dist_sync", []
        with self.slot.leading() as core:
            shards = self.shards
            for number, _, _, elements, round_ in pushes:
                shard = shards[number] if number < len(shards) else self.shard(number)
                shard.validate_push(elements, dtype)
                if not synchronous and core.chosen.optimizer is None:
                    raise Refused(server_text("store.server.no-optimizer", kind=self.kind))
                if core.losses:
                    self.require_live(rank)
                counted = core.counted(rank, number)
                new.append(round_ > counted)
                if round_ <= counted:
                    continue
                if core.losses:
                    self.require_complete()
                if round_ > counted + 1:
                    raise Refused(f"push {round_} of worker {rank} to key {shard.name} comes before push {counted + 1}")
                if synchronous and core.committed[number].version < round_ - 1:
                    self._await_round(core, rank, shard, round_)
        return new

    def _await_round(self, core: Replica, rank: int, shard: Shard, round_: int) -> None:
        """Wait until a push need not wait any longer for the round before it."""
        self.slot.wait(
            lambda: shard.version >= round_ - 1 or rank not in core.live or core.over,
            self.deadline,
            server_text("store.server.push-waits", push=round_, key=shard.name, round=round_ - 1),
            lambda: self._missing(shard, shard.version + 1),
        )
        self.require_live(rank)

    def push(self, rank: int, pushes: Sequence[tuple[int, int, Tensor]], own: bool = False) -> None:
        """Count the pushes of a frame, (part, round, value) each, and close the rounds that they complete.

        Raises WorkerLost if this worker counts as lost. ``own``: the store may keep the values for ever; otherwise they
        stay as they are until the round closes.
        """
        with self.slot.leading() as core:
            self.require_live(rank)
            self.require_complete()
            core.push(rank, [(number, round_, Gradient(value, own)) for number, round_, value in pushes])
        # What this worker asks for next comes after a round that it has completed, although others may add it up.
        self.slot.pause(lambda: not any(core.completing(number) for number, _, _ in pushes), self.deadline)

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Callable, since: int | None = None) -> bool:
        """Give a worker the values of several parts, now or when all may be read. Return True if that was at once.

        ``wanted`` has for each part its number, and the pushes of this worker that have to be in it; ``reply`` is
        called once, with a list of PartState or a KVError; ``since`` is the last command before the call began.
        """
        with self.slot.leading():
            self.require_live(rank)
            self.shard(max(wanted)[0])
            shards = self.shards
            if len({shards[number].dtype for number, _ in wanted}) > 1:
                raise Refused("what is pulled together is of one dtype")
            pull = WaitingPull(rank, wanted, own_time() + self.deadline, reply)
            number = self.slot.ask(rank, m.Pull(0, 0, rank, tuple(wanted), since), partial(self._answer, pull))
            self._pulls[pull] = number
        return pull not in self._pulls

    def _answer(self, pull: WaitingPull, answer: NamedTuple) -> None:
        if self._pulls.pop(pull, None) is None:
            return  # it has failed
        if not isinstance(answer, m.Values):
            pull.reply(lost_here(pull.rank))
            return
        for number, part in answer.parts:
            if part.value is None or part.value.failed:
                pull.reply(self.shards[number].unreadable(part.value))
                return
        pull.reply([part for _, part in answer.parts])

    def _fail(self, pull: WaitingPull, error: KVError) -> None:
        """Answer a pull with an error, unless it has its answer."""
        number = self._pulls.pop(pull, None)
        if number is not None:
            self.slot.forget(pull.rank, number)
            pull.reply(error)

    def readable(self, number: int, need: int) -> bool:
        """Return True if a part may be read after so many pushes, once what is done is committed."""
        part, behind = self.slot.core.parts[number], self.staleness if self.kind == "dist_ssp" else need
        done = [part.version] if self.kind == "dist_sync" else [part.rounds[rank] + behind for rank in self.live]
        return all(count >= need for count in done)

    def set_optimizer(self, rank: int, optimizer: Optimizer | None, number: int | None = None) -> None:
        """Update by an optimizer from the next round on that closes. The same rule goes on with its state.

        A call whose ``number`` comes again, or late, changes nothing. Raises Refused if a key has whole numbers, which
        no rule steps.
        """
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            number = core.chosen.number + 1 if number is None else number
            self.slot.ask(rank, m.Do(0, 0, rank, m.Choose(number, optimizer)))

    def barrier(
        self, rank: int, number: int, name: str = "", note: str | None = None, coming: bool = False
    ) -> str | None:
        """Wait until every worker has come, and return the note of worker 0. Raises WorkerLost, Timeout or Late.

        A worker may come again to the last four barriers of a name. ``coming``: worker 0 is on its way, and does not
        wait yet: until it comes, the others get Late instead of Timeout.
        """
        if coming:
            with self.slot.leading() as core:
                self._require_recent(core, name, number)
                self._expected = {(name, number): time.monotonic()}
                return None
        return self.wait_at(self.come(rank, number, name, note))

    def come(self, rank: int, number: int, name: str = "", note: str | None = None) -> tuple:
        """Come to a barrier, as :meth:`barrier`, and do not wait yet. Returns the argument of :meth:`wait_at`."""
        answers: SimpleQueue[NamedTuple] = SimpleQueue()
        with self.slot.leading() as core:
            self.require_live(rank)
            self._require_recent(core, name, number)
            request = self.slot.ask(rank, m.Meet(0, 0, rank, name, number, note), answers.put)
        return rank, number, name, request, answers

    def wait_at(self, place: tuple) -> str | None:
        """Wait at a barrier. Returns the note of worker 0. Raises WorkerLost, or Timeout."""
        rank, number, name, request, answers = place
        until = time.monotonic() + self.deadline
        while True:
            with suppress(Empty):
                answer = answers.get(timeout=LOOK)
                break
            self.slot.require_lead()
            lost = self.failed or self.left
            if lost or time.monotonic() > until:
                missing = sorted(self.live - self.slot.core.met(name, number))
                self.slot.forget(rank, request)
                raise lost or self._late(name, missing, self._expected.get((name, number), -math.inf))
        if not isinstance(answer, m.Done):
            raise lost_here(rank)
        return answer.answer

    def _require_recent(self, core: Replica, name: str, number: int) -> None:
        last = max(core.passed.get(name, ()), default=0)
        if number <= last - KEPT:
            raise Refused(f"barrier {number} is long over: the last one is {last}")

    def _late(self, name: str, missing: list[int], expected: float) -> Timeout:
        """Return the error for a worker that has waited at a barrier for a whole deadline.

        ``expected``: when worker 0 last said that it is on its way.
        """
        where = server_text("store.server.barrier", name=name) if name else server_text("store.server.the-barrier")
        kind = Late if time.monotonic() - expected <= self.deadline else Timeout
        return kind(over(where, self.deadline, missing))

    def last_barrier(self, rank: int, name: str) -> int:
        """Return the number of the last barrier that all have passed, or 0; to a later one this worker has not come."""
        with self.slot.leading() as core:
            core.withdraw(rank, name)
            return max(core.passed.get(name, ()), default=0)

    # ---- saving and loading

    def versions(self, rank: int) -> list[int]:
        """Return the version of each part, for a save of what is there now. Raises Refused in the midst of a round."""
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards:
                shard.require_settled("save", self.deadline / 2)
                stored = core.parts[shard.number].value
                if stored is None:
                    raise no_value(shard.name, "save")
                if stored.failed:
                    raise shard.unreadable(stored)
            return [part.version for part in core.parts]

    def state(self, rank: int, number: int, version: int, start: int) -> tuple[dict, memoryview]:
        """Return the layout of a part's state, and bytes of it from ``start`` on.

        Raises Refused if its version is no longer the one that :meth:`versions` gave.
        """
        with self.slot.leading() as core:
            self.require_live(rank)
            shard = self.shard(number)
            stored = core.parts[number].value
            if stored is None or core.parts[number].version != version:
                raise Refused(f"key {shard.name} has changed since this save began: save again")
            state = {"value": stored.value} | remembered(self.updates, stored.memory)
            copy = bytearray(piece(state, start))  # because the next push may change the state
            return layout(state), memoryview(copy)

    def stage(self, rank: int, load: int, number: int, state: State, optimizer: Optimizer | None) -> None:
        """Make a state ready that is loaded into a part, until :meth:`commit` or :meth:`drop`.

        What an earlier load has staged is dropped. Raises Refused in the midst of a round.
        """
        with self.slot.leading():
            self.require_live(rank)
            shard = self.shard(number)
            shard.require_settled("load", self.deadline / 2)
            self._staged.add(load, shard, state, optimizer)

    def commit(self, rank: int, load: int, parts: int, optimizer: Optimizer | None) -> None:
        """Take all ``parts`` that were staged at once, and the optimizer from now on. The same again changes nothing.

        Raises Refused, and nothing has changed, unless all of them are there.
        """
        with self.slot.leading() as core:
            self.require_live(rank)
            if load <= core.loaded:
                return
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            values = []
            for number, state in sorted(self._staged.take(load, parts, optimizer).items()):
                memory = dict(state)
                value = memory.pop("value")
                values.append((number, StoredValue(value, {optimizer.rule: memory} if optimizer and memory else {})))
            self.slot.ask(rank, m.Do(0, 0, rank, m.Load(load, tuple(values), optimizer)))

    def drop(self, load: int) -> None:
        """Forget what was staged for a load."""
        with self.slot.leading():
            self._staged.drop(load)

    # ---- lost workers, and time

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        """Go on, or fail, without a worker. If it has ``left`` with a goodbye, only those that wait for it fail."""
        try:
            with self.slot.leading() as core:
                if rank not in core.live:
                    return
                sentence = server_text("store.server.lost", rank=rank, why=why)
                if left:
                    sentence = server_text("store.server.left", rank=rank, why=why)
                how = "dropped"
                waits = any(shard.busy for shard in self.shards) or any(
                    not self.readable(number, need) for pull in [*self._pulls] for number, need in pull.wanted
                )
                if self.lost == "fail" and left and not waits:
                    how = "left"
                elif self.lost == "fail" or core.live == {rank}:
                    how = "failed"
                core.receive("detector", m.Lose(rank, how != "dropped", (sentence, how)), own_time())
                self.slot.when_committed(self._fail_all)
        except Broken:
            return  # the new primary finds out for itself

    def pending(self, rank: int) -> bool:
        """Return True if something of a worker would be lost with this server."""
        with self.slot.leading() as core:
            return core.commit < core.seq or any(rank in core.arrived(index) for index in range(len(core.parts)))

    def _fail_all(self) -> None:
        if failed := self.failed:
            for pull in [*self._pulls]:
                self._fail(pull, failed)

    def _missing(self, shard: Shard, need: int) -> list[int]:
        """Return the workers that have not pushed so often."""
        return [rank for rank in sorted(self.live) if shard.rounds[rank] < need]

    def _waits(self, shard: Shard, need: int) -> str:
        """Return the sentence for a pull that has waited for a whole deadline."""
        seconds = f"{self.deadline:g}"
        if self.readable(shard.number, need):
            return server_text("store.server.unsure", key=shard.name, seconds=seconds)
        need -= self.staleness if self.kind == "dist_ssp" else 0
        missing = workers(self._missing(shard, need))
        return server_text("store.server.pull-late", key=shard.name, seconds=seconds, push=need, workers=missing)

    def expire(self) -> None:
        """Answer the pulls that have waited for longer than the deadline. To be called several times per deadline."""
        if not self.slot.leads:
            self._pulls.clear()  # the workers ask another server
            return
        now = own_time()
        for pull, request in [*self._pulls.items()]:
            if pull.until < now:
                unread = self.slot.core.unread(("worker", pull.rank), request)
                number, need = pull.wanted[unread[0] if unread else 0]
                self._fail(pull, Timeout(self._waits(self.shards[number], need)))

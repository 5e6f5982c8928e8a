"""The store of a slot, with the methods of a ShardStore. It decides nothing: the rules of replication do."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import KVError, Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer, remembered
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.record import Record, VersionRecord
from d2lps.kvstore.replicas.coding import Held
from d2lps.kvstore.replicas.lines import Peers
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replicas.slot import Slot
from d2lps.kvstore.replication import Part, Replica, View
from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.replication.commands import KEPT
from d2lps.kvstore.replication.messages import Name
from d2lps.kvstore.server.base import (
    BaseStore,
    gone,
    lost_here,
    no_value,
    not_kept,
    require_one_dtype,
    require_same_shape,
)
from d2lps.kvstore.server.shard import JointPull, KeyPart, Pulled, Reply, Waiting
from d2lps.kvstore.server.staged import Staged
from d2lps.kvstore.told import told
from d2lps.kvstore.wire.frames import Broken

log = logging.getLogger("d2lps.kvstore.server")
LOOK = 0.02  # seconds between two looks at what a worker at a barrier waits for
PATIENCE = 1.0  # seconds of silence after which another server is taken for dead


DEFERRED = 1 << 16  # bytes of a gradient, from which on it is added while other requests are served


class Gradient(NamedTuple):
    """A pushed value, or a sum of some; ``own``: it may stay in its place; None if the sum has failed."""

    tensor: Tensor | None
    own: bool


class SlotShard(KeyPart):
    """A part of a key in a slot."""

    def __init__(self, store: "SlotStore", number: int, name: str, like: tuple[int, torch.dtype]):
        super().__init__(number, name, *like)
        self._store = store

    @property
    def value(self) -> Tensor | None:
        held = self._store.slot.core.committed[self.number].value
        return held and held.value

    @property
    def version(self) -> int:
        return self._store.slot.core.committed[self.number].version

    @property
    def rounds(self) -> list[int]:
        """How many pushes of each worker are counted, also in the open round."""
        core = self._store.slot.core
        part, arrived = core.parts[self.number], core.arrived(self.number)
        return [part.version + 1 if rank in arrived else done for rank, done in enumerate(part.rounds)]

    @property
    def busy(self) -> bool:
        return bool(self._store.slot.core.arrived(self.number))

    @property
    def lock(self) -> AbstractContextManager:
        """The lock of the slot."""
        return self._store.slot.lock

    def wait(self, done: Callable[[], object], seconds: float, what: str, missing: Callable[[], list[int]]) -> None:
        """Wait for a round, as a Shard does. Raises Timeout, or Broken."""
        self._store.slot.wait(done, seconds, what, missing)

    def require_readable(self, held: Held) -> None:
        """Raise an error if the value may be wrong."""
        if held.failed:
            raise self.not_updated(held.failed)

    def require_settled(self, name: str) -> None:
        """Raise Refused if a round is open. A round that began anew, as this server took over, gets time to close."""
        slot = self._store.slot
        left = slot.led + self._store.deadline / 2 - own_time() if slot.took_over else 0.0
        if self.busy and left > 0:
            with suppress(Timeout):
                slot.wait(lambda: not self.busy, left, "", list)
        self.require_between_rounds(name)


class SlotStore(BaseStore):
    """A replica of a slot, with the methods of a ShardStore.

    ``settings``: the arguments of a ShardStore. Every method raises Broken if this is not the primary: the worker finds
    the connection ended, and goes to another server.
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
        self._shards: list[SlotShard] = []
        self._pushed: list[int] = []  # parts to which the present frame pushes
        self._staged = Staged()  # on the primary alone: worker 0 loads again if that is lost before it counts
        self._pulls: dict[JointPull, tuple[list[int], list[tuple[SlotShard, int]]]] = {}
        self._expected: dict[tuple[str, int], float] = {}  # a barrier, and when worker 0 last was on its way to it
        self.slot: Slot | None = None

    def open(
        self, number: int, name: Name, register: Register | StoreRegister, peers: Peers, deposed: Callable[[], object]
    ) -> None:
        """Become a replica of slot ``number``: see :class:`Slot`."""
        self.slot = Slot(number, name, partial(self._rules, name), register, peers, deposed)

    def _rules(self, name: Name, view: View) -> Replica:
        """Return the rules of a replica as they are at first in ``view``."""
        settings = self.workers, self.kind, self.staleness, PATIENCE
        copied = lambda held: held and held.copied()  # noqa: E731
        replica = Replica(name, view, (), *settings, self._added, self._published, copied)
        replica.defers = lambda gradient: gradient.tensor.nbytes >= DEFERRED
        return replica

    @property
    def _sends(self) -> bool:
        """Whether a sum has to stay as it is until other servers have it."""
        core = self.slot.core
        return core.is_primary and bool(core.followers)

    def _added(self, total: Gradient | None, gradient: Gradient | None, last: bool) -> Gradient | Tensor | None:
        """Return a sum with one more gradient. The last one is a tensor, or None if the sum has failed."""
        keeps = self.updates is None or self._sends  # the sum is the new value, or is still to be sent
        try:
            if total is None:
                total = gradient
            elif gradient and total.tensor is not None:
                if last and keeps and not total.own:  # it goes straight to its place
                    place = self.allocate(total.tensor.numel(), total.tensor.dtype)
                    total = Gradient(torch.add(total.tensor, gradient.tensor, out=place), True)
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

    def _published(self, held: Held, add: m.Add, optimizer: Optimizer | None) -> Held:
        """Return the next value of a part."""
        start = time.monotonic()
        held = self._stepped(held._replace(counted=len(add.pushes)), add.total, optimizer)
        if self.record:
            version = self.slot.core.parts[add.part].version + 1
            pushes = [] if held.failed else [*add.pushes]
            self.record.add(VersionRecord(add.part, version, pushes, start, time.monotonic()))
        return held

    def _stepped(self, held: Held, total: Tensor | None, optimizer: Optimizer | None) -> Held:
        if held.failed:
            return held
        try:
            if total is None:
                raise MemoryError("the pushes could not be added")
            if optimizer is None:  # as with MXNet, the sum is the new value
                return held._replace(value=total)
            if optimizer.scale not in (1, 1.0) and self._sends:
                total = total.clone()
            place = self.allocate(total.numel(), total.dtype)
            return held._replace(value=optimizer.stepped(held.value, total, held.memory, held.counted, place))
        except Exception as error:  # the state of the optimizer may be half of something
            log.exception("a key of slot %d could not be updated", self.slot.number)
            return held._replace(failed=f"{type(error).__name__}: {error}")

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
    def chosen(self) -> int:
        """The number of the last optimizer."""
        return self.slot.core.chosen.number

    @property
    def loaded(self) -> int:
        """The number of the last load."""
        return self.slot.core.loaded

    @property
    def shards(self) -> list[SlotShard]:
        core = self.slot.core
        if len(self._shards) != len(core.likes):
            known = zip(core.names, core.likes, strict=False)
            self._shards = [SlotShard(self, number, name, like) for number, (name, like) in enumerate(known)]
        return self._shards

    @property
    def failed(self) -> WorkerLost | None:
        """The error for all workers, once the backup knows of it, too."""
        return self._loss("failed")

    @property
    def left(self) -> WorkerLost | None:
        """The error for workers that still push."""
        return self._loss("left")

    @property
    def is_over(self) -> bool:
        return self.slot.core.over

    def _loss(self, how: str) -> WorkerLost | None:
        core = self.slot.core
        for rank, lose in [*core.losses.items()]:
            if lose.why[1] == how and core.lost_at[rank] <= core.commit:
                return WorkerLost(lose.why[0], (rank,))
        return None

    def require_live(self, rank: int) -> None:
        with self.slot.leading() as core:
            if rank in core.live and not core.losses:
                return
            known = told("store.told.loss-waits")
            self.slot.wait(lambda: core.commit >= max(core.lost_at.values()), self.deadline, known, list)
            super().require_live(rank)

    # ---- requests of workers

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        with self.slot.leading() as core:
            if name in core.names:
                require_same_shape(name, core.likes[core.names[name]], rank, (elements, dtype))
            elif self.updates:
                self.updates.validate_dtype(dtype, name)
            held = None if value is None else Held(self.allocate(elements, dtype).copy_(value), {})
            self.slot.ask(rank, m.Do(0, 0, rank, m.Begin(name, (elements, dtype), held)))
            return core.names[name]

    def admit(self, rank: int, number: int, elements: int, dtype: torch.dtype, round_: int) -> bool:
        with self.slot.leading():
            return super().admit(rank, number, elements, dtype, round_)

    @contextmanager
    def counting(self, rank: int) -> Iterator[None]:
        """As a ShardStore. The rules decide about all pushes of a frame at once, and act on that in the end."""
        with self.slot.leading() as core:
            self.require_live(rank)
            self.require_complete()
            self._pushed = pushed = []
            yield
        # What this worker asks for next comes after a round that it has completed, although others may add it up.
        self.slot.pause(lambda: not any(map(core.completing, pushed)), self.deadline)

    def push(self, rank: int, number: int, round_: int, value: Tensor, own: bool = True) -> None:
        with self.slot.leading():
            if rank not in self.live:
                self.require_live(rank)
            self.slot.core.push(rank, number, round_, Gradient(value, own))
            self._pushed.append(number)

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Reply, since: int | None = None) -> bool:
        """As a ShardStore; ``since``: the last command before the call began."""
        with self.slot.leading() as core:
            self.require_live(rank)
            shards = [(self.shard(number), need) for number, need in wanted]
            require_one_dtype([shard for shard, _ in shards])
            pull, numbers, here = JointPull(rank, len(shards), own_time() + self.deadline, reply), [], []
            for place, (shard, need) in enumerate(shards):
                if part := core.read(rank, shard.number, need, since):
                    here.append((place, shard, part))
                else:
                    request = m.Pull(0, 0, rank, shard.number, need, since)
                    numbers.append(self.slot.ask(rank, request, partial(self._answer, pull, place, shard)))
            self._pulls[pull] = numbers, shards
        for place, shard, part in here:  # outside the lock: a reply may take its time
            self._take(pull, place, shard, part)
        return pull.over

    def readable(self, number: int, need: int) -> bool:
        """Return True if a part may be read after so many pushes, once what is done is committed."""
        part, behind = self.slot.core.parts[number], self.staleness if self.kind == "dist_ssp" else need
        done = [part.version] if self.kind == "dist_sync" else [part.rounds[rank] + behind for rank in self.live]
        return all(count >= need for count in done)

    def _answer(self, pull: JointPull, place: int, shard: SlotShard, answer: NamedTuple) -> None:
        if isinstance(answer, m.Value):
            self._take(pull, place, shard, answer)
        else:
            pull.fail(lost_here(pull.rank))
            self._pulls.pop(pull, None)

    def _take(self, pull: JointPull, place: int, shard: SlotShard, part: Part | m.Value) -> None:
        """Take a part that a pull has waited for."""
        held = part.value
        try:
            if held is None:
                raise no_value(shard.name, "pull")
            shard.require_readable(held)
            pull.pulled[place] = Pulled(held.value, part.version, held.counted)
            pull.came(1)
        except KVError as error:
            pull.fail(error)
        if pull.over:
            self._pulls.pop(pull, None)

    def set_optimizer(self, rank: int, optimizer: Optimizer | None, number: int | None = None) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            number = core.chosen.number + 1 if number is None else number
            self.slot.ask(rank, m.Do(0, 0, rank, m.Choose(number, optimizer)))

    def barrier(
        self, rank: int, number: int, name: str = "", note: str | None = None, coming: bool = False
    ) -> str | None:
        if coming:
            with self.slot.leading() as core:
                self._require_recent(core, name, number)
                self._expected = {(name, number): time.monotonic()}
                return None
        return self.wait_at(self.come(rank, number, name, note))

    def come(self, rank: int, number: int, name: str = "", note: str | None = None) -> tuple:
        answers: SimpleQueue[NamedTuple] = SimpleQueue()
        with self.slot.leading() as core:
            self.require_live(rank)
            self._require_recent(core, name, number)
            request = self.slot.ask(rank, m.Meet(0, 0, rank, name, number, note), answers.put)
        return rank, number, name, request, answers

    def wait_at(self, place: tuple) -> str | None:
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
                self.slot.forget(rank, [request])
                raise lost or self.late(name, missing, self._expected.get((name, number), -math.inf))
        if not isinstance(answer, m.Done):
            raise lost_here(rank)
        return answer.answer

    def _require_recent(self, core: Replica, name: str, number: int) -> None:
        last = max(core.passed.get(name, ()), default=0)
        if number <= last - KEPT:
            raise Refused(f"barrier {number} is long over: the last one is {last}")

    def last_barrier(self, rank: int, name: str) -> int:
        with self.slot.leading() as core:
            core.withdraw(rank, name)
            return max(core.passed.get(name, ()), default=0)

    # ---- saving and loading

    def keep(self, rank: int, save: int, keep: bool) -> None:
        """As a ShardStore; both servers of the slot keep the same, so that either may be lost."""
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards if keep else ():
                shard.require_settled("save")
                held = core.parts[shard.number].value
                if held is None:
                    raise no_value(shard.name, "save")
                shard.require_readable(held)
            self.slot.ask(rank, m.Do(0, 0, rank, m.Keep(save, keep)))

    def kept(self, save: int, number: int) -> State:
        with self.slot.leading() as core:
            if core.kept.number != save or number >= len(core.kept.parts):
                raise not_kept(save)
            held = core.kept.parts[number].value
            return {"value": held.value} | remembered(core.kept.optimizer, held.memory)

    def stage(self, rank: int, load: int, number: int, state: State, optimizer: Optimizer | None) -> None:
        with self.slot.leading():
            self.require_live(rank)
            shard = self.shard(number)
            shard.require_settled("load")
            self._staged.add(load, shard, state, optimizer)

    def commit(self, rank: int, load: int, parts: int, optimizer: Optimizer | None) -> None:
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
                values.append((number, Held(value, {optimizer.rule: memory} if optimizer and memory else {})))
            self.slot.ask(rank, m.Do(0, 0, rank, m.Load(load, tuple(values), optimizer)))

    def drop(self, load: int) -> None:
        with self.slot.leading():
            self._staged.drop(load)

    # ---- lost workers, and time

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        try:
            with self.slot.leading() as core:
                if rank not in core.live:
                    return
                sentence, how = gone(rank, why, left), "dropped"
                waits = any(shard.busy for shard in self.shards) or any(
                    not self.readable(shard.number, need)
                    for _, wanted in self._pulls.values()
                    for shard, need in wanted
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
                self._pulls.pop(pull, None)
                pull.fail(failed)

    def waits(self, shard: SlotShard, waiting: Waiting) -> str:
        if self.readable(shard.number, waiting.need):
            return told("store.told.unsure", key=shard.name, seconds=f"{self.deadline:g}")
        return super().waits(shard, waiting)

    def expire(self) -> None:
        if self.slot is None or not self.slot.leads:
            self._pulls.clear()  # the workers ask another server
            return
        now = own_time()
        late = [pull for pull in [*self._pulls] if pull.until < now]
        for pull in late:
            asked, shards = self._pulls.pop(pull, ((), ()))
            self.slot.forget(pull.rank, asked)
            for place, (shard, need) in enumerate(shards):
                if pull.pulled[place] is None:
                    pull.fail(Timeout(self.waits(shard, Waiting(pull, place, need))))

"""What the sessions of workers see of a slot: as a ShardStore. It decides nothing: what is asked goes to the rules."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import Diverged, KVError, Late, Refused, Timeout, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.coding import Held, digest
from d2lps.kvstore.replicas.keeping import SlotKeeping
from d2lps.kvstore.replicas.lines import Peers
from d2lps.kvstore.replicas.loading import SlotLoading
from d2lps.kvstore.replicas.register import Register, StoreRegister
from d2lps.kvstore.replicas.slot import Slot
from d2lps.kvstore.replication import Replica, View
from d2lps.kvstore.replication.commands import KEPT
from d2lps.kvstore.replication.messages import Begin, Choose, Do, Done, Lose, Meet, Name, Pull, Push, Take, Value
from d2lps.kvstore.server.merging import Merging
from d2lps.kvstore.server.shard import KeyPart, PendingPull, Reply, Snapshot, Waiting
from d2lps.kvstore.server.shard_store import ShardStore
from d2lps.kvstore.wire.frames import Broken

log = logging.getLogger("d2lps.kvstore.server")
PATIENCE = 1.0  # seconds of silence after which another server is taken for dead


class Gradient(NamedTuple):
    """What is pushed: whether it is to be added, and whether it may stay where it is."""

    tensor: Tensor
    finite: bool
    own: bool


def added(gradients: Sequence[Gradient]) -> Tensor | None:
    """Their sum in this order; None where one is not to be added, and so none is."""
    if not all(gradient.finite for gradient in gradients):
        return None
    first, *others = gradients
    total = first.tensor if first.own else first.tensor.clone()
    for other in others:
        total.add_(other.tensor)
    return total


def published(held: Held, total: Tensor | None, count: int, optimizer: Optimizer | None) -> Held:
    """The next value; the sum stays as it is, as the backup is still to have it."""
    if total is None or held.failed:
        return held._replace(counted=count)
    try:
        if optimizer is None:  # as with MXNet, the sum is the new value
            return held._replace(value=total, counted=count)
        scaled = optimizer.scale not in (1, 1.0)
        room = torch.empty_like(total)
        value = optimizer.stepped(held.value, total.clone() if scaled else total, held.memory, count, room)
        return held._replace(value=value, counted=count)
    except Exception as error:  # what it remembers may be half of something
        return held._replace(counted=count, failed=f"({type(error).__name__}: {error})")


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

    def require_whole(self, held: Held) -> None:
        if held.differs:
            servers = " and ".join(map(str, held.differs))
            raise Diverged(f"servers {servers} hold different bytes of key {self.name}", held.differs, (self.name,))
        if held.failed:
            raise KVError(f"key {self.name} could not be updated {held.failed}: load what was saved of it")


class SlotStore(SlotLoading, SlotKeeping, Merging):
    """A replica of a slot, with what a session asks of a ShardStore.

    ``settings``: what a ShardStore takes. Every method raises Broken where this is not the primary: its worker finds
    the connection ended, and goes elsewhere.
    """

    arena = record = None

    def __init__(self, **settings):
        checked = ShardStore(**settings)
        self.kind, self.workers, self.nan, self.lost = checked.kind, checked.workers, checked.nan, checked.lost
        self.staleness, self.deadline = checked.staleness, checked.deadline
        self._shards: list[SlotShard] = []
        self._pulls: dict[PendingPull, tuple[list[int], list[tuple[SlotShard, int]]]] = {}
        self._expected: dict[tuple[str, int], float] = {}  # a barrier, and when worker 0 last was on its way to it
        self.slot: Slot | None = None

    def open(
        self, number: int, name: Name, register: Register | StoreRegister, peers: Peers, deposed: Callable[[], object]
    ) -> None:
        """Be a replica of slot ``number``: see :class:`Slot`."""

        def made(view: View) -> Replica:
            of = self.workers, self.kind, self.staleness, PATIENCE
            replica = Replica(name, view, (), *of, added, published, lambda held: held and held.copied())
            replica.digest, replica.spoilt = digest, self._spoilt
            return replica

        self.slot = Slot(number, name, made, register, peers, deposed)

    def _spoilt(self, part: int, held: Held, members: tuple[Name, ...]) -> Held:
        """A value of which the members hold different bytes: it is given to nobody until it is loaded anew."""
        servers, name = tuple(number for number, *_ in members), self.shards[part].name
        log.error("slot %d: servers %d and %d hold different bytes of key %s", self.slot.number, *servers, name)
        return held._replace(failed="since its servers hold different bytes of it", differs=servers)

    # ---- what is known

    @property
    def live(self) -> frozenset[int]:
        return self.slot.core.live

    @property
    def needed(self) -> bool:
        """Whether there are workers, or its backup is still to hear that there are none."""
        core = self.slot.core
        return bool(core.live) or core.is_primary and core.commit < core.seq

    @property
    def updates(self) -> Optimizer | None:
        return self.slot.core.chosen.optimizer

    @property
    def shards(self) -> list[SlotShard]:
        core = self.slot.core
        known = [*zip(core.names, core.likes, strict=False)]
        if len(self._shards) != len(known):
            self._shards = [SlotShard(self, number, name, like) for number, (name, like) in enumerate(known)]
        return self._shards

    shard = ShardStore.shard
    check_finite = ShardStore.check_finite

    @property
    def failed(self) -> WorkerLost | None:
        """Why nobody can go on: the others are told when the backup knows it, too."""
        return self._loss("failed")

    @property
    def left(self) -> WorkerLost | None:
        """Why who still pushes would wait in vain."""
        return self._loss("left")

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
            self._wait(lambda: core.commit >= max(core.lost_at.values()), "the loss of a worker waits for the backup")
            super().require_live(rank)

    def _wait(self, done: Callable[[], object], what: str, missing: Callable[[], list[int]] = list) -> None:
        """Within ``leading``: until ``done``. Raises Timeout, or Broken where this is the primary no more."""
        self.slot.wait(done, self.deadline, what, missing)

    # ---- what workers ask for

    def init(self, rank: int, name: str, elements: int, dtype: torch.dtype, value: Tensor | None) -> int:
        with self.slot.leading() as core:
            if name in core.names and core.likes[core.names[name]] != (elements, dtype):
                there, like = core.likes[core.names[name]]
                raise Refused(
                    f"key {name} has {there} elements of {like} here, and worker {rank} "
                    f"initialises {elements} of {dtype}: all initialise the same"
                )
            if name not in core.names and self.updates:
                self.updates.validate_dtype(dtype, name)
            held = None if value is None else Held(value.clone(), {})
            self.slot.ask(rank, Do(0, 0, rank, Begin(name, (elements, dtype), held)))
            return core.names[name]

    def admit(self, rank: int, number: int, elements: int, dtype: torch.dtype, round_: int) -> bool:
        with self.slot.leading() as core:
            shard = self.shard(number)
            shard.validate_push(elements, dtype)
            if self.kind != "dist_sync" and self.updates is None:
                raise Refused(f"{self.kind} applies every push as it comes: set_optimizer before the first push")
            self.require_live(rank)
            counted = shard.rounds[rank]
            if round_ <= counted:
                return False
            if self.kind == "dist_sync" and self.left:
                raise self.left
            if round_ > counted + 1:
                raise Refused(f"push {round_} of worker {rank} to key {shard.name} comes before push {counted + 1}")
            if self.kind == "dist_sync" and shard.version < round_ - 1:
                self._wait(
                    lambda: shard.version >= round_ - 1 or rank not in core.live or core.over,
                    f"push {round_} to key {shard.name} waits for round {round_ - 1} to close",
                    lambda: self._missing(shard, shard.version + 1),
                )
                self.require_live(rank)
        return True

    @contextmanager
    def counting(self, rank: int, numbers: Iterable[int], again: bool = False) -> Iterator[None]:
        """As of a ShardStore; ``again``: the primary before this one had counted them, and they wait for no load."""
        with self.slot.leading() as core:
            self.require_live(rank)
            if self.left and self.kind == "dist_sync":
                raise self.left
            loading = sorted({*core.staged.parts} & {*numbers})  # also where worker 0 is still to bring it once more
            if loading and not again:
                self.may_drop(self.shard(loading[0]).name)
                self.drop(rank)
            yield

    def push(self, rank: int, number: int, round_: int, value: Tensor, finite: bool = True, own: bool = True) -> None:
        with self.slot.leading():
            if rank not in self.live:
                self.require_live(rank)
            self.slot.ask(rank, Push(0, 0, rank, number, round_, Gradient(value, finite, own)))

    def pull(self, rank: int, wanted: Sequence[tuple[int, int]], reply: Reply, since: int | None = None) -> bool:
        """As of a ShardStore; ``since``: the last command before the call began."""
        with self.slot.leading():
            self.require_live(rank)
            shards = [(self.shard(number), need) for number, need in wanted]
            if len({shard.dtype for shard, _ in shards}) > 1:
                raise Refused("what is pulled together is of one dtype")
            pull = PendingPull(rank, len(shards), own_time() + self.deadline, reply)
            asked = []
            for place, (shard, need) in enumerate(shards):
                one = Pull(0, 0, rank, shard.number, need, since)
                asked.append(self.slot.ask(rank, one, partial(self._got, pull, place, shard)))
            self._pulls[pull] = asked, shards
        return pull.over

    def comes(self, number: int, need: int) -> bool:
        """Whether a part may be read after so many pushes, once what is done is committed."""
        part, behind = self.slot.core.parts[number], self.staleness if self.kind == "dist_ssp" else need
        done = [part.version] if self.kind == "dist_sync" else [part.rounds[rank] + behind for rank in self.live]
        return all(count >= need for count in done)

    def _got(self, pull: PendingPull, place: int, shard: SlotShard, answer: NamedTuple) -> None:
        if not isinstance(answer, Value):
            pull.fail(WorkerLost(f"worker {pull.rank} counts as lost here", (pull.rank,)))
        elif answer.value is None:
            pull.fail(Refused(f"key {shard.name} has no value yet: init it before the first pull"))
        elif answer.value.failed:
            try:
                shard.require_whole(answer.value)
            except KVError as error:
                pull.fail(error)
        else:
            held = answer.value
            pull.snapshots[place] = Snapshot(held.value, answer.version, held.counted, held.load)
            pull.came(1)
        if pull.over:
            self._pulls.pop(pull, None)

    def set_optimizer(self, rank: int, optimizer: Optimizer | None, number: int | None = None) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards if optimizer else ():
                optimizer.validate_dtype(shard.dtype, shard.name)
            chosen = max(core.ready.number, core.chosen.number) + 1 if number is None else number
            self.slot.ask(rank, Do(0, 0, rank, Choose(chosen, optimizer)))
            if number is None:
                self.slot.ask(rank, Do(0, 0, rank, Take(chosen)))

    def take_optimizer(self, rank: int, number: int) -> None:
        with self.slot.leading():
            self.require_live(rank)
            self.slot.ask(rank, Do(0, 0, rank, Take(number)))

    def barrier(
        self, rank: int, number: int, name: str = "", note: str | None = None, coming: bool = False
    ) -> str | None:
        said: list[NamedTuple] = []
        came = threading.Event()
        with self.slot.leading() as core:
            self.require_live(rank)
            last = max(core.passed.get(name, ()), default=0)
            if number <= last - KEPT:
                raise Refused(f"barrier {number} is long over: the last one is {last}")

            if coming:
                self._expected = {(name, number): time.monotonic()}
                return None

            def hear(answer: NamedTuple) -> None:
                said.append(answer)
                came.set()

            asked = self.slot.ask(rank, Meet(0, 0, rank, name, number, note), hear)
        until = time.monotonic() + self.deadline
        while not came.wait(0.02):
            self.slot.require_lead()
            gone = self.failed or self.left
            if gone or time.monotonic() > until:
                missing = sorted(self.live - self.slot.core.met(name, number))
                self.slot.forget(rank, [asked])
                if gone:
                    raise gone
                what, names = f"barrier {name}" if name else "the barrier", ", ".join(map(str, missing))
                lacking = f", worker{'s' * (len(missing) > 1)} {names} missing" if missing else ""
                expected = time.monotonic() - self._expected.get((name, number), -math.inf) <= self.deadline
                raise (Late if expected else Timeout)(f"{what}: {self.deadline:g} s are over{lacking}")
        if not isinstance(said[0], Done):
            raise WorkerLost(f"worker {rank} counts as lost here, and the others went on without it", (rank,))
        return said[0].answer

    # ---- what happens to workers

    def lose(self, rank: int, why: str, left: bool = False) -> None:
        try:
            with self.slot.leading() as core:
                if rank not in core.live:
                    return
                sentence, how = f"worker {rank} {'has left' if left else 'is lost'} ({why})", "dropped"
                waits = any(shard.busy for shard in self.shards) or any(
                    not self.comes(shard.number, need) for _, wanted in self._pulls.values() for shard, need in wanted
                )
                if self.lost == "fail" and left and not waits:
                    how = "left"
                elif self.lost == "fail" or core.live == {rank}:
                    how = "failed"
                core.receive("detector", Lose(rank, how != "dropped", (sentence, how)), own_time())
                self.slot.when_committed(self._fail_all)
        except Broken:
            return  # who is the primary now finds out by itself

    def pending(self, rank: int) -> bool:
        """Whether something of a worker would be lost with this server."""
        with self.slot.leading() as core:
            return core.commit < core.seq or any(rank in core.arrived(index) for index in range(len(core.parts)))

    def _fail_all(self) -> None:
        if failed := self.failed:
            for pull in [*self._pulls]:
                self._pulls.pop(pull, None)
                pull.fail(failed)

    def _waits(self, shard: SlotShard, waiting: Waiting) -> str:
        if self.comes(shard.number, waiting.need):
            return (
                f"the pull of key {shard.name} has waited {self.deadline:g} s to hear whether another server took over"
            )
        return super()._waits(shard, waiting)

    def expire(self) -> None:
        if self.slot is None or not self.slot.leads:
            self._pulls.clear()  # who waited asks elsewhere
            return
        now = own_time()
        late = [pull for pull in [*self._pulls] if pull.until < now]
        for pull in late:
            asked, shards = self._pulls.pop(pull, ((), ()))
            self.slot.forget(pull.rank, asked)
            for place, (shard, need) in enumerate(shards):
                if pull.snapshots[place] is None:
                    pull.fail(Timeout(self._waits(shard, Waiting(pull, place, need))))

"""What is loaded into a slot: worker 0 brings it to the primary, and once more to who takes over before it counts.

Its backup is told which parts are ready: whoever takes over meanwhile counts no push to them, either.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer, validate_state
from d2lps.kvstore.replicas.coding import Held
from d2lps.kvstore.replicas.slot import Slot
from d2lps.kvstore.replication.messages import Do, Load, Stage
from d2lps.kvstore.server.loading import Pushes, given_up
from d2lps.kvstore.server.shard import KeyPart

NOTHING = 0, None, MappingProxyType({})  # is ready


class SlotLoading(Pushes):
    """A part of :class:`~d2lps.kvstore.replicas.store.SlotStore`."""

    slot: Slot
    shards: Sequence
    shard: Callable[[object], KeyPart]
    require_live: Callable[[int], None]
    require_between_rounds: Callable[[KeyPart, str], None]
    _wait: Callable
    _staged = NOTHING  # load, optimizer, and by part what it becomes

    def stage(self, rank: int, load: int, number: int, state: State, optimizer: Optimizer | None) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            shard = self.shard(number)
            if load <= core.loaded:
                return  # the answer to its commit was lost
            self.require_between_rounds(shard, "load")
            before, chosen, staged = self._staged
            if core.staged.number > load or core.staged.number == load and not core.staged.parts:
                raise given_up(load)  # it waited here, and worker 0 has given it up
            if load != before:
                staged = {}
            if staged and optimizer != chosen:
                raise Refused("what is loaded together has one optimizer")
            validate_state(state, optimizer, shard.elements, shard.dtype, shard.name)
            memory = dict(state)
            value = memory.pop("value")
            staged[number] = Held(value, {optimizer.rule: memory} if optimizer and memory else {}, load=load)
            self._staged = load, optimizer, staged
            ready = {number} | ({*core.staged.parts} if core.staged.number == load else set())
            self.slot.ask(rank, Do(0, 0, rank, Stage(load, tuple(sorted(ready)))))
            self.slot.changed.notify_all()

    def commit(self, rank: int, load: int, parts: int, optimizer: Optimizer | None) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            if rank and parts:  # worker 0 brings it once more to who took over
                self._wait(lambda: self._is_settled(load, parts), f"load {load} waits for its parts")
            before, chosen, staged = self._staged
            if load > core.loaded:  # else another worker has said so
                mine = staged if load == before else {}
                if len(mine) != parts or mine and optimizer != chosen:
                    raise Refused(f"{len(mine)} parts are here of load {load}, where {parts} belong: load again")
                for shard in self.shards if optimizer else ():
                    optimizer.validate_dtype(shard.dtype, shard.name)
                self._staged = NOTHING
                self.slot.ask(rank, Do(0, 0, rank, Load(load, tuple(sorted(mine.items())), optimizer)))

    def _is_settled(self, load: int, parts: int) -> bool:
        """Whether all parts of a load are here, or none will come any more."""
        core, (number, _, staged) = self.slot.core, self._staged
        return load <= core.loaded or load < number or load == number and len(staged) == parts or 0 not in core.live

    def drop(self, rank: int = 0, load: int | None = None) -> None:
        with self.slot.leading() as core:
            if load is not None and max(core.staged.number, self._staged[0]) > load:
                return  # a later one has begun
            self._staged = NOTHING
            self.slot.ask(rank, Do(0, 0, rank, Stage(max(core.staged.number, load or 0))))
            self.slot.changed.notify_all()

"""What the servers of a slot keep for a save: whichever of them is lost, the other one has kept the same."""

from collections.abc import Callable, Sequence

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import remembered
from d2lps.kvstore.replicas.slot import Slot
from d2lps.kvstore.replication.messages import Do, Keep
from d2lps.kvstore.server.keeping import gone


class SlotKeeping:
    """A part of :class:`~d2lps.kvstore.replicas.store.SlotStore`."""

    slot: Slot
    shards: Sequence
    require_live: Callable[[int], None]

    def keep(self, rank: int, save: int, keep: bool) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard, part in zip(self.shards, core.parts, strict=True) if keep else ():
                if part.value is None or shard.busy:
                    raise Refused(f"key {shard.name} is in the midst of a round: save at a barrier")
                shard.require_whole(part.value)
            self.slot.ask(rank, Do(0, 0, rank, Keep(save, keep)))

    def kept(self, save: int, number: int) -> State:
        with self.slot.leading() as core:
            if core.kept.number != save or number >= len(core.kept.parts):
                raise gone(save)
            held = core.kept.parts[number].value
            return {"value": held.value} | remembered(core.kept.optimizer, held.memory)

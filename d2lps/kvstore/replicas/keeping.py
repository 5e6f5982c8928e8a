"""What the servers of a slot keep for a save: whichever of them is lost, the other one has kept the same."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused, Timeout
from d2lps.kvstore.optimizers import remembered
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.replicas.slot import Slot
from d2lps.kvstore.replication.messages import Do, Keep
from d2lps.kvstore.server.keeping import gone
from d2lps.kvstore.server.shard import KeyPart


class SlotKeeping:
    """A part of :class:`~d2lps.kvstore.replicas.store.SlotStore`."""

    slot: Slot
    deadline: float
    shards: Sequence
    live: Collection[int]
    require_live: Callable[[int], None]

    def require_between_rounds(self, shard: KeyPart, what: str) -> None:
        """Raise Refused in the midst of a round; one that began anew, as this server took over, is given some time."""
        slot = self.slot
        left = slot.led + self.deadline / 2 - own_time() if slot.took_over else 0.0
        if shard.busy and left > 0:
            with suppress(Timeout):
                slot.wait(lambda: not shard.busy, left, "a round that began anew", list)
        if shard.busy:
            raise Refused(f"key {shard.name} is in the midst of a round: {what} at a barrier")

    def keep(self, rank: int, save: int, keep: bool) -> None:
        with self.slot.leading() as core:
            self.require_live(rank)
            for shard in self.shards if keep else ():
                self.require_between_rounds(shard, "save")
                if core.parts[shard.number].value is None:
                    raise Refused(f"key {shard.name} has no value yet: init it before a save")
                shard.require_whole(core.parts[shard.number].value)
            self.slot.ask(rank, Do(0, 0, rank, Keep(save, keep)))

    def kept_pushes(self, save: int) -> list[list[int]]:
        with self.slot.leading() as core:
            if core.kept.number != save or not core.kept.here:
                raise gone(save)
            return [
                [count if rank in self.live else -1 for rank, count in enumerate(part.rounds)]
                for part in core.kept.parts
            ]

    def kept(self, save: int, number: int) -> State:
        with self.slot.leading() as core:
            if core.kept.number != save or number >= len(core.kept.parts):
                raise gone(save)
            held = core.kept.parts[number].value
            return {"value": held.value} | remembered(core.kept.optimizer, held.memory)

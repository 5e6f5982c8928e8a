"""What is loaded into a server: made ready part by part, and then taken all at once, or not at all."""

from collections.abc import Collection, Iterable

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import BeingLoaded, Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.server.shard import Shard


class Pushes:
    """What is done about pushes to what is being loaded, on one server."""

    live: Collection[int]
    deadline: float
    given_up = False  # whether a worker has said that nobody has heard of the load, as worker 0 was lost before
    _alone: float | None = None  # since when worker 0 is known to be lost, and its load has not ended

    def may_drop(self, rank: int, name: str) -> None:
        """Whether what worker 0 has brought may be dropped for a push to key ``name``; raises BeingLoaded, or Refused.

        Where worker 0 is lost, those who have heard of its load bring it to its end: all of them, or nobody has.
        """
        if rank == 0:
            raise Refused(f"key {name} is being loaded: push to it when that is over")
        if 0 not in self.live:
            self._alone = own_time() if self._alone is None else self._alone
            if self.given_up or own_time() - self._alone > self.deadline:
                return
        over = f"{self.deadline:g} s are over"
        raise BeingLoaded(f"a push to key {name} waits for the end of a load: {over}, worker 0 missing")


class Loading:
    """What worker 0 has brought of load ``number``, and for which shards. Whoever calls has the lock of the store."""

    def __init__(self):
        self.number: int | None = None
        self.committed = 0  # the last one
        self.optimizer: Optimizer | None = None
        self.shards: set[Shard] = set()

    def stage(self, number: int, shard: Shard, state: State, optimizer: Optimizer | None) -> None:
        """Make the state of a shard ready; that of any other load is dropped. Raises Refused."""
        if number != self.number:
            self.drop()
        if self.shards and optimizer != self.optimizer:
            raise Refused("what is loaded together has one optimizer")
        shard.stage(state, optimizer)
        self.number, self.optimizer = number, optimizer
        self.shards.add(shard)

    def commit(self, number: int, parts: int, optimizer: Optimizer | None, known: Iterable[Shard]) -> bool:
        """Take what is ready, so many parts, into the shards ``known``; False where that is done. Raises Refused."""
        if number <= self.committed:  # asked again, as the answer was lost; or another worker has said so before
            return False
        mine = self.shards if number == self.number else set()
        if len(mine) != parts or mine and optimizer != self.optimizer:
            raise Refused(f"{len(mine)} parts are here of load {number}, where {parts} belong: load again")
        for shard in known if optimizer else ():
            optimizer.validate_dtype(shard.dtype, shard.name)
        for shard in mine:
            shard.restore(optimizer)
        self.committed, self.number, self.shards = number, None, set()
        return True

    def drop(self) -> None:
        """Forget it."""
        for shard in self.shards:
            shard.staged = None
        self.number, self.shards = None, set()

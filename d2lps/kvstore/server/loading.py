"""What is loaded into a server: made ready part by part, and then taken all at once, or not at all."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import BeingLoaded, Refused, WorkerLost
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.own_time import own_time
from d2lps.kvstore.server.shard import Shard


class Pushes:
    """What is done about pushes to what is being loaded, on one server."""

    live: Collection[int]
    deadline: float
    given_up = False  # whether a worker has said that nobody has heard of the load, as worker 0 was lost before
    _alone: float | None = None  # since when worker 0 is known to be lost, and its load has not ended

    def may_drop(self, name: str) -> None:
        """Whether what worker 0 has brought may be dropped for a push to key ``name``; raises BeingLoaded.

        Where worker 0 is lost, those who have heard of its load bring it to its end: all of them, or nobody has.
        """
        if 0 not in self.live:
            self._alone = own_time() if self._alone is None else self._alone
            if self.given_up or own_time() - self._alone > self.deadline:
                return
        over = f"{self.deadline:g} s are over"
        why = "; where it raised an error, load again" if 0 in self.live else ", worker 0 missing"
        raise BeingLoaded(f"a push to key {name} waits for the end of a load: {over}{why}")


class Loading:
    """What worker 0 has brought of load ``number``, and for which shards. Whoever calls has the lock of the store."""

    def __init__(self):
        self.number: int | None = None
        self.committed = self.dropped = 0  # the last ones
        self.optimizer: Optimizer | None = None
        self.shards: set[Shard] = set()

    def stage(self, number: int, shard: Shard, state: State, optimizer: Optimizer | None) -> None:
        """Make the state of a shard ready; that of any other load is dropped. Raises Refused."""
        if number <= max(self.committed, self.dropped):  # it waited here, and worker 0 has given it up
            raise given_up(number)
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
            shard.restore(optimizer, number)
        self.committed, self.number, self.shards = number, None, set()
        return True

    def drop(self, number: int | None = None) -> None:
        """Forget it, or a load of this ``number``, of which nothing is ready any more, whenever it comes."""
        if self.number is not None and number is not None and self.number > number:
            return
        self.dropped = max(self.dropped, number or self.number or 0)
        for shard in self.shards:
            shard.staged = None
        self.number, self.shards = None, set()


def given_up(load: int) -> Refused:
    """What worker 0 hears, if it still listens, of a load that is over."""
    return Refused(f"load {load} is over: load again")


class ShardLoading(Pushes):
    """A part of :class:`~d2lps.kvstore.server.shard_store.ShardStore`."""

    kind: str
    left: WorkerLost | None
    shards: list[Shard]
    updates: Optimizer | None
    shard: Callable[[int], Shard]
    require_live: Callable[[int], None]
    _changed: threading.Condition
    _loading: Loading
    _pushing: int  # how many frames are being counted

    @contextmanager
    def counting(self, rank: int, numbers: Iterable[int]) -> Iterator[None]:
        """Within it pushes to several shards count together: others are lost, and keys are loaded, before or after.

        Parameters
        ----------
        rank, numbers : int, iterable of int
            The worker, and the shards.

        Yields
        ------
        None
            The push is made in the ``with`` block.
        """
        with self._changed:
            self.require_live(rank)
            if self.left and self.kind == "dist_sync":
                raise self.left
            if loading := [shard for shard in map(self.shard, numbers) if shard.staged]:
                self.may_drop(loading[0].name)
                self._loading.drop()
            self._pushing += 1
        try:
            yield
        finally:
            with self._changed:
                self._pushing -= 1
                self._changed.notify_all()

    @contextmanager
    def between_pushes(self, what: str) -> Iterator[None]:
        """Within it no push is being counted. Raises Refused where that cannot be for half a deadline.

        Parameters
        ----------
        what : str
            What is done there.

        Yields
        ------
        None
            With the lock of the store.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pushing, self.deadline / 2):
                raise Refused(f"pushes are being counted all the time: {what} at a barrier")
            yield

    def stage(self, rank: int, load: int, number: int, state: State, optimizer: Optimizer | None) -> None:
        """Have ready what is loaded into a shard, which takes no push until :meth:`commit` or :meth:`drop`.

        Parameters
        ----------
        rank, load, number : int
            The worker; which load this is, instead of any other; the shard. Refused in the midst of a round.
        state, optimizer : dict, Optimizer or None
            The value, and what the optimizer, which is loaded with it, remembers of it.
        """
        self.require_live(rank)
        with self.between_pushes("load"):
            self._loading.stage(load, self.shard(number), state, optimizer)

    def commit(self, rank: int, load: int, parts: int, optimizer: Optimizer | None) -> None:
        """Be what was staged, all of it at once. Raises Refused, and nothing has changed, unless all of it is there.

        Parameters
        ----------
        rank, load, parts : int
            The worker; which load; how many shards were staged. What is committed already is so.
        optimizer : Optimizer or None
            From now on.
        """
        self.require_live(rank)
        with self._changed:
            if self._loading.commit(load, parts, optimizer, self.shards):
                self.updates = optimizer
            self._changed.notify_all()

    def drop(self, rank: int = 0, load: int | None = None) -> None:
        """Forget what was staged.

        Parameters
        ----------
        rank, load : int, int or None
            Who says so; which load, and no other one, or whichever it is.
        """
        with self._changed:
            self._loading.drop(load)
            self._changed.notify_all()

"""What a server keeps for a save, as it was then, while workers go on: the values and what an optimizer remembers."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.server.shard import Shard


class Keeping:
    """What a store does for a save: one at a time is kept. Nothing is copied until it is changed."""

    shards: list[Shard]
    updates: Optimizer | None
    _changed: threading.Condition
    pushes: Callable[[int], list[int]]
    between_pushes: Callable[[str], AbstractContextManager]
    _kept: tuple[int, list[State], list[list[int]]] = 0, [], []

    def keep(self, rank: int, save: int, keep: bool) -> None:
        """Keep all shards as they are now, for a save instead of any before it; or let go of them.

        Parameters
        ----------
        rank, save : int, int
            The worker, and which save. Refused in the midst of a round.
        keep : bool
            Whether they are kept from here on.
        """
        with self.between_pushes("save") if keep else self._changed:
            if keep:
                pushes = [self.pushes(shard.number) for shard in self.shards]
                self._kept = save, [shard.state(self.updates) for shard in self.shards], pushes
            elif save == self._kept[0]:
                self._kept = save, [], []

    def kept(self, save: int, number: int) -> State:
        """What was kept of a shard. Raises Refused where it is not here any more.

        Parameters
        ----------
        save, number : int
            Which save, and which shard.

        Returns
        -------
        State
            Its value, and what the optimizer remembers of it, by name.
        """
        kept, states, _ = self._kept
        if save != kept or number >= len(states):
            raise gone(save)
        return states[number]

    def kept_pushes(self, save: int) -> list[list[int]]:
        """Of each shard the :meth:`pushes` that are in what was kept. Raises Refused where it is not here any more.

        Parameters
        ----------
        save : int
            Which save.

        Returns
        -------
        list of list of int
            By shard, and worker.
        """
        kept, _, pushes = self._kept
        if save != kept or not pushes:
            raise gone(save)
        return pushes


def gone(save: int) -> Refused:
    """What somebody hears who reads of a save that is over."""
    return Refused(f"what was kept for save {save} is not here any more: save again")

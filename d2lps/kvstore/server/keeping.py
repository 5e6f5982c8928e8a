"""What a server keeps for a save, as it was then, while workers go on: the values and what an optimizer remembers."""

import threading

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.server.shard import Shard


class Keeping:
    """What a store does for a save: one at a time is kept. Nothing is copied until it is changed."""

    shards: list[Shard]
    updates: Optimizer | None
    _changed: threading.Condition
    _pushing: int
    _kept: tuple[int, list[State]] = 0, []

    def keep(self, rank: int, save: int, keep: bool) -> None:
        """Keep all shards as they are now, for a save instead of any before it; or let go of them.

        Parameters
        ----------
        rank, save : int, int
            The worker, and which save. Refused in the midst of a round.
        keep : bool
            Whether they are kept from here on.
        """
        with self._changed:
            if keep and self._pushing:
                raise Refused("a push is being counted: save at a barrier")
            if keep:
                self._kept = save, [shard.state(self.updates) for shard in self.shards]
            elif save == self._kept[0]:
                self._kept = save, []

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
        kept, states = self._kept
        if save != kept or number >= len(states):
            raise gone(save)
        return states[number]


def gone(save: int) -> Refused:
    """What somebody hears who reads of a save that is over."""
    return Refused(f"what was kept for save {save} is not here any more: save again")

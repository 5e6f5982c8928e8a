"""Parts that are made ready for a load, until a server takes all of them."""

from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer, validate_state
from d2lps.kvstore.server.shard import KeyPart


class Staged:
    """The parts of the last load, by their numbers. The caller holds the lock of the store."""

    def __init__(self):
        self.number = 0
        self._over = 0  # loads up to this one are over
        self._optimizer: Optimizer | None = None
        self._parts: dict[int, State] = {}

    def add(self, load: int, part: KeyPart, state: State, optimizer: Optimizer | None) -> None:
        """Make a part ready; those of an earlier load are dropped. Raises Refused."""
        if load <= self._over or load < self.number:  # it comes late, and worker 0 has given it up
            raise Refused(f"load {load} is over: load again")
        if load != self.number:
            self.number, self._parts = load, {}
        if self._parts and optimizer != self._optimizer:
            raise Refused("what is loaded together has one optimizer")
        validate_state(state, optimizer, part.elements, part.dtype, part.name)
        self._optimizer, self._parts[part.number] = optimizer, state

    def take(self, load: int, count: int, optimizer: Optimizer | None) -> dict[int, State]:
        """Return all parts of a load, and forget them. Raises Refused unless so many parts are here."""
        parts = self._parts if load == self.number else {}
        if len(parts) != count or parts and optimizer != self._optimizer:
            raise Refused(f"{len(parts)} parts are here of load {load}, where {count} belong: load again")
        self.drop(load)
        return parts

    def drop(self, load: int) -> None:
        """Forget all parts of a load, also of those that come late."""
        self._over = max(self._over, load)
        if self.number <= load:
            self._parts = {}

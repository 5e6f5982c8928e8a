"""A server's part of a key, the pulls that wait for it, and what is loaded until all servers have their parts."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import KVError, Refused, Timeout, WorkerLost, server_text
from d2lps.kvstore.optimizers import Optimizer, State, validate_state
from d2lps.kvstore.server.coding import StoredValue
from d2lps.kvstore.server.slot import Slot
from d2lps.kvstore.threads import own_time


class Gradient(NamedTuple):
    """A pushed value, or a sum of some; ``own``: it may stay in its place; None if the sum has failed."""

    tensor: Tensor | None
    own: bool


class WaitingPull:
    """The parts that a worker pulls at once, and the last moment for it: ``reply`` gets all of them, or an error."""

    __slots__ = "rank", "reply", "until", "wanted"

    def __init__(self, rank: int, wanted: Sequence[tuple[int, int]], until: float, reply: Callable):
        self.rank, self.wanted, self.until, self.reply = rank, wanted, until, reply


class Shard:
    """A server's part of a key in a slot, with the value that workers may read."""

    def __init__(self, slot: Slot, number: int, name: str, spec: tuple[int, torch.dtype]):
        self._slot, self.number, self.name, (self.elements, self.dtype) = slot, number, name, spec

    @property
    def value(self) -> Tensor | None:
        stored = self._slot.core.committed[self.number].value
        return stored and stored.value

    @property
    def version(self) -> int:
        """How many rounds are closed."""
        return self._slot.core.committed[self.number].version

    @property
    def rounds(self) -> list[int]:
        """How many pushes of each worker are counted, also in the open round."""
        core = self._slot.core
        part, arrived = core.parts[self.number], core.arrived(self.number)
        return [part.version + 1 if rank in arrived else done for rank, done in enumerate(part.rounds)]

    @property
    def busy(self) -> bool:
        """Whether a round is open: some workers have pushed, and others have not."""
        return bool(self._slot.core.arrived(self.number))

    def validate_push(self, elements: int, dtype: torch.dtype) -> None:
        """Raise Refused unless so many elements may be pushed to it."""
        if (self.elements, self.dtype) != (elements, dtype):
            raise Refused(
                f"key {self.name} has {self.elements} elements of {self.dtype} here, and {elements} of "
                f"{dtype} are pushed: push what was initialized"
            )
        if self.value is None:
            raise no_value(self.name, "push")

    def validate_rows(self, width: int, rows: Tensor) -> None:
        """Raise Refused unless it has these rows of ``width`` elements."""
        if width > max(1, self.elements) or self.elements % width:
            raise Refused(f"key {self.name} has {self.elements} elements here, which are no rows of {width}")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.elements // width:
            raise Refused(f"key {self.name} has rows 0 to {self.elements // width - 1} here")

    def unreadable(self, stored: StoredValue | None) -> KVError:
        """Return the error for a pull or a save of a value that is not here, or may be half of something."""
        if stored is None:
            return no_value(self.name, "pull")
        return KVError(server_text("store.server.not-updated", key=self.name, why=stored.failed))

    def require_settled(self, name: str, seconds: float) -> None:
        """Raise Refused if a round is open; ``name``: of the call.

        A round that began anew, as this server took over, has so many seconds from then on to close.
        """
        left = (self._slot.led or 0.0) + seconds - own_time() if self._slot.took_over else 0.0
        if self.busy and left > 0:
            with suppress(Timeout):
                self._slot.wait(lambda: not self.busy, left, "", list)
        if self.busy:
            raise Refused(server_text("store.server.open-round", key=self.name, call=name))


class Staged:
    """The parts of the last load, by their numbers. The caller holds the lock of the slot."""

    def __init__(self):
        self.number = 0
        self._over = 0  # loads up to this one are over
        self._optimizer: Optimizer | None = None
        self._parts: dict[int, State] = {}

    def add(self, load: int, part: Shard, state: State, optimizer: Optimizer | None) -> None:
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


def no_value(name: str, purpose: str) -> Refused:
    """Return the error for a key without a value."""
    return Refused(server_text("store.server.no-value", key=name, call=purpose))


def lost_here(rank: int) -> WorkerLost:
    """Return the error for a worker that this server has given up."""
    return WorkerLost(server_text("store.server.without", rank=rank), (rank,))

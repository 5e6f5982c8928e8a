"""What a distributed store can be asked about itself: what its servers saw, and what they remember."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from d2lps.kvstore import record
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.placement import counted
from d2lps.kvstore.saving import State
from d2lps.kvstore.states import packed, unpacked
from d2lps.kvstore.store import KVStore
from d2lps.kvstore.values import Known
from d2lps.kvstore.wire import Op
from d2lps.kvstore.wire.handshake import loopback
from d2lps.kvstore.worker.line import Line
from d2lps.kvstore.worker.request import Request
from d2lps.trace import Trace


class Inspected(KVStore):
    """A store with ``lines`` to its servers, whose answers it awaits for ``_patience`` seconds."""

    lines: list[Line]
    deadline: float

    @property
    def _patience(self) -> float:
        return 1.25 * self.deadline  # a server keeps the deadline; a worker waits a little longer, for its own words

    def trace(self, key=None, rounds: int = 8) -> Trace:
        """What the servers saw of ``key`` (which may be left out where there is one): its last ``rounds``.

        The store must have been created with ``record=True``. Any worker may ask, at any time; after a barrier it is
        complete.
        """
        known = self._one(key)
        sizes = {
            (part.server, number): (part.stop - part.start) * known.dtype.itemsize for part, number in known.places
        }
        return record.trace(self.type, self.num_workers, self._seen(), sizes, counted("rounds", rounds))

    def staleness(self, key=None) -> list[record.Pull]:
        """For every pull of ``key``: how many pushes of every worker it had seen. As :meth:`trace`."""
        known = self._one(key)
        where = [(part.server, number) for part, number in known.places]
        return record.pulls(self.num_workers, self._seen(), where)

    def _seen(self) -> dict[int, record.Seen]:
        found, first = {}, 0.0
        for line in self.lines:
            asked = time.monotonic()
            said = line.wait(line.ask(Request(Op.STATUS)), asked + self._patience).said
            later = 0.0 if loopback(line.address) else said["now"] - (asked + time.monotonic()) / 2
            first = later if line.number == 0 else first
            found[line.number] = record.Seen.read(said, later - first)
        return found

    def _states(self) -> Iterator[tuple[Known, State]]:
        for known in self._keys.values():
            asked = [(part.server, Request(Op.STATE, said={"part": number})) for part, number in known.places]
            self._all(asked)
            pieces = [unpacked(request.answer.said, request.into) for _, request in asked]
            yield (
                known,
                {
                    name: torch.cat([piece[name] for piece in pieces]) if isinstance(one, Tensor) else one
                    for name, one in pieces[0].items()
                },
            )

    def _restore(self, states: list[tuple[Known, State]], optimizer: Optimizer | None) -> None:
        self._told(optimizer)
        for known, state in states:
            asked = []
            for part, number in known.places:
                said, payload = packed(
                    {
                        name: one[part.start : part.stop] if isinstance(one, Tensor) else one
                        for name, one in state.items()
                    }
                )
                asked.append((part.server, Request(Op.RESTORE, said=said | {"part": number}, payload=payload)))
            self._all(asked)

"""What a worker asks a server for, until it is answered."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from d2lps.kvstore.wire import NOTHING, Entry, Op


class Request:
    """What was asked for: all that is needed to ask again, and the answer when it is there.

    ``into``: where the answer belongs, as it comes through the socket; ``before``: what puts a push into shared memory,
    done once, before it is sent; ``pieces``: where the parts of an answer belong that may lie in shared memory.
    """

    def __init__(
        self,
        op: Op,
        entries: Sequence[Entry] = (),
        said: dict | None = None,
        payload: memoryview = NOTHING,
        into: memoryview = NOTHING,
        before: Callable[[], object] | None = None,
        pieces: Sequence[Tensor] = (),
    ):
        self.op, self.entries, self.said, self.payload, self.into = op, entries, said, payload, into
        self.before, self.pieces = before, pieces
        self.number = 0
        self.answer, self.error = None, None  # a Frame, a KVError
        self.counted = False  # whether a push is
        self.done = threading.Event()

    @property
    def shared(self) -> bool:
        """Whether what travels only says where in shared memory the tensors lie."""
        return self.before is not None or self.op == Op.PULL and bool(self.pieces)


def unpieced(payload: memoryview, pieces: Sequence[Tensor]) -> list[Tensor]:
    """The parts of an answer, one after the other, each like its piece."""
    whole = torch.frombuffer(payload, dtype=torch.uint8) if pieces else None
    parts = whole.split([piece.nbytes for piece in pieces]) if pieces else ()
    return [part.view(piece.dtype) for part, piece in zip(parts, pieces, strict=True)]

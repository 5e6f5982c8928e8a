"""Memory that a worker and a server of one host share, so that large tensors need not pass through a socket.

Each end has an arena, and lends it to the other over a Unix socket. A push then says where in the worker's arena the
tensor lies, and the server adds from there; a pull says where in the server's the value lies, and the worker copies
from there. On machines without anonymous memory in files (memfd: Linux has it) all bytes take the socket.
"""

import mmap
import os
import re
import weakref
from collections import defaultdict, deque
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from d2lps.carriers.segments import Location, Segment
from d2lps.carriers.tensors import TensorError

SHARED = 1 << 16  # bytes from which on a tensor is shared: below, a copy costs less than saying where it lies
OURS = re.compile(r"/proc/(\d+)/fd/\d+")


class Arena:
    """Memory of this process from which tensors are taken, and to which they return when nobody has them any more.

    It has as many bytes as the machine, and takes only those that are written. ``lent`` is what the other end needs.

    >>> arena = Arena()
    >>> first = arena.tensor(1000, torch.float32)
    >>> where = arena.offset(first)
    >>> del first
    >>> arena.offset(arena.tensor(1000, torch.float32)) == where
    True
    """

    def __init__(self):
        self._segment = Segment(os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)
        self._next = 0
        self._free: dict[int, deque[int]] = defaultdict(deque)  # by size: those of a model come back every round
        self.lent = {"path": self._segment.path, "inode": self._segment.inode, "nbytes": self._segment.nbytes}

    def tensor(self, elements: int, dtype: torch.dtype) -> Tensor | None:
        """A flat tensor, its values as they happen to be; None where there is no room left."""
        size = -(-elements * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            offset = self._free[size].pop()
        except IndexError:
            offset, self._next = self._next, self._next + size
            if self._next > self._segment.nbytes:
                self._next = offset
                return None
        try:
            found = _at(self._segment, offset, elements, dtype)
        except ValueError:  # it is closed
            return None
        # A deque takes it back without a lock: whoever lets go of the last view may be in the midst of anything.
        weakref.finalize(found.untyped_storage(), self._free[size].append, offset)
        return found

    def close(self) -> None:
        """Lend it to nobody else. What is still in use stays until nobody has it."""
        self._segment.shut()
        with suppress(BufferError):
            self._segment.memory.close()

    def offset(self, tensor: Tensor) -> int | None:
        """Where ``tensor`` lies, in bytes; None where that is not here."""
        offset = tensor.data_ptr() - self._segment.address
        return offset if 0 <= offset < self._segment.nbytes else None


def arena() -> Arena | None:
    """One for this process; None where the machine has none."""
    try:
        return Arena() if hasattr(os, "memfd_create") else None
    except (TensorError, ValueError):
        return None


class Lent:
    """The arena of process ``peer``, as that says. Raises TensorError where it is none."""

    def __init__(self, said: dict, peer: int):
        path, inode, nbytes = (said.get(name) for name in ("path", "inode", "nbytes"))
        given = OURS.fullmatch(path) if isinstance(path, str) else None
        # Nothing but memory of the very process at the other end is opened, and none that could shrink under us.
        if not given or int(given[1]) != peer or not isinstance(inode, int) or not isinstance(nbytes, int):
            raise TensorError("what the other end lends is no memory of its own")
        try:
            self._segment = Segment(nbytes, Location(path, inode, nbytes, 0, 0, 1))
        except (ValueError, OverflowError) as error:
            raise TensorError(f"what the other end lends cannot be shared ({error})") from None
        if not self._segment.sealed:
            raise TensorError("what the other end lends could shrink while it is read")
        self._segment.shut()  # it is mapped, which is all that is needed

    def close(self) -> None:
        """Give it back, unless something of it is still in use: then when nobody has that any more."""
        with suppress(BufferError):
            self._segment.memory.close()

    def tensor(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor | None:
        """What lies at ``offset``; None where that is not inside, or not where a tensor can begin."""
        if offset % mmap.PAGESIZE or not 0 <= offset <= self._segment.nbytes - elements * dtype.itemsize:
            return None
        try:
            return _at(self._segment, offset, elements, dtype)
        except ValueError:  # it is given back
            return None


def _at(segment: Segment, offset: int, elements: int, dtype: torch.dtype) -> Tensor:
    # By way of NumPy, whose arrays keep the memory from being closed; torch.frombuffer would let it be unmapped.
    raw = np.frombuffer(segment.memory, np.uint8, elements * dtype.itemsize, offset)
    return torch.from_numpy(raw).view(dtype)

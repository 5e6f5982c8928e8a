"""Memory that a worker and a server of one host share, so that large tensors need not pass through a socket.

Each end has an arena, and lends it to the other over a Unix socket. A push then says where in the worker's arena the
tensor lies, and the server adds from there; a pull says where in the server's the value lies, and the worker copies
from there. On machines without anonymous memory in files (memfd: Linux has it) all bytes take the socket.
"""

import mmap
import os
import re
import threading
import weakref
from collections import defaultdict, deque
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from d2lps.carriers.segments import Place, Segment
from d2lps.carriers.tensors import TensorError

SHARED = 1 << 16  # bytes from which on a tensor is shared: below, a copy costs less than saying where it lies
OURS = re.compile(r"/proc/(\d+)/fd/\d+")


class Mapping:
    """A segment that both ends map, from when it is made until :meth:`close`.

    Tensors in it stay whole when it is closed: the memory goes when nobody has any of them any more.
    """

    _segment: Segment | None

    def close(self) -> None:
        """Nobody else can open it any more, and nothing new is taken from it."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.shut()
            with suppress(BufferError):  # some of it is in use, and unmaps it when it is not any more
                segment.memory.close()

    def _tensor_at(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor | None:
        """A flat tensor there; None where that is beyond the end, or where this is closed."""
        segment, nbytes = self._segment, elements * dtype.itemsize
        if segment is None or offset + nbytes > segment.nbytes:
            return None
        try:
            # By way of NumPy, whose arrays keep the memory from being closed: torch.frombuffer lets it be unmapped.
            return torch.from_numpy(np.frombuffer(segment.memory, np.uint8, nbytes, offset)).view(dtype)
        except ValueError:  # another thread has closed it just now
            return None


class Arena(Mapping):
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
        self._segment = segment = Segment(os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)
        self._next, self._lock = 0, threading.Lock()
        self._free: dict[int, deque[int]] = defaultdict(deque)  # by size: those of a model come back every round
        self.lent = {"path": segment.path, "inode": segment.inode, "nbytes": segment.nbytes}

    @classmethod
    def available(cls) -> "Arena | None":
        """One for this process; None where the machine has none."""
        try:
            return cls() if hasattr(os, "memfd_create") else None
        except (TensorError, ValueError):
            return None

    def tensor(self, elements: int, dtype: torch.dtype) -> Tensor | None:
        """A flat tensor, its values as they happen to be; None where there is no room left, or where this is closed."""
        size = -(-elements * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            offset = self._free[size].pop()
        except IndexError:
            with self._lock:
                offset, end = self._next, self._next + size
                if end > self.lent["nbytes"]:
                    return None
                self._next = end
        tensor = self._tensor_at(offset, elements, dtype)
        if tensor is not None:
            # A deque takes it back without a lock: whoever lets go of the last view may be in the midst of anything.
            weakref.finalize(tensor.untyped_storage(), self._free[size].append, offset)
        return tensor

    def offset(self, tensor: Tensor) -> int | None:
        """Where ``tensor`` lies, in bytes; None where that is not here."""
        segment = self._segment
        offset = tensor.data_ptr() - segment.address if segment else -1
        return offset if segment and 0 <= offset < segment.nbytes else None


class RemoteArena(Mapping):
    """The arena of process ``peer``, as that has ``lent`` it. Raises TensorError where it is none."""

    def __init__(self, lent: dict, peer: int):
        path, inode, nbytes = (lent.get(name) for name in ("path", "inode", "nbytes"))
        ours = OURS.fullmatch(path) if isinstance(path, str) else None
        # Nothing but memory of the very process at the other end is opened, and none that could shrink under us.
        if not ours or int(ours[1]) != peer or not isinstance(inode, int) or not isinstance(nbytes, int):
            raise TensorError("what the other end lends is no memory of its own")
        try:
            self._segment = Segment(nbytes, Place(path, inode, nbytes, 0, 0, 1))
        except (ValueError, OverflowError) as error:
            raise TensorError(f"what the other end lends cannot be shared ({error})") from None
        if not self._segment.sealed:
            raise TensorError("what the other end lends could shrink while it is read")
        self._segment.shut()  # it is mapped, which is all that is needed

    def tensor(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor | None:
        """What lies at ``offset``; None where that is not inside, or not where a tensor can begin."""
        return None if offset % mmap.PAGESIZE or offset < 0 else self._tensor_at(offset, elements, dtype)

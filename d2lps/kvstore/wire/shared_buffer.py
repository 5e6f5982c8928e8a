"""Memory that a worker and a server of one host share, so that large tensors need not travel through a socket.

Each end has a shared buffer and lends it to the other over a Unix socket. A push then names the tensor's offset in the
worker's buffer, and the server adds from there; the answer to a pull names the value's offset in the server's buffer,
and the worker copies from there. Without memfd, which Linux has, all bytes travel through the socket.
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

from d2lps.carriers.segments import Location, Segment
from d2lps.carriers.tensors import TensorError

SHARED = 1 << 16  # bytes of the smallest shared tensor: sending a smaller one costs less than sharing it
PATH = re.compile(r"/proc/(\d+)/fd/\d+")


class Mapping:
    """A segment that both ends map.

    Its tensors stay valid after :meth:`close`: the memory is unmapped when the last of them is deleted.
    """

    _segment: Segment | None

    def close(self) -> None:
        """Let no other process open the segment, and take no new tensor from it."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.shut()
            with suppress(BufferError):  # a tensor is in use; the last one unmaps it
                segment.memory.close()

    def _tensor_at(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor | None:
        """Return a flat tensor at an offset in bytes; None if it would not fit, or if this is closed."""
        segment, nbytes = self._segment, elements * dtype.itemsize
        if segment is None or offset + nbytes > segment.nbytes:
            return None
        try:
            # An array of NumPy keeps the memory from being unmapped; torch.frombuffer does not.
            return torch.from_numpy(np.frombuffer(segment.memory, np.uint8, nbytes, offset)).view(dtype)
        except ValueError:  # another thread has just closed it
            return None


class SharedBuffer(Mapping):
    """Memory of this process for tensors, which is reused when a tensor is deleted.

    It reserves as many bytes as the machine has, and uses only those that are written. ``lent`` is the description
    with which the other end opens it.

    >>> shared_buffer = SharedBuffer()
    >>> first = shared_buffer.tensor(1000, torch.float32)
    >>> offset = shared_buffer.offset(first)
    >>> del first
    >>> shared_buffer.offset(shared_buffer.tensor(1000, torch.float32)) == offset
    True
    """

    def __init__(self):
        self._segment = segment = Segment(os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE)
        self._next, self._lock = 0, threading.Lock()
        self._free: dict[int, deque[int]] = defaultdict(deque)  # size → free offsets; sizes repeat every round
        self.lent = {"path": segment.path, "inode": segment.inode, "nbytes": segment.nbytes}

    @classmethod
    def available(cls) -> "SharedBuffer | None":
        """Return a new shared buffer; None if the machine has no memfd."""
        try:
            return cls() if hasattr(os, "memfd_create") else None
        except (TensorError, ValueError):
            return None

    def tensor(self, elements: int, dtype: torch.dtype) -> Tensor | None:
        """Return an uninitialized flat tensor; None if no memory is left, or if this is closed."""
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
            # The deque needs no lock, which the thread that deletes the last view might hold.
            weakref.finalize(tensor.untyped_storage(), self._free[size].append, offset)
        return tensor

    def offset(self, tensor: Tensor) -> int | None:
        """Return the offset of ``tensor`` in bytes; None if it is not in this shared buffer."""
        segment = self._segment
        offset = tensor.data_ptr() - segment.address if segment else -1
        return offset if segment and 0 <= offset < segment.nbytes else None


class Buffers:
    """Two buffers per server, from which servers of this host read the pushes of a key.

    A server may still read the last push when the next one is written, but not the one before: two are enough. A push
    that is sent again stays as it lies there, because the server may have added the pushes of others to it.
    """

    def __init__(self):
        self.free = 0  # pushes up to this one are read by no server any more
        self._push, self._side = 0, 0  # the number of the last push, and which of the two buffers it is in
        self._tensors: dict[tuple[int, int], tuple[Tensor, int]] = {}  # (server, side) → the buffer, and its push

    def begin(self, push: int, counted: int) -> None:
        """Choose the buffer of a push; so many pushes before it are counted. Again for the same push: no change."""
        if self._push < push:
            self._push = push
            if self.free < counted:
                self._side = 1 - self._side

    def of(self, server: int, piece: Tensor, shared_buffer: SharedBuffer) -> tuple[Tensor | None, bool]:
        """Return the buffer for a server, None if there is no memory left, and whether it has this push already."""
        tensor, push = self._tensors.get((server, self._side), (None, 0))
        if tensor is None:
            return shared_buffer.tensor(piece.numel(), piece.dtype), False
        return tensor, push == self._push

    def write(self, server: int, tensor: Tensor, value: Tensor) -> None:
        """Write the part of the push that goes to a server into its buffer."""
        tensor.copy_(value)
        self._tensors[server, self._side] = tensor, self._push


class RemoteBuffer(Mapping):
    """The shared buffer that process ``peer`` has ``lent``. Raises TensorError if it cannot be trusted or opened."""

    def __init__(self, lent: dict, peer: int):
        path, inode, nbytes = (lent.get(name) for name in ("path", "inode", "nbytes"))
        match = PATH.fullmatch(path) if isinstance(path, str) else None
        # Open only memory of the process at the other end, and only if it cannot shrink while it is mapped.
        if not match or int(match[1]) != peer or not isinstance(inode, int) or not isinstance(nbytes, int):
            raise TensorError("the other end lends memory that is not its own")
        try:
            self._segment = Segment(nbytes, Location(match[0], inode, nbytes, 0, 0, 1))
        except (ValueError, OverflowError) as error:
            raise TensorError(f"the memory that the other end lends cannot be opened ({error})") from None
        if not self._segment.sealed:
            raise TensorError("the memory that the other end lends could shrink while it is read")
        self._segment.shut()  # it stays mapped

    def tensor(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor | None:
        """Return the tensor at ``offset``; None if it is not inside, or no tensor can begin there."""
        return None if offset % mmap.PAGESIZE or offset < 0 else self._tensor_at(offset, elements, dtype)

"""Memory that processes of one host share, without a name that could be left behind.

On Linux a segment is an anonymous file (memfd) that others open through /proc; the kernel frees it with the last
process that uses it, whatever kills them. Elsewhere it is a file that its process removes.
"""

import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from d2lps.carriers import leftovers
from d2lps.carriers.tensors import TensorError
from d2lps.messages import text, why


@dataclass(frozen=True)
class Location:
    """The location of a tensor, for another process of this host; ``offset`` and ``nbytes`` count bytes."""

    path: str
    inode: int
    nbytes: int
    offset: int
    elements: int
    stride: int


class Segment:
    """Memory that other processes can open: made here (``Segment(nbytes)``) or by another process (``location``)."""

    def __init__(self, nbytes: int, location: Location | None = None):
        self.nbytes = max(nbytes, mmap.PAGESIZE)
        if location is not None:
            self.path, file = location.path, _open(location)
        else:
            self.path, file = _new(nbytes)
            if not hasattr(os, "memfd_create"):
                weakref.finalize(self, _unlink, self.path, os.getpid())
        self.shut = weakref.finalize(self, os.close, file)  # once called, no other process can open it any more
        try:
            if location is None:
                os.ftruncate(file, self.nbytes)
                if hasattr(os, "memfd_create"):  # it must never become shorter while others read it
                    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.inode, self.sealed = os.fstat(file).st_ino, _sealed(file)
            self.memory = mmap.mmap(file, self.nbytes)
        except OSError as error:
            raise _no_room(nbytes, error) from None
        self.address = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
        _known[self.address] = self  # replaces an earlier segment at this address, even if that one is still referenced

    @property
    def open(self) -> bool:
        """True if it is still mapped at its address and others can open it."""
        return self.shut.alive and not self.memory.closed

    def tensor(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a flat tensor at the beginning of this segment."""
        return self.bytes()[: elements * dtype.itemsize].view(dtype)

    def bytes(self) -> Tensor:
        """Return all of it as bytes; the segment lives as long as any view of them."""
        view = torch.frombuffer(self.memory, dtype=torch.uint8)
        # The memory would stay anyway; this also keeps the file that others open.
        weakref.finalize(view.untyped_storage(), _nothing, self)
        return view


_known: "weakref.WeakValueDictionary[int, Segment]" = weakref.WeakValueDictionary()  # by address


def location_of(tensor: Tensor) -> Location | None:
    """Return the location of ``tensor`` for other processes; None if it is in ordinary memory or empty."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    for segment in filter(None, [known() for known in _known.valuerefs()]):
        offset = tensor.data_ptr() - segment.address
        # Once a segment is unmapped, anything may lie at its address. While it is mapped, nothing else can.
        if 0 <= offset < segment.nbytes and segment.open:
            return Location(segment.path, segment.inode, segment.nbytes, offset, tensor.numel(), tensor.stride(0))
    return None


def opened(location: Location, dtype: torch.dtype) -> Tensor:
    """Return the tensor at ``location``, made by another process; raise TensorError if it is no longer there."""
    segment = Segment(location.nbytes, location)
    span = ((location.elements - 1) * location.stride + 1) * dtype.itemsize
    return segment.bytes()[location.offset : location.offset + span].view(dtype)[:: max(location.stride, 1)]


def require_apart(locations: Mapping[str, Location], width: int) -> None:
    """Raise TensorError if two of these tensors, whose elements have ``width`` bytes, overlap."""
    spans = sorted(
        (at.inode, at.offset, at.offset + ((at.elements - 1) * at.stride + 1) * width, name)
        for name, at in locations.items()
    )
    for (inode, _, end, name), (next_inode, start, _, other) in pairwise(spans):
        if inode == next_inode and start < end:
            raise TensorError(text("tensor.overlap", one=name, other=other))


def _new(nbytes: int) -> tuple[str, int]:
    """Return (path for other processes, descriptor) of a new empty file; raise TensorError if there is no room."""
    try:
        if not hasattr(os, "memfd_create"):
            return leftovers.held(tempfile.mkstemp, tempfile.gettempdir())
        file = os.memfd_create("d2lps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        return f"/proc/{os.getpid()}/fd/{file}", file
    except OSError as error:
        raise _no_room(nbytes, error) from None


def _no_room(nbytes: int, error: OSError) -> TensorError:
    return TensorError(f"there is no room for {nbytes} bytes that processes share ({why(error)})")


def _open(location: Location) -> int:
    try:
        file = os.open(location.path, os.O_RDWR)
    except OSError as error:
        raise TensorError(
            f"the memory {location.path} of another process cannot be opened ({why(error)}): it must "
            "belong to the same user, and that process must keep its tensor"
        ) from None
    if os.fstat(file).st_ino != location.inode:
        os.close(file)
        raise TensorError(f"the memory {location.path} now belongs to another tensor: keep the tensor that was there")
    return file


def _sealed(file: int) -> bool:
    """Return True if the file can never become shorter."""
    try:
        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except (OSError, AttributeError):  # an ordinary file, or a system without seals
        return False


def _unlink(path: str, process: int) -> None:
    if os.getpid() == process and os.path.exists(path):  # in a forked child it is still its parent's
        os.unlink(path)


def _nothing(_: Segment) -> None:
    """Do nothing: as a finalizer it keeps its segment alive until the memory is freed."""

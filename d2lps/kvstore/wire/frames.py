"""What a frame is: its header, its table, its payload. :mod:`d2lps.kvstore.wire` shows it as a whole."""

import struct
import sys
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

HEADER = struct.Struct("<4sBBHIIQQI")
ENTRY = struct.Struct("<IBB2xQQ")
ENTRIES = np.dtype(
    {
        "names": ["part", "dtype", "finite", "elements", "round"],
        "itemsize": ENTRY.size,
        "formats": ["<u4", "u1", "u1", "<u8", "<u8"],
        "offsets": [0, 4, 5, 8, 16],
    }
)
MAGIC, VERSION = b"d2kv", 1
TABLE, PAYLOAD = 4 << 20, 16 << 30  # most bytes of a frame's table and payload
AGAIN = 2  # bit of an entry's ``finite``: an earlier primary of the slot had counted this push
CODED = 1  # flag: a code follows that covers the payload, too
SHARED = 2  # flag: the payload says where in shared memory the tensors lie; where one pulls, that this will do
LOAD = 8  # flags from this bit on: of which load the values are, 1 to 255 and again; 0 of none
NOTHING = memoryview(b"")
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int32, torch.int64, torch.uint8, torch.int8),
)

if sys.byteorder != "little":
    raise ImportError("d2lps.kvstore sends numbers as this machine has them, which must be little-endian")


class Op(IntEnum):
    """What a frame asks for, or answers."""

    HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
    INIT, PUSH, PULL, ROWS, OPTIMIZER, BARRIER, STATE, RESTORE, ALIVE, BYE, STATUS, PUSHPULL, COMMIT = range(10, 23)
    OK, DATA, ERROR, READ = 30, 31, 32, 33
    PEER = 40  # between the servers of a slot


PUSHES = {Op.PUSH, Op.PUSHPULL}
LADEN = PUSHES | {Op.INIT, Op.ROWS, Op.DATA, Op.RESTORE, Op.PEER}  # what may carry a payload: its code comes after it


class Broken(ConnectionError):
    """A frame that is not right, or a connection that has ended: nothing of it counts."""


class Entry(NamedTuple):
    """One part of a key that a frame is about: 24 bytes of its table.

    Parameters
    ----------
    part : int
        Its number at the server.
    dtype : int
        Its place in ``d2lps.kvstore.wire.frames.DTYPES``; 0 is float32.
    finite : int
        Even where something in the key that it is a part of is not finite, so that all its servers do the same.
    elements : int
        How many.
    round : int
        Which push of this worker it is, or after which one it is pulled.
    """

    part: int
    dtype: int
    finite: int
    elements: int
    round: int


class Frame(NamedTuple):
    """A header and its table, both found right. The payload is still in the socket: see :meth:`Channel.into`.

    Parameters
    ----------
    op : Op
        What it asks for, or answers.
    number : int
        Of the request, which its answer has, too.
    entries : list of Entry
        The parts that it is about, where its table names some.
    metadata : dict
        The table, where it is JSON.
    payload : int
        Bytes that follow.
    flags : int
        Bits: a code covers the payload (1), tensors lie in shared memory (2); from the ninth on of which load.
    """

    op: Op
    number: int
    entries: list[Entry]
    metadata: dict
    payload: int
    flags: int

    @property
    def shared(self) -> bool:
        """Whether the payload says where in shared memory the tensors lie."""
        return bool(self.flags & SHARED)

    @property
    def load(self) -> int:
        """Of which load the values are, 1 to 255 and again; 0 of none."""
        return self.flags >> LOAD


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a flat tensor, without a copy.

    Parameters
    ----------
    tensor : Tensor of shape (n,)
        Contiguous, in main memory.

    Returns
    -------
    memoryview
        Its bytes, which can be written.

    Examples
    --------
    >>> bytes(raw(torch.tensor([1, 2], dtype=torch.uint8)))
    b'\\x01\\x02'
    """
    return memoryview(as_bytes(tensor).numpy()) if tensor.numel() else NOTHING


def as_bytes(tensor: Tensor) -> Tensor:
    """The same, as a tensor.

    Parameters
    ----------
    tensor : Tensor of shape (n,)
        Contiguous.

    Returns
    -------
    Tensor
        Its bytes, where they lie.
    """
    # What has one element is contiguous whatever its stride, and would not be seen as bytes then.
    return (tensor.as_strided(tensor.shape, (1,)) if tensor.numel() == 1 else tensor).view(torch.uint8)


class Checksum:
    """A 64-bit sum of words, block by block, which also tells blocks that changed places.

    It is taken while the payload comes, at the speed of memory: a CRC-32 would take as long as the way.
    """

    def __init__(self):
        self.sum = 0

    def add(self, block: memoryview) -> None:
        aligned = len(block) & ~7
        block = bytearray(block) if block.readonly else block  # torch reads only what can be written
        total = torch.frombuffer(block, dtype=torch.int64, count=aligned >> 3).sum().item() if aligned else 0
        total += int.from_bytes(block[aligned:], "little")
        self.sum = (self.sum * 31 + total + len(block)) & 0xFFFFFFFFFFFFFFFF

    def digest(self) -> bytes:
        return self.sum.to_bytes(8, "little")

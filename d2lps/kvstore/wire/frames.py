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
CODED = 1  # flag: a code follows that covers the payload, too
SHARED = 2  # flag: the payload says where in shared memory the tensors lie; where one pulls, that this will do
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
)

if sys.byteorder != "little":
    raise ImportError("d2lps.kvstore sends numbers as this machine has them, which must be little-endian")


class Op(IntEnum):
    """What a frame asks for, or answers."""

    HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
    INIT, PUSH, PULL, ROWS, OPTIMIZER, BARRIER, STATE, RESTORE, ALIVE, BYE, STATUS, PUSHPULL = range(10, 22)
    OK, DATA, ERROR, READ = 30, 31, 32, 33


PUSHES = {Op.PUSH, Op.PUSHPULL}
LADEN = PUSHES | {Op.INIT, Op.ROWS, Op.DATA, Op.RESTORE}  # what may carry a payload: its code comes after it


class Broken(ConnectionError):
    """A frame that is not right, or a connection that has ended: nothing of it counts."""


class Entry(NamedTuple):
    """One part that a frame is about: its number at the server, dtype (its place in DTYPES), elements, round.

    ``finite``: 0 where something in the key that it is a part of is not, so that all its servers do the same.
    """

    part: int
    dtype: int
    finite: int
    elements: int
    round: int


class Frame(NamedTuple):
    """A header and its table, both found right. The payload is still in the socket: see :meth:`Channel.into`."""

    op: Op
    number: int
    entries: list[Entry]
    said: dict
    payload: int
    flags: int

    @property
    def shared(self) -> bool:
        return bool(self.flags & SHARED)


NOTHING = memoryview(b"")


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a flat, contiguous tensor in main memory, which can be written."""
    return memoryview(tensor.view(torch.uint8).numpy()) if tensor.numel() else NOTHING

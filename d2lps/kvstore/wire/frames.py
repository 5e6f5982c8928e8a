"""The parts of a frame: header, table, payload. :mod:`d2lps.kvstore.wire` shows their layout."""

import struct
import sys
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

HEADER = struct.Struct("<4sBBHIIQQI")
ENTRY = struct.Struct("<IBB2xQQ")
FIELDS = [("part", "<u4"), ("dtype", "u1"), ("in_rows", "u1"), ("elements", "<u8"), ("round", "<u8")]
ENTRIES = np.dtype(FIELDS, align=True)  # the layout of ENTRY
MAGIC, VERSION = b"d2kv", 2
TABLE, PAYLOAD = 4 << 20, 16 << 30  # most bytes of a frame's table and payload
CODED = 1  # flag: a code that also covers the payload follows
SHARED = 2  # flag: the payload has offsets in shared memory; in a pull: the answer may
NOTHING = memoryview(b"")
DTYPES = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8

if sys.byteorder != "little":
    raise ImportError("d2lps.kvstore needs a little-endian machine: it sends numbers as they lie in memory")


class Op(IntEnum):
    """The operation that a frame requests or answers."""

    HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
    INIT, PUSH, PULL, ROWS, OPTIMIZER, BARRIER, STATE, RESTORE, ALIVE, BYE, STATUS, PUSHPULL, COMMIT = range(10, 23)
    OK, DATA, ERROR, READ = 30, 31, 32, 33
    PEER = 40  # between the servers of a slot


PUSHES = {Op.PUSH, Op.PUSHPULL}
LADEN = PUSHES | {Op.INIT, Op.ROWS, Op.DATA, Op.RESTORE, Op.PEER}  # the ops that may carry a payload


class Broken(ConnectionError):
    """An invalid frame, or a connection that has ended: nothing in it counts."""


class Entry(NamedTuple):
    """A part of a key in the table of a frame, in 24 bytes.

    Args:
        part: Its number at the server.
        dtype: Its place in ``d2lps.kvstore.wire.frames.DTYPES``; 0 is float32.
        in_rows: 1 if the payload has only some rows of this part: their count and their numbers, each as int64, and
            then their values.
        elements: How many elements the part has.
        round: The number of this worker's push, or of its last push before a pull.
    """

    part: int
    dtype: int
    in_rows: int
    elements: int
    round: int


class Frame(NamedTuple):
    """A valid header and table. The payload is still in the socket: see :meth:`Channel.into`.

    Args:
        op: The operation that it requests or answers.
        number: The number of the request, which its answer repeats.
        entries: The parts in its table, if the table has entries.
        metadata: The table, if it is JSON.
        payload: Bytes that follow.
        flags: Bits: a code covers the payload (1), tensors are in shared memory (2).
    """

    op: Op
    number: int
    entries: list[Entry]
    metadata: dict
    payload: int
    flags: int

    @property
    def shared(self) -> bool:
        """True if the payload has the offsets of tensors in shared memory."""
        return bool(self.flags & SHARED)


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a flat tensor, without a copy.

    Args:
        tensor (Tensor of shape (n,)): Contiguous, in main memory.

    Returns:
        Its bytes, writable.

    Example:
        >>> bytes(raw(torch.tensor([1, 2], dtype=torch.uint8)))
        b'\\x01\\x02'
    """
    return memoryview(as_bytes(tensor).numpy()) if tensor.numel() else NOTHING


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a flat contiguous tensor as a tensor, without a copy."""
    # A tensor of one element is contiguous with any stride, but view needs stride 1.
    return (tensor.as_strided(tensor.shape, (1,)) if tensor.numel() == 1 else tensor).view(torch.uint8)


class Checksum:
    """A 64-bit sum of words, block by block, which also detects blocks in the wrong order.

    It is computed while the payload arrives, at the speed of memory: a CRC-32 would take as long as the transfer.
    """

    def __init__(self):
        self.sum = 0

    def add(self, block: memoryview) -> None:
        aligned = len(block) & ~7
        block = memoryview(bytearray(block)) if block.readonly else block  # torch reads writable memory only
        total = torch.frombuffer(block, dtype=torch.int64, count=aligned >> 3).sum().item() if aligned else 0
        total += int.from_bytes(block[aligned:], "little")
        self.sum = (self.sum * 31 + total + len(block)) & 0xFFFFFFFFFFFFFFFF

    def digest(self) -> bytes:
        return self.sum.to_bytes(8, "little")

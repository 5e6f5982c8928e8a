"""What a worker asks for, checked before anything is done about it."""

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.server.held import Held
from d2lps.kvstore.wire import DTYPES, Frame


def layout(frame: Frame) -> tuple[torch.dtype, list[int]]:
    """The dtype and the numbers of elements of what is pushed together."""
    kinds, sizes = {entry.dtype for entry in frame.entries}, [entry.elements for entry in frame.entries]
    if len(kinds) != 1 or not max(kinds) < len(DTYPES):
        raise Refused("what is pushed together is of one dtype")
    dtype = DTYPES[kinds.pop()]
    if frame.payload != (8 * len(sizes) + 8 if frame.shared else sum(sizes) * dtype.itemsize):
        raise Refused(f"{frame.payload} bytes are pushed, where {sum(sizes)} elements of {dtype} belong")
    return dtype, sizes


def rows_of(held: Held, width: int, rows: Tensor) -> None:
    """Raises Refused unless a part has these rows of ``width`` elements."""
    if width > max(1, held.elements) or held.elements % width:
        raise Refused(f"key {held.name} has {held.elements} elements here, which are no rows of {width}")
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < held.elements // width:
        raise Refused(f"key {held.name} has rows 0 to {held.elements // width - 1} here")


def declared(frame: Frame) -> tuple[torch.dtype, list[tuple[str, int]]]:
    """The dtype, and (name, elements) of each part, that a worker initialises."""
    number, parts = frame.said.get("dtype"), frame.said.get("parts")
    if not whole(number) or number >= len(DTYPES) or not isinstance(parts, list) or not parts:
        raise Refused("a worker initialises parts of one dtype")
    dtype, found = DTYPES[number], []
    for part in parts:
        name, elements = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= 512 or not whole(elements):
            raise Refused("a part is initialised by a short name and its number of elements")
        found.append((name, elements))
    size = sum(elements for _, elements in found) * dtype.itemsize
    if frame.payload not in (0, size):
        raise Refused(f"key {found[0][0]}: {frame.payload} bytes for {size} bytes of {dtype}")
    return dtype, found


def whole(number: object) -> bool:
    """Whether it is a whole number, 0 or more."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def read(frame: Frame) -> list[tuple[int, float, float]]:
    """Which answers a worker has read in shared memory, each with when it began and when it was done."""
    found = frame.said.get("read")
    if not isinstance(found, list) or not all(
        isinstance(each, list) and [*map(type, each)] == [int, float, float] for each in found
    ):
        raise Refused("what was read is said by request, begin and end")
    return found

"""Requests of a worker, checked before anything is done for them. Each function raises Refused."""

import torch

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.wire.frames import DTYPES, Frame
from d2lps.units import is_count


def validate_push(frame: Frame) -> tuple[torch.dtype, list[int]]:
    """Return the dtype, and the elements of each part, of a push."""
    dtypes, sizes = {entry.dtype for entry in frame.entries}, [entry.elements for entry in frame.entries]
    if len(dtypes) != 1 or not max(dtypes) < len(DTYPES):
        raise Refused("what is pushed together is of one dtype")
    dtype = DTYPES[dtypes.pop()]
    if frame.entries[0].in_rows:
        if len(sizes) > 1 or frame.shared or not 8 <= frame.payload <= 8 + sizes[0] * (8 + dtype.itemsize):
            raise Refused("rows are pushed of one part at a time, and no more of them than it has")
    elif frame.payload != (8 * len(sizes) + 8 if frame.shared else sum(sizes) * dtype.itemsize):
        raise Refused(f"{frame.payload} bytes are pushed, where {sum(sizes)} elements of {dtype} belong")
    return dtype, sizes


def validate_init(frame: Frame) -> tuple[torch.dtype, list[tuple[str, int]]]:
    """Return the dtype, and (name, elements) of each part, that a worker initialises."""
    number, parts = frame.metadata.get("dtype"), frame.metadata.get("parts")
    if not is_count(number) or number >= len(DTYPES) or not isinstance(parts, list) or not parts:
        raise Refused("a worker initialises parts of one dtype")
    dtype, named = DTYPES[number], []
    for part in parts:
        name, elements = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= 512 or not is_count(elements):
            raise Refused("a part is initialized by a short name and its number of elements")
        named.append((name, elements))
    size = sum(elements for _, elements in named) * dtype.itemsize
    if frame.payload not in (0, size):
        raise Refused(f"key {named[0][0]}: {frame.payload} bytes for {size} bytes of {dtype}")
    return dtype, named


def validate_rows(frame: Frame) -> tuple[int, int, int]:
    """Return the part, the elements of a row, and the round of which a worker pulls rows."""
    part, width, round_ = counts = [frame.metadata.get(name) for name in ("part", "width", "round")]
    if not all(map(is_count, counts)) or not width or frame.payload % 8:
        raise Refused("rows are pulled by part, width, round and whole numbers")
    return part, width, round_


def validate_read(frame: Frame) -> list[tuple[int, float, float]]:
    """Return (number, begin, end) of each answer that a worker has read in shared memory."""
    read = frame.metadata.get("read")
    if not isinstance(read, list) or not all(
        isinstance(answer, list) and [*map(type, answer)] == [int, float, float] for answer in read
    ):
        raise Refused("what was read is said by request, begin and end")
    return read


def validate_state(frame: Frame) -> tuple[int, bool | None, int | None, int | None]:
    """Return the save, and if all is to be kept for it or let go (None: neither), or the part and byte to read from."""
    save, keep, part, start = (frame.metadata.get(name) for name in ("save", "keep", "part", "from"))
    reads = keep is None and is_count(part) and is_count(start)
    if not is_count(save) or type(keep) is not bool and not reads:
        raise Refused("what is saved has a number, and is kept, let go, or read by part and byte")
    return save, keep, part, start


def validate_barrier(frame: Frame) -> tuple[str, int, str | None]:
    """Return the name and the number of a barrier, and the note of worker 0 for the others."""
    name, number, note = validate_name(frame), frame.metadata.get("round"), frame.metadata.get("note")
    if not is_count(number) or not isinstance(note, str | None):
        raise Refused("a barrier has a short name and a number, and its note is text")
    return name, number, note


def validate_name(frame: Frame) -> str:
    """Return the name of a barrier."""
    name = frame.metadata.get("name")
    name = "" if name is None else name
    if not isinstance(name, str) or len(name) > 64:
        raise Refused("a barrier has a short name and a number, and its note is text")
    return name


def read_optimizer(frame: Frame, numbers: str) -> Optimizer | None:
    """Return the optimizer of a request, or None; ``numbers``: the name under which its numbers are."""
    rule = frame.metadata.get("rule")
    return None if rule is None else Optimizer.read(rule, frame.metadata.get(numbers))

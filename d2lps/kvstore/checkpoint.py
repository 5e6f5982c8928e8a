"""A store in a file: the values of all keys, and what the optimizer remembers. Numbers and names, never code.

The file is a line that says what it is, the length and the SHA-256 of a JSON header, the header, and the tensors one
after the other, whose SHA-256 the header has. It is complete, or it is not there: it is written beside its place,
flushed to the disk, and renamed.
"""

import hashlib
import json
import os
import struct
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import dtype as Dtype

from d2lps.kvstore.codec import State, numbers_of, read_tensors, tensors_of
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import Key, validate_key
from d2lps.kvstore.wire.frames import DTYPES, raw
from d2lps.plan.optimizers import is_number

MAGIC, LENGTH = b"d2lps store 1\n", struct.Struct("<Q")
HEADER = 256 << 20  # most bytes of a header


class Checkpoint(NamedTuple):
    """What is in a file: for each key its shape and its state; and the optimizer, if there was one."""

    keys: dict[Key, tuple[tuple[int, ...], State]]
    optimizer: Optimizer | None

    def validate(self, keys: dict[Key, tuple[tuple[int, ...], Dtype]], path: object) -> None:
        """Raises Refused unless it has these very keys, each of its shape and dtype."""
        lacking, more = [*(keys.keys() - self.keys.keys())], [*(self.keys.keys() - keys.keys())]
        if lacking or more:
            what = f"lacks key {lacking[0]!r}" if lacking else f"has key {more[0]!r}, which is not initialised"
            raise Refused(f"{path} {what}: init the keys that were saved, then load")
        for key, (shape, dtype) in keys.items():
            saved, state = self.keys[key]
            if (saved, state["value"].dtype) != (shape, dtype):
                raise Refused(
                    f"key {key!r} has shape {saved} of {state['value'].dtype} in {path}, and {shape} of {dtype} here"
                )


def write(path: "str | os.PathLike", checkpoint: Checkpoint) -> None:
    """Write it to ``path``, where an older file stays until the new one is complete. Raises Refused."""
    path = Path(path)
    keys, tensors, digest = [], [], hashlib.sha256()
    for key, (shape, state) in checkpoint.keys.items():
        flat = tensors_of(state)
        dtypes = {name: DTYPES.index(one.dtype) for name, one in flat.items()}
        keys.append({"key": key, "shape": shape, "numbers": numbers_of(state), "tensors": dtypes})
        tensors += map(raw, flat.values())
    for tensor in tensors:
        digest.update(tensor)
    optimizer = checkpoint.optimizer
    optimizer = optimizer and {"rule": optimizer.rule, "numbers": optimizer.as_read}
    header = json.dumps({"keys": keys, "optimizer": optimizer, "sha256": digest.hexdigest()}).encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(MAGIC + LENGTH.pack(len(header)) + hashlib.sha256(header).digest() + header)
            for tensor in tensors:
                file.write(tensor)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # or the file may be complete, and its name gone, after the power was
        finally:
            os.close(folder)
    except OSError as error:
        raise Refused(f"the store cannot be saved in {path} ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            os.unlink(beside)


def read(path: "str | os.PathLike") -> Checkpoint:
    """What :func:`write` wrote. Raises Refused, with the file's name, where anything of it is not as it was."""
    try:
        with open(path, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            start = file.read(len(MAGIC) + LENGTH.size + 32)
            if not start.startswith(MAGIC) or len(start) < len(MAGIC) + LENGTH.size + 32:
                raise Refused(f"{path} is no store that d2lps saved, or only its beginning")
            (length,) = LENGTH.unpack_from(start, len(MAGIC))
            if length > min(HEADER, there):
                raise Refused(f"{path} says that its header has {length} bytes: it was changed, or cut off")
            text = file.read(length)
            if hashlib.sha256(text).digest() != start[-32:]:
                raise Refused(f"the header of {path} is not what was written: it was changed, or cut off")
            header = json.loads(text)
            payload = bytearray(there - file.tell())
            file.readinto(payload)
    except OSError as error:
        raise Refused(f"the store in {path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, Refused) else Refused(f"the header of {path} is no JSON") from None
    if not isinstance(header, dict) or hashlib.sha256(payload).hexdigest() != header.get("sha256"):
        raise Refused(f"the tensors in {path} are not those that were written: SHA-256 differs")
    try:
        return _checkpoint(header, memoryview(payload))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Refused(f"{path} was written by something else: {error}") from None


def _checkpoint(header: dict, payload: memoryview) -> Checkpoint:
    keys = {}
    for each in header["keys"]:
        validate_key(each["key"])
        shape = tuple(each["shape"])
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError("a shape has whole numbers")
        for name, number in each["numbers"].items():
            if not is_number(number):
                raise ValueError(f"{name} is no number")
        layout = [(name, dtype, prod(shape)) for name, dtype in each["tensors"].items()]
        tensors, payload = read_tensors(layout, payload)
        keys[each["key"]] = shape, tensors | each["numbers"]
    if len(payload):
        raise ValueError("there is more, or less, in it than its header says")
    optimizer = header["optimizer"]
    return Checkpoint(keys, optimizer and Optimizer.read(optimizer["rule"], optimizer["numbers"]))

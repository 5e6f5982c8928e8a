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

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import Key, named
from d2lps.kvstore.wire import DTYPES, raw
from d2lps.plan.optimizers import is_number

MAGIC, LENGTH = b"d2lps store 1\n", struct.Struct("<Q")
HEADER = 256 << 20  # most bytes of a header

State = dict[str, "Tensor | int | float"]  # "value", flat, and what the optimizer remembers of it


class Saved(NamedTuple):
    """What is in a file: for each key its shape and its state; and the optimizer, if there was one."""

    keys: dict[Key, tuple[tuple[int, ...], State]]
    optimizer: Optimizer | None


def write(path: "str | os.PathLike", saved: Saved) -> None:
    """Write ``saved`` to ``path``, where an older file stays until the new one is complete. Raises Refused."""
    path = Path(path)
    keys, tensors, digest = [], [], hashlib.sha256()
    for key, (shape, state) in saved.keys.items():
        flat = {name: one for name, one in state.items() if isinstance(one, Tensor)}
        numbers = {name: one for name, one in state.items() if name not in flat}
        keys.append(
            {
                "key": key,
                "shape": shape,
                "numbers": numbers,
                "tensors": {name: DTYPES.index(one.dtype) for name, one in flat.items()},
            }
        )
        tensors += flat.values()
    for tensor in tensors:
        digest.update(raw(tensor))
    optimizer = saved.optimizer and {"rule": saved.optimizer.rule, "numbers": saved.optimizer.asked}
    header = json.dumps({"keys": keys, "optimizer": optimizer, "sha256": digest.hexdigest()}).encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(MAGIC + LENGTH.pack(len(header)) + hashlib.sha256(header).digest() + header)
            for tensor in tensors:
                file.write(raw(tensor))
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


def read(path: "str | os.PathLike") -> Saved:
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
            header = file.read(length)
            if hashlib.sha256(header).digest() != start[-32:]:
                raise Refused(f"the header of {path} is not what was written: it was changed, or cut off")
            said = json.loads(header)
            payload = bytearray(there - file.tell())
            file.readinto(payload)
    except OSError as error:
        raise Refused(f"the store in {path} cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise error if isinstance(error, Refused) else Refused(f"the header of {path} is no JSON") from None
    if hashlib.sha256(payload).hexdigest() != said.get("sha256"):
        raise Refused(f"the tensors in {path} are not those that were written: SHA-256 differs")
    try:
        return _found(said, payload)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"{path} was written by something else: {error}") from None


def _found(said: dict, payload: bytearray) -> Saved:
    keys, start = {}, 0
    for each in said["keys"]:
        named(each["key"])
        shape, state = tuple(each["shape"]), {}
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError("a shape has whole numbers")
        for name, dtype in each["tensors"].items():
            count = prod(shape)
            state[name] = (
                torch.frombuffer(payload, dtype=DTYPES[dtype], count=count, offset=start)
                if count
                else (torch.empty(0, dtype=DTYPES[dtype]))
            )
            start += count * DTYPES[dtype].itemsize
        for name, number in each["numbers"].items():
            if not is_number(number):
                raise ValueError(f"{name} is no number")
            state[name] = number
        keys[each["key"]] = shape, state
    if start != len(payload):
        raise ValueError("there is more, or less, in it than its header says")
    optimizer = said["optimizer"]
    return Saved(keys, optimizer and Optimizer.read(optimizer["rule"], optimizer["numbers"]))


def fits(saved: Saved, keys: "dict[Key, tuple[tuple[int, ...], torch.dtype]]", path: object) -> None:
    """Raises Refused unless ``saved`` has these very keys, each of its shape and dtype."""
    lacking, more = [*(keys.keys() - saved.keys.keys())], [*(saved.keys.keys() - keys.keys())]
    if lacking or more:
        what = f"lacks key {lacking[0]!r}" if lacking else f"has key {more[0]!r}, which is not initialised"
        raise Refused(f"{path} {what}: init the keys that were saved, then load")
    for key, (shape, dtype) in keys.items():
        found, state = saved.keys[key]
        if (found, state["value"].dtype) != (shape, dtype):
            raise Refused(
                f"key {key!r} has shape {found} of {state['value'].dtype} in {path}, and {shape} of {dtype} here"
            )

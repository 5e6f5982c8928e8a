"""The state of a key as metadata and bytes for a frame, and the states of all keys in a file. Never code.

A state has the value of the key, and the tensors and numbers of the optimizer for it. The file has a line with its kind
and version, the length and the SHA-256 of a JSON header, the header, and the tensors one after the other, whose SHA-256
is in the header. It is complete, or it is not there: it is written under another name, flushed to the disk and renamed.
"""

import fcntl
import hashlib
import json
import os
import secrets
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers import leftovers
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer, State, validate_state
from d2lps.kvstore.values import Key, validate_key
from d2lps.kvstore.wire.frames import DTYPES, raw
from d2lps.messages import why
from d2lps.plan.optimizers import is_number

MAGIC, LENGTH = b"d2lps store 1\n", struct.Struct("<Q")
HEADER = 256 << 20  # bytes of a header, at most
PIECE = 1 << 20  # bytes of a state in one frame: other answers wait no longer than for this


class Checkpoint(NamedTuple):
    """The content of a file: for each key its shape and state, and the optimizer, if there was one."""

    keys: dict[Key, tuple[tuple[int, ...], State]]
    optimizer: Optimizer | None


def _require(keys: dict, saved: dict, path: object) -> None:
    """Raise Refused unless exactly these keys are saved, each with its shape and dtype."""
    missing, more = [*(keys.keys() - saved.keys())], [*(saved.keys() - keys.keys())]
    if missing or more:
        problem = f"lacks key {missing[0]!r}" if missing else f"has key {more[0]!r}, which is not initialized"
        raise Refused(f"{path} {problem}: init the keys that were saved, then load")
    for key, (shape, dtype) in keys.items():
        if saved[key] != (shape, dtype):
            was, kind = saved[key]
            raise Refused(f"key {key!r} has shape {was} of {kind} in {path}, and {shape} of {dtype} here")


def write(path: "str | os.PathLike", checkpoint: Checkpoint) -> None:
    """Write a file. An older one at ``path`` stays until the new one is complete. Raises Refused."""
    path = require_place(path)
    keys, digest = [], hashlib.sha256()
    tensors: list[memoryview] = []
    for key, (shape, state) in checkpoint.keys.items():
        flat = tensors_of(state)
        dtypes = {name: DTYPES.index(one.dtype) for name, one in flat.items()}
        keys.append({"key": key, "shape": shape, "numbers": numbers_of(state), "tensors": dtypes})
        tensors += map(raw, flat.values())
    for tensor in tensors:
        digest.update(tensor)
    chosen = checkpoint.optimizer
    optimizer = chosen and {"rule": chosen.rule, "numbers": chosen.as_read}
    header = json.dumps({"keys": keys, "optimizer": optimizer, "sha256": digest.hexdigest()}).encode()
    beside = None
    try:
        beside, descriptor = leftovers.held(_made, path.parent)
        with open(descriptor, "wb") as file:
            file.write(MAGIC + LENGTH.pack(len(header)) + hashlib.sha256(header).digest() + header)
            for tensor in tensors:
                file.write(tensor)
            file.flush()
            to_disk(file.fileno())
            os.replace(beside, path)
        folder_to_disk(path.parent)  # else its name may be lost with the power, although the file is complete
    except BaseException as error:
        if beside:
            with suppress(OSError, ValueError):
                os.unlink(beside)
        if isinstance(error, OSError | ValueError):
            raise _not_saved(path, error) from None
        raise


def to_disk(descriptor: int) -> None:
    """Wait until an open file is on the disk: on macOS, ``fsync`` alone does not wait for the disk's own cache."""
    if sys.platform == "darwin":
        with suppress(OSError):  # file systems of a network refuse it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def folder_to_disk(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        to_disk(descriptor)
    finally:
        os.close(descriptor)


def require_place(path: object) -> Path:
    """Return ``path`` if a file can probably be written there. Raises Refused."""
    path = _path(path)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is there, and no file")
        os.stat(path.parent)
    except (OSError, ValueError) as error:
        raise _not_saved(path, error) from None
    return path


def _not_saved(path: Path, error: Exception) -> Refused:
    return Refused(f"the store cannot be saved in {path} ({why(error)})")


def _path(path: object) -> Path:
    """Return ``path`` if it can be the path of a file. Raises Refused."""
    try:
        name = os.fsdecode(path)  # type: ignore[arg-type]  # a TypeError is refused
    except (TypeError, ValueError):
        name = ""
    if not name or "\0" in name:
        raise Refused(f"{path!r} is no path of a file: a store is saved in one, and loaded from it")
    return Path(os.path.expanduser(name))


def _made(prefix: str, dir: os.PathLike) -> tuple[int, str]:
    """Make a file as mkstemp does, with the permissions of the umask."""
    path = os.path.join(dir, prefix + secrets.token_hex(8))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path


def read(path: "str | os.PathLike", keys: dict[Key, tuple[tuple[int, ...], torch.dtype]] | None = None) -> Checkpoint:
    """Read a file that :func:`write` wrote. Raises Refused, with the name of the file, if anything was changed.

    ``keys``: the shapes and dtypes that it must have, which are checked before the tensors are read.
    """
    path = _path(path)
    try:
        leftovers.sweep(path.parent)
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            header, there = _header(file, path)
            entries, nbytes = _entries(header)
            if nbytes != there:
                raise Refused(f"{path} has {there} bytes of tensors where {nbytes} belong: it was changed, or cut off")
            if keys is not None:
                _require(keys, {key: (shape, DTYPES[kinds["value"]]) for key, shape, kinds, _ in entries}, path)
            payload = bytearray(nbytes)
            file.readinto(payload)
        if hashlib.sha256(payload).hexdigest() != header["sha256"]:
            raise Refused(f"the tensors in {path} are not those that were written: SHA-256 differs")
        return _checkpoint(header, entries, memoryview(payload))
    except OSError as error:
        raise Refused(f"the store in {path} cannot be read ({why(error)})") from None
    except MemoryError:
        raise Refused(f"the store in {path} is larger than the memory that is left") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        named = isinstance(error, Refused) and str(path) in str(error)
        raise error if named else Refused(f"{path} was written by something else: {error}") from None


def _header(file, path: Path) -> tuple[dict, int]:
    """Return the header, and the number of bytes after it."""
    about = os.fstat(file.fileno())
    start = file.read(len(MAGIC) + LENGTH.size + 32) if stat.S_ISREG(about.st_mode) else b""
    if not start.startswith(MAGIC) or len(start) < len(MAGIC) + LENGTH.size + 32:
        raise Refused(f"{path} is no store that d2lps saved, or only its beginning")
    (length,) = LENGTH.unpack_from(start, len(MAGIC))
    if length > min(HEADER, about.st_size):
        raise Refused(f"{path} says that its header has {length} bytes: it was changed, or cut off")
    text = file.read(length)
    if hashlib.sha256(text).digest() != start[-32:]:
        raise Refused(f"the header of {path} is not what was written: it was changed, or cut off")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise Refused(f"the header of {path} is no JSON object")
    return header, about.st_size - file.tell()


def _entries(header: dict) -> tuple[list[tuple[Key, tuple[int, ...], dict[str, int], dict]], int]:
    """Return for each key (key, shape, dtypes of its tensors, numbers), and the bytes of all tensors."""
    entries, nbytes = {}, 0
    for entry in header["keys"]:
        key, shape, kinds = entry["key"], tuple(entry["shape"]), entry["tensors"]
        validate_key(key)
        if key in entries or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"key {key!r} comes twice, or has no shape")
        if "value" not in kinds or not all(type(kind) is int and 0 <= kind < len(DTYPES) for kind in kinds.values()):
            raise ValueError(f"key {key!r} has no value, or one of no known dtype")
        if not all(map(is_number, entry["numbers"].values())):
            raise ValueError(f"key {key!r} has what is no number")
        entries[key] = key, shape, kinds, entry["numbers"]
        nbytes += prod(shape) * sum(DTYPES[kind].itemsize for kind in kinds.values())
    return list(entries.values()), nbytes


def _checkpoint(header: dict, entries: list, payload: memoryview) -> Checkpoint:
    optimizer, keys = header["optimizer"], {}
    optimizer = optimizer and Optimizer.read(optimizer["rule"], optimizer["numbers"])
    for key, shape, kinds, numbers in entries:
        elements = prod(shape)
        tensors, payload = read_tensors([(name, kind, elements) for name, kind in kinds.items()], payload)
        keys[key] = shape, tensors | numbers
        validate_state(keys[key][1], optimizer, elements, DTYPES[kinds["value"]], repr(key))
    return Checkpoint(keys, optimizer)


# ---- the state of one key


def tensors_of(state: State) -> dict[str, Tensor]:
    return {name: entry for name, entry in state.items() if isinstance(entry, Tensor)}


def numbers_of(state: State) -> dict[str, "int | float"]:
    return {name: entry for name, entry in state.items() if not isinstance(entry, Tensor)}


def cut(state: State, start: int, stop: int) -> State:
    """Return the elements ``start`` to ``stop`` of a state."""
    return numbers_of(state) | {name: one[start:stop] for name, one in tensors_of(state).items()}


def joined(states: list[State]) -> State:
    """Return the state of a key from the states of its parts."""
    return states[0] | {name: torch.cat([state[name] for state in states]) for name in tensors_of(states[0])}


def encode(state: State) -> tuple[dict, memoryview]:
    """Return (metadata, payload).

    >>> decode(*encode({"value": torch.ones(3), "steps": 2}))
    {'value': tensor([1., 1., 1.]), 'steps': 2}
    """
    payload = torch.cat([one.contiguous().view(torch.uint8) for one in tensors_of(state).values()])
    return layout(state), raw(payload)


def layout(state: State) -> dict:
    """Return the metadata of a state: names, dtypes and sizes of its tensors, and its numbers."""
    tensors = [[name, DTYPES.index(one.dtype), one.numel()] for name, one in tensors_of(state).items()]
    return {"tensors": tensors, "numbers": numbers_of(state)}


def size(metadata: dict) -> int:
    """Return the number of bytes of the tensors of a :func:`layout`."""
    return sum(count * DTYPES[number].itemsize for _, number, count in metadata["tensors"])


def piece(state: State, start: int) -> memoryview:
    """Return PIECE bytes, or fewer at the end, of the tensors of a state, one after the other, from ``start`` on."""
    pieces, left = [], PIECE
    for one in tensors_of(state).values():
        pieces.append(raw(one)[start : start + left])
        left -= len(pieces[-1])
        start = max(0, start - one.nbytes)
    pieces = [piece for piece in pieces if piece]
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def decode(metadata: dict, payload: memoryview) -> State:
    """Return the state that :func:`encode` encoded. Raises Refused if this is something else."""
    try:
        tensors, rest = read_tensors(metadata["tensors"], payload)
        if len(rest) or not all(map(is_number, metadata["numbers"].values())):
            raise Refused("the state of a key has tensors and finite numbers")
        return {name: one.clone() for name, one in tensors.items()} | metadata["numbers"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise error if isinstance(error, Refused) else Refused(f"that is no state of a key ({error})") from None


def read_tensors(layout: Iterable, payload: memoryview) -> tuple[dict[str, Tensor], memoryview]:
    """Return the tensors of a layout, (name, number of the dtype, elements) each, and the bytes after them."""
    tensors = {}
    for name, number, count in layout:
        dtype = DTYPES[number]
        size = count * dtype.itemsize
        if not isinstance(name, str) or not 0 <= size <= len(payload):
            raise Refused("the state of a key is longer than what came")
        tensors[name] = torch.frombuffer(payload, dtype=dtype, count=count) if size else torch.empty(0, dtype=dtype)
        payload = payload[size:]
    return tensors, payload

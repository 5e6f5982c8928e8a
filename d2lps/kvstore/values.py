"""Keys and values that users push and pull: tensors of torch, arrays of NumPy or MXNet, or lists, one per device."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from itertools import chain
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused, as_known
from d2lps.kvstore.wire.frames import DTYPES, raw
from d2lps.kvstore.wire.shared_buffer import Buffers
from d2lps.messages import text

Key = str | int
Value = Tensor | list  # for one key: a tensor of its shape, or a list of tensors, one per device


class KeySpec:
    """An initialized key: the type of its values, the places of its parts, the number of its pushes."""

    __slots__ = tuple("key shape dtype elements width parts pushes failed buffers".split())

    def __init__(self, key: Key, first: Tensor):
        self.key, self.shape, self.dtype, self.elements = key, tuple(first.shape), first.dtype, first.numel()
        self.width = max(1, prod(self.shape[1:]))  # elements of a row
        self.parts: list = []  # (Part, the number of its shard at its server)
        self.pushes = 0  # that are counted
        self.failed: Any = None  # the FailedPush that named it last, until another push or pull succeeds
        self.buffers = Buffers()  # from which servers read pushes

    def plain(self, value: object) -> bool:
        """Return True for a plain tensor of this key in main memory: a fast check, for ten thousand keys."""
        return (
            type(value) is Tensor
            and value.dtype is self.dtype
            and value.shape == self.shape
            and value.is_cpu
            and not value.requires_grad
            and (value.data_ptr() != 0 or not self.elements)  # raises if it is not dense
        )

    def validate(self, array: object, role: str, shape: tuple[int, ...] | None = None) -> None:
        """Raise Refused unless ``array`` has the dtype of the key, and the ``shape``, by default that of the key.

        ``role`` is ``"pushed"`` or ``"out"``.
        """
        shape = self.shape if shape is None else shape
        role_text = text(f"store.role.{role}")
        tensor = array
        if not isinstance(array, Tensor) or not is_dense(array) or not has_memory(array):
            tensor = as_tensor(array, text("store.of-key", role=role_text, key=repr(self.key)))
        self._require_type(tensor, role_text, shape)

    def as_pushed(self, value: object) -> Tensor:
        """Return a pushed value as a dense tensor; a sparse gradient of rows as a coalesced one, with each row once.

        Rows that come several times are added in their order, as :meth:`Tensor.to_dense` adds them. Raises Refused.
        """
        role = text("store.role.pushed")
        if isinstance(value, Tensor) and value.layout is torch.sparse_coo:
            self._require_type(value, role, self.shape)  # before its memory is taken
            rows, value = value._indices(), value.detach()._values()
            try:  # torch would write rows that do not exist somewhere else
                value = torch.sparse_coo_tensor(rows, value, self.shape, check_invariants=True)
            except RuntimeError as error:
                raise Refused(f"{role}: {error}") from None
            if value.sparse_dim() == 1:  # Tensor.coalesce adds in another order: other bits
                unchecked = {"check_invariants": False}
                rows, places = rows.unique(return_inverse=True)
                shape = rows.numel(), *self.shape[1:]
                few = torch.sparse_coo_tensor(places, value._values(), shape, **unchecked).to_dense()
                return torch.sparse_coo_tensor(rows.reshape(1, -1), few, self.shape, is_coalesced=True, **unchecked)
            value = value.to_dense()
        return as_tensor(value, role)

    def _require_type(self, tensor: Tensor, role: str, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape or tensor.dtype != self.dtype:
            found = {"shape": tuple(tensor.shape), "dtype": tensor.dtype, "role": role}
            raise Refused(text("store.unlike", key=repr(self.key), wanted=shape, like=self.dtype, **found))


def known_by(keys: Iterable[KeySpec]) -> tuple[str, str]:
    """Return two digests by which workers compare their keys: of the names, and of the shapes and dtypes."""
    names, types = sha256(), sha256()
    for spec in keys:
        names.update(repr(spec.key).encode() + b"\n")
        types.update(f"{spec.shape} {spec.dtype}\n".encode())
    return names.hexdigest(), types.hexdigest()


# ---- keys and pushed values


def as_key(key: Any) -> Any:
    """Return a whole number of NumPy as an int, and anything else as it is."""
    return key.item() if isinstance(key, np.integer) else key


def validate_key(key: object) -> str:
    """Return the repr of a key, in which 3 and "3" differ. Raises Refused."""
    if type(key) is int and key.bit_length() > 850 or isinstance(key, str) and len(key) > 256:  # too long to be shown
        raise Refused(text("store.long-key"))
    # No subclasses: they are equal as keys of a dict, but may have another repr.
    if type(key) not in (str, int) or not 0 < len(repr(key)) <= 256:
        raise Refused(text("store.bad-key", key=repr(key)))
    return repr(key)


def paired(key: object, value: object) -> Iterable[tuple[Key, object]]:
    """Return (key, value) pairs of one key, or of a list of different keys with as many values. Raises Refused."""
    if not isinstance(key, list | tuple):
        return [(as_key(key), value)]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise Refused(text("store.as-many", keys=len(key)))
    key = [item if type(item) in (str, int) else as_key(item) for item in key]
    for item in key:
        if type(item) not in (str, int):
            validate_key(item)
    if len({*key}) < len(key):
        raise Refused(text("store.key-twice"))
    return zip(key, value, strict=True)


def per_device(value: object) -> list:
    """Return the values of one key, one per device. Raises Refused if there are none."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise Refused(text("store.no-value"))
    return values


def as_tensor(value: object, role: str) -> Tensor:
    """Return ``value`` as a torch tensor, which shares memory with a tensor or an array of NumPy. Raises Refused.

    It is a copy of an array that runs backwards, such as ``x[::-1]``: torch has no such tensors.
    """
    if isinstance(value, Tensor):
        tensor = value.detach() if value.requires_grad else value
    elif isinstance(value, np.ndarray) or hasattr(value, "asnumpy"):
        try:
            array = value if isinstance(value, np.ndarray) else value.asnumpy()
            tensor = torch.from_numpy(array.copy() if runs_back(array) else array)
        except (TypeError, ValueError) as error:
            raise Refused(f"{role}: {error}") from None
    else:
        raise Refused(text("store.not-an-array", what=role, given=type(value).__name__))
    if not is_dense(tensor):
        raise Refused(text("store.sparse", what=role))
    if not has_memory(tensor):
        raise Refused(text("store.no-memory", what=role))
    if tensor.dtype not in DTYPES:
        dtypes = ", ".join(str(dtype).split(".")[1] for dtype in DTYPES)
        raise Refused(text("store.dtype", what=role, dtype=tensor.dtype, dtypes=dtypes))
    return tensor


def runs_back(array: object) -> bool:
    """Return True if an array of NumPy has a negative stride."""
    return min(getattr(array, "strides", ()), default=0) < 0


def is_dense(tensor: Tensor) -> bool:
    """Return True if the tensor has a value for each of its elements."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def has_memory(tensor: Tensor) -> bool:
    """Return True if the tensor has memory of its own, unlike the wrappers of torch.func."""
    try:
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


def each_of(value: Value) -> Sequence:
    """Return the values of one key as a sequence, one per device."""
    return value if isinstance(value, list) else (value,)


def in_rows(value: Value) -> bool:
    """Return True for a pushed value that has only some rows: see :meth:`KeySpec.as_pushed`."""
    return type(value) is list and value[0].is_sparse


def added(values: Value) -> Tensor:
    """Return the flat sum in main memory, added in order; a single tensor is not copied unless it has to be."""
    total = values
    if type(values) is list:
        total, *others = values
        for other in others:
            total = total + other.to(total.device)
    total = total.to_dense() if total.is_sparse else total
    total = total if total.dim() == 1 else total.reshape(-1)
    return total if total.is_cpu and total.is_contiguous() else total.cpu().contiguous()


def copied(value: Value) -> list[Tensor]:
    """Return flat copies of the values."""
    return [added(one).resolve_neg().clone() for one in each_of(value)]


def digests(value: Value) -> list[bytes]:
    """Return digests of the bits of the values."""
    return [blake2b(raw(added(one).resolve_neg()), digest_size=32).digest() for one in each_of(value)]


@contextmanager
def noted_as_counted(keys: Iterable[KeySpec]) -> Iterator[None]:
    """Add ``keys`` as ``counted`` to an error that is raised inside, because their push is counted by then."""
    try:
        yield
    except Exception as error:
        known = as_known(error)
        known.counted = tuple(spec.key for spec in keys)
        raise known from known.__cause__


# ---- pulled values


def require_writable(out: object, spec: KeySpec) -> None:
    """Raise Refused unless every element of ``out`` can be written."""
    if isinstance(out, Tensor):
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise Refused(text("store.inference", key=repr(spec.key)))
        if not out.is_contiguous() and folded(out):
            raise Refused(text("store.expanded", key=repr(spec.key)))
    elif isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise Refused(text("store.read-only", key=repr(spec.key)))
        if folded(torch.from_numpy(out[tuple(slice(None, None, -1 if step < 0 else 1) for step in out.strides)])):
            raise Refused(text("store.expanded", key=repr(spec.key)))


def folded(tensor: Tensor) -> bool:
    """Return True if several elements of a tensor share memory."""
    extent = 1  # elements that the dimensions so far span
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            break
        extent += stride * (size - 1)
    else:
        return False
    spots = torch.zeros(1 + sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True)))
    spots.as_strided(tensor.shape, tensor.stride()).fill_(1)
    return int(spots.count_nonzero()) < tensor.numel()


def in_place(values: Iterable[Value], outs: Iterable[Value]) -> bool:
    """Return True if the memory of a pushed value may overlap that of an ``out``."""
    pushed, pulled = ([*map(_extent, chain(*map(each_of, group)))] for group in (values, outs))
    return any(start < stop and begin < end for start, end in pushed for begin, stop in pulled)


def _extent(array: object) -> tuple[int, int]:
    """Return the start and end of an array in memory; (0, 0) if it is not one of torch or NumPy, or in rows."""
    if isinstance(array, Tensor) and not array.is_sparse:
        start, width, strides = array.data_ptr(), array.itemsize, [step * array.itemsize for step in array.stride()]
    elif isinstance(array, np.ndarray):
        start, width, strides = array.ctypes.data, array.itemsize, array.strides
    else:
        return 0, 0
    steps = [step * (size - 1) for step, size in zip(strides, array.shape, strict=True)]
    end = start + sum(step for step in steps if step > 0) + width * (0 not in array.shape)
    return start + sum(step for step in steps if step < 0), end


def overlap(pushed: Sequence[Tensor], pulled: Sequence["Tensor | None"]) -> bool:
    """Return True if the memory of a flat pushed tensor overlaps that of a flat pulled one."""
    (starts, ends), (begins, stops) = _spans(pushed), _spans([flat for flat in pulled if flat is not None])
    # For each pulled tensor: the pushed ones that begin before it ends, and those that end before it begins.
    before, over = np.sort(starts).searchsorted(stops, "left"), np.sort(ends).searchsorted(begins, "right")
    return bool((before > over).any())


def _spans(flats: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and ends of flat tensors in memory."""
    starts = np.fromiter(map(Tensor.data_ptr, flats), np.int64, len(flats))
    return starts, starts + np.fromiter(map(attrgetter("nbytes"), flats), np.int64, len(flats))


def memory_of(out: object) -> "Tensor | None":
    """Return the flat memory of ``out``; None if a value cannot be received directly into it."""
    tensor = out
    if type(out) is not Tensor:
        tensor = torch.from_numpy(out) if isinstance(out, np.ndarray) and not runs_back(out) else out
        if not isinstance(tensor, Tensor):
            return None
    if not tensor.is_cpu or not tensor.is_contiguous():
        return None
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def fill(outs: Value, value: Tensor) -> None:
    """Copy the flat value to every one of ``outs`` that does not hold it already."""
    for out in each_of(outs):
        memory = memory_of(out)
        if memory is not None and memory.data_ptr() == value.data_ptr():
            continue
        shaped = value.view(out.shape)
        if isinstance(out, Tensor):
            out.detach().copy_(shaped)
        elif isinstance(out, np.ndarray):
            np.copyto(out, shaped.numpy())
        else:  # an array of MXNet
            out[() if out.ndim == 0 else slice(None)] = shaped.numpy()

"""What users push and pull: tensors of torch, arrays of NumPy and of MXNet, and lists of them, one per device."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from itertools import chain
from math import prod
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused, as_known
from d2lps.kvstore.wire.frames import DTYPES, as_bytes, raw
from d2lps.messages import text

Key = str | int
Given = Tensor | list  # for one key: a tensor of its shape, or a list of what several devices have


class KeySpec:
    """A key that was initialized: what its values are like, where its parts are, how often it was pushed."""

    __slots__ = (
        "key",
        "shape",
        "dtype",
        "elements",
        "width",
        "parts",
        "pushes",
        "released",
        "staging",
        "stage",
        "staged",
    )

    def __init__(self, key: Key, first: Tensor):
        self.key, self.shape, self.dtype, self.elements = key, tuple(first.shape), first.dtype, first.numel()
        self.width = max(1, prod(self.shape[1:]))  # elements of a row
        self.parts: list = []  # (Part, the number of its shard at that server)
        self.pushes = self.released = 0  # how many are counted; of these, how many no server reads any more
        self.staging: dict = {}  # (server, stage) → where its part of a push lies in shared memory
        self.stage = self.staged = 0  # which of its two places the last push took, and which push that was

    def plain(self, given: object) -> bool:
        """Whether it is just such a tensor, in main memory: what is checked for ten thousand keys is checked fast."""
        return (
            type(given) is Tensor
            and given.dtype is self.dtype
            and given.shape == self.shape
            and given.is_cpu
            and not given.requires_grad
            and (given.data_ptr() != 0 or not self.elements)  # also raises where it is not dense
        )

    def validate(self, array: object, role: str, shape: tuple[int, ...] | None = None) -> None:
        """Raises Refused unless ``array`` is like what the key was initialized with (or of another ``shape``).

        ``role``: ``"pushed"`` or ``"out"``.
        """
        shape = self.shape if shape is None else shape
        called = text(f"store.role.{role}")
        tensor = array
        if not isinstance(array, Tensor) or not is_dense(array) or not has_memory(array):
            tensor = as_tensor(array, text("store.of-key", role=called, key=repr(self.key)))
        if tensor.shape != shape or tensor.dtype != self.dtype:
            given = {"shape": tuple(tensor.shape), "dtype": tensor.dtype, "role": called}
            raise Refused(text("store.unlike", key=repr(self.key), wanted=shape, like=self.dtype, **given))


def known_by(keys: Iterable[KeySpec]) -> tuple[str, str]:
    """By what other workers know that they name the same keys, and that these are of the same shapes and dtypes."""
    named, alike = sha256(), sha256()
    for spec in keys:
        named.update(repr(spec.key).encode() + b"\n")
        alike.update(f"{spec.shape} {spec.dtype}\n".encode())
    return named.hexdigest(), alike.hexdigest()


# ---- what comes


def validate_key(key: object) -> str:
    """A key as it is written everywhere: 3 and "3" are two keys. Raises Refused."""
    if type(key) is int and key.bit_length() > 850 or isinstance(key, str) and len(key) > 256:  # it could not be shown
        raise Refused(text("store.long-key"))
    # Of no other type, however like these it is: as keys of a dict they are equal, written they need not be.
    if type(key) not in (str, int) or not 0 < len(repr(key)) <= 256:
        raise Refused(text("store.bad-key", key=repr(key)))
    return repr(key)


def paired(key: object, value: object) -> Iterable[tuple[Key, object]]:
    """(key, value) of one key, or of a list of keys with as many values; no key twice."""
    if not isinstance(key, list | tuple):
        return [(key, value)]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise Refused(text("store.as-many", keys=len(key)))
    for each in key:
        if type(each) not in (str, int):
            validate_key(each)
    if len({*key}) < len(key):
        raise Refused(text("store.key-twice"))
    return zip(key, value, strict=True)


def per_device(value: object) -> list:
    """The values of one key, one per device."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise Refused(text("store.no-value"))
    return values


def as_tensor(value: object, role: str) -> Tensor:
    """``value`` as a torch tensor; it shares memory with what is already one, or NumPy's."""
    if isinstance(value, Tensor):
        tensor = value.detach() if value.requires_grad else value
    elif isinstance(value, np.ndarray) or hasattr(value, "asnumpy"):
        try:
            tensor = torch.from_numpy(value if isinstance(value, np.ndarray) else value.asnumpy())
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


def is_dense(tensor: Tensor) -> bool:
    """Whether it has a value for each of its elements."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def has_memory(tensor: Tensor) -> bool:
    """Whether its values are where it says; not so with what only stands for tensors, as those of torch.func do."""
    try:
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


def each_of(given: Given) -> Sequence:
    """What the devices have, one by one."""
    return given if isinstance(given, list) else (given,)


def added(values: Given) -> Tensor:
    """Their sum in the order given, flat, in main memory: the very tensor where there is one and nothing to copy."""
    total = values
    if type(values) is list:
        total, *others = values
        for other in others:
            total = total + other.to(total.device)
    total = total if total.dim() == 1 else total.reshape(-1)
    return total if total.is_cpu and total.is_contiguous() else total.cpu().contiguous()


def copied(given: Given) -> list[Tensor]:
    """What the devices have, flat, in memory of its own."""
    return [added(one).resolve_neg().clone() for one in each_of(given)]


def digests(given: Given) -> list[bytes]:
    """By which it is known again, bit for bit."""
    return [blake2b(raw(added(one).resolve_neg()), digest_size=32).digest() for one in each_of(given)]


def same(copies: list[Tensor], given: Given) -> bool:
    """Whether it is the same, bit for bit, as when it was :func:`copied`."""
    ones = [added(one).resolve_neg() for one in each_of(given)]
    return len(ones) == len(copies) and all(
        torch.equal(as_bytes(one), as_bytes(copy)) for one, copy in zip(ones, copies, strict=True)
    )


@contextmanager
def counted(keys: Iterable[KeySpec]) -> Iterator[None]:
    """What raises in it does so when the push of ``keys`` is counted, and says so."""
    try:
        yield
    except Exception as error:
        known = as_known(error)
        known.counted = tuple(spec.key for spec in keys)
        raise known from known.__cause__


def is_finite(tensor: Tensor) -> bool:
    """Whether all of it is; whole numbers are."""
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


# ---- what goes back


def require_writable(out: object, spec: KeySpec) -> None:
    """Raises Refused unless each element of ``out`` can be filled."""
    if isinstance(out, Tensor):
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise Refused(text("store.inference", key=repr(spec.key)))
        if not out.is_contiguous() and folded(out):
            raise Refused(text("store.expanded", key=repr(spec.key)))
    elif isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise Refused(text("store.read-only", key=repr(spec.key)))
        if folded(torch.from_numpy(out)):
            raise Refused(text("store.expanded", key=repr(spec.key)))


def folded(tensor: Tensor) -> bool:
    """Whether several of its elements lie in one place."""
    place = 1  # after all that the dimensions so far take
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < place:
            break
        place += stride * (size - 1)
    else:
        return False
    spots = torch.zeros(1 + sum(step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True)))
    spots.as_strided(tensor.shape, tensor.stride()).fill_(1)
    return int(spots.count_nonzero()) < tensor.numel()


def in_place(values: Iterable[Given], outs: Iterable[Given]) -> bool:
    """Whether some of what is pushed lies where something is pulled into, however its elements lie there."""
    pushed, pulled = ([*map(_extent, chain(*map(each_of, given)))] for given in (values, outs))
    return any(start < stop and begin < end for start, end in pushed for begin, stop in pulled)


def _extent(array: object) -> tuple[int, int]:
    """Where in memory it begins and ends; an array that is neither torch's nor NumPy's lies where nothing else does."""
    if isinstance(array, Tensor):
        start, width, strides = array.data_ptr(), array.itemsize, [step * array.itemsize for step in array.stride()]
    elif isinstance(array, np.ndarray):
        start, width, strides = array.ctypes.data, array.itemsize, array.strides
    else:
        return 0, 0
    steps = [step * (size - 1) for step, size in zip(strides, array.shape, strict=True)]
    end = start + sum(step for step in steps if step > 0) + width * (0 not in array.shape)
    return start + sum(step for step in steps if step < 0), end


def overlap(pushed: Sequence[Tensor], pulled: Sequence["Tensor | None"]) -> bool:
    """Whether some flat tensor of the one lies where one of the other does."""
    (starts, ends), (begins, stops) = _spans(pushed), _spans([flat for flat in pulled if flat is not None])
    # How many begin before one of the others stops; and of these, how many have ended before it begins.
    before, over = np.sort(starts).searchsorted(stops, "left"), np.sort(ends).searchsorted(begins, "right")
    return bool((before > over).any())


def _spans(flats: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Where in memory each begins and ends."""
    starts = np.fromiter(map(Tensor.data_ptr, flats), np.int64, len(flats))
    return starts, starts + np.fromiter(map(attrgetter("nbytes"), flats), np.int64, len(flats))


def memory_of(out: object) -> "Tensor | None":
    """The flat memory of ``out``, where it can be filled where it lies; None where it cannot."""
    tensor = out
    if type(out) is not Tensor:
        tensor = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        if not isinstance(tensor, Tensor):
            return None
    if not tensor.is_cpu or not tensor.is_contiguous():
        return None
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def fill(outs: Given, value: Tensor) -> None:
    """The flat value into every one of ``outs`` that does not hold it already."""
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

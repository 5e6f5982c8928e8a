"""What users push and pull: tensors of torch, arrays of NumPy and of MXNet, and lists of them, one per device."""

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire import DTYPES

Key = str | int
Given = Tensor | list  # for one key: a tensor of its shape, or a list of what several devices have


def named(key: object) -> str:
    """A key as it is written everywhere: 3 and "3" are two keys."""
    if isinstance(key, bool) or not isinstance(key, str | int) or not 0 < len(repr(key)) <= 256:
        raise Refused(f"key {key!r}: a key is a short string or a whole number")
    return repr(key)


def paired(key: object, value: object) -> Iterable[tuple[Key, object]]:
    """(key, value) of one key, or of a list of keys with as many values; no key twice."""
    if not isinstance(key, list | tuple):
        return [(key, value)]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise Refused(f"{len(key)} keys want as many values, in a list")
    for each in key:
        if type(each) not in (str, int):
            named(each)
    if len({*key}) < len(key):
        raise Refused("a key is named twice in one call")
    return zip(key, value, strict=True)


def several(value: object) -> list:
    """The values of one key, one per device."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not found:
        raise Refused("no value is given: an array, or a list of arrays, one per device")
    return found


def tensor(value: object, what: str) -> Tensor:
    """``value`` as a torch tensor; it shares memory with what is already one, or NumPy's."""
    if isinstance(value, Tensor):
        found = value.detach() if value.requires_grad else value
    elif isinstance(value, np.ndarray):
        found = _from_numpy(value, what)
    elif hasattr(value, "asnumpy"):
        found = _from_numpy(value.asnumpy(), what)
    else:
        raise Refused(f"{what} is a {type(value).__name__}: give a tensor of torch, or an array of NumPy or MXNet")
    if found.layout != torch.strided or found.is_meta:
        raise Refused(f"{what} is sparse or has no values: give a dense tensor")
    if found.dtype not in DTYPES:
        raise Refused(f"{what} is {found.dtype}: a store holds {', '.join(str(d).split('.')[1] for d in DTYPES)}")
    return found


def _from_numpy(array: np.ndarray, what: str) -> Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise Refused(f"{what}: {error}") from None


class Known:
    """A key that was initialised: what its values are like, where its parts are, how often it was pushed."""

    __slots__ = ("key", "shape", "dtype", "elements", "width", "places", "rounds", "closed", "staged", "turn")

    def __init__(self, key: Key, first: Tensor):
        self.key, self.shape, self.dtype, self.elements = key, tuple(first.shape), first.dtype, first.numel()
        self.width = max(1, prod(self.shape[1:]))  # elements of a row
        self.places: list = []
        self.rounds = self.closed = 0  # pushes that are counted; that no server reads any more
        self.staged: dict = {}  # (server, turn) → where its part of a push lies in shared memory
        self.turn = 0

    def plain(self, given: object) -> bool:
        """Whether it is just such a tensor, in main memory: what is checked for ten thousand keys is checked fast."""
        return (
            type(given) is Tensor
            and given.dtype is self.dtype
            and given.shape == self.shape
            and given.is_cpu
            and not given.requires_grad
            and given.layout is torch.strided
        )

    def check(self, given: object, verb: str, shape: tuple[int, ...] | None = None) -> None:
        """Raises Refused unless ``given`` is like what the key was initialised with (or of another ``shape``)."""
        shape = self.shape if shape is None else shape
        found = given if isinstance(given, Tensor) else tensor(given, f"{verb} of key {self.key!r}")
        if found.shape != shape or found.dtype != self.dtype:
            raise Refused(
                f"key {self.key!r}: {verb} has shape {tuple(found.shape)} of {found.dtype}, where "
                f"{shape} of {self.dtype} belongs"
            )


def finite(given: Tensor) -> bool:
    """Whether all of it is; whole numbers are."""
    return not given.is_floating_point() or bool(torch.isfinite(given).all())


def put(out: object, found: Tensor) -> None:
    """``found``, flat, into what the user gave to be filled."""
    if isinstance(out, Tensor):
        out.detach().copy_(found.view(out.shape))
    elif isinstance(out, np.ndarray):
        np.copyto(out, found.view(out.shape).numpy())
    else:
        out[() if out.ndim == 0 else slice(None)] = found.view(out.shape).numpy()


def lies(out: object) -> "Tensor | None":
    """The flat memory of ``out``, where it can be filled where it lies; None where it cannot."""
    found = torch.from_numpy(out) if isinstance(out, np.ndarray) and out.flags.writeable else out
    if isinstance(found, Tensor) and found.is_cpu and found.is_contiguous():
        found = found.detach() if found.requires_grad else found
        return found if found.dim() == 1 else found.view(-1)
    return None


def each_of(given: Given) -> Sequence:
    """What the devices have, one by one."""
    return given if isinstance(given, list) else (given,)


def added(values: Given) -> Tensor:
    """Their sum in the order given, flat, in main memory: the very tensor where there is one and nothing to copy."""
    total, *others = each_of(values)
    for other in others:
        total = total + other.to(total.device)
    total = total if total.dim() == 1 else total.reshape(-1)
    return total if total.is_cpu and total.is_contiguous() else total.cpu().contiguous()

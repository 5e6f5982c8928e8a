"""Values as JSON, as they pass between the processes of an answer and of its judge.

Nothing in the text is executed, and every value that is read is of a plain kind and made here, so an answer cannot send
an object with behavior of its own. Each process adds the kinds that only it can send.

>>> written({"a": (1, [Fraction(1, 3)])})
['d', 'a', ['t', 1, ['l', ['f', 1, 3]]]]
>>> read(['d', 'a', ['t', 1, ['l', ['f', 1, 3]]]])
{'a': (1, [Fraction(1, 3)])}
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from fractions import Fraction

import torch

from d2lps.plan import Plan, Send, Update
from d2lps.scaling import Transformer
from d2lps.schedule import Collective, Task

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
DECODE = json.JSONDecoder().decode
PLAIN = (str, int, float, bool, type(None))
ACTS = {"send": Send, "update": Update, "task": Task, "collective": Collective}
NAMES = {kind: name for name, kind in ACTS.items()}
MOST, MOST_MEMBERS = 1 << 20, 1 << 17  # items of a list or tuple; members of a set or dict
SAME = 16  # members of a set or dict with the same hash: each is compared with all others


class Unreadable(ValueError):
    """The text is none of these values."""


def written(value: object, write_other: Callable[[object], list] | None = None) -> object:
    """Return a value for JSON: numbers and texts as they are, others as a list that begins with their kind."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple:
        return ["t", *[written(item, write_other) for item in value]]
    if kind is list:
        return ["l", *[written(item, write_other) for item in value]]
    if kind is dict:
        return ["d", *[written(item, write_other) for pair in value.items() for item in pair]]
    if kind is Fraction:
        return ["f", value.numerator, value.denominator]
    if isinstance(value, bytes | bytearray | memoryview):
        return ["b", bytes(value).decode("latin-1")]
    if kind in NAMES:
        return [NAMES[kind], *[written(item, write_other) for item in value]]
    if kind is Transformer:
        return ["model", *[written(item, write_other) for item in astuple(value)]]
    if isinstance(value, Plan):
        return ["plan", *[written(item, write_other) for item in plan_fields(value)]]
    if isinstance(value, str | bool | int | float):  # of a subclass
        return next(base(value) for base in (str, bool, int, float) if isinstance(value, base))
    if isinstance(value, Fraction):
        return ["f", value.numerator, value.denominator]
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, dict):
        return written(dict(value), write_other)
    for base in (tuple, list):
        if isinstance(value, base):
            return written(base(value), write_other)
    if isinstance(value, set | frozenset):
        return ["s" if isinstance(value, set) else "z", *[written(item, write_other) for item in value]]
    if write_other is None:
        raise TypeError(f"a value of the kind {kind.__name__} cannot be sent")
    return write_other(value)


def plan_fields(plan: Plan) -> list:
    """Return the fields of a plan; a broken plan may lack some, which are then empty."""
    nodes, share, steps, holds, wants = (
        getattr(plan, name, ()) for name in ("nodes", "share", "steps", "holds", "wants")
    )
    return [tuple(nodes), dict(share), [tuple(step) for step in steps], [*holds], [*wants]]


def read(data: object, read_other: Callable[[list], object] | None = None) -> object:
    """Return the value that :func:`written` has written."""
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise Unreadable("an object")
        return data
    kind, *rest = data
    if len(rest) > MOST:
        raise Unreadable("too many items")
    if kind in READERS:
        return READERS[kind]([read(item, read_other) for item in rest])
    if read_other is None:
        raise Unreadable(str(kind)[:40])
    return read_other(data)


def _members(rest: list) -> list:
    """Return the members of a set or dict, unless an answer has chosen them so that to put them there takes hours."""
    if len(rest) > MOST_MEMBERS or len(rest) > SAME and max(Counter(map(hash, rest)).values()) > SAME:
        raise Unreadable("too many members")
    return rest


def _pairs(rest: list) -> dict:
    return dict(zip(_members(rest[::2]), rest[1::2], strict=True))


def _numbers(rest: list, kind: type) -> list:
    """Return the two numbers of a fraction or complex number, not texts: 10**n has n digits, "1e…" only a few."""
    if len(rest) != 2 or not all(type(number) is kind for number in rest):
        raise Unreadable("not two numbers")
    return rest


READERS = {
    "t": tuple,
    "l": list,
    "d": _pairs,
    "s": lambda rest: {*_members(rest)},
    "z": lambda rest: frozenset(_members(rest)),
    "f": lambda rest: Fraction(*_numbers(rest, int)),
    "c": lambda rest: complex(*_numbers(rest, float)),
    "b": lambda rest: rest[0].encode("latin-1"),
    "plan": lambda rest: Plan(*rest),
    "model": lambda rest: Transformer(*rest),
    **{name: lambda rest, kind=kind: kind(*rest) for name, kind in ACTS.items()},
}


def numbers(tensor: torch.Tensor) -> list:
    """Return dtype, shape, numbers in base64 and need of a gradient of a tensor. Raises TypeError for other dtypes.

    As a list of texts, the numbers would take most of the time of an answer that sends many tensors.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(f"a tensor of {dtype}")
    plain = tensor.detach().to_dense().cpu() if tensor.layout != torch.strided else tensor.detach().cpu()
    data = plain.resolve_neg().flatten().contiguous().view(torch.uint8).numpy()
    return [dtype, list(plain.shape), b64encode(data).decode(), tensor.requires_grad]


def tensor(dtype: str, shape: list, data: str, learns: bool = False) -> torch.Tensor:
    """Return the tensor of these numbers."""
    numbers = bytearray(b64decode(data, validate=True))
    if dtype == "bool" and numbers.translate(None, b"\0\1"):
        raise Unreadable("no numbers")
    flat = torch.frombuffer(numbers, dtype=DTYPES[dtype]).clone() if numbers else torch.empty(0, dtype=DTYPES[dtype])
    return flat.reshape(shape).requires_grad_(learns is True)

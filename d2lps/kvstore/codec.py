"""The state of a key as metadata and bytes: its value, and the tensors and numbers of the optimizer for it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire.frames import DTYPES, raw
from d2lps.plan.optimizers import is_number

PIECE = 1 << 20  # bytes of a state in one frame: other answers wait no longer than for this
State = dict[str, "Tensor | int | float"]  # "value", flat, and the state of the optimizer


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

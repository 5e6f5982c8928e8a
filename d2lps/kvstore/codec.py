"""The state of a key as metadata and bytes: its value, and the tensors and numbers that an optimizer keeps for it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.wire.frames import DTYPES, raw
from d2lps.plan.optimizers import is_number

PIECE = 1 << 20  # bytes of a state that travel at once: what is asked meanwhile waits no longer for its answer
State = dict[str, "Tensor | int | float"]  # "value", flat, and what the optimizer remembers of it


def tensors_of(state: State) -> dict[str, Tensor]:
    return {name: one for name, one in state.items() if isinstance(one, Tensor)}


def numbers_of(state: State) -> dict[str, "int | float"]:
    return {name: one for name, one in state.items() if not isinstance(one, Tensor)}


def cut(state: State, start: int, stop: int) -> State:
    """The elements ``start`` to ``stop`` of it."""
    return numbers_of(state) | {name: one[start:stop] for name, one in tensors_of(state).items()}


def joined(states: list[State]) -> State:
    """One after the other: of parts of a key, all of it."""
    return states[0] | {name: torch.cat([state[name] for state in states]) for name in tensors_of(states[0])}


def encode(state: State) -> tuple[dict, memoryview]:
    """(metadata, payload)

    >>> decode(*encode({"value": torch.ones(3), "steps": 2}))
    {'value': tensor([1., 1., 1.]), 'steps': 2}
    """
    payload = torch.cat([one.contiguous().view(torch.uint8) for one in tensors_of(state).values()])
    return layout(state), raw(payload)


def layout(state: State) -> dict:
    """What :func:`decode` is to know of its tensors, and its numbers."""
    tensors = [[name, DTYPES.index(one.dtype), one.numel()] for name, one in tensors_of(state).items()]
    return {"tensors": tensors, "numbers": numbers_of(state)}


def size(metadata: dict) -> int:
    """How many bytes the tensors of a :func:`layout` have."""
    return sum(count * DTYPES[number].itemsize for _, number, count in metadata["tensors"])


def piece(state: State, start: int) -> memoryview:
    """The bytes of its tensors, one after the other, from ``start`` on: PIECE of them, or what there is."""
    found, left = [], PIECE
    for one in tensors_of(state).values():
        found.append(raw(one)[start : start + left])
        left -= len(found[-1])
        start = max(0, start - one.nbytes)
    found = [some for some in found if some]
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


def decode(metadata: dict, payload: memoryview) -> State:
    """What :func:`encode` made. Raises Refused where it is something else."""
    try:
        tensors, rest = read_tensors(metadata["tensors"], payload)
        if len(rest) or not all(map(is_number, metadata["numbers"].values())):
            raise Refused("the state of a key has tensors and finite numbers")
        return {name: one.clone() for name, one in tensors.items()} | metadata["numbers"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise error if isinstance(error, Refused) else Refused(f"that is no state of a key ({error})") from None


def read_tensors(layout: Iterable, payload: memoryview) -> tuple[dict[str, Tensor], memoryview]:
    """The tensors that ``layout`` says, (name, place of the dtype, elements) each, and what is left of the bytes."""
    tensors = {}
    for name, number, count in layout:
        dtype = DTYPES[number]
        size = count * dtype.itemsize
        if not isinstance(name, str) or not 0 <= size <= len(payload):
            raise Refused("the state of a key is longer than what came")
        tensors[name] = torch.frombuffer(payload, dtype=dtype, count=count) if size else torch.empty(0, dtype=dtype)
        payload = payload[size:]
    return tensors, payload

"""Messages between servers of a slot, as JSON and tensors; nothing is ever unpickled.

A tuple is a list, and a message, a command or a part of one is an object with one name: ``{"Ack": [3, 17, 1]}``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import ServerText, packed, unpacked
from d2lps.kvstore.optimizers import Memory, Optimizer, lent
from d2lps.kvstore.replication import PartState, View
from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.server.register import as_name
from d2lps.kvstore.wire.frames import DTYPES, PAYLOAD

PIECE = 256  # parts of a snapshot in one message


class StoredValue(NamedTuple):
    """A value with the state of the optimizer for it, and the number of pushes that were summed last.

    ``failed``: the reason if it must not be read.
    """

    value: Tensor
    memory: Memory
    counted: int = 0
    failed: str = ""

    def copied(self) -> "StoredValue":
        """Return the same as it is now: an optimizer changes its state in place."""
        return self._replace(memory=lent(self.memory))


class Piece(NamedTuple):
    """Some parts of the snapshot that comes next, with their names, sizes and dtypes."""

    parts: tuple[PartState, ...]
    names: tuple


MESSAGES = m.Ack, m.Apply, m.Heartbeat, m.Join, m.Snapshot, View, Piece
COMMANDS = m.Add, m.Begin, m.Choose, m.Load, m.Lose, m.Pass
KINDS = {
    kind.__name__: kind for kind in (*MESSAGES, *COMMANDS, m.Facts, PartState, StoredValue)
}  # that travel, by name
NAMES = {kind: name for name, kind in KINDS.items()}
PLAIN = frozenset((int, float, bool, str, type(None)))  # what JSON has itself


def split(message: NamedTuple) -> Iterator[NamedTuple]:
    """Yield a snapshot in pieces, any other message as it is."""
    if isinstance(message, m.Snapshot):
        for start in range(0, len(message.parts), PIECE):
            those = slice(start, start + PIECE)
            yield Piece(message.parts[those], message.facts.names[those])
        message = message._replace(parts=(), facts=message.facts._replace(names=()))
    yield message


def encode(value: object, tensors: list[Tensor]) -> object:
    """Return a message, or a field of one, as JSON, and append its tensors to ``tensors``."""
    kind = type(value)
    if kind is m.Apply and type(value.command) is m.Add:  # one for each push, so this one has to be fast
        view, seq, (part, pushes, total) = value
        if total is not None:
            tensors.append(total)
        return {"added": [view, seq, part, pushes, total is not None]}
    if kind is tuple or kind in NAMES:
        fields = [each if type(each) in PLAIN else encode(each, tensors) for each in value]
        return fields if kind is tuple else {NAMES[kind]: fields}
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": None}
    if isinstance(value, dict):
        return {"dict": {name: encode(each, tensors) for name, each in value.items()}}
    if kind is torch.dtype:
        return {"dtype": DTYPES.index(value)}
    if kind is Optimizer:
        return {"optimizer": [value.rule, value.as_read]}
    return {"text": packed(value)} if kind is ServerText else value


def decode(said: object, tensors: Iterator[Tensor]) -> object:
    """Return what :func:`encode` encoded. Raises an exception of any kind for anything else."""
    if type(said) is list:
        return tuple([each if type(each) in PLAIN else decode(each, tensors) for each in said])
    if type(said) is not dict:
        return said
    ((name, content),) = said.items()
    if name == "added":
        (number, members), seq, part, pushes, total = content
        add = m.Add(part, tuple([tuple(push) for push in pushes]), next(tensors) if total else None)
        return m.Apply(View(number, as_name(members)), seq, add)
    if name in KINDS:
        return KINDS[name](*[each if type(each) in PLAIN else decode(each, tensors) for each in content])
    if name == "tensor":
        return next(tensors)
    if name == "dict":
        return {key: decode(each, tensors) for key, each in content.items()}
    if name == "dtype":
        return DTYPES[content]
    return Optimizer.read(*content) if name == "optimizer" else unpacked(content)


def buffers(said: list) -> list[Tensor]:
    """Return empty tensors for the number of the dtype and the elements of each. Raises ValueError if too large."""
    if sum(elements * DTYPES[number].itemsize for number, elements in said) > PAYLOAD:
        raise ValueError("more bytes than a message has")
    return [torch.empty(elements, dtype=DTYPES[number]) for number, elements in said]

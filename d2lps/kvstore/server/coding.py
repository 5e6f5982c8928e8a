"""Messages between servers of a slot, as JSON and tensors; nothing is ever unpickled."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.kvstore.errors import packed, unpacked
from d2lps.kvstore.optimizers import Memory, Optimizer, lent
from d2lps.kvstore.replication import Part, View
from d2lps.kvstore.replication.messages import (
    Ack,
    Add,
    Apply,
    Begin,
    Choose,
    Facts,
    Heartbeat,
    Join,
    Load,
    Lose,
    Pass,
    Snapshot,
)
from d2lps.kvstore.server.register import as_name
from d2lps.kvstore.wire.frames import DTYPES, PAYLOAD

PIECE = 256  # parts of a snapshot in one message


class Held(NamedTuple):
    """A value with the state of the optimizer for it, and the number of pushes that were summed last.

    ``failed``: the reason if it must not be read.
    """

    value: Tensor
    memory: Memory
    counted: int = 0
    failed: str = ""

    def copied(self) -> "Held":
        """Return the same as it is now: an optimizer changes its state in place."""
        return self._replace(memory=lent(self.memory))


class Piece(NamedTuple):
    """Some parts of the snapshot that comes next, with their names, sizes and dtypes."""

    parts: tuple[Part, ...]
    names: tuple


SAID = {each.__name__: each for each in (Ack, Apply, Heartbeat, Join, Snapshot, View, Piece)}
COMMANDS = {each.__name__: each for each in (Add, Begin, Choose, Load, Lose, Pass)}


def split(message: NamedTuple) -> Iterator[NamedTuple]:
    """Yield a snapshot in pieces, any other message as it is."""
    if isinstance(message, Snapshot):
        for start in range(0, len(message.parts), PIECE):
            those = slice(start, start + PIECE)
            yield Piece(message.parts[those], message.facts.names[those])
        message = message._replace(parts=(), facts=message.facts._replace(names=()))
    yield message


def encode(message: NamedTuple, tensors: list[Tensor]) -> list:
    """Return a message as JSON, and append its tensors to ``tensors``."""
    kind = type(message)
    if kind is Apply:
        fields = [message.view, message.seq, _command(message.command, tensors)]
    elif kind is Piece:
        parts = [[part.version, part.rounds, _held(part.value, tensors)] for part in message.parts]
        fields = [parts, [[name, elements, DTYPES.index(dtype)] for name, (elements, dtype) in message.names]]
    elif kind is Snapshot:
        _, losses, chosen, loaded, passed = message.facts  # names come with the parts
        facts = [[*map(_lose, losses)], chosen.number, _optimizer(chosen.optimizer), loaded, passed]
        fields = [message.view, message.seq, facts]
    else:
        fields = [*message]
    return [kind.__name__, *fields]


def decode(said: list, tensors: Iterator[Tensor]) -> NamedTuple:
    """Return the message that :func:`encode` encoded. Raises an exception of any kind for anything else."""
    kind, fields = SAID[said[0]], said[1:]
    if kind is Apply:
        return Apply(_view(fields[0]), fields[1], _as_command(fields[2], tensors))
    if kind is Piece:
        parts = [Part(version, tuple(rounds), _as_held(held, tensors)) for version, rounds, held in fields[0]]
        return Piece(tuple(parts), tuple((name, (elements, DTYPES[number])) for name, elements, number in fields[1]))
    if kind is Snapshot:
        losses, number, optimizer, loaded, passed = fields[2]
        losses, passed = tuple(map(_as_lose, losses)), tuple(Pass(*each) for each in passed)
        facts = Facts((), losses, Choose(number, _as_optimizer(optimizer)), loaded, passed)
        return Snapshot(_view(fields[0]), fields[1], (), facts)
    if kind is View:
        return _view(fields)
    if kind is Heartbeat:
        return Heartbeat(_view(fields[0]), fields[1])
    return kind(*fields)


def layout(tensors: Iterable[Tensor]) -> list[list[int]]:
    return [[DTYPES.index(each.dtype), each.numel()] for each in tensors]


def buffers(said: list) -> list[Tensor]:
    """Return empty tensors for a :func:`layout`. Raises ValueError if they are too large."""
    if sum(elements * DTYPES[number].itemsize for number, elements in said) > PAYLOAD:
        raise ValueError("more bytes than a message has")
    return [torch.empty(elements, dtype=DTYPES[number]) for number, elements in said]


def _command(command: NamedTuple, tensors: list[Tensor]) -> list:
    kind = type(command)
    if kind is Add:
        fields = [command.part, command.pushes, _tensor(command.total, tensors)]
    elif kind is Begin:
        elements, dtype = command.spec
        fields = [command.name, [elements, DTYPES.index(dtype)], _held(command.value, tensors)]
    elif kind is Choose:
        fields = [command.number, _optimizer(command.optimizer)]
    elif kind is Lose:
        fields = _lose(command)
    elif kind is Load:
        values = [[index, _held(held, tensors)] for index, held in command.values]
        fields = [command.number, values, _optimizer(command.optimizer)]
    else:
        fields = [*command]
    return [kind.__name__, *fields]


def _as_command(said: list, tensors: Iterator[Tensor]) -> NamedTuple:
    kind, fields = COMMANDS[said[0]], said[1:]
    if kind is Add:
        part, pushes, total = fields
        return Add(part, tuple((rank, number) for rank, number in pushes), next(tensors) if total else None)
    if kind is Begin:
        name, (elements, number), held = fields
        return Begin(name, (elements, DTYPES[number]), _as_held(held, tensors))
    if kind is Choose:
        return Choose(fields[0], _as_optimizer(fields[1]))
    if kind is Load:
        number, values, optimizer = fields
        values = tuple((index, _as_held(held, tensors)) for index, held in values)
        return Load(number, values, _as_optimizer(optimizer))
    if kind is Lose:
        return _as_lose(fields)
    return kind(*fields)


def _lose(lose: Lose) -> list:
    sentence, how = lose.why
    return [lose.rank, lose.ends, [packed(sentence), how]]


def _as_lose(fields: list) -> Lose:
    rank, ends, (sentence, how) = fields
    return Lose(rank, ends, (unpacked(sentence), how))


def _view(fields: list) -> View:
    number, members = fields
    return View(number, as_name(members))


def _tensor(tensor: Tensor | None, tensors: list[Tensor]) -> bool:
    """Return True if there is one, and append it to ``tensors``."""
    if tensor is not None:
        tensors.append(tensor)
    return tensor is not None


def _held(held: Held | None, tensors: list[Tensor]) -> list | None:
    if held is None:
        return None
    tensors.append(held.value)
    memory: dict[str, list] = {}
    for rule, kept in held.memory.items():
        # A number is in its place; a tensor leaves None there.
        memory[rule] = [
            [name, None if isinstance(one, Tensor) and _tensor(one, tensors) else one] for name, one in kept.items()
        ]
    return [memory, held.counted, held.failed]


def _as_held(said: list | None, tensors: Iterator[Tensor]) -> Held | None:
    if said is None:
        return None
    value, (memory, counted, failed) = next(tensors), said
    kept = {
        rule: {name: next(tensors) if one is None else one for name, one in fields} for rule, fields in memory.items()
    }
    return Held(value, kept, counted, failed)


def _optimizer(optimizer: Optimizer | None) -> list | None:
    return optimizer and [optimizer.rule, optimizer.as_read]


def _as_optimizer(said: list | None) -> Optimizer | None:
    return said and Optimizer.read(*said)

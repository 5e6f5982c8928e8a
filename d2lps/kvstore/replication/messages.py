"""What servers, workers and the register of views say to one another about a slot, and what they do about it."""

from collections.abc import Hashable
from typing import Any, NamedTuple

Name = Hashable


class View(NamedTuple):
    """Who holds a slot: the primary, then its backup if there is one. It is also how somebody is told so."""

    number: int
    members: tuple[Name, ...]


class Push(NamedTuple):
    """A worker's gradient for a part; ``view`` is the number of the view that it knows, ``id`` its number for this."""

    view: int
    id: int
    rank: int
    part: int
    round: int
    gradient: Any


class Pull(NamedTuple):
    """A worker asks for a part after ``round`` pushes of its own.

    ``since``: the last command before its call began, which may have pushed, too; by default the last one of all.
    """

    view: int
    id: int
    rank: int
    part: int
    round: int
    since: int | None = None


class Stand(NamedTuple):
    """A question on behalf of a worker: whether what this primary knows still holds."""

    view: int
    id: int
    rank: int


class Do(NamedTuple):
    """A worker asks for something beside pushes: ``command`` is to be done, once, however often it is asked for."""

    view: int
    id: int
    rank: int
    command: "Begin | Choose | Load | Keep"


class Meet(NamedTuple):
    """A worker has come to barrier ``number`` of a ``name``; ``note`` is what worker 0 tells the others there."""

    view: int
    id: int
    rank: int
    name: str
    number: int
    note: Any


class Done(NamedTuple):
    """What was asked for by ``Do`` is done; of ``Meet``, all have come; of ``Stand``, it holds.

    ``answer``: what belongs to it.
    """

    view: int
    id: int
    answer: Any


class Counted(NamedTuple):
    """A push counts, or will in the round that is under way."""

    view: int
    id: int


class Value(NamedTuple):
    """A part as it is committed: its version, how many pushes of each rank are in it, and what they made of it."""

    view: int
    id: int
    part: int
    version: int
    rounds: tuple[int, ...]
    value: Any


class Lost(NamedTuple):
    """The others go on without this worker: nothing of it counts any more."""

    view: int
    id: int


class Lose(NamedTuple):
    """From whoever watches over workers: one of them is gone. It is a command, too.

    ``ends``: whether the others cannot go on; ``why`` is theirs who are told.
    """

    rank: int
    ends: bool = False
    why: Any = None


class Apply(NamedTuple):
    """The next command of the primary."""

    view: View
    seq: int
    command: "Add | Begin | Choose | Load | Keep | Check | Differ | Pass | Lose"


class Add(NamedTuple):
    """A command: a new version of a part, with these pushes, (rank, round) each, and their sum."""

    part: int
    pushes: tuple[tuple[int, int], ...]
    total: Any


class Begin(NamedTuple):
    """A command: there is a part of this ``name``, ``like`` that; its first ``value``, where that is known."""

    name: str
    like: Any
    value: Any


class Choose(NamedTuple):
    """A command: step with ``optimizer`` from here on. Choices are numbered from 1."""

    number: int
    optimizer: Any


class Load(NamedTuple):
    """A command: each (part, value) of ``values`` is replaced, and the optimizer. Loads are numbered, 1 first."""

    number: int
    values: tuple
    optimizer: Any


class Keep(NamedTuple):
    """A command: keep all parts as they are now, to be read while others go on, or forget them. Saves are numbered."""

    number: int
    keep: bool


class Check(NamedTuple):
    """A command: see what the bytes of a part are from ``at`` on, a piece of them."""

    part: int
    at: int


class Differ(NamedTuple):
    """A command: a part is not the same on these members, and is given to nobody until it is loaded anew."""

    part: int
    members: tuple[Name, ...]


class Pass(NamedTuple):
    """A command: all have come to barrier ``number`` of a ``name``, where worker 0 left ``note``."""

    name: str
    number: int
    note: Any


class Facts(NamedTuple):
    """What commands have left, beside the parts: their names, who is lost, and the last of each kind."""

    names: "tuple[tuple[str, Any], ...]" = ()
    losses: tuple[Lose, ...] = ()
    chosen: Choose = Choose(0, None)
    loaded: int = 0
    passed: tuple[Pass, ...] = ()


class Heartbeat(NamedTuple):
    """The primary is there, and asks, for the ``turn``-th time, whether it is one still."""

    view: View
    turn: int = 0


class Ack(NamedTuple):
    """A backup, or who wants to become one, has done all commands up to ``seq``; and answers question ``turn``."""

    view: int
    seq: int
    turn: int = 0


class Found(NamedTuple):
    """What a backup has found by the ``Check`` that was command ``seq``."""

    view: int
    seq: int
    digest: int


class Join(NamedTuple):
    """A server that is no member would be the backup."""

    view: int


class Snapshot(NamedTuple):
    """Everything after command ``seq``, for who joins."""

    view: View
    seq: int
    parts: tuple
    facts: Facts


class Send(NamedTuple):
    """An effect: a message to ``to``."""

    to: Name
    message: NamedTuple


class Propose(NamedTuple):
    """An effect: make the register hold view ``number`` with these members, if it holds the one before; then ask it."""

    number: int
    members: tuple[Name, ...]


class Ask(NamedTuple):
    """An effect: ask the register which view it holds; the answer is a :class:`View`."""

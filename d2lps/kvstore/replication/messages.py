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
    """A worker asks for a part after ``round`` pushes of its own."""

    view: int
    id: int
    rank: int
    part: int
    round: int


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
    """From whoever watches over workers: one of them is gone."""

    rank: int


class Apply(NamedTuple):
    """The next command of the primary."""

    view: View
    seq: int
    command: "Add | Lose"


class Add(NamedTuple):
    """A command: a new version of a part, with these pushes, (rank, round) each, and their sum."""

    part: int
    pushes: tuple[tuple[int, int], ...]
    total: Any


class Heartbeat(NamedTuple):
    """The primary is there."""

    view: View


class Ack(NamedTuple):
    """A backup, or who wants to become one, has done all commands up to ``seq``."""

    view: int
    seq: int


class Join(NamedTuple):
    """A server that is no member would be the backup."""

    view: int


class Snapshot(NamedTuple):
    """Everything after command ``seq``, for who joins."""

    view: View
    seq: int
    parts: tuple
    live: frozenset[int]


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

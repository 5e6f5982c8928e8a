"""The messages between the servers, the workers and the register of a slot, and the effects of the rules.

In order: the requests of workers (``view`` is the number of the view that the worker knows, ``id`` its number for the
request), the answers, the commands, the messages between servers, and the effects.
"""

from typing import Any, NamedTuple

Name = Any  # of a server, a worker or the register: hashable


class View(NamedTuple):
    """The servers that hold a slot, the primary first; as a message, it informs the receiver of the view."""

    number: int
    members: tuple[Name, ...]


class Push(NamedTuple):
    """Push a gradient: the ``round``-th push of this worker to a part."""

    view: int
    id: int
    rank: int
    part: int
    round: int
    gradient: Any


class Pull(NamedTuple):
    """Pull parts: ``wanted`` has each part, and how many pushes of this worker have to be in it.

    ``since`` is the number of the last command before the call began, by default of the last one before it arrives.
    """

    view: int
    id: int
    rank: int
    wanted: tuple[tuple[int, int], ...]
    since: int | None = None


class Confirm(NamedTuple):
    """Ask the primary to confirm that it is still the primary, so that its state is current."""

    view: int
    id: int
    rank: int


class Do(NamedTuple):
    """Ask the primary to execute ``command`` exactly once, however often the request is repeated."""

    view: int
    id: int
    rank: int
    command: "Begin | Choose | Load"


class Meet(NamedTuple):
    """Come to barrier ``number`` of a ``name``; ``note`` is information from worker 0 for the others."""

    view: int
    id: int
    rank: int
    name: str
    number: int
    note: Any


class Done(NamedTuple):
    """The command of a ``Do`` is committed, all have come to a ``Meet``, or a ``Confirm`` succeeded.

    ``answer`` is the number of the part that was begun, or the note of the barrier.
    """

    view: int
    id: int
    answer: Any


class Counted(NamedTuple):
    """A push counts, or will count in the open round."""

    view: int
    id: int


class Values(NamedTuple):
    """The committed parts that were pulled, (number, part) each: all of them, unless one has no value."""

    view: int
    id: int
    parts: tuple[tuple[int, Any], ...]


class Lost(NamedTuple):
    """The others continue without this worker: no request of it counts any more."""

    view: int
    id: int


class Lose(NamedTuple):
    """A worker is lost: a message of the failure detector, and a command.

    ``ends``: the others cannot continue without it; ``why`` is passed to them unchanged.
    """

    rank: int
    ends: bool = False
    why: Any = None


class Add(NamedTuple):
    """Make a new version of a part from these pushes, (rank, round) each, and their sum."""

    part: int
    pushes: tuple[tuple[int, int], ...]
    total: Any


class Begin(NamedTuple):
    """Make a part of this ``name``; ``spec`` describes it, and ``value`` is its first value if that is known."""

    name: str
    spec: Any
    value: Any


class Choose(NamedTuple):
    """Use ``optimizer`` from here on. Choices are numbered, 1 first."""

    number: int
    optimizer: Any


class Load(NamedTuple):
    """Replace the value of each (part, value) of ``values``, and the optimizer. Loads are numbered, 1 first."""

    number: int
    values: tuple
    optimizer: Any


class Pass(NamedTuple):
    """All have come to barrier ``number`` of a ``name``, with the ``note`` of worker 0."""

    name: str
    number: int
    note: Any


Request = Push | Pull | Confirm | Do | Meet
Answer = Done | Counted | Values | Lost
Command = Add | Begin | Choose | Load | Lose | Pass


class Apply(NamedTuple):
    """The primary's command number ``seq``."""

    view: View
    seq: int
    command: Command


class Heartbeat(NamedTuple):
    """The primary is alive; an answer confirms, for the ``turn``-th time, that it is still the primary."""

    view: View
    turn: int = 0


class Ack(NamedTuple):
    """A follower has executed all commands up to ``seq``; ``turn`` is the heartbeat that it answers."""

    view: int
    seq: int
    turn: int = 0


class Join(NamedTuple):
    """A server that is not a member asks to become the backup."""

    view: int


class Facts(NamedTuple):
    """The state of a slot besides its parts: their names, the lost workers, and the last command of each kind."""

    names: "tuple[tuple[str, Any], ...]" = ()
    losses: tuple[Lose, ...] = ()
    chosen: Choose = Choose(0, None)
    loaded: int = 0
    passed: tuple[Pass, ...] = ()


class Snapshot(NamedTuple):
    """The whole state after command ``seq``, for a learner."""

    view: View
    seq: int
    parts: tuple
    facts: Facts


class Send(NamedTuple):
    """Send a message to ``to``."""

    to: Name
    message: Any


class Propose(NamedTuple):
    """Replace the register's view by this one if the numbers are consecutive, then ask which view it holds."""

    number: int
    members: tuple[Name, ...]


class Ask(NamedTuple):
    """Ask the register which view it holds; the answer is a :class:`View`."""


class AddUp(NamedTuple):
    """Add ``gradient`` to the sum of an open round outside the rules, and bring the sum by ``Summed``."""

    part: int
    round: Any
    gradient: Any


class Summed(NamedTuple):
    """The sum of an open ``round`` that AddUp asked for."""

    part: int
    round: Any
    total: Any

"""The acts of a schedule, the values that they read and make, and the error of a schedule that is broken."""

from fractions import Fraction
from functools import partial
from typing import NamedTuple

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.acts import Send, Update, sends
from d2lps.plan.plan import Plan

Size = int | Fraction  # bytes; a part of a value may not be whole


class ScheduleError(Brief, ValueError):
    """A schedule that is broken: its sentence names the act, the device and the value.

    Args:
        reason: The sentence's key in messages/ under ``acts`` (``"not-there"``).
        act: The number of the act, from 1; None if no single act is to blame.
        **values: The values that fill the sentence.

    Example:
        >>> from d2lps.schedule import Schedule
        >>> try:
        ...     task = Task("gpu0", "F", "0", 0, reads=("x",), makes=("y",))
        ...     Schedule(["gpu0"], {"x": Value(4), "y": Value(4)}, [task])
        ... except ScheduleError as error:
        ...     print(error.reason, error)
        not-there act 1 (gpu0 F0.0): x is not on gpu0
    """

    def __init__(self, reason: str, act: int | None = None, **values: object):
        self.reason, self.act, self.values = reason, act, values
        super().__init__(text(f"acts.{reason}", act=act, **values))

    def __reduce__(self):
        return partial(ScheduleError, **self.values), (self.reason, self.act)


class Value(NamedTuple):
    """A named tensor of a schedule.

    Args:
        nbytes (int): Its size in bytes, on every node that has it.
        atoms (tuple of str or int): The contributions that must be added up before it is complete, such as the
            micro-batches of a gradient.
    """

    nbytes: Size = 0
    atoms: tuple = ("",)


class Task(NamedTuple):
    """A computation on one node.

    Args:
        node, name, of: The device; the kind of task, such as ``"F"`` (forward), ``"B"`` (backward), ``"I"`` (gradient
            of the input), ``"W"`` (gradient of the weights) or ``"U"`` (update); the stage, layer or operator.
        batch: The micro-batch.
        reads: Values that must be complete on the node.
        makes (tuple of str or (str, atom)): Values that it makes; with an atom, it adds only this contribution to the
            value.
        frees: Values whose memory is free when the task ends.
        work: FLOPs; seconds on a node whose rate the topology does not give.

    Example:
        >>> print(Task("gpu1", "B", "1", 3))
        gpu1 B1.3
    """

    node: str
    name: str
    of: str
    batch: int | None = None
    reads: tuple[str, ...] = ()
    makes: tuple = ()
    frees: tuple[str, ...] = ()
    work: float = 0

    @property
    def label(self) -> str:
        """The task without its node: ``B1.3``."""
        return f"{self.name}{self.of}" + ("" if self.batch is None else f".{self.batch}")

    def __str__(self) -> str:
        return f"{self.node} {self.label}"


class Collective(NamedTuple):
    """A plan over some of the nodes, run on one value.

    The plan's ``holds`` and ``wants`` say which collective it is: from all keys to all keys an all-reduce, from all
    keys to one key per node a reduce-scatter (it makes ``value/key``), from one key per node to all an all-gather.

    Args:
        plan: The messages, on any of the schedule's nodes.
        value: The value that the plan's keys are parts of.
        frees: Whether the nodes give up what they held before.
    """

    plan: Plan
    value: str
    frees: bool = False

    def __str__(self) -> str:
        return f"{','.join(self.plan.nodes)} ∑{self.value}"

    def __hash__(self) -> int:
        return hash((self.value, self.plan.nodes, self.frees))

    def holdings(self, node: str) -> list[str]:
        """Return the names of the values that ``node`` needs before."""
        return self._names([key for holder, key in self.plan.holds if holder == node])

    def results(self, node: str) -> list[str]:
        """Return the names of the values that ``node`` has after."""
        return self._names([key for wanting, key, _ in self.plan.wants if wanting == node])

    def _names(self, keys: list[str]) -> list[str]:
        return [self.value] if len(keys) == len(self.plan.share) else [f"{self.value}/{key}" for key in keys]


Act = Task | Send | Update | Collective


def nodes_of(act: Act) -> tuple[str, ...]:
    """Return the nodes whose column an act stands in: the sender of a send, all nodes of a collective."""
    if isinstance(act, Collective):
        return act.plan.nodes
    return (act.src,) if isinstance(act, Send) else (act.node,)


def messages_of(act: Act) -> list[Send]:
    """Return the messages of an act; those of a collective are the sends of its plan."""
    if isinstance(act, Collective):
        return [send for step in act.plan.steps for send in sends(step)]
    return [act] if isinstance(act, Send) else []


def made_by(task: Task) -> list[tuple]:
    """Return (value, atom) of everything that a task makes; the atom is None if it makes the whole value."""
    return [(made, None) if isinstance(made, str) else tuple(made) for made in task.makes]

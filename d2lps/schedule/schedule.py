"""A schedule: what every device computes, sends and keeps, in one list of acts. Plain data, checked before it runs.

>>> from d2lps.schedule import Schedule, Task, Value
>>> from d2lps.plan import Send
>>> print(Schedule(
...     ["gpu0", "gpu1"],
...     {"x": Value(4), "y": Value(4), "loss": Value(4)},
...     [Task("gpu0", "F", "0", 0, ("x",), ("y",)), Send("gpu0", "gpu1", "y", "move"),
...      Task("gpu1", "F", "1", 0, ("y",), ("loss",))],
...     holds=[("gpu0", "x")],
... ))
slot   0  1
gpu0   F0
gpu1      F0

**What a schedule means.** The list is an order in which one machine could do everything; the program of a node is the
list restricted to it. So no schedule waits for ever: the first act that is not done can always go on. A node computes
in the order of its tasks, and each task waits for the values that it reads. :mod:`d2lps.schedule.checking` says what
acts do to values; ``cost.shared`` says when they happen.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unicodedata import east_asian_width

from d2lps.messages import said, text, text_in
from d2lps.plan import parse
from d2lps.plan.acts import PlanError, Send, Update
from d2lps.plan.plan import Plan
from d2lps.schedule.acts import Act, Collective, ScheduleError, Size, Task, Value, made_by, nodes_of
from d2lps.schedule.checking import Memory, verify

KINDS = {"task": Task, "send": Send, "update": Update, "collective": Collective}


@dataclass(frozen=True, init=False, repr=False)
class Schedule:
    """A list of acts over named nodes and values. Equal by content, hashable, printable.

    Args:
        nodes: The devices, in the order in which they are drawn.
        values: Every value that acts name, with its size.
        acts (iterable of Task, Send, Update or Collective): In an order in which one machine could do all of them. The
            ``key`` of a ``Send`` names a value; its op is ``"copy"``, ``"add"``, or ``"move"``: an add that frees the
            sender's memory.
        holds, wants: The (node, value) pairs that are there, complete, before the first act and after the last one.
        memory: Node → bytes that fit on it. Nodes that are not named have no limit.

    Attributes:
        peak (dict of str to int): Node → the most bytes that it has at one time.
        sizes (dict of str to int): Value, or part ``value/key`` that a collective makes of one → its bytes.

    Raises:
        ScheduleError: If an act cannot be done, or nodes lack what they want; the sentence names act, node and value.
    """

    nodes: tuple[str, ...]
    values: Mapping[str, Value]
    acts: tuple[Act, ...]
    holds: tuple[tuple[str, str], ...]
    wants: tuple[tuple[str, str], ...]
    memory: Mapping[str, int]
    peak: Mapping[str, Size] = field(init=False, compare=False)
    sizes: Mapping[str, Size] = field(init=False, compare=False, repr=False)

    def __init__(
        self,
        nodes: Iterable[str],
        values: Mapping[str, Value],
        acts: Iterable[Act],
        holds: Iterable[tuple[str, str]] = (),
        wants: Iterable[tuple[str, str]] = (),
        memory: Mapping[str, int] | None = None,
    ):
        try:
            nodes = parse.names(nodes)
        except PlanError as error:
            raise ScheduleError("nodes", why=str(error)) from None
        content = {
            "nodes": nodes,
            "values": {name: Value(value[0], tuple(value[1])) for name, value in values.items()},
            "acts": tuple(acts),
            "holds": tuple((node, name) for node, name in holds),
            "wants": tuple((node, name) for node, name in wants),
            "memory": dict(memory or {}),
        }
        for name, value in content.items():
            object.__setattr__(self, name, value)
        known = set(nodes)
        for number, act in enumerate(self.acts, 1):
            if not isinstance(act, Act):
                raise ScheduleError("not-an-act", number, given=repr(act))
            members = {act.src, act.dst} if isinstance(act, Send) else {*nodes_of(act)}
            if members - known or isinstance(act, Send) and act.src == act.dst:
                raise ScheduleError("nodes-of", number, what=act, nodes=" ".join(nodes))
        for node, name in (*self.holds, *self.wants):
            if node not in known:
                raise ScheduleError("unknown-node", node=node, value=name, nodes=" ".join(nodes))
        end = verify(self.values, self.acts, self.holds, self.wants, self.memory)
        object.__setattr__(self, "peak", {node: end.peak[node] for node in nodes})
        object.__setattr__(self, "sizes", {name: value.nbytes for name, value in end.values.items()})

    def __hash__(self) -> int:
        return hash((self.nodes, self.acts, self.holds, self.wants))

    @property
    def tasks(self) -> list[Task]:
        """The tasks, in the order of the list."""
        return [act for act in self.acts if isinstance(act, Task)]

    @property
    def steps(self) -> tuple[tuple[Act, ...], ...]:
        """One step per act: a trace numbers its events by them."""
        return tuple((act,) for act in self.acts)

    def column(self, node: str) -> tuple[Act, ...]:
        """Return the acts of one node: what it computes, sends and takes part in.

        Args:
            node: One of the schedule's.

        Returns:
            (tuple of Task, Send, Update or Collective): In the order of the list. Receives are not listed: a node has
                posted them all before it begins.

        Raises:
            ScheduleError: For a node that is not in the schedule.
        """
        if node not in self.nodes:
            raise ScheduleError("unknown-node", node=node, value="", nodes=" ".join(self.nodes))
        return tuple(act for act in self.acts if node in nodes_of(act))

    def size(self, name: str) -> Size:
        """Return the bytes of a value, or of the part ``value/key`` that a collective makes of one.

        Args:
            name: The value, or the part.

        Returns:
            (int): On each node that has it.
        """
        return self.sizes[name]

    def lives(self, node: str) -> Iterator[tuple[int, str, bool]]:
        """Yield what comes to a node and what it frees, in the order of the list.

        Args:
            node: One of the schedule's.

        Yields:
            number: Of the act, from 1; 0 for what is there before.
            name: Of the value.
            comes: Whether it comes, or is freed.
        """
        present = {name for holder, name in self.holds if holder == node}
        yield from ((0, name, True) for name in present)
        for number, act in enumerate(self.acts, 1):
            if isinstance(act, Task):
                comes = [name for name, _ in made_by(act)] if act.node == node else []
                frees = [*act.frees] if act.node == node else []
            elif isinstance(act, Send):
                comes = [act.key] if act.dst == node else []
                frees = [act.key] if act.src == node and act.op == "move" else []
            elif isinstance(act, Collective) and node in act.plan.nodes:
                comes, before = act.results(node), act.holdings(node)
                frees = [name for name in before if name not in comes] if act.frees else []
            else:
                continue
            yield from ((number, name, True) for name in comes if name not in present)
            yield from ((number, name, False) for name in frees)
            present = (present | {*comes}) - {*frees}

    def slots(self) -> list[dict[str, Task]]:
        """Return which task every node does in each slot, if every task takes one slot and messages take no time.

        Returns:
            One per slot; nodes that are idle are not in it.
        """
        free = dict.fromkeys(self.nodes, 0)
        ready: dict[tuple[str, str], int] = {}
        slots: list[dict[str, Task]] = []
        for act in self.acts:
            if isinstance(act, Task):
                start = max([free[act.node], *(ready.get((act.node, name), 0) for name in act.reads)])
                free[act.node] = start + 1
                slots += [{} for _ in range(start + 1 - len(slots))]
                slots[start][act.node] = act
                for name, _ in made_by(act):
                    ready[act.node, name] = max(ready.get((act.node, name), 0), start + 1)
            elif isinstance(act, Send):
                ready[act.dst, act.key] = max(ready.get((act.dst, act.key), 0), ready.get((act.src, act.key), 0))
            elif isinstance(act, Collective):
                pairs = [(node, name) for node in act.plan.nodes for name in act.holdings(node)]
                end = max((ready.get(pair, 0) for pair in pairs), default=0)
                ready |= {(node, name): end for node in act.plan.nodes for name in act.results(node)}
        return slots

    @property
    def labels(self) -> dict[Task, str]:
        """The label of each task in the row of its node: with the stage if a node has several, or no micro-batches."""
        homes = {(task.node, task.of) for task in self.tasks}
        several = len(homes) > len({node for node, _ in homes})
        return {t: t.label if several or t.batch is None else f"{t.name}{t.batch}" for t in self.tasks}

    def __str__(self) -> str:
        """The table: a line per node, a column per slot of :meth:`slots`."""
        slots = self.slots()
        return said(lambda language: self._table(slots, text_in(language, "acts.slot")))

    def _table(self, slots: Sequence[Mapping[str, Task]], corner: str) -> str:
        """Return the table with this word in its corner; Chinese letters are two columns wide."""
        if not slots:
            return "\n".join(self.nodes)
        first = max(columns_of(head) for head in (corner, *self.nodes))
        rows = {corner: [str(i) for i in range(len(slots))]}
        labels = self.labels
        rows |= {node: [labels[slot[node]] if node in slot else "" for slot in slots] for node in self.nodes}
        widths = [max(map(len, cells)) for cells in zip(*rows.values(), strict=True)]
        lines = []
        for head, cells in rows.items():
            padded = " ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"{head}{' ' * (first - columns_of(head))}   {padded}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Schedule: {len(self.nodes)} nodes, {len(self.tasks)} tasks, {len(self.acts)} acts>"

    def to_json(self) -> str:
        """Return the schedule as JSON text, from which :meth:`from_json` makes an equal one."""
        names = {kind: name for name, kind in KINDS.items()}
        acts = [
            [names[type(act)], *(json.loads(item.to_json()) if isinstance(item, Plan) else item for item in act)]
            for act in self.acts
        ]
        return json.dumps({"d2lps": "schedule", **{field: getattr(self, field) for field in FIELDS}, "acts": acts})

    @classmethod
    def from_json(cls, source: str) -> "Schedule":
        """Return the schedule that :meth:`to_json` wrote.

        Args:
            source: JSON text.

        Returns:
            Checked like any other.

        Raises:
            ScheduleError: If ``source`` is something else.
        """
        try:
            data = json.loads(source)
            if data["d2lps"] != "schedule":
                raise ValueError(f"d2lps = {data['d2lps']!r}")
            data["values"] = {name: Value(size, tuple(atoms)) for name, (size, atoms) in data["values"].items()}
            data["acts"] = [_act(*act) for act in data["acts"]]
            return cls(**{field: data[field] for field in FIELDS})
        except ScheduleError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ScheduleError("not-a-schedule", why=f"{type(error).__name__}: {error}") from None


def columns_of(word: str) -> int:
    """Return how many columns a word takes in a terminal."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in word)


FIELDS = ("nodes", "values", "acts", "holds", "wants", "memory")


def _act(kind: str, *fields: Any) -> Act:
    if kind == "collective":
        plan, *others = fields
        return Collective(Plan.from_json(json.dumps(plan)), *others)
    return KINDS[kind](*(_tuples(field) for field in fields))


def _tuples(field: object) -> object:
    return tuple(_tuples(item) for item in field) if isinstance(field, list) else field


def merge(
    columns: Mapping[str, Sequence[Act]],
    values: Mapping[str, Value],
    holds: Iterable[tuple[str, str]] = (),
    wants: Iterable[tuple[str, str]] = (),
    memory: Mapping[str, int] | None = None,
) -> Schedule:
    """Make one list of a list of acts per device.

    Every device does its next act as soon as the values that it needs are there; a collective begins when it is the
    next act of all its nodes.

    Args:
        columns (mapping of str to list of acts): Device → its tasks, its sends, and the collectives in which it takes
            part, in its order.
        values, holds, wants, memory: As for :class:`Schedule`.

    Returns:
        Checked.

    Raises:
        ScheduleError: If the devices would wait for each other for ever; the sentence names who waits for which value
            of whom.
    """
    nodes, holds = tuple(columns), tuple(holds)
    state = Memory(values, {})  # limits are checked in the end, when the order is known
    state.hold(holds)
    place = dict.fromkeys(nodes, 0)
    acts: list[Act] = []

    def next_of(node: str) -> Act | None:
        return columns[node][place[node]] if place[node] < len(columns[node]) else None

    todo = list(nodes)
    while todo:
        node = todo.pop(0)
        while (act := next_of(node)) is not None:
            members = nodes_of(act)
            if any(next_of(member) != act for member in members) or state.lacks(act):
                break
            acts.append(act)
            state.follow(len(acts), act)
            for member in members:
                place[member] += 1
            woken = [act.dst] if isinstance(act, Send) else members
            todo += [other for other in woken if other != node and other not in todo]
    waiting = {node: act for node in nodes if (act := next_of(node)) is not None}
    if waiting:
        raise ScheduleError("deadlock", waits="; ".join(_wait(node, waiting, columns, state) for node in waiting))
    return Schedule(nodes, values, acts, holds, wants, memory)


def _wait(node: str, waiting: Mapping[str, Act], columns: Mapping, state: Memory) -> str:
    """Return the clause that says for what a device waits, and which device would bring it."""
    act = waiting[node]
    lacking = state.lacks(act)
    if not lacking:
        others = [member for member in nodes_of(act) if waiting.get(member) != act]
        return text("acts.waits-together", node=node, what=act, others=" ".join(others))
    _, name = lacking[0]
    what = act.label if isinstance(act, Task) else act
    brings = [
        device
        for device, column in columns.items()
        for other in column
        if isinstance(other, Send)
        and other.dst == node
        and other.key == name
        or isinstance(other, Task)
        and device == node
        and name in [made for made, _ in made_by(other)]
    ]
    if not brings:
        return text("acts.waits-in-vain", node=node, what=what, value=name)
    return text("acts.waits", node=node, what=what, value=name, other=brings[0])

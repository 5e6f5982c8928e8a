"""What the acts of a schedule do to the values on each node, followed on bit sets of contributions, and their memory.

A value on a node is absent, or a set of atoms. Making a value and adding to it needs disjoint sets, reading it needs
all atoms. Thus an input exists before it is read, each micro-batch counts once, and no update comes too early. The
bytes of the values that are present are the memory of the node.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NoReturn

from d2lps.plan.acts import Send, Update
from d2lps.schedule.acts import Act, Collective, ScheduleError, Size, Task, Value, made_by


class Memory:
    """The values on every node, while acts are followed in their order.

    Args:
        values: All values of the schedule.
        limits: Bytes that fit on a node; nodes that are not named have no limit.
    """

    def __init__(self, values: Mapping[str, Value], limits: Mapping[str, int] = {}):  # noqa: B006
        self.values, self.limits = dict(values), limits
        self.full: dict[str, int] = {}  # value → all its bits
        self.bit: dict[str, dict] = {}  # value → atom → its bit
        self.present: dict[tuple[str, str], int] = {}  # (node, value) → bits
        self.updated: set[tuple[str, str]] = set()
        self.bytes: dict[str, Size] = defaultdict(int)
        self.peak: dict[str, Size] = defaultdict(int)
        self.number: int | None = None  # of the act that is being followed, for the sentences
        self.act: Act | None = None

    def lacks(self, act: Act) -> list[tuple[str, str]]:
        """Return the (node, value) pairs that an act needs and that are absent or incomplete."""
        if isinstance(act, Task):
            wanted = [(act.node, name) for name in act.reads]
        elif isinstance(act, Send):
            return [] if (act.src, act.key) in self.present else [(act.src, act.key)]
        elif isinstance(act, Update):
            wanted = [(act.node, act.key)]
        else:
            pairs = [(node, name) for node in act.plan.nodes for name in act.holdings(node)]
            return [pair for pair in pairs if pair not in self.present]
        return [pair for pair in wanted if self.present.get(pair, 0) != self.bits(pair[1])]

    def bits(self, name: str) -> int:
        """Return the set of all atoms of a value."""
        if name not in self.full:
            atoms = self.value(name).atoms
            self.bit[name] = {atom: 1 << i for i, atom in enumerate(atoms)}
            self.full[name] = (1 << len(atoms)) - 1
        return self.full[name]

    def value(self, name: str) -> Value:
        """Return a value, or the part ``value/key`` of one that a collective has split."""
        if name not in self.values:
            self._fail("unknown-value", value=name)
        return self.values[name]

    def hold(self, holds: Iterable[tuple[str, str]]) -> None:
        """Put the values there that nodes have before the first act."""
        for node, name in holds:
            self._put(node, name, self.bits(name))

    def follow(self, number: int, act: Act) -> None:
        """Do what the act does. Raises ScheduleError if it cannot be done."""
        self.number, self.act = number, act
        if isinstance(act, Task):
            self._compute(act)
        elif isinstance(act, Send):
            self._send(act)
        elif isinstance(act, Update):
            self._read(act.node, act.key)
            if (act.node, act.key) in self.updated:
                self._fail("updated-twice", value=act.key, node=act.node)
            self.updated.add((act.node, act.key))
        else:
            self._collect(act)

    def end(self, wants: Iterable[tuple[str, str]]) -> None:
        """Raise ScheduleError unless nodes have what they want in the end."""
        for node, name in wants:
            missing = self.bits(name) & ~self.present.get((node, name), 0)
            if missing:
                raise ScheduleError("unfinished", node=node, value=name, missing=self._atoms(name, missing))

    def _compute(self, task: Task) -> None:
        for name in task.reads:
            self._read(task.node, name)
        for name, atom in made_by(task):
            bits = self.bits(name)
            if atom is not None and atom not in self.bit[name]:
                self._fail("unknown-atom", value=name, atom=atom)
            self._put(task.node, name, bits if atom is None else self.bit[name][atom])
        for name in task.frees:
            self._free(task.node, name)

    def _send(self, send: Send) -> None:
        bits = self.present.get((send.src, send.key))
        if bits is None:
            self._fail("not-there", value=send.key, node=send.src)
        if send.op == "copy" and (send.dst, send.key) in self.present:
            self._free(send.dst, send.key)
        self._put(send.dst, send.key, bits)
        if send.op == "move":
            self._free(send.src, send.key)

    def _collect(self, act: Collective) -> None:
        whole = self.value(act.value)
        for key, share in act.plan.share.items():  # the parts come into being with the collective
            size = whole.nbytes * share
            part = Value(size.numerator if size.denominator == 1 else size, whole.atoms)
            self.values.setdefault(f"{act.value}/{key}", part)
        holders = [key for _, key in act.plan.holds]
        adds = len(holders) > len({*holders})  # two nodes hold the same key: they are contributions to one sum
        total = 0 if adds else self.bits(act.value)
        for node in act.plan.nodes:
            for name in act.holdings(node):
                bits = self.present.get((node, name))
                if bits is None:
                    self._fail("not-there", value=name, node=node)
                if adds and total & bits:
                    self._fail("twice", value=name, node=node, atoms=self._atoms(name, total & bits))
                total = total | bits if adds else total & bits
        for node in act.plan.nodes:
            before, after = act.holdings(node), act.results(node)
            for name in after:
                if name in before:
                    self.present[node, name] = total
                else:
                    self.bits(name)
                    self._put(node, name, total)
            for name in before if act.frees else ():
                if name not in after:
                    self._free(node, name)

    def _read(self, node: str, name: str) -> None:
        bits, full = self.present.get((node, name)), self.bits(name)
        if bits is None:
            self._fail("not-there", value=name, node=node)
        if bits != full:
            self._fail("incomplete", value=name, node=node, missing=self._atoms(name, full & ~bits))

    def _put(self, node: str, name: str, bits: int) -> None:
        there = self.present.get((node, name))
        if there is None:
            self.present[node, name] = bits
            self.bytes[node] += self.value(name).nbytes
            if self.bytes[node] > self.peak[node]:
                self.peak[node] = self.bytes[node]
                if node in self.limits and self.bytes[node] > self.limits[node]:
                    reason = "memory" if self.act else "memory-before"
                    self._fail(reason, value=name, node=node, needed=self.bytes[node], limit=self.limits[node])
            return
        if (node, name) in self.updated:
            self._fail("add-updated", value=name, node=node)
        if there & bits:
            self._fail("twice", value=name, node=node, atoms=self._atoms(name, there & bits))
        self.present[node, name] = there | bits

    def _free(self, node: str, name: str) -> None:
        if self.present.pop((node, name), None) is None:
            self._fail("freed-twice", value=name, node=node)
        self.updated.discard((node, name))
        self.bytes[node] -= self.value(name).nbytes

    def _atoms(self, name: str, bits: int) -> str:
        self.bits(name)
        return " ".join(str(atom) for atom, bit in self.bit[name].items() if bits & bit)

    def _fail(self, reason: str, **values: object) -> NoReturn:
        raise ScheduleError(reason, self.number, what=self.act, **values)


def verify(values: Mapping[str, Value], acts: Iterable[Act], holds, wants, limits) -> Memory:
    """Follow all acts; return the memory of all nodes in the end, with the peak of each.

    Raises:
        ScheduleError: At the first act that cannot be done, or if a node lacks a value in the end.
    """
    memory = Memory(values, limits)
    memory.hold(holds)
    for number, act in enumerate(acts, 1):
        memory.follow(number, act)
    memory.end(wants)
    return memory

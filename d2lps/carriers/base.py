"""A plan compiled into the program of one process, and the interface of the carriers that execute it.

The order of operations, and the copies of values that are overwritten while they are sent, are decided here for all
carriers. A carrier only moves bytes: :meth:`Carrier.load` turns a :class:`Program` into a function that executes it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.reductions import Reduction
from d2lps.carriers.tensors import widened
from d2lps.plan.acts import Send, Update, updates
from d2lps.plan.checking import arrivals
from d2lps.plan.optimizers import RULES
from d2lps.plan.plan import Plan


class BufferSlot(NamedTuple):
    """The value of ``key`` on ``node``, or its ``spare``: a copy to read while the slot itself is overwritten."""

    node: str
    key: str
    spare: bool = False


@dataclass(eq=False, slots=True)
class Operation:
    """A send, an update, or (if ``act`` is None) a copy of a slot into its spare.

    ``index`` counts the sends of its step, then the updates, from 0. ``begins``: the operation replaces the old value
    instead of adding to it. ``after``: the earlier operations it has to wait for, because they wrote the value it
    reads, or read or wrote the value it overwrites.
    """

    step: int
    index: int
    act: Any  # a Send, an Update, or None
    reads: BufferSlot
    writes: BufferSlot
    begins: bool
    after: "list[Operation]"


class Step(NamedTuple):
    """One step of a program, in the order of execution: ``copies`` into spares, ``sends``, ``updates``."""

    number: int
    copies: list[Operation]
    sends: list[Operation]
    updates: list[Operation]


Bound = tuple[Operation, Any, Any]  # with the tensors that it reads and writes; None: on another process


class Timed(NamedTuple):
    """The start and end of one act of a plan: ``index`` counts the sends of its step, then the updates, from 0."""

    step: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    start: float
    end: float


class Executed(NamedTuple):
    """The start of a program (``begun``) and the times of its ``acts``, in seconds on the clock of its process."""

    begun: float
    acts: list[Timed]


def compile_steps(plan: Plan, seen: Collection[str], strided: Collection[str] = ()) -> list[Step]:
    """Return the steps of ``plan`` with the operations on the nodes whose memory this process can see (``seen``).

    A node in ``strided`` memory sends to other processes from its spare, which is contiguous.
    """
    writer: dict[BufferSlot, Operation] = {}
    readers: dict[BufferSlot, list[Operation]] = {}

    def operation(
        step: int, index: int, act: Send | Update | None, reads: BufferSlot, writes: BufferSlot, begins: bool
    ) -> Operation:
        new = Operation(step, index, act, reads, writes, begins, [])
        if reads.node in seen and reads in writer:
            new.after.append(writer[reads])
        if writes.node in seen:
            if writes != reads and writes in writer:
                new.after.append(writer[writes])
            new.after += readers.pop(writes, ())
            writer[writes] = new
        if reads.node in seen and reads != writes:
            readers.setdefault(reads, []).append(new)
        return new

    steps = []
    for number, (step, sent) in enumerate(zip(plan.steps, arrivals(plan), strict=True), 1):
        touching = [
            (i, send, begins, BufferSlot(send.src, send.key), BufferSlot(send.dst, send.key))
            for i, (send, begins) in enumerate(sent)
            if send.src in seen or send.dst in seen
        ]
        written = {target for *_, target in touching}
        spares = {}
        for *_, source, target in touching:
            leaves_strided = source.node in strided and target.node not in seen
            if source.node in seen and (source in written or leaves_strided):
                spares[source] = source._replace(spare=True)
        copies = [operation(number, -1, None, source, spare, True) for source, spare in spares.items()]
        sends = [
            operation(number, i, send, spares.get(source, source), target, begins)
            for i, send, begins, source, target in touching
        ]
        changes = []
        for i, act in enumerate(updates(step), len(sent)):
            if act.node in seen:
                slot = BufferSlot(act.node, act.key)
                changes.append(operation(number, i, act, slot, slot, False))
        steps.append(Step(number, copies, sends, changes))
    return steps


class Program:
    """The part of a plan that one process executes, with the tensors of the nodes that it plays."""

    def __init__(
        self,
        plan: Plan,
        tensors: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        memory: MutableMapping[tuple[str, str], dict],
        reduction: Reduction,
        seen: Collection[str],
    ):
        self.plan, self.tensors, self.weights, self.memory, self.reduction = plan, tensors, weights, memory, reduction
        self.like = next(iter(tensors.values()))  # all have its size and dtype
        self.slices = plan.slices(self.like.numel())
        self.steps = compile_steps(plan, seen, {node for node, tensor in tensors.items() if not tensor.is_contiguous()})
        self._parts: dict[BufferSlot, Tensor | None] = {}

    def part(self, slot: BufferSlot) -> Tensor | None:
        """Return the part of a buffer for ``slot``, or room for its spare; None if another process has it."""
        if slot not in self._parts:
            part = self.tensors[slot.node][self.slices[slot.key]] if slot.node in self.tensors else None
            if slot.spare and part is not None:
                part = torch.empty_like(part, memory_format=torch.contiguous_format)
            self._parts[slot] = part
        return self._parts[slot]

    def bound(self, operations: Iterable[Operation]) -> list[Bound]:
        """Return the operations, each with the parts that it reads and writes."""
        return [(operation, self.part(operation.reads), self.part(operation.writes)) for operation in operations]

    def write(self, begins: bool, target: Tensor, arrived: Tensor) -> None:
        """Copy ``arrived`` into ``target`` if it ``begins`` a value there, else reduce the two, the target's first."""
        if begins:
            target.copy_(arrived)
        else:
            self.reduction.into(target, target, arrived)

    def update(self, act: Update, gradient: Tensor) -> None:
        """Do one optimizer step: turn the complete sum into new weights, in the buffer and in the weights."""
        weight = self.weights[act.node][self.slices[act.key]]
        precise = widened(weight)
        state = self.memory.setdefault((act.node, act.key), {})
        RULES[act.rule](precise, widened(gradient), state, **dict(act.numbers))
        if precise is not weight:
            weight.copy_(precise)
        gradient.copy_(weight)

    def stepwise(
        self, exchange: Callable[[int, list[Bound]], list[tuple[float, float]]], clock: Callable[[], float]
    ) -> Callable[[], Executed]:
        """Return a function that executes this program step by step.

        ``exchange(step, sends)`` carries the sends of a step together, writes the arrivals in the order given, and
        returns the (start, end) of each send, in seconds of ``clock``.
        """
        # Here, so that the run does not pay for it.
        steps = [tuple(map(self.bound, (step.copies, step.sends, step.updates))) for step in self.steps]

        def execute() -> Executed:
            started, timed = clock(), []
            for step, (copies, sends, changes) in zip(self.steps, steps, strict=True):
                for _, source, spare in copies:
                    spare.copy_(source)
                spans = exchange(step.number, sends)
                timed += [Timed(step.number, sent.index, *span) for (sent, *_), span in zip(sends, spans, strict=True)]
                for change, gradient, _ in changes:
                    start = clock()
                    self.update(change.act, gradient)
                    timed.append(Timed(step.number, change.index, start, clock()))
            return Executed(started, timed)

        return execute


class Carrier:
    """The interface of all carriers; the defaults here fit a carrier whose nodes are all in this process."""

    rank, size = 0, 1
    shares_memory = False  # True if this process sees the memory of all nodes, even of those that other processes play

    def ranks(self, plan: Plan) -> dict[str, int]:
        """Return node → the rank of the process that plays it.

        Args:
            plan: the plan with these nodes.
        """
        return dict.fromkeys(plan.nodes, 0)

    def playing(self, plan: Plan) -> tuple[str, ...]:
        """Return the nodes that this process plays; ``run`` needs their tensors here.

        Args:
            plan: the plan with these nodes.
        """
        return tuple(node for node, rank in self.ranks(plan).items() if rank == self.rank)

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        """Return the device that each node's tensor must lie on.

        Args:
            nodes: names, in the order of a plan.

        Returns:
            node → device; None if every tensor may stay on its device.
        """
        return None

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a new flat tensor in the memory that suits this carrier best.

        Args:
            node: the node that gets it.
            elements, dtype: its size and type.

        Returns:
            flat; its content is arbitrary.
        """
        places = self.place([node])
        return torch.empty(elements, dtype=dtype, device=places[node] if places else "cpu")

    def taken(self) -> AbstractContextManager:
        """Return a context in which this thread has the carrier for itself, from compiling a plan to its trace.

        Returns:
            (context manager): it raises on entry if another thread has the carrier and two threads cannot use it at
                once.
        """
        return nullcontext()

    def refuse(self, error: Exception) -> None:
        """Tell the other processes, if there are any, that this one does not begin.

        Args:
            error: the reason.
        """

    def verify_same_run(self, program: Program) -> None:
        """Check that all processes have the same plan, size, dtype and reduction.

        Args:
            program: the program of this process.

        Raises:
            TensorError: on all processes, if they differ.
        """

    def load(self, program: Program) -> Callable[[], Executed]:
        """Prepare a program, and return a function that executes it.

        Args:
            program: the program of this process.

        Returns:
            each call executes the program once and returns the times of its acts.
        """
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait until all processes have called this, so that they begin at the same time."""

    def all_gather(self, value: object) -> list:
        """Return the values of all processes, in the order of ranks, on each of them.

        Args:
            value: the value of this process: anything that JSON can hold.
        """
        return [value]

    def gather_times(self, plan: Plan, executed: Executed) -> list[Timed]:
        """Return the times of all processes on the clock of the first, from 0; other processes get their own part.

        Args:
            plan: the plan that was run.
            executed: the times of this process.
        """
        return [Timed(t.step, t.index, t.start - executed.begun, t.end - executed.begun) for t in executed.acts]

    def clock(self) -> float:
        """Wait for all work that was started before, and return the time in seconds."""
        return time.perf_counter()

    def describe(self, plan: Plan, tensors: Mapping[str, Tensor]) -> str:
        """Name the devices of a run, for its trace, and who played the nodes whose names do not say it.

        Args:
            plan: the plan that was run.
            tensors: node → its buffer, for the nodes played here.

        Returns:
            such as ``"cpu ×4"`` or ``"gloo ×2 (rank0 = a, rank1 = b)"``.
        """
        raise NotImplementedError

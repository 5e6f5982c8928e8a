"""A plan compiled into the program of one process, and the contract of the carriers that execute it.

What a process does in which order, and what must be read before it is overwritten, is decided here, for all
carriers. They only move bytes: each takes a :class:`Program` and gives back what executes it (:meth:`Carrier.load`).
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.reductions import Reduction
from d2lps.carriers.tensors import widened
from d2lps.plan.acts import Send, Update, updates
from d2lps.plan.checking import arrivals
from d2lps.plan.optimizers import RULES
from d2lps.plan.plan import Plan


class Slot(NamedTuple):
    """What ``node`` has of ``key``, or its ``spare``: a copy of that, kept while the slot itself is overwritten."""

    node: str
    key: str
    spare: bool = False


@dataclass(eq=False, slots=True)
class Operation:
    """One thing done to a key: a send, an update, or (``act`` is None) a copy of a slot kept in its spare.

    ``index`` counts the sends of its step, then its updates, from 0. ``begins``: what is written takes the place of
    what is there. ``after``: the operations before it that wrote what it reads, and read or wrote what it overwrites;
    until they are done it has to wait.
    """

    step: int
    index: int
    act: Send | Update | None
    reads: Slot
    writes: Slot
    begins: bool
    after: "list[Operation]"


class Step(NamedTuple):
    """One step of a program: first copies are ``kept`` of what it overwrites and sends, then the sends, the updates."""

    number: int
    kept: list[Operation]
    sends: list[Operation]
    updates: list[Operation]


Bound = tuple[Operation, Tensor | None, Tensor | None]  # with what it reads and writes; None where that lies elsewhere


class Timed(NamedTuple):
    """When one act of a plan was done: ``index`` counts the sends of its step, then the updates, from 0."""

    step: int
    index: int
    start: float
    end: float


class Executed(NamedTuple):
    """When a program ``begun``, and when each of its ``acts`` was done: seconds on the clock of its process."""

    begun: float
    acts: list[Timed]


def compile_steps(plan: Plan, seen: Collection[str], strided: Collection[str] = ()) -> list[Step]:
    """The steps of ``plan`` with what touches the nodes whose memory this process has ``seen``.

    What nodes on ``strided`` memory send to others goes from their spares, too, where it lies together.
    """
    wrote: dict[Slot, Operation] = {}
    readers: dict[Slot, list[Operation]] = {}

    def operation(
        step: int, index: int, act: Send | Update | None, reads: Slot, writes: Slot, begins: bool
    ) -> Operation:
        done = Operation(step, index, act, reads, writes, begins, [])
        if reads.node in seen and reads in wrote:
            done.after.append(wrote[reads])
        if writes.node in seen:
            if writes != reads and writes in wrote:
                done.after.append(wrote[writes])
            done.after += readers.pop(writes, ())
            wrote[writes] = done
        if reads.node in seen and reads != writes:
            readers.setdefault(reads, []).append(done)
        return done

    steps = []
    for number, (step, sent) in enumerate(zip(plan.steps, arrivals(plan), strict=True), 1):
        touching = [
            (i, send, begins, Slot(send.src, send.key), Slot(send.dst, send.key))
            for i, (send, begins) in enumerate(sent)
            if send.src in seen or send.dst in seen
        ]
        written = {target for *_, target in touching}
        kept = {}
        for *_, source, target in touching:
            leaves_strided = source.node in strided and target.node not in seen
            if source.node in seen and (source in written or leaves_strided):
                kept[source] = source._replace(spare=True)
        copies = [operation(number, -1, None, source, spare, True) for source, spare in kept.items()]
        sends = [
            operation(number, i, send, kept.get(source, source), target, begins)
            for i, send, begins, source, target in touching
        ]
        changes = []
        for i, act in enumerate(updates(step), len(sent)):
            if act.node in seen:
                slot = Slot(act.node, act.key)
                changes.append(operation(number, i, act, slot, slot, False))
        steps.append(Step(number, copies, sends, changes))
    return steps


class Program:
    """What one process does of a plan, with the tensors of the nodes that it plays."""

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
        self.like = next(iter(tensors.values()))  # all are of its size and dtype
        self.slices = plan.slices(self.like.numel())
        self.steps = compile_steps(plan, seen, {node for node, tensor in tensors.items() if not tensor.is_contiguous()})
        self._parts: dict[Slot, Tensor | None] = {}

    def part(self, slot: Slot) -> Tensor | None:
        """The part of a buffer that is ``slot``, or room for its spare; None where another process has it."""
        if slot not in self._parts:
            part = self.tensors[slot.node][self.slices[slot.key]] if slot.node in self.tensors else None
            if slot.spare and part is not None:
                part = torch.empty_like(part, memory_format=torch.contiguous_format)
            self._parts[slot] = part
        return self._parts[slot]

    def bound(self, operations: Iterable[Operation]) -> list[Bound]:
        """The operations, each with the parts that it reads and writes."""
        return [(done, self.part(done.reads), self.part(done.writes)) for done in operations]

    def write(self, begins: bool, target: Tensor, arrived: Tensor) -> None:
        """Put what arrived where it belongs: the receiver's own value first, then the arrival."""
        if begins:
            target.copy_(arrived)
        else:
            self.reduction.into(target, target, arrived)

    def update(self, act: Update, gradient: Tensor) -> None:
        """One optimizer step of a server: the complete sum becomes new weights, in the buffer and in the weights."""
        weight = self.weights[act.node][self.slices[act.key]]
        wide = widened(weight)
        RULES[act.rule](wide, widened(gradient), self.memory.setdefault((act.node, act.key), {}), **dict(act.numbers))
        if wide is not weight:
            weight.copy_(wide)
        gradient.copy_(weight)

    def stepwise(
        self, exchange: Callable[[int, list[Bound]], list[tuple[float, float]]], clock: Callable[[], float]
    ) -> Callable[[], Executed]:
        """What executes this program a step at a time.

        ``exchange(step, sends)`` carries the sends of a step, all together, writes what arrived in the order
        given, and returns the (start, end) of each, in seconds of ``clock``.
        """
        steps = [(step, *map(self.bound, step[1:])) for step in self.steps]  # the bookkeeping is no part of the run

        def execute() -> Executed:
            started, timed = clock(), []
            for step, kept, sends, changes in steps:
                for _, source, spare in kept:
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
    """How bytes travel. What is written out here is so for a carrier whose nodes are all in this process."""

    rank, size = 0, 1
    shares_memory = False  # whether this process sees the memory of all nodes, also of those that others play

    def ranks(self, plan: Plan) -> dict[str, int]:
        """Node → the rank of the process that plays it.

        Parameters
        ----------
        plan
            whose nodes are meant.
        """
        return dict.fromkeys(plan.nodes, 0)

    def playing(self, plan: Plan) -> tuple[str, ...]:
        """The nodes that this process plays: those whose tensors are given to it.

        Parameters
        ----------
        plan
            whose nodes are meant.
        """
        return tuple(node for node, rank in self.ranks(plan).items() if rank == self.rank)

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        """On which device each of these nodes lies; None where any will do.

        Parameters
        ----------
        nodes
            names, in the order of a plan.

        Returns
        -------
        mapping or None
            node → device; None where every tensor may stay where it is.
        """
        return None

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A new flat tensor where this carrier likes a node's values best; its content is arbitrary.

        Parameters
        ----------
        node
            its name.
        elements
            how many.
        dtype
            their type.

        Returns
        -------
        Tensor
            flat, of so many elements; its content is arbitrary.
        """
        places = self.place([node])
        return torch.empty(elements, dtype=dtype, device=places[node] if places else "cpu")

    def taken(self) -> AbstractContextManager:
        """``with`` it this thread has the carrier for itself, from compiling a plan to its trace.

        Returns
        -------
        context manager
            which raises where another thread has it, if two of them cannot both.
        """
        return nullcontext()

    def refuse(self, error: Exception) -> None:
        """Tell the other processes, if there are any, that this one does not begin.

        Parameters
        ----------
        error
            why.
        """

    def verify_same_run(self, program: Program) -> None:
        """See to it that all processes have the same plan, size, dtype and reduction.

        Parameters
        ----------
        program
            that of this process.

        Raises
        ------
        TensorError
            on all of them, if they do not.
        """

    def load(self, program: Program) -> Callable[[], Executed]:
        """Set up what a program needs, and return what executes it, any number of times.

        Parameters
        ----------
        program
            that of this process.

        Returns
        -------
        callable
            it does the program once, whenever it is called, and says when each act was done.
        """
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait until all processes are here, so that they begin at the same time."""

    def all_gather(self, what: object) -> list:
        """What every process gives, by rank, on all of them.

        Parameters
        ----------
        what
            this one gives: anything that JSON has.
        """
        return [what]

    def gather_times(self, plan: Plan, executed: Executed) -> list[Timed]:
        """The times of all processes, on the clock of the first, from 0; on other processes their own part of it.

        Parameters
        ----------
        plan
            that was run.
        executed
            the times of this process.
        """
        return [Timed(t.step, t.index, t.start - executed.begun, t.end - executed.begun) for t in executed.acts]

    def clock(self) -> float:
        """Seconds, when all that was asked for before is done."""
        return time.perf_counter()

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        """Where it runs, for the trace: ``"cpu ×4"``.

        Parameters
        ----------
        tensors
            node → its buffer, of those played here.

        Returns
        -------
        str
            such as ``"cpu ×4"``.
        """
        raise NotImplementedError

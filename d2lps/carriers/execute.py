"""Run a plan on real tensors.

>>> import torch
>>> from d2lps import aggregate_at, run
>>> gradients = {"gpu0": torch.tensor([1.0, 2.0]), "gpu1": torch.tensor([10.0, 20.0])}
>>> trace = run(aggregate_at(["gpu0", "gpu1"], "gpu0"), gradients)
>>> gradients["gpu1"]
tensor([11., 22.])
>>> trace.measured, trace.bytes_sent("gpu1")
(True, 8)

One loop for every plan; a *carrier* decides how the bytes of a step travel.
Everything is checked before the first byte moves: what is refused leaves the tensors as they were.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.reductions import SUM, Reduction, reduction, usable
from d2lps.carriers.tensors import TensorError, fits, fits_updates, widened
from d2lps.plan.acts import Send, Update, sends, updates
from d2lps.plan.checking import begun
from d2lps.plan.optimizers import RULES
from d2lps.plan.plan import Plan
from d2lps.topology import Topology
from d2lps.trace import Trace, event, pairs


@dataclass
class Message:
    """One send of a step, with the slices of the two buffers; None where that end is played elsewhere.

    ``begins``: the target takes the value over. ``index`` counts the sends of the step from 0.
    """

    send: Send
    source: Tensor | None
    target: Tensor | None
    begins: bool
    index: int = 0
    reduction: Reduction = SUM

    def write(self, arrived: Tensor) -> None:
        """Put what arrived where it belongs: the receiver's own value first, then the arrival."""
        self.put(self.target, arrived)

    def put(self, target: Tensor, arrived: Tensor) -> None:
        """The same for a part of the target."""
        if self.begins:
            target.copy_(arrived)
        else:
            self.reduction.into(target, target, arrived)


class Timed(NamedTuple):
    """When one act of a plan was done: ``index`` counts the sends of its step, then the updates, from 0."""

    step: int
    index: int
    start: float
    end: float


@dataclass
class Work:
    """What there is to do for the nodes played here: what is given to a carrier."""

    plan: Plan
    tensors: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    memory: MutableMapping[tuple[str, str], dict]
    reduction: Reduction

    @cached_property
    def parts(self) -> dict[str, slice]:
        """Where each key lies in the buffers."""
        return self.plan.slices(self.like.numel())

    @property
    def like(self) -> Tensor:
        """One of the buffers: all are of its size and dtype."""
        return next(iter(self.tensors.values()))

    @cached_property
    def messages(self) -> list[list[Message]]:
        """The messages of each step that begin or end here, in the order written."""
        found = []
        for step in begun(self.plan):
            found.append(messages := [])
            for index, (send, begins) in enumerate(step):
                source, target = (self._part(node, send.key) for node in (send.src, send.dst))
                if source is not None or target is not None:
                    messages.append(Message(send, source, target, begins, index, self.reduction))
        return found

    def update(self, act: Update) -> None:
        """One optimizer step of a server: the complete sum becomes new weights, in the buffer and in the weights."""
        gradient, weight = self._part(act.node, act.key), self.weights[act.node][self.parts[act.key]]
        wide = widened(weight)
        RULES[act.rule](wide, widened(gradient), self.memory.setdefault((act.node, act.key), {}), **dict(act.numbers))
        if wide is not weight:
            weight.copy_(wide)
        gradient.copy_(weight)

    def _part(self, node: str, key: str) -> Tensor | None:
        return self.tensors[node][self.parts[key]] if node in self.tensors else None


class Carrier:
    """How bytes travel. Here is what is so for a carrier whose nodes are all in this process."""

    def playing(self, plan: Plan) -> tuple[str, ...]:
        """The nodes that this process plays: those whose tensors are given to it."""
        return plan.nodes

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None:
        """On which device each of these nodes lies; None where any will do."""
        return None

    def buffer(self, node: str, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A new flat tensor where this carrier likes ``node``'s values best; its content is arbitrary."""
        places = self.place([node])
        return torch.empty(elements, dtype=dtype, device=places[node] if places else "cpu")

    def refuse(self, error: Exception) -> None:
        """Tell the other processes, if there are any, that this one does not begin."""

    def agree(self, work: Work) -> None:
        """See to it that all processes mean the same run. Raises TensorError, on all of them, if they do not."""

    def together(self) -> None:
        """Wait until all processes are here, so that they begin at the same time."""

    def share(self, what: object) -> list:
        """What every process gives, by rank, on all of them; ``what`` as JSON has it."""
        return [what]

    def ready(self, work: Work) -> Callable[[], list[Timed]]:
        """What does the work once, whenever it is called, and says when each act that touches this process was done."""
        return lambda: stepwise(self, work)

    def exchange(self, messages: list[Message]) -> list[tuple[float, float]]:
        """Carry the messages of one step and write them in the order given; (start, end) of each, in seconds.

        All reads come before all writes: what is read is what stood there when the step began.
        """
        raise NotImplementedError

    def gathered(self, plan: Plan, timed: list[Timed]) -> list[Timed]:
        """The times of all processes, on the clock of the first, from 0; on other processes their own part of it."""
        return timed

    def clock(self) -> float:
        """Seconds, on the clock of ``exchange``, when all that was asked for before is done."""
        raise NotImplementedError

    def describe(self, tensors: Mapping[str, Tensor]) -> str:
        """Where it runs, for the trace: ``"cpu ×4"``."""
        raise NotImplementedError


def as_they_stood(messages: list[Message]) -> list[Tensor | None]:
    """The sources, with a copy of those that this same step overwrites."""
    written = {(m.send.dst, m.send.key) for m in messages if m.target is not None}
    kept: dict[tuple[str, str], Tensor] = {}
    sources = []
    for m in messages:
        place = (m.send.src, m.send.key)
        if m.source is not None and place in written and place not in kept:
            kept[place] = m.source.clone()
        sources.append(kept.get(place, m.source))
    return sources


def stepwise(carrier: Carrier, work: Work) -> list[Timed]:
    """Do the work a step at a time: its messages, then its updates."""
    timed, messages = [], work.messages  # the bookkeeping stands before the clock: it is no part of the run
    begin = carrier.clock()
    for number, (step, carried) in enumerate(zip(work.plan.steps, messages, strict=True), 1):
        times = carrier.exchange(carried)
        timed += [
            Timed(number, message.index, start - begin, end - begin)
            for message, (start, end) in zip(carried, times, strict=True)
        ]
        for index, act in enumerate(updates(step), len(step) - len(updates(step))):
            if act.node in work.tensors:
                start = carrier.clock()
                work.update(act)
                timed.append(Timed(number, index, start - begin, carrier.clock() - begin))
    return timed


class Prepared:
    """A run that has been checked and may be done any number of times: ``go()`` does it, ``trace`` tells of it."""

    def __init__(self, work: Work, carrier: Carrier, topology: Topology):
        self.work, self.carrier, self.topology = work, carrier, topology
        no_grad = torch.no_grad()
        self.go: Callable[[], list[Timed]] = no_grad(carrier.ready(work))

    def trace(self, timed: list[Timed]) -> Trace:
        """The measured trace of one ``go()``; where there are several processes, all of them ask for it."""
        plan, width = self.work.plan, self.work.like.element_size()
        nbytes = {key: (part.stop - part.start) * width for key, part in self.work.parts.items()}
        acts = [[*sends(step), *updates(step)] for step in plan.steps]
        events = []
        for time in self.carrier.gathered(plan, timed):
            act = acts[time.step - 1][time.index]
            events.append(event(act, time.step, time.start, time.end, nbytes[act.key]))
        origin = self.carrier.describe(self.work.tensors)
        return Trace(origin, plan, self.topology, self.work.like.numel() * width, tuple(events))


def prepare(
    plan: Plan,
    tensors: "Mapping[str, Tensor] | Tensor",
    carrier: Carrier | None = None,
    *,
    topology: Topology | None = None,
    weights: Mapping[str, Tensor] | None = None,
    memory: MutableMapping[tuple[str, str], dict] | None = None,
    reduce: "str | Reduction" = SUM,
) -> Prepared:
    """Check everything that :func:`run` takes, and set up what its carrier needs, without moving a byte."""
    if carrier is None:
        from d2lps.carriers.here import Here

        carrier = Here()
    try:
        if not isinstance(plan, Plan):
            raise TensorError(f"run wants a Plan, such as d2lps.ring([…]); a {type(plan).__name__} is given")
        playing = carrier.playing(plan)
        if isinstance(tensors, Tensor) and len(playing) == 1:
            tensors = {playing[0]: tensors}
        found, drawn_on = reduction(reduce), topology or pairs(plan)
        buffers = fits(plan, tensors, carrier.place(playing), playing)
        # What a node holds is tried; what lies in the buffer of one that holds nothing is not read.
        usable(found, next((tensors[node] for node, _ in plan.holds if node in playing), buffers[0][:0]))
        work = Work(plan, tensors, {} if weights is None else weights, {} if memory is None else memory, found)
        fits_updates(plan, tensors, work.weights, work.memory, playing)
        if found is not SUM and any(updates(step) for step in plan.steps):
            raise TensorError(f"the plan has updates, which want the sum of the gradients, not their {found.name}")
        if topology is not None:  # pairs(plan) has every node and a link for every send
            for node in plan.nodes:
                topology.require_node(node)
            for src, dst in {(send.src, send.dst) for step in plan.steps for send in sends(step)}:
                topology.route(src, dst)
    except Exception as error:
        carrier.refuse(error)
        raise
    carrier.agree(work)
    return Prepared(work, carrier, drawn_on)


@torch.no_grad()
def run(
    plan: Plan,
    tensors: "Mapping[str, Tensor] | Tensor",
    carrier: Carrier | None = None,
    *,
    topology: Topology | None = None,
    weights: Mapping[str, Tensor] | None = None,
    memory: MutableMapping[tuple[str, str], dict] | None = None,
    reduce: "str | Reduction" = SUM,
) -> Trace:
    """Do what ``plan`` says, in place, and return the measured trace.

    tensors
        node → flat tensor of N elements, its gradient, for every node played by this process (with
        :class:`Here` that is every node of the plan); all of one size and dtype (any float or integer). A node
        that holds nothing gives a buffer, whose content is not read. Who plays one node may give its
        tensor alone. Afterwards every node that wants a key has it there: the sum, or the new weights.
    carrier
        :class:`Here` (default), all nodes in this process; :class:`Processes`; :class:`SharedMemory`.
    topology
        the links on which the trace is drawn; without one, a link per pair used.
    weights, memory
        for plans with updates: node → flat tensor of the current weights, changed in place, for each node
        that updates; and a dict in which the rules remember between runs. Without ``memory`` a momentum is
        forgotten after the run.
    reduce
        what "add" does: ``"sum"``, ``"max"``, ``"min"``, ``"product"``, ``"or"`` (integers, bool), or a
        :class:`Reduction` of your own.

    With several processes all of them call it; the one of rank 0 gets the whole trace, the others their own
    part. Raises TensorError, before anything has changed, and TopologyError if ``topology`` lacks a node or
    a route; a process that is lost on the way is a RankLost on all others.
    """
    ready = prepare(plan, tensors, carrier, topology=topology, weights=weights, memory=memory, reduce=reduce)
    ready.carrier.together()
    return ready.trace(ready.go())

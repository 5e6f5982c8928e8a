"""Run a plan on real tensors.

>>> import torch
>>> from d2lps import aggregate_at, run
>>> gradients = {"gpu0": torch.tensor([1.0, 2.0]), "gpu1": torch.tensor([10.0, 20.0])}
>>> trace = run(aggregate_at(["gpu0", "gpu1"], "gpu0"), gradients)
>>> gradients["gpu1"]
tensor([11., 22.])
>>> trace.measured, trace.bytes_sent("gpu1")
(True, 8)

One loop for every plan; a *carrier* decides in one method, ``exchange``, how the bytes of a step travel.
Everything is checked before the first byte moves: what is refused leaves the tensors as they were.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

import torch

from d2lps.plan import Plan
from d2lps.rules import RULES
from d2lps.steps import Send, Update, sends, updates
from d2lps.tensors import fits, fits_updates, widened
from d2lps.topology import Topology
from d2lps.trace import Trace, event, pairs


@dataclass
class Message:
    """One send of a step, with the slices of the two buffers. ``begins``: the target takes the value over."""

    send: Send
    source: torch.Tensor
    target: torch.Tensor
    begins: bool

    def write(self, arrived: torch.Tensor) -> None:
        """Put what arrived where it belongs: the receiver's own value first, then the arrival."""
        if self.begins:
            self.target.copy_(arrived)
        else:
            self.target.add_(arrived)


class Carrier(Protocol):
    """How bytes travel. ``place`` says on which device each node lies, None where any will do."""

    def place(self, nodes: Iterable[str]) -> Mapping[str, torch.device] | None: ...

    def exchange(self, messages: list[Message]) -> list[tuple[float, float]]:
        """Carry the messages of one step and write them in the order given; (start, end) of each, in seconds.

        All reads come before all writes: what is read is what stood there when the step began.
        """

    def clock(self) -> float:
        """Seconds, on the clock of ``exchange``, when all that was asked for before is done."""

    def describe(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Where it runs, for the trace: ``"cpu ×4"``."""


@torch.no_grad()
def run(
    plan: Plan,
    tensors: Mapping[str, torch.Tensor],
    carrier: Carrier | None = None,
    *,
    topology: Topology | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    memory: MutableMapping[tuple[str, str], dict] | None = None,
) -> Trace:
    """Do what ``plan`` says, in place, and return the measured trace.

    tensors
        node → flat tensor of N elements, its gradient, for every node of the plan; all of one size and
        dtype (any float or integer). A node that holds nothing gives a buffer, whose content is not read.
        Afterwards every node that wants a key has it there: the sum, or the new weights.
    carrier
        :class:`Here` (default), all nodes in this process.
    topology
        the links on which the trace is drawn; without one, a link per pair used.
    weights, memory
        for plans with updates: node → flat tensor of the current weights, changed in place, for each node
        that updates; and a dict in which the rules remember between runs. Without ``memory`` a momentum is
        forgotten after the run.

    Raises TensorError, before anything has changed, and TopologyError if ``topology`` lacks a node or a route.
    """
    if carrier is None:
        from d2lps.carriers.here import Here

        carrier = Here()
    weights, memory = {} if weights is None else weights, {} if memory is None else memory
    buffers = fits(plan, tensors, carrier.place(plan.nodes))
    fits_updates(plan, tensors, weights, memory)
    drawn_on = topology or pairs(plan)
    for node in plan.nodes:
        drawn_on.known(node)
    for send in (send for step in plan.steps for send in sends(step)):
        drawn_on.route(send.src, send.dst)

    parts = plan.slices(buffers[0].numel())
    # The bookkeeping stands before and behind the clock: it is no part of the run.
    work = list(_messages(plan, tensors, parts))
    timed: list[tuple[int, Send | Update, tuple[float, float]]] = []
    begin = carrier.clock()
    for number, (step, messages) in enumerate(zip(plan.steps, work, strict=True), 1):
        times = carrier.exchange(messages)
        timed += [(number, message.send, time) for message, time in zip(messages, times, strict=True)]
        for act in updates(step):
            buffer, weight = tensors[act.node][parts[act.key]], weights[act.node][parts[act.key]]
            start = carrier.clock()
            _update(act, weight, buffer, memory.setdefault((act.node, act.key), {}))
            timed.append((number, act, (start, carrier.clock())))
    width = buffers[0].element_size()
    nbytes = {key: (part.stop - part.start) * width for key, part in parts.items()}
    events = [event(act, number, start - begin, end - begin, nbytes[act.key]) for number, act, (start, end) in timed]
    return Trace(carrier.describe(tensors), plan, drawn_on, buffers[0].numel() * width, tuple(events))


def _messages(plan: Plan, tensors: Mapping[str, torch.Tensor], parts: Mapping[str, slice]) -> Iterator[list[Message]]:
    """The messages of each step, in the order written."""
    filled = set(plan.holds)
    for step in plan.steps:
        messages = []
        for send in sends(step):
            source, target = (tensors[node][parts[send.key]] for node in (send.src, send.dst))
            begins = send.op == "copy" or (send.dst, send.key) not in filled
            messages.append(Message(send, source, target, begins))
            filled.add((send.dst, send.key))
        yield messages


def _update(act: Update, weight: torch.Tensor, gradient: torch.Tensor, memory: dict) -> None:
    wide = widened(weight)
    RULES[act.rule](wide, widened(gradient), memory, **dict(act.numbers))
    if wide is not weight:
        weight.copy_(wide)
    gradient.copy_(weight)

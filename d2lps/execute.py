"""Run a plan on real tensors.

>>> import torch
>>> from d2lps import aggregate_at, run
>>> gradients = {"gpu0": torch.tensor([1.0, 2.0]), "gpu1": torch.tensor([10.0, 20.0])}
>>> trace = run(aggregate_at(["gpu0", "gpu1"], "gpu0"), gradients)
>>> gradients["gpu1"]
tensor([11., 22.])
>>> trace.measured, trace.bytes_sent("gpu1")
(True, 8)

One loop for every plan; a *carrier* has one method, ``exchange``, and decides how the bytes of a step
travel. Everything is checked before the first byte moves: what is refused leaves the tensors as they were.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Protocol

import torch

from d2lps.plan import Plan
from d2lps.rules import RULES
from d2lps.steps import Send, sends, updates
from d2lps.topology import Topology
from d2lps.trace import Event, Trace, event, pairs


class TensorError(ValueError):
    """Tensors that a plan cannot run on: its sentence names the node and says what would fit."""


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
        that updates; and a dict in which the rules remember between runs, such as the momentum.

    Raises TensorError, before anything has changed, and TopologyError if ``topology`` lacks a node or a route.
    """
    if carrier is None:
        from d2lps.carriers.here import Here

        carrier = Here()
    weights, memory = weights or {}, {} if memory is None else memory
    _fits(plan, tensors, carrier.place(plan.nodes))
    _fits_updates(plan, tensors, weights)
    drawn_on = topology or pairs(plan)
    for send in (send for step in plan.steps for send in sends(step)):
        drawn_on.route(send.src, send.dst)

    buffers = [tensors[node] for node in plan.nodes]
    for device in {buffer.device for buffer in buffers}:  # what only a first call costs is no part of the run
        warm = torch.zeros(2, dtype=buffers[0].dtype, device=device)
        warm[:1].copy_(warm[1:])
        warm[:1].add_(warm[1:])
    parts = plan.slices(buffers[0].numel())
    events: list[Event] = []
    filled = set(plan.holds)
    begin = carrier.clock()
    for number, step in enumerate(plan.steps, 1):
        messages = []
        for send in sends(step):
            source, target = (tensors[node][parts[send.key]] for node in (send.src, send.dst))
            begins = send.op == "copy" or (send.dst, send.key) not in filled
            messages.append(Message(send, source, target, begins))
            filled.add((send.dst, send.key))
        for message, (start, end) in zip(messages, carrier.exchange(messages), strict=True):
            nbytes = message.source.numel() * message.source.element_size()
            events.append(event(message.send, number, start - begin, end - begin, nbytes))
        for act in updates(step):
            buffer, weight = tensors[act.node][parts[act.key]], weights[act.node][parts[act.key]]
            start = carrier.clock()
            RULES[act.rule](weight, buffer, memory.setdefault((act.node, act.key), {}), **dict(act.numbers))
            buffer.copy_(weight)
            nbytes = buffer.numel() * buffer.element_size()
            events.append(event(act, number, start - begin, carrier.clock() - begin, nbytes))
    size = buffers[0].numel() * buffers[0].element_size()
    return Trace(carrier.describe(tensors), plan, drawn_on, size, tuple(events))


def _fits(plan: Plan, tensors: Mapping[str, torch.Tensor], places: Mapping[str, torch.device] | None) -> None:
    first = None
    for node in plan.nodes:
        if node not in tensors:
            raise TensorError(f"node {node} has no tensor: give one for each of {' '.join(plan.nodes)}")
        tensor = tensors[node]
        _flat(f"{node}'s tensor", tensor)
        first = tensor if first is None else first
        if tensor.numel() != first.numel():
            raise TensorError(f"{node}'s tensor has {tensor.numel()} elements, {plan.nodes[0]}'s has {first.numel()}: "
                              "all gradients are of one size")  # fmt: skip
        if tensor.dtype != first.dtype:
            raise TensorError(f"{node}'s tensor is {tensor.dtype}, {plan.nodes[0]}'s is {first.dtype}: "
                              "all gradients are of one dtype")  # fmt: skip
        if places and tensor.device != places[node]:
            raise TensorError(f"{node}'s tensor is on {tensor.device}, but the carrier has {node} on {places[node]}: "
                              f"move it there with .to('{places[node]}')")  # fmt: skip
    unknown = [node for node in tensors if node not in plan.nodes]
    if unknown:
        raise TensorError(f"a tensor is given for {unknown[0]!r}, which is not in the plan "
                          f"(nodes: {' '.join(plan.nodes)})")  # fmt: skip
    _apart({node: tensors[node] for node in plan.nodes})


def _fits_updates(plan: Plan, tensors: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    for act in (act for step in plan.steps for act in updates(step)):
        weight, gradient = weights.get(act.node), tensors[act.node]
        if weight is None:
            raise TensorError(f"{act.node} updates key {act.key}: give its weights, weights={{'{act.node}': …}}")
        _flat(f"{act.node}'s weights", weight)
        for what in ("numel", "dtype", "device"):
            of_weight, of_gradient = (getattr(t, what) for t in (weight, gradient))
            if what == "numel":
                of_weight, of_gradient = of_weight(), of_gradient()
            if of_weight != of_gradient:
                raise TensorError(f"{act.node}'s weights have {what} {of_weight}, its gradient has {of_gradient}")
        if not weight.dtype.is_floating_point:
            raise TensorError(f"{act.node}'s weights are {weight.dtype}: {act.rule} needs floating point")
        _apart({f"{act.node}": gradient, f"{act.node}'s weights": weight})


def _flat(what: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(f"{what} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.dim() != 1:
        raise TensorError(f"{what} has shape {tuple(tensor.shape)}: a buffer is flat, make it so with .reshape(-1)")
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TensorError(f"{what} is {tensor.dtype}: gradients are floating point or integers")
    if tensor.numel() > 1 and tensor.stride(0) == 0:
        raise TensorError(f"{what} repeats one element in memory: make it a buffer of its own with .clone()")


def _apart(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse buffers that overlap in memory: writing to one would change the other."""
    spans = []
    for name, tensor in tensors.items():
        if tensor.numel():
            start = tensor.data_ptr()
            end = start + ((tensor.numel() - 1) * tensor.stride(0) + 1) * tensor.element_size()
            spans.append((str(tensor.device), start, end, name))
    spans.sort()
    for (device, _, end, name), (next_device, start, _, next_name) in zip(spans, spans[1:], strict=False):
        if device == next_device and start < end:
            raise TensorError(f"{name} and {next_name} share memory: give each a buffer of its own")

"""Train copies of a model whose weights, gradients and optimizer states are shared out among the devices: ZeRO.

>>> from d2lps.train import by_plan
>>> options = {"size": 64, "steps": 2, "optimizer": partial(torch.optim.AdamW, lr=0.01)}
>>> runs = [train(by_plan.small_cnn(), by_plan.digits().train, ["a", "b"], stage, **options) for stage in range(4)]
>>> all(torch.equal(run.weights, runs[0].weights) for run in runs)
True
>>> [run.traces[0].bytes_sent("a") for run in runs], [run.peaks["a"] for run in runs]
([39720, 39720, 39720, 49320], [158880, 119160, 117540, 108920])

A schedule of :func:`d2lps.schedule.zero` says what happens in which order; here it happens to tensors. Each layer is in
one flat buffer (:mod:`d2lps.train.flat`). Hence a collective is a plan on a buffer, and the part of a device is a slice
of it. All stages add up in the order of the ring, and an optimizer that works element by element does the same to a
part as to the whole. So all stages have the same bits. As in other flat buffers, a parameter that the loss does not
depend on has the gradient 0 and not None: momentum and weight decay still change it.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from d2lps.algorithms.rings import all_gather
from d2lps.carriers.base import Executed, Program, Timed
from d2lps.carriers.gloo import Messages
from d2lps.carriers.here import Here
from d2lps.carriers.processes import Processes
from d2lps.carriers.reductions import SUM
from d2lps.messages import text
from d2lps.plan.parse import names
from d2lps.plan.share import slices
from d2lps.schedule import Collective, Task, zero
from d2lps.schedule.acts import messages_of
from d2lps.trace import Trace
from d2lps.train.by_plan import batches, deterministic, require_examples_apart
from d2lps.train.flat import Layer, ShardError, counts_of, free, layers_of
from d2lps.train.operators import in_list, measured
from d2lps.train.pipeline import (
    BEFORE,
    Micro,
    PipelineError,
    as_number,
    compute,
    digest,
    require_mean,
    require_same_batch,
    scale_of,
    shares,
    split,
    weighted,
)

__all__ = ["ShardError", "Sharded", "Trained", "train"]

Batch = tuple[Tensor, Tensor]


class Trained(NamedTuple):
    """The loss of each step, the final weights (flat), a trace per step, and the most bytes that each device had."""

    losses: list[float]
    weights: Tensor
    traces: list[Trace]
    peaks: dict[str, int]


class Device:
    """One device: its layers, and what passes between them."""

    def __init__(self, layers: Sequence[Layer], loss: Callable[[Tensor, Tensor], Tensor], cut: bool):
        self.layers, self.loss, self.cut = layers, loss, cut  # cut: whether there is more than one part of a batch
        self.values: dict[str, Tensor] = {}  # activations x and their gradients d, by their names in the schedule
        self.graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (layer, micro-batch) → input and output

    def begin(self, batch: Sequence[Micro], own: slice) -> None:
        """Take the own micro-batches of a batch."""
        self.batch, self.micro, self.total, self.peak = batch, batch[own], 0.0, 0

    def do(self, task: Task) -> None:
        """Compute the values that a task makes, and free those that it frees."""
        k, i = int(task.of), task.batch
        layer = self.layers[k]
        if task.name == "F":
            self._forward(task, k, i)
        elif task.name == "B":
            layer.begin_backward()
            inside, output = self.graphs.pop((k, i))
            above = self.values.pop(f"d{k + 1}.{i}", None)
            if output.requires_grad:  # else the layer is frozen
                torch.autograd.backward(output, above)
            if k:
                self.values[f"d{k}.{i}"] = torch.zeros_like(inside) if inside.grad is None else inside.grad
        else:
            layer.update()
        self.free(k, task.frees)
        if task.name == "U":
            layer.own.grad = None

    def _forward(self, task: Task, k: int, i: int) -> None:
        inputs, labels, share = self.micro[i]
        inside = self.values.pop(f"x{k}.{i}").requires_grad_() if k else inputs
        output = compute(task, self.layers[k].module, inside, self.cut)
        if k + 1 < len(self.layers):
            self.values[f"x{k + 1}.{i}"] = output.detach()
        else:
            if self.cut:
                require_mean(self.loss, output, self.batch, len(inputs))
            output = weighted(self.loss, output, labels, share)
            if not math.isfinite(output.item()):
                raise ShardError(text("shard.not-finite", loss=output.item()))
            self.total += output.item()
        self.graphs[k, i] = inside, output

    def free(self, k: int, freed: Iterable[str]) -> None:
        """Note how much memory is in use, and then free values of layer k."""
        layer = self.layers[k]
        self.peak = max(self.peak, sum(layer.held() for layer in self.layers))
        if f"w{k}" in freed and layer.stage == 3:  # in other stages the update has made new weights in their place
            free(layer.weights)
        if f"g{k}" in freed:
            free(layer.gradients)


class Sharded:
    """A model in training, on devices that share out its weights, gradients and states.

    Args:
        net: The model to begin with, the same on all processes; it is not changed. A module of a row is a layer. Frozen
            parameters keep their values, but have room for a gradient and states like the others.
        devices: Their names.
        stage: Of ZeRO: 0 shares out nothing, 1 the states, 2 the gradients, too, and 3 the weights as well.
        optimizer: Makes an optimizer of torch that works element by element, from a list of parameters.
        loss: ``loss(output, labels)``: the mean over the labels that count, as for :func:`d2lps.train.pipeline.run`.
        max_norm: Gradients are scaled down before each update, so that the norm of those of the whole model is this at
            most; ``norm`` has the norm before.
        carrier: With gloo; each process plays its devices. Without it all are in this process, with the same bits.
        **options: ``micro``, ``wait`` and ``keep`` of :func:`d2lps.schedule.zero`.

    Raises:
        ShardError, ScheduleError, GradientError: For a model or an optimizer that cannot be shared out, for other
            stages, for dropout and BatchNorm in training.
    """

    def __init__(
        self,
        net: nn.Module,
        devices: Iterable[str],
        stage: int = 3,
        optimizer: Callable = partial(torch.optim.AdamW, lr=1e-3),  # noqa: B008 – never changed
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        carrier: Processes | None = None,
        max_norm: float | None = None,
        **options: object,
    ):
        self.devices, self.carrier, self.own = names(devices), carrier, {}  # own: the devices of this process
        self.loss, self.max_norm, self.norm = loss, as_number(max_norm), None
        parts = all_gather(self.devices)
        with nullcontext() if carrier is None else carrier.telling():
            if carrier is not None and carrier.backend != "gloo":
                raise ShardError(text("shard.gloo"))
            counts = counts_of(net)
            self.schedule = zero(self.devices, counts, stage, itemsize=next(net.parameters()).itemsize, **options)
            self.micro = len({task.batch for task in self.schedule.tasks if task.name == "F"})
            if self.micro * len(self.devices) > 1:
                require_examples_apart(net)
            for node, key in parts.holds:
                if carrier is None or node in carrier.playing(self.schedule):
                    cuts = [slices(parts.share, count)[key] for count in counts]
                    modules = zip(layers_of(copy.deepcopy(net)), cuts, strict=True)
                    layers = [Layer(*pair, stage * (len(self.devices) > 1), optimizer) for pair in modules]
                    self.own[node] = Device(layers, loss, self.micro * len(self.devices) > 1)
            if carrier is not None:
                self._require_alike(net)
        load = Here().load if carrier is None else partial(carrier.prepare, ranks=carrier.ranks(self.schedule))
        self.programs: dict[str, Program] = {}  # value → its plan on the buffers of a layer
        for act in self.schedule.acts:
            if isinstance(act, Collective):
                kind = "weights" if act.value[0] == "w" else "gradients"
                buffers = {node: getattr(device.layers[int(act.value[1:])], kind) for node, device in self.own.items()}
                self.programs[act.value] = Program(act.plan, buffers, {}, {}, SUM, frozenset(self.own))
        self.loaded = {value: load(program) for value, program in self.programs.items()}
        for layer in [layer for device in self.own.values() for layer in device.layers]:
            free(layer.gradients)
            if layer.stage == 3:
                free(layer.weights)

    def _exchange(self, work: Callable):
        """Do ``work`` with the messages of this process, or with None if all devices are in it."""
        return work(None) if self.carrier is None else self.carrier.exchange(work, ShardError, PipelineError)

    def _require_alike(self, net: nn.Module) -> None:
        """Raise ShardError unless all processes have the same weights and the same schedule."""
        mine = [self.schedule.to_json(), self.max_norm, digest(net.parameters()).hex()]
        everyone = self.carrier.all_gather(mine)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                raise ShardError(text("shard.unlike", rank=rank))

    def step(self, batch: Batch) -> dict[str, float]:
        """Do one training step; all processes call this, with the same batch. Device i takes its part i.

        Returns:
            Device of this process → its part of the mean loss over the batch.

        Raises:
            ShardError, PipelineError: On all processes, if the loss or the norm is not finite, the batch is not the
                same on all, a layer draws random numbers, there are fewer examples than micro-batches on all devices,
                or, in the first step, a layer changes its buffers or mixes examples, or the loss is no mean.
            RankLost: If a process is lost meanwhile.
        """
        self.executed = self._exchange(partial(self._execute, batch))
        return {node: device.total for node, device in self.own.items()}

    def _execute(self, batch: Batch, messages: Messages | None) -> Executed:
        """Do the own acts of the schedule, in the order of the list."""
        parts = [split(part, self.micro) for part in split(batch, len(self.devices))]
        micro = shares(batch, [pair for part in parts for pair in part], self.loss)
        for i, node in enumerate(self.devices):
            if node in self.own:
                self.own[node].begin(micro, slice(i * self.micro, (i + 1) * self.micro))
        if messages is not None:
            require_same_batch(messages, self.carrier.size, batch)
        begun, timed, clipped = time.perf_counter(), [], self.max_norm is None
        for number, act in enumerate(self.schedule.acts, 1):
            if messages is not None:
                messages.at(number)  # for the sentence about a lost rank
            start = time.perf_counter()
            if isinstance(act, Collective):
                timed += in_list(number, act.plan, self._collect(act.value, act.frees))
                continue
            if act.name == "U" and not clipped:
                self._clip(messages)
                clipped = True
            if act.node in self.own:
                self.own[act.node].do(act)
                timed.append(Timed(number, 0, start, time.perf_counter()))
        return Executed(begun, timed)

    @torch.no_grad()
    def _clip(self, messages: Messages | None) -> None:
        """Scale all gradients by the norm of the model. Each element counts on the device that has it as its part."""
        squares = torch.zeros(len(self.devices), dtype=torch.float64)
        gradients = [(node, layer, layer.gradient()) for node, device in self.own.items() for layer in device.layers]
        for node, layer, gradient in gradients:
            part = gradient if layer.stage else gradient[layer.part]
            squares[self.devices.index(node)] += part.double().square().sum()
        others = [] if messages is None else [rank for rank in range(self.carrier.size) if rank != messages.rank]
        for rank in others:
            messages.send(squares, rank, BEFORE)
        sums = [squares] + [torch.empty_like(squares) for _ in others]
        for rank, theirs in zip(others, sums[1:], strict=True):
            messages.receive(theirs, rank, BEFORE)
        if others:
            messages.flush()
        self.norm = math.sqrt(math.fsum(torch.stack(sums).sum(0).tolist()))
        scale = scale_of(self.norm, self.max_norm)
        for _, _, gradient in gradients:
            gradient *= scale

    @torch.no_grad()
    def _collect(self, value: str, frees: bool = False) -> Executed:
        """Gather weights (``w3``) or add up gradients (``g3``) of a layer."""
        k = int(value[1:])
        for device in self.own.values() if value[0] == "w" else ():
            device.layers[k].begin_gather()
        executed = self.loaded[value]()
        for device in self.own.values() if value[0] == "g" else ():
            device.layers[k].end_reduce()
            device.free(k, [value] if frees else [])
        return executed

    def trace(self) -> Trace:
        """Return the measured trace of the last step: complete without a carrier and on rank 0, else the own part."""
        sizes = {}
        for number, act in enumerate(self.schedule.acts, 1):
            for i, send in enumerate(messages_of(act)):
                program = self.programs[act.value]
                part = program.slices[send.key]
                sizes[number, i] = (part.stop - part.start) * program.like.itemsize
        return measured(self.schedule, self.executed, sizes, self.carrier)

    def weights(self) -> Tensor:
        """Return all weights as one flat tensor; all processes call this, because stage 3 gathers them."""
        layers = [device.layers for device in self.own.values()]
        gathers = [value for value in self.programs if value[0] == "w" and layers[0][0].stage == 3]

        def whole(_: object) -> Tensor:
            for value in gathers:
                self._collect(value)
            return torch.cat([layer.weights for layer in layers[0]])

        weights = self._exchange(whole)
        for layer in [layer for row in layers for layer in row if gathers]:
            free(layer.weights)
        return weights


def train(
    net: nn.Module, data: Batch, devices: Iterable[str], stage: int, *, size: int, steps: int, **options: object
) -> Trained:
    """Train a model with ZeRO; all processes call this.

    Args:
        net, devices, stage: As for :class:`Sharded`.
        data ((Tensor, Tensor)): Inputs and labels.
        size, steps: Examples per batch, and the number of batches.
        **options: The others of :class:`Sharded`.

    Returns:
        The same on all processes, but for the traces; the peaks are those of the last step.
    """
    losses, traces = [], []
    with deterministic():
        model = Sharded(net, devices, stage, **options)
        for batch in batches(data, size, steps):
            losses.append(model.step(batch))
            traces.append(model.trace())
        weights = model.weights()
    own = [losses, {node: device.peak for node, device in model.own.items()}]
    everyone = [own] if model.carrier is None else model.carrier.all_gather(own)
    parts = [{node: part for mine, _ in everyone for node, part in mine[step].items()} for step in range(steps)]
    peaks = {node: peak for _, mine in everyone for node, peak in mine.items()}
    return Trained([sum(part[node] for node in model.devices) for part in parts], weights, traces, peaks)

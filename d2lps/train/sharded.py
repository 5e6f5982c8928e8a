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
part as to the whole. So all stages have the same bits.
"""

import copy
import hashlib
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
from d2lps.train.by_plan import batches, deterministic
from d2lps.train.flat import Layer, ShardError, counts_of, free, layers_of
from d2lps.train.operators import in_list, measured
from d2lps.train.pipeline import split

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

    def __init__(self, layers: Sequence[Layer], loss: Callable[[Tensor, Tensor], Tensor]):
        self.layers, self.loss = layers, loss
        self.values: dict[str, Tensor] = {}  # activations x and their gradients d, by their names in the schedule
        self.graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (layer, micro-batch) → input and output

    def begin(self, micro: Sequence[Batch], count: int) -> None:
        """Take the own micro-batches of a batch of ``count`` examples."""
        self.micro, self.count, self.total, self.peak = micro, count, 0.0, 0

    def do(self, task: Task) -> None:
        """Compute the values that a task makes, and free those that it frees."""
        k, i = int(task.of), task.batch
        layer = self.layers[k]
        if task.name == "F":
            self._forward(k, i)
        elif task.name == "B":
            layer.begin_backward()
            inside, output = self.graphs.pop((k, i))
            torch.autograd.backward(output, self.values.pop(f"d{k + 1}.{i}", None))
            self.values |= {f"d{k}.{i}": inside.grad} if k else {}
        else:
            if layer.stage == 0:
                layer.end_reduce()
            layer.optimizer.step()
        self.free(k, task.frees)
        if task.name == "U":
            layer.own.grad = None

    def _forward(self, k: int, i: int) -> None:
        inside = self.values.pop(f"x{k}.{i}").requires_grad_() if k else self.micro[i][0]
        output = self.layers[k].module(inside)
        if k + 1 < len(self.layers):
            self.values[f"x{k + 1}.{i}"] = output.detach()
        else:
            labels = self.micro[i][1]
            output = self.loss(output, labels) * (len(labels) / self.count)  # the parts add up to the batch's mean
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

    Parameters
    ----------
    net : nn.Module
        The model to begin with, the same on all processes; it is not changed. A module of a row is a layer.
    devices : iterable of str
        Their names.
    stage : int
        Of ZeRO: 0 shares out nothing, 1 the states, 2 the gradients, too, and 3 the weights as well.
    optimizer : callable
        Makes an optimizer of torch that works element by element, from a list of parameters.
    loss : callable
        ``loss(output, labels)``: the mean over the examples that it gets.
    carrier : Processes, optional
        With gloo; each process plays its devices. Without it all are in this process, with the same bits.
    **options
        ``micro``, ``wait`` and ``keep`` of :func:`d2lps.schedule.zero`.

    Raises
    ------
    ShardError, ScheduleError
        For a model or an optimizer that cannot be shared out, and for other stages.
    """

    def __init__(
        self,
        net: nn.Module,
        devices: Iterable[str],
        stage: int = 3,
        optimizer: Callable = partial(torch.optim.AdamW, lr=1e-3),  # noqa: B008 – never changed
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        carrier: Processes | None = None,
        **options: object,
    ):
        self.devices, self.carrier, self.own = names(devices), carrier, {}  # own: the devices of this process
        parts = all_gather(self.devices)
        with nullcontext() if carrier is None else carrier.telling():
            if carrier is not None and carrier.backend != "gloo":
                raise ShardError(text("shard.gloo"))
            counts = counts_of(net)
            self.schedule = zero(self.devices, counts, stage, itemsize=next(net.parameters()).itemsize, **options)
            for node, key in parts.holds:
                if carrier is None or node in carrier.playing(self.schedule):
                    cuts = [slices(parts.share, count)[key] for count in counts]
                    modules = zip(layers_of(copy.deepcopy(net)), cuts, strict=True)
                    layers = [Layer(*pair, stage * (len(self.devices) > 1), optimizer) for pair in modules]
                    self.own[node] = Device(layers, loss)
            if carrier is not None:
                self._require_alike(net)
        self._exchange = (lambda work: work(None)) if carrier is None else carrier.exchange
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

    def _require_alike(self, net: nn.Module) -> None:
        """Raise ShardError unless all processes have the same weights and the same schedule."""
        digest = hashlib.sha256(self.schedule.to_json().encode())
        for parameter in net.parameters():
            digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy())
        everyone = self.carrier.all_gather(digest.hexdigest())
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                raise ShardError(text("shard.unlike", rank=rank))

    def step(self, batch: Batch) -> dict[str, float]:
        """Do one training step; all processes call this, with the same batch. Device i takes its part i.

        Returns
        -------
        dict of str to float
            Device of this process → its part of the mean loss over the batch.

        Raises
        ------
        ShardError, PipelineError
            If the loss is not finite, or there are fewer examples than micro-batches on all devices.
        RankLost
            If a process is lost meanwhile.
        """
        self.executed = self._exchange(partial(self._execute, batch))
        return {node: device.total for node, device in self.own.items()}

    def _execute(self, batch: Batch, messages: Messages | None) -> Executed:
        """Do the own acts of the schedule, in the order of the list."""
        micro = len({task.batch for task in self.schedule.tasks if task.name == "F"})
        for node, part in zip(self.devices, split(batch, len(self.devices)), strict=True):
            if node in self.own:
                self.own[node].begin(split(part, micro), len(batch[1]))
        begun, timed = time.perf_counter(), []
        for number, act in enumerate(self.schedule.acts, 1):
            if messages is not None:
                messages.at(number)  # for the sentence about a lost rank
            start = time.perf_counter()
            if isinstance(act, Collective):
                timed += in_list(number, act.plan, self._collect(act.value, act.frees))
            elif act.node in self.own:
                self.own[act.node].do(act)
                timed.append(Timed(number, 0, start, time.perf_counter()))
        return Executed(begun, timed)

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

    Parameters
    ----------
    net, devices, stage
        As for :class:`Sharded`.
    data : (Tensor, Tensor)
        Inputs and labels.
    size, steps : int
        Examples per batch, and the number of batches.
    **options
        The others of :class:`Sharded`.

    Returns
    -------
    Trained
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

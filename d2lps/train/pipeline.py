"""Train a model that is cut into stages, by a pipeline schedule: all devices in this process, or a process each.

>>> from d2lps.schedule import one_f_one_b, pipeline
>>> torch.manual_seed(0) and None
>>> stages = [nn.Linear(4, 8), nn.Linear(8, 3)]
>>> batch = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
>>> loss, trace = run(pipeline(one_f_one_b(stages=2, micro=3)), stages, batch)
>>> [parameter.grad.shape for parameter in stages[0].parameters()], trace.measured
([torch.Size([8, 4]), torch.Size([8])], True)

A schedule of :mod:`d2lps.schedule.pipelines` says which stage does what, and when. Task F of a stage computes its
output, B both gradients, I that of the input alone, and W those of the weights. The result is the gradient of the mean
loss over the batch, with the bits of one device that does the same micro-batches one after the other
(:func:`one_device`), whatever the schedule, as long as it adds up in the order of the micro-batches.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from d2lps.carriers.base import Executed, Timed
from d2lps.carriers.gloo import Messages
from d2lps.carriers.processes import Processes
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.acts import Send
from d2lps.schedule import Schedule, Task
from d2lps.trace import Trace
from d2lps.train.operators import measured

__all__ = ["PipelineError", "one_device", "run", "split"]

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
KINDS = ("F", "B", "I", "W")


class PipelineError(Brief, ValueError):
    """A schedule, stages and a batch that do not fit together, or a loss that is no number."""


class Device:
    """The part of one device: it does tasks, and keeps what passes between them.

    Parameters
    ----------
    stages : mapping of int to nn.Module
        The stages of this device.
    last : int
        The number of the last stage, whose output goes into the loss.
    micro : list of (Tensor, Tensor)
        The micro-batches: inputs of stage 0, and labels.
    loss : callable
        ``loss(output, labels)``: the mean over a micro-batch.
    """

    def __init__(self, stages: Mapping[int, nn.Module], last: int, micro: Sequence[Batch], loss: Loss):
        self.stages, self.last, self.micro, self.loss = stages, last, micro, loss
        self.values: dict[str, Tensor] = {}  # activations x and gradients d, by their names in the schedule
        self.graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (stage, micro-batch) → input and output
        self.total = 0.0  # the sum of the losses of all examples
        self.sizes: dict[tuple[int, int], int] = {}  # (number of a send, 0) → bytes
        for stage in stages.values():
            stage.zero_grad(set_to_none=True)

    def do(self, task: Task) -> None:
        """Compute what a task makes from the values that it reads."""
        stage, i = int(task.of), task.batch
        if task.name == "F":
            self._forward(stage, i)
            return
        parameters = [p for p in self.stages[stage].parameters() if p.requires_grad]
        inside, output = self.graphs[stage, i] if task.name == "I" else self.graphs.pop((stage, i))
        above = f"d{stage + 1}.{i}"
        arrived = None if stage == self.last else self.values[above] if task.name == "I" else self.values.pop(above)
        if task.name == "B":
            torch.autograd.backward(output, arrived)
        elif task.name == "W":
            torch.autograd.backward(output, arrived, inputs=parameters)
        elif stage:
            inside.grad = torch.autograd.grad(output, inside, arrived, retain_graph=True)[0]
        if task.name != "W" and stage:
            self.values[f"d{stage}.{i}"] = inside.grad

    def _forward(self, stage: int, i: int) -> None:
        inside = self.values.pop(f"x{stage}.{i}").requires_grad_() if stage else self.micro[i][0]
        output = self.stages[stage](inside)
        if len(output) != len(self.micro[i][1]):
            raise PipelineError(
                text("pipeline.examples", stage=stage, rows=len(output), examples=len(self.micro[i][1]))
            )
        if stage == self.last:
            labels = self.micro[i][1]
            output = self.loss(output, labels) * len(labels)
            if not math.isfinite(output.item()):
                raise PipelineError(text("pipeline.not-finite", batch=i, loss=output.item()))
            self.total += output.item()
        else:
            self.values[f"x{stage + 1}.{i}"] = output.detach()
        self.graphs[stage, i] = inside, output

    def finish(self, examples: int) -> None:
        """Turn sums over examples into means."""
        for stage in self.stages.values():
            for parameter in stage.parameters():
                if parameter.grad is not None:
                    parameter.grad /= examples


def split(batch: Batch, micro: int) -> list[Batch]:
    """Cut a batch into micro-batches whose sizes differ by 1 at most.

    Parameters
    ----------
    batch : (Tensor, Tensor)
        Inputs and labels, one per example along the first dimension.
    micro : int
        How many.

    Returns
    -------
    list of (Tensor, Tensor)
        In order, the larger ones first.

    Raises
    ------
    PipelineError
        If there are fewer examples than micro-batches, or not as many labels as inputs.
    """
    inputs, labels = batch
    if len(inputs) != len(labels):
        raise PipelineError(text("pipeline.labels", inputs=len(inputs), labels=len(labels)))
    if len(inputs) < micro:
        raise PipelineError(text("pipeline.few-examples", examples=len(inputs), micro=micro))
    return list(zip(torch.tensor_split(inputs, micro), torch.tensor_split(labels, micro), strict=True))


def one_device(stages: Sequence[nn.Module], batch: Batch, micro: int, loss: Loss = cross_entropy) -> float:
    """Do the same on one device: all stages, one micro-batch after the other.

    Parameters
    ----------
    stages, batch, loss
        As for :func:`run`.
    micro : int
        How many micro-batches.

    Returns
    -------
    float
        The mean loss; gradients are in the parameters' ``grad``.
    """
    for stage in stages:
        stage.zero_grad(set_to_none=True)
    total = 0.0
    for inputs, labels in split(batch, micro):
        output = inputs
        for stage in stages:
            output = stage(output)
        output = loss(output, labels) * len(labels)
        output.backward()
        total += output.item()
    for stage in stages:
        for parameter in stage.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(batch[1])
    return total / len(batch[1])


def run(
    schedule: Schedule,
    stages: "Sequence[nn.Module] | Mapping[int, nn.Module]",
    batch: Batch,
    carrier: Processes | None = None,
    loss: Loss = cross_entropy,
) -> tuple[float | None, Trace]:
    """Compute the gradients of a batch by a pipeline schedule.

    Parameters
    ----------
    schedule : Schedule
        Of :func:`d2lps.schedule.pipeline`: tasks F, B, I and W of stages 0, 1, …
    stages : list or mapping of int to nn.Module
        The stages in order; of a process, at least its own. The output of each is the input of the next.
    batch : (Tensor, Tensor)
        Inputs and labels, one per example along the first dimension; the same on all processes.
    carrier : Processes, optional
        With gloo, one process per device. Without it all devices are in this process, and act in the list's order.
    loss : callable
        ``loss(output, labels)``: the mean over the examples that it gets.

    Returns
    -------
    loss : float or None
        The mean over the batch; None on processes without the last stage.
    trace : Trace
        What was measured: complete without a carrier and on rank 0, else the own part.

    Raises
    ------
    PipelineError
        If a task or a stage is missing or unknown, the batch does not fit, or a loss is not finite.
    RankLost
        If a process is lost meanwhile.

    Examples
    --------
    >>> from d2lps.schedule import gpipe, pipeline
    >>> stages, batch = [nn.Linear(2, 2), nn.Linear(2, 2)], (torch.ones(2, 2), torch.tensor([0, 1]))
    >>> loss, trace = run(pipeline(gpipe(2, 2)), stages, batch)
    >>> loss == one_device(stages, batch, micro=2)
    True
    """
    modules = dict(enumerate(stages)) if not isinstance(stages, Mapping) else dict(stages)
    with nullcontext() if carrier is None else carrier.telling():
        count, homes = _shape(schedule)
        micro = split(batch, count)
        mine = set(schedule.nodes) if carrier is None else set(carrier.playing(schedule))
        own = {stage: modules.get(stage) for stage, node in homes.items() if node in mine}
        for stage, module in own.items():
            if module is None:
                raise PipelineError(text("pipeline.no-stage", stage=stage, node=homes[stage]))
        if carrier is not None and carrier.backend != "gloo":
            raise PipelineError(text("pipeline.gloo"))
    device = Device(own, max(homes), micro, loss)
    if carrier is None:
        executed = _execute(schedule, device, mine, None)
    else:
        ranks = carrier.ranks(schedule)
        executed = carrier.exchange(
            lambda messages: _execute(schedule, device, mine, _Mail(schedule, ranks, messages, micro))
        )
    device.finish(len(batch[1]))
    mean = device.total / len(batch[1]) if max(homes) in own else None
    return mean, measured(schedule, executed, device.sizes, carrier)


def _shape(schedule: Schedule) -> tuple[int, dict[int, str]]:
    """Return the number of micro-batches, and stage → device. Raises PipelineError."""
    if not isinstance(schedule, Schedule):
        raise PipelineError(text("pipeline.schedule", given=type(schedule).__name__))
    homes: dict[int, str] = {}
    batches = set()
    for task in schedule.tasks:
        if task.name not in KINDS or not task.of.isdecimal() or task.batch is None:
            raise PipelineError(text("pipeline.task", task=task))
        homes[int(task.of)] = task.node
        batches.add(task.batch)
    if sorted(homes) != [*range(len(homes))] or sorted(batches) != [*range(len(batches))] or not homes:
        raise PipelineError(text("pipeline.gap"))
    return len(batches), homes


def _execute(schedule: Schedule, device: Device, mine: set[str], mail: "_Mail | None") -> Executed:
    """Do the own acts of the list, in its order."""
    begun, timed = time.perf_counter(), []
    for number, act in enumerate(schedule.acts, 1):
        start = time.perf_counter()
        if isinstance(act, Task) and act.node in mine:
            if mail is not None:
                mail.messages.at(number)  # for the sentence about a lost rank
                for name in act.reads:
                    mail.receive(name, device.values)
                start = time.perf_counter()  # waiting is not computing
            device.do(act)
        elif isinstance(act, Send) and act.src in mine:
            tensor = device.values[act.key]
            device.sizes[number, 0] = tensor.numel() * tensor.itemsize
            if mail is not None:
                mail.send(number, act, device.values.pop(act.key))
        else:
            continue
        timed.append(Timed(number, 0, start, time.perf_counter()))
    if mail is not None:
        timed += mail.finish()
    return Executed(begun, timed)


class _Mail:
    """The messages of one process. A receiver knows the size of what comes from the first message of a stage.

    That message is announced. A gradient has the shape of its activation.
    """

    def __init__(self, schedule: Schedule, ranks: Mapping[str, int], messages: Messages, micro: Sequence[Batch]):
        self.messages, self.ranks, self.rank, self.micro = messages, ranks, messages.rank, micro
        self.coming = {act.key: (number, act) for number, act in enumerate(schedule.acts, 1) if self._is(act)}
        self.shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}  # "x1" or "d1" → of one example
        self.announced: set[str] = set()
        self.times: list[Timed] = []

    def _is(self, act: object) -> bool:
        return isinstance(act, Send) and self.ranks[act.dst] == self.rank != self.ranks[act.src]

    def send(self, number: int, act: Send, tensor: Tensor) -> None:
        """Send a value; the first one of its kind with a header."""
        kind, _, _ = act.key.partition(".")
        tensor, target = tensor.contiguous(), self.ranks[act.dst]
        if kind not in self.announced:
            self.announced.add(kind)
            self.messages.announce(tensor, target, 2 * number + 1)
        self.messages.send(tensor, target, 2 * number)

    def receive(self, name: str, values: dict[str, Tensor]) -> None:
        """Wait for a value, if it comes from another process."""
        if name not in self.coming:
            return
        number, act = self.coming.pop(name)
        source, start = self.ranks[act.src], time.perf_counter()
        kind, _, i = name.partition(".")
        if kind not in self.shapes:
            dtype, shape = self.messages.announced(source, 2 * number + 1)
            self.shapes[kind] = dtype, shape[1:]
        dtype, shape = self.shapes[kind]
        values[name] = torch.empty((len(self.micro[int(i)][1]), *shape), dtype=dtype)
        self.messages.receive(values[name], source, 2 * number)
        self.times.append(Timed(number, 0, start, time.perf_counter()))

    def finish(self) -> list[Timed]:
        """Wait until all messages have left; return the times of what has arrived."""
        self.messages.flush()
        return self.times

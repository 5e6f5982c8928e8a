"""Train a model that is cut into stages, by a pipeline schedule: all devices in this process, or a process each.

>>> from d2lps.schedule import one_f_one_b, pipeline
>>> torch.manual_seed(0) and None
>>> stages = [nn.Linear(4, 8), nn.Linear(8, 3)]
>>> batch = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
>>> loss, trace = run(pipeline(one_f_one_b(stages=2, micro=3)), stages, batch)
>>> [parameter.grad.shape for parameter in stages[0].parameters()], trace.measured
([torch.Size([8, 4]), torch.Size([8])], True)

A schedule of :mod:`d2lps.schedule.pipelines` says which stage does what, and when. Task F of a stage computes its
output, B both gradients, I that of the input alone, and W those of the weights. The loss of a micro-batch is a mean
over the labels that count in it. It is weighted by their share of those of the batch, so that the sum is the mean over
the batch. The result has the bits of one device that does the same micro-batches one after the other
(:func:`one_device`), whatever the schedule, as long as it adds up in the order of the micro-batches and no parameter is
in two stages.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from numbers import Real
from weakref import WeakKeyDictionary

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
from d2lps.train.by_plan import require_examples_apart
from d2lps.train.operators import measured

__all__ = ["PipelineError", "clip", "one_device", "run", "split"]

Batch = tuple[Tensor, Tensor]
Micro = tuple[Tensor, Tensor, float]  # inputs, labels, and their share of the labels that count
Loss = Callable[[Tensor, Tensor], Tensor]
KINDS = ("F", "B", "I", "W")
BEFORE = 1 << 30  # the tag of messages that are sent before the acts of a schedule
PROBED: "WeakKeyDictionary[object, bool]" = WeakKeyDictionary()  # modules and losses → whether they were in training
PROBED[cross_entropy] = True


class PipelineError(Brief, ValueError):
    """A schedule, stages and a batch that do not fit together, or a loss that is no number."""


class _Enter(torch.autograd.Function):
    """The input of a stage, which the stage may change in place, as PyTorch does not allow with a leaf of its graph."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


def compute(task: Task, module: nn.Module, inside: Tensor, probe: bool) -> Tensor:
    """Return the output of a module. Raises PipelineError unless it is one tensor that depends on no random number."""
    drawn = torch.get_rng_state()
    output = forward(str(task), module, inside, probe)
    if not isinstance(output, Tensor) or not output.is_floating_point() or not output.dim():
        given = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise PipelineError(text("pipeline.output", task=task, given=given))
    if not torch.equal(drawn, torch.get_rng_state()):
        raise PipelineError(text("pipeline.random", task=task))
    return output


def forward(name: str, module: nn.Module, inside: Tensor, probe: bool) -> Tensor:
    """Return the output of a module.

    If ``probe`` is True, the first call raises PipelineError for a module that changes buffers, or does something else
    to a half of its input.
    """
    if not probe or PROBED.get(module) == module.training:
        return module(_Enter.apply(inside) if inside.requires_grad and inside.is_leaf else inside)
    drawn, count = torch.get_rng_state(), max(1, len(inside) // 2)
    halves = [each.detach().clone() for each in inside.split(count)]  # now, as a module may change its input
    if len(inside) == 1:  # an example beside another, of the same numbers
        halves = [torch.cat([inside, inside.flip(-1) * (2 if inside.is_floating_point() else 1)]).detach()]
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    output = forward(name, module, inside, False)
    for key, buffer in module.named_buffers():
        was = before.get(key, buffer)
        # A buffer of another length is one of what the module has computed before, such as sines of positions.
        if was.shape == buffer.shape and not torch.isclose(was, buffer, rtol=0, atol=0, equal_nan=True).all():
            raise PipelineError(text("pipeline.buffer", name=name, layer=type(module).__name__, buffer=key))
    if torch.equal(drawn, torch.get_rng_state()):
        try:
            twin = copy.deepcopy(module, {id(each): each for each in module.parameters()})  # with its own counters
            near = _half_of_digits(output, inside, *module.parameters()) * output.abs().max()
            whole = False
            for half, right in zip(halves, output.split(len(output) * count // len(inside)), strict=True):
                made = forward(name, twin, half.requires_grad_(inside.requires_grad), False)[: len(right)]
                rows = (made - right).abs().flatten().view(len(right), -1).amax(1) > near
                # Half of the rows must agree: in the others, rounding may have led to another choice.
                whole = whole or int(rows.sum()) * 2 > len(rows)
        except Exception:  # the module takes no batch of that size
            whole = False
        torch.set_rng_state(drawn)
        if whole:
            raise PipelineError(text("gradient.whole", name=name, layer=type(module).__name__))
        PROBED[module] = module.training
    return output


def _half_of_digits(*tensors: Tensor) -> float:
    """Return √ε of the least precise type that was used."""
    types = {each.dtype for each in tensors if each.is_floating_point()}
    kind = tensors[0].device.type
    types |= {torch.get_autocast_dtype(kind)} if torch.is_autocast_enabled(kind) else set()
    return math.sqrt(max(torch.finfo(each).eps for each in types))


@torch.no_grad()
def require_mean(loss: Loss, output: Tensor, micro: Sequence[Micro], examples: int) -> None:
    """Raise PipelineError unless the loss of a batch is the mean of those of its parts, by the labels that count.

    Each loss is looked at once. The output of some ``examples`` stands for that of the others, too, as this does not
    depend on what the outputs are.
    """
    with suppress(TypeError):  # of a loss that has no weak reference
        if loss in PROBED:
            return
        PROBED[loss] = True
    drawn = torch.get_rng_state()
    try:
        rows = output.unflatten(0, (examples, -1))  # an example may have several
        places = torch.arange(sum(len(labels) for _, labels, _ in micro)) % examples
        values = [loss(rows[places].flatten(0, 1), torch.cat([labels for _, labels, _ in micro]))]
        for at, (_, labels, share) in zip(places.split([len(labels) for _, labels, _ in micro]), micro, strict=True):
            values.append(weighted(loss, rows[at].flatten(0, 1), labels, share))
        found = [value.item() for value in values]
    except Exception:  # the loss takes no batch of that size
        return
    if not torch.equal(drawn, torch.get_rng_state()):  # such a loss has no value to compare
        torch.set_rng_state(drawn)
    elif math.isfinite(found[0]) and not (
        abs(found[0] - sum(found[1:])) <= _half_of_digits(output, *values) * max(map(abs, found))
    ):
        with suppress(TypeError):
            del PROBED[loss]
        raise PipelineError(text("pipeline.loss"))


def weighted(loss: Loss, output: Tensor, labels: Tensor, share: float) -> Tensor:
    """Return the part of a micro-batch in the mean loss of the batch; 0 if the loss ignores all of its labels."""
    return loss(output, labels) * share if share else output.sum() * 0.0


class Device:
    """The part of one device: it does tasks, and keeps what passes between them.

    Args:
        stages: The stages of this device.
        last: The number of the last stage, whose output goes into the loss.
        micro (list of (Tensor, Tensor, float)): The micro-batches: inputs of stage 0, labels, and their share of the
            labels that count.
        loss: ``loss(output, labels)``: the mean over the labels of a micro-batch that count.
    """

    def __init__(self, stages: Mapping[int, nn.Module], last: int, micro: Sequence[Micro], loss: Loss):
        self.stages, self.last, self.micro, self.loss = stages, last, micro, loss
        self.values: dict[str, Tensor] = {}  # activations x and gradients d, by their names in the schedule
        self.graphs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (stage, micro-batch) → input and output
        self.total = 0.0  # the mean loss
        self.sizes: dict[tuple[int, int], int] = {}  # (number of a send, 0) → bytes
        for stage in stages.values():
            stage.zero_grad(set_to_none=True)

    def do(self, task: Task) -> None:
        """Compute what a task makes from the values that it reads."""
        stage, i = int(task.of), task.batch
        if task.name == "F":
            self._forward(task, stage, i)
            return
        inside, output = self.graphs[stage, i] if task.name == "I" else self.graphs.pop((stage, i))
        above = f"d{stage + 1}.{i}"
        arrived = None if stage == self.last else self.values[above] if task.name == "I" else self.values.pop(above)
        parameters = [p for p in self.stages[stage].parameters() if p.requires_grad]
        inputs = {"B": None, "I": [inside] if stage else [], "W": parameters}[task.name]  # None: all of them
        if output.requires_grad and inputs != []:  # else the stage is frozen, or has no weights
            torch.autograd.backward(output, arrived, retain_graph=task.name == "I", inputs=inputs)
        if task.name != "W" and stage:
            self.values[f"d{stage}.{i}"] = torch.zeros_like(inside) if inside.grad is None else inside.grad

    def _forward(self, task: Task, stage: int, i: int) -> None:
        inputs, labels, share = self.micro[i]
        inside = self.values.pop(f"x{stage}.{i}").requires_grad_() if stage else inputs
        output = compute(task, self.stages[stage], inside, len(self.micro) > 1)
        if len(output) != len(labels):
            raise PipelineError(text("pipeline.examples", stage=stage, rows=len(output), examples=len(labels)))
        if stage == self.last:
            if len(self.micro) > 1:
                require_mean(self.loss, output, self.micro, len(labels))
            output = weighted(self.loss, output, labels, share)
            if not math.isfinite(output.item()):
                raise PipelineError(text("pipeline.not-finite", batch=i, loss=output.item()))
            self.total += output.item()
        else:
            self.values[f"x{stage + 1}.{i}"] = output.detach()
        self.graphs[stage, i] = inside, output


def split(batch: Batch, micro: int) -> list[Batch]:
    """Cut a batch into micro-batches whose sizes differ by 1 at most.

    Args:
        batch ((Tensor, Tensor)): Inputs and labels, one per example along the first dimension.
        micro: How many.

    Returns:
        (list of (Tensor, Tensor)): In order, the larger ones first.

    Raises:
        PipelineError: If there are fewer examples than micro-batches, or not as many labels as inputs.
    """
    inputs, labels = batch
    if len(inputs) != len(labels):
        raise PipelineError(text("pipeline.labels", inputs=len(inputs), labels=len(labels)))
    if len(inputs) < micro:
        raise PipelineError(text("pipeline.few-examples", examples=len(inputs), micro=micro))
    return list(zip(torch.tensor_split(inputs, micro), torch.tensor_split(labels, micro), strict=True))


def shares(batch: Batch, parts: Iterable[Batch], loss: Loss) -> list[Micro]:
    """Return the parts of a batch with their shares of the labels that the loss counts.

    Raises PipelineError if it counts none, or takes no plain mean.
    """
    option = loss.keywords.get if isinstance(loss, partial) else partial(getattr, loss)
    if option("reduction", "mean") != "mean" or option("weight", None) is not None:
        raise PipelineError(text("pipeline.loss"))
    ignored = option("ignore_index", -100)

    def count(labels: Tensor) -> int:
        return labels.numel() if labels.is_floating_point() else int((labels != ignored).sum())

    if not (total := count(batch[1])):
        raise PipelineError(text("pipeline.no-labels", ignored=ignored))
    return [(inputs, labels, count(labels) / total) for inputs, labels in parts]


def one_device(stages: Sequence[nn.Module], batch: Batch, micro: int, loss: Loss = cross_entropy) -> float:
    """Do the same on one device: all stages, one micro-batch after the other.

    Args:
        stages, batch, loss: As for :func:`run`.
        micro: How many micro-batches.

    Returns:
        The mean loss; gradients are in the parameters' ``grad``.

    Raises:
        PipelineError, GradientError: For modules and losses that :func:`run` refuses, too.
    """
    if micro > 1:
        require_examples_apart(nn.Sequential(*stages))
    for stage in stages:
        stage.zero_grad(set_to_none=True)
    total, parts = 0.0, shares(batch, split(batch, micro), loss)
    for inputs, labels, share in parts:
        output = inputs
        for number, stage in enumerate(stages):
            output = forward(f"{number}", stage, output, micro > 1)
        if micro > 1:
            require_mean(loss, output, parts, len(labels))
        output = weighted(loss, output, labels, share)
        if output.requires_grad:
            output.backward()
        total += output.item()
    return total


def run(
    schedule: Schedule,
    stages: "Sequence[nn.Module] | Mapping[int, nn.Module]",
    batch: Batch,
    carrier: Processes | None = None,
    loss: Loss = cross_entropy,
) -> tuple[float | None, Trace]:
    """Compute the gradients of a batch by a pipeline schedule.

    Args:
        schedule: Of :func:`d2lps.schedule.pipeline`: tasks F, B, I and W of stages 0, 1, …
        stages: The stages in order; of a process, at least its own. The output of each is the input of the next: one
            tensor. A parameter may be in several stages of one process; processes that give only their own cannot see
            such a one.
        batch ((Tensor, Tensor)): Inputs and labels, one per example along the first dimension; the same on all
            processes.
        carrier: With gloo, one process per device. Without it all devices are in this process, and act in the list's
            order.
        loss: ``loss(output, labels)``: the mean over the labels that count: all but −100, or the ``ignore_index`` of a
            module or of ``partial(cross_entropy, ignore_index=0)``. It may compare no examples with each other.

    Returns:
        loss: The mean over all labels of the batch that count; None on processes without the last stage.
        trace: What was measured: complete without a carrier and on rank 0, else the own part.

    Raises:
        PipelineError: On all processes, if a task or a stage is missing or unknown, the batch does not fit or is not
            the same on all, a stage draws random numbers or changes the shape of its messages, a loss is not finite, or
            the parts of a batch do not add up: a stage changes its buffers or mixes examples, or the loss is no mean.
        GradientError: If a stage has dropout or BatchNorm in training, and there are several micro-batches.
        RankLost: If a process is lost meanwhile.

    Example:
        >>> from d2lps.schedule import gpipe, pipeline
        >>> stages, batch = [nn.Linear(2, 2), nn.Linear(2, 2)], (torch.ones(2, 2), torch.tensor([0, 1]))
        >>> loss, trace = run(pipeline(gpipe(2, 2)), stages, batch)
        >>> loss == one_device(stages, batch, micro=2)
        True
    """
    modules = dict(enumerate(stages)) if not isinstance(stages, Mapping) else dict(stages)
    with nullcontext() if carrier is None else carrier.telling():
        count, homes = _shape(schedule)
        micro = shares(batch, split(batch, count), loss)
        mine = set(schedule.nodes) if carrier is None else set(carrier.playing(schedule))
        own = {stage: modules.get(stage) for stage, node in homes.items() if node in mine}
        for stage, module in own.items():
            if module is None:
                raise PipelineError(text("pipeline.no-stage", stage=stage, node=homes[stage]))
        if count > 1:
            require_examples_apart(nn.ModuleDict({f"stage {stage}": module for stage, module in own.items()}))
        if carrier is not None:
            if carrier.backend != "gloo":
                raise PipelineError(text("pipeline.gloo"))
            ranks = carrier.ranks(schedule)
            _require_apart(modules, {stage: ranks[node] for stage, node in homes.items()})
    device = Device(own, max(homes), micro, loss)
    if carrier is None:
        executed = _execute(schedule, device, mine, None)
    else:

        def work(messages: Messages) -> Executed:
            require_same_batch(messages, carrier.size, batch)
            return _execute(schedule, device, mine, _Mail(schedule, ranks, messages, micro))

        executed = carrier.exchange(work, PipelineError)
    mean = device.total if max(homes) in own else None
    return mean, measured(schedule, executed, device.sizes, carrier)


def clip(
    stages: "Iterable[nn.Module] | Mapping[int, nn.Module]", max_norm: float, carrier: Processes | None = None
) -> float:
    """Scale the gradients down, so that the norm of those of the whole model is ``max_norm`` at most.

    Args:
        stages: The stages of :func:`run`; a parameter that is in several of them counts once.
        max_norm: The greatest norm.
        carrier: That of :func:`run`; all processes call this.

    Returns:
        The norm before, the same on all processes.

    Raises:
        PipelineError: If the norm is not finite, or ``max_norm`` is not above 0.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> layer.weight.grad = torch.tensor([[3.0, 4.0]])
        >>> clip([layer], 1.0), round(layer.weight.grad.norm().item(), 4)
        (5.0, 1.0)
    """
    modules = stages.values() if isinstance(stages, Mapping) else stages
    own = {p for module in modules for p in module.parameters() if p.grad is not None}
    with nullcontext() if carrier is None else carrier.telling():
        squares = math.fsum(p.grad.double().square().sum().item() for p in own)
        norm = math.sqrt(math.fsum([squares] if carrier is None else carrier.all_gather(squares)))
        scale = scale_of(norm, max_norm)
    for parameter in own:
        parameter.grad *= scale
    return norm


def scale_of(norm: float, max_norm: float) -> float:
    """Return the factor that clips gradients of this norm. Raises PipelineError unless it is a number above 0."""
    max_norm = as_number(max_norm)
    if not (isinstance(max_norm, Real) and max_norm > 0 and math.isfinite(norm)):
        raise PipelineError(text("pipeline.norm", norm=norm, max_norm=max_norm))
    return min(1.0, max_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ does


def as_number(value: object) -> object:
    """Return the number of a tensor without dimensions; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and not value.dim() else value


def require_same_batch(messages: Messages, size: int, batch: Batch) -> None:
    """Compare the batch with that of the rank before. Raises PipelineError, which all ranks then raise."""
    if size > 1:
        before = (messages.rank - 1) % size
        mine = torch.tensor([int.from_bytes(digest(batch)[:7], "big")])
        messages.send(mine, (messages.rank + 1) % size, BEFORE)
        messages.receive(theirs := torch.empty_like(mine), before, BEFORE)
        messages.flush()
        if theirs != mine:
            raise PipelineError(text("pipeline.unlike", rank=messages.rank, other=before))


def digest(tensors: Iterable[Tensor]) -> bytes:
    """Return a digest of the types, shapes and bits of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return found.digest()


def _require_apart(modules: Mapping[int, nn.Module], ranks: Mapping[int, int]) -> None:
    """Raise PipelineError if stages of two processes share a parameter: each would have a part of its gradient."""
    seen: dict[nn.Parameter, int] = {}
    for stage, module in modules.items():
        for parameter in module.parameters() if stage in ranks else ():
            if ranks[other := seen.setdefault(parameter, stage)] != ranks[stage]:
                raise PipelineError(text("pipeline.shared", one=other, other=stage))


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

    That message is announced, and the others must have its type and shape. A gradient has those of its activation.
    """

    def __init__(self, schedule: Schedule, ranks: Mapping[str, int], messages: Messages, micro: Sequence[Micro]):
        self.messages, self.ranks, self.rank, self.micro = messages, ranks, messages.rank, micro
        self.coming = {act.key: (number, act) for number, act in enumerate(schedule.acts, 1) if self._is(act)}
        self.shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}  # "x1" or "d1" → of one example, on arrival
        self.announced: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}  # the same of those that leave
        self.times: list[Timed] = []

    def _is(self, act: object) -> bool:
        return isinstance(act, Send) and self.ranks[act.dst] == self.rank != self.ranks[act.src]

    def send(self, number: int, act: Send, tensor: Tensor) -> None:
        """Send a value; the first one of its kind with a header."""
        kind, _, i = act.key.partition(".")
        tensor, target = tensor.contiguous(), self.ranks[act.dst]
        given = tensor.dtype, tuple(tensor.shape[1:])
        if kind not in self.announced:
            self.announced[kind] = given
            self.messages.announce(tensor, target, 2 * number + 1)
        if given != self.announced[kind]:
            given, first = (f"{dtype} {shape}" for dtype, shape in (given, self.announced[kind]))
            raise PipelineError(text("pipeline.shape", batch=i, value=act.key, given=given, first=first))
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

"""Run a schedule of operators on real tensors: models that are cut inside an operator, between operators, or both.

>>> from d2lps.schedule import tensor_mlp
>>> torch.manual_seed(0) and None
>>> x, A, B, dy = torch.randn(3, 4), torch.randn(4, 8), torch.randn(8, 4), torch.randn(3, 4)
>>> pair = ["gpu0", "gpu1"]
>>> values, trace = run(tensor_mlp(pair, rows=3, width=4, hidden=8), MLP, mlp_tensors(pair, x, A, B, dy))
>>> torch.allclose(values["gpu0", "y"], gelu(x @ A) @ B, atol=1e-5), trace.bytes_sent("gpu0")
(True, 96)

The functions in ``compute`` do the tasks, sends carry values, and each collective is a plan on some of the devices. A
device does its acts in the order of the list, and adds up in this order, so the bits do not depend on the carrier.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu

from d2lps.carriers.base import Executed, Program, Timed
from d2lps.carriers.gloo import Messages
from d2lps.carriers.here import Here
from d2lps.carriers.processes import Processes
from d2lps.carriers.reductions import SUM
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.acts import Send, sends
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan
from d2lps.schedule import Collective, Schedule, Task
from d2lps.schedule.acts import made_by, messages_of
from d2lps.trace import Event, Trace, pairs

__all__ = ["OperatorError", "mlp_backward", "mlp_forward", "mlp_tensors", "operators", "run"]

Tensors = Mapping[tuple[str, str], Tensor]  # (device, value) → tensor


class OperatorError(Brief, ValueError):
    """Tensors or functions that do not fit a schedule, or a value that is not finite."""


def mlp_forward(x: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return u = x A, and gelu(u) B: with some columns of A and the same rows of B, a partial sum of y."""
    u = x @ A
    return u, gelu(u) @ B


def mlp_backward(x: Tensor, y: Tensor, dy: Tensor, u: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of A and B, and a partial sum of that of x."""
    du = torch.ops.aten.gelu_backward(dy @ B.T, u)
    return x.T @ du, gelu(u).T @ dy, du @ A.T


MLP = {"Fmlp": mlp_forward, "Bmlp": mlp_backward}  # the tasks of d2lps.schedule.tensor_mlp


def mlp_tensors(devices: Iterable[str], x: Tensor, A: Tensor, B: Tensor, dy: Tensor) -> Tensors:
    """Return what the devices of :func:`d2lps.schedule.tensor_mlp` hold: all of x and dy, their part of A and B."""
    devices = names(devices)
    tensors = {}
    for node, columns, rows in zip(devices, A.chunk(len(devices), 1), B.chunk(len(devices), 0), strict=True):
        tensors |= {(node, "x"): x, (node, "dy"): dy, (node, f"A:{node}"): columns, (node, f"B:{node}"): rows}
    return tensors


def operators(forward: Mapping[str, Callable[[Tensor, Tensor], Tensor]], examples: int) -> dict[str, Callable]:
    """Return the functions for the tasks of :func:`d2lps.schedule.place`.

    Args:
        forward: Operator → ``output(input, weight)``, where columns of the weight give columns of the output.
        examples: Examples in the whole batch: the loss is the sum of cross entropies, divided by it.

    Returns:
        For ``compute`` of :func:`run`.
    """
    tasks: dict[str, Callable] = {"L": partial(_loss, examples)}
    for i, (name, function) in enumerate(forward.items()):
        tasks |= {f"F{name}": partial(_operator, function), f"B{name}": partial(_gradients, function, i > 0)}
    return tasks


def _operator(function: Callable, *tensors: Tensor) -> Tensor:
    *parts, weight = tensors
    return function(torch.cat(parts, -1), weight)


def _gradients(function: Callable, of_input: bool, *tensors: Tensor) -> list[Tensor]:
    """Return the gradient of the weight, then those of the parts of the input; the output is computed once more."""
    *parts, above, weight = [tensor.detach() for tensor in tensors]
    wanted = [weight, *parts] if of_input else [weight]
    for tensor in wanted:
        tensor.requires_grad_()
    with torch.enable_grad():
        return [*torch.autograd.grad(_operator(function, *parts, weight), wanted, above)]


def _loss(examples: int, *tensors: Tensor) -> list[Tensor]:
    """Return the loss, and its gradients of the parts of the output."""
    *outputs, labels = tensors
    parts = [part.detach().requires_grad_() for part in outputs]
    with torch.enable_grad():
        loss = cross_entropy(torch.cat(parts, -1), labels, reduction="sum") / examples
        return [loss.detach(), *torch.autograd.grad(loss, parts)]


def run(
    schedule: Schedule,
    compute: Mapping[str, Callable],
    tensors: Tensors,
    carrier: Processes | None = None,
    add: Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None,
) -> tuple[dict[tuple[str, str], Tensor], Trace]:
    """Do the acts of a schedule on real tensors.

    Args:
        schedule: With tasks, sends and all-reduces.
        compute: ``task.name + task.of``, or ``str(task)`` for one task alone → the function that takes the values that
            the task reads, and returns those it makes.
        tensors (mapping of (str, str) to Tensor): The values that each device of this process holds before.
        carrier: With gloo, one process per device. Without it all devices are in this process, with the same bits.
        add: Value → the operation that joins two contributions to it, for those that are no sums.

    Returns:
        values: The values that the schedule wants on the devices of this process.
        trace: What was measured: complete without a carrier and on rank 0, else the own part.

    Raises:
        OperatorError: If a tensor or a function is missing, a value has another size than in the schedule, or is not
            finite.
        RankLost: If a process is lost meanwhile.
    """
    with nullcontext() if carrier is None else carrier.telling():
        if not isinstance(schedule, Schedule):
            raise OperatorError(text("operators.schedule", given=type(schedule).__name__))
        mine = set(schedule.nodes if carrier is None else carrier.playing(schedule))
        device = Devices(schedule, compute, mine, add)
        for node, name in schedule.holds:
            if node in mine:
                if (node, name) not in tensors:
                    raise OperatorError(text("operators.missing", node=node, value=name))
                device.put(node, name, tensors[node, name].detach())
        if carrier is not None and carrier.backend != "gloo":
            raise OperatorError(text("operators.gloo"))
    if carrier is None:
        executed = device.execute(None, Here().load)
    else:
        ranks = carrier.ranks(schedule)
        load = partial(carrier.prepare, ranks=ranks)
        executed = carrier.exchange(lambda messages: device.execute(_Mail(messages, ranks), load))
    wanted = {(node, name): device.values[node, name] for node, name in schedule.wants if node in mine}
    return wanted, measured(schedule, executed, device.sizes, carrier)


def measured(
    schedule: Schedule, executed: Executed, sizes: Mapping[tuple[int, int], int], carrier: Processes | None
) -> Trace:
    """Return the trace of a schedule: complete without a carrier and on rank 0, else the own part.

    Args:
        schedule: What was run.
        executed: The times of this process.
        sizes: (number of an act, number of its message) → bytes, for all messages that this process sent.
        carrier: As for :func:`run`.
    """
    if carrier is None:
        times, origin = Here().gather_times(schedule, executed), f"cpu ×{len(schedule.nodes)}"
    else:
        times, origin = carrier.gather_times(schedule, executed), carrier.describe(schedule, {})
        rows = carrier.all_gather([[number, i, size] for (number, i), size in sizes.items()])
        sizes = {(number, i): size for sent in rows for number, i, size in sent}
    return Trace(origin, schedule, pairs(schedule), 0, tuple(_events(schedule, times, sizes)))


def in_list(number: int, plan: Plan, executed: Executed) -> list[Timed]:
    """Return the times of a plan's messages as those of an act of a schedule, where they are numbered one by one."""
    first = [*accumulate((len(sends(step)) for step in plan.steps), initial=0)]  # message of each step
    return [Timed(number, first[step - 1] + index, start, end) for step, index, start, end in executed.acts]


class Devices:
    """The devices of this process (``mine``), and their values. They do their acts in the order of the list."""

    def __init__(
        self, schedule: Schedule, compute: Mapping[str, Callable], mine: set[str], add: Mapping[str, Callable] | None
    ):
        self.schedule, self.compute, self.mine, self.add = schedule, compute, mine, add or {}
        self.values: dict[tuple[str, str], Tensor] = {}
        self.sizes: dict[tuple[int, int], int] = {}  # (act, number of its message) → bytes sent
        for task in schedule.tasks:
            if task.node in mine and not {str(task), task.name + task.of} & {*compute}:
                raise OperatorError(text("operators.no-function", task=task, name=repr(task.name + task.of)))

    def put(self, node: str, name: str, tensor: Tensor) -> None:
        """Keep a value that is new on a device, or add it to what is there. A size of 0 in the schedule fits all."""
        size, wanted = tensor.numel() * tensor.itemsize, self.schedule.size(name)
        if wanted and size != wanted:
            raise OperatorError(text("operators.size", node=node, value=name, size=size, wanted=wanted))
        there = self.values.get((node, name))
        # Not in place: others may have it, too.
        self.values[node, name] = tensor if there is None else self.add.get(name, torch.add)(there, tensor)

    @torch.no_grad()
    def execute(self, mail: "_Mail | None", load: Callable[[Program], Callable[[], Executed]]) -> Executed:
        """Do the acts of these devices; ``load`` makes a program of a carrier from a plan."""
        begun, timed = time.perf_counter(), []
        for number, act in enumerate(self.schedule.acts, 1):
            start = time.perf_counter()
            if mail is not None:
                mail.at(number)
            if isinstance(act, Collective) and self.mine & {*act.plan.nodes}:
                timed += self._all_reduce(number, act, load)
            elif isinstance(act, Task) and act.node in self.mine:
                self._compute(act)
                timed.append(Timed(number, 0, start, time.perf_counter()))
            elif isinstance(act, Send) and self.mine & {act.src, act.dst}:
                self._send(number, act, mail)
                timed.append(Timed(number, 0, start, time.perf_counter()))
        if mail is not None:
            mail.flush()
        return Executed(begun, timed)

    def _compute(self, task: Task) -> None:
        function = self.compute.get(str(task)) or self.compute[task.name + task.of]
        made = function(*[self.values[task.node, name] for name in task.reads])
        made, wanted = (made,) if isinstance(made, Tensor) else made, made_by(task)
        if len(made) != len(wanted):
            raise OperatorError(text("operators.made", task=task, wanted=len(wanted), given=len(made)))
        for (name, _), tensor in zip(wanted, made, strict=True):
            if not torch.isfinite(tensor).all():
                raise OperatorError(text("operators.not-finite", task=task, value=name))
            self.put(task.node, name, tensor)
        for name in task.frees:
            del self.values[task.node, name]

    def _send(self, number: int, act: Send, mail: "_Mail | None") -> None:
        if act.src in self.mine:
            tensor = self.values.pop((act.src, act.key)) if act.op == "move" else self.values[act.src, act.key]
            self.sizes[number, 0] = tensor.numel() * tensor.itemsize
            if act.dst not in self.mine:
                mail.send(number, tensor.contiguous(), act.dst)
                return
        else:
            tensor = mail.receive(number, act.src)
        if act.op == "copy":
            self.values.pop((act.dst, act.key), None)
        self.put(act.dst, act.key, tensor)

    def _all_reduce(self, number: int, act: Collective, load: Callable) -> list[Timed]:
        nodes = [node for node in act.plan.nodes if node in self.mine]
        if any(act.holdings(node) != [act.value] or act.results(node) != [act.value] for node in nodes):
            raise OperatorError(text("operators.all-reduce", what=act))
        buffers = {node: self.values[node, act.value].flatten().clone() for node in nodes}
        program = Program(act.plan, buffers, {}, {}, SUM, frozenset(nodes))
        executed = load(program)()
        for node, buffer in buffers.items():
            self.values[node, act.value] = buffer.view(self.values[node, act.value].shape)
        for i, send in enumerate(messages_of(act)):
            if send.src in self.mine:
                part = program.slices[send.key]
                self.sizes[number, i] = (part.stop - part.start) * program.like.itemsize
        return in_list(number, act.plan, executed)


class _Mail:
    """The messages of one process: each tensor follows a header with its type and shape."""

    FIRST = 1 << 30  # tags of collectives are lower

    def __init__(self, messages: Messages, ranks: Mapping[str, int]):
        self.messages, self.ranks, self.at, self.flush = messages, ranks, messages.at, messages.flush

    def send(self, number: int, tensor: Tensor, node: str) -> None:
        self.messages.announce(tensor, self.ranks[node], self.FIRST + 2 * number)
        self.messages.send(tensor, self.ranks[node], self.FIRST + 2 * number + 1)

    def receive(self, number: int, node: str) -> Tensor:
        dtype, shape = self.messages.announced(self.ranks[node], self.FIRST + 2 * number)
        tensor = torch.empty(shape, dtype=dtype)
        self.messages.receive(tensor, self.ranks[node], self.FIRST + 2 * number + 1)
        return tensor


def _events(schedule: Schedule, times: Sequence[Timed], sizes: Mapping[tuple[int, int], int]) -> list[Event]:
    events = []
    for number, i, start, end in sorted(times):
        act = schedule.acts[number - 1]
        if isinstance(act, Task):
            label = act.label.removeprefix(act.name)
            events.append(Event("task", number, start, end, act.node, act.node, label, act.name, 0))
        elif (number, i) in sizes:
            send = messages_of(act)[i]
            key = f"{act.value}/{send.key}" if isinstance(act, Collective) else send.key
            events.append(Event("send", number, start, end, send.src, send.dst, key, send.op, sizes[number, i]))
    return events

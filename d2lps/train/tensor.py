"""Cut the matrices of a layer among devices, with two autograd functions that add up: tensor parallelism.

>>> torch.manual_seed(0) and None
>>> whole = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
>>> group = Group(["gpu0", "gpu1"])
>>> up, down = ColumnLinear(whole["up"], group), RowLinear(whole["down"], group)
>>> x = torch.randn(3, 4)
>>> y = down([gelu(part) for part in up(group.to_all(x))])
>>> torch.allclose(y, whole["down"](gelu(whole["up"](x))), atol=1e-5), len(group.traces)
(True, 1)

A matrix that is cut in columns needs its whole input, and gives a part of its output. One that is cut in rows needs a
part of its input, and gives a partial sum of its output. One after the other, they need one sum in the forward pass.
The backward pass needs one more: each device has a part of the gradient of the input that all of them read. These are
the functions f and g of Megatron-LM (Shoeybi et al., 2019): :meth:`Group.to_all` and :meth:`Group.from_all`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import gelu  # noqa: F401 – for the example

from d2lps.algorithms.rings import ring
from d2lps.carriers.execute import run
from d2lps.carriers.processes import Processes
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.parse import names
from d2lps.trace import Trace

__all__ = ["ColumnLinear", "CutModule", "Group", "RowLinear", "SplitError", "clip", "cut_gpt", "cut_linear"]


class SplitError(Brief, ValueError):
    """A layer whose heads or columns cannot be dealt out, or whose parts would not make up the whole."""


class Group:
    """Devices that cut matrices among them.

    Args:
        devices: Their names.
        carrier: One process per device. Without it all devices are in this process: a list has what each of them would
            have.

    Attributes:
        traces (list of Trace): Of all all-reduces so far.
    """

    def __init__(self, devices: Iterable[str], carrier: Processes | None = None):
        self.devices, self.carrier = names(devices), carrier
        self.plan = ring(self.devices) if len(self.devices) > 1 else None
        self.mine = self.devices if carrier is None or self.plan is None else carrier.playing(self.plan)
        self.traces: list[Trace] = []

    def cut(self, tensor: Tensor, dim: int, pieces: int | None = None) -> list[Tensor]:
        """Return the parts of a tensor for the devices of this process; ``pieces``, such as heads, stay whole."""
        pieces, count = tensor.shape[dim] if pieces is None else pieces, len(self.devices)
        if pieces % count:
            raise SplitError(text("split.pieces", pieces=pieces, devices=count))
        parts = dict(zip(self.devices, tensor.detach().chunk(count, dim), strict=True))
        return [parts[node].clone() for node in self.mine]

    def all_reduce(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum of the parts of all devices."""
        if self.plan is None:
            return parts[0]
        buffers = {node: part.to_dense().flatten().clone() for node, part in zip(self.mine, parts, strict=True)}
        self.traces.append(run(self.plan, buffers, self.carrier))
        return buffers[self.mine[0]].view(parts[0].shape)

    def to_all(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return x for each device; its gradient is the sum of theirs (Megatron's f)."""
        return _ToAll.apply(self, x)

    def from_all(self, parts: Iterable[Tensor]) -> Tensor:
        """Return the sum of the parts of all devices; the gradient of each part is that of the sum (Megatron's g)."""
        return _FromAll.apply(self, *parts)


class _ToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group: Group, x: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(x.clone() for _ in group.mine)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        return None, ctx.group.all_reduce(gradients)


class _FromAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group: Group, *parts: Tensor) -> Tensor:
        ctx.count = len(parts)
        return group.all_reduce(parts)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return None, *[gradient] * ctx.count


class _Part(nn.Linear):
    """A part of a linear layer; by its type, :func:`clip` knows that other devices have other parameters here."""


def cut_linear(whole: nn.Linear, group: Group, dim: int, pieces: int | None = None) -> nn.ModuleList:
    """Return the part of a linear layer of each device: of the outputs (dim 0), or of the inputs, without the bias."""
    if type(whole) is not nn.Linear or any(hooks for name, hooks in vars(whole).items() if name.endswith("_hooks")):
        raise SplitError(text("split.layer", layer=type(whole).__name__))
    has_bias = dim == 0 and whole.bias is not None
    biases = group.cut(whole.bias, 0, pieces) if has_bias else [None] * len(group.mine)
    parts = nn.ModuleList()
    for weight, bias in zip(group.cut(whole.weight, dim, pieces), biases, strict=True):
        part = _Part(weight.shape[1], weight.shape[0], has_bias, device="meta")  # no room for other weights
        part.weight = nn.Parameter(weight, whole.weight.requires_grad)
        part.bias = nn.Parameter(bias, whole.bias.requires_grad) if has_bias else None
        parts.append(part.train(whole.training))
    return parts


class ColumnLinear(nn.Module):
    """A linear layer; each device makes some columns of its output."""

    def __init__(self, whole: nn.Linear, group: Group, pieces: int | None = None):
        super().__init__()
        self.parts, self.training = cut_linear(whole, group, 0, pieces), whole.training

    def forward(self, copies: Sequence[Tensor]) -> list[Tensor]:
        """Return what each device makes of its copy of the input."""
        return [part(x) for part, x in zip(self.parts, copies, strict=True)]


class RowLinear(nn.Module):
    """A linear layer; each device has some columns of its input. The bias is added once, to the sum."""

    def __init__(self, whole: nn.Linear, group: Group, pieces: int | None = None):
        super().__init__()
        self.group, self.parts, self.training = group, cut_linear(whole, group, 1, pieces), whole.training
        self.bias = deepcopy(whole.bias)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the whole output, from the part of the input of each device."""
        y = self.group.from_all([part(x) for part, x in zip(self.parts, inputs, strict=True)])
        return y if self.bias is None else y + self.bias


class CutModule(nn.Module):
    """A module that begins with columns and ends with rows: its parts, one per device, make partial sums.

    What lies between must compute each piece of the columns by itself. All devices have a copy of its other
    parameters, such as the scale of a normalization of each head: the gradients of the copies are added up. What
    devices would compute differently raises SplitError: random numbers, changed buffers, more columns than are there.

    Args:
        whole: It is copied for each device, with parts of its matrices.
        group: The devices.
        columns: Names of its linear layers that read the input.
        row: Name of its linear layer that makes the output.
        pieces: How many equal pieces of these matrices must stay whole, such as the heads of attention.
    """

    def __init__(self, whole: nn.Module, group: Group, columns: Sequence[str], row: str, pieces: int | None = None):
        super().__init__()
        _require_alone(whole, [getattr(whole, name) for name in (*columns, row)])
        self.group, self.training = group, whole.training
        cut = {name: cut_linear(getattr(whole, name), group, int(name == row), pieces) for name in (*columns, row)}
        self.bias = deepcopy(getattr(whole, row).bias)
        rest = deepcopy(whole, {id(getattr(whole, name)): nn.Identity() for name in cut})
        shared = {id(parameter): parameter for parameter in rest.parameters()}  # by the parts of this process
        members = [module.named_parameters(at, False, False) for at, module in rest.named_modules()]
        self.copied = [name for each in members for name, _ in each]  # tied ones under each of their names
        self.parts = nn.ModuleList(deepcopy(rest, {**shared}) for _ in group.mine)
        for name, layers in cut.items():
            for part, layer in zip(self.parts, layers, strict=True):
                setattr(part, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of what the parts make of x, and the bias."""
        own = {name: self.parts[0].get_parameter(name) for name in self.copied}
        copies = {parameter: self.group.to_all(parameter) for parameter in own.values()}
        sums = []
        for i, (part, mine) in enumerate(zip(self.parts, self.group.to_all(x), strict=True)):
            copied, before = {name: copies[own[name]][i] for name in own}, _state(part, x)
            try:
                sums.append(functional_call(part, copied, mine, tie_weights=False))  # True breaks modules used twice
            except RuntimeError as error:
                raise SplitError(text("split.part", module=type(part).__name__, why=error)) from error
            if len(self.group.devices) > 1 and _state(part, x) != before:
                raise SplitError(text("split.own", module=type(part).__name__))
        y = self.group.from_all(sums)
        return y if self.bias is None else y + self.bias


def _state(part: nn.Module, x: Tensor) -> list:
    drawn = torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()
    return [drawn.cpu().numpy().tobytes(), *(buffer._version for buffer in part.buffers())]


def _require_alone(net: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Raise SplitError if a parameter of these layers of ``net`` occurs in another one, too, or one layer twice."""
    places = [*layers, *({*net.modules()} - {*layers})]
    uses = Counter(parameter for module in places for parameter in module.parameters(recurse=False))
    cut = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    for name, parameter in net.named_parameters():
        if parameter in cut and uses[parameter] > 1:
            raise SplitError(text("split.tied", name=name))


def clip(net: nn.Module, group: Group, max_norm: float) -> float:
    """Scale the gradients of a model so that their norm over all devices is ``max_norm`` at most; return that before.

    Parts of matrices count on every device, copied parameters once. All processes call this function together.
    """
    cut = {parameter for part in net.modules() if isinstance(part, _Part) for parameter in part.parameters()}
    squares, ready = torch.zeros(2), [parameter for parameter in net.parameters() if parameter.grad is not None]
    for parameter in ready:
        squares[int(parameter in cut)] += torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).cpu() ** 2
    others = [torch.zeros(1)] * (len(group.mine) - 1)  # the parts of all devices of this process are in the first
    norm = float((squares[0] + group.all_reduce([squares[1:], *others])).sqrt())
    for parameter in ready:
        parameter.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
    return norm


def cut_gpt(net: nn.Module, group: Group) -> nn.Module:
    """Return a copy of a GPT whose blocks are cut: attention by heads, the perceptron by columns of its hidden layer.

    Args:
        net (d2lps.train.gpt.GPT): The whole model, the same on all processes.
        group: The devices.

    Returns:
        The same function; each block needs 2 all-reduces forward and 2 backward.

    Raises:
        SplitError: If the devices cannot have equally many heads, or a parameter in a block occurs in several layers.
    """
    net = deepcopy(net)
    blocks = [block for block in net.modules() if hasattr(block, "attention") and hasattr(block, "perceptron")]
    _require_alone(net, [m for block in blocks for m in (*block.attention.modules(), *block.perceptron.modules())])
    for block in blocks:
        heads = block.attention.query.out_features // block.attention.size
        block.attention = CutModule(block.attention, group, ["query", "key", "value"], "out", heads)
        block.perceptron = CutModule(block.perceptron, group, ["up"], "down")
    return net

"""Layers in flat buffers, whose memory comes and goes: what a device keeps of a model that is shared out.

>>> first, second = layers_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
>>> layer = Layer(first, slice(0, 5), stage=3, optimizer=torch.optim.AdamW)
>>> layer.own.numel(), layer.weights.numel(), layer.held()
(5, 9, 92)
>>> free(layer.weights), layer.held()
(None, 56)

The weights of a layer are views of one buffer, and so are its gradients. To free a layer is to free its buffer: the
views remain, also those that autograd has saved for the backward pass, and are valid again once the buffer is back.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from d2lps.messages import text
from d2lps.messages.raised import Brief

__all__ = ["Layer", "ShardError", "allocate", "counts_of", "free", "layers_of"]

ELEMENTWISE = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop


class ShardError(Brief, ValueError):
    """A model or an optimizer that cannot be shared out, or a loss that is no number."""


def layers_of(net: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: modules of a row, each with those after it that have no parameters."""
    groups: list[list[nn.Module]] = [[]]
    for module in net if isinstance(net, nn.Sequential) else [net]:
        if [*module.parameters()] and [*nn.ModuleList(groups[-1]).parameters()]:
            groups.append([])
        groups[-1].append(module)
    return [nn.Sequential(*group) for group in groups]


def counts_of(net: nn.Module) -> list[int]:
    """Return the number of parameters of each layer. Raises ShardError if they cannot lie in flat buffers."""
    layers = [[*layer.parameters()] for layer in layers_of(net)]
    if not layers[0]:
        raise ShardError(text("shard.nothing"))
    if len({*sum(layers, [])}) < len(sum(layers, [])):
        raise ShardError(text("shard.shared"))
    if len(types := {str(parameter.dtype) for parameter in net.parameters()}) > 1:
        raise ShardError(text("shard.types", types=" ".join(sorted(types))))
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise ShardError(text("shard.frozen"))
    return [sum(parameter.numel() for parameter in layer) for layer in layers]


class Layer:
    """A layer on one device: whole weights and gradients, whose memory may come and go, and the part it updates."""

    def __init__(self, module: nn.Module, cut: slice, stage: int, optimizer: Callable):
        self.module, self.part, self.cut, self.stage = module, cut, cut if stage else slice(None), stage
        parameters = [*module.parameters()]
        self.weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.gradients = torch.zeros_like(self.weights)
        sizes = [parameter.numel() for parameter in parameters]
        views = zip(parameters, self.weights.split(sizes), self.gradients.split(sizes), strict=True)
        for parameter, weights, gradients in views:
            parameter.data, parameter.grad = weights.view_as(parameter), gradients.view_as(parameter)
        frozen = torch.cat([torch.full((p.numel(),), not p.requires_grad) for p in parameters])
        self.frozen = frozen[self.cut] if frozen.any() else None
        self.own = nn.Parameter(self.weights[self.cut].clone() if stage == 3 else self.weights[self.cut])
        self.optimizer = optimizer([self.own])
        if type(self.optimizer) not in ELEMENTWISE:  # a subclass may do anything, such as clip by the norm of a part
            known = " ".join(kind.__name__ for kind in ELEMENTWISE)
            raise ShardError(text("shard.optimizer", given=type(self.optimizer).__name__, known=known))

    def begin_gather(self) -> None:
        """Put the own part where the whole layer will be. In stages 1 and 2 it is there."""
        if self.stage == 3:
            allocate(self.weights)
            self.weights[self.cut] = self.own.detach()

    def begin_backward(self) -> None:
        """Make room for gradients, unless there are those of other micro-batches."""
        if not self.gradients.untyped_storage().nbytes():
            allocate(self.gradients)
            self.gradients.zero_()

    def end_reduce(self) -> None:
        """Take the own part of the sum; in stages 2 and 3 out of the buffer, and added to other micro-batches."""
        part = self.gradients[self.cut]
        if self.stage >= 2:
            part = part.clone() if self.own.grad is None else self.own.grad.add_(part)
        self.own.grad = part

    def gradient(self) -> Tensor:
        """Return the gradient that the update uses, once that of the whole batch is there."""
        if self.stage == 0:
            self.end_reduce()
        return self.own.grad

    @torch.no_grad()
    def update(self) -> None:
        """Do one step of the optimizer with the own part."""
        self.gradient()
        before = None if self.frozen is None else self.own[self.frozen]
        self.optimizer.step()
        if before is not None:
            self.own[self.frozen] = before

    def held(self) -> int:
        """Return the bytes of all weights, gradients and states that are there."""
        states = self.optimizer.state.get(self.own, {}).values()
        tensors = [self.weights, self.gradients, self.own, self.own.grad, *states]
        vectors = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.dim()]  # not a count of steps
        storages = [tensor.untyped_storage() for tensor in vectors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def free(buffer: Tensor) -> None:
    """Give the memory of a buffer back; its views remain, but must not be read."""
    buffer.untyped_storage().resize_(0)


def allocate(buffer: Tensor) -> None:
    """Get memory for a buffer, and thus for its views."""
    buffer.untyped_storage().resize_(buffer.numel() * buffer.itemsize)

"""The memory of one training step of a real module, counted tensor by tensor."""

import copy
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def precision(module: nn.Module) -> str:
    """Return ``"pure-bf16"`` if the first weight has 2 bytes per number, and ``"float32"`` otherwise."""
    return "pure-bf16" if next(module.parameters(), torch.empty(0)).element_size() == 2 else "float32"


def precise(module: nn.Module) -> int:
    """Return the bytes per number of statistics: on a CPU those of a weight, on a GPU 4."""
    weight = next(module.parameters(), torch.empty(0))
    return weight.element_size() if weight.device.type == "cpu" else 4


def memory(module: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, int]:
    """Return the bytes of weights, gradients, optimizer and saved activations of a step with AdamW.

    The step is done by a copy, so the module's weights, gradients and buffers stay as they are.
    """
    net = copy.deepcopy(module)
    net.zero_grad()
    optimizer = torch.optim.AdamW(net.parameters())
    saved = activations(net, lambda: _backward(net, inputs, labels))
    optimizer.step()
    parameters = [*net.parameters()]
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    kept = {
        "weights": parameters,
        "gradients": [weight.grad for weight in parameters if weight.grad is not None],
        "optimizer": state,
    }
    return {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in kept.items()} | saved


def _backward(net: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    output = net(inputs)
    cross_entropy(output.flatten(0, -2), labels.flatten()).backward()


def activations(net: nn.Module, step: Callable[[], object]) -> dict[str, int]:
    """Return the bytes that autograd saves while ``step()`` runs, by kind.

    Each storage counts once, for the module that saves it first; weights and whole numbers do not count. The kind is
    the class of the innermost module that is not torch's own: ``attention``; ``normalization`` for a normalization
    beside such modules; and ``output`` for the model's own end and its loss.
    """
    stack: list[nn.Module] = []
    seen = {weight.untyped_storage().data_ptr() for weight in net.parameters()}
    sizes: dict[str, int] = defaultdict(int)

    def kind() -> str:
        own = [module for module in stack[1:] if not type(module).__module__.startswith("torch.")]
        if not own:
            return "output"
        normalizing = any(isinstance(module, nn.LayerNorm | nn.RMSNorm) for module in stack)
        dropping = any(isinstance(module, nn.Dropout) for module in stack)
        return "normalization" if normalizing else "dropout" if dropping else type(own[-1]).__name__.lower()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and (tensor.is_floating_point() or tensor.dtype == torch.bool):
            seen.add(storage.data_ptr())
            held.append(storage)  # so that no later tensor gets the same address
            sizes[kind()] += storage.nbytes()
        return tensor

    held: list = []
    handles = []
    for module in net.modules():  # the hooks return None: anything else would replace input or output
        handles.append(module.register_forward_pre_hook(lambda module, _: stack.append(module)))
        handles.append(module.register_forward_hook(lambda *_: stack.__delitem__(-1)))
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step()
    finally:
        for handle in handles:
            handle.remove()
    return dict(sizes)

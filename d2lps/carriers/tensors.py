"""Whether tensors fit a plan: checked before the first byte moves, so that what is refused stays as it was."""

from collections.abc import Mapping, MutableMapping, Sequence

import torch

from d2lps.plan.acts import updates
from d2lps.plan.plan import Plan


class TensorError(ValueError):
    """Tensors or devices that a plan cannot run on: its sentence names the node and says what would fit."""


def require_fitting(
    plan: Plan, tensors: Mapping, places: Mapping[str, torch.device] | None, playing: Sequence[str] | None = None
) -> list[torch.Tensor]:
    """The buffers of the nodes played here (all by default); TensorError unless each has a flat one, all alike."""
    playing = plan.nodes if playing is None else playing
    if not isinstance(tensors, Mapping):
        raise TensorError(f"tensors map the name of each node to its flat tensor; a {type(tensors).__name__} is given")
    first = None
    for node in playing:
        if node not in tensors:
            raise TensorError(f"node {node} has no tensor: give one for each of {' '.join(playing)}")
        tensor = tensors[node]
        _require_flat(f"{node}'s tensor", tensor)
        first = tensor if first is None else first
        if tensor.numel() != first.numel():
            raise TensorError(
                f"{node}'s tensor has {tensor.numel()} elements, {playing[0]}'s has {first.numel()}: "
                "all gradients are of one size"
            )
        if tensor.dtype != first.dtype:
            raise TensorError(
                f"{node}'s tensor is {tensor.dtype}, {playing[0]}'s is {first.dtype}: all gradients are of one dtype"
            )
        if places and tensor.device != places[node]:
            raise TensorError(
                f"{node}'s tensor is on {tensor.device}, but the carrier has {node} on {places[node]}: "
                f"move it there with .to('{places[node]}')"
            )
    unknown = [node for node in tensors if node not in playing]
    if unknown:
        where = "is not in the plan" if unknown[0] not in plan.nodes else "is not played by this process"
        raise TensorError(f"a tensor is given for {unknown[0]!r}, which {where} (nodes: {' '.join(playing)})")
    buffers = {node: tensors[node] for node in playing}
    _require_apart(buffers)
    return list(buffers.values())


def require_updatable(
    plan: Plan, tensors: Mapping, weights: Mapping, memory: MutableMapping, playing: Sequence[str] | None = None
) -> None:
    """TensorError unless every node that updates has weights like its gradient, and a memory that fits them."""
    if not isinstance(weights, Mapping) or not isinstance(memory, MutableMapping):
        wrong = weights if not isinstance(weights, Mapping) else memory
        raise TensorError(f"weights and memory are mappings; a {type(wrong).__name__} is given")
    needed = {}
    playing = plan.nodes if playing is None else playing
    parts = plan.slices(tensors[playing[0]].numel())
    for act in (act for step in plan.steps for act in updates(step) if act.node in playing):
        weight, gradient = weights.get(act.node), tensors[act.node]
        if weight is None:
            raise TensorError(f"{act.node} updates key {act.key}: give its weights, weights={{'{act.node}': …}}")
        _require_flat(f"{act.node}'s weight tensor", weight)
        for what, of_weight, of_gradient in (
            ("size", weight.numel(), gradient.numel()),
            ("dtype", weight.dtype, gradient.dtype),
            ("device", weight.device, gradient.device),
        ):
            if of_weight != of_gradient:
                raise TensorError(f"{act.node}'s weights are of {what} {of_weight}, its gradient of {of_gradient}")
        if not weight.dtype.is_floating_point:
            raise TensorError(f"{act.node}'s weights are {weight.dtype}: {act.rule} needs floating point")
        needed[f"{act.node}'s weights"] = weight
        for name, kept in _remembered(memory, act.node, act.key).items():
            like = widened(weight[parts[act.key]])
            if (kept.shape, kept.dtype, kept.device) != (like.shape, like.dtype, like.device):
                raise TensorError(
                    f"what {act.node} remembers of key {act.key} does not fit its weights ({name}: "
                    f"{tuple(kept.shape)}, {kept.dtype}): begin with memory={{}}"
                )
            needed[f"{act.node}'s {name} of {act.key}"] = kept
    _require_apart({node: tensors[node] for node in playing} | needed)


def widened(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` itself, or a float32 copy of half precision, in which a rule computes.

    The vector and scalar kernels of half precision round differently: the bits would depend on where the buffer is cut.
    """
    return weight.float() if weight.element_size() < 4 else weight


def _remembered(memory: Mapping, node: str, key: str) -> Mapping[str, torch.Tensor]:
    kept = memory.get((node, key), {})
    if not isinstance(kept, Mapping) or not all(isinstance(value, torch.Tensor | int) for value in kept.values()):
        raise TensorError(f"what {node} remembers of key {key} is not what a rule left there: begin with memory={{}}")
    return {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}


def _require_flat(what: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(f"{what} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.dim() != 1:
        raise TensorError(f"{what} has shape {tuple(tensor.shape)}: a buffer is flat, make it so with .reshape(-1)")
    if tensor.layout != torch.strided:
        raise TensorError(f"{what} is sparse: make it dense with .to_dense()")
    if tensor.is_meta:
        raise TensorError(f"{what} is on the device meta, which holds no values")
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise TensorError(f"{what} was made in inference mode and cannot be written to: make it anew with .clone()")
    if tensor.is_complex():
        raise TensorError(f"{what} is {tensor.dtype}: gradients are floating point or integers")
    if tensor.numel() > 1 and tensor.stride(0) == 0:
        raise TensorError(f"{what} repeats one element in memory: make it a buffer of its own with .clone()")


def _require_apart(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse buffers that overlap in memory: writing to one would change the other."""
    spans = []
    for name, tensor in tensors.items():
        if tensor.numel():
            start = tensor.data_ptr()
            end = start + ((tensor.numel() - 1) * tensor.stride(0) + 1) * tensor.element_size()
            spans.append((str(tensor.device), start, end, name))
    spans.sort(key=lambda span: span[:2])
    for (device, _, end, name), (next_device, start, _, next_name) in zip(spans, spans[1:], strict=False):
        if device == next_device and start < end:
            raise TensorError(f"{name} and {next_name} share memory: give each a buffer of its own")

"""Checks that tensors fit a plan, made before the first byte moves, so that refused tensors stay unchanged."""

from collections.abc import Mapping, MutableMapping, Sequence

import torch

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.plan.acts import updates
from d2lps.plan.plan import Plan


class TensorError(Brief, ValueError):
    """Tensors or devices that a plan cannot run on; the message names the node and says what would fit."""


def require_fitting(
    plan: Plan, tensors: Mapping, places: Mapping[str, torch.device] | None, playing: Sequence[str]
) -> list[torch.Tensor]:
    """Return the buffers of the nodes played here; raise TensorError unless each has a flat one and all are alike."""
    if not isinstance(tensors, Mapping):
        raise TensorError(text("tensor.mapping", given=type(tensors).__name__))
    first = None
    for node in playing:
        if node not in tensors:
            raise TensorError(text("tensor.missing", node=node, nodes=" ".join(playing)))
        tensor = tensors[node]
        _require_flat(text("tensor.of-node", node=node), tensor)
        first = tensor if first is None else first
        if tensor.numel() != first.numel():
            sizes = {"size": tensor.numel(), "first": playing[0], "other": first.numel()}
            raise TensorError(text("tensor.size", node=node, **sizes))
        if tensor.dtype != first.dtype:
            dtypes = {"dtype": tensor.dtype, "first": playing[0], "other": first.dtype}
            raise TensorError(text("tensor.dtype", node=node, **dtypes))
        if places and tensor.device != places[node]:
            raise TensorError(text("tensor.device", node=node, device=tensor.device, wanted=places[node]))
    unknown = [node for node in tensors if node not in playing]
    if unknown:
        key = "not-played" if unknown[0] in plan.nodes else "not-in-plan"
        raise TensorError(text(f"tensor.{key}", node=repr(unknown[0]), nodes=" ".join(playing)))
    buffers = {node: tensors[node] for node in playing}
    _require_apart(buffers)
    return list(buffers.values())


def require_updatable(
    plan: Plan, tensors: Mapping, weights: Mapping, memory: MutableMapping, playing: Sequence[str]
) -> None:
    """Raise TensorError unless every node that updates has weights like its gradient, and a memory that fits them."""
    if not isinstance(weights, Mapping) or not isinstance(memory, MutableMapping):
        wrong = weights if not isinstance(weights, Mapping) else memory
        raise TensorError(text("tensor.weights-wanted", given=type(wrong).__name__))
    needed = {}
    parts = plan.slices(tensors[playing[0]].numel())
    for act in (act for step in plan.steps for act in updates(step) if act.node in playing):
        weight, gradient = weights.get(act.node), tensors[act.node]
        if weight is None:
            raise TensorError(text("tensor.no-weights", node=act.node, key=act.key))
        _require_flat(text("tensor.weights-of", node=act.node), weight)
        for aspect, of_weight, of_gradient in (
            ("size", weight.numel(), gradient.numel()),
            ("dtype", weight.dtype, gradient.dtype),
            ("device", weight.device, gradient.device),
        ):
            if of_weight != of_gradient:
                values = {"what": text(f"tensor.what.{aspect}"), "weight": of_weight, "gradient": of_gradient}
                raise TensorError(text("tensor.unlike-weights", node=act.node, **values))
        if not weight.dtype.is_floating_point:
            raise TensorError(text("tensor.whole-weights", node=act.node, dtype=weight.dtype, rule=act.rule))
        needed[f"{act.node}'s weights"] = weight
        for name, state in _remembered(memory, act.node, act.key).items():
            like = widened(weight[parts[act.key]])
            if (state.shape, state.dtype, state.device) != (like.shape, like.dtype, like.device):
                remembered = f"{name}: {tuple(state.shape)}, {state.dtype}"
                raise TensorError(text("tensor.old-memory", node=act.node, key=act.key, what=remembered))
            needed[f"{act.node}'s {name} of {act.key}"] = state
    _require_apart({node: tensors[node] for node in playing} | needed)


def widened(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight`` itself, or a float32 copy of half precision for the optimizer to compute in.

    The vector and scalar kernels of half precision round differently: the bits would depend on where the buffer is cut.
    """
    return weight.float() if weight.element_size() < 4 else weight


def _remembered(memory: Mapping, node: str, key: str) -> Mapping[str, torch.Tensor]:
    state = memory.get((node, key), {})
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor | int) for value in state.values()):
        raise TensorError(text("tensor.strange-memory", node=node, key=key))
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _require_flat(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TensorError(text("tensor.no-tensor", what=name, given=type(tensor).__name__))
    problems = {
        "not-flat": tensor.dim() != 1,
        "sparse": tensor.layout != torch.strided,
        "meta": tensor.is_meta,
        "inference": tensor.is_inference() and not torch.is_inference_mode_enabled(),
        "complex": tensor.is_complex(),
    }
    for key, present in problems.items():
        if present:
            raise TensorError(text(f"tensor.{key}", what=name, shape=tuple(tensor.shape), dtype=tensor.dtype))
    if tensor.numel() > 1 and tensor.stride(0) == 0:  # only strided tensors have strides
        raise TensorError(text("tensor.repeated", what=name))


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
            raise TensorError(text("tensor.overlap", one=name, other=next_name))

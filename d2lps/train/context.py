"""Attention whose tokens are cut among devices, on real tensors: forward and backward by hand, in three ways.

>>> torch.manual_seed(0) and None
>>> q, k, v = torch.randn(3, 2, 8, 4).unbind()
>>> results, trace = attend(["gpu0", "gpu1"], "ring", q, k, v)
>>> right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
>>> torch.allclose(torch.cat([each["o"] for each in results.values()], 1), right, atol=1e-5)
True

``part`` is what a device knows of the softmax of its queries from some keys: per query the maximum of the scores, the
sum of the weights, and the weighted sum of values. ``merge`` joins two of them. The schedules are those of
:func:`d2lps.schedule.attention`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from math import sqrt

import torch
from torch import Tensor

from d2lps.carriers.processes import Processes
from d2lps.plan.parse import names
from d2lps.schedule import attention, token_places
from d2lps.trace import Trace
from d2lps.train import operators

__all__ = ["attend", "gradients", "merge", "output", "part"]


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    k = k.repeat_interleave(len(q) // len(k), 0)  # a head of keys may serve several of queries
    return (q @ k.mT / sqrt(q.shape[-1])).masked_fill(~seen, float("-inf"))


def part(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Return the part of attention that these keys contribute: for each query max, sum, and weighted sum.

    Args:
        q, k, v: Of shape (heads, tokens, size); keys and values may have fewer heads.
        seen: Which query sees which key.

    Returns:
        Of shape (heads, queries, 2 + size). The maximum of a query that sees no key is the least number there is.
    """
    scores = _scores(q, k, seen)
    m = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)  # −∞ − (−∞) is no number
    weights = torch.exp(scores - m)
    return torch.cat([m, weights.sum(-1, keepdim=True), weights @ v.repeat_interleave(len(q) // len(v), 0)], -1)


def merge(one: Tensor, other: Tensor) -> Tensor:
    """Return the part of attention that the keys of both contribute: associative and commutative, up to rounding."""
    m = torch.maximum(one[..., :1], other[..., :1])
    sums = sum(torch.exp(each[..., :1] - m) * each[..., 1:] for each in (one, other))
    return torch.cat([m, sums], -1)


def output(whole: Tensor) -> Tensor:
    """Return the output of attention from the part that all keys contribute."""
    return whole[..., 2:] / whole[..., 1:2]


def gradients(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, whole: Tensor, do: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the queries, and of (keys, values), that comes from these keys.

    The sum of ``do`` times the output replaces that over all keys. Source: Dao et al., "FlashAttention", 2022,
    appendix B.

    Args:
        q, k, v, seen: As for :func:`part`.
        whole: The part that all keys contribute.
        do: The gradient of the output.
    """
    heads = len(q), len(k)
    k, v = (each.repeat_interleave(heads[0] // heads[1], 0) for each in (k, v))
    log_sum = whole[..., :1] + whole[..., 1:2].log()
    weights = torch.exp(_scores(q, k, seen) - log_sum)
    of_scores = weights * (do @ v.mT - (do * output(whole)).sum(-1, keepdim=True)) / sqrt(q.shape[-1])
    of_pairs = torch.stack([of_scores.mT @ q, weights.mT @ do])
    return of_scores @ k, of_pairs.unflatten(1, (heads[1], -1)).sum(2)


def attend(
    devices: Iterable[str],
    way: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor | None = None,
    causal: bool = True,
    zigzag: bool = False,
    carrier: Processes | None = None,
) -> tuple[dict[str, dict[str, Tensor]], Trace]:
    """Compute one attention on devices that have a part of the tokens each.

    Args:
        devices: Their names.
        way: ``"gather"``, ``"ring"`` or ``"heads"``.
        q, k, v: Those of the whole sequence, of shape (heads, tokens, size); each device takes its tokens.
        do: The gradient of the output; with it, the backward pass is done, too.
        causal, zigzag: As for :func:`d2lps.schedule.attention`.
        carrier: With gloo, one process per device.

    Returns:
        results: For each device of this process ``o``, and with ``do`` also ``dq``, ``dk`` and ``dv``, of its tokens.
        trace: As measured.

    Raises:
        ScheduleError: If tokens or heads cannot be cut into equal parts.
    """
    devices, (heads, tokens, size) = names(devices), q.shape
    options = {"heads": heads, "size": size, "groups": len(k), "causal": causal, "zigzag": zigzag}
    schedule = attention(devices, way, tokens, **options, backward=do is not None, itemsize=q.itemsize)
    places = [torch.tensor([*chain(*each)]) for each in token_places(tokens, len(devices), zigzag)]
    given = {"q": q, "kv": torch.stack([k, v])} | ({} if do is None else {"do": do})
    cut = _by_heads if way == "heads" else _by_tokens
    tensors, compute = cut(devices, given, places, causal)
    parts = {f"o{i}": merge for i in range(len(devices))}
    values, trace = operators.run(schedule, compute, tensors, carrier, parts)
    return _results(devices, values, heads, len(k)), trace


def _by_tokens(devices: tuple[str, ...], given: Mapping[str, Tensor], places: list[Tensor], causal: bool):
    """Return what devices with all heads of some tokens hold, and the functions of their tasks."""
    n, everywhere = len(devices), torch.cat(places)
    tensors: dict[tuple[str, str], Tensor] = {}
    compute: dict[str, Callable] = {}
    for i, node in enumerate(devices):
        tensors |= {(node, f"{name}{i}"): tensor[..., places[i], :] for name, tensor in given.items()}
        own = partial(_seen, places[i], causal=causal)
        compute |= {f"{node} F": partial(_forward, own(everywhere)), f"{node} B": partial(_backward, own(everywhere))}
        for j in range(n):
            compute[f"{node} F{i}.{j}"] = partial(_forward, own(places[j]))
            compute[f"{node} B{i}.{j}"] = partial(_backward, own(places[j]))
    return tensors, compute


def _seen(queries: Tensor, keys: Tensor, causal: bool) -> Tensor:
    return queries[:, None] >= keys if causal else torch.ones(len(queries), len(keys), dtype=torch.bool)


def _forward(seen: Tensor, q: Tensor, *blocks: Tensor) -> Tensor:
    return part(q, *torch.cat(blocks, 2), seen)


def _backward(seen: Tensor, q: Tensor, do: Tensor, whole: Tensor, *blocks: Tensor) -> list[Tensor]:
    dq, dkv = gradients(q, *torch.cat(blocks, 2), seen, whole, do)
    return [dq, *dkv.split([block.shape[2] for block in blocks], 2)]


def _by_heads(devices: tuple[str, ...], given: Mapping[str, Tensor], places: list[Tensor], causal: bool):
    """Return what devices with some heads of all tokens hold, and the functions of their tasks."""
    n, everywhere = len(devices), torch.cat(places)
    q, kv = (given[name].chunk(n, dim) for name, dim in (("q", 0), ("kv", 1)))
    packed = {"a": [torch.cat([q[j], *kv[j]]) for j in range(n)]}  # by heads: queries, then keys, then values
    packed |= {"do": given["do"].chunk(n)} if "do" in given else {}
    tensors = {
        (node, f"{name}{i}.{j}"): parts[j][:, places[i]]
        for i, node in enumerate(devices)
        for name, parts in packed.items()
        for j in range(n)
    }
    sizes, seen = [len(each) for each in (q[0], kv[0][0], kv[0][0])], _seen(everywhere, everywhere, causal)
    forward = partial(_heads_forward, seen, sizes, "do" in given)
    return tensors, {"F": forward, "B": partial(_heads_backward, seen, sizes)}


def _heads_forward(seen: Tensor, sizes: list[int], keep: bool, *inputs: Tensor) -> list[Tensor]:
    whole = part(*torch.cat(inputs, 1).split(sizes), seen)
    made = output(whole).split([each.shape[1] for each in inputs], 1)
    return [whole, *made] if keep else [*made]


def _heads_backward(seen: Tensor, sizes: list[int], whole: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    above, inputs = (torch.cat(each, 1) for each in (tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]))
    dq, dkv = gradients(*inputs.split(sizes), seen, whole, above)
    return torch.cat([dq, *dkv]).split(tensors[0].shape[1], 1)


def _results(devices: tuple[str, ...], values: Mapping[tuple[str, str], Tensor], heads: int, groups: int):
    """Return what each device has of the output and the gradients, by name."""
    results: dict[str, dict[str, Tensor]] = {}
    n = len(devices)
    for i, node in enumerate(devices):
        if (node, f"o{i}") in values:
            made = {"o": output(values[node, f"o{i}"])}
            if (node, f"dq{i}") in values:
                made |= dict(zip(("dq", "dk", "dv"), (values[node, f"dq{i}"], *values[node, f"dkv{i}"]), strict=True))
            results[node] = made
        elif (node, f"y{i}.0") in values:
            made = {"o": torch.cat([values[node, f"y{i}.{j}"] for j in range(n)])}
            if (node, f"da{i}.0") in values:
                parts = [values[node, f"da{i}.{j}"].split([heads // n, groups // n, groups // n]) for j in range(n)]
                made |= dict(zip(("dq", "dk", "dv"), map(torch.cat, zip(*parts, strict=True)), strict=True))
            results[node] = made
    return results

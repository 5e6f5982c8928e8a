"""Attention whose tokens are cut among devices, on real tensors: forward and backward by hand, in three ways.

>>> torch.manual_seed(0) and None
>>> q, k, v = torch.randn(3, 2, 8, 4).unbind()
>>> results, trace = attend(["gpu0", "gpu1"], "ring", q, k, v)
>>> right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
>>> torch.allclose(torch.cat([each["o"] for each in results.values()], 1), right, atol=1e-5)
True

``part`` is what a device knows of the softmax of its queries from some keys: per query the maximum of the scores, the
sum of the weights, and the weighted sum of values. ``merge`` joins two of them. Of 16-bit numbers, parts and gradients
have 32 bits until all of them are added up. The schedules are those of :func:`d2lps.schedule.attention`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from math import prod, sqrt

import torch
from torch import Tensor

from d2lps.carriers.processes import Processes
from d2lps.messages import text
from d2lps.plan.parse import names
from d2lps.schedule import ScheduleError, attention, token_places
from d2lps.trace import Trace
from d2lps.train import operators
from d2lps.train.operators import OperatorError

__all__ = ["attend", "gradients", "merge", "output", "part"]

TYPES = torch.bfloat16, torch.float16, torch.float32, torch.float64


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors]


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    k = k.repeat_interleave(len(q) // len(k), 0)  # a head of keys may serve several of queries
    return (q @ k.mT / sqrt(q.shape[-1])).masked_fill(~seen, float("-inf"))


def part(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Return the part of attention that these keys contribute: for each query max, sum, and weighted sum.

    Args:
        q, k, v: Of shape (heads, tokens, size); keys and values may have fewer heads, values another size.
        seen: Which query sees which key.

    Returns:
        Of shape (heads, queries, 2 + size of a value), in 32 bits at least. The maximum of a query that sees no key is
        the least number there is.
    """
    q, k, v = _wide(q, k, v)
    scores = _scores(q, k, seen)
    m = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)  # −∞ − (−∞) is no number
    weights = torch.exp(scores - m)
    return torch.cat([m, weights.sum(-1, keepdim=True), weights @ v.repeat_interleave(len(q) // len(v), 0)], -1)


def merge(one: Tensor, other: Tensor) -> Tensor:
    """Return the part of attention that the keys of both contribute: commutative, and associative up to rounding."""
    m = torch.maximum(one[..., :1], other[..., :1])
    sums = sum(torch.exp(each[..., :1] - m) * each[..., 1:] for each in (one, other))
    return torch.cat([m, sums], -1)


def output(whole: Tensor) -> Tensor:
    """Return the output of attention from the part that all keys contribute."""
    return whole[..., 2:] / whole[..., 1:2]


def gradients(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, whole: Tensor, do: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the queries, and those of keys and values side by side, that come from these keys.

    The sum of ``do`` times the output replaces that over all keys. Source: Dao et al., "FlashAttention", 2022,
    appendix B.

    Args:
        q, k, v, seen: As for :func:`part`.
        whole: The part that all keys contribute.
        do: The gradient of the output.
    """
    groups, times = len(k), len(q) // len(k)
    q, k, v, do = _wide(q, k.repeat_interleave(times, 0), v.repeat_interleave(times, 0), do)
    log_sum = whole[..., :1] + whole[..., 1:2].log()
    weights = torch.exp(_scores(q, k, seen) - log_sum)
    of_scores = weights * (do @ v.mT - (do * output(whole)).sum(-1, keepdim=True)) / sqrt(q.shape[-1])
    of_pairs = torch.cat([of_scores.mT @ q, weights.mT @ do], -1)
    return of_scores @ k, of_pairs.unflatten(0, (groups, times)).sum(1)


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
    segments: Tensor | None = None,
) -> tuple[dict[str, dict[str, Tensor]], Trace]:
    """Compute one attention on devices that have a part of the tokens each.

    Args:
        devices: Their names.
        way: ``"gather"``, ``"ring"`` or ``"heads"``.
        q, k, v: Those of the whole sequence, of shape (heads, tokens, size), or all with a batch before; each device
            takes its tokens. Keys and values may have fewer heads; there may be another number of them, if every query
            sees all keys; and values may have another size.
        do: The gradient of the output; with it, the backward pass is done, too.
        causal, zigzag: As for :func:`d2lps.schedule.attention`.
        carrier: With gloo, one process per device.
        segments: A whole number per token: a token sees only those with its own number, such as those of its document,
            if several are packed into one sequence. The schedule still counts the FLOPs of all pairs.

    Returns:
        results: For each device of this process ``o``, and with ``do`` also ``dq``, ``dk`` and ``dv``, of its tokens.
        trace: As measured.

    Raises:
        ScheduleError: If tokens or heads cannot be cut into equal parts, or a mask compares places of two sequences.
        OperatorError: If shapes or types do not fit together, or a result is not finite.
    """
    devices, segments = names(devices), None if segments is None else torch.as_tensor(segments)
    with nullcontext() if carrier is None else carrier.telling():
        _require_fit(q, k, v, do, segments)
        batch, tokens, keys = q.shape[:-3], q.shape[-2], k.shape[-2]
        if segments is not None and tokens != keys:
            raise ScheduleError("mask", tokens=tokens, keys=keys)
        options = {"heads": q.shape[:-2].numel(), "groups": k.shape[:-2].numel(), "causal": causal, "zigzag": zigzag}
        options |= {"size": q.shape[-1], "width": v.shape[-1], "keys": keys, "backward": do is not None}
        schedule = attention(devices, way, tokens, **options, itemsize=q.itemsize, sums=max(4, q.itemsize))
    q, k, v = (each.flatten(0, -3) for each in (q, k, v))  # a head of an example is a head
    given = {"q": q, "kv": torch.cat([k, v], -1)}
    given |= {} if do is None else {"do": do.flatten(0, -3)}
    places, others = (
        [torch.tensor([*chain(*each)]) for each in token_places(count, len(devices), zigzag)]
        for count in (tokens, keys)
    )
    seen = partial(_seen, causal=causal, segments=segments)
    cut = _by_heads if way == "heads" else _by_tokens
    tensors, compute = cut(devices, given, places, others, seen, q.shape[-1])
    parts = {f"o{i}": merge for i in range(len(devices))}
    values, trace = operators.run(schedule, compute, tensors, carrier, parts)
    results = _results(devices, values, given)
    for made in results.values():
        made |= {name: each.to(q.dtype).unflatten(0, (*batch, -1)) for name, each in made.items()}
    return results, trace


def _require_fit(q: Tensor, k: Tensor, v: Tensor, do: Tensor | None, segments: Tensor | None) -> None:
    """Raise OperatorError if shapes and types are not those of one attention."""
    tensors = [q, k, v] if do is None else [q, k, v, do]
    fit = all(each.dim() in (3, 4) and each.numel() and each.dtype in TYPES for each in tensors)
    fit = fit and len({(each.dtype, each.dim(), each.shape[:-3]) for each in tensors}) == 1
    fit = fit and k.shape == (*v.shape[:-1], q.shape[-1])
    if not fit or do is not None and do.shape != (*q.shape[:-1], v.shape[-1]):
        given = ", ".join(f"{each.dtype} {tuple(each.shape)}" for each in tensors)
        raise OperatorError(text("operators.attention", given=given))
    if segments is not None and (segments.shape != q.shape[-2:-1] or segments.dtype.is_floating_point):
        given = f"{segments.dtype} {tuple(segments.shape)}"
        raise OperatorError(text("operators.segments", tokens=q.shape[-2], given=given))


def _by_tokens(devices, given: Mapping[str, Tensor], places: list[Tensor], others: list[Tensor], seen, size: int):
    """Return what devices with all heads of some tokens hold, and the functions of their tasks."""
    tensors: dict[tuple[str, str], Tensor] = {}
    compute: dict[str, Callable] = {}
    for i, node in enumerate(devices):
        for name, tensor in given.items():
            tensors[node, f"{name}{i}"] = tensor[:, (others if name == "kv" else places)[i]]
        for of, keys in [("", torch.cat(others)), *((f"{i}.{j}", each) for j, each in enumerate(others))]:
            compute[f"{node} F{of}"] = partial(_forward, seen(places[i], keys), size)
            compute[f"{node} B{of}"] = partial(_backward, seen(places[i], keys), size)
    return tensors, compute


def _seen(queries: Tensor, keys: Tensor, causal: bool, segments: Tensor | None) -> Tensor:
    seen = queries[:, None] >= keys if causal else torch.ones(len(queries), len(keys), dtype=torch.bool)
    return seen if segments is None else seen & (segments[queries, None] == segments[keys])


def _pair(blocks: Sequence[Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Return keys and values of blocks that have them side by side."""
    pairs = torch.cat([*blocks], 1)
    return pairs[..., :size], pairs[..., size:]


def _forward(seen: Tensor, size: int, q: Tensor, *blocks: Tensor) -> Tensor:
    return part(q, *_pair(blocks, size), seen)


def _backward(seen: Tensor, size: int, q: Tensor, do: Tensor, whole: Tensor, *blocks: Tensor) -> list[Tensor]:
    dq, dkv = gradients(q, *_pair(blocks, size), seen, whole, do)
    return [dq, *dkv.split([block.shape[1] for block in blocks], 1)]


def _by_heads(devices, given: Mapping[str, Tensor], places: list[Tensor], others: list[Tensor], seen, size: int):
    """Return what devices with some heads of all tokens hold, and the functions of their tasks."""
    n = len(devices)
    tensors: dict[tuple[str, str], Tensor] = {}
    q, kv = given["q"].chunk(n), given["kv"].chunk(n)
    for i, node in enumerate(devices):
        for j in range(n):  # queries, then keys with values: of other shapes, hence flat
            tensors[node, f"a{i}.{j}"] = _flat(q[j][:, places[i]], kv[j][:, others[i]])
            if "do" in given:
                tensors[node, f"do{i}.{j}"] = given["do"].chunk(n)[j][:, places[i]]
    options = seen(torch.cat(places), torch.cat(others)), size, _shapes(given, n)
    forward = partial(_heads_forward, *options, "do" in given)
    return tensors, {"F": forward, "B": partial(_heads_backward, *options)}


def _flat(*tensors: Tensor) -> Tensor:
    return torch.cat([each.flatten() for each in tensors])


def _unflat(flat: Iterable[Tensor], shapes: Sequence[tuple[int, int, int]], dim: int) -> list[Tensor]:
    """Return the tensors of these shapes that each of ``flat`` has, joined along a dimension."""
    parts = [each.split([prod(shape) for shape in shapes]) for each in flat]
    return [
        torch.cat([each.view(shape) for each in made], dim)
        for made, shape in zip(zip(*parts, strict=True), shapes, strict=True)
    ]


def _heads_forward(seen: Tensor, size: int, shapes: list, keep: bool, *inputs: Tensor) -> list[Tensor]:
    q, kv = _unflat(inputs, shapes, 1)
    whole = part(q, *_pair([kv], size), seen)
    made = output(whole).to(q.dtype).split(shapes[0][1], 1)
    return [whole, *made] if keep else [*made]


def _heads_backward(seen: Tensor, size: int, shapes: list, whole: Tensor, *tensors: Tensor) -> list[Tensor]:
    n = len(tensors) // 2
    q, kv = _unflat(tensors[n:], shapes, 1)
    made = gradients(q, *_pair([kv], size), seen, whole, torch.cat(tensors[:n], 1))
    cut = [each.to(q.dtype).split(shape[1], 1) for each, shape in zip(made, shapes, strict=True)]
    return [_flat(*each) for each in zip(*cut, strict=True)]


def _shapes(given: Mapping[str, Tensor], n: int) -> list[tuple[int, int, int]]:
    """Return the shapes of queries, and of keys with values, for 1/n of the heads and of the tokens."""
    return [(len(each) // n, each.shape[1] // n, each.shape[2]) for each in (given["q"], given["kv"])]


def _results(devices: tuple[str, ...], values: Mapping[tuple[str, str], Tensor], given: Mapping[str, Tensor]):
    """Return what each device has of the output and the gradients, by name."""
    results: dict[str, dict[str, Tensor]] = {}
    n, size = len(devices), given["q"].shape[-1]
    for i, node in enumerate(devices):
        made = [values[node, f"{name}{i}"] for name in ("o", "dq", "dkv") if (node, f"{name}{i}") in values]
        if made:
            made[0] = output(made[0])
        elif (node, f"y{i}.0") in values:
            made = [torch.cat([values[node, f"y{i}.{j}"] for j in range(n)])]
            if (node, f"da{i}.0") in values:
                made += _unflat([values[node, f"da{i}.{j}"] for j in range(n)], _shapes(given, n), 0)
        if made:
            made[2:] = [made[2][..., :size], made[2][..., size:]] if made[2:] else []
            results[node] = dict(zip(("o", "dq", "dk", "dv"), made, strict=False))
    return results

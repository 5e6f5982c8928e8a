"""Seconds of a step by closed forms, data sheets, measured rates, and one constant calibrated on one published run.

The time of a micro-batch on a GPU is that of its FLOPs, at a share e of the rate of the fastest product of matrices
(attention has a rate of its own); of the results of these products, each of which is written to memory; of its saved
bytes, which cross the memory seven times (twice in the forward pass, twice more if recomputed, three times in the
backward pass); of the kernels that it starts; and of its messages. Pipelines add (p−1)/v micro-batches of idle time for
m ≥ p, and p − m + (m−1)/v below, and run at the rate of their slowest stage, which may be the one with the head (Yeung
et al., "Balancing pipeline parallelism with vocabulary parallelism", 2024); replicas add an all-reduce, and Adam 32
bytes per parameter.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from d2lps.messages import text
from d2lps.scaling.gpu import Gpu, across, around, beside
from d2lps.scaling.layout import (
    NARROW,
    PRECISION,
    Layout,
    check,
    exchanged,
    flops_per_gpu,
    halves,
    layers_in,
    owned,
    sent,
)
from d2lps.scaling.runs import SC21, Published
from d2lps.scaling.transformer import ScalingError, Transformer, flops_of, products

CROSSINGS = 7  # of a saved byte through the memory; 5 if nothing is recomputed
UPDATE = 32  # bytes that Adam reads and writes per parameter
LOGITS = 28  # bytes read and written per logit: made 32-bit (6), normalized (8), and the same backward (8 + 6)
# Calculon, systems/h100_80g_nvl8.json: the part of the memory's rate that large kernels reach, and the part of the
# processors that sends while others compute.
MEMORY, SENDING = 0.9, 0.15
ATTENTION = (
    0.6  # of the peak that attention reaches: FlashAttention-2 on A100 50 to 73%, -3 on H100 up to 75% (forward)
)
KERNELS = 36  # of a layer: 12 in the forward pass, 24 in the backward pass
START = 3.8e-6  # seconds of a short kernel after others (Gray, "Getting started with CUDA graphs", NVIDIA, 2019)


def step(
    model: Transformer,
    layout: Layout,
    gpu: Gpu,
    share: float | None = None,
    crossings: float = CROSSINGS,
    per_node: int = 8,
    precision: str = "mixed",
    attention: float | None = None,
    overlapped: bool = False,
) -> dict[str, float]:
    """Return the seconds of a training step, divided by cause.

    Args:
        model, layout, gpu: The model, its division, and the data sheet of the GPUs.
        share: The share e of ``gpu.reached`` that products of matrices reach; the calibrated one if left out.
        crossings: The number of times that a saved byte crosses the GPU's memory if everything is recomputed.
        per_node: GPUs that reach each other inside a node. From inside to outside, the dimensions are tensor, context,
            pipeline and data. Experts are divided over neighbors, and keys are gathered, as in Llama 3. All-reduces of
            tensor parallelism that leave a node are charged at one card per GPU: they are many and small. (Narayanan
            et al., SC 2021, advise against them.)
        precision: As for :func:`kept`; with ``"fp8"`` and ``"fp8-mixed"`` the layers' matrices have 8 bits, and reach
            the same share of that rate.
        attention: The share of the peak that fused attention reaches; 0.6 if left out.
        overlapped: Whether interleaved stages send while they compute, as in Megatron-LM since 2023 (without
            ``--no-overlap-p2p-communication``).

    Returns:
        ``matrices``, ``attention``, ``reading``, ``starts``, ``tensor``, ``pipeline``, ``context``, ``experts``,
            ``bubble``, ``data`` and ``update``. The second gather of sequence parallelism is hidden behind the products
            for gradients of weights.

    Raises:
        ScalingError: For a layout that cannot divide the model, and for ``"fp8"`` on a GPU without 8-bit products.
    """
    check(model, layout)
    t, p, m, c = layout.tensor, layout.pipeline, layout.batches, layout.context
    share = calibrate(crossings) if share is None else share
    if precision in NARROW and not gpu.fp8:
        raise ScalingError(text("scaling.no-fp8"))
    fast, memory, layers = (
        share * (gpu.reached8 if precision in NARROW else gpu.reached),
        MEMORY * gpu.reading,
        model.layers / p,
    )
    tokens = layout.micro * model.context / c
    in_layers, scores, head = (tokens * flops / (t * p) for flops in flops_of(model, layout.recompute))
    bytes_of = sent(model, layout, precision)
    matrices = in_layers / fast + layers * _results(model, layout, tokens, precision) / memory
    if model.fused:  # which computes the scores again in its backward pass
        passes = 4 if layout.recompute == "full" else 3
        scores *= (1 + 0.5 / passes) / ((ATTENTION if attention is None else attention) * gpu.peak)
    else:
        scores /= share * gpu.reached
    groups = [beside(per_node, *each) for each in _groups(layout)]
    (tensor, late), (keys, _) = (around(gpu, *beside(per_node, each)) for each in ((t, 1), (c, t)))
    if not layout.sequence and gpu.nvls and t == per_node:
        tensor = gpu.nvls
    elif t > per_node:
        tensor = gpu.outside
    # Megatron-LM's scatter and gather: sequence parallelism has divided what is sent already.
    gathered = 0 if p == 1 or layout.sequence else 2 * layout.chunks * (t - 1) / t * 2 * tokens * model.width
    stages = tensor if t * c * p <= per_node else gpu.outside
    again = 2 * layout.sequence / halves(layout) * bytes_of["tensor"] / m / tensor
    behind = in_layers / fast / (4 if layout.recompute == "full" else 3)
    slot = {
        "matrices": matrices + head / (share * gpu.reached),
        "attention": scores,
        "reading": _traffic(model, layout, tokens, crossings) / memory,
        "starts": KERNELS * START * layers * (4 if layout.recompute == "full" else 3) / 3,
        "tensor": bytes_of["tensor"] / m / tensor - min(again, behind) + halves(layout) * layers * late,
        "context": bytes_of["context"] / m / keys,
        "pipeline": bytes_of["pipeline"] / m / stages + gathered / tensor,
        "experts": bytes_of["experts"] / m / across(gpu, *beside(per_node, (layout.expert, 1))),
    }
    if overlapped and layout.chunks > 1:
        slot["pipeline"] -= (1 - SENDING) * min(slot["pipeline"], in_layers / fast)
    one = sum(slot.values())
    # ZeRO-3 sends layer by layer. Below it buckets can grow with the replicas, as in Megatron-LM (bucket_size of its
    # DistributedDataParallelConfig), so that latency does not count.
    data, turns = 0.0, 3 * m * layers if layout.stage == 3 else 0
    for group, nbytes in zip(groups, exchanged(model, layout, precision), strict=False):
        rate, latency = around(gpu, *group)
        if layout.stage == 0 and gpu.nvls and group == (per_node, per_node):
            rate = gpu.nvls
        data += nbytes / rate + turns * latency
    hidden = 0.0
    if layout.overlap:  # ZeRO-2 and -3 send in each micro-batch
        hidden = (1 - SENDING) * min(data, one / 2 * (m if layout.stage > 1 else 1))
    updated = sum(count / (n if layout.stage else 1) for count, n in owned(model, layout))
    parts = {name: m * time for name, time in slot.items()}
    idle = max((p - 1) / layout.chunks, p - m + (m - 1) / layout.chunks)
    output = p * head / (share * gpu.reached) + LOGITS * bool(crossings) * tokens * model.vocabulary / t / memory
    bubble = idle * one + m * (_slowest(model, p, one, output) - one)
    return parts | {"bubble": bubble, "data": data - hidden, "update": UPDATE * updated / memory}


def _slowest(model: Transformer, stages: int, mean: float, output: float) -> float:
    """Return the seconds of a micro-batch in the slowest stage, from those of a mean one and those of the head.

    The last stage has the head. Where embedding, head and a further layer have places of layers, it has so many fewer.
    """
    places, each = layers_in(model, stages), (mean * stages - output) / model.layers
    last = places - max(0, places * stages - model.layers - 1)
    return max(mean, places * each, last * each + output)


def _groups(layout: Layout) -> tuple:
    """Return the dimensions of the groups with the same weights: those outside experts, and those of experts."""
    t, p, c, d, e = layout.tensor, layout.pipeline, layout.context, layout.data, layout.expert
    return ((c, t), (d, t * c * p)), ((t * c * d // e, p * e),)


def _results(model: Transformer, layout: Layout, tokens: float, precision: str) -> float:
    """Return the bytes that the products of a layer write for a micro-batch.

    Each product of the forward pass has two of the backward pass: the gradient of its input, and that of its weights,
    which is added to the sum so far. (With k terms per number of a result, this is peak ÷ (k · memory) of the time.)
    """
    forward, gradient = 2 if layout.recompute == "full" else 1, PRECISION[precision][1]
    nbytes = 0.0
    for rows, inner, columns, count in products(model, layout.tensor, layout.expert):
        rows *= tokens
        nbytes += count * (2 * rows * (forward * columns + inner) + 2 * gradient * inner * columns)
    if not model.fused:
        again, s, heads = 1 if layout.recompute == "none" else 2, model.context / layout.context, model.heads
        nbytes += 2 * tokens * heads / layout.tensor * (again * (s + model.head) + s + 3 * model.head)
    return nbytes


def _traffic(model: Transformer, layout: Layout, tokens: float, crossings: float) -> float:
    """Return the bytes of a micro-batch that cross the memory between products: of saved values, and of logits."""
    t, part = layout.tensor, model.context // layout.context
    saved = model.activations(layout.micro, t, layout.sequence, tokens=part, fused_swiglu=layout.fused_swiglu)
    twice = {"none": (), "selective": ("scores",), "full": saved}[layout.recompute]
    each = sum(nbytes * (crossings - (0 if kind in twice else 2)) for kind, nbytes in saved.items())
    return (each * model.layers + bool(crossings) * LOGITS * tokens * model.vocabulary / t) / layout.pipeline


def throughput(run: Published, share: float | None = None, crossings: float = CROSSINGS) -> float:
    """Return the FLOP/s per GPU that the model predicts for a run, with recomputation counted as its authors do.

    Args:
        run: The run, in its own ``layout``.
        share, crossings: As for :func:`step`.

    Returns:
        FLOP/s.
    """
    layout, counted = run.layout, replace(run.model, fused=False) if run.masked else run.model
    done = flops_per_gpu(counted, layout, layout.recompute)
    more: dict[str, Any] = {"attention": run.attention, "overlapped": run.overlapped}
    parts = step(run.model, layout, run.gpu, share, crossings, precision=run.precision, **more)
    return done / sum(parts.values())


@cache
def calibrate(crossings: float = CROSSINGS, run: Published = SC21[0]) -> float:
    """Return the share e with which a published run is met exactly: the first row of the table.

    Args:
        crossings: As for :func:`step`.
        run: Another run.

    Returns:
        The only constant of the model that is no data sheet, no measured rate and no count. Every other run is
            predicted.

    Example:
        >>> print(f"{calibrate():.2f}")
        0.77
    """
    return bisect(lambda share: throughput(run, share, crossings) < run.flops)


def bisect(is_less: Callable[[float], bool]) -> float:
    """Return the share at which a condition ends to hold."""
    low, high = 0.01, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_less(middle) else (low, middle)
    return low


def error(run: Published, crossings: float = CROSSINGS, share: float | None = None) -> tuple[float, float]:
    """Return predicted ÷ published − 1 of a run, least and greatest: two numbers if it may have had several layouts.

    Args:
        run: A row of ``SC21``, ``MLSYS23``, ``MEGATRON``, ``LLAMA3`` or ``RUNS``.
        crossings, share: As for :func:`step`.

    Returns:
        Equal if the layout is published.
    """
    errors = []
    for layout in run.layouts or (run.layout,):
        counted = run.flops
        if layout.recompute != run.layout.recompute:
            counted *= run.model.flops_per_token(layout.recompute) / run.model.flops_per_token(run.layout.recompute)
        errors.append(throughput(run._replace(layout=layout), share, crossings) / counted - 1)
    return min(errors), max(errors)

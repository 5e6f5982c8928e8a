"""Seconds of a step by closed forms, data sheets and one constant, which is calibrated on one published run.

The time of a micro-batch on a GPU is that of its FLOPs, at a share e of the peak; of its saved bytes, which cross the
memory seven times (twice in the forward pass, twice more if recomputed, three times in the backward pass); and of its
messages. Pipelines add (p−1)/v micro-batches of idle time for m ≥ p, and p − m + (m−1)/v below; replicas add an
all-reduce, and Adam 32 bytes per parameter.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import exp, log1p, prod
from typing import NamedTuple

from d2lps.messages import text
from d2lps.scaling.layout import Layout, check, exchanged, halves, owned, sent
from d2lps.scaling.models import MODELS, data
from d2lps.scaling.transformer import ScalingError, Transformer, flops_of
from d2lps.topology.nccl import ACROSS, INSIDE

CROSSINGS = 7  # of a saved byte through the memory; 5 if nothing is recomputed
UPDATE = 32  # bytes that Adam reads and writes per parameter


class Gpu(NamedTuple):
    """A data sheet.

    Args:
        peak: FLOP/s of products of 16-bit matrices, without sparsity.
        memory: Bytes.
        reading, inside, outside: Bytes per second of its memory; to the other GPUs of its node, one way; and to other
            nodes.
        fp8: FLOP/s of products of 8-bit matrices; 0 if there are none.
    """

    peak: float
    memory: int
    reading: float
    inside: float
    outside: float
    fp8: float = 0


GPUS = {name: Gpu(**sheet) for name, sheet in data("gpus.toml").items()}


class Published(NamedTuple):
    """A run whose speed is published.

    Args:
        name, model, layout, gpu: The model, its division, and the data sheet of the GPUs.
        flops: FLOP/s per GPU, with recomputation counted.
        layouts: The divisions that it may have had, if parts of the division are not published.
        masked: Whether the authors count the scores that a causal mask hides, although attention skips them.
        precision: As for :func:`~d2lps.scaling.kept`.
    """

    name: str
    model: Transformer
    layout: Layout
    flops: float
    gpu: Gpu
    layouts: tuple[Layout, ...] = ()
    masked: bool = False
    precision: str = "mixed"


def flops_per_gpu(model: Transformer, layout: Layout, recompute: str = "none") -> float:
    """Return the FLOPs of a training step on one GPU, with recomputation if it is to count."""
    return layout.sequences * model.context * model.flops_per_token(recompute) / layout.gpus


def _sc21(name: str, t: int, p: int, gpus: int, batch: int, b: int, v: int, tflops: float) -> Published:
    d = gpus // (t * p)
    layout = Layout(t, p, d, v, b, batch // (d * b), recompute="full", sequence=False, overlap=p == 1)
    return Published(name, MODELS[f"gpt-{name}"], layout, tflops * 1e12, GPUS["a100"])


# Narayanan et al., SC 2021, table 1; batch, micro-batch and chunks from Megatron-LM's run_table_1.sh.
SC21 = (
    _sc21("1.7b", 1, 1, 32, 512, 16, 1, 137),
    _sc21("3.6b", 2, 1, 64, 512, 16, 1, 138),
    _sc21("7.5b", 4, 1, 128, 512, 16, 1, 142),
    _sc21("18.4b", 8, 1, 256, 1024, 8, 1, 135),
    _sc21("39.1b", 8, 2, 512, 1536, 4, 1, 138),
    _sc21("76.1b", 8, 4, 1024, 1792, 2, 3, 140),
    _sc21("145.6b", 8, 8, 1536, 2304, 2, 2, 148),
    _sc21("310.1b", 8, 16, 1920, 2160, 1, 2, 155),
    _sc21("529.6b", 8, 35, 2520, 2520, 1, 3, 163),
    _sc21("1008b", 8, 64, 3072, 3072, 1, 1, 163),
)


def _mlsys23(name: str, p: int, b: int, batch: int, v: int, seconds: float, recompute: str) -> Published:
    model = MODELS[f"gpt-{name}"]
    layout = Layout(8, p, 1, v, b, batch // b, recompute=recompute, sequence=recompute == "selective")
    flops = flops_per_gpu(model, layout, recompute) / seconds
    return Published(f"gpt-{name}, n = {layout.gpus}, recompute={recompute}", model, layout, flops, GPUS["a100"])


# Korthikanti et al., 2022, tables 3 and 5: seconds of a step with full and with selective recomputation.
MLSYS23 = tuple(
    _mlsys23(name, p, b, batch, v, each, recompute)
    for name, p, b, batch, v, full, selective in (
        ("22b", 1, 4, 4, 1, 1.42, 1.10),
        ("175b", 8, 1, 64, 3, 18.13, 13.75),
        ("529.6b", 35, 1, 280, 3, 49.05, 37.83),
        ("1008b", 64, 1, 512, 1, 94.42, 71.49),
    )
    for recompute, each in (("full", full), ("selective", selective))
)


def _megatron(name: str, heads: int, width: int, layers: int, t: int, p: int, batch: int, tflops: float) -> Published:
    model = Transformer(layers, width, heads, 4096, 131072, tied=False, dropout=False, fused=True)
    layouts = tuple(
        Layout(t, p, 48, v, b, batch // (48 * b), stage=1)
        for b in (1, 2, 4)
        for v in range(1, layers // p + 1 if p > 1 else 2)
        if layers % (p * v) == 0 and (v == 1 or batch // (48 * b) % p == 0)
    )
    name = f"gpt-{name}, n = {layouts[0].gpus}"
    return Published(name, model, layouts[0], tflops * 1e12, GPUS["h100"], layouts, True, "bf16")


# Megatron-LM, images/model_table.png of its README, which gives no b, v and recomputation: none is assumed.
MEGATRON = (
    _megatron("1.7b", 16, 2048, 24, 1, 1, 192, 408.8),
    _megatron("7.1b", 32, 4096, 30, 2, 1, 192, 465.9),
    _megatron("16b", 48, 6144, 32, 4, 1, 192, 489.1),
    _megatron("32b", 56, 7168, 48, 8, 1, 192, 459.6),
    _megatron("70b", 64, 8192, 84, 8, 2, 384, 419.7),
    _megatron("119b", 80, 10240, 92, 8, 4, 768, 420.5),
    _megatron("177b", 96, 12288, 96, 8, 6, 1152, 432.8),
    _megatron("314b", 128, 16384, 96, 8, 8, 1536, 474.4),
    _megatron("462b", 144, 18432, 112, 8, 16, 3072, 459.9),
)


def _llama(gpus: int, s: int, batch: int, context: int, tflops: float) -> Published:
    model = MODELS["llama3-405b"]
    d = gpus // (8 * 16 * context)
    layout = Layout(8, 16, d, 1, 1, batch // d, stage=1, context=context)
    name, layouts = f"llama3-405b, n = {gpus}, s = {s}", tuple(layout._replace(chunks=v) for v in (1, 2, 4, 8))
    return Published(name, replace(model, context=s), layout, tflops * 1e12, GPUS["h100"], layouts, False, "bf16")


# Grattafiori et al., "The Llama 3 herd of models", 2024, table 4, which does not give v.
LLAMA3 = (_llama(8192, 8192, 2048, 1, 430), _llama(16384, 8192, 2048, 1, 400), _llama(16384, 131072, 128, 16, 380))

# DeepSeek-AI, "DeepSeek-V3 technical report", 2024: 180 000 GPU hours per 10¹² tokens; b = 1 is assumed.
_V3, _H800 = MODELS["deepseek-v3"], GPUS["h100"]._replace(inside=200e9)  # with half the NVLinks
_SPEED = 1e12 * _V3.flops_per_token() / (180_000 * 3600)
_CUT = Layout(1, 16, 128, 1, 1, 120, stage=1, expert=64)
DEEPSEEK = Published("deepseek-v3, n = 2048", _V3, _CUT, _SPEED, _H800, precision="fp8")


def beside(per_node: int, *dimensions: tuple[int, int]) -> tuple[int, int]:
    """Return the GPUs of a group, and the fewest of them that share a node.

    Args:
        per_node: GPUs of a node.
        dimensions: How many GPUs the group has in each dimension, and how many numbers lie between two neighbors.
    """
    places = [(count, max(1, per_node // stride)) for count, stride in dimensions]
    return prod(count for count, _ in places), prod(count % most or most for count, most in places)


def around(gpu: Gpu, members: int, near: int) -> tuple[float, float]:
    """Return the bytes per second that a GPU sends in an all-gather or half an all-reduce, and its latency in seconds.

    NCCL makes as many rings as a node has GPUs of the group, and each leaves the node by a card of its own: this is the
    prediction of ``busbw`` for :func:`~d2lps.rail_rings`, which the tests compare.

    Args:
        gpu: The data sheet.
        members, near: The GPUs of the group, and those in each node, as :func:`beside` returns them.
    """
    if members == near:
        return gpu.inside, (members - 1) * 2 * INSIDE
    rate = near * min(gpu.outside, gpu.inside / (near - 1) if near > 1 else gpu.outside)
    return rate, (members - 1) * 2 * (ACROSS + (near - 1) * INSIDE) / near


def across(gpu: Gpu, members: int, near: int) -> float:
    """Return the bytes per second that a GPU of a group sends in an all-to-all: each by its own card, others inside.

    Args:
        gpu, members, near: As for :func:`around`.
    """
    if members == near:
        return gpu.inside
    outside = gpu.outside * (members - 1) / (members - near)
    return min(outside, gpu.inside * (members - 1) / (near - 1)) if near > 1 else outside


def step(
    model: Transformer,
    layout: Layout,
    gpu: Gpu,
    share: float | None = None,
    crossings: float = CROSSINGS,
    per_node: int = 8,
    precision: str = "mixed",
) -> dict[str, float]:
    """Return the seconds of a training step, divided by cause.

    Args:
        model, layout, gpu: The model, its division, and the data sheet of the GPUs.
        share: The share e of the peak that products of matrices reach; the calibrated one if left out.
        crossings: The number of times that a saved byte crosses the GPU's memory if everything is recomputed.
        per_node: GPUs that reach each other inside a node. From inside to outside, the dimensions are tensor, context,
            pipeline and data. Experts are divided over neighbors, and keys are gathered, as in Llama 3. All-reduces of
            tensor parallelism that leave a node are charged at one card per GPU: they are many and small. (Narayanan
            et al., SC 2021, advise against them.)
        precision: As for :func:`kept`; with ``"fp8"`` the layers' matrices have 8 bits, and reach the same share of
            that peak.

    Returns:
        ``matrices``, ``reading``, ``tensor``, ``pipeline``, ``context``, ``experts``, ``bubble``, ``data`` and
            ``update``. The second gather of sequence parallelism is hidden behind the products for gradients of
            weights.

    Raises:
        ScalingError: For a layout that cannot divide the model, and for ``"fp8"`` on a GPU without 8-bit products.
    """
    check(model, layout)
    t, p, m = layout.tensor, layout.pipeline, layout.batches
    share = calibrate(crossings) if share is None else share
    tokens = layout.micro * model.context / layout.context
    saved = model.activations(
        layout.micro, t, layout.sequence, tokens=model.context // layout.context, fused_swiglu=layout.fused_swiglu
    )
    twice = {"none": (), "selective": ("scores",), "full": saved}[layout.recompute]
    traffic = sum(nbytes * (crossings - (0 if kind in twice else 2)) for kind, nbytes in saved.items())
    c, d, e = layout.context, layout.data, layout.expert
    by_matrices, by_stages = (gpu.inside if size <= per_node else gpu.outside for size in (t, t * c * p))
    bytes_of = sent(model, layout, precision)
    fast = gpu.fp8 if precision == "fp8" else gpu.peak
    if not fast:
        raise ScalingError(text("scaling.no-fp8"))
    in_layers, others = (tokens * flops / (t * p) / share for flops in flops_of(model, layout.recompute))
    again = 2 * layout.sequence / halves(layout) * bytes_of["tensor"] / m / by_matrices
    behind = in_layers / fast / (4 if layout.recompute == "full" else 3)
    gathered = 0 if p == 1 else 2 * layout.chunks * (t - 1) / t * 2 * tokens * model.width
    slot = {
        "matrices": in_layers / fast + others / gpu.peak,
        "reading": traffic * model.layers / p / gpu.reading,
        "tensor": bytes_of["tensor"] / m / by_matrices - min(again, behind),
        "context": bytes_of["context"] / m / around(gpu, *beside(per_node, (c, t)))[0],
        "pipeline": bytes_of["pipeline"] / m / by_stages + gathered / by_matrices,
        "experts": bytes_of["experts"] / m / across(gpu, *beside(per_node, (e, t))),
    }
    one = sum(slot.values())
    hidden = one / 2 * (m if layout.stage > 1 else 1) if layout.overlap else 0  # ZeRO-2 and -3 send in each micro-batch
    sharers = ((c, t), (d, t * c * p)), ((c * d // e, t * p * e),)  # of what is outside experts, and of experts
    groups = [beside(per_node, *dimensions) for dimensions in sharers]
    # ZeRO-3 sends layer by layer. Below it buckets can grow with the replicas, as in Megatron-LM (bucket_size of its
    # DistributedDataParallelConfig), so that latency does not count.
    data, turns = 0.0, 3 * m * model.layers / p if layout.stage == 3 else 0
    for group, nbytes in zip(groups, exchanged(model, layout, precision), strict=False):
        rate, latency = around(gpu, *group)
        data += nbytes / rate + turns * latency
    updated = sum(count / (n if layout.stage else 1) for count, n in owned(model, layout))
    parts = {name: m * time for name, time in slot.items()}
    idle = max((p - 1) / layout.chunks, p - m + (m - 1) / layout.chunks)
    return parts | {"bubble": idle * one, "data": max(0.0, data - hidden), "update": UPDATE * updated / gpu.reading}


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
    return done / sum(step(run.model, layout, run.gpu, share, crossings, precision=run.precision).values())


@cache
def calibrate(crossings: float = CROSSINGS) -> float:
    """Return the share e of the peak with which the first row of the table is met exactly.

    Args:
        crossings: As for :func:`step`.

    Returns:
        The only constant of the model that is no data sheet and no count; the other nine rows are predictions.

    Example:
        >>> print(f"{calibrate():.2f}")
        0.59
    """
    return bisect(lambda share: throughput(SC21[0], share, crossings) < SC21[0].flops)


def bisect(is_less: Callable[[float], bool]) -> float:
    """Return the share at which a condition ends to hold."""
    low, high = 0.01, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_less(middle) else (low, middle)
    return low


def error(run: Published, crossings: float = CROSSINGS) -> tuple[float, float]:
    """Return predicted ÷ published − 1 of a run, least and greatest: two numbers if it may have had several layouts.

    Args:
        run: A row of ``SC21``, ``MLSYS23``, ``MEGATRON`` or ``LLAMA3``.
        crossings: As for :func:`step`.

    Returns:
        Equal if the layout is published.
    """
    runs = [run._replace(layout=layout) for layout in run.layouts or (run.layout,)]
    errors = [throughput(each, crossings=crossings) / run.flops - 1 for each in runs]
    return min(errors), max(errors)


@cache
def spread(model: Transformer, gpu: Gpu, precision: str = "mixed") -> tuple[float, bool, dict[str, object]]:
    """Return by what ratio a prediction may be off, whether runs on such GPUs say so, and their errors for a sentence.

    Of runs whose layout is not published the fastest counts, since authors publish one that they have tuned. Small
    models are predicted too fast, because the time to start kernels is not in :func:`step`: runs count whose models
    take at least half as long per token at the peak, and below the smallest of them the ratio grows as 1 / size. All
    runs count if none has such GPUs or 8-bit products, and for experts also that of DeepSeek.
    """
    peak, published = gpu.fp8 if precision == "fp8" else gpu.peak, SC21 + MLSYS23 + MEGATRON + LLAMA3
    alike = [] if model.experts else [run for run in published if run.gpu.peak == peak]
    runs = (*published, DEEPSEEK) if model.experts else alike or published
    weight = {run: run.model.flops_per_token() / run.gpu.peak for run in runs}
    own = model.flops_per_token() / peak
    near = [run for run in weight if weight[run] >= min(own / 2, max(weight.values()))]
    errors = {run: error(run)[1] for run in near}
    run = max(errors, key=lambda run: abs(log1p(errors[run])))
    far = 1 + (exp(abs(log1p(errors[run]))) - 1) * max(1, min(weight.values()) / own)
    ends = {"least": f"{min(errors.values()):+.1%}", "most": f"{max(errors.values()):+.1%}"}
    return far, bool(alike), {"runs": len(near), "run": run.name, **ends}

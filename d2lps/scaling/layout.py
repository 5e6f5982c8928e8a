"""The division of a model and its batch over GPUs, and the bytes that each GPU keeps and sends."""

from functools import partial
from typing import Any, NamedTuple

from d2lps.messages import text
from d2lps.scaling.transformer import RECOMPUTE, ScalingError, Transformer, held, require_count, require_divides

# Bytes per parameter of a weight, of its gradient, and of the state of Adam (with a float32 weight in the first five).
# fp16: Megatron-LM copies its gradients to float32 before the update (its docs: features/dist_optimizer.md).
PRECISION = {
    "mixed": (2, 2, 12),
    "bf16": (2, 4, 12),
    "fp16": (2, 2, 16),
    "fp8": (2, 4, 12),
    "fp8-mixed": (2, 2, 12),
    "float32": (4, 4, 8),
    "pure-bf16": (2, 2, 4),
}
NARROW = ("fp8", "fp8-mixed")  # in which the layers' matrices have 8 bits
STAGES = {"weights": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage that divides each
LETTERS = dict(t="tensor", p="pipeline", c="context", e="expert", d="data", v="chunks", b="micro", z="stage")


class Layout(NamedTuple):
    """A division of a model and its batch over tensor × pipeline × context × data GPUs.

    Args:
        tensor, pipeline, data: GPUs that share each matrix (t), stages of layers (p), replicas (d).
        chunks, micro, batches: Parts of layers per GPU of the pipeline (v), sequences of a micro-batch (b),
            micro-batches of a step (m).
        stage: The ZeRO stage, from 0 (whole replicas) to 3 (weights are divided, too).
        recompute: ``"none"``, ``"selective"`` or ``"full"``.
        sequence: Whether the GPUs that share matrices also divide the activations between these.
        context: GPUs that share the tokens of a sequence.
        overlap: Whether gradients are sent while others are being computed.
        expert: Of the t · c · d GPUs with the same layers, those over which the experts are divided, each whole.
        fused_swiglu: As for :meth:`Transformer.activations`.
        freed: Whether a stage of a pipeline frees its result as soon as that is sent.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    chunks: int = 1
    micro: int = 1
    batches: int = 1
    stage: int = 0
    recompute: str = "none"
    sequence: bool = True
    context: int = 1
    overlap: bool = True
    expert: int = 1
    fused_swiglu: bool = False
    freed: bool = True

    def __str__(self) -> str:
        """Return a short form, ``t8.p4.d32.v3.b1.z1.none``, which :func:`read` reads."""
        sizes = {key: getattr(self, name) for key, name in LETTERS.items()}
        letters = [f"{key}{size}" for key, size in sizes.items() if key not in "ce" or size > 1]
        return ".".join([*letters, self.recompute])

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def sharers(self) -> int:
        """The number of GPUs with the same weights, over which ZeRO divides."""
        return self.context * self.data

    @property
    def waiting(self) -> float:
        """The micro-batches that the first stage of 1F1B keeps at once: min(m, p + (p−1)/v), or min(m, p) for v = 1."""
        return min(self.batches, self.pipeline + ((self.pipeline - 1) / self.chunks if self.chunks > 1 else 0))

    @property
    def sequences(self) -> int:
        """The sequences of a step."""
        return self.data * self.micro * self.batches


def flops_per_gpu(model: Transformer, layout: Layout, recompute: str = "none") -> float:
    """Return the FLOPs of a training step on one GPU, with recomputation if it is to count."""
    return layout.sequences * model.context * model.flops_per_token(recompute) / layout.gpus


def sizes_of(short: str) -> Layout:
    """Return the layout of a short form, with the sizes that it names."""
    *letters, last = short.split(".")
    recompute = last if last in RECOMPUTE else "none"
    letters += [] if last in RECOMPUTE else [last]
    sizes = {part[:1]: int(part[1:]) for part in letters if part[1:].isdecimal()}
    zeros = {letter for letter, size in sizes.items() if not size and letter != "z"}
    if len(sizes) < len(letters) or zeros or not sizes.keys() <= LETTERS.keys():
        raise ScalingError(text("scaling.short", layout=short))
    fields: dict[str, Any] = {"stage": 1} | {LETTERS[letter]: count for letter, count in sizes.items()}
    return Layout(**fields, recompute=recompute)


def read(short: str, gpus: int, batch: int) -> Layout:
    """Return the layout of a short form, with the replicas and micro-batches that GPUs and batch leave to it."""
    named = sizes_of(short)
    layout = named._replace(data=gpus * named.data // named.gpus)
    layout = layout._replace(batches=batch // max(1, layout.data * layout.micro))
    told = any(part[:1] == "d" for part in short.split("."))
    if layout.gpus != gpus or layout.sequences != batch or (told and named.data != layout.data):
        raise ScalingError(text("scaling.other-size", layout=short, gpus=gpus, batch=batch))
    return layout


def require_precision(precision: str) -> None:
    """Raise ScalingError unless a precision is known."""
    if precision not in PRECISION:
        raise ScalingError(text("scaling.precision", precision=repr(precision), known=", ".join(PRECISION)))


def check(model: Transformer | None, layout: Layout) -> None:
    """Raise ScalingError unless the layout can divide the model; without a model, unless its own fields are right."""
    for name in ("tensor", "pipeline", "data", "chunks", "micro", "batches", "context", "expert"):
        require_count(name, getattr(layout, name))
    if layout.stage not in (0, 1, 2, 3) or layout.recompute not in RECOMPUTE:
        raise ScalingError(text("scaling.option", stage=repr(layout.stage), recompute=repr(layout.recompute)))
    if model is None:
        return
    require_divides("tensor", layout.tensor, "heads", model.heads)
    require_divides("tensor", layout.tensor, "groups", model.groups)
    require_divides("context", layout.context, "context", model.context)
    require_divides("expert", layout.expert, "experts", model.experts or 1)
    require_divides("expert", layout.expert, "tensor × context × data", layout.tensor * layout.sharers)
    parts = layout.pipeline * layout.chunks
    if not layers_in(model, parts):
        require_divides("pipeline × chunks", parts, "layers", model.layers)


def layers_in(model: Transformer, parts: int) -> int:
    """Return the layers of each of some equal parts of a model, or 0 if there are none.

    If L is no multiple of the parts, L + 2 may be: then embedding and head have the places of a layer, as in Llama 3;
    or L + 3, if the first layers have no experts and are small.
    """
    places = range(model.layers, model.layers + (4 if model.dense else 3))
    return next((count // parts for count in places if count % parts == 0 and count != model.layers + 1), 0)


def kept(
    model: Transformer, layout: Layout, precision: str = "mixed", tokens: int = 0, precise: int = 4
) -> dict[str, float]:
    """Return the bytes that the fullest GPU keeps, by item.

    Args:
        model, layout: The model and its division.
        precision: ``"mixed"`` (16 bits and a float32 copy of the weights), ``"bf16"`` (mixed, with gradients in
            float32, as Megatron-LM and Llama 3), ``"fp16"`` (mixed, with gradients that Megatron-LM copies to float32
            for the update), ``"fp8"`` (kept as bf16), ``"fp8-mixed"`` (kept as mixed),
            ``"float32"`` or ``"pure-bf16"``, all with Adam.
        tokens, precise: As for :meth:`Transformer.activations`.

    Returns:
        Weights, gradients and optimizer as :func:`states`; activations by kind, as :meth:`Transformer.activations`, of
            all layers and ``waiting`` micro-batches of a stage; ``sent-results`` of a stage, unless ``freed``;
            ``recomputed`` and ``gathered`` layers; and ``output``.
    """
    t, p, s = layout.tensor, layout.pipeline, (tokens or model.context) // layout.context
    element = PRECISION[precision][0]
    layers = layers_in(model, p)
    ends = model.end_parameters if p == 1 else model.end_parameters // (1 if model.tied else 2)
    outside, experts = held(model, model.layers if p == 1 else layers)
    items = states((outside + ends) / t, layout, precision)
    if experts:
        own = states(experts / layout.expert, layout, precision, t * layout.sharers // layout.expert)
        items = {name: size + own[name] for name, size in items.items()}
    fused, shared = layout.fused_swiglu, layout.sequence
    saving = partial(model.activations, layout.micro, t, shared, tokens=s, precise=precise, fused_swiglu=fused)
    saved = saving(recompute=layout.recompute, element=element)
    items |= {kind: layout.waiting * layers * each for kind, each in saved.items()}
    if p > 1 and not layout.freed:
        one = element * layout.micro * s * model.width / (t if layout.sequence else 1)
        items["sent-results"] = layout.waiting * layout.chunks * one
    if layout.recompute != "none":  # of one layer at a time
        again = saving(element=element)
        items["recomputed"] = sum(again.values()) - (0 if layout.recompute == "full" else sum(saved.values()))
    statistics = (1 if model.gated else 2) * precise
    logits = element if precision == "pure-bf16" else 4
    outputs = 2 * element * model.width + statistics + logits * model.vocabulary / t
    items["output"] = layout.micro * s * outputs
    if layout.stage == 3:  # the layer that is being computed, and the next one
        outside, experts = held(model, 1)
        items["gathered"] = 2 * element * (outside / t + experts / layout.expert)
    return items


def states(parameters: float, layout: Layout, precision: str = "mixed", sharers: int = 0) -> dict[str, float]:
    """Return the bytes of weights, gradients and the optimizer's state, divided as the ZeRO stage says."""
    each = zip(STAGES.items(), PRECISION[precision], strict=True)
    sharers = sharers or layout.sharers
    return {name: parameters * nbytes / (sharers if layout.stage >= stage else 1) for (name, stage), nbytes in each}


def owned(model: Transformer, layout: Layout) -> list[tuple[float, int]]:
    """Return the mean parameters of a GPU, and how many GPUs have the same: outside experts, and of experts."""
    outside, experts = held(model, model.layers)
    cut = layout.tensor * layout.pipeline
    both = [((outside + model.end_parameters) / cut, layout.sharers)]
    own = layout.pipeline * layout.expert
    return both + ([(experts / own, layout.tensor * layout.sharers // layout.expert)] if experts else [])


def exchanged(model: Transformer, layout: Layout, precision: str = "mixed") -> list[float]:
    """Return the bytes that a GPU sends to its replicas per step: outside experts, and of experts; as :func:`sent`."""
    w, g, _ = PRECISION[precision]
    m = layout.batches
    each = {0: 2 * g, 1: g + w, 2: m * g + w}.get(layout.stage, m * (g + 2 * w))
    return [each * count * (n - 1) / n for count, n in owned(model, layout)]


def halves(layout: Layout) -> int:
    """Return how often a layer sends (t−1)/t of an activation: sequence parallelism gathers two inputs again."""
    return (12 if layout.recompute == "full" else 8) + 2 * layout.sequence


def sent(model: Transformer, layout: Layout, precision: str = "mixed") -> dict[str, float]:
    """Return the bytes that a GPU sends per step, by dimension of the layout.

    Args:
        model, layout: The model and its division; activations and weights have 2 bytes.
        precision: As for :func:`kept`: the bytes of a gradient.

    Returns:
        Of ``data``, with n replicas: (n−1)/n times Ψ parameters, two gradients for ZeRO-0, a gradient and a weight for
            ZeRO-1, m and 1 for ZeRO-2, m and 2m for ZeRO-3; experts count with their own replicas. Of ``tensor``: 4
            all-reduces per layer and micro-batch, 6 with full recomputation, and with sequence parallelism a quarter
            more, as :func:`halves`. Of ``pipeline``: v activations and gradients per micro-batch, each divided by t. Of
            ``context``: keys and values twice, forward and backward, and their gradients once. Of ``experts``: 4
            all-to-alls per layer and micro-batch, 6 with recomputation.
    """
    t, p, m = layout.tensor, layout.pipeline, layout.batches
    tokens = layout.micro * model.context / layout.context
    activation, layers = 2 * tokens * model.width, model.layers / p
    routed = (6 if layout.recompute == "full" else 4) * model.chosen * (model.layers - model.dense) / p
    around = (layout.context - 1) / layout.context
    return {
        "data": sum(exchanged(model, layout, precision)),
        "tensor": m * halves(layout) * layers * (t - 1) / t * activation,
        "pipeline": 0 if p == 1 else m * 2 * layout.chunks * activation / t,
        "context": m * 3 * layers * 2 * 2 * layout.micro * model.context * model.keys / t * around,
        "experts": m * routed * activation / (t if layout.sequence else 1) * (layout.expert - 1) / layout.expert,
    }

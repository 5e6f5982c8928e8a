"""The division of a model and its batch over GPUs, and the bytes that each GPU keeps and sends."""

from typing import NamedTuple

from d2lps.messages import text
from d2lps.scaling.transformer import RECOMPUTE, ScalingError, Transformer, require_count, require_divides

# Bytes per parameter of a weight, of its gradient, and of the state of Adam (with a float32 weight if mixed).
PRECISION = {"mixed": (2, 2, 12), "megatron": (2, 4, 12), "float32": (4, 4, 8), "bfloat16": (2, 2, 4)}
STAGES = {"weights": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage that divides each


class Layout(NamedTuple):
    """A division of a model and its batch over tensor × pipeline × context × data GPUs.

    Parameters
    ----------
    tensor, pipeline, data : int
        GPUs that share each matrix (t), stages of layers (p), replicas (d).
    chunks, micro, batches : int
        Parts of layers per GPU of the pipeline (v), sequences of a micro-batch (b), micro-batches of a step (m).
    stage : int
        The ZeRO stage, from 0 (whole replicas) to 3 (weights are divided, too).
    recompute : str
        ``"none"``, ``"selective"`` or ``"full"``.
    sequence : bool
        Whether the GPUs that share matrices also divide the activations between these.
    context : int
        GPUs that share the tokens of a sequence.
    overlap : bool
        Whether gradients are sent while others are being computed.
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


def check(model: Transformer, layout: Layout) -> None:
    """Raise ScalingError unless the layout can divide the model."""
    for name in ("tensor", "pipeline", "data", "chunks", "micro", "batches", "context"):
        require_count(name, getattr(layout, name))
    if layout.stage not in (0, 1, 2, 3) or layout.recompute not in RECOMPUTE:
        raise ScalingError(text("scaling.option", stage=repr(layout.stage), recompute=repr(layout.recompute)))
    require_divides("tensor", layout.tensor, "heads", model.heads)
    require_divides("tensor", layout.tensor, "groups", model.groups)
    require_divides("context", layout.context, "context", model.context)
    parts = layout.pipeline * layout.chunks
    if not layers_in(model, parts):
        require_divides("pipeline × chunks", parts, "layers", model.layers)


def layers_in(model: Transformer, parts: int) -> int:
    """Return the layers of each of some equal parts of a model, or 0 if there are none.

    If L is no multiple of the parts, L + 2 may be: then embedding and head have the places of a layer, as in Llama 3.
    """
    return next((count // parts for count in (model.layers, model.layers + 2) if count % parts == 0), 0)


def kept(
    model: Transformer, layout: Layout, precision: str = "mixed", tokens: int = 0, precise: int = 4
) -> dict[str, float]:
    """Return the bytes that the fullest GPU keeps, by item.

    Parameters
    ----------
    model, layout : Transformer, Layout
        The model and its division.
    precision : str
        ``"mixed"`` (16 bits and a float32 copy of the weights), ``"megatron"`` (mixed, with gradients in float32),
        ``"float32"`` or ``"bfloat16"``, all with Adam.
    tokens, precise : int
        As for :meth:`Transformer.activations`.

    Returns
    -------
    dict of str to float
        Weights, gradients and optimizer as :func:`states`; activations by kind, as :meth:`Transformer.activations`, of
        all layers and ``waiting`` micro-batches of a stage; ``recomputed`` and ``gathered`` layers; and ``output``.
    """
    t, p, s = layout.tensor, layout.pipeline, (tokens or model.context) // layout.context
    element = PRECISION[precision][0]
    layers = layers_in(model, p)
    ends = model.end_parameters if p == 1 else model.end_parameters // (1 if model.tied else 2)
    items = states((layers * model.layer_parameters + ends) / t, layout, precision)
    saving = {"micro": layout.micro, "tensor": t, "sequence": layout.sequence, "tokens": s}
    saving |= {"element": element, "precise": precise}
    saved = model.activations(recompute=layout.recompute, **saving)
    items |= {kind: layout.waiting * layers * each for kind, each in saved.items()}
    if layout.recompute != "none":  # of one layer at a time
        again = model.activations(**saving)
        items["recomputed"] = sum(again.values()) - (0 if layout.recompute == "full" else sum(saved.values()))
    statistics = (1 if model.gated else 2) * precise
    logits = element if precision == "bfloat16" else 4
    outputs = 2 * element * model.width + statistics + logits * model.vocabulary / t
    items["output"] = layout.micro * s * outputs
    if layout.stage == 3:  # the layer that is being computed, and the next one
        items["gathered"] = 2 * element * model.layer_parameters / t
    return items


def states(parameters: float, layout: Layout, precision: str = "mixed") -> dict[str, float]:
    """Return the bytes of weights, gradients and the optimizer's state, divided as the ZeRO stage says."""
    each = zip(STAGES.items(), PRECISION[precision], strict=True)
    return {
        name: parameters * nbytes / (layout.sharers if layout.stage >= stage else 1) for (name, stage), nbytes in each
    }


def sent(model: Transformer, layout: Layout) -> dict[str, float]:
    """Return the bytes that a GPU sends per step, by dimension of the layout.

    Parameters
    ----------
    model, layout : Transformer, Layout
        The model and its division; activations, weights and gradients have 2 bytes.

    Returns
    -------
    dict of str to float
        Of ``data``, with n replicas: (n−1)/n times 2Ψ parameters for ZeRO-0 and -1, (m+1)Ψ for ZeRO-2, 3mΨ for ZeRO-3.
        Of ``tensor``: 4 all-reduces per layer and micro-batch, 6 with full recomputation, which sequence parallelism
        replaces by as many bytes, if the inputs of matrices are not gathered a second time in the backward pass. Of
        ``pipeline``: v activations and gradients per micro-batch, each divided by t. Of ``context``: keys and values
        twice, forward and backward, and their gradients once.
    """
    t, p, m, n = layout.tensor, layout.pipeline, layout.batches, layout.sharers
    tokens = layout.micro * model.context / layout.context
    activation, layers = 2 * tokens * model.width, model.layers / p
    passes = 3 if layout.recompute == "full" else 2
    times = {2: m + 1, 3: 3 * m}.get(layout.stage, 2)
    around = (layout.context - 1) / layout.context
    return {
        "data": times * (n - 1) / n * 2 * model.parameters / (t * p),
        "tensor": m * passes * 2 * layers * 2 * (t - 1) / t * activation,
        "pipeline": 0 if p == 1 else m * 2 * layout.chunks * activation / t,
        "context": m * 3 * layers * 2 * 2 * layout.micro * model.context * model.keys / t * around,
    }

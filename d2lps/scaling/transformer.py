"""A transformer: its parameters, its FLOPs per token, and the activations that its layers save."""

from dataclasses import dataclass

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.units import is_count

RECOMPUTE = ("none", "selective", "full")  # selective: scores; with latent attention, queries, keys and values


class ScalingError(Brief, ValueError):
    """A model, a layout or a cluster that does not fit together: the sentence says how to change it."""


@dataclass(frozen=True)
class Transformer:
    """A decoder of layers with attention and a perceptron, in whose place there may be experts.

    Args:
        layers, width, heads, context, vocabulary: L; the size h of a vector; the number a of heads of attention; the
            tokens s of a sequence; V.
        hidden: The width of the perceptron's hidden layer; 4h if left out.
        groups: The number of heads of keys and values; ``heads`` if left out, fewer for grouped queries.
        gated: True for the kind of Llama: three matrices per perceptron (SwiGLU), RMSNorm, no biases, no learned
            positions.
        tied: Whether the head uses the matrix of the embedding.
        biases: Whether the four matrices of attention have biases.
        dropout: Whether each layer drops attention scores and both its results.
        fused: Whether attention saves no scores and skips the part that its causal mask hides, as FlashAttention does.
        head: The width of a head; ``width // heads`` if left out.
        extra: Parameters of a layer in no matrix and in neither normalization of the width: biases of Qwen2, norms of
            keys.
        experts, chosen, shared, narrow, dense: Perceptrons of a layer of experts; those that a token takes; those that
            all tokens take; the width of their hidden layers; and the first layers without experts. Routers balance
            perfectly, and have a matrix.
        latent: For attention of DeepSeek's kind (MLA): widths of the compressed queries (0: not compressed) and keys,
            and of the rotated part of a head.

    Raises:
        ScalingError: For counts below 1, and if ``heads`` does not divide ``width`` (without ``head``), or ``groups``
            ``heads``.

    Example:
        >>> Transformer(layers=96, width=12288, heads=96, context=2048, vocabulary=50257).parameters
        174604259328
    """

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    hidden: int = 0
    groups: int = 0
    gated: bool = False
    tied: bool = True
    biases: bool = True
    dropout: bool = True
    fused: bool = False
    head: int = 0
    extra: int = 0
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    narrow: int = 0
    dense: int = 0
    latent: tuple[int, int, int] | tuple[()] = ()

    def __post_init__(self):
        object.__setattr__(self, "hidden", self.hidden or 4 * self.width)
        object.__setattr__(self, "groups", self.groups or self.heads)
        counts = "layers width heads context vocabulary hidden groups".split()
        for name in counts + ("experts chosen narrow".split() if self.experts else []):
            require_count(name, getattr(self, name))
        if not self.head:
            require_divides("heads", self.heads, "width", self.width)
            object.__setattr__(self, "head", self.width // self.heads)
        require_divides("groups", self.groups, "heads", self.heads)

    @property
    def keys(self) -> int:
        """The width of all keys, and of all values, of a token."""
        return self.head * self.groups

    @property
    def inner(self) -> int:
        """The width of all heads together, h in most models."""
        return self.head * self.heads

    @property
    def rotated(self) -> int:
        """The width by which queries and keys of latent attention are wider than its values."""
        return self.heads * self.latent[2] if self.latent else 0

    @property
    def attention_matrices(self) -> int:
        """Parameters of the matrices of attention in a layer: 4h² for the kind of GPT-2."""
        if not self.latent:
            return 2 * self.width * (self.inner + self.keys)
        (query, key, turned), wide = self.latent, self.inner + self.rotated
        queries = (self.width + wide) * query if query else self.width * wide
        return queries + self.width * (key + turned) + key * 2 * self.inner + self.inner * self.width

    @property
    def raised(self) -> int:
        """Parameters of the matrices that make queries, keys and values of what latent attention has compressed."""
        if not self.latent:
            return 0
        query, key, _ = self.latent
        return query * (self.inner + self.rotated) + key * 2 * self.inner

    @property
    def recomputable(self) -> tuple[str, ...]:
        """What may be computed again: no scores if they are not saved."""
        return RECOMPUTE if self.latent or not self.fused else ("none", "full")

    @property
    def layer_parameters(self) -> int:
        """Parameters of the largest layer: 12h² + 13h for the kind of GPT-2."""
        return sum(held(self, 1))

    @property
    def end_parameters(self) -> int:
        """Parameters outside the layers: embedding, positions, the last normalization, and a head of its own."""
        h, embedding = self.width, self.vocabulary * self.width
        return (1 if self.tied else 2) * embedding + (h if self.gated else self.context * h + 2 * h)

    @property
    def parameters(self) -> int:
        """All parameters, Ψ."""
        return sum(held(self, self.layers)) + self.end_parameters

    def flops_per_token(self, recompute: str = "none") -> int:
        """Return the FLOPs of a training step per token.

        Args:
            recompute: ``"none"``; ``"selective"`` computes the scores of attention twice, or the queries, keys and
                values of latent attention; ``"full"`` all layers.

        Returns:
            6 per parameter of a matrix that a token meets, and 12Lhs for the scores of attention (half of it if fused):
                72Lh²(1 + s/6h + V/12Lh), and 96Lh²(1 + s/6h + V/16Lh) with full recomputation.

        Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021, appendix.
        """
        return sum(flops_of(self, recompute))

    def activations(
        self,
        micro: int = 1,
        tensor: int = 1,
        sequence: bool = False,
        recompute: str = "none",
        tokens: int = 0,
        element: int = 2,
        precise: int = 4,
        mask: int = 1,
        fused_swiglu: bool = False,
    ) -> dict[str, float]:
        """Return the bytes that a layer saves for its backward pass on one GPU, by kind.

        Args:
            micro, tokens: Sequences of a micro-batch (b) and the tokens of each (s); ``context`` if left out.
            tensor, sequence: GPUs that share each layer (t), and whether they also divide the activations between its
                matrices.
            recompute: ``"selective"`` saves no scores of attention, nor the queries, keys and values of latent
                attention; ``"full"`` only the input of a layer, or a GPU's part of it.
            element, precise, mask: Bytes of an activation, of a statistic of a normalization, and of an element of a
                dropout mask.
            fused_swiglu: Whether a gated perceptron saves two of its four vectors, and computes the others again, as
                xFormers does.

        Returns:
            For the kind of GPT-2: bsh(34 + 5as/h) and 16 bytes per token of statistics. Tensor parallelism leaves 10 of
                the 34 whole; with sequence parallelism everything is divided by t.

        Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022 (arXiv
        2205.05198).
        """
        h, s = self.width, tokens or self.context
        ends = tensor if sequence else 1
        if recompute == "full":  # divided already: Megatron-LM refuses distribute_saved_activations
            return {"inputs": micro * s * element * h / ends}
        statistics = (1 if self.gated else 2) * precise
        scores = (
            0 if self.fused or recompute == "selective" else s * (element * (1 + self.dropout) + mask * self.dropout)
        )
        whole, divided = h, 2 * self.inner + 2 * self.keys
        if self.latent:  # compressed queries and keys, before and after their normalization
            made = 0 if recompute == "selective" else 3 * self.inner + 2 * self.rotated
            whole, divided = h + 2 * sum(self.latent[:2]) + self.latent[2], self.inner + made
        vectors = (2 if fused_swiglu else 4) if self.gated else 2
        active = (self.chosen + self.shared) * self.narrow if self.experts else self.hidden
        kinds = {
            "normalization": 2 * (element * h + statistics) / ends,
            "attention": element * (whole / ends + divided / tensor) + 4 * self.heads * self.fused / tensor,
            "scores": self.heads * scores / tensor,
            "perceptron": element * ((1 + self.chosen) * h / ends + vectors * active / tensor),
            "dropout": 2 * mask * h * self.dropout / ends,
        }
        return {kind: micro * s * each for kind, each in kinds.items() if each}


def perceptron(model: Transformer, hidden: int) -> int:
    """Return the parameters of the matrices of a perceptron."""
    return (3 if model.gated else 2) * model.width * hidden


def held(model: Transformer, layers: int) -> tuple[int, int]:
    """Return the parameters of the fullest layers of such a number: those outside experts, and those of experts."""
    h, mixed = model.width, min(layers, model.layers - model.dense) if model.experts else 0
    each = model.attention_matrices + model.extra + 2 * h
    plain = perceptron(model, model.hidden)
    if not model.gated:
        plain += (2 * h + 2 * model.keys if model.biases else 0) + model.hidden + h + 2 * h
    routed = h * model.experts + perceptron(model, model.shared * model.narrow)
    outside = layers * each + (layers - mixed) * plain + mixed * routed
    return outside, mixed * perceptron(model, model.experts * model.narrow)


def flops_of(model: Transformer, recompute: str = "none") -> tuple[int, int, int]:
    """Return the FLOPs per token in three parts: those of the layers' matrices, of the scores, and of the head."""
    mixed = model.layers - model.dense if model.experts else 0
    matrices = model.layers * model.attention_matrices + (model.layers - mixed) * perceptron(model, model.hidden)
    matrices += mixed * (model.width * model.experts + perceptron(model, (model.chosen + model.shared) * model.narrow))
    scores = 2 * (2 * model.inner + model.rotated) * model.context // (2 if model.fused else 1)
    passes = {"none": (3, 3), "selective": (3, 3 if model.latent else 4), "full": (4, 4)}[recompute]
    again = model.layers * model.raised if recompute == "selective" else 0
    return 2 * (passes[0] * matrices + again), model.layers * passes[1] * scores, 6 * model.vocabulary * model.width


def products(model: Transformer, tensor: int = 1, expert: int = 1) -> list[tuple[float, float, float, float]]:
    """Return the products of matrices of a GPU in a layer: rows per token, the inner size, columns, and how many.

    Args:
        model: The model; of its layers one with experts, if it has such.
        tensor, expert: GPUs that share each matrix outside experts, and those over which the experts are divided.
    """
    h, inner = model.width, model.inner / tensor
    made: list[tuple[float, float, float, float]]
    if model.latent:
        query, key, turned = model.latent
        wide = inner + model.rotated / tensor
        made = [(1, h, query, 1), (1, query, wide, 1)] if query else [(1, h, wide, 1)]
        made += [(1, h, key + turned, 1), (1, key, 2 * inner, 1), (1, inner, h, 1)]
    else:
        made = [(1, h, inner + 2 * model.keys / tensor, 1), (1, inner, h, 1)]
    hidden = model.shared * model.narrow / tensor if model.experts else model.hidden / tensor
    up = 2 if model.gated else 1
    if hidden:
        made += [(1, h, up * hidden, 1), (1, hidden, h, 1)]
    if model.experts:  # those of a GPU get its share of the tokens of all GPUs
        count = model.experts / expert
        rows = model.chosen / tensor / count
        made += [(rows, h, up * model.narrow, count), (rows, model.narrow, h, count), (1 / tensor, h, model.experts, 1)]
    return made


def require_count(name: str, value: object) -> None:
    """Raise ScalingError unless a value is a whole number of 1 or more."""
    if not is_count(value, least=1):
        raise ScalingError(text("scaling.count", name=name, value=repr(value)))


def require_divides(name: str, count: int, of: str, whole: int) -> None:
    """Raise ScalingError unless ``count`` divides ``whole``."""
    if whole % count:
        raise ScalingError(text("scaling.divide", name=name, count=count, of=of, whole=whole))

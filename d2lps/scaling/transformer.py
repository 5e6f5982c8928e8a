"""A transformer: its parameters, its FLOPs per token, and the activations that its layers save."""

from dataclasses import dataclass

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.units import is_count

RECOMPUTE = ("none", "selective", "full")


class ScalingError(Brief, ValueError):
    """A model, a layout or a cluster that does not fit together: the sentence says how to change it."""


@dataclass(frozen=True)
class Transformer:
    """A decoder of equal layers, each with attention and one perceptron: mixtures of experts cannot be described.

    Parameters
    ----------
    layers, width, heads, context, vocabulary : int
        L; the size h of a vector; the number a of heads of attention; the tokens s of a sequence; V.
    hidden : int, optional
        The width of the perceptron's hidden layer; 4h if left out.
    groups : int, optional
        The number of heads of keys and values; ``heads`` if left out, fewer for grouped queries.
    gated : bool
        True for the kind of Llama: three matrices per perceptron (SwiGLU), RMSNorm, no biases, no learned positions.
    tied : bool
        Whether the head uses the matrix of the embedding.
    biases : bool
        Whether the four matrices of attention have biases.
    dropout : bool
        Whether each layer drops attention scores and both its results.
    fused : bool
        Whether attention saves no scores and skips the part that its causal mask hides, as FlashAttention does.

    Raises
    ------
    ScalingError
        For counts below 1, and if ``heads`` does not divide ``width``, or ``groups`` does not divide ``heads``.

    Examples
    --------
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

    def __post_init__(self):
        object.__setattr__(self, "hidden", self.hidden or 4 * self.width)
        object.__setattr__(self, "groups", self.groups or self.heads)
        for name in ("layers", "width", "heads", "context", "vocabulary", "hidden", "groups"):
            require_count(name, getattr(self, name))
        require_divides("heads", self.heads, "width", self.width)
        require_divides("groups", self.groups, "heads", self.heads)

    @property
    def keys(self) -> int:
        """The width of all keys, and of all values, of a token."""
        return self.width * self.groups // self.heads

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices: 12h² for the kind of GPT-2."""
        h = self.width
        return 2 * h * h + 2 * h * self.keys + (3 if self.gated else 2) * h * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: 12h² + 13h for the kind of GPT-2."""
        h = self.width
        if self.gated:
            return self.layer_matrices + 2 * h
        return self.layer_matrices + (2 * h + 2 * self.keys if self.biases else 0) + self.hidden + h + 4 * h

    @property
    def end_parameters(self) -> int:
        """Parameters outside the layers: embedding, positions, the last normalization, and a head of its own."""
        h, embedding = self.width, self.vocabulary * self.width
        return (1 if self.tied else 2) * embedding + (h if self.gated else self.context * h + 2 * h)

    @property
    def parameters(self) -> int:
        """All parameters, Ψ."""
        return self.layers * self.layer_parameters + self.end_parameters

    def flops_per_token(self, recompute: str = "none") -> int:
        """Return the FLOPs of a training step per token.

        Parameters
        ----------
        recompute : str
            ``"none"``; ``"selective"`` computes the scores of attention twice, ``"full"`` all layers.

        Returns
        -------
        int
            6 per parameter of a matrix, and 12Lhs for the scores of attention (half of it if fused), which is
            72Lh²(1 + s/6h + V/12Lh); 96Lh²(1 + s/6h + V/16Lh) with full recomputation.

        References
        ----------
        Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021, appendix.
        """
        matrices, scores = 2 * self.layer_matrices, 4 * self.width * self.context // (2 if self.fused else 1)
        passes = {"none": (3, 3), "selective": (3, 4), "full": (4, 4)}[recompute]
        layer = passes[0] * matrices + passes[1] * scores
        return self.layers * layer + 6 * self.vocabulary * self.width

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
    ) -> dict[str, float]:
        """Return the bytes that a layer saves for its backward pass on one GPU, by kind.

        Parameters
        ----------
        micro, tokens : int
            Sequences of a micro-batch (b) and the tokens of each (s); ``context`` if left out.
        tensor, sequence : int, bool
            GPUs that share each layer (t), and whether they also divide the activations between its matrices.
        recompute : str
            ``"selective"`` saves no scores of attention, ``"full"`` only the layer's input.
        element, precise, mask : int
            Bytes of an activation, of a statistic of a normalization, and of an element of a dropout mask.

        Returns
        -------
        dict of str to float
            For the kind of GPT-2: bsh(34 + 5as/h) and 16 bytes per token of statistics. Tensor parallelism leaves
            10 of the 34 whole; with sequence parallelism everything is divided by t.

        References
        ----------
        Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022 (arXiv 2205.05198).
        """
        h, s = self.width, tokens or self.context
        if recompute == "full":
            return {"inputs": micro * s * element * h}
        ends = tensor if sequence else 1
        statistics = (1 if self.gated else 2) * precise
        scores = (
            0 if self.fused or recompute == "selective" else s * (element * (1 + self.dropout) + mask * self.dropout)
        )
        kinds = {
            "normalization": 2 * (element * h + statistics) / ends,
            "attention": element * (h / ends + (2 * h + 2 * self.keys) / tensor) + 4 * self.heads * self.fused / tensor,
            "scores": self.heads * scores / tensor,
            "perceptron": element * (h / ends + (4 if self.gated else 2) * self.hidden / tensor),
            "dropout": 2 * mask * h * self.dropout / ends,
        }
        return {kind: micro * s * each for kind, each in kinds.items() if each}


def known(model: object) -> Transformer:
    """Return a model by its name, the description of a module that has one, or the model itself."""
    model = getattr(model, "transformer", model)
    if isinstance(model, Transformer):
        return model
    if not isinstance(model, str) or model not in MODELS:
        raise ScalingError(text("scaling.unknown-model", model=repr(model), models=", ".join(MODELS)))
    return MODELS[model]


def require_count(name: str, value: object) -> None:
    """Raise ScalingError unless a value is a whole number of 1 or more."""
    if not is_count(value, least=1):
        raise ScalingError(text("scaling.count", name=name, value=repr(value)))


def require_divides(name: str, count: int, of: str, whole: int) -> None:
    """Raise ScalingError unless ``count`` divides ``whole``."""
    if whole % count:
        raise ScalingError(text("scaling.divide", name=name, count=count, of=of, whole=whole))


# Table 1 of SC 2021: heads, width and layers by 10⁹ parameters.
_SC21 = {
    "1.7b": (24, 2304, 24),
    "3.6b": (32, 3072, 30),
    "7.5b": (32, 4096, 36),
    "18.4b": (48, 6144, 40),
    "39.1b": (64, 8192, 48),
    "76.1b": (80, 10240, 60),
    "145.6b": (96, 12288, 80),
    "310.1b": (128, 16384, 96),
    "529.6b": (128, 20480, 105),
    "1008b": (160, 25600, 128),
}
MODELS = {
    "gpt3": Transformer(96, 12288, 96, 2048, 50257),
    "gpt-22b": Transformer(48, 6144, 64, 2048, 51200),  # this and the next: table 3 of Korthikanti et al.
    "gpt-175b": Transformer(96, 12288, 96, 2048, 51200),
    **{f"gpt-{name}": Transformer(layers, h, heads, 2048, 51200) for name, (heads, h, layers) in _SC21.items()},
    "llama3-405b": Transformer(
        126, 16384, 128, 8192, 128256, 53248, 8, gated=True, tied=False, biases=False, dropout=False, fused=True
    ),
}

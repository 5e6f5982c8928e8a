"""A small GPT that reads bytes, made to be cut into stages, and the course's own prose to train it on.

Start with :class:`GPT`: an embedding, equal blocks of attention and a perceptron, and a head. The modules stand in a
row, so that any part of the row is a stage of a pipeline, and all matrices are plain ``nn.Linear``, so that each can be
cut by columns or rows.

>>> torch.manual_seed(0) and None
>>> net = GPT(layers=2, width=32, heads=4, context=16)
>>> inputs, labels = examples(prose("en"), 8, context=16)
>>> first, second = net.stages(2)
>>> torch.equal(second(first(inputs)), net(inputs)), net(inputs).shape
(True, torch.Size([8, 16, 256]))
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import d2lps
from d2lps.messages import LANGUAGES, text
from d2lps.messages.raised import Brief
from d2lps.scaling import Transformer

__all__ = ["GPT", "GptError", "examples", "loss", "prose"]

VOCABULARY = 256  # bytes
CHAPTERS = Path(d2lps.__file__).resolve().parents[1] / "chapters"


class GptError(Brief, ValueError):
    """A GPT that cannot be made or cut as asked, or prose that is not there."""


class Embedding(nn.Module):
    """The beginning of the row: bytes of shape (b, s) become vectors of shape (b, s, h), with their positions."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.bytes, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.bytes(x) + self.positions(torch.arange(x.shape[1], device=x.device))


class Attention(nn.Module):
    """Causal attention of several heads, whose matrices for queries, keys and values can be cut by heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise GptError(text("gpt.heads", width=width, heads=heads))
        self.size = width // heads  # of one head; their number follows from the matrices, which may be a part
        # A bias of the keys has no influence on the result: its gradient would be noise.
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._by_heads(matrix(x)) for matrix in (self.query, self.key, self.value))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def _by_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.size)).transpose(1, 2)  # (b, heads, s, size)


class Perceptron(nn.Module):
    """Two matrices with GELU between them; the hidden layer is four times as wide."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    """One layer: attention and perceptron, each after a normalization and added to its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.perceptron = nn.LayerNorm(width), Perceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Sequential):
    """A language model over bytes: embedding, ``layers`` blocks, and a head.

    Args:
        layers, width, heads: The number of blocks, the size of a vector (h), and the number of heads of attention.
        context: The greatest number of bytes of an example (s).

    Raises:
        GptError: If ``width`` is no multiple of ``heads``.
    """

    def __init__(self, layers: int = 4, width: int = 64, heads: int = 4, context: int = 64):
        head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
        super().__init__(Embedding(width, context), *(Block(width, heads) for _ in range(layers)), head)

    @property
    def transformer(self) -> Transformer:
        """The description of this model, from which its memory and speed are predicted."""
        width, blocks = self[0].bytes.embedding_dim, [*self][1:-1]
        return Transformer(
            layers=len(blocks),
            width=width,
            heads=width // blocks[0].attention.size,
            context=self[0].positions.num_embeddings,
            vocabulary=VOCABULARY,
            tied=False,
            biases=False,
            dropout=False,
            fused=True,
        )

    def stages(self, cuts: "int | Sequence[int]") -> list[nn.Sequential]:
        """Return parts of the row as stages, which share this model's parameters.

        Args:
            cuts: The number of stages, whose lengths differ by 1 module at most; or the number of modules of each
                stage.

        Returns:
            In order; the output of each is the input of the next.

        Raises:
            GptError: If a stage would be empty, or the lengths do not add up to ``layers`` + 2 modules.
        """
        modules = [*self]
        if isinstance(cuts, int):
            cuts = [len(modules) // max(cuts, 1) + (i < len(modules) % max(cuts, 1)) for i in range(cuts)]
        if not cuts or min(cuts) < 1 or sum(cuts) != len(modules):
            raise GptError(text("gpt.stages", cuts=list(cuts), modules=len(modules)))
        ends = [sum(cuts[: i + 1]) for i in range(len(cuts))]
        return [nn.Sequential(*modules[end - count : end]) for count, end in zip(cuts, ends, strict=True)]


def loss(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy per byte, in nats: outputs of shape (b, s, 256), labels of shape (b, s)."""
    return cross_entropy(output.flatten(0, -2), labels.flatten())


def prose(language: str) -> bytes:
    """Return the text of the course's numbered chapters in ``"en"``, ``"vi"`` or ``"zh"``, as UTF-8.

    Args:
        language: One of the course's languages.

    Returns:
        Some 200 kB.

    Raises:
        GptError: If there is no such language, or d2lps is installed without the course.
    """
    if language not in LANGUAGES:
        raise GptError(text("gpt.language", language=repr(language), languages=" ".join(LANGUAGES)))
    pages = sorted(CHAPTERS.glob(f"[0-9]*/{language}.md"))
    if not pages:
        raise GptError(text("gpt.no-prose", folder=CHAPTERS))
    return b"\n".join(page.read_bytes() for page in pages)


def examples(source: bytes, count: int, context: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw pieces of a text; the label of each byte is the byte that follows.

    Args:
        source: The text.
        count, context: The number of pieces, and the bytes of each.
        seed: Equal seeds draw equal pieces.

    Returns:
        Inputs and labels, both int64 of shape (count, context).

    Raises:
        GptError: If the text is shorter than ``context`` + 1 bytes.
    """
    if len(source) <= context:
        raise GptError(text("gpt.short", bytes=len(source), context=context))
    data = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()
    starts = torch.randint(len(data) - context, (count,), generator=torch.Generator().manual_seed(seed))
    pieces = data[starts[:, None] + torch.arange(context + 1)]
    return pieces[:, :-1], pieces[:, 1:]

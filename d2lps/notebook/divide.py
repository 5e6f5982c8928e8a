"""A model divided over GPUs by hand: the memory of a GPU as a vessel, and the seconds of a step by cause."""

from d2lps.messages import text
from d2lps.notebook.hand import Hand
from d2lps.scaling import GPUS, Layout, Prediction, ScalingError, kept, step
from d2lps.scaling.layout import check
from d2lps.scaling.models import known
from d2lps.scaling.transformer import Transformer, require_divides
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.lanes import LOOKS
from d2lps.view.drawing.svg import area, hatch, line, page, rect, stroke, tag, words, worker
from d2lps.view.drawing.theme import STYLE

CUTS = (1, 2, 4, 8, 16)
FULL = 1.45  # the height of the picture, in vessels: what overflows has this much room
PARTS = {  # of a step → what its time is counted as
    "computing": ("matrices", "attention", "reading", "starts", "update"),
    "messages": ("tensor", "context", "pipeline", "data"),
    "bubble": ("bubble",),
}
STATE = ("weights", "gradients", "optimizer")  # all other bytes are activations
LAYERS = (*STATE, "activations")
LEFT, WIDE, HIGH = 14, 620, 26  # of the still


def divide(
    model: "str | Transformer", gpus: int, batches: tuple[int, ...], gpu: str = "a100", t: int = 8, p: int = 4
) -> "Division":
    """Show a step of a model on GPUs, with sliders for t, p and the batch; d follows from t · p.

    Args:
        model: A known model such as ``"gpt3"``, or a description.
        gpus: The number of GPUs, which is t · p · d.
        batches: The sequences of a step; the first is shown at the start.
        gpu: ``"a100"`` or ``"h100"``.
        t, p: The division at the start: 1, 2, 4, 8 or 16 GPUs per matrix, and as many stages.

    Returns:
        A notebook shows it, with its sliders.

    Raises:
        ScalingError: For a ``t`` or ``p`` that the sliders do not have.

    Example:
        >>> divide("gpt-39.1b", 64, (16, 64))
        <divide: 8 · 4 · 2, 16.34 GB, 1.26 s>
        >>> divide("gpt-39.1b", 64, (16, 64), t=16)
        <divide: 16 · 4 · 1, 11.99 GB, 3.742 s>
    """
    for name, cut in (("t", t), ("p", p)):
        if cut not in CUTS:
            raise ScalingError(text("divide.cut", name=name, value=repr(cut), known=", ".join(map(str, CUTS))))
    return Division(known(model), gpus, batches, gpu, t, p)


class Division(Hand):
    """The result of :func:`divide`.

    Attributes:
        choices (dict of (int, int, int) to Prediction or ScalingError): t, p and the batch → the division, or why there
            is none.
    """

    def __init__(self, model: Transformer, gpus: int, batches: tuple[int, ...], gpu: str, t: int, p: int):
        self._model, self._gpus, self._gpu, self._batches = model, gpus, GPUS[gpu], batches
        self._start = t, p, batches[0]
        super().__init__()

    @property
    def choices(self) -> "dict[tuple[int, int, int], Prediction | ScalingError]":
        """All positions of the sliders, with errors in the language in force."""
        positions = [(t, p, batch) for t in CUTS for p in CUTS for batch in self._batches]
        return {position: self._chosen(*position) for position in positions}

    def _chosen(self, t: int, p: int, batch: int) -> "Prediction | ScalingError":
        d = self._gpus // (t * p)
        try:
            if not d:
                raise ScalingError(text("divide.gpus", cut=f"{t} · {p}", needs=t * p, gpus=self._gpus))
            require_divides("t · p", t * p, "gpus", self._gpus)
            if batch < d:
                raise ScalingError(text("divide.few", replicas=d, batch=batch))
            layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
            check(self._model, layout)
        except ScalingError as error:
            return error
        return Prediction(self._model, self._gpu, layout, step(self._model, layout, self._gpu))

    def content(self) -> dict:
        """Return the words, and what is shown for each position of the sliders."""
        choices, limit = self.choices, self._gpu.memory
        longest = {
            batch: max(
                choice.seconds[1]
                for (*_, of), choice in choices.items()
                if of == batch and not isinstance(choice, ScalingError)
            )
            for batch in self._batches
        }
        t, p, batch = self._start
        return {
            "kind": "vessel",
            "words": {name: text(f"divide.{name}") for name in ("t", "p", "batch", "all")}
            | {"limit": show_size(limit)},
            "cuts": CUTS,
            "batches": self._batches,
            "at": {"t": CUTS.index(t), "p": CUTS.index(p), "batch": self._batches.index(batch)},
            "limit": limit,
            "most": FULL * limit,
            "layers": [text(f"divide.{name}") for name in LAYERS],
            "table": {
                " ".join(map(str, position)): self._entry(position, choice, longest[position[2]])
                for position, choice in choices.items()
            },
        }

    def _entry(self, position: tuple[int, int, int], choice: "Prediction | ScalingError", longest: float) -> dict:
        """Return what is shown for one position."""
        d, over = divmod(self._gpus, position[0] * position[1])
        entry = {"d": d or 1, "rest": "" if over else text("divide.rest", gpus=self._gpus, d=d)}
        if isinstance(choice, ScalingError):
            return entry | {"refused": str(choice)}
        sizes, seconds = layers(choice), parts(choice)
        return entry | {
            "said": self._said(choice),
            "sizes": [*sizes.values()],
            "shown": [*map(show_size, sizes.values())],
            "size": sum(sizes.values()),
            "total": show_size(sum(sizes.values())),
            "seconds": [_short(each) for each in seconds.values()],
            "ends": [*map(_short, choice.seconds)],
            "longest": _short(longest),
            "step": text("divide.step", time=show_seconds(choice.duration)),
            "parts": [text(f"divide.{name}", time=show_seconds(each)) for name, each in seconds.items()],
            "interval": text(
                "divide.interval", **dict(zip(("low", "high"), map(show_seconds, choice.seconds), strict=True))
            ),
        }

    def _said(self, choice: Prediction) -> str:
        size, (low, high) = sum(layers(choice).values()), choice.seconds
        named = {
            "cut": " · ".join(map(str, choice.layout[:3])),
            "size": show_size(size),
            "limit": show_size(self._gpu.memory),
            "time": show_seconds(choice.duration),
            "low": show_seconds(low),
            "high": show_seconds(high),
        }
        return text("divide.fits" if size <= self._gpu.memory else "divide.too-large", **named)

    def still(self) -> str:
        """Return the memory and the seconds of the first position as bars."""
        choice = self._chosen(*self._start)
        if isinstance(choice, ScalingError):
            return page(str(choice), WIDE + 2 * LEFT, 44, words(str(choice), LEFT, 28, "note", "ink", "start"))
        drawn = [words(self._said(choice), LEFT, 24, "note", "ink", "start")]
        limit, seconds = self._gpu.memory, parts(choice)
        rows = [
            (
                44,
                layers(choice),
                max(limit, sum(layers(choice).values())),
                lambda name, size: f"{text(f'divide.{name}')} {show_size(size)}",
            ),
            (134, seconds, sum(seconds.values()), lambda name, time: text(f"divide.{name}", time=show_seconds(time))),
        ]
        for y, amounts, most, label in rows:
            x = float(LEFT)
            for i, (name, amount) in enumerate(amounts.items()):
                long, mark = WIDE * amount / most, LEFT + i * WIDE / len(amounts)
                for place in ((x, y, long, HIGH), (mark, y + HIGH + 14, 12, 12)):
                    drawn.append(tag("path", d=rect(*place), **(area("well") if name == "bubble" else worker(i))))
                    drawn += [tag("path", d=hatch(*place), **stroke("line", 1))] * (name == "bubble")
                drawn.append(words(label(name, amount), mark + 17, y + HIGH + 25, "note", "ink", "start"))
                x += long
        edge = LEFT + WIDE * limit / rows[0][2]
        drawn.append(tag("path", d=line((edge, 40), (edge, 48 + HIGH)), **stroke("done", 3)))
        return page(self._said(choice), WIDE + 2 * LEFT, 216, *drawn, looks=STYLE + LOOKS)

    def __repr__(self) -> str:
        choice = self._chosen(*self._start)
        if isinstance(choice, ScalingError):
            return f"<divide: {choice}>"
        size = show_size(sum(layers(choice).values()))
        return f"<divide: {' · '.join(map(str, choice.layout[:3]))}, {size}, {show_seconds(choice.duration)}>"


def layers(choice: Prediction) -> dict[str, float]:
    """Return the bytes of a GPU: weights, gradients, optimizer and activations."""
    lines = kept(choice.model, choice.layout)
    return {name: lines[name] for name in STATE} | {
        "activations": sum(size for name, size in lines.items() if name not in STATE)
    }


def parts(choice: Prediction) -> dict[str, float]:
    """Return the seconds of a step: computing, messages and bubble."""
    return {name: sum(choice.parts[each] for each in of) for name, of in PARTS.items()}


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}")

"""A model divided over GPUs by sliders: the memory of a GPU beside its limit, and the seconds of a step by cause."""

from collections.abc import Mapping
from html import escape

import ipywidgets

from d2lps.messages import html_language, text
from d2lps.notebook.explore import Names
from d2lps.notebook.explore_page import dials
from d2lps.scaling import GPUS, Layout, Prediction, ScalingError, kept, step
from d2lps.scaling.layout import check
from d2lps.scaling.models import known
from d2lps.scaling.transformer import Transformer, require_divides
from d2lps.units import show_seconds, show_size
from d2lps.view.drawing.svg import area, hatch, line, rect, sheet, stroke, tag, words, worker
from d2lps.view.drawing.theme import STYLE
from d2lps.view.player import has_front_end, without_view

CUTS = (1, 2, 4, 8, 16)
LEFT, WIDE, HIGH = 12, 600, 26
PARTS = {  # of a step → what its time is counted as
    "computing": ("matrices", "attention", "reading", "starts", "update"),
    "messages": ("tensor", "context", "pipeline", "data"),
    "bubble": ("bubble",),
}


def divide(model: "str | Transformer", gpus: int, batches: tuple[int, ...], gpu: str = "a100") -> "Division":
    """Show a step of a model on GPUs, with sliders for t, p and the batch; d follows from t · p.

    Args:
        model: A known model such as ``"gpt3"``, or a description.
        gpus: The number of GPUs, which is t · p · d.
        batches: The sequences of a step; the first is shown at the start.
        gpu: ``"a100"`` or ``"h100"``.

    Returns:
        A notebook shows it, with its sliders.

    Example:
        >>> lab = divide("gpt-39.1b", 64, (16, 64))
        >>> lab
        <divide: 8 · 4 · 2, 16.34 GB, 1.243 s>
        >>> lab.controls["t"].value = 16
        >>> lab
        <divide: 16 · 4 · 1, 11.99 GB, 3.77 s>
    """
    return Division(known(model), gpus, batches, gpu)


class Division(ipywidgets.VBox):
    """The result of :func:`divide`.

    Attributes:
        controls (dict of str to widget): The sliders ``"t"``, ``"p"`` and ``"batch"``.
    """

    def __init__(self, model: Transformer, gpus: int, batches: tuple[int, ...], gpu: str):
        self._model, self._gpus, self._gpu = model, gpus, GPUS[gpu]
        start = {"t": (CUTS, 8), "p": (CUTS, 4), "batch": (batches, batches[0])}
        look = {"style": {"description_width": "initial"}}
        self.controls = {
            name: ipywidgets.SelectionSlider(
                options=[(str(each), each) for each in values], value=now, description=text(f"divide.{name}"), **look
            )
            for name, (values, now) in start.items()
        }
        for control in self.controls.values():
            control.observe(lambda _: self.redraw(), "value")
        row = ipywidgets.HBox([*self.controls.values()], layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._stage = ipywidgets.HTML()
        super().__init__([row, self._stage, Names()])
        self.redraw()

    def redraw(self) -> None:
        """Show everything anew for the positions of the sliders."""
        self._stage.value = self._content(self._now())["report"]

    def _now(self) -> dict[str, int]:
        return {name: control.value for name, control in self.controls.items()}

    def _chosen(self, values: Mapping[str, int]) -> Prediction:
        """Return the division; raise ScalingError if there is none."""
        t, p, batch = values["t"], values["p"], values["batch"]
        d = self._gpus // (t * p)
        if not d:
            raise ScalingError(text("divide.gpus", cut=f"{t} · {p}", needs=t * p, gpus=self._gpus))
        require_divides("t · p", t * p, "gpus", self._gpus)
        if batch < d:
            raise ScalingError(text("divide.few", replicas=d, batch=batch))
        layout = Layout(t, p, d, 1, 1, batch // d, stage=1, recompute="selective")
        check(self._model, layout)
        return Prediction(self._model, self._gpu, layout, step(self._model, layout, self._gpu))

    def _content(self, values: Mapping[str, int]) -> dict[str, str]:
        t, p = values["t"], values["p"]
        start = f'<div lang="{html_language()}">'
        if not self._gpus % (t * p):
            start += f"<p>{escape(text('divide.rest', gpus=self._gpus, d=self._gpus // (t * p)))}</p>"
        try:
            choice = self._chosen(values)
        except ScalingError as error:
            return {"report": f'{start}<p role="status">✗ {escape(str(error))}</p></div>'}
        size, (low, high) = sum(kept(choice.model, choice.layout).values()), choice.seconds
        parts = {name: sum(choice.parts[each] for each in of) for name, of in PARTS.items()}
        named = {
            "cut": " · ".join(map(str, choice.layout[:3])),
            "size": show_size(size),
            "limit": show_size(self._gpu.memory),
            "time": show_seconds(choice.duration),
            "low": show_seconds(low),
            "high": show_seconds(high),
        }
        said = text("divide.fits" if size <= self._gpu.memory else "divide.too-large", **named)
        picture = self._picture(size, parts, (low, high), self._longest(values["batch"]), said)
        return {
            "report": f'{start}<p role="status"><b>{escape(said)}</b></p>'
            f'<div tabindex="0" style="overflow-x:auto">{picture}</div></div>'
        }

    def _plain(self, values: Mapping[str, int]) -> dict[str, str]:
        """Return the content without the style sheet, which the page has once."""
        return {"report": self._content(values)["report"].replace(f"<style>{STYLE}</style>", "")}

    def _longest(self, batch: int) -> float:
        """Return the greatest end of an interval for this batch, which is the length of the axis."""
        ends = []
        for t in CUTS:
            for p in CUTS:
                try:
                    ends.append(self._chosen({"t": t, "p": p, "batch": batch}).seconds[1])
                except ScalingError:
                    continue
        return max(ends)

    def _picture(
        self, size: float, parts: dict[str, float], ends: tuple[float, float], longest: float, said: str
    ) -> str:
        most = 2 * self._gpu.memory  # a longer bar ends at the edge
        x, long, limit = LEFT, WIDE * min(1, size / most), LEFT + WIDE * self._gpu.memory / most
        fits = size <= self._gpu.memory
        drawn = [
            words(text("divide.memory", size=show_size(size)), x, 24, "name", "ink", "start"),
            tag("path", d=rect(x, 32, long, HIGH), **(worker(0) if fits else area("warm"))),
            tag("path", d=line((limit, 28), (limit, 36 + HIGH)), **stroke("done", 3)),
            words(text("divide.limit", size=show_size(self._gpu.memory)), limit, 50 + HIGH, "note", "ink"),
            words(text("divide.step", time=show_seconds(sum(parts.values()))), x, 118, "name", "ink", "start"),
        ]
        for i, (name, seconds) in enumerate(parts.items()):
            long, mark, idle = WIDE * seconds / longest, LEFT + i * 165, name == "bubble"
            look = area("well") if idle else worker(int(name != "computing"))
            for place in ((x, 126, long, HIGH), (mark, 194, 14, 14)):
                drawn.append(tag("path", d=rect(*place), **look))
                drawn += [tag("path", d=hatch(*place), **stroke("line", 1))] * idle
            label = text(f"divide.{name}", time=show_seconds(seconds))
            drawn.append(words(label, mark + 20, 206, "note", "ink", "start"))
            x += long
        low, high = (LEFT + WIDE * end / longest for end in ends)
        across = line((low, 164), (high, 164)) + line((low, 159), (low, 169)) + line((high, 159), (high, 169))
        drawn.append(tag("path", d=across, **stroke("done", 2)))
        label = text("divide.interval", low=show_seconds(ends[0]), high=show_seconds(ends[1]))
        near = "start" if low < LEFT + WIDE / 2 else "end"
        drawn.append(words(label, low if near == "start" else high, 183, "note", "ink", near))
        return sheet(2 * LEFT + WIDE, 218, said, *drawn, style="min-width:460px;width:100%;max-width:760px;height:auto")

    def __repr__(self) -> str:
        try:
            choice = self._chosen(self._now())
        except ScalingError as error:
            return f"<divide: {error}>"
        size = show_size(sum(kept(choice.model, choice.layout).values()))
        return f"<divide: {' · '.join(map(str, choice.layout[:3]))}, {size}, {show_seconds(choice.duration)}>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        """Add a page for readers without a kernel, with all positions of the sliders."""
        widget = super()._repr_mimebundle_(**kwargs)
        bundle = widget | {"text/plain": repr(self), "text/html": dials(self.controls, self._plain)[0]}
        return bundle if has_front_end() else without_view(bundle)

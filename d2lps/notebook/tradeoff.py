"""Steps against examples, with sliders for batch, devices and price: where a training stands, and what it costs.

The picture has no unit of its own. Its axes are multiples of the fewest steps and of the fewest examples, so that every
training that obeys the formula lies on one curve, (steps − 1)(examples − 1) = 1, and a small one measured here can
stand beside a large one. Through the chosen point goes the line of all points that take as long; if it touches the
curve, no other batch is faster.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets

from d2lps.messages import html_language, text
from d2lps.notebook.explore import Names
from d2lps.notebook.explore_page import Offer, page
from d2lps.scaling.job import Job
from d2lps.units import show_integer, show_number, show_seconds
from d2lps.view.drawing.svg import area, fine, sheet, stroke, tag, words, worker
from d2lps.view.player import has_front_end, without_view
from d2lps.view.tables import SCROLLS

MOST = 40  # of both axes
TICKS = (1, 2, 5, 10, 20, 40)
WIDE, HIGH, LEFT, TOP = 560, 330, 54, 14
SAME = stroke("done", 2, "warm") | {"style": "stroke:var(--d2-warm)"}


def tradeoff(
    job: Job,
    price: float,
    dots: Sequence[tuple[float, float]] = (),
    devices: Sequence[int] = (1, 8, 64, 256, 1024),
    prices: Sequence[float] = (),
) -> "Tradeoff":
    """Show a training on the curve of steps and examples, with sliders for batch, devices and price.

    Args:
        job: The training.
        price: US dollars per device and hour.
        dots: Other trainings, such as measured ones, as multiples of the fewest steps and examples.
        devices, prices: The positions of the sliders; ``price`` is always one of them.

    Returns:
        A notebook shows it, with its sliders.

    Example:
        >>> lab = tradeoff(Job(72_000, 1e6, 22_000, 0.288, 2048), 6.88)
        >>> lab
        <tradeoff: 64 devices, batch 1 × V_c: 39.75 h>
        >>> lab.controls["devices"].value = 256
        >>> lab
        <tradeoff: 256 devices, batch 1 × V_c: 18.58 h>
    """
    return Tradeoff(job, price, dots, devices, prices)


class Tradeoff(ipywidgets.VBox):
    """The result of :func:`tradeoff`.

    Attributes:
        controls (dict of str to widget): The sliders ``"batch"`` (as a multiple of V_c), ``"devices"`` and ``"price"``.
    """

    def __init__(self, job: Job, price: float, dots: Sequence, devices: Sequence[int], prices: Sequence[float]):
        self.job, self._dots = job, [*dots]
        self._shown: dict = {}
        options = {
            "batch": [(_times(part), part) for part in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16)],
            "devices": [(_count(n), n) for n in devices],
            "price": [(f"${each:.2f}", each) for each in sorted({price, *prices})],
        }
        start = {"batch": 1, "devices": devices[len(devices) // 2], "price": price}
        look = {"style": {"description_width": "initial"}, "continuous_update": False}
        self.controls = {
            name: ipywidgets.SelectionSlider(
                options=pairs, value=start[name], description=text(f"tradeoff.{name}"), **look
            )
            for name, pairs in options.items()
        }
        for control in self.controls.values():
            control.observe(lambda _: self.redraw(), "value")
        row = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        self._stage = ipywidgets.HTML()
        super().__init__([row, self._stage, Names()])
        self.redraw()

    def _now(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self) -> None:
        """Show everything anew for the positions of the sliders."""
        self._stage.value = self._content(self._now())["report"]

    def _numbers(self, values: Mapping[str, Any]) -> tuple[float, float, float]:
        """Return batch, seconds and cost."""
        batch = max(values["batch"] * self.job.critical, self.job.least * values["devices"])
        n = values["devices"]
        return batch, self.job.seconds(n, batch), self.job.cost(n, values["price"], batch)

    def _content(self, values: Mapping[str, Any]) -> dict[str, str]:
        batch, seconds, cost = self._numbers(values)
        n, job = values["devices"], self.job
        best = job.best_batch(n)
        rows = [
            ("now", batch, job.steps_of(batch), seconds, cost),
            ("best", best, job.steps_of(best), job.seconds(n, best), job.cost(n, values["price"], best)),
        ]
        heads = ["", *(text(f"tradeoff.{name}") for name in ("examples-of-batch", "steps", "takes", "cost"))]
        lines = [
            [text(f"tradeoff.{name}"), _count(b), _count(s), _time(t), f"${_count(c)}"] for name, b, s, t, c in rows
        ]
        side = ' style="text-align:right;padding-left:1.2em"'
        head = "".join(f"<th{side if i else ''}>{escape(each)}</th>" for i, each in enumerate(heads))
        body = "".join(
            "<tr>" + "".join(f"<td{side if i else ''}>{escape(each)}</td>" for i, each in enumerate(line)) + "</tr>"
            for line in lines
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        picture = f'<div tabindex="0" style="{SCROLLS}">{self._picture(n, batch)}</div>'
        return {"report": f'<div lang="{html_language()}">{picture}{table}</div>'}

    def _picture(self, n: int, batch: float) -> str:
        """Draw the curve, the dots, and the line of all points that take as long as this batch."""
        job = self.job
        step, example = job.exchange * (n - 1) / n * job.steps, job.critical * job.steps / (n * job.rate)
        x, y = 1 + job.critical / batch, 1 + batch / job.critical
        whole = step * x + example * y
        parts = []
        for tick in TICKS:
            (across, _), (_, up) = _at(tick, 1), _at(1, tick)
            parts.append(
                tag(
                    "path",
                    d=f"M{fine(across)} {TOP}v{HIGH}M{LEFT} {fine(up)}h{WIDE}",
                    **stroke("gaps", 1, "edge"),
                    style="stroke:var(--d2-edge)",
                )
            )
            parts += [words(str(tick), across, TOP + HIGH + 16, "note", "soft")]
            parts += [words(str(tick), LEFT - 8, up + 4, "note", "soft", "end")]
        parts.append(_line([(1 + 10**e, 1 + 10**-e) for e in _steps(-2, 2)], **stroke("line", 2.5)))
        same = [(a, (whole - step * a) / example) for a in (10**e for e in _steps(0, 1.61))]
        parts.append(_line([(a, b) for a, b in same if b >= 1], stroke_dasharray="6 4", **SAME))
        for dot in self._dots:
            across, up = _at(*dot)
            parts.append(tag("circle", cx=across, cy=up, r=4.5, **worker(0)))
        across, up = _at(x, y)
        parts.append(tag("circle", cx=across, cy=up, r=8, **area("warm")))
        parts.append(words(text("tradeoff.x"), LEFT + WIDE / 2, TOP + HIGH + 34, "note", "ink"))
        turned = f"rotate(-90 16 {TOP + HIGH / 2})"
        parts.append(words(text("tradeoff.y"), 16, TOP + HIGH / 2, "note", "ink", transform=turned))
        parts += self._legend()
        title = text("tradeoff.title", steps=show_number(x, 3), examples=show_number(y, 3))
        return sheet(
            LEFT + WIDE + 14, TOP + HIGH + 44, title, *parts, style="min-width:460px;max-width:100%;height:auto"
        )

    def _legend(self) -> list[str]:
        x, y, parts = LEFT + WIDE - 12, TOP + 20, []
        for name in ("curve", "measured", "chosen", "same-time"):
            if name == "measured" and not self._dots:
                continue
            marks = {
                "curve": tag("path", d=f"M{x - 22} {y}h22", **stroke("line", 2.5)),
                "measured": tag("circle", cx=x - 11, cy=y, r=4.5, **worker(0)),
                "chosen": tag("circle", cx=x - 11, cy=y, r=7, **area("warm")),
                "same-time": tag("path", d=f"M{x - 22} {y}h22", stroke_dasharray="6 4", **SAME),
            }
            parts += [marks[name], words(text(f"tradeoff.{name}"), x - 30, y + 4, "note", "ink", "end")]
            y += 20
        return parts

    def __repr__(self) -> str:
        values = self._now()
        _, seconds, _ = self._numbers(values)
        batch = f"{values['batch']:g} × V_c"
        return f"<tradeoff: {values['devices']} devices, batch {batch}: {_time(seconds)}>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        """Add a page for readers without a kernel, with other positions of the sliders computed in advance."""
        widget = super()._repr_mimebundle_(**kwargs)
        bundle = widget | {"text/plain": repr(self), "text/html": page(self._offers(), self._content, self._shown)}
        return bundle if has_front_end() else without_view(bundle)

    def _offers(self) -> list[Offer]:
        now = self._now()
        return [
            Offer(
                name,
                control.description,
                now,
                [v for _, v in control.options if v != now[name]],
                {value: label for label, value in control.options},
                at_once=9,
            )
            for name, control in self.controls.items()
        ]


def _at(steps: float, examples: float) -> tuple[float, float]:
    """Return the place of a point on the sheet; both axes are logarithmic, from 1 to MOST."""
    x, y = (math.log(min(max(value, 0.9), 1.1 * MOST)) / math.log(MOST) for value in (steps, examples))
    return LEFT + WIDE * x, TOP + HIGH * (1 - y)


def _line(points: Sequence[tuple[float, float]], **look: object) -> str:
    inside = [_at(*point) for point in points if max(point) <= MOST]
    return tag("path", d="M" + "L".join(f"{fine(x)} {fine(y)}" for x, y in inside), **look)


def _steps(first: float, last: float, count: int = 80) -> list[float]:
    return [first + (last - first) * i / count for i in range(count + 1)]


def _times(part: float) -> str:
    return f"{part:g} × V_c" if part >= 1 else f"V_c ÷ {1 / part:g}"


def _count(number: float) -> str:
    return show_integer(round(number)) if number >= 100 else f"{number:.3g}"


def _time(seconds: float) -> str:
    return f"{show_number(seconds / 3600)} h" if seconds >= 600 else show_seconds(seconds)

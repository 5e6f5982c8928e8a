"""The player: traces that move, in a notebook, on a static page, or in a file sent to a colleague.

Python computes everything once, and the ES module only moves it. Without a kernel the same module plays the same data
from the widget's ``text/html`` form, which needs no network. ``player.js`` decides what each key of the
keyboard does and which speeds there are, ``data.py`` which numbers it gets.
"""

import hashlib
import html
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from d2lps.messages import language, named, only, text
from d2lps.schedule import Schedule
from d2lps.trace import Trace
from d2lps.view.drawing import DrawingError, lanes, legend, require_trace
from d2lps.view.drawing.lanes import Lanes
from d2lps.view.drawing.scene import Scene, race
from d2lps.view.drawing.still import breadth, stacked, still, told
from d2lps.view.drawing.theme import STYLE, THIN
from d2lps.view.player import data
from d2lps.view.widgets import AnyWidget, Dict

HERE = Path(__file__).parent
MODULE = (HERE / "player.js").read_text("utf-8")
LOOKS = STYLE + THIN + lanes.LOOKS + legend.LOOKS + (HERE / "player.css").read_text("utf-8")


def watch(*traces: Trace, names: "str | Sequence[str] | None" = None, name: str = "", zoom: bool = False) -> "Player":
    """Play one trace, or several on one clock: the shorter ones finish first.

    Args:
        *traces: The traces to play, predicted or measured: all of plans, or all of schedules.
        names: Their headings, one for each; by default several traces have the names A, B, C …
        name: The name by which links in a text find this player: ``[the one
            uplink](#player:race?at=30ms&show=switch→cpu)`` takes the player ``"race"`` to 30 ms and marks the node or
            link (``from→to``) with that name.
        zoom: True to show one trace at a time, with a button for each name, such as the sizes of a fabric
            (:func:`d2lps.fold`).

    Returns:
        A widget that a notebook shows with its controls.

    Raises:
        DrawingError: For an argument that is not a trace, for no traces, for a wrong number of names, for traces of
            plans beside traces of schedules, and for a trace that is too large to be legible.

    Example:
        >>> from d2lps import aggregate_at, cost, pcie_server, sharded, watch
        >>> gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
        >>> plans = aggregate_at(gpus, "gpu0"), sharded(gpus)
        >>> watch(*(cost.shared(plan, pcie_server(), "160 MB") for plan in plans), names=["at GPU 0", "sharded"])
        <Player: at GPU 0 60 ms, sharded 15 ms>
    """
    if not traces:
        raise DrawingError(text("player.nothing"))
    if any(isinstance(trace, list | tuple) for trace in traces):
        raise DrawingError(
            text("player.list", given=next(type(t).__name__ for t in traces if not isinstance(t, Trace)))
        )
    scenes = staged(traces)
    if zoom:  # each picture has the sheet for itself
        for scene in scenes:
            if isinstance(scene, Scene):
                scene.view = 0.0, 0.0, scene.layout.width, scene.layout.height
    if names is None:
        names = [chr(ord("A") + i % 26) for i in range(len(traces))] if traces[1:] else [""]
    names = [names] if isinstance(names, str) else names  # one name, not a name per letter
    if len(names) != len(traces):
        raise DrawingError(text("player.names", names=len(names), traces=len(traces)))
    return Player(scenes, [str(heading) for heading in names], str(name), bool(zoom))


def staged(traces: Sequence[Trace]) -> "list[Scene] | list[Lanes]":
    """Return the scenes of the traces, aligned with each other; raise DrawingError as :func:`watch` does."""
    of_schedules = [isinstance(require_trace(trace, "watch").plan, Schedule) for trace in traces]
    if all(of_schedules):
        tables = [Lanes(trace) for trace in traces]
        lanes.race(tables)
        return tables
    if any(of_schedules):
        raise DrawingError(text("lanes.mixed"))
    # Side by side there is less room, so boxes are narrower.
    scenes = [Scene(trace, 104.0 if len(traces) == 1 else 72.0) for trace in traces]
    race(scenes)
    return scenes


ALONE, BESIDE = 0.95, 0.76  # scales on paper: words of at least 6 pt, and two pictures of a race abreast on A4


def stills(page: dict, scenes: Sequence[Scene | Lanes]) -> list[str]:
    """Return the picture of each run of a page; the :func:`sheet` has their legend and common words."""
    part = BESIDE if scenes[1:] else ALONE
    return [
        told(
            still(
                scene,
                run["name"],
                explained=(),
                heading=run["where"],
                beside=() if page["zoom"] else scenes,
                part="still",
                style=f"--d2-printed:{round(part * breadth(scene))}px",
            ),
            run["described"],
        )
        for scene, run in zip(scenes, page["runs"], strict=True)
    ]


def sheet(page: dict, stills: Sequence[str]) -> str:
    """Return the page for paper and for browsers without scripts: the pictures below their legend."""
    where = f'<div class="d2-where">{html.escape(page["where"])}</div>' if page["where"] else ""
    listed = f'<div class="d2-legend">{legend.listed(page["legend"])}</div>'
    return f'<div class="d2lps d2-sheet">{where}{listed}{"".join(stills)}</div>'


def has_front_end() -> bool:
    """Return False if a program runs the notebook, such as ``nbconvert --execute``: it can answer no ``input()``."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    parent = kernel.get_parent() if kernel else None
    return ((parent or {}).get("content") or {}).get("allow_stdin", True)


def without_view(bundle: dict) -> dict:
    """Return the forms that need no kernel; ``nbconvert`` would prefer a widget, which it loads from the network."""
    return {kind: value for kind, value in bundle.items() if "widget-view" not in kind}


class Player(AnyWidget):
    """Traces with their controls, made by :func:`watch`: a scene and a heading for each run."""

    _esm = MODULE
    _css = LOOKS
    data = Dict().tag(sync=True)

    def __init__(self, scenes: Sequence[Scene | Lanes], names: Sequence[str], name: str = "", zoom: bool = False):
        self._scenes, self._names, self._name, self._zoom = scenes, names, name, zoom
        self._cache: dict[str, tuple[dict, list[str]]] = {}
        # The widget itself has one reader, so its language is fixed now.
        super().__init__(data=only(language(), lambda: self._page()[0] | {"stills": self._page()[1]}))

    def _page(self) -> tuple[dict, list[str]]:
        """Return the data that move the pictures, and the pictures, in the language in force."""
        if language() not in self._cache:
            page = data.page(self._scenes, [named(name) for name in self._names], self._name, self._zoom)
            self._cache[language()] = page, stills(page, self._scenes)
        return self._cache[language()]

    def __repr__(self) -> str:
        runs = ", ".join(f"{run['name']} {run['end']}".strip() for run in self._page()[0]["runs"])
        return f"<Player: {runs}>"

    def still(self, columns: int = 1) -> str:
        """Return the pictures of all runs in so many columns, and their legend, as one SVG without motion."""
        *others, last = zip(self._scenes, map(named, self._names), strict=True)
        beside = [] if self._zoom else self._scenes
        pictures = [still(*run, explained=(), beside=beside) for run in others]
        pictures.append(still(*last, explained=self._scenes, beside=beside))
        return stacked(pictures, columns) if others else pictures[0]

    def _repr_html_(self) -> str:
        page, pictures = self._page()
        content = json.dumps(page, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        name = "d2lps-" + hashlib.sha256((content + "".join(pictures)).encode()).hexdigest()[:12]
        # Copies of one output on a page share the name; each script starts those that do not play yet.
        start = (
            f"for(const el of document.querySelectorAll('#{name}:not([data-plays])'))"
            "{el.dataset.plays='';play(el,JSON.parse(el.querySelector('script').textContent))}"
        )
        return (
            f'<div id="{name}"><style>{LOOKS}</style>{sheet(page, pictures)}'
            f'<script type="application/json">{content}</script></div>'
            f'<script type="module">{MODULE}\n{start}</script>'
        )

    def _repr_mimebundle_(self, **kwargs: object):
        widget = super()._repr_mimebundle_(**kwargs)
        bundle, meta = widget if isinstance(widget, tuple) else (widget or {}, {})
        bundle = bundle | {"text/html": self._repr_html_(), "image/svg+xml": self.still()}
        return (bundle if has_front_end() else without_view(bundle)), meta

    def save(self, path: "str | Path") -> Path:
        """Write an HTML file that plays without kernel and network, replacing it if it exists, and return its path."""
        path, (page, _) = Path(path).expanduser(), self._page()
        start = (
            f'<!DOCTYPE html><html lang="{page["lang"]}"><meta charset="utf-8">'
            f"<title>{html.escape(page['words']['label'])}</title>"
            '<meta name="viewport" content="width=device-width">'
            "<style>:root{color-scheme:light dark}body{max-width:1600px;margin:1em auto}"
            "@media (max-width:700px){body{margin:0}}</style>"
        )
        path.write_text(start + self._repr_html_(), "utf-8")
        return path

"""The player: traces that move, in a notebook, on a static page, or in a file sent to a colleague.

Everything is computed here, once; the ES module only moves it. Where there is no kernel, the same module
plays the same data out of the widget's ``text/html`` form, which asks the network for nothing.
"""

import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path

import anywidget
import traitlets

from d2lps.messages import language, named, only, text
from d2lps.trace import Trace
from d2lps.view.drawing import DrawingError, require_trace
from d2lps.view.drawing.scene import Scene, race
from d2lps.view.drawing.still import breadth, stacked, still
from d2lps.view.drawing.theme import STYLE, THIN
from d2lps.view.player import data

HERE = Path(__file__).parent
MODULE = (HERE / "player.js").read_text("utf-8")
LOOKS = STYLE + THIN + (HERE / "player.css").read_text("utf-8")


def watch(*traces: Trace, names: "str | Sequence[str] | None" = None, name: str = "") -> "Player":
    """The player of one trace, or of several on one clock: the shorter ones finish first.

    Parameters
    ----------
    *traces : Trace
        What to play, predicted or measured.
    names : str or sequence of str, optional
        Their headings, one for each; if left out, several are called A, B, C …
    name : str, optional
        By which links in a text find this player: ``[the one uplink](#player:race?at=30ms&show=switch→cpu)`` takes
        the player called ``"race"`` to 30 ms and marks what is called so: a node, or a link as ``from→to``.

    Returns
    -------
    Player
        A notebook shows it, with its controls.

    Raises
    ------
    DrawingError
        For anything that is not a trace, for none at all, for other than one name each, and for what is too large to
        be seen.

    Examples
    --------
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
    if names is None:
        names = [chr(ord("A") + i % 26) for i in range(len(traces))] if traces[1:] else [""]
    names = [names] if isinstance(names, str) else names  # one name, not a name per letter
    if len(names) != len(traces):
        raise DrawingError(text("player.names", names=len(names), traces=len(traces)))
    return Player(scenes, [str(heading) for heading in names], str(name))


def staged(traces: Sequence[Trace]) -> list[Scene]:
    """What is seen of each trace, in the same places; raises DrawingError as :func:`watch` does."""
    # Side by side there is less room, and words need more of it.
    scenes = [Scene(require_trace(trace, "watch"), 104.0 if len(traces) == 1 else 72.0) for trace in traces]
    race(scenes)
    return scenes


ALONE, BESIDE = 0.95, 0.76  # of its breadth on paper: words of at least 6 pt, and two of a race abreast on A4


def stills(page: dict, scenes: Sequence[Scene]) -> list[str]:
    """The picture of each run of a page; what is true of all of them, and the legend, stand in its :func:`sheet`."""
    part = BESIDE if scenes[1:] else ALONE
    return [
        still(
            scene,
            run["name"],
            explained=(),
            said=run["where"],
            part="still",
            style=f"--d2-printed:{round(part * breadth(scene))}px",
        )
        for scene, run in zip(scenes, page["runs"], strict=True)
    ]


def sheet(page: dict, stills: Sequence[str]) -> str:
    """What stands where no script runs, and on paper: the pictures below their legend."""
    where = f'<div class="d2-where">{html.escape(page["where"])}</div>' if page["where"] else ""
    rows = "".join(
        f'<li><svg viewBox="0 0 26 16" aria-hidden="true">{mark}</svg>{html.escape(sentence)}</li>'
        for mark, sentence in page["legend"]
    )
    return f'<div class="d2lps d2-sheet">{where}<div class="d2-legend"><ul>{rows}</ul></div>{"".join(stills)}</div>'


class Player(anywidget.AnyWidget):
    """Traces with their controls. Made by :func:`watch`.

    Parameters
    ----------
    scenes : sequence of Scene
        What each run looks like.
    names : sequence of str
        Their headings, as many.
    name : str
        By which links in a text find it.
    """

    _esm = MODULE
    _css = LOOKS
    data = traitlets.Dict().tag(sync=True)

    def __init__(self, scenes: Sequence[Scene], names: Sequence[str], name: str = ""):
        self._scenes, self._names, self._name = scenes, names, name
        self._told: dict[str, tuple[dict, list[str]]] = {}
        # The widget itself has one reader: it cannot be shown in other words later on.
        super().__init__(data=only(language(), lambda: self._page | {"stills": self._stills}))

    @property
    def _page(self) -> dict:
        return self._in_force()[0]

    @property
    def _stills(self) -> list[str]:
        return self._in_force()[1]

    def _in_force(self) -> tuple[dict, list[str]]:
        """All that the pictures do, and the pictures, in the language in force."""
        if language() not in self._told:
            names = [named(name) for name in self._names]
            page = data.page(self._scenes, names, self._name)
            self._told[language()] = page, stills(page, self._scenes)
        return self._told[language()]

    def __repr__(self) -> str:
        runs = ", ".join(f"{run['name']} {run['end']}".strip() for run in self._page["runs"])
        return f"<Player: {runs}>"

    def still(self) -> str:
        """Where nothing can move.

        Returns
        -------
        str
            The pictures of all runs below each other, and their legend, as one SVG.
        """
        *others, last = zip(self._scenes, map(named, self._names), strict=True)
        pictures = [still(*each, explained=()) for each in others] + [still(*last, explained=self._scenes)]
        return stacked(pictures) if others else pictures[0]

    def _repr_html_(self) -> str:
        content = json.dumps(self._page, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        name = "d2lps-" + hashlib.sha256((content + "".join(self._stills)).encode()).hexdigest()[:12]
        # Two copies of one output on a page share the name; each script takes those that do not play yet.
        start = (
            f"for(const el of document.querySelectorAll('#{name}:not([data-plays])'))"
            "{el.dataset.plays='';play(el,JSON.parse(el.querySelector('script').textContent))}"
        )
        return (
            f'<div id="{name}"><style>{LOOKS}</style>{sheet(self._page, self._stills)}'
            f'<script type="application/json">{content}</script></div>'
            f'<script type="module">{MODULE}\n{start}</script>'
        )

    def _repr_mimebundle_(self, **kwargs: object):
        own = super()._repr_mimebundle_(**kwargs)
        bundle, meta = own if isinstance(own, tuple) else (own or {}, {})
        return bundle | {"text/html": self._repr_html_(), "image/svg+xml": self.still()}, meta

    def save(self, path: "str | Path") -> Path:
        """Write a page that plays without a kernel and without the network.

        Parameters
        ----------
        path : str or pathlib.Path
            The HTML file; what it held is replaced.

        Returns
        -------
        pathlib.Path
            The same.
        """
        path = Path(path)
        title = html.escape(self._page["words"]["label"])
        start = (
            f'<!DOCTYPE html><html lang="{self._page["lang"]}"><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width">'
            "<style>:root{color-scheme:light dark}body{max-width:1600px;margin:1em auto}"
            "@media (max-width:700px){body{margin:0}}</style>"
        )
        path.write_text(start + self._repr_html_(), "utf-8")
        return path

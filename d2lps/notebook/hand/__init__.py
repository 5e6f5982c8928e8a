"""Pictures that answer to the hand: a reader drags a part, or moves it by keys, and the picture shows what follows.

All that a picture can show is computed here, by the package, and sent as a table; the script only looks it up. So it
needs no kernel. ``hand.js`` has what the pictures share: a slider for the pointer and the keyboard. Each picture has
a module here, and a script of the same name::

    bubbles    ``bubbles``: pipeline schedules, whose idle time is pushed into one pile
    vessel     ``divide`` (``divide.py`` beside this folder): the memory of a GPU, and the cuts of a model
    wires      ``wires``: links that the reader makes thicker or thinner, and which of them decides
    story      ``story``: the steps of a plan beside its picture, which stays while one scrolls
"""

import hashlib
from pathlib import Path

from d2lps.messages import html_language, language, only
from d2lps.notebook.predict_page import as_data
from d2lps.view.drawing.lanes import LOOKS
from d2lps.view.drawing.theme import STYLE
from d2lps.view.player import has_front_end, without_view
from d2lps.view.widgets import AnyWidget, Dict

HERE = Path(__file__).parent
SCRIPTS = ("hand", "bubbles", "vessel", "wires", "story")
CODE = "\n".join((HERE / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
LOOK = (HERE / "hand.css").read_text("utf-8")


class Hand(AnyWidget):
    """A picture that answers to the hand. A class of it has its ``content`` and ``still``; both are in one language."""

    _esm = CODE
    _css = STYLE + LOOKS + LOOK
    data = Dict().tag(sync=True)

    def __init__(self):
        super().__init__(data=only(language(), self._data))

    def content(self) -> dict:
        """Return what the script needs: the ``kind`` of the picture, its words and its table."""
        raise NotImplementedError

    def still(self) -> str:
        """Return the picture before it is touched as SVG, for paper and for browsers without scripts."""
        raise NotImplementedError

    def _data(self) -> dict:
        return self.content() | {"lang": html_language()}

    def _repr_html_(self) -> str:
        data = as_data(self._data())
        name = "d2lps-" + hashlib.sha256(data.encode()).hexdigest()[:12]
        start = (
            f"for(const el of document.querySelectorAll('#{name}:not([data-plays])'))"
            "{el.dataset.plays='';handle(el,JSON.parse(el.querySelector('script').textContent))}"
        )
        still = self.still().replace(f"<style>{STYLE}{LOOKS}</style>", "")
        return (
            f'<div id="{name}"><style>{STYLE}{LOOKS}{LOOK}</style>{still}{data}</div>'
            f'<script type="module">{CODE}\n{start}</script>'
        )

    def _repr_mimebundle_(self, **kwargs: object):
        widget = super()._repr_mimebundle_(**kwargs)
        bundle, meta = widget if isinstance(widget, tuple) else (widget or {}, {})
        bundle = bundle | {"text/html": self._repr_html_(), "text/plain": repr(self)}
        return (bundle if has_front_end() else without_view(bundle)), meta

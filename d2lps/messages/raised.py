"""How an error of d2lps shows itself in a notebook: the reader's own line and the sentence, and no way through d2lps.

IPython asks an exception for its ``_render_traceback_`` before it draws a traceback of its own; nobody else calls it.
"""

import sysconfig
from pathlib import Path
from types import TracebackType

from d2lps.messages.spoken import text

OURS = Path(__file__).parents[1]
PYTHONS = Path(sysconfig.get_path("stdlib"))


class Brief:
    """An error that IPython shows briefly. ``%tb`` then shows the whole traceback."""

    _shown: int | None = None

    def _render_traceback_(self) -> list[str]:
        from IPython import get_ipython

        formatter, whole = get_ipython().InteractiveTB, self.__traceback__
        own = None if self._shown == id(whole) else readers(whole)  # whoever asks again wants all of it
        self._shown = id(whole)
        if own is None:
            return formatter.structured_traceback(type(self), self, whole)
        alone = type(self).__new__(type(self), *self.args)  # without the errors that it came from
        alone.__dict__ |= self.__dict__
        return [*formatter.structured_traceback(type(self), alone, own, tb_offset=0), "\n" + text("error.whole")]


def readers(traceback: TracebackType | None) -> TracebackType | None:
    """What of a traceback is the reader's: cells, and files of theirs; None where nothing is."""
    frames, own = [], None
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for each in reversed(frames):
        if _is_readers(each.tb_frame.f_code.co_filename):
            own = TracebackType(own, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return own


def _is_readers(file: str) -> bool:
    if file.startswith("<"):  # old versions of IPython name cells so; others are made by Python
        return file.startswith("<ipython-input")
    path = Path(file)
    return not (
        path.is_relative_to(OURS) or path.is_relative_to(PYTHONS) or {"site-packages", "dist-packages"} & {*path.parts}
    )

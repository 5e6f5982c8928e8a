"""Errors that show only the reader's own line and one sentence in a notebook, not the frames inside d2lps.

Only IPython calls ``_render_traceback_``: it asks an exception for it before it draws a traceback of its own.
"""

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from d2lps.messages.spoken import text

OURS = Path(__file__).parents[1]
PYTHONS = Path(sysconfig.get_path("stdlib"))


class Brief(Exception):
    """An error that IPython shows briefly. ``%tb`` then shows the whole traceback."""

    _shown: int | None = None

    def _render_traceback_(self) -> list[str]:
        try:
            return self._rendered()
        except Exception:  # a fault in here, or in IPython, must not hide the error
            return traceback.format_exception(self)

    def _rendered(self) -> list[str]:
        from IPython import get_ipython

        formatter, whole = get_ipython().InteractiveTB, self.__traceback__
        brief = None if self._shown == id(whole) else readers(whole)  # %tb asks again, and wants all of it
        self._shown = id(whole)
        if brief is None:
            return formatter.structured_traceback(type(self), self, whole)
        cause, suppressed = self.__cause__, self.__suppress_context__
        self.__cause__ = None  # so that neither the cause nor the context is shown
        try:
            shown = formatter.structured_traceback(type(self), self, brief, tb_offset=0)
        finally:
            self.__cause__, self.__suppress_context__ = cause, suppressed
        return [*shown, "\n" + text("error.whole")]


def readers(traceback: TracebackType | None) -> TracebackType | None:
    """Return the frames of a traceback that are in the reader's cells and files, or None if there are none."""
    frames, brief = [], None
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        if _is_readers(frame.tb_frame.f_code.co_filename):
            brief = TracebackType(brief, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return brief


def _is_readers(file: str) -> bool:
    if file.startswith("<"):  # old versions of IPython name a cell like this; Python makes the other names
        return file.startswith("<ipython-input")
    path = Path(file)
    return not (
        path.is_relative_to(OURS) or path.is_relative_to(PYTHONS) or {"site-packages", "dist-packages"} & {*path.parts}
    )

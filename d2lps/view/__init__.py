"""What is seen of a trace: ``drawing`` lays it out as one SVG scene, ``player`` moves it, ``tables`` set it as text."""

from d2lps.view.drawing import Drawing, DrawingError, draw
from d2lps.view.tables import Source, Table, source, table

__all__ = ["Drawing", "DrawingError", "Player", "Source", "Table", "draw", "source", "table", "watch"]


def __getattr__(name: str):
    """The player on first use: it needs a notebook's widgets, which a drawing does without."""
    if name not in ("Player", "watch"):
        raise AttributeError(f"module 'd2lps.view' has no attribute {name!r}")
    from d2lps.view import player

    return getattr(player, name)

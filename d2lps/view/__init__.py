"""Pictures and tables of traces.

Start with ``drawing/__init__.py`` (``draw``) and ``drawing/scene.py``: a scene joins everything that a picture of a
trace needs. ``drawing/theme.py`` decides every color, also those of the workers; ``drawing/motion.py`` decides which
worker has which color, and what is where at each moment; ``drawing/layout.py`` decides where nodes and lanes lie;
``drawing/traffic.py`` decides which links are full and which one is the bottleneck; ``drawing/legend.py`` decides the
legend. ``drawing/lanes.py`` draws schedules and their traces: tasks, messages, idle time and memory of each device;
``drawing/still.py`` decides the axis of time that the stills of a race share.
``drawing/space_time.py`` draws a recorded network: the states of its nodes and an arrow per message.
``player/`` animates a scene with controls (``data.py`` makes the numbers that ``player.js`` reads), and
``drawing/course_map.py`` draws the map of the course. ``tables.py`` prints source code and tables, and ``charts.py``
draws a table as bars or dots; ``d2lps/units.py`` decides how bytes and seconds are printed.
"""

from d2lps.view.drawing import Drawing, DrawingError, draw
from d2lps.view.tables import Source, Table, source, table

__all__ = ["Drawing", "DrawingError", "Player", "Source", "Table", "draw", "source", "table", "watch"]


def __getattr__(name: str):
    """Import the player on first use: it needs a notebook's widgets, a drawing does not."""
    if name not in ("Player", "watch"):
        raise AttributeError(f"module 'd2lps.view' has no attribute {name!r}")
    from d2lps.view import player

    return getattr(player, name)

"""A trace as a picture: nodes with what they hold, messages under way, a timeline. SVG, and nothing else.

Each node shows its buffer, a cell per key. A cell has a slot per worker, filled with that worker's color once
its gradient is contained. A frame round a cell: the sum is complete. Hatched: it has been turned into new weights.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from d2lps import units
from d2lps.algorithms.placement import Placement
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.topology.graph import FORWARDING, Topology
from d2lps.trace import Trace
from d2lps.view.drawing.hash_ring import hash_ring
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import still
from d2lps.view.drawing.topology_picture import topology_picture

MOST_NODES, MOST_EVENTS = 64, 20_000


class DrawingError(Brief, ValueError):
    """Something that cannot be drawn: its sentence says what would be drawn."""


def draw(what: "Trace | Topology | Placement", at: "float | str | None" = None) -> "Drawing":
    """The picture of a trace at one moment, of a topology, or of a placement of keys.

    Parameters
    ----------
    what : Trace, Topology or Placement
        What ran, or is predicted to; or the nodes and links of a host; or who holds which part of the ring of hashes.
    at : float or str, optional
        The moment of a trace: seconds, or a time such as ``"7.5 ms"``. If left out, the moment that tells most: when
        most messages are under way, and of several such moments the middlemost.

    Returns
    -------
    Drawing
        A notebook shows it; ``str()`` gives the SVG.

    Raises
    ------
    DrawingError
        For anything else, and for what is too large to be seen.
    UnitError
        Where ``at`` is no time.

    Examples
    --------
    >>> from d2lps import aggregate_at, cost, draw, pcie_server
    >>> trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), pcie_server(gpus=2), "160 MB")
    >>> draw(trace, at="5 ms")
    <Drawing: <Trace: shared, 2 events, 2 steps, 20 ms> at 5 ms>
    """
    if isinstance(what, Topology):
        _require_drawable("draw", what)
        return Drawing(lambda: topology_picture(what), what.name)
    if isinstance(what, Placement):
        return Drawing(lambda: hash_ring(what), f"{len(what.servers)} servers")
    scene = Scene(require_trace(what, "draw"))
    at = scene.motion.telling() if at is None else units.seconds(at)
    return Drawing(lambda: still(scene, at=at), f"{what!r} at {units.show_seconds(at)}", at)


def require_trace(trace: object, name: str) -> Trace:
    """``trace``, if it is one and can be seen. Raises DrawingError for whoever calls ``name`` with something else."""
    if not isinstance(trace, Trace):
        raise DrawingError(text("draw.not-a-trace", name=name, given=type(trace).__name__))
    _require_drawable(name, trace.topology, len(trace.events))
    return trace


def _require_drawable(name: str, topology: Topology, events: int = 0) -> None:
    """Raises DrawingError where a picture would be a blur, and long in coming."""
    nodes = max(Counter(kind in FORWARDING for kind in topology.kinds.values()).values())
    for number, most, what in ((nodes, MOST_NODES, "nodes"), (events, MOST_EVENTS, "events")):
        if number > most:
            raise DrawingError(text(f"draw.too-many-{what}", name=name, most=most, number=number))


class Drawing:
    """A finished picture. Made by :func:`draw`.

    Parameters
    ----------
    svg : callable
        Gives the picture in the language in force, one SVG that needs nothing else.
    of : str
        What it shows, for its ``repr``.
    at : float, optional
        The moment in seconds, where it shows one.
    """

    def __init__(self, svg: Callable[[], str], of: str, at: float | None = None):
        self._svg, self._of, self.at = svg, of, at

    def __str__(self) -> str:
        return self._svg()

    def __repr__(self) -> str:
        return f"<Drawing: {self._of}>"

    def _repr_svg_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<div>{self}</div>"  # within the page, whose theme it follows; an image would not

    def save(self, path: "str | Path") -> Path:
        """Write the SVG to a file.

        Parameters
        ----------
        path : str or pathlib.Path
            The file; what it held is replaced.

        Returns
        -------
        pathlib.Path
            The same.
        """
        path = Path(path)
        path.write_text(str(self), "utf-8")
        return path

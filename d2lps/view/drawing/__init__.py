"""A trace as one SVG picture: nodes with their contents, messages under way, and a timeline.

Each node shows its buffer, with a cell per key. A cell has a slot per worker, filled with that worker's color once the
sum contains its gradient. A frame around a cell marks a complete sum, hatching marks new weights. A schedule, or a
trace of one, is a table of lanes instead: ``lanes.py``. A recorded network is a row per node with arrows between them:
``space_time.py``.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from d2lps import units
from d2lps.algorithms.placement import Placement
from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.schedule import Schedule
from d2lps.simulate import Network
from d2lps.topology.graph import FORWARDING, Topology
from d2lps.trace import Trace
from d2lps.view.drawing.hash_ring import hash_ring, moved, two_rings
from d2lps.view.drawing.lanes import Lanes
from d2lps.view.drawing.legend import folded, marks
from d2lps.view.drawing.links import topology_picture
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.space_time import messages, space_time
from d2lps.view.drawing.still import described, origin, still, told
from d2lps.view.drawing.svg import legible

MOST_NODES, MOST_EVENTS, MOST_MESSAGES = 64, 20_000, 500


class DrawingError(Brief, ValueError):
    """A value that cannot be drawn; the sentence names the values that can."""


def draw(
    what: "Trace | Schedule | Topology | Placement | tuple[Placement, Placement] | Network",
    at: "float | str | tuple | None" = None,
) -> "Drawing":
    """Draw a trace at one moment, a schedule, a topology, a placement of keys, or the messages of a network.

    Args:
        what (Trace, Schedule, Topology, Placement, pair of Placement, or Network): A measured or predicted run, the
            table of a schedule by its slots, the nodes and links of a host, the ring of hashes with the part of each
            server, what moves on it between two placements, or a network of :mod:`d2lps.simulate` that has recorded a
            run.
        at: The moment of a trace: seconds, or a time such as ``"7.5 ms"``. The default is the moment with most messages
            under way (of several such moments the middle one); in the trace of a schedule it is the whole, with the
            peaks of memory. For a network, the first and the last moment of the picture; the default is the whole run.

    Returns:
        A picture that a notebook shows; ``str()`` returns the SVG.

    Raises:
        DrawingError: For any other value, and for one that is too large to be legible.
        UnitError: If ``at`` is not a time.

    Example:
        >>> from d2lps import aggregate_at, cost, draw, pcie_server
        >>> trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), pcie_server(gpus=2), "160 MB")
        >>> draw(trace, at="5 ms")
        <Drawing: <Trace: shared, 2 events, 2 steps, 20 ms> at 5 ms>
    """
    if isinstance(what, Topology):
        _require_drawable("draw", _most(what))
        return Drawing(lambda: topology_picture(what), what.name)
    if isinstance(what, Placement):
        return Drawing(lambda: hash_ring(what), f"{len(what.servers)} servers")
    if isinstance(what, tuple | list) and len(what) == 2 and all(isinstance(each, Placement) for each in what):
        before, after = what
        return Drawing(lambda: two_rings(before, after), text("hash-ring.moved", share=f"{moved(before, after):.1%}"))
    if isinstance(what, Network):
        start, end = _span(what, at)
        moments = f"{units.show_seconds(start)} – {units.show_seconds(end)}"
        return Drawing(lambda: space_time(what, start, end), f"{len(messages(what, start, end))} messages, {moments}")
    if isinstance(what, Schedule):
        _require_drawable("draw", len(what.nodes), len(what.acts))
        return _still(lambda: Lanes.of_slots(what), repr(what))
    trace = require_trace(what, "draw")
    if isinstance(trace.plan, Schedule):
        at = None if at is None else units.seconds(at)
        moment = "" if at is None else f" at {units.show_seconds(at)}"
        return _still(lambda: Lanes(trace), f"{what!r}{moment}", at)
    scene = Scene(trace)
    at = scene.motion.telling() if at is None else units.seconds(at)
    return _still(lambda: scene, f"{what!r} at {units.show_seconds(at)}", at)


def _still(scene: "Callable[[], Scene | Lanes]", of: str, at: float | None = None) -> "Drawing":
    """Return a picture whose legend is folded on a page, and below it elsewhere."""

    def page() -> str:
        shown = scene()
        what = shown.heading() if isinstance(shown, Lanes) else origin(shown.trace)
        picture = told(still(shown, at=at, explained=()), described(shown, what))
        return legible(picture) + folded(marks([shown]))

    return Drawing(lambda: still(scene(), at=at), of, at, page)


def require_trace(trace: object, name: str) -> Trace:
    """Return ``trace``, or raise DrawingError unless it is a trace that can be drawn; ``name`` is the caller's."""
    if not isinstance(trace, Trace):
        raise DrawingError(text("draw.not-a-trace", name=name, given=type(trace).__name__))
    _require_drawable(name, _most(trace.topology), len(trace.events))
    return trace


def _span(net: Network, at: object) -> tuple[float, float]:
    """Return the first and the last second of a picture of a network, or raise DrawingError."""
    if net.deliveries is None:
        raise DrawingError(text("draw.not-recorded", name="draw"))
    if at is not None and not (isinstance(at, tuple | list) and len(at) == 2):
        raise DrawingError(text("draw.span", at=repr(at)))
    start, end = (0.0, net.now) if at is None else map(units.seconds, at)
    if not start < end:
        raise DrawingError(text("draw.span", at=repr((start, end) if at is None else at)))
    _require_drawable("draw", len({state.node for state in net.states}))
    if (number := len(messages(net, start, end))) > MOST_MESSAGES:
        raise DrawingError(text("draw.too-many-messages", number=number, most=MOST_MESSAGES))
    return start, end


def _most(topology: Topology) -> int:
    """Return the number of nodes, or of those that forward, whichever is more."""
    return max(Counter(kind in FORWARDING for kind in topology.kinds.values()).values())


def _require_drawable(name: str, nodes: int, events: int = 0) -> None:
    """Raise DrawingError if a picture would be illegible and slow to draw."""
    for number, most, kind in ((nodes, MOST_NODES, "nodes"), (events, MOST_EVENTS, "events")):
        if number > most:
            raise DrawingError(text(f"draw.too-many-{kind}", name=name, most=most, number=number))


class Drawing:
    """A finished picture, made by :func:`draw`.

    ``svg`` returns one self-contained SVG in the language in force, ``of`` names the content for ``repr``, ``at`` is
    the moment in seconds, if there is one, and ``page`` returns the picture as HTML, if that is more than the SVG.
    """

    def __init__(self, svg: Callable[[], str], of: str, at: float | None = None, page: Callable[[], str] | None = None):
        self._svg, self._of, self.at, self._page = svg, of, at, page

    def __str__(self) -> str:
        return self._svg()

    def __repr__(self) -> str:
        return f"<Drawing: {self._of}>"

    def _repr_svg_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._page() if self._page else legible(str(self))

    def save(self, path: "str | Path") -> Path:
        """Write the SVG to a file, replacing it if it exists, and return its path."""
        path = Path(path).expanduser()
        path.write_text(str(self), "utf-8")
        return path

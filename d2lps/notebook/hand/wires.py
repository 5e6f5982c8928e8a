"""A switch whose links the reader makes thicker or thinner: what each plan then takes, and which link decides.

>>> from d2lps import aggregate_at
>>> picture = wires({"GPU 0": aggregate_at(["gpu0", "gpu1", "gpu2"], "gpu0")}, "160 MB")
>>> picture.runs["GPU 0"][2, 2, 2]  # all links have 16 GB/s
WireTime(seconds=0.04, decide=('gpu0',))
>>> picture.runs["GPU 0"][3, 2, 0]  # gpu0 has 32 GB/s, gpu2 only 4 GB/s
WireTime(seconds=0.08, decide=('gpu2',))
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from d2lps.messages import named, text
from d2lps.notebook.hand import Hand
from d2lps.plan import Plan, PlanError
from d2lps.simulate import cost
from d2lps.topology import Link, Topology
from d2lps.trace import Trace
from d2lps.units import bandwidth, show_seconds, show_size, size
from d2lps.view.drawing import draw
from d2lps.view.drawing.motion import follow
from d2lps.view.drawing.traffic import awaited, traffic

RATES = ("4 GB/s", "8 GB/s", "16 GB/s", "32 GB/s")
START = 2  # the position of every link at the start
MOST = 5  # nodes of a plan: with more, there are too many combinations
NEARLY = 0.99  # links that are full for so much of the longest time are equally busy


class WireTime(NamedTuple):
    """What a plan takes, and the nodes whose links decide; none if all links have as much to do."""

    seconds: float
    decide: tuple[str, ...]


def wires(plans: Mapping[str, Plan], nbytes: "int | str" = "160 MB") -> "Wires":
    """Show the nodes of plans at one switch; each link can be dragged from 4 to 32 GB/s, both ways at once.

    Args:
        plans: Name → plan, of at most five nodes.
        nbytes: The gradient's size.

    Returns:
        A notebook shows it: the time of each plan, and in orange the links that decide.

    Raises:
        PlanError: For no plans, or more than five nodes.

    Example:
        >>> from d2lps import aggregate_at, sharded
        >>> gpus = ["gpu0", "gpu1", "gpu2"]
        >>> wires({"GPU 0": aggregate_at(gpus, "gpu0"), "shards": sharded(gpus)})
        <Wires: GPU 0 40 ms, shards 13.33 ms>
    """
    nodes = dict.fromkeys(node for plan in plans.values() for node in plan.nodes)
    if not 0 < len(nodes) <= MOST:
        raise PlanError("wires", nodes=len(nodes), most=MOST)
    return Wires(plans, size(nbytes), [*nodes])


class Wires(Hand):
    """The result of :func:`wires`.

    Attributes:
        runs (dict of str to dict): The name of a plan → the positions of its nodes' links, 0 (4 GB/s) to 3 (32 GB/s)
            → its :class:`WireTime`.
    """

    def __init__(self, plans: Mapping[str, Plan], nbytes: int, nodes: list[str]):
        self._plans, self._nbytes, self._nodes = dict(plans), nbytes, nodes
        self.runs = {
            name: {at: _run(plan, at, nbytes) for at in product(range(len(RATES)), repeat=len(plan.nodes))}
            for name, plan in plans.items()
        }
        super().__init__()

    def content(self) -> dict:
        """Return the words, and for each plan its milliseconds and the numbers of the links that decide."""
        said = {name: text(f"wires.{name}") for name in ("key", "spread", "pick")}
        said |= {"link": text("wires.link", node="{node}"), "decides": text("wires.decides", links="{links}")}
        return {
            "kind": "wires",
            "words": said,
            "size": show_size(self._nbytes),
            "nodes": self._nodes,
            "rates": [str(bandwidth(rate)) for rate in RATES],
            "start": START,
            "plans": [
                {
                    "name": named(name),
                    "nodes": [self._nodes.index(node) for node in plan.nodes],
                    "ms": [float(f"{1e3 * run.seconds:.4g}") for run in self.runs[name].values()],
                    "decide": [[self._nodes.index(node) for node in run.decide] for run in self.runs[name].values()],
                }
                for name, plan in self._plans.items()
            ],
        }

    def still(self) -> str:
        """Return the first plan, at a telling moment."""
        plan = next(iter(self._plans.values()))
        return str(draw(_trace(plan, [START] * len(plan.nodes), self._nbytes)))

    def __repr__(self) -> str:
        times = (
            f"{named(name)} {show_seconds(runs[(START,) * len(self._plans[name].nodes)].seconds)}"
            for name, runs in self.runs.items()
        )
        return f"<Wires: {', '.join(times)}>"


def _trace(plan: Plan, at: Sequence[int], nbytes: int) -> Trace:
    """Return what a plan takes on a switch whose links have these positions."""
    rates = {node: bandwidth(RATES[place]) for node, place in zip(plan.nodes, at, strict=True)}
    links = [Link(*ends, rate) for node, rate in rates.items() for ends in ((node, "switch"), ("switch", node))]
    kinds = {node: "cpu" if node == "cpu" else "gpu" for node in plan.nodes} | {"switch": "switch"}
    return cost.shared(plan, Topology("switch", kinds, links), nbytes)


def _run(plan: Plan, at: Sequence[int], nbytes: int) -> WireTime:
    trace = _trace(plan, at, nbytes)
    load = traffic(trace, follow(trace))
    places = awaited(load, trace.duration)
    if not places:  # several decide together: those that are full for the longest time
        full: dict[int, float] = defaultdict(float)
        for change in load.full:
            full[change.place] += (trace.duration - change.time) * (change.after - change.before)
        busiest = max(full.values())
        places = [load.motion.sharing[place] for place, seconds in full.items() if seconds >= NEARLY * busiest]
    nodes = {end for link in places if isinstance(link, Link) for end in (link.src, link.dst)} - {"switch"}
    some = nodes if len(nodes) < len(plan.nodes) else ()
    return WireTime(trace.duration, tuple(node for node in plan.nodes if node in some))

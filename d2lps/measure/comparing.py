"""Strategies side by side: the predicted time of each, the measured time, and the error."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from d2lps import cost, units
from d2lps.algorithms import ring
from d2lps.carriers.base import Carrier
from d2lps.carriers.ranks import Ranks
from d2lps.measure.calibration import Calibration, Job, turns
from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.topology.graph import Topology
from d2lps.units import show_seconds, show_size
from d2lps.view.tables import Table, table

STEADY = 1.3  # a larger p90/p10 of the runs makes their median worth little


@dataclass(frozen=True)
class Compared:
    """The times of one strategy at one size.

    Args:
        name: the strategy.
        nbytes: the gradient's size.
        predicted: seconds; None without a topology.
        runs: the seconds of each run, in ascending order.
    """

    name: str
    nbytes: int
    predicted: float | None
    runs: tuple[float, ...]

    @property
    def measured(self) -> float:
        """The median of the runs, in seconds."""
        return self.runs[len(self.runs) // 2]

    @property
    def error(self) -> float | None:
        """The relative error of the prediction: +0.1 is 10 % too much."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    @property
    def spread(self) -> float:
        """p90/p10 of the runs."""
        last = len(self.runs) - 1
        return self.runs[round(0.9 * last)] / self.runs[round(0.1 * last)]

    @property
    def steady(self) -> bool:
        """True if the runs agree well enough for their median to mean something."""
        return self.spread <= STEADY


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`: shown as a table, with a ``plot()`` on demand.

    Args:
        rows: one :class:`Compared` for each strategy at each size.
    """

    rows: tuple[Compared, ...]

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.rows)

    def table(self) -> Table:
        """Return predicted and measured times with the error; ``~`` marks runs that do not agree with each other."""
        columns: dict[str, list[str | None]] = {
            "strategy": [row.name for row in self.rows],
            "size": [show_size(row.nbytes) for row in self.rows],
            "predicted": [None if row.predicted is None else show_seconds(row.predicted) for row in self.rows],
            "measured": [show_seconds(row.measured) for row in self.rows],
            "error": [None if row.error is None else f"{row.error:+.0%}" for row in self.rows],
            "spread": [f"{'' if row.steady else '~ '}{row.spread:.2f}" for row in self.rows],
        }
        shown = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
        return table(*shown, rows=zip(*shown.values(), strict=True))

    def plot(self):
        """Draw two bars for each strategy at the largest size, predicted and measured; return the matplotlib axes."""
        from matplotlib import font_manager, pyplot

        largest = max(row.nbytes for row in self.rows)
        rows = [row for row in self.rows if row.nbytes == largest]
        # Fonts with Chinese letters, if any is installed, stand in for letters that the first font lacks.
        installed = sorted(font_manager.get_font_names())
        fonts = ["DejaVu Sans", *(f for f in installed if any(map(f.count, ("CJK", "WenQuanYi", "PingFang", "YaHei"))))]
        with pyplot.rc_context({"font.family": fonts}):
            _, axes = pyplot.subplots(figsize=(7, 0.55 * len(rows) + 1.1))
            places = range(len(rows))
            predicted = [1e3 * (row.predicted or 0) for row in rows]
            measured = [1e3 * row.measured for row in rows]
            spread = [[1e3 * (row.measured - row.runs[0]) for row in rows], [0] * len(rows)]
            axes.barh([p - 0.2 for p in places], predicted, 0.36, label=text("table.predicted"))
            axes.barh([p + 0.2 for p in places], measured, 0.36, label=text("table.measured"), xerr=spread)
            axes.set_yticks(list(places), [row.name for row in rows])
            axes.invert_yaxis()
            axes.set_xlabel(f"ms ({show_size(largest)})")
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return axes

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def compare(
    plans: "Mapping[str, Plan | tuple[Plan, Carrier] | Callable[[Tensor], object]]",
    nbytes: "int | str | Iterable[int | str]",
    carrier: Carrier,
    topology: "Topology | Calibration | None" = None,
    repeats: int = 9,
) -> Comparison:
    """Run every plan at every size, in turn, and compare the measured times with the predictions of ``cost.shared``.

    If the carrier has several processes, all of them must call this, and all get the same result.

    Args:
        plans: name → plan; or (plan, another carrier); or a function that does the same to one flat tensor in place,
            for which nothing is predicted. ``torch.distributed.all_reduce`` uses the connections of
            :class:`d2lps.Processes`; over gloo it is predicted as the ring that it is.
        nbytes: the gradient's size, or several: ``["8 MB", "32 MB"]``.
        carrier: the carrier of the bytes.
        topology: the topology for the predictions; a :class:`Calibration` stands for the machine it was measured on.
            Without one nothing is predicted.
        repeats: runs of each plan; all take turns, so that a disturbance of the machine affects all alike.

    Returns:
        a row for each plan at each size.

    Raises:
        TensorError: if a run leaves a wrong sum, since its time would mean nothing.

    Example:
        >>> from d2lps import Here, ring
        >>> [row.name for row in compare({"ring": ring(["a", "b"])}, "4 kB", Here())]
        ['ring']
    """
    sizes = [nbytes] if isinstance(nbytes, int | str) else list(nbytes)
    jobs: dict[tuple[str, int], Job] = {}
    for size in map(units.meant_size, sizes):
        for name, plan in plans.items():
            jobs[name, size] = (plan[0], size, plan[1]) if isinstance(plan, tuple) else (plan, size, carrier)
    runs = turns(jobs, carrier, repeats)
    rows = []
    for (name, size), seconds in runs.items():
        plan, predicted = plans[name], None
        if plan is dist.all_reduce and isinstance(carrier, Ranks) and carrier.backend == "gloo":
            plan = ring(carrier.names)  # as gloo does it
        if isinstance(plan, Plan) and topology is not None:
            nodes: Iterable[str] = plan.nodes
            if isinstance(topology, Calibration) and topology.across and isinstance(carrier, Ranks):
                nodes = {node: carrier.names[rank] for node, rank in carrier.ranks(plan).items()}
            place = topology.topology(nodes) if isinstance(topology, Calibration) else topology
            if plan is plans[name] or {*plan.nodes} <= {*place.kinds}:
                predicted = cost.shared(plan, place, f"{size} B").duration
        rows.append(Compared(name, size, predicted, tuple(sorted(seconds))))
    return Comparison(tuple(rows))

"""What this machine does with messages: measured, so that ``cost.shared`` predicts the times of a run here.

A ping-pong between two processes is not enough: on one host the same processors serve all of them, and what
two alone move in a second, eight do not move four times. So all ranks at once are measured, too; and both ways
again with adding, which takes time where it arrives.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, permutations
from statistics import median

import torch
from torch import Tensor

from d2lps import units
from d2lps.algorithms import all_gather, reduce_scatter
from d2lps.carriers.base import Carrier
from d2lps.carriers.execute import compile
from d2lps.carriers.tensors import TensorError
from d2lps.measure.timing import repeat
from d2lps.messages import text
from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan
from d2lps.topology import Link, Topology, kind_of
from d2lps.topology.hosts import one_memory
from d2lps.units import Bandwidth, is_count, show_seconds
from d2lps.view.tables import Table, table

SIZES = ("1 kB", "1 MB", "8 MB", "32 MB")  # of the buffer: the first is all latency, the others tell what bytes cost


@dataclass(frozen=True)
class Calibration:
    """What :func:`calibrate` found, as figures that a topology is made of.

    Attributes
    ----------
    nodes
        those it was measured with.
    latency
        seconds of a message during which nothing is occupied.
    overhead
        seconds of the processors' time that each message takes at least. The bytes of large messages keep the
        processors awake, and it is in the time of these.
    alone
        bytes per second from one node to another while all others rest (the ping-pong).
    together
        bytes per second of all nodes, sending at once.
    adding
        bytes per second at which all nodes together add what arrives, beside moving it.
    adding_alone
        the same of one node while all others rest.
    measured
        (what, bytes of the buffer, median seconds) of each measurement.
    """

    nodes: tuple[str, ...]
    latency: float
    overhead: float
    alone: Bandwidth
    together: Bandwidth
    adding: Bandwidth
    adding_alone: Bandwidth
    measured: tuple[tuple[str, int, float], ...] = field(repr=False, default=())

    def topology(self, nodes: "Iterable[str] | int | None" = None) -> Topology:
        """This machine, to predict on.

        Parameters
        ----------
        nodes
            names, or how many; if left out, those it was measured with.
        """
        each = min(self.alone, self.together)
        return one_memory(
            self._named(nodes), self.together, self.adding, self.overhead, self.latency, each, self.adding_alone
        )

    def ping_pong(self, nodes: "Iterable[str] | int | None" = None) -> Topology:
        """The same as a ping-pong alone shows it: as if no two messages were ever in each other's way.

        Parameters
        ----------
        nodes
            as for :meth:`topology`.
        """
        named, latency = self._named(nodes), self.latency + self.overhead
        links = [Link(a, b, self.alone, latency) for a, b in permutations(named, 2)]
        return Topology("ping_pong", {node: kind_of(node) for node in named}, links)

    def table(self) -> Table:
        """The figures, each with a line that says what it is.

        Returns
        -------
        Table
            In the language in force.
        """
        found = {
            "latency": show_seconds(self.latency),
            "overhead": show_seconds(self.overhead),
            "alone": str(self.alone),
            "together": str(self.together),
            "adding-together": str(self.adding),
            "adding-alone": str(self.adding_alone),
        }
        rows = [[text(f"calibration.{name}"), value, text(f"calibration.{name}-is")] for name, value in found.items()]
        return table("figure", "measured", "meaning", rows=rows)

    def _named(self, nodes: "Iterable[str] | int | None") -> tuple[str, ...]:
        if is_count(nodes, least=1):
            return tuple(f"rank{i}" for i in range(nodes))
        return self.nodes if nodes is None else names(nodes)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"latency   {show_seconds(self.latency)}",
                f"overhead  {show_seconds(self.overhead)}",
                f"alone     {self.alone}",
                f"together  {self.together}",
                f"adding    {self.adding} together, {self.adding_alone} alone",
            ]
        )


def calibrate(carrier: Carrier, nodes: Iterable[str] | None = None, repeats: int = 21) -> Calibration:
    """Measure what messages cost: from a ping-pong, from all nodes at once, and both with adding.

    With several processes all of them call it, and all get the same. It takes some seconds.

    Parameters
    ----------
    carrier
        what they travel by.
    nodes
        the names of 2 or more; needed only for a carrier that plays all nodes here.
    repeats
        runs of each measurement.

    Returns
    -------
    Calibration
        figures, and the topology that they make.

    Raises
    ------
    TensorError
        for fewer than 2 nodes.

    Examples
    --------
    >>> from d2lps import Here
    >>> calibrate(Here(), ["a", "b"], repeats=1).nodes
    ('a', 'b')
    """
    nodes = names(carrier.names if nodes is None and hasattr(carrier, "names") else nodes or ())
    if len(nodes) < 2:
        raise TensorError(text("tensor.calibrate"))
    jobs = {(what, units.size(size)): (plan, size, carrier) for what, plan in _plans(nodes).items() for size in SIZES}
    return _fitted(nodes, {job: sorted(times) for job, times in turns(jobs, carrier, repeats).items()})


Job = "tuple[Plan | Callable[[Tensor], object], int | str, Carrier]"


def turns(jobs: Mapping[Hashable, Job], carrier: Carrier, repeats: int) -> dict[Hashable, list[float]]:
    """Seconds of each of ``repeats`` runs of every job, each that of the slowest rank, all beginning together.

    A job is (plan, bytes, its carrier), or a function instead of the plan which puts the sum over all ranks
    into the one flat tensor that it is given. With several processes all of them call it, and all get the same.
    Raises TensorError if a run leaves a wrong sum: that would be no measurement.
    """
    with ExitStack() as taken:
        for each in dict.fromkeys([carrier, *(by for *_, by in jobs.values())]):
            taken.enter_context(each.taken())
        mine = repeat({name: _timed(*job, carrier) for name, job in jobs.items()}, repeats, warm=2)
        everyone = carrier.all_gather(list(mine.values()))
    return {
        name: [max(each) for each in zip(*times, strict=True)]
        for name, times in zip(mine, zip(*everyone, strict=True), strict=True)
    }


def _timed(
    what: "Plan | Callable", nbytes: "int | str", carrier: Carrier, clock: Carrier
) -> tuple[Collection[Tensor], Callable[[], float]]:
    """(the tensors of a job, what runs it once, looks at the sum, and returns the seconds)"""
    count = units.size(nbytes) // 4
    if isinstance(what, Plan):
        tensors = {node: carrier.buffer(node, count) for node in carrier.playing(what)}
        execute = compile(what, tensors, carrier).execute
    else:
        tensors, ranks = {"": torch.empty(count)}, len(carrier.all_gather(None))
        execute = partial(what, tensors[""])

    def seconds() -> float:
        clock.barrier()
        start = clock.clock()
        execute()
        took = clock.clock() - start
        if isinstance(what, Plan):
            _require_sums(what, tensors)
        elif count and not tensors[""][0] == tensors[""][-1] == ranks:
            raise TensorError(text("tensor.wrong-result", got=f"{tensors[''][0].item():g}", right=ranks))
        return took

    return tensors.values(), seconds


def _require_sums(plan: Plan, tensors: Mapping[str, Tensor]) -> None:
    """TensorError unless each wanted key is the number of those that hold it, at both ends."""
    count = {key: sum(k == key for _, k in plan.holds) for key in plan.share}
    cut = plan.slices(next(iter(tensors.values())).numel())
    for node, key, _ in plan.wants:
        total = tensors[node][cut[key]] if node in tensors else ()
        if len(total) and not total[0] == total[-1] == count[key]:
            values = {"got": f"{total[0].item():g}", "right": count[key]}
            raise TensorError(text("tensor.wrong-sum", node=node, key=key, **values))


def _plans(nodes: Sequence[str]) -> dict[str, Plan]:
    return {
        "ping-pong": _ping_pong(nodes),
        "relay": _relay(nodes),
        "together": all_gather(nodes),
        "adding": reduce_scatter(nodes),
    }


def _ping_pong(nodes: Sequence[str]) -> Plan:
    """The whole buffer there and back, twice, between the first two; the others rest."""
    there, back = [Send(nodes[0], nodes[1], "g", "copy")], [Send(nodes[1], nodes[0], "g", "copy")]
    return Plan(nodes, {"g": 1}, [there, back] * 2, holds=nodes[:1], wants=nodes[:2])


def _relay(nodes: Sequence[str]) -> Plan:
    """The whole buffer from one to the next, each adding its own; the others rest."""
    return Plan(nodes, {"g": 1}, [[Send(a, b, "g")] for a, b in pairwise(nodes)], wants=nodes[-1:])


def _fitted(nodes: tuple[str, ...], seconds: Mapping[tuple[str, int], list[float]]) -> Calibration:
    tiny, small, *large = map(units.size, SIZES)
    hops = len(nodes) - 1

    def quick(what: str, size: int) -> float:
        """Seconds of a run when little comes between; of large ones the typical run counts."""
        return seconds[what, size][len(seconds[what, size]) // 4]

    one = quick("ping-pong", tiny) / 4

    def per_byte(what: str, steps: int) -> float:
        """Seconds per byte, where a run moves its buffer ``steps`` times: least squares over the large sizes."""
        points = [(steps * size, median(seconds[what, size]) - steps * one) for size in large]
        return max(1e-15, sum(x * y for x, y in points) / sum(x * x for x, _ in points))

    alone, together = per_byte("ping-pong", 4), per_byte("together", hops)
    adding, adding_alone = per_byte("adding", hops) - together, per_byte("relay", hops) - alone
    overhead = min(one, max(0.0, (quick("together", small) / hops - one) / hops))
    return Calibration(
        nodes,
        one - overhead,
        overhead,
        Bandwidth(1 / alone),
        Bandwidth(1 / together),
        Bandwidth(1 / max(adding, together / 1000)),
        Bandwidth(1 / max(adding_alone, alone / 1000)),
        tuple((what, size, median(times)) for (what, size), times in seconds.items()),
    )

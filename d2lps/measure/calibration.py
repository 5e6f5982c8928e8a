"""Measure the cost of messages on this machine, so that ``cost.shared`` can predict the time of a run here.

A ping-pong between two processes is not enough: on one host all processes share the same processors, and eight of
them do not move four times as much per second as two alone. So all ranks at once are measured as well, and both
measurements again with adding, which takes time at the receiver.
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

SIZES = ("1 kB", "1 MB", "8 MB", "32 MB")  # of the buffer: the first measures latency, the others the cost of bytes


@dataclass(frozen=True)
class Calibration:
    """The figures that :func:`calibrate` measured, for making a topology.

    Attributes
    ----------
    nodes
        the nodes of the measurement.
    latency
        seconds of a message during which nothing is busy.
    overhead
        the least seconds of processor time per message. Large messages keep the processors busy anyway, and their
        time per byte includes it.
    alone
        bytes per second from one node to another while all others rest (the ping-pong).
    together
        bytes per second of all nodes, sending at once.
    adding
        bytes per second at which all nodes together add arriving values, besides moving them.
    adding_alone
        the same for one node while all others rest.
    measured
        (name, bytes of the buffer, median seconds) of each measurement.
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
        """Return a topology of this machine, for predictions.

        Parameters
        ----------
        nodes
            names, or their number; if left out, the nodes of the measurement.
        """
        one = min(self.alone, self.together)
        return one_memory(
            self._named(nodes), self.together, self.adding, self.overhead, self.latency, one, self.adding_alone
        )

    def ping_pong(self, nodes: "Iterable[str] | int | None" = None) -> Topology:
        """Return the topology that a ping-pong alone suggests, in which messages never slow each other down.

        Parameters
        ----------
        nodes
            as for :meth:`topology`.
        """
        named, latency = self._named(nodes), self.latency + self.overhead
        links = [Link(a, b, self.alone, latency) for a, b in permutations(named, 2)]
        return Topology("ping_pong", {node: kind_of(node) for node in named}, links)

    def table(self) -> Table:
        """Return the figures as a table, each with a line that explains it.

        Returns
        -------
        Table
            in the current language.
        """
        figures = {
            "latency": show_seconds(self.latency),
            "overhead": show_seconds(self.overhead),
            "alone": str(self.alone),
            "together": str(self.together),
            "adding-together": str(self.adding),
            "adding-alone": str(self.adding_alone),
        }
        rows = [[text(f"calibration.{name}"), value, text(f"calibration.{name}-is")] for name, value in figures.items()]
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
    """Measure the cost of messages: with a ping-pong, with all nodes at once, and both with adding.

    If the carrier has several processes, all of them must call this, and all get the same result. It takes some
    seconds.

    Parameters
    ----------
    carrier
        the carrier of the messages.
    nodes
        2 or more names; needed only for a carrier that plays all nodes here.
    repeats
        runs of each measurement.

    Returns
    -------
    Calibration
        the figures, and the topology made of them.

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
    jobs = {(name, units.size(size)): (plan, size, carrier) for name, plan in _plans(nodes).items() for size in SIZES}
    return _fitted(nodes, {job: sorted(times) for job, times in turns(jobs, carrier, repeats).items()})


Job = "tuple[Plan | Callable[[Tensor], object], int | str, Carrier]"


def turns(jobs: Mapping[Hashable, Job], carrier: Carrier, repeats: int) -> dict[Hashable, list[float]]:
    """Return the seconds of ``repeats`` runs of every job: of the slowest rank, all ranks beginning together.

    A job is (plan, bytes, its carrier); instead of the plan it can have a function that puts the sum over all ranks
    into the one flat tensor that it is given. All processes call this and get the same result. Raise TensorError if a
    run leaves a wrong sum, since its time would mean nothing.
    """
    with ExitStack() as taken:
        for used in dict.fromkeys([carrier, *(by for *_, by in jobs.values())]):
            taken.enter_context(used.taken())
        mine = repeat({name: _timed(*job, carrier) for name, job in jobs.items()}, repeats, warm=2)
        everyone = carrier.all_gather(list(mine.values()))
    return {
        name: [max(run) for run in zip(*times, strict=True)]
        for name, times in zip(mine, zip(*everyone, strict=True), strict=True)
    }


def _timed(
    plan: "Plan | Callable", nbytes: "int | str", carrier: Carrier, clock: Carrier
) -> tuple[Collection[Tensor], Callable[[], float]]:
    """Return the tensors of a job, and a function that runs it once, checks the sum and returns the seconds."""
    count = units.size(nbytes) // 4
    if isinstance(plan, Plan):
        tensors = {node: carrier.buffer(node, count) for node in carrier.playing(plan)}
        execute = compile(plan, tensors, carrier).execute
    else:
        tensors, ranks = {"": torch.empty(count)}, len(carrier.all_gather(None))
        execute = partial(plan, tensors[""])

    def seconds() -> float:
        clock.barrier()
        start = clock.clock()
        execute()
        took = clock.clock() - start
        if isinstance(plan, Plan):
            _require_sums(plan, tensors)
        elif count and not tensors[""][0] == tensors[""][-1] == ranks:
            raise TensorError(text("tensor.wrong-result", got=f"{tensors[''][0].item():g}", right=ranks))
        return took

    return tensors.values(), seconds


def _require_sums(plan: Plan, tensors: Mapping[str, Tensor]) -> None:
    """Raise TensorError unless the first and last element of each wanted key equal the number of its holders."""
    count = {key: sum(k == key for _, k in plan.holds) for key in plan.share}
    slices = plan.slices(next(iter(tensors.values())).numel())
    for node, key, _ in plan.wants:
        total = tensors[node][slices[key]] if node in tensors else ()
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
    """Send the whole buffer there and back, twice, between the first two nodes; the others rest."""
    there, back = [Send(nodes[0], nodes[1], "g", "copy")], [Send(nodes[1], nodes[0], "g", "copy")]
    return Plan(nodes, {"g": 1}, [there, back] * 2, holds=nodes[:1], wants=nodes[:2])


def _relay(nodes: Sequence[str]) -> Plan:
    """Send the whole buffer from one node to the next, each adding its own, while the others rest."""
    return Plan(nodes, {"g": 1}, [[Send(a, b, "g")] for a, b in pairwise(nodes)], wants=nodes[-1:])


def _fitted(nodes: tuple[str, ...], seconds: Mapping[tuple[str, int], list[float]]) -> Calibration:
    tiny, small, *large = map(units.size, SIZES)
    hops = len(nodes) - 1

    def quick(name: str, size: int) -> float:
        """Return the lower quartile of the seconds: a run with few disturbances."""
        return seconds[name, size][len(seconds[name, size]) // 4]

    one = quick("ping-pong", tiny) / 4

    def per_byte(name: str, steps: int) -> float:
        """Return the seconds per byte of a run that moves its buffer ``steps`` times, fitted by least squares."""
        points = [(steps * size, median(seconds[name, size]) - steps * one) for size in large]
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
        tuple((name, size, median(times)) for (name, size), times in seconds.items()),
    )

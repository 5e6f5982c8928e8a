"""Measure the cost of messages on this machine, so that ``cost.shared`` can predict the time of a run here.

A ping-pong between two processes is not enough: on one host all processes share the same processors, and eight of
them do not move four times as much per second as two alone. So all ranks at once are measured as well, and both
measurements again with adding, which takes time at the receiver. Of several hosts all this is measured inside, and a
pair and all ranks also between them, where wires are slower.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise, permutations
from statistics import median
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from d2lps import units
from d2lps.algorithms import all_gather, reduce_scatter
from d2lps.algorithms.compose import side_by_side
from d2lps.carriers.base import Carrier
from d2lps.carriers.execute import compile
from d2lps.carriers.tensors import TensorError
from d2lps.measure.timing import repeat
from d2lps.messages import text
from d2lps.plan.acts import Send
from d2lps.plan.parse import names
from d2lps.plan.plan import Plan
from d2lps.topology import Link, Resource, Topology, both_ways, kind_of
from d2lps.topology.hosts import one_memory
from d2lps.units import Bandwidth, is_count, show_seconds
from d2lps.view.tables import Table, table

SIZES = ("1 kB", "1 MB", "8 MB", "32 MB")  # of the buffer: the first measures latency, the others the cost of bytes
LONG = 0.3  # seconds that a message between hosts is to take, so that no buffer of a switch hides the wire
LEAST, MOST = 1_000_000, 128_000_000  # bytes of the buffer for that


class Across(NamedTuple):
    """Figures of messages between hosts: as in :class:`Calibration`, ``together`` those of all nodes to other hosts."""

    latency: float
    alone: Bandwidth
    together: Bandwidth


@dataclass(frozen=True)
class Calibration:
    """The figures that :func:`calibrate` measured, for making a topology; those of several hosts hold inside each.

    Attributes:
        nodes: the nodes of the measurement.
        latency: seconds of a message during which nothing is busy.
        overhead: the least seconds of processor time per message. Large messages keep the processors busy anyway, and
            their time per byte includes it.
        alone: bytes per second from one node to another while all others rest (the ping-pong).
        together: bytes per second of all nodes, sending at once.
        adding: bytes per second at which all nodes together add arriving values, besides moving them.
        adding_alone: the same for one node while all others rest.
        measured: (name, bytes of the buffer, median seconds) of each measurement.
        hosts, across: the nodes of each host, and the figures between hosts; empty and None for one host.
    """

    nodes: tuple[str, ...]
    latency: float
    overhead: float
    alone: Bandwidth
    together: Bandwidth
    adding: Bandwidth
    adding_alone: Bandwidth
    measured: tuple[tuple[str, int, float], ...] = field(repr=False, default=())
    hosts: tuple[tuple[str, ...], ...] = ()
    across: Across | None = None

    def topology(self, nodes: "Iterable[str] | int | None" = None) -> Topology:
        """Return a topology of what was measured, for predictions.

        One host is one memory. Each of several hosts has a memory and a network card, which leads to ``network``.

        Args:
            nodes: names, or their number; if left out, the nodes of the measurement. Of several hosts only these nodes
                have a known place; other names need a mapping to them.

        Raises:
            TensorError: for a node of unknown place.
        """
        one = min(self.alone, self.together)
        if self.across is None:
            figures = self.together, self.adding, self.overhead, self.latency, one, self.adding_alone
            return one_memory(self._named(nodes), *figures)
        place, card = self._placed(nodes), Bandwidth(self.across.together / len(self.hosts))  # each way
        kinds, links = {node: kind_of(node) for node in place} | {"network": "switch"}, []
        limits = dict.fromkeys(place, Resource(adding=self.adding_alone, port=one))
        for node, host in place.items():
            links += both_ways(node, f"{host}/memory", Bandwidth("inf"), self.latency / 2)
            links += both_ways(node, f"{host}/card", self.across.alone)
        for host in dict.fromkeys(place.values()):
            kinds |= {f"{host}/memory": "memory", f"{host}/card": "switch"}
            limits[f"{host}/memory"] = Resource(self.together, self.adding, self.overhead or None)
            limits[f"{host}/card"] = Resource(Bandwidth(2 * card))
            links += both_ways(f"{host}/card", "network", max(self.across.alone, card), self.across.latency / 2)
        return Topology("machines", kinds, links, limits=limits)

    def _placed(self, nodes: "Iterable[str] | int | None") -> dict[str, str]:
        """Return node → its host."""
        named = nodes if isinstance(nodes, Mapping) else {node: node for node in self._named(nodes)}
        host = {node: f"host{number}" for number, members in enumerate(self.hosts) for node in members}
        if unknown := [node for node, at in named.items() if at not in host]:
            raise TensorError(text("tensor.calibrated", node=unknown[0], nodes=" ".join(host)))
        return {node: host[at] for node, at in named.items()}

    def ping_pong(self, nodes: "Iterable[str] | int | None" = None) -> Topology:
        """Return the topology that a ping-pong alone suggests, in which messages never slow each other down.

        Args:
            nodes: as for :meth:`topology`.
        """
        named, latency = self._named(nodes), self.latency + self.overhead
        links = [Link(a, b, self.alone, latency) for a, b in permutations(named, 2)]
        return Topology("ping_pong", {node: kind_of(node) for node in named}, links)

    def table(self) -> Table:
        """Return the figures as a table, each with a line that explains it.

        Returns:
            in the current language.
        """
        figures: list[tuple[str, float]] = [("latency", self.latency), ("overhead", self.overhead)]
        figures += [("alone", self.alone), ("together", self.together)]
        figures += [("adding-together", self.adding), ("adding-alone", self.adding_alone)]
        between = [*zip(Across._fields, self.across or (), strict=False)]
        rows = []
        for i, (name, figure) in enumerate([*figures, *between]):
            named = text(f"calibration.{name}")
            named = text("calibration.between", figure=named) if i >= len(figures) else named
            shown = str(figure) if isinstance(figure, Bandwidth) else show_seconds(figure)
            rows.append([named, shown, text(f"calibration.{name}-is")])
        return table("figure", "measured", "meaning", rows=rows)

    def _named(self, nodes: "Iterable[str] | int | None") -> tuple[str, ...]:
        if is_count(nodes, least=1):
            return tuple(f"rank{i}" for i in range(nodes))
        return self.nodes if nodes is None else names(nodes)

    def __str__(self) -> str:
        return "\n".join(f"{name:<24} {figure}" for name, figure, _ in self.table().rows)


def calibrate(carrier: Carrier, nodes: Iterable[str] | None = None, repeats: int = 21) -> Calibration:
    """Measure the cost of messages: with a ping-pong, with all nodes at once, and both with adding.

    Of several hosts all this is measured inside, and a pair and all nodes also between them. If the carrier has several
    processes, all of them must call this, and all get the same result. It takes some seconds, over slow wires half a
    minute.

    Args:
        carrier: the carrier of the messages.
        nodes: 2 or more names; needed only for a carrier that plays all nodes here.
        repeats: runs of each measurement.

    Returns:
        the figures, and the topology made of them.

    Raises:
        TensorError: for fewer than 2 nodes.

    Example:
        >>> from d2lps import Here
        >>> calibrate(Here(), ["a", "b"], repeats=1).nodes
        ('a', 'b')
    """
    nodes = names(carrier.names if nodes is None and hasattr(carrier, "names") else nodes or ())
    if len(nodes) < 2:
        raise TensorError(text("tensor.calibrate"))
    hosts: dict[str, list[str]] = {}
    for node, rank in carrier.ranks(_ping_pong(nodes)).items():
        hosts.setdefault(carrier.members[rank]["host"] if hasattr(carrier, "members") else "", []).append(node)
    groups = [host for host in hosts.values() if len(host) > 1]
    groups = [host[: min(map(len, groups))] for host in groups]
    endless = Bandwidth("inf")  # inside a host of one node nothing is sent
    result = Calibration(nodes, 0.0, 0.0, endless, endless, endless, endless)
    if groups:
        result = _fitted(nodes, _measured(_plans(nodes, groups), SIZES, carrier, repeats), groups)
    if len(hosts) == 1:
        return result
    across, measured = _between(nodes, [*hosts.values()], carrier, max(3, repeats // 4))
    placed = tuple(map(tuple, hosts.values()))
    return replace(result, hosts=placed, across=across, measured=result.measured + measured)


def _measured(
    plans: Mapping[str, Plan], sizes: Iterable[int | str], carrier: Carrier, repeats: int
) -> dict[tuple[str, int], list[float]]:
    jobs = {(name, units.size(size)): (plan, size, carrier) for name, plan in plans.items() for size in sizes}
    return {job: sorted(times) for job, times in turns(jobs, carrier, repeats).items()}


def _between(nodes: Sequence[str], hosts: Sequence[Sequence[str]], carrier: Carrier, repeats: int) -> tuple:
    """Return the figures between hosts, and the measurements: of a pair, and of a ring of hops between them."""
    dealt = [node for row in zip(*hosts, strict=False) for node in row]
    pair, ring = (side_by_side(nodes, [plan], [Fraction(1)]) for plan in (_ping_pong(dealt), all_gather(dealt)))
    tried = _measured({"across": pair}, [LEAST], carrier, 1)["across", LEAST][0] / 4
    large = min(MOST, max(LEAST, 4 * round(LONG * LEAST / tried / 4)))
    seconds = _measured({"across": pair, "all across": ring}, [SIZES[0], large], carrier, repeats)
    tiny, steps = units.size(SIZES[0]), len(dealt) - 1
    one = seconds["across", tiny][repeats // 4] / 4
    alone = (large - tiny) / max(1e-9, median(seconds["across", large]) / 4 - one)
    latency = max(0.0, one - tiny / alone)
    together = steps * large / max(1e-9, median(seconds["all across", large]) - steps * latency)
    measured = tuple((*job, median(times)) for job, times in seconds.items())
    return Across(latency, Bandwidth(alone), Bandwidth(together)), measured


Job = tuple[Plan | Callable[[Tensor], object], int | str, Carrier]
Name = TypeVar("Name", bound=Hashable)


def turns(jobs: Mapping[Name, Job], carrier: Carrier, repeats: int) -> dict[Name, list[float]]:
    """Return the seconds of ``repeats`` runs of every job: of the slowest rank, all ranks beginning together.

    A job is (plan, bytes, its carrier); instead of the plan it can have a function that puts the sum over all ranks
    into the one flat tensor that it is given. All processes call this and get the same result. Raise TensorError if a
    run leaves a wrong sum, since its time would mean nothing.
    """
    with ExitStack() as taken:
        for used in dict.fromkeys([carrier, *(by for *_, by in jobs.values())]):
            taken.enter_context(used.taken())
        timed = {name: _timed(plan, nbytes, by, carrier) for name, (plan, nbytes, by) in jobs.items()}
        mine = repeat(timed, repeats, warm=2)
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
        tensors = {"": torch.empty(count, device=getattr(carrier, "device", "cpu"))}
        ranks = len(carrier.all_gather(None))
        library = plan is dist.all_reduce  # it runs over the connections of the carrier, if that has some
        execute = partial(carrier.all_reduce if library and hasattr(carrier, "all_reduce") else plan, tensors[""])

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
        total = tensors[node][slices[key]] if node in tensors else torch.empty(0)
        if len(total) and not total[0] == total[-1] == count[key]:
            values = {"got": f"{total[0].item():g}", "right": count[key]}
            raise TensorError(text("tensor.wrong-sum", node=node, key=key, **values))


def _plans(nodes: Sequence[str], groups: Sequence[Sequence[str]] = ()) -> dict[str, Plan]:
    """Return the plans inside hosts, whose nodes are ``groups``: of the first, or of all at the same time."""
    groups = groups or [nodes]
    parts = [Fraction(1, len(groups))] * len(groups)
    return {
        "ping-pong": side_by_side(nodes, [_ping_pong(groups[0])], [Fraction(1)]),
        "relay": side_by_side(nodes, [_relay(groups[0])], [Fraction(1)]),
        "together": side_by_side(nodes, [all_gather(group, key=f"g{i}.") for i, group in enumerate(groups)], parts),
        "adding": side_by_side(nodes, [reduce_scatter(group, key=f"g{i}.") for i, group in enumerate(groups)], parts),
    }


def _ping_pong(nodes: Sequence[str]) -> Plan:
    """Send the whole buffer there and back, twice, between the first two nodes; the others rest."""
    there, back = [Send(nodes[0], nodes[1], "g", "copy")], [Send(nodes[1], nodes[0], "g", "copy")]
    return Plan(nodes, {"g": 1}, [there, back] * 2, holds=nodes[:1], wants=nodes[:2])


def _relay(nodes: Sequence[str]) -> Plan:
    """Send the whole buffer from one node to the next, each adding its own, while the others rest."""
    return Plan(nodes, {"g": 1}, [[Send(a, b, "g")] for a, b in pairwise(nodes)], wants=nodes[-1:])


def _fitted(
    nodes: tuple[str, ...], seconds: Mapping[tuple[str, int], list[float]], groups: Sequence[Sequence[str]] = ()
) -> Calibration:
    tiny, small, *large = map(units.size, SIZES)
    parts, hops = len(groups) or 1, len(groups[0] if groups else nodes) - 1

    def quick(name: str, size: int) -> float:
        """Return the lower quartile of the seconds: a run with few disturbances."""
        return seconds[name, size][len(seconds[name, size]) // 4]

    one = quick("ping-pong", tiny) / 4

    def per_byte(name: str, steps: int, parts: int = 1) -> float:
        """Return the seconds per byte of a run that moves its buffer or part ``steps`` times, by least squares."""
        points = [(steps * size / parts, median(seconds[name, size]) - steps * one) for size in large]
        return max(1e-15, sum(x * y for x, y in points) / sum(x * x for x, _ in points))

    alone, together = per_byte("ping-pong", 4), per_byte("together", hops, parts)
    adding, adding_alone = per_byte("adding", hops, parts) - together, per_byte("relay", hops) - alone
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

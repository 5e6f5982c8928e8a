"""Judge an order of GPUs: is there an NVLink at every hop of the ring, and as many as there could be?

The order is turned into a ring's plan and costed on the host that the answer was given as a table, so that what is
told and watched is what the order would do there.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from d2lps import Topology, Trace, ring
from d2lps.notebook.grading import NBYTES, PlanCase, call, failure, time_text
from d2lps.units import bandwidth

NVLINK = "18 GB/s"
DOUBLE = [(0, 3), (3, 2), (2, 1), (1, 5), (5, 6), (6, 7), (7, 4), (4, 0)]
SINGLE = [(0, 1), (1, 3), (3, 7), (7, 5), (5, 4), (4, 6), (6, 2), (2, 0)]
LINKS: Mapping[tuple[int, int], int] = dict.fromkeys(DOUBLE, 2) | dict.fromkeys(SINGLE, 1)
# The two rings as the chapter's figure labels its GPUs, from 1.
FIGURE = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7))


@dataclass(frozen=True)
class HostCase(PlanCase):
    """A case whose argument is a table; ``width`` is the most links that a ring can have at every hop."""

    width: int = 1


def host_case(label: str, width: int, *gpus: int) -> HostCase:
    """The case of a DGX-1V that shows only ``gpus``, in this order."""
    table = printed_table(gpus)
    topology = Topology.from_nvidia_smi(table, nvlink=NVLINK)
    names = tuple(node for node, kind in topology.kinds.items() if kind == "gpu")
    steps = 2 * (len(names) - 1)
    bound = Fraction(steps * NBYTES, len(names) * width) / Fraction(bandwidth(NVLINK))
    return HostCase(label, (table,), names, topology, steps, bound, width=width)


def printed_table(gpus: Sequence[int]) -> str:
    """Return the output of ``nvidia-smi topo -m`` on a DGX-1V that shows only ``gpus``, as GPU0, GPU1, …

    Two neighbours in number share a network card, and the lower half of the numbers is on the first CPU.
    """
    cards = list(dict.fromkeys(gpu // 2 for gpu in sorted(gpus)))
    rows = [("", [f"GPU{i}" for i in range(len(gpus))] + [f"mlx5_{i}" for i in range(len(cards))] + ["CPU Affinity"])]
    for i, gpu in enumerate(gpus):
        codes = [" X " if gpu == other else _code(gpu, other) for other in gpus]
        near = ["PIX" if gpu // 2 == card else "PHB" if gpu // 4 == card // 2 else "SYS" for card in cards]
        rows.append((f"GPU{i}", [*codes, *near, "0-19,40-59" if gpu < 4 else "20-39,60-79"]))
    return "\n".join("\t".join([name, *cells]) for name, cells in rows) + "\n"


def _code(gpu: int, other: int) -> str:
    count = LINKS.get((gpu, other)) or LINKS.get((other, gpu))
    return f"NV{count}" if count else "PHB" if gpu // 4 == other // 4 else "SYS"


def judge(case: HostCase, answer: Callable) -> Trace:
    """The predicted trace of the ring in the order that is returned; raises Failure."""
    order = _order(case, answer)
    trace = case.predict(ring(order))
    hops = list(pairwise((*order, order[0]))) if len(order) > 1 else []
    routes = {hop: case.topology.route(*hop) for hop in hops}
    times = {"time": time_text(trace.duration), "bound": time_text(case.bound)}
    for (src, dst), route in routes.items():
        if len(route) > 1:
            way = "→".join([src, *(link.dst for link in route)])
            raise failure(hop_mistake(order), "no-nvlink", case, trace, src=src, dst=dst, way=way, **times)
    for (src, dst), (link,) in routes.items():
        if link.count < case.width:
            got, enough = link.count, case.width
            raise failure("narrow", "few-nvlinks", case, trace, src=src, dst=dst, got=got, enough=enough, **times)
    return trace


def hop_mistake(order: Sequence[str]) -> str:
    """Whether a hop without NVLink comes from taking the figure's labels for ids, from 0 or from 1."""
    ids = {tuple(f"gpu{label - 1}" for label in labels) for labels in FIGURE}
    return "labels-as-ids" if tuple(order) in ids else "no-nvlink"


def _order(case: HostCase, answer: Callable) -> list[str]:
    order = call(case, answer, *copy.deepcopy(case.arguments))
    listed = isinstance(order, list | tuple)
    strange = [type(each).__name__ for each in order if not isinstance(each, str)] if listed else []
    if not listed or strange:
        got = type(order).__name__ + "".join(f"[{each}]" for each in strange[:1])
        raise failure("wrong-type", "not-an-order", case, type=got)
    if not order:
        raise failure("todo", "no-order", case)
    for node in order:
        if node not in case.workers:
            raise failure("differs", "order-strange", case, node=node, nodes=" ".join(case.workers))
        if order.count(node) > 1:
            raise failure("differs", "order-twice", case, node=node)
    for node in case.workers:
        if node not in order:
            raise failure("differs", "order-missing", case, node=node)
    return list(order)

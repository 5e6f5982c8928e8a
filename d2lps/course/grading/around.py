"""Judge an order of GPUs: is there an NVLink at every hop of the ring, and as many as there could be?

The order is turned into a ring's plan and costed on the host that the answer was given as a table, so that what is
told and watched is what the order would do there.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from d2lps.algorithms import ring
from d2lps.course.grading.asked import NBYTES, Case, failure
from d2lps.course.grading.attempt import called, play, time
from d2lps.topology.graph import Topology
from d2lps.trace import Trace
from d2lps.units import bandwidth

NVLINK = "18 GB/s"


@dataclass(frozen=True)
class Host(Case):
    """A case whose argument is a table; ``width`` is the most links that a ring can have at every hop."""

    width: int = 1


def host(label: str, table: str, width: int) -> Host:
    """The case of one table."""
    topology = Topology.from_nvidia_smi(table, nvlink=NVLINK)
    gpus = tuple(node for node, kind in topology.kinds.items() if kind == "gpu")
    bound = Fraction(2 * (len(gpus) - 1) * NBYTES, len(gpus) * width) / Fraction(bandwidth(NVLINK))
    return Host(label, (table,), gpus, (), topology, 2 * (len(gpus) - 1), {}, {}, bound, width=width)


def judge(case: Host, answer: Callable, diagnose: Callable[[Sequence[str]], str]) -> Trace:
    """The predicted trace of the ring in the order given; raises Failure. ``diagnose`` names a hop without NVLink."""
    order = _order(case, answer)
    trace = play(case, ring(order))
    hops = list(pairwise((*order, order[0]))) if len(order) > 1 else []
    links = {hop: case.topology.route(*hop) for hop in hops}
    times = {"time": time(trace.duration), "bound": time(case.bound)}
    for (src, dst), route in links.items():
        if len(route) > 1:
            way = "→".join([src, *(link.dst for link in route)])
            raise failure(diagnose(order), "no-nvlink", case, trace, src=src, dst=dst, way=way, **times)
    for (src, dst), (link,) in links.items():
        if link.count < case.width:
            got, enough = link.count, case.width
            raise failure("narrow", "few-nvlinks", case, trace, src=src, dst=dst, got=got, enough=enough, **times)
    return trace


def _order(case: Host, answer: Callable) -> list[str]:
    given = called(case, answer, *copy.deepcopy(case.arguments))
    if not _listed(given) or not all(isinstance(node, str) for node in given):
        inside = [type(each).__name__ for each in given if not isinstance(each, str)] if _listed(given) else []
        got = "".join([type(given).__name__, *(f"[{each}]" for each in inside[:1])])
        raise failure("not-an-order", "not-an-order", case, type=got)
    if not given:
        raise failure("todo", "no-order", case)
    for node in given:
        if node not in case.workers:
            raise failure("other-nodes", "order-strange", case, node=node, nodes=" ".join(case.workers))
        if given.count(node) > 1:
            raise failure("twice", "order-twice", case, node=node)
    for node in case.workers:
        if node not in given:
            raise failure("other-nodes", "order-missing", case, node=node)
    return list(given)


def _listed(given: object) -> bool:
    return isinstance(given, list | tuple)


def printed(gpus: Sequence[int], links: Mapping[tuple[int, int], int]) -> str:
    """What ``nvidia-smi topo -m`` prints of a DGX-1V that shows only ``gpus``, in this order, as GPU0, GPU1, …

    ``links``: pair of GPUs → the number of NVLinks between them. Two neighbours in number share a network card, and
    the lower half of the numbers is on the first CPU.
    """
    cards = list(dict.fromkeys(gpu // 2 for gpu in sorted(gpus)))
    rows = [("", [f"GPU{i}" for i in range(len(gpus))] + [f"mlx5_{i}" for i in range(len(cards))] + ["CPU Affinity"])]
    for i, gpu in enumerate(gpus):
        codes = [" X " if gpu == other else _between(gpu, other, links) for other in gpus]
        near = ["PIX" if gpu // 2 == card else "PHB" if gpu // 4 == card // 2 else "SYS" for card in cards]
        rows.append((f"GPU{i}", [*codes, *near, "0-19,40-59" if gpu < 4 else "20-39,60-79"]))
    return "\n".join("\t".join([name, *cells]) for name, cells in rows) + "\n"


def _between(gpu: int, other: int, links: Mapping[tuple[int, int], int]) -> str:
    count = links.get((gpu, other)) or links.get((other, gpu))
    return f"NV{count}" if count else "PHB" if gpu // 4 == other // 4 else "SYS"

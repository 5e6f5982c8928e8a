"""Measure this machine: how fast it copies, and how long a plan takes on it."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from d2lps import units
from d2lps.carriers.execute import run
from d2lps.carriers.here import Here
from d2lps.messages.counted import counted
from d2lps.plan.plan import Plan
from d2lps.topology.graph import Topology
from d2lps.trace import Trace
from d2lps.units import Bandwidth

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def repeat(
    jobs: Mapping[Name, tuple[Collection[Tensor], Callable[[], Result]]], repeats: int, warm: int
) -> dict[Name, list[Result]]:
    """What each of ``repeats`` runs of every job returns, after ``warm`` more that do not count.

    A job is (its tensors, what runs it once): every run begins with tensors full of ones. The jobs take turns, A B B A,
    so that what disturbs the machine disturbs all alike.
    """
    results: dict[Name, list[Result]] = {name: [] for name in jobs}
    for turn in counted(range(warm + repeats), of=warm + repeats):
        for name in list(jobs)[:: 1 if turn % 2 else -1]:
            tensors, go = jobs[name]
            for tensor in tensors:
                tensor.fill_(1.0)
            results[name].append(go())
    return {name: every[warm:] for name, every in results.items()}


def copy_bandwidth(nbytes: "int | str" = "40 MB", device: "str | torch.device" = "cpu", repeats: int = 15) -> Bandwidth:
    """How fast one buffer is copied to another: the median of some runs.

    A copy reads and writes every byte, so the memory moves twice as much.

    Parameters
    ----------
    nbytes
        the size of the buffer, in bytes or as text with a unit.
    device
        where both buffers lie.
    repeats
        how many copies are timed.

    Returns
    -------
    Bandwidth
        bytes copied per second.
    """
    source, here = torch.ones(units.size(nbytes), dtype=torch.uint8, device=device), Here()
    target = torch.empty_like(source)

    def seconds() -> float:
        start = here.clock()
        target.copy_(source)
        return here.clock() - start

    times = repeat({"copy": ((), seconds)}, repeats, warm=1)["copy"]  # the first touch of a page is not a copy
    return Bandwidth(source.numel() / sorted(times)[repeats // 2])


def median_run(
    plan: Plan,
    nbytes: "int | str",
    device: "str | torch.device" = "cpu",
    repeats: int = 9,
    topology: Topology | None = None,
) -> Trace:
    """Run a plan on gradients full of ones, in this process, and return the run of median duration.

    Parameters
    ----------
    plan
        who sends what to whom; without updates.
    nbytes
        the size of a float32 gradient, in bytes or as text with a unit.
    device
        where all nodes lie.
    repeats
        how many runs are timed.
    topology
        the links on which the trace is drawn, as for :func:`d2lps.run`.

    Returns
    -------
    Trace
        the run of median duration.
    """
    carrier = Here(dict.fromkeys(plan.nodes, device))
    tensors = {node: torch.empty(units.size(nbytes) // 4, device=device) for node in plan.nodes}
    job = tensors.values(), lambda: run(plan, tensors, carrier, topology=topology)
    traces = repeat({plan: job}, repeats, warm=1)[plan]
    return sorted(traces, key=lambda trace: trace.duration)[repeats // 2]

"""Repeat jobs in turn, and measure how fast this machine copies."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from d2lps import units
from d2lps.carriers.here import Here
from d2lps.messages.counted import counted
from d2lps.units import Bandwidth

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def repeat(
    jobs: Mapping[Name, tuple[Collection[Tensor], Callable[[], Result]]], repeats: int, warm: int
) -> dict[Name, list[Result]]:
    """Return the results of ``repeats`` runs of every job, after ``warm`` runs that do not count.

    A job is (its tensors, a function that runs it once); each run begins with tensors full of ones. The jobs take
    turns, A B B A, so that a disturbance of the machine affects all alike.
    """
    results: dict[Name, list[Result]] = {name: [] for name in jobs}
    for turn in counted(range(warm + repeats), of=warm + repeats):
        for name in list(jobs)[:: 1 if turn % 2 else -1]:
            tensors, go = jobs[name]
            for tensor in tensors:
                tensor.fill_(1.0)
            results[name].append(go())
    return {name: runs[warm:] for name, runs in results.items()}


def copy_bandwidth(nbytes: "int | str" = "40 MB", device: "str | torch.device" = "cpu", repeats: int = 15) -> Bandwidth:
    """Measure how fast one buffer is copied to another: the median of some runs.

    A copy reads and writes every byte, so the memory moves twice as much.

    Args:
        nbytes: the size of the buffer, in bytes or as text with a unit.
        device: the device of both buffers.
        repeats: the number of timed copies.

    Returns:
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

"""Measure this machine: how fast it copies, and how long a plan takes on it.

A single time on a shared machine is worth little; both functions repeat, and say what they took.
"""

import torch

from d2lps import units
from d2lps.carriers.execute import run
from d2lps.carriers.here import Here
from d2lps.plan.plan import Plan
from d2lps.topology.graph import Topology
from d2lps.trace import Trace
from d2lps.units import Bandwidth


def copy_bandwidth(nbytes: "int | str" = "40 MB", device: "str | torch.device" = "cpu", repeats: int = 15) -> Bandwidth:
    """Bytes copied per second from one buffer of ``nbytes`` to another on ``device``: the median of ``repeats``.

    A copy reads and writes every byte, so the memory moves twice as much.
    """
    source = torch.ones(units.size(nbytes), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    carrier, times = Here(), []
    target.copy_(source)  # the first touch of a page is not a copy
    for _ in range(repeats):
        start = carrier.clock()
        target.copy_(source)
        times.append(carrier.clock() - start)
    return Bandwidth(source.numel() / sorted(times)[repeats // 2])


def median_run(
    plan: Plan,
    nbytes: "int | str",
    device: "str | torch.device" = "cpu",
    repeats: int = 9,
    topology: Topology | None = None,
) -> Trace:
    """Run ``plan`` on float32 gradients of ``nbytes``, all on ``device``, and return the run of median duration."""
    count = units.size(nbytes) // 4
    carrier = Here(dict.fromkeys(plan.nodes, device))
    tensors = {node: torch.ones(count, dtype=torch.float32, device=device) for node in plan.nodes}
    traces = []
    for _ in range(repeats + 1):
        traces.append(run(plan, tensors, carrier, topology=topology))
        for tensor in tensors.values():
            tensor.fill_(1.0)
    return sorted(traces[1:], key=lambda trace: trace.duration)[repeats // 2]

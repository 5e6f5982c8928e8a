"""Run a plan on the hosts of a cluster, and time it."""

import statistics

import torch

from d2lps.carriers.execute import run
from d2lps.carriers.processes import Processes
from d2lps.cluster.errors import ClusterError
from d2lps.messages import text
from d2lps.plan.plan import Plan
from d2lps.topology import Topology
from d2lps.trace import Trace


def measured(plan: Plan, topology: Topology, nbytes: int, rounds: int) -> "Trace | None":
    """Run a plan on each host for :meth:`Cluster.measure`; rank 0 returns the trace of the median round."""
    carrier, elements = Processes(), max(1, nbytes // 4)
    mine = carrier.playing(plan)
    holders = [node for node in plan.nodes if node in {holder for holder, _ in plan.holds}]
    total = sum(range(1, len(holders) + 1))
    traces = []
    for _ in range(1 + rounds):
        # Small whole numbers: their sum is the same in every order.
        values = {node: float(holders.index(node) + 1) if node in holders else 0.0 for node in mine}
        tensors = {node: torch.full((elements,), value) for node, value in values.items()}
        traces.append(run(plan, tensors, carrier, topology=topology))
        for node, key, _ in plan.wants:
            if node in tensors and not torch.all(tensors[node][plan.slices(elements)[key]] == total):
                raise ClusterError(text("cluster.wrong-sum", node=node, key=key))
    carrier.close()
    middle = statistics.median_low(trace.duration for trace in traces[1:])
    return next(trace for trace in traces[1:] if trace.duration == middle) if carrier.rank == 0 else None

"""How the appendix opens; its pictures are drawn by its cells."""

from d2lps import cost
from d2lps.algorithms import aggregate_at
from d2lps.topology.hosts import pcie_server
from d2lps.trace import Trace


def opening() -> dict[str, Trace]:
    """One plan under three assumptions: no contention, whole tensors, and chunks that use both directions."""
    server, gpus = pcie_server(gpus=4, bandwidth="16 GB/s"), [f"gpu{i}" for i in range(4)]
    whole, chunks = aggregate_at(gpus, "gpu0"), aggregate_at(gpus, "gpu0", chunks=8)
    return {
        "no contention": cost.ideal(whole, server, "160 MB"),
        "c = 1": cost.shared(whole, server, "160 MB"),
        "c = 8": cost.shared(chunks, server, "160 MB"),
    }

"""With what this chapter opens: one step of the same model on four devices, with more and more of it shared out."""

from d2lps import Link, Topology, Trace, cost
from d2lps.schedule import zero

GPUS = ("gpu0", "gpu1", "gpu2", "gpu3")
LAYERS = [250_000] * 12  # parameters, of 4 bytes


def opening() -> dict[str, Trace]:
    """Return a step of data parallelism, of ZeRO-1 and of ZeRO-3, whose devices have 12 GB/s to each other."""
    links = [Link(one, other, "12 GB/s") for one in GPUS for other in GPUS if one != other]
    place = Topology("4 × GPU", dict.fromkeys(GPUS, "gpu"), links, computing=dict.fromkeys(GPUS, 4e12))
    stages = {"DP": 0, "ZeRO-1": 1, "ZeRO-3": 3}
    return {name: cost.shared(zero(GPUS, LAYERS, stage, rows=512), place) for name, stage in stages.items()}

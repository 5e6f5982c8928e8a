"""With what this chapter opens: the same causal attention on four devices, shared in three ways; and its figures."""

from d2lps import Topology, Trace, cost, nvswitch
from d2lps.schedule import attention, token_places
from d2lps.view.drawing.svg import sheet, tag, words, worker

GPUS = ("gpu0", "gpu1", "gpu2", "gpu3")


def opening() -> dict[str, Trace]:
    """Return one attention over 32 768 tokens: keys gathered, passed around a ring, and exchanged for heads."""
    switch = nvswitch(4, "60 GB/s", links=1)
    place = Topology(switch.name, switch.kinds, switch.links, computing=dict.fromkeys(GPUS, 400e12))
    shape = {"tokens": 32768, "heads": 16, "size": 128, "itemsize": 2}
    return {way: cost.shared(attention(GPUS, way, **shape), place) for way in ("gather", "ring", "heads")}

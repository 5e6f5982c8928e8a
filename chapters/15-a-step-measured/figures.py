"""With what this chapter opens: copies and computing of one GPU, one after the other, and beside each other."""

from d2lps import Trace, cost
from d2lps.simulate import streams

LAYERS, COPY, COMPUTE = 8, 0.002, 0.005  # seconds of a layer


def _forward(places: int) -> Trace:
    """Return a forward pass whose weights come from main memory, with room for so many layers on the GPU."""
    copies, computing = ([f"{kind}{k}" for k in range(LAYERS)] for kind in "CF")
    waits = {f"F{k}": [f"C{k}"] for k in range(LAYERS)}
    waits |= {f"C{k}": [f"F{k - places}"] for k in range(places, LAYERS)}
    seconds = dict.fromkeys(copies, COPY) | dict.fromkeys(computing, COMPUTE)
    return cost.shared(streams({"copies": copies, "computing": computing}, waits, seconds))


def opening() -> dict[str, Trace]:
    """Return the pass with room for one layer, for two, and for all."""
    return {"alternating": _forward(1), "one-ahead": _forward(2), "all-ahead": _forward(LAYERS)}

"""With what this chapter opens: the same causal attention on four devices, shared in three ways; and its figure."""

from d2lps import Topology, Trace, cost, nvswitch
from d2lps.schedule import attention, token_places
from d2lps.view.drawing.svg import area, sheet, tag, words, worker

GPUS = ("gpu0", "gpu1", "gpu2", "gpu3")
WAYS = {"gather keys": "gather", "ring": "ring", "heads": "heads"}  # in pictures, and in code
SIDE, CELL = 8, 22  # blocks of a sequence, and their size in the picture


def opening() -> dict[str, Trace]:
    """Return one attention over 32 768 tokens: keys gathered, passed around a ring, and exchanged for heads."""
    switch = nvswitch(4, "60 GB/s", links=1)
    place = Topology(switch.name, switch.kinds, switch.links, computing=dict.fromkeys(GPUS, 400e12))
    shape = {"tokens": 32768, "heads": 16, "size": 128, "itemsize": 2}
    return {name: cost.shared(attention(GPUS, way, **shape), place) for name, way in WAYS.items()}


def causal_cuts() -> str:
    """Draw who computes which pairs of a query (row) and a key (column): contiguous parts, and zigzag."""
    parts = []
    for number, zigzag in enumerate((False, True)):
        left, top = 60 + number * (SIDE * CELL + 90), 34
        owner = {token: i for i, place in enumerate(token_places(SIDE, 4, zigzag)) for part in place for token in part}
        for q in range(SIDE):
            parts.append(words(f"gpu{owner[q]}", left - 8, top + q * CELL + 15, "note", "soft", "end"))
            for k in range(SIDE):
                spot = {
                    "x": left + k * CELL + 1,
                    "y": top + q * CELL + 1,
                    "width": CELL - 2,
                    "height": CELL - 2,
                    "rx": 3,
                }
                parts.append(tag("rect", **spot, **(worker(owner[q]) if k <= q else area("band"))))
        parts.append(words("k", left + SIDE * CELL / 2, top - 10, "note", "soft"))
    return sheet(60 + 2 * (SIDE * CELL + 90) - 60, SIDE * CELL + 50, "gpu0 … gpu3: q, k", *parts, style="--d2-zoom:1.4")

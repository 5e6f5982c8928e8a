"""The algorithms: each a small function that returns a plan.

Every docstring describes the phases and the state after each, the number of steps, the bytes that each node sends and
receives, and the time step by step, for n workers, a gradient of S bytes, b bytes/s each way and α seconds per message;
the tests check these formulas for n = 1 … 9. They hold for two workers or more (in :func:`rail_wise` for two GPUs per
host or more, in :func:`rail_rings` for two hosts or more): a worker that is alone needs fewer steps, or none. ``key``
is the first part of the keys' names, so that :func:`together` can run several algorithms on one buffer. Start with
``servers.py`` (one server, then sharded ones), then ``rings.py`` and ``trees.py``. ``collectives.py`` has broadcast,
gather, all-to-all and the others, ``levels.py`` joins two levels and ``compose.py`` several plans. ``placement.py``
decides which server of the key-value store holds which key.

>>> from d2lps import algorithms
>>> for make in (algorithms.ring, algorithms.halving_doubling, algorithms.tree):
...     print(make.__name__, len(make([f"gpu{i}" for i in range(64)]).steps))
ring 126
halving_doubling 12
tree 12
"""

from d2lps.algorithms.collectives import (
    all_to_all,
    broadcast,
    bruck,
    doubling,
    gather,
    halving,
    recursive_doubling,
    reduce,
    scatter,
)
from d2lps.algorithms.compose import together
from d2lps.algorithms.levels import hierarchical, rail_rings, rail_wise
from d2lps.algorithms.rings import all_gather, bidirectional_ring, naive_ring, reduce_scatter, ring, two_rings
from d2lps.algorithms.servers import aggregate_at, in_switch, sharded
from d2lps.algorithms.trees import double_tree, halving_doubling, tree

__all__ = [
    "aggregate_at",
    "all_gather",
    "all_to_all",
    "bidirectional_ring",
    "broadcast",
    "bruck",
    "double_tree",
    "doubling",
    "gather",
    "halving",
    "halving_doubling",
    "hierarchical",
    "in_switch",
    "naive_ring",
    "rail_rings",
    "rail_wise",
    "recursive_doubling",
    "reduce",
    "reduce_scatter",
    "ring",
    "scatter",
    "sharded",
    "together",
    "tree",
    "two_rings",
]

"""The algorithms: each a small function that writes a plan down.

Every docstring says who holds what after each phase, how many steps there are, how many bytes each node sends
and receives, and how long it takes step by step, for n workers, a gradient of S bytes, b bytes/s each way and
α seconds per message; the tests hold it to that for n = 1 … 9. ``key`` is the first part of the keys' names, so
that :func:`together` can run several algorithms on one buffer.

>>> from d2lps import algorithms
>>> for make in (algorithms.ring, algorithms.halving_doubling, algorithms.tree):
...     print(make.__name__, len(make([f"gpu{i}" for i in range(64)]).steps))
ring 126
halving_doubling 12
tree 12
"""

from d2lps.algorithms.compose import together
from d2lps.algorithms.levels import hierarchical
from d2lps.algorithms.rings import all_gather, bidirectional_ring, naive_ring, reduce_scatter, ring, two_rings
from d2lps.algorithms.servers import aggregate_at, sharded
from d2lps.algorithms.trees import double_tree, halving_doubling, tree

__all__ = [
    "aggregate_at",
    "all_gather",
    "bidirectional_ring",
    "double_tree",
    "halving_doubling",
    "hierarchical",
    "naive_ring",
    "reduce_scatter",
    "ring",
    "sharded",
    "together",
    "tree",
    "two_rings",
]

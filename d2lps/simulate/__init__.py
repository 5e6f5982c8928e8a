"""Predicted traces: ``cost`` says what a plan takes on a topology.

``cost.ideal`` gives every message its links for itself, ``cost.shared`` lets those that meet share them fairly.
Nothing is run here, and nothing is random: a prediction is exact, and the same every time.

>>> from d2lps import pcie_server, sharded
>>> cost.shared(sharded(["gpu0", "gpu1"]), pcie_server(), "160 MB").duration
0.01
"""

from d2lps.simulate import cost

__all__ = ["cost"]

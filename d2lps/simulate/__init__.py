"""Runs without running: costs predicted exactly, and events played in virtual time.

>>> from d2lps import pcie_server, sharded
>>> cost.shared(sharded(["gpu0", "gpu1"]), pcie_server(), "160 MB").duration
0.01

Start with ``cost.py``: it decides how long a plan takes on a topology, if every message has its links to itself
(``ideal``) or shares them fairly (``shared``); nothing there is random. ``StepCost`` there decides what a step takes,
and ``timeline.py`` when the acts of a schedule happen. ``beside.py`` writes the streams of one device as a schedule,
and puts measured times into it. ``fold.py`` decides which nodes of a large step are merged into one, and ``busbw.py``
what the bandwidth of a collective is. ``events.py`` plays in virtual time what a real run decides (delays, losses,
deaths) and records it: the same seed gives the same run. ``waiting.py`` decides in which order workers push to a server
and how old their weights are, with (``synchronous``) and without (``asynchronous``) rounds.
"""

from d2lps.simulate import cost
from d2lps.simulate.beside import replayed, streams
from d2lps.simulate.events import Delivery, Events, Faults, Network, State, Trouble
from d2lps.simulate.waiting import History, HistoryError, Push, Step, asynchronous, synchronous

__all__ = [
    "Delivery",
    "Events",
    "Faults",
    "Network",
    "Push",
    "History",
    "HistoryError",
    "State",
    "Step",
    "Trouble",
    "asynchronous",
    "cost",
    "replayed",
    "streams",
    "synchronous",
]

"""What a run takes, without running it: predicted exactly (``cost``), or played in virtual time (``Events``).

``cost.ideal`` gives every message its links for itself, ``cost.shared`` lets those that meet share them fairly: nothing
is random there. What is decided at run time (who is late, what is lost, who dies) a seed decides in ``Events``, and in
``Network`` for nodes that send one another messages; the same seed is the same run.

>>> from d2lps import pcie_server, sharded
>>> cost.shared(sharded(["gpu0", "gpu1"]), pcie_server(), "160 MB").duration
0.01

``synchronous`` and ``asynchronous`` say in which order workers push to a server, and how old their weights are then.
"""

from d2lps.simulate import cost
from d2lps.simulate.events import Delivery, Events, Faults, Network
from d2lps.simulate.schedules import Push, Schedule, ScheduleError, Step, asynchronous, synchronous

__all__ = [
    "Delivery",
    "Events",
    "Faults",
    "Network",
    "Push",
    "Schedule",
    "ScheduleError",
    "Step",
    "asynchronous",
    "cost",
    "synchronous",
]

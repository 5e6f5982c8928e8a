"""Several hosts: emulated on this machine, with links as slow as you choose.

Start with ``emulation``: ``emulated(...)`` makes a ``Cluster``, and its methods are all a user calls::

    emulation   the cluster, its limits, its network addresses and the shaping of links
    control     starts, asks and ends the hosts, and reads their answers, from the notebook's process
    agent       runs inside: the first process of the switch and of every host
    run         the processes of a run: the nodes they play, their output, how they ended, which error is raised
    measured    the program that ``Cluster.measure`` runs on each host
    busbw       the table of ``python -m d2lps busbw``, and how outputs of NCCL are read
    step, hang  the commands that read profiles and dumps of the flight recorder, by ``d2lps.profile``
    doctor      the checks of ``python -m d2lps doctor``; a new check goes there
    gpu_checks  what doctor reads from the outputs of commands on hosts with GPUs
    errors      the exceptions
"""

from d2lps.cluster.emulation import Cluster, emulated
from d2lps.cluster.errors import ClusterError, HostLost, NoAnswer, NoEmulation, RunFailed
from d2lps.cluster.run import Ended, Job, playing

__all__ = [
    "Cluster",
    "ClusterError",
    "Ended",
    "HostLost",
    "NoAnswer",
    "NoEmulation",
    "Job",
    "RunFailed",
    "emulated",
    "playing",
]

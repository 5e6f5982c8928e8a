"""Several hosts: emulated on this machine, with links as slow as you say."""

from d2lps.cluster.emulation import Cluster, emulated
from d2lps.cluster.errors import ClusterError, HostLost, NoEmulation, RunFailed
from d2lps.cluster.playing import playing
from d2lps.cluster.run import Ended, Run

__all__ = ["Cluster", "ClusterError", "Ended", "HostLost", "NoEmulation", "Run", "RunFailed", "emulated", "playing"]

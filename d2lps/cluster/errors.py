"""What goes wrong with a cluster.

ClusterError          what cannot be done, or was asked wrongly
├── NoEmulation       this system has no networks to give away; the sentence says what is missing
└── RunFailed         a program on the hosts failed; .results says what each of them did
    └── HostLost      because a host is gone
"""

from d2lps.messages.raised import Brief


class ClusterError(Brief, RuntimeError):
    """A cluster cannot be made so, or not do what it was asked."""


class NoEmulation(ClusterError):
    """This system lets nobody have networks of their own."""


class RunFailed(ClusterError):
    """What ran on the hosts did not end well.

    Parameters
    ----------
    sentence : str
        Who failed first, and why.

    Attributes
    ----------
    results : list
        What each process returned, or the exception with which it ended, in the order of ranks; empty where none began.
    """

    def __init__(self, sentence: str):
        super().__init__(sentence)
        self.results: list = []


class HostLost(RunFailed):
    """A host is gone in the midst of a run."""

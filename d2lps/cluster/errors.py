"""The errors of a cluster.

ClusterError          a wrong argument, or something that cannot be done
├── NoEmulation       this system cannot emulate hosts; the message says what is missing
│   └── NoAnswer      the hosts did not start in time, as on a busy machine
└── RunFailed         a program on the hosts failed; .results has the outcome of each process
    └── HostLost      because a host is gone
"""

from d2lps.messages.raised import Brief


class ClusterError(Brief, RuntimeError):
    """A cluster cannot be made with these arguments, or cannot do what was requested."""


class NoEmulation(ClusterError):
    """This system does not let processes have their own networks."""


class NoAnswer(NoEmulation):
    """Hosts did not start in time: this system is busy, or does not let them start."""


class RunFailed(ClusterError):
    """A program on the hosts failed.

    Args:
        sentence: The first process that failed, and the reason.

    Attributes:
        results (list): The result of each process, or the exception with which it ended, in the order of ranks; empty
            if none began.
    """

    def __init__(self, sentence: str):
        super().__init__(sentence)
        self.results: list = []


class HostLost(RunFailed):
    """A host was lost during a run."""

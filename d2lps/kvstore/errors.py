"""What can go wrong with a store. Every call returns, or raises one of these within its deadline.

    KVError
    ├── Refused       the store will not do this, and nothing has changed: the sentence says what would be right
    ├── WorkerLost    a worker has gone, so that the round cannot close (``.ranks``)
    ├── ServerLost    a server has gone, with what it held (``.servers``)
    ├── Timeout       nothing has gone, yet the answer did not come within the deadline
    └── Unknown       a push was sent and not answered: it is counted once or not at all; push again, it counts once

A push that raises anything but Unknown is not counted.
"""


class KVError(RuntimeError):
    """What all errors of a store have in common."""


class Refused(KVError, ValueError):
    """The store will not do this, and nothing has changed."""


class WorkerLost(KVError):
    """A worker has gone.

    Parameters
    ----------
    sentence : str
        What happened.
    ranks : tuple of int
        Which workers, in :attr:`ranks`.
    """

    def __init__(self, sentence: str, ranks: tuple[int, ...] = ()):
        super().__init__(sentence)
        self.ranks = tuple(ranks)


class ServerLost(KVError):
    """A server has gone, with what it held.

    Parameters
    ----------
    sentence : str
        What happened.
    servers : tuple of int
        Which servers, counted from 0, in :attr:`servers`.
    """

    def __init__(self, sentence: str, servers: tuple[int, ...] = ()):
        super().__init__(sentence)
        self.servers = tuple(servers)


class Timeout(KVError, TimeoutError):
    """The answer did not come within the deadline."""


class Unknown(KVError):
    """A push was sent and not answered: it is counted once or not at all. The same push again counts once."""

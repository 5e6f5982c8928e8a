"""What can go wrong with a store. Every call returns, or raises one of these within its deadline::

    KVError
    ├── Refused       the store will not do this, and nothing has changed: the sentence says what would be right
    ├── WorkerLost    a worker has gone, so that the round cannot close (.ranks)
    ├── ServerLost    a server has gone, with what it held (.servers)
    │   └── DataLost  all replicas have gone, with the keys that they held (.keys)
    ├── Diverged      two servers hold different bytes of a key (.keys): nobody is given either
    ├── Timeout       nothing has gone, yet the answer did not come within the deadline
    └── Unknown       a push was sent and not answered, so that it is not known whether it is counted

A push that raises says which keys count: ``error.counted`` names those whose push is counted, ``error.unknown`` those
of which it is not known; of all others it is not counted. So does the KeyboardInterrupt that ends a push. The same
call again, with the same keys and the same values, is right for each of them: what is counted is not counted again.
``push`` and ``pushpull`` are one call in this. An unknown key may also be given alone: with the same value that is the
same push of it, brought to its end; of the other keys nothing is remembered then.
That is so until another push of these keys, a pull of one, or a load is done. Any other call does what it says; before
a push of an unknown key counts, or a load is done, the one before it is brought to its end. A KeyboardInterrupt
without ``counted`` came before anything was sent.
"""

from d2lps.messages import text
from d2lps.messages.raised import Brief


class KVError(Brief, RuntimeError):
    """What all errors of a store have in common.

    Attributes
    ----------
    counted : tuple of str or int
        Of a push that raises: the keys whose push is counted.
    unknown : tuple of str or int
        Those of which it is not known: once, or not at all.
    """

    counted: tuple = ()
    unknown: tuple = ()


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


class DataLost(ServerLost):
    """All replicas of a slot have gone, with what they held: what is left is what was saved.

    Parameters
    ----------
    sentence : str
        What happened.
    servers : tuple of int
        Which slots, counted from 0 as servers are, in :attr:`servers`.
    keys : tuple of str or int
        Those that lay there, whole or in part, in :attr:`keys`.
    """

    def __init__(self, sentence: str, servers: tuple[int, ...] = (), keys: tuple = ()):
        super().__init__(sentence, servers)
        self.keys = tuple(keys)


class Diverged(KVError):
    """The two servers that hold a key do not hold the same bytes any more, and nobody knows which are right.

    Parameters
    ----------
    sentence : str
        What was found.
    servers : tuple of int
        Which servers, the primary first, in :attr:`servers`.
    keys : tuple of str or int
        Which keys, in :attr:`keys`: calls that read them raise this until they are loaded anew.
    """

    def __init__(self, sentence: str, servers: tuple[int, ...] = (), keys: tuple = ()):
        super().__init__(sentence)
        self.servers, self.keys = tuple(servers), tuple(keys)


class Timeout(KVError, TimeoutError):
    """The answer did not come within the deadline."""


class Late(Timeout):
    """At a barrier, to which who is missing is on its way: whoever waits may come again."""


class Unknown(KVError):
    """A push was sent and not answered: it is counted once or not at all. The same push again counts once."""


def as_known(error: BaseException) -> KVError:
    """``error``, or where it is none of a store's, one that says so, and has it as its cause.

    Parameters
    ----------
    error : BaseException
        What went wrong.

    Returns
    -------
    KVError
    """
    if isinstance(error, KVError):
        return error
    known = KVError(text("store.failed", kind=type(error).__name__, why=error))
    known.__cause__ = error
    return known

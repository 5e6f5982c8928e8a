"""The errors of a store. Every call returns, or raises one of these within its deadline::

    KVError
    ├── Refused       the store cannot do this, and nothing has changed: the sentence says what would be right
    ├── WorkerLost    a worker is lost, so the round cannot close (.ranks)
    ├── ServerLost    a server is lost, with its values (.servers)
    │   └── DataLost  all replicas of a slot are lost, with its keys (.keys)
    ├── Timeout       no process is lost, but the answer did not come within the deadline
    └── Unknown       a push was sent and not answered, so it may be counted or not

A push that raises, also KeyboardInterrupt, has two attributes: ``error.counted`` has the keys whose push is counted,
and ``error.unknown`` the keys whose push may be counted; the push of all other keys is not counted. The same call with
the same keys and values repeats the push correctly: each key counts once. ``push`` and ``pushpull`` are the same call
in this sense. An unknown key may also be pushed alone with the same value, which completes its push; the store then
forgets the push of the other keys.

The store remembers the push until another push of these keys, a pull of one of them, or a load is done; any other
call has its usual effect. Before another push of an unknown key counts, or a load is done, the unknown push is
completed. A KeyboardInterrupt without ``counted`` came before anything was sent.
"""

from d2lps.messages import text
from d2lps.messages.raised import Brief


class KVError(Brief, RuntimeError):
    """The base class of all errors of a store.

    Attributes:
        counted (tuple of str or int): The keys whose push is counted, if a push raised.
        unknown (tuple of str or int): The keys whose push is counted once or not at all.
        consistent: If a load raised: whether all servers are known to have the same state, so that an open round may
            close.
    """

    counted: tuple = ()
    unknown: tuple = ()
    consistent: bool = False


class Refused(KVError, ValueError):
    """The store cannot do this, and nothing has changed."""


class WorkerLost(KVError):
    """A worker is lost.

    Args:
        sentence: The message.
        ranks: The lost workers, in :attr:`ranks`.
    """

    def __init__(self, sentence: str, ranks: tuple[int, ...] = ()):
        super().__init__(sentence)
        self.ranks = tuple(ranks)


class ServerLost(KVError):
    """A server is lost, with its values.

    Args:
        sentence: The message.
        servers: The lost servers, counted from 0, in :attr:`servers`.
    """

    def __init__(self, sentence: str, servers: tuple[int, ...] = ()):
        super().__init__(sentence)
        self.servers = tuple(servers)


class DataLost(ServerLost):
    """All replicas of a slot are lost, with its keys: load a saved file.

    Args:
        sentence: The message.
        servers: The lost slots, counted from 0 as servers are, in :attr:`servers`.
        keys (tuple of str or int): The keys in these slots, whole or in part, in :attr:`keys`.
    """

    def __init__(self, sentence: str, servers: tuple[int, ...] = (), keys: tuple = ()):
        super().__init__(sentence, servers)
        self.keys = tuple(keys)


class Timeout(KVError, TimeoutError):
    """The answer did not come within the deadline."""


class Late(Timeout):
    """A barrier timed out while the missing workers are on their way: the call may be repeated."""


class Unknown(KVError):
    """A push was sent and not answered: it counts once or not at all. If it is repeated, it counts once."""


def as_known(error: BaseException) -> KVError:
    """Return ``error`` if it is a KVError, else a KVError with ``error`` as its cause."""
    if isinstance(error, KVError):
        return error
    known = KVError(text("store.failed", kind=type(error).__name__, why=error))
    known.__cause__ = error
    return known


# ---- sentences that travel: a server sends the key and the values, and each worker reads them in its own language


class ServerText(str):
    """A sentence of ``messages/`` that remembers its ``key`` and ``values``; a value may be such a sentence, too.

    >>> error = ValueError(server_text("store.server.left", rank=1, why=server_text("store.server.goodbye")))
    >>> str(error)
    'worker 1 has left (it said goodbye)'
    >>> packed(str(error))
    ['store.server.left', {'rank': 1, 'why': ['store.server.goodbye', {}]}]
    """

    key: str
    values: dict

    def __str__(self) -> str:
        return self  # so that str(error) remembers them, too


def server_text(key: str, /, **values: object) -> ServerText:
    """Return the sentence under ``key`` in the language in force."""
    sentence = ServerText(text(key, **values))
    sentence.key, sentence.values = key, values
    return sentence


def packed(sentence: object) -> object:
    """Return a sentence, or one of its values, as JSON for another process."""
    if isinstance(sentence, ServerText):
        return [sentence.key, {name: packed(value) for name, value in sentence.values.items()}]
    return sentence if isinstance(sentence, int | float) else str(sentence)


def unpacked(said: object) -> object:
    """Return a packed sentence in the language in force. Raises an exception of any kind for anything else."""
    if isinstance(said, list):
        key, values = said
        return server_text(key, **{name: unpacked(value) for name, value in values.items()})
    return said

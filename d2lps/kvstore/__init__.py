"""The key–value store: push, pull, and servers that add. ``create`` makes one::

    store = d2lps.kvstore.create("dist_sync")            # under torchrun, or in a %%px cell
    store.init("weight", weight)
    store.set_optimizer("sgd", lr=0.1, momentum=0.9)
    store.pushpull("weight", gradient, out=weight)

``errors.py``, which has also the sentences that servers send, and ``docs/key-value-store.md`` say what the store
promises. Start with ``store.py``: the calls that all kinds of stores share, and the simplest kind,
:class:`~d2lps.kvstore.store.LocalStore`. ``calls.py`` decides in which thread and order calls run, and which push is an
earlier one again; that it counts once is decided at the server, by ``SlotStore.admit`` and ``Replica.push``.
``together.py`` has the calls of all workers, which ``checkpoint.py`` and ``optimizers.py`` serve. Keys and values are
checked in ``values.py``.

A distributed store is made in ``launch.py``, where its options are checked and its workers meet, or within one process
in ``in_process.py``. ``worker/`` has its calls, ``wire/`` the frames that travel, ``server/`` the servers,
``replication/`` their rules, for servers with replicas and for one server, which is a group of one, ``record.py`` what
they record, and ``pslite/`` the stores of MXNet. ``threads.py`` says how often heartbeats (signs of life) are sent, as
parts of the deadline (timeout). ``d2lps.algorithms.placement`` decides which server holds a key.
"""

from importlib import import_module

from d2lps.kvstore.errors import DataLost, KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost
from d2lps.messages import text

_LAZY = {
    "Placement": "d2lps.algorithms.placement",
    "Channel": ".wire.channel",
    **dict.fromkeys(("Broken", "Entry", "Op", "raw"), ".wire.frames"),
}
__all__ = ["Broken", "Channel", "DataLost", "Entry", "KVError", "Op", "Placement", "Refused"]
__all__ += ["ServerLost", "Timeout", "Unknown", "WorkerLost", "cluster", "create", "raw"]

ALSO = {"dist": "dist_sync", "dist_device_sync": "dist_sync"}  # the names of MXNet


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)


def create(kind: str = "local", engine: str = "d2lps", **options):
    """Make a store: push adds to a key, pull gets its value. All workers call this with the same arguments.

    Args:
        kind ({"local", "device", "dist_sync", "dist_async", "dist_ssp"}): ``"local"``: the devices of this process,
            summed in main memory; ``"device"``: summed on the devices. With workers and servers, under torchrun or
            ``d2lps.ranks``: ``"dist_sync"``, a pull gets exactly the round that its worker has pushed;
            ``"dist_async"``, every push is applied when it arrives; ``"dist_ssp"``, the same with a bounded
            ``staleness``. MXNet's ``"dist"`` and ``"dist_device_sync"`` mean ``"dist_sync"``.
        engine ({"d2lps", "mxnet"}): ``"mxnet"``: the same on the ps-lite of MXNet 1.9.1, if that is installed, on a
            machine without untrusted users, or on several in a trusted network whose card ``DMLC_INTERFACE`` names; it
            has no ``"dist_ssp"``.
        servers (int, optional): The number of servers, each in its own process on the machine of a worker; by default
            the number of workers. This and all other options are for distributed stores; ``"mxnet"`` has only
            ``servers`` and ``deadline``.
        deadline (float, default 30.0): Seconds within which every call returns or raises.
        joining (float, optional): Seconds within which all workers and servers must be connected: by default the
            deadline, and at least 8, which Python and torch may need to start. A worker of this machine that ends is
            noticed sooner.
        staleness (int, default 0): For ``"dist_ssp"``: how many pushes of a key a worker may be ahead of the slowest
            one.
        lost ({"fail", "drop"}): The effect of a lost worker on the others: all their calls raise WorkerLost, or rounds
            close without it. In the round of the loss, a key that lies on several servers may have sums of different
            workers there, because some servers may have received the push and others not; a worker that one server
            drops leaves the other servers. Calls that worker 0 makes for all workers (save, load, set an optimizer)
            raise WorkerLost without worker 0.
        record (bool, default False): If True, servers record all pushes and pulls with their times, for ``trace``.
        replicas ({0, 1}, default 0): 1: every value is held by two servers, so that any one server may be lost:
            training continues, in ``"dist_sync"`` with the same bits, no push is lost or counted twice, and another
            server takes its place. This needs ``servers=2`` or more, and uses TCP or Unix sockets without shared
            memory. If both servers of a slot are lost before a new one has its data, calls raise DataLost. With
            ``record``, a slot shows what its present primary saw. ``store.views`` has the servers of each slot (for a
            moment after a loss, the old ones), and ``store.kill_server(1)`` is for experiments. A silent server is
            taken for dead after a second, checked every 0.1 s; a server whose connections end, at once.
        placement (Placement or mapping, optional): The servers of each key: a
            :class:`~d2lps.algorithms.placement.Placement`, or its numbers ``{"large": …, "virtual": …}``.
        transport ({"tcp"}, optional): Use TCP also on one host, instead of Unix sockets and shared memory, for
            comparisons. It needs a secret in ``D2LPS_SECRET``, as between hosts.

    Returns:
        (KVStore): The store, to be closed at the end, best by ``with``.

    Raises:
        Refused: If an option is invalid, workers ask for different stores, or MXNet is missing.
        WorkerLost: If a worker does not come, or is lost before all workers have their store.
        ServerLost: If a server does not start, or cannot be reached.
        NoRanks: If the store is distributed and this process is not a worker.

    Example:
        >>> import torch
        >>> with create("local") as store:
        ...     store.init("w", torch.zeros(2))
        ...     store.pushpull("w", [torch.ones(2), torch.ones(2)], out=(out := torch.empty(2)))
        >>> out
        tensor([2., 2.])
    """
    if engine == "mxnet":
        from d2lps.kvstore.pslite import store as pslite

        return pslite.launch(kind, **options)
    kind = ALSO.get(kind, kind) if isinstance(kind, str) else kind
    if engine != "d2lps":
        raise Refused(text("store.engine", engine=repr(engine)))
    if kind in ("local", "device"):
        from d2lps.kvstore.store import DeviceStore, LocalStore

        if options:
            raise Refused(text("store.no-option", kind=repr(kind), options=", ".join(options)))
        return LocalStore() if kind == "local" else DeviceStore()
    if kind not in ("dist_sync", "dist_async", "dist_ssp"):
        kinds = "local, device, dist_sync, dist_async, dist_ssp"
        raise Refused(text("store.kind", kind=repr(kind), kinds=kinds))
    from d2lps.kvstore.launch import launch

    return launch(kind, **options)


def cluster(kind: str = "dist_sync", workers: int = 2, servers: int = 1, **options):
    """Start servers in this process, and make a store for each of so many workers.

    Args:
        kind ({"dist_sync", "dist_async", "dist_ssp"}): The kind of store, as in :func:`create`.
        workers, servers: The numbers of workers and servers, 1 or more.
        options: ``transport``, ``secret``, and those of :func:`create`: see :class:`d2lps.kvstore.in_process.Cluster`.
            With ``replicas=1``, ``kill(1)`` ends a server, and ``restart(1)`` starts another one in its place.

    Returns:
        (Cluster): The cluster: ``cluster[rank]`` is the store of a worker, and ``with`` closes all.

    Raises:
        Refused: If an option is invalid.

    Example:
        >>> import torch
        >>> with cluster(workers=1, servers=2) as (store,):
        ...     store.init("w", torch.zeros(2))
        ...     store.pushpull("w", torch.ones(2), out=(out := torch.empty(2)))
        >>> out
        tensor([1., 1.])
    """
    from d2lps.kvstore.in_process import Cluster

    return Cluster(kind, workers, servers, **options)

"""The key–value store: push, pull, and servers that add. ``create`` makes one::

    store = d2lps.kvstore.create("dist_sync")            # under torchrun, or in a %%px cell
    store.init("weight", weight)
    store.set_optimizer("sgd", lr=0.1, momentum=0.9)
    store.pushpull("weight", gradient, out=weight)

What it promises stands in :mod:`d2lps.kvstore.errors` and in ``docs/key-value-store.md``. Under the hood, for whoever
opens it: where keys lie (``Placement``), what a server holds (``ShardStore``), and what travels (``Channel``,
``Frame``, ``Entry``).
"""

from importlib import import_module

from d2lps.kvstore.errors import DataLost, Diverged, KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost
from d2lps.messages import text

_LAZY = {
    "Placement": "placement",
    "ShardStore": "server.shard_store",
    "Channel": "wire.channel",
    **dict.fromkeys(("Broken", "Entry", "Frame", "Op", "raw"), "wire.frames"),
}
__all__ = [
    "Broken",
    "Channel",
    "DataLost",
    "Diverged",
    "Entry",
    "Frame",
    "KVError",
    "Op",
    "Placement",
    "Refused",
    "ServerLost",
    "ShardStore",
]
__all__ += ["Timeout", "Unknown", "WorkerLost", "cluster", "create", "raw"]

ALSO = {"dist": "dist_sync", "dist_device_sync": "dist_sync"}  # MXNet's names: where it adds is the server's affair


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def create(kind: str = "local", engine: str = "d2lps", **options):
    """A store: push adds to a key, pull gets its value. All workers create theirs with the same arguments.

    Parameters
    ----------
    kind : {"local", "device", "dist_sync", "dist_async", "dist_ssp"}
        ``"local"``: the devices of this process, summed in main memory; ``"device"``: summed on the devices. With
        workers and servers, under torchrun or ``d2lps.ranks``: ``"dist_sync"``, where a pull gets exactly the round
        that its worker has pushed; ``"dist_async"``, where every push is applied as it comes; ``"dist_ssp"``, the same
        with a bounded ``staleness``. MXNet's ``"dist"`` and ``"dist_device_sync"`` mean ``"dist_sync"``.
    engine : {"d2lps", "mxnet"}
        ``"mxnet"``: the same on the ps-lite of MXNet 1.9.1, where that is installed, on a machine that is not shared
        with strangers, or several in a network without strangers whose card ``DMLC_INTERFACE`` names; it has no
        ``"dist_ssp"``.
    servers : int, optional
        How many, each in a process of its own on the machine of a worker; as many as workers by default. This and all
        that follow are for distributed stores, and ``"mxnet"`` has ``servers`` and ``deadline`` alone.
    deadline : float, default 30.0
        Seconds within which every call returns or raises.
    joining : float, optional
        Seconds for all workers and servers to come together, before this returns or raises: by default the deadline,
        and 8 at least, which Python and torch may take to start. A worker of this machine that ends is heard of sooner.
    staleness : int, default 0
        Of ``"dist_ssp"``: by how many pushes of a key a worker may be ahead of the slowest one.
    nan : {"propagate", "reject", "skip"}
        What is done with a push that is not finite: take it, refuse it to that worker, who may push again, or leave
        the whole round out for all.
    lost : {"fail", "drop"}
        What a lost worker does to the others: all their calls raise WorkerLost, or rounds close over those who are
        left. In the round in which that happens, a key that lies on several servers may have sums of different workers
        there, as one of them may have had the push; a worker that one server goes on without leaves the others. What
        worker 0 does for all, which is to save, to load and to set an optimizer, raises it without worker 0.
    record : bool, default False
        Whether servers remember who pushed and pulled what when, for ``trace``.
    replicas : {0, 1}, default 0
        1: what a server holds, the next one holds, too, so that any one of them may be lost: training goes on, in
        ``"dist_sync"`` with the same bits, no push is lost or counted twice, and another server takes its place. It
        takes ``servers=2`` or more and TCP or Unix sockets, no shared memory, and has no ``record``. Where both servers
        of a slot are lost, before the newcomer has learnt all, calls raise DataLost; where the two do not hold the same
        bytes of a key any more, calls that read it raise Diverged. ``store.views`` says who has what (just after a
        loss, for a moment, who had it), and ``store.kill_server(1)`` is for trying. A server that says nothing is taken
        for dead after a second, looked at every 0.1 s; one whose connections end, at once.
    placement : Placement or mapping, optional
        Which server holds what: a :class:`~d2lps.kvstore.placement.Placement`, or its numbers ``{"large": …,
        "virtual": …}``.
    tls : mapping, optional
        Between hosts: the PEM files by which workers and servers know each other, ``{"certificate": …, "key": …,
        "authority": …}``, or those that ``D2LPS_TLS_CERTIFICATE``, ``D2LPS_TLS_KEY`` and ``D2LPS_TLS_AUTHORITY`` name;
        no secret is needed then. On one host it does nothing: what travels there is on no wire.
    transport : {"tcp"}, optional
        TCP also where all are on one host, which otherwise has Unix sockets and shared memory: for comparisons. It
        needs a secret in ``D2LPS_SECRET``, or ``tls``, as between hosts.

    Returns
    -------
    KVStore
        To be closed in the end, best by ``with``.

    Raises
    ------
    Refused
        Where an option is none of these, workers ask for different stores, or MXNet is missing.
    WorkerLost
        Where a worker does not come, or is lost before all have their store.
    ServerLost
        Where a server does not start, or cannot be reached.
    NoRanks
        Where the store is distributed and this process is no worker.

    Examples
    --------
    >>> import torch
    >>> with create("local") as store:
    ...     store.init("w", torch.zeros(2))
    ...     store.pushpull("w", [torch.ones(2), torch.ones(2)], out=(out := torch.empty(2)))
    >>> out
    tensor([2., 2.])
    """
    if engine == "mxnet":
        from d2lps.kvstore.pslite.store import launch

        return launch(kind, **options)
    kind = ALSO.get(kind, kind) if isinstance(kind, str) else kind
    if engine != "d2lps":
        raise Refused(text("store.engine", engine=repr(engine)))
    if kind in ("local", "device"):
        from d2lps.kvstore.local import DeviceStore, LocalStore

        if options:
            raise Refused(text("store.no-option", kind=repr(kind), options=", ".join(options)))
        return LocalStore() if kind == "local" else DeviceStore()
    if kind not in ("dist_sync", "dist_async", "dist_ssp"):
        kinds = "local, device, dist_sync, dist_async, dist_ssp"
        raise Refused(text("store.kind", kind=repr(kind), kinds=kinds))
    from d2lps.kvstore.launch import launch

    return launch(kind, **options)


def cluster(kind: str = "dist_sync", workers: int = 2, servers: int = 1, **options):
    """Servers in this process, with a store for each of so many workers.

    Parameters
    ----------
    kind : {"dist_sync", "dist_async", "dist_ssp"}
        As :func:`create` has it.
    workers, servers : int
        How many, 1 or more.
    options
        ``transport``, ``secret``, and those of :func:`create`: see :class:`d2lps.kvstore.in_process.Cluster`. With
        ``replicas=1``, ``kill(1)`` ends a server, and ``restart(1)`` has another one in its place.

    Returns
    -------
    Cluster
        ``cluster[rank]`` is the store of a worker; ``with`` closes all.

    Raises
    ------
    Refused
        Where an option is none of these.

    Examples
    --------
    >>> import torch
    >>> with cluster(workers=1, servers=2) as (store,):
    ...     store.init("w", torch.zeros(2))
    ...     store.pushpull("w", torch.ones(2), out=(out := torch.empty(2)))
    >>> out
    tensor([1., 1.])
    """
    from d2lps.kvstore.in_process import Cluster

    return Cluster(kind, workers, servers, **options)

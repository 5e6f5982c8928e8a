"""The key–value store: push, pull, and servers that add. ``create`` makes one.

    store = d2lps.kvstore.create("dist_sync")            # under torchrun, or in a %%px cell
    store.init("weight", weight)
    store.set_optimizer("sgd", lr=0.1, momentum=0.9)
    store.pushpull("weight", gradient, out=weight)

What it promises stands in :mod:`d2lps.kvstore.errors` and in the README. Under the hood, for whoever opens it: where
keys lie (``Placement``), what a server holds (``ShardStore``), and what travels (``Channel``, ``Frame``, ``Entry``).
"""

from importlib import import_module

from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost

_LAZY = {
    "Placement": "placement",
    "ShardStore": "server.rounds",
    "Channel": "wire.channel",
    **dict.fromkeys(("Broken", "Entry", "Frame", "Op", "raw"), "wire.frames"),
}
__all__ = ["Broken", "Channel", "Entry", "Frame", "KVError", "Op", "Placement", "Refused", "ServerLost", "ShardStore"]
__all__ += ["Timeout", "Unknown", "WorkerLost", "cluster", "create", "raw"]

ALSO = {"dist": "dist_sync", "dist_device_sync": "dist_sync"}  # MXNet's names: where it adds is the server's affair


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def create(kind: str = "local", engine: str = "d2lps", **options):
    """Make a store, or join one.

    Parameters
    ----------
    kind : str
        ``"local"`` (the devices of this process, summed in main memory), ``"device"`` (summed on the devices),
        ``"dist_sync"``, ``"dist_async"``, ``"dist_ssp"`` (workers and servers).
    engine : str
        ``"d2lps"``, or ``"mxnet"``: the same on the ps-lite of MXNet 1.9.1, where that is installed, with its servers
        on this machine; it has no ``"dist_ssp"``.
    **options
        Of a distributed store: ``servers``, ``staleness``, ``nan``, ``lost``, ``deadline``, ``record``,
        ``placement``, ``tls`` (see :func:`d2lps.kvstore.joining.joined`); with ``"mxnet"`` ``servers`` and
        ``deadline``.

    Returns
    -------
    KVStore
        This worker's end of it.

    Raises
    ------
    Refused
        There is no such kind, engine or option.

    Examples
    --------
    >>> import torch
    >>> store = create("local")
    >>> store.init("w", torch.zeros(2))
    >>> store.pushpull("w", [torch.ones(2), torch.ones(2)], out=(out := torch.empty(2)))
    >>> out
    tensor([2., 2.])
    """
    if engine == "mxnet":
        from d2lps.kvstore.pslite.store import created

        return created(kind, **options)
    kind = ALSO.get(kind, kind) if isinstance(kind, str) else kind
    if engine != "d2lps":
        raise Refused(f"engine = {engine!r}: it is 'd2lps' or 'mxnet'")
    if kind in ("local", "device"):
        from d2lps.kvstore.local import DeviceStore, LocalStore

        if options:
            raise Refused(f"a store of kind {kind!r} has no option {', '.join(options)}")
        return LocalStore() if kind == "local" else DeviceStore()
    if kind not in ("dist_sync", "dist_async", "dist_ssp"):
        raise Refused(f"kind = {kind!r}: it is one of local, device, dist_sync, dist_async, dist_ssp")
    from d2lps.kvstore.joining import joined

    return joined(kind, **options)


def cluster(kind: str = "dist_sync", workers: int = 2, servers: int = 1, **options):
    """Make servers in this process, with a store for each of so many workers.

    Parameters
    ----------
    kind : str
        ``"dist_sync"``, ``"dist_async"`` or ``"dist_ssp"``.
    workers, servers : int
        How many.
    **options
        See :class:`d2lps.kvstore.joining.Cluster`.

    Returns
    -------
    Cluster
        The stores, by rank, to be used in a thread each; ``with`` closes them.

    Raises
    ------
    Refused
        There is no such kind or option.
    """
    from d2lps.kvstore.joining import Cluster

    return Cluster(kind, workers, servers, **options)

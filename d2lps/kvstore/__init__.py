"""The key–value store: push, pull, and servers that add. ``create`` makes one.

    store = d2lps.kvstore.create("dist_sync")            # under torchrun, or in a %%px cell
    store.init("weight", weight)
    store.set_optimizer("sgd", lr=0.1, momentum=0.9)
    store.pushpull("weight", gradient, out=weight)

What it promises stands in :mod:`d2lps.kvstore.errors` and in the README.
"""

from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost

__all__ = ["KVError", "Placement", "Refused", "ServerLost", "Timeout", "Unknown", "WorkerLost", "cluster", "create"]


ALSO = {"dist": "dist_sync", "dist_device_sync": "dist_sync"}  # MXNet's names: where it adds is the server's affair


def create(kind: str = "local", engine: str = "d2lps", **options):
    """A store.

    kind
        ``"local"`` (the devices of this process, summed in main memory), ``"device"`` (summed on the devices),
        ``"dist_sync"``, ``"dist_async"``, ``"dist_ssp"`` (workers and servers).
    engine
        ``"d2lps"``, or ``"mxnet"``: the same on the ps-lite of MXNet 1.9.1, where that is installed, with its servers
        on this machine; it has no ``"dist_ssp"``.
    options
        of a distributed store: ``servers``, ``staleness``, ``nan``, ``lost``, ``deadline``, ``record``,
        ``placement``, ``tls`` (see :func:`d2lps.kvstore.joining.joined`); with ``"mxnet"`` ``servers`` and
        ``deadline``.

    Raises Refused.
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
    """Servers in this process, with a store for each of so many workers: see :class:`d2lps.kvstore.joining.Cluster`."""
    from d2lps.kvstore.joining import Cluster

    return Cluster(kind, workers, servers, **options)


def __getattr__(name: str):
    if name == "Placement":
        from d2lps.kvstore.placement import Placement

        return Placement
    raise AttributeError(f"module 'd2lps.kvstore' has no attribute {name!r}")

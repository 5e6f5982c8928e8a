"""A whole cluster in one process: servers in threads, and a store for each worker."""

import os
import secrets
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from d2lps.algorithms.placement import Placement, require_count
from d2lps.carriers.rendezvous import DEADLINE, require_seconds
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.launch import connect, socket_folder, validate_placement, validate_replicas
from d2lps.kvstore.replication import View
from d2lps.kvstore.server.process import require_server
from d2lps.kvstore.server.register import Register
from d2lps.kvstore.server.server import Host, Server, begin
from d2lps.kvstore.wire.shared_buffer import SharedBuffer
from d2lps.kvstore.worker.dist import DistStore
from d2lps.messages import text


class Cluster:
    """A whole cluster in this process: servers in threads, and a store for each worker, for a thread of its own.

    Args:
        kind ({"dist_sync", "dist_async", "dist_ssp"}): When a push counts, as :func:`d2lps.kvstore.create` has it.
        workers, servers: Their numbers, 1 or more.
        transport ({"unix", "tcp"}): Sockets in a private folder, or the loopback interface.
        secret: Shared by workers and servers, 16 bytes or more; by default a random one with ``"tcp"``, as
            other users of this machine can reach the loopback interface.
        placement: The places of keys on servers, or ``{"large": …, "virtual": …}`` of
            :class:`~d2lps.algorithms.placement.Placement`.
        staleness, lost, deadline, record, replicas: As :func:`d2lps.kvstore.create` has them.

    Attributes:
        stores (list of DistStore): By rank; ``cluster[rank]`` and ``for store in cluster`` are the same.
        servers (list of Server): By number.
        placement: The places of keys on servers.

    Raises:
        Refused: If an option is not one of these.

    Example:
        >>> import threading, torch
        >>> with Cluster("dist_sync", workers=2, servers=2) as stores:
        ...     def work(store, pulled):
        ...         store.init("w", torch.zeros(3))
        ...         store.push("w", torch.full((3,), 4.0**store.rank))
        ...         store.pull("w", out=pulled)
        ...     results = [torch.empty(3), torch.empty(3)]
        ...     threads = [threading.Thread(target=work, args=pair) for pair in zip(stores, results)]
        ...     _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
        >>> results
        [tensor([5., 5., 5.]), tensor([5., 5., 5.])]
    """

    def __init__(
        self,
        kind: str = "dist_sync",
        workers: int = 2,
        servers: int = 1,
        *,
        transport: str = "unix",
        staleness: int = 0,
        lost: str = "fail",
        deadline: float = DEADLINE,
        secret: bytes = b"",
        placement: Placement | Mapping | None = None,
        record: bool = False,
        replicas: int = 0,
    ):
        require_count("workers", workers, error=Refused)
        require_count("servers", servers, error=Refused)
        deadline = require_seconds("deadline", deadline, Refused)
        validate_replicas(replicas, servers)
        if transport not in ("unix", "tcp"):
            raise Refused(text("store.transport", transport=repr(transport)))
        if transport == "tcp":
            secret = secret or secrets.token_bytes(32)
        self.placement = validate_placement(placement, servers)
        self.servers: list[Server | Host] = []
        self.stores: list[DistStore] = []
        self._folder, *holds = socket_folder() if transport == "unix" else (None,)
        # Also if the user closes nothing. Stores are made after this, so they end before it.
        self._ends = os.getpid(), self.servers, self._folder, holds
        self._end = weakref.finalize(Cluster, _end, *self._ends)
        settings = {"kind": kind, "workers": workers, "staleness": staleness, "lost": lost}
        settings |= {"deadline": deadline, "record": record}
        common = {"secret": secret, "run": secrets.token_hex(8)}
        self._register = Register() if replicas else None
        where = {"servers": servers, "register": self._register, "folder": self._folder}
        self._host = partial(Host, settings=settings, run=common, **where)
        try:
            for number in range(servers):
                host = self._host(number)
                self.servers.append(host if replicas else host.replicas[number])
            if replicas:
                begin({host.number: host.names for host in self.servers}, self._register)
            addresses = [None if replicas else server.address for server in self.servers]
            for rank in range(workers):
                shared_buffer = SharedBuffer.available() if self._folder and not replicas else None
                with ExitStack() as undo:
                    options = {"deadline": deadline, "shared_buffer": shared_buffer, "register": self._register}
                    clients = connect(addresses, rank, undo, **options, **common)
                    own = {"shared_buffer": shared_buffer, "kill": partial(_kill, self.servers)}
                    self.stores.append(DistStore(kind, rank, workers, clients, self.placement, **own))
                    undo.pop_all()  # from here on they are the store's
        except BaseException:
            self.close()
            raise

    def kill(self, number: int) -> None:
        """Kill server ``number``, as a process is killed; with ``replicas=1`` training goes on."""
        _kill(self.servers, number)

    def kill_worker(self, rank: int) -> None:
        """Kill worker ``rank``: its connections end without a goodbye, and from here on its store fails."""
        for client in self.stores[rank].clients:
            client.hang_up()

    def restart(self, number: int) -> None:
        """Start another server in the place of ``number``, with ``replicas=1``. It gets its data from the others."""
        if self._register is None:
            raise Refused(text("store.no-replicas", number=number))
        _kill(self.servers, number)
        self.servers[number] = self._host(number)

    @property
    def views(self) -> list[View]:
        """The view of each slot, with the numbers of its servers: the primary, and its backup if there is one.

        For a moment after the loss of a server it is still the view with that server.
        """
        return self.stores[0].views

    def close(self) -> None:
        """Close the stores and the servers; in a child process nothing: they are its parent's."""
        for store in self.stores:
            store.close()
        self._end.detach()
        _end(*self._ends)  # also if the finalizer was interrupted

    def __iter__(self) -> Iterator[DistStore]:
        return iter(self.stores)

    def __getitem__(self, rank: int) -> DistStore:
        return self.stores[rank]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _kill(servers: "Sequence[Server | Host]", number: int) -> None:
    require_server(number, len(servers))
    servers[number].close()


def _end(process: int, servers: "Sequence[Server | Host]", folder: str | None, holds: list[int]) -> None:
    """Close the servers that were made in ``process``."""
    if os.getpid() != process:
        return
    for server in servers:
        server.close()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(IndexError):  # another thread closes it, too
        os.close(holds.pop())

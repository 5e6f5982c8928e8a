"""How workers and servers find each other: in one process, or under torchrun through its rendezvous."""

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

from d2lps.kvstore.errors import KVError, Refused
from d2lps.kvstore.gathering import Workers, gathered
from d2lps.kvstore.placement import Placement, counted
from d2lps.kvstore.server.rounds import ShardStore
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.started import Started
from d2lps.kvstore.wire import handshake
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.wire.tls import Certificates, context, given
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore

Address = str | tuple[str, int]  # a Unix socket's path, or (host, port)


class Cluster:
    """A whole cluster in this process: servers in threads, and a store for each worker, to be used in a thread each.

    workers, servers
        how many.
    transport
        ``"unix"`` (sockets in a folder of this user's own) or ``"tcp"`` (the loopback interface).
    tls
        with ``"tcp"``: the PEM files by which workers and servers know each other, ``{"certificate": …, "key": …,
        "authority": …}``; see :mod:`d2lps.kvstore.wire.tls`.
    staleness, nan, lost, deadline, record
        as :class:`d2lps.kvstore.ShardStore` has them.

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
        nan: str = "propagate",
        lost: str = "fail",
        deadline: float = 30.0,
        secret: bytes = b"",
        placement: Placement | None = None,
        record: bool = False,
        tls: Mapping | Certificates | None = None,
    ):
        counted("workers", workers)
        counted("servers", servers)
        if transport not in ("unix", "tcp"):
            raise Refused(f"transport = {transport!r}: it is 'unix' or 'tcp'")
        if tls is not None and transport == "unix":
            raise Refused("tls is for transport='tcp': a Unix socket is this user's own, and no wire")
        files = None if tls is None else given(tls)
        self.placement = placement or Placement(servers)
        self._folder = tempfile.mkdtemp(prefix="d2lps-") if transport == "unix" else None  # 0700: this user's own
        self._run = secrets.token_hex(8)
        self.servers, self.stores = [], []
        try:
            for number in range(servers):
                table = ShardStore(
                    kind, workers, staleness=staleness, nan=nan, lost=lost, deadline=deadline, record=record
                )
                address = os.path.join(self._folder, str(number)) if self._folder else ("127.0.0.1", 0)
                self.servers.append(
                    Server(table, address, secret=secret, run=self._run, number=number, certificates=files)
                )
            for rank in range(workers):
                lent = Arena.available() if self._folder else None
                lines = [
                    ServerClient(
                        server.number,
                        server.address,
                        rank,
                        secret=secret,
                        run=self._run,
                        deadline=deadline,
                        arena=lent,
                        certificates=files,
                    )
                    for server in self.servers
                ]
                self.stores.append(
                    DistStore(kind, rank, workers, lines, self.placement, look=nan != "propagate", arena=lent)
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the stores and the servers."""
        for store in self.stores:
            store.close()
        for server in self.servers:
            server.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __iter__(self) -> Iterator[DistStore]:
        return iter(self.stores)

    def __getitem__(self, rank: int) -> DistStore:
        return self.stores[rank]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def joined(
    kind: str,
    servers: int | None = None,
    *,
    staleness: int = 0,
    nan: str = "propagate",
    lost: str = "fail",
    deadline: float = 30.0,
    placement: dict | None = None,
    record: bool = False,
    tls: Mapping | Certificates | None = None,
) -> DistStore:
    """This process's store, as one of the workers that torchrun or ``d2lps.ranks`` started.

    servers
        how many, each in a process of its own on the machine of a worker; as many as workers by default.
    staleness, nan, lost, deadline, record
        as :class:`d2lps.kvstore.ShardStore` has them.
    placement
        ``large`` and ``virtual`` of :class:`Placement`.
    tls
        between hosts: the PEM files by which workers and servers know each other, ``{"certificate": …, "key": …,
        "authority": …}``, or those that ``D2LPS_TLS_CERTIFICATE``, ``D2LPS_TLS_KEY`` and ``D2LPS_TLS_AUTHORITY`` name;
        no secret is needed then. On one host it does nothing: what travels there is on no wire.

    All workers call it, with the same options. Raises Refused, ServerLost; NoRanks where this process is no worker.
    """
    table = {"kind": kind, "staleness": staleness, "nan": nan, "lost": lost, "deadline": deadline, "record": record}
    files = given(tls)
    options = table | {"servers": servers, "placement": placement, "tls": files is not None}  # not where they lie
    workers = gathered("kvstore", options, deadline, secrets.token_hex(8))
    files = None if workers.one_host else files
    with closing(workers.meeting), ExitStack() as undo:
        count = counted("servers", workers.size if servers is None else servers)
        started, addresses = _servers(workers, count, table, files, undo)
        lent = Arena.available() if workers.one_host else None
        lines = _lines(workers, addresses, deadline, lent, files, undo)
        store = DistStore(
            kind,
            workers.rank,
            workers.size,
            lines,
            Placement(count, **placement or {}),
            look=nan != "propagate",
            started=started,
            arena=lent,
        )
        undo.pop_all()  # from here on they are the store's
        return store


def _servers(
    workers: Workers, count: int, table: dict, files: Certificates | None, undo: ExitStack
) -> tuple[list[Started], list[Address]]:
    """This worker's part of ``count`` servers, and where all of them listen; ``undo`` ends those started here."""
    mine = [number for number, owner in enumerate(_owners(workers.hosts, count)) if owner == workers.rank]
    folder = tempfile.mkdtemp(prefix="d2lps-") if mine and workers.one_host else None
    started, said, addresses = [], {}, {}
    try:
        files and context(files, False)  # so that all hear what is wrong with them
        for number in mine:
            address = os.path.join(folder, str(number)) if folder else (_own_address(), 0)
            told = {
                "table": table | {"workers": workers.size},
                "address": address,
                "run": workers.said[0],
                "number": number,
                "tls": files,
            }
            started.append(Started(told, workers.patience))
            undo.callback(started[-1].end)
        said = {str(server.number): server.address() for server in started}
    except KVError as error:
        said = {"error": str(error)}
    for other, found in enumerate(workers.meeting.all_gather("servers", said)):
        if "error" in found:
            raise Refused(f"worker {other} could not start its server: {found['error']}")
        addresses |= {int(number): where if isinstance(where, str) else tuple(where) for number, where in found.items()}
    return started, [addresses[number] for number in range(count)]


def _lines(
    workers: Workers,
    addresses: list[Address],
    deadline: float,
    lent: Arena | None,
    files: Certificates | None,
    undo: ExitStack,
) -> list[ServerClient]:
    """A connection to each server, once all workers have theirs; ``undo`` closes them."""
    lines, failed = [], None
    try:
        secret = handshake.secret_given() or b""
        for number, address in enumerate(addresses):
            lines.append(
                ServerClient(
                    number,
                    address,
                    workers.rank,
                    secret=secret,
                    run=workers.said[0],
                    deadline=deadline,
                    arena=lent,
                    certificates=files,
                )
            )
            undo.callback(lines[-1].close)
    except KVError as error:
        failed = error
    for other, sentence in enumerate(workers.meeting.all_gather("connected", failed and str(failed))):
        if sentence:
            raise failed or Refused(f"worker {other} could not connect: {sentence}")
    return lines


def _owners(hosts: list[str], servers: int) -> list[int]:
    """The rank that starts each server: one host after the other, and on each host one rank after the other."""
    turns: dict[str, int] = {}
    order = []
    for rank, host in enumerate(hosts):
        turns[host] = turns.get(host, -1) + 1
        order.append((turns[host], rank))
    ranks = [rank for _, rank in sorted(order)]
    return [ranks[number % len(ranks)] for number in range(servers)]


def _own_address() -> str:
    """The address at which the other hosts reach this one: that from which it reaches the rendezvous."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # which sends nothing
        return probe.getsockname()[0]

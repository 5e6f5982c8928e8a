"""The start of a distributed store: each worker starts its share of the servers, then all workers connect."""

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from d2lps.carriers import leftovers, ranks
from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.options import validate_deadline, validate_joining, validate_placement, validate_replicas
from d2lps.kvstore.placement import Placement, require_count
from d2lps.kvstore.rendezvous import Workers, meet
from d2lps.kvstore.replicas.dist import ReplicatedStore, connect_to_slots
from d2lps.kvstore.replicas.host import begin
from d2lps.kvstore.replicas.keeper import Keeper, kill
from d2lps.kvstore.replicas.register import as_name, joined
from d2lps.kvstore.server.process import ServerProcess
from d2lps.kvstore.server.shard_store import ShardStore
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.wire.handshake import read_secret
from d2lps.kvstore.wire.tls import Certificates, context, validate_certificates
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore
from d2lps.messages import text, why

MOST_OF_A_PATH = 70  # bytes of a folder's path, which leave room for a name in it and the number of a server
Address = str | tuple[str, int]  # a Unix socket's path, or (host, port)
Files = Certificates | None


def launch(
    kind: str,
    servers: int | None = None,
    *,
    staleness: int = 0,
    lost: str = "fail",
    deadline: float = DEADLINE,
    joining: float | None = None,
    record: bool = False,
    placement: Placement | Mapping | None = None,
    tls: Mapping | Certificates | None = None,
    transport: str | None = None,
    replicas: int = 0,
) -> DistStore:
    """Make the store of this process, one of the workers that torchrun or ``d2lps.ranks`` has started.

    All workers call it with the same options, those of :func:`d2lps.kvstore.create`.
    """
    deadline = validate_deadline(deadline)
    joining = validate_joining(joining, deadline)
    settings = {"kind": kind, "staleness": staleness, "lost": lost, "deadline": deadline, "record": record}
    ShardStore(workers=1, **settings)  # refuses what a server would refuse, before one is started
    if servers is not None:
        validate_placement(placement, require_count("servers", servers))
        validate_replicas(replicas, servers, record)
    files = validate_certificates(tls)
    plain = [placement.servers, placement.large, placement.virtual] if isinstance(placement, Placement) else placement
    if transport not in (None, "tcp"):
        raise Refused(text("store.over-tcp", transport=repr(transport)))
    options = settings | {"servers": servers, "placement": plain, "transport": transport, "replicas": replicas}
    options["tls"] = files is not None  # the files may lie in different places
    workers = meet("kvstore", options, joining, secrets.token_hex(8))
    local = workers.one_host and transport is None  # Unix sockets and shared memory
    files = None if local else files
    with closing(workers.rendezvous), ExitStack() as undo:
        count = require_count("servers", workers.size if servers is None else servers)
        placement = validate_placement(placement, count)
        settings |= {"workers": workers.size}
        if validate_replicas(replicas, count, record):
            store = _replicated(workers, count, settings, placement, files, local, undo)
            undo.pop_all()  # the store closes them from here on
            return store

        def start(number: int, folder: str | None, holds: list[int]) -> ServerProcess:
            address = os.path.join(folder, str(number)) if folder else (own_address(), 0)
            spec = {"store": settings, "address": address, "run": workers.run, "number": number, "tls": files}
            return ServerProcess(spec, workers.left, holds)

        started, listening = _start_servers(workers, count, local, files, undo, start, ServerProcess.address)
        addresses = [address if isinstance(address, str) else tuple(address) for _, address in sorted(listening)]
        arena = Arena.available() if local else None
        connect_to_all = partial(connect, addresses, workers.rank, undo, deadline=deadline, arena=arena)
        clients = _connected(workers, files, deadline, connect_to_all)
        store = DistStore(kind, workers.rank, workers.size, clients, placement, started=started, arena=arena)
        undo.pop_all()  # the store closes them from here on
        return store


def _start_servers(
    workers: Workers, count: int, local: bool, files: Files, undo: ExitStack, start: Callable, describe: Callable
) -> tuple[list, list]:
    """Start this worker's share of ``count`` servers; return them, and [number, ``describe(server)``] of all servers.

    ``start(number, folder, holds)`` starts one, with a folder for Unix sockets if they are ``local``, and ``undo``
    stops it. ``holds`` are descriptors that keep the folder while the server runs.
    """
    mine = [number for number, owner in enumerate(owners(workers.hosts, count)) if owner == workers.rank]
    started: list = []

    def start_mine() -> list:
        files and context(files, False)  # so that all workers are told about invalid files
        with ExitStack() as until_started:
            folder, *holds = socket_folder() if mine and local else (None,)
            for descriptor in holds:
                until_started.callback(os.close, descriptor)
            for number in mine:
                started.append(start(number, folder, holds))
                undo.callback(started[-1].stop)
        return [[server.number, describe(server)] for server in started]

    return started, sum(workers.all_or_none("servers", start_mine, own=False), [])


def _connected(workers: Workers, files: Files, deadline: float, connect: Callable[..., list]) -> list:
    """Return the connections of this worker, once all workers are connected."""
    clients: list = []

    def connect_to_all() -> None:
        clients.extend(connect(secret=read_secret() or b"", run=workers.run, certificates=files))

    workers.all_or_none("connected", connect_to_all, seconds=deadline)
    return clients


def _replicated(
    workers: Workers, count: int, settings: dict, placement: Placement, files: Files, local: bool, undo: ExitStack
) -> ReplicatedStore:
    """Make the store for servers with replicas: see :mod:`d2lps.kvstore.replicas`."""

    def start(number: int, folder: str | None, holds: list[int]) -> Keeper:
        place = {"folder": folder, "address": None if folder else own_address()}
        server = {"run": workers.run, "number": number, "servers": count, "tls": files}
        return Keeper({"store": settings} | place | server, workers.left, holds)

    def describe(keeper: Keeper) -> list:
        return [*keeper.names().items()]

    keepers, described = _start_servers(workers, count, local, files, undo, start, describe)
    names = {number: {slot: as_name(name) for slot, name in slots} for number, slots in described}
    views = joined(workers.run)
    undo.callback(views.close)
    workers.all_or_none("views", lambda: workers.rank or begin(names, views))
    deadline = settings["deadline"]
    connect_to_all = partial(connect_to_slots, count, views, workers.rank, undo, deadline=deadline)
    clients = _connected(workers, files, deadline, connect_to_all)
    end = partial(kill, keepers, owners(workers.hosts, count), workers.rank)
    ranks = settings["kind"], workers.rank, workers.size
    return ReplicatedStore(*ranks, clients, placement, started=[views, *keepers], kill=end)


def socket_folder() -> tuple[str, int]:
    """Make a private folder for Unix sockets; return it with the descriptor that holds it. Raises Refused.

    Systems allow socket paths of 103 bytes. If the folder for temporary files has a long path, another one is used.
    """
    folders = [tempfile.gettempdir(), *filter(None, [os.environ.get("XDG_RUNTIME_DIR")]), "/tmp"]
    try:
        short = next(f for f in folders if len(os.fsencode(f)) < MOST_OF_A_PATH and os.access(f, os.W_OK | os.X_OK))
        return leftovers.held(tempfile.mkdtemp, short)
    except StopIteration:
        raise Refused(text("store.long-folder", folders=", ".join(folders), most=MOST_OF_A_PATH)) from None
    except OSError as error:
        raise Refused(text("store.socket-folder", folders=", ".join(folders), why=why(error))) from None


def connect(addresses: Sequence[Address], rank: int, undo: ExitStack, **options) -> list[ServerClient]:
    """Connect to each server, in order; ``undo`` closes the connections."""
    clients = []
    for number, address in enumerate(addresses):
        clients.append(ServerClient(number, address, rank, **options))
        undo.callback(clients[-1].close)
    return clients


def owners(hosts: list[str], servers: int) -> list[int]:
    """Return the rank that starts each server: one host after the other, and on each host one rank after the other."""
    order = sorted(range(len(hosts)), key=lambda rank: (hosts[:rank].count(hosts[rank]), rank))
    return [order[number % len(order)] for number in range(servers)]


def own_address() -> str:
    """Return the address from which this host reaches the rendezvous, for the other hosts. Raises Refused."""
    try:
        return ranks.own_address()
    except OSError as error:
        raise Refused(text("store.own-address", where=os.environ["MASTER_ADDR"], why=why(error))) from None

"""The distributed store of a worker under torchrun: servers are started beside the workers, which then connect."""

import os
import secrets
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from d2lps.carriers import leftovers
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.options import validate_deadline, validate_joining, validate_placement, validate_replicas
from d2lps.kvstore.placement import Placement, require_count
from d2lps.kvstore.rendezvous import Workers, meet
from d2lps.kvstore.replicas.client import SlotClient
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
from d2lps.messages import text

MOST_OF_A_PATH = 70  # bytes of a folder's path that leave room for a name in it and the number of a server
Address = str | tuple[str, int]  # a Unix socket's path, or (host, port)


def launch(
    kind: str,
    servers: int | None = None,
    *,
    staleness: int = 0,
    nan: str = "propagate",
    lost: str = "fail",
    deadline: float = 30.0,
    joining: float | None = None,
    record: bool = False,
    placement: Placement | Mapping | None = None,
    tls: Mapping | Certificates | None = None,
    transport: str | None = None,
    replicas: int = 0,
) -> DistStore:
    """This process's store, as one of the workers that torchrun or ``d2lps.ranks`` started.

    All workers call it with the same options, which are those of :func:`d2lps.kvstore.create`.
    """
    deadline = validate_deadline(deadline)
    joining = validate_joining(joining, deadline)
    settings = {"kind": kind, "staleness": staleness, "nan": nan, "lost": lost, "deadline": deadline, "record": record}
    ShardStore(workers=1, **settings)  # so that what a server would refuse is refused before one is started
    if servers is not None:
        validate_placement(placement, require_count("servers", servers))
        validate_replicas(replicas, servers, record)
    files = validate_certificates(tls)
    where = [placement.servers, placement.large, placement.virtual] if isinstance(placement, Placement) else placement
    if transport not in (None, "tcp"):
        raise Refused(text("store.over-tcp", transport=repr(transport)))
    options = settings | {"servers": servers, "placement": where, "transport": transport, "replicas": replicas}
    options["tls"] = files is not None  # not where the files lie
    workers = meet("kvstore", options, joining, secrets.token_hex(8))
    local = workers.one_host and transport is None  # Unix sockets and shared memory
    files = None if local else files
    with closing(workers.rendezvous), ExitStack() as undo:
        count = require_count("servers", workers.size if servers is None else servers)
        placement = validate_placement(placement, count)
        settings |= {"workers": workers.size}
        if validate_replicas(replicas, count, record):
            return _replicated(workers, count, settings, placement, files, local, undo)
        started, addresses = _start_servers(workers, count, settings, local, files, undo)
        arena, clients = Arena.available() if local else None, []

        def connect_to_all() -> None:
            who = {"secret": read_secret() or b"", "run": workers.run, "certificates": files}
            clients.extend(connect(addresses, workers.rank, undo, deadline=deadline, arena=arena, **who))

        workers.all_or_none("connected", "connect", connect_to_all, seconds=deadline)
        store = DistStore(kind, workers.rank, workers.size, clients, placement, nan=nan, started=started, arena=arena)
        undo.pop_all()  # from here on they are the store's
        return store


def _start_servers(
    workers: Workers, count: int, settings: dict, local: bool, files: Certificates | None, undo: ExitStack
) -> tuple[list[ServerProcess], list[Address]]:
    """This worker's part of ``count`` servers, and where all of them listen; ``undo`` ends those started here.

    ``local``: over Unix sockets.
    """
    mine = [number for number, owner in enumerate(owners(workers.hosts, count)) if owner == workers.rank]
    started: list[ServerProcess] = []

    def start() -> dict[int, Address]:
        files and context(files, False)  # so that all hear what is wrong with them
        with ExitStack() as until_they_hold_it:
            folder, *holds = socket_folder() if mine and local else (None,)
            for descriptor in holds:
                until_they_hold_it.callback(os.close, descriptor)
            for number in mine:
                address = os.path.join(folder, str(number)) if folder else (own_address(), 0)
                spec = {"store": settings, "address": address, "run": workers.run, "number": number, "tls": files}
                started.append(ServerProcess(spec, workers.left, holds))
                undo.callback(started[-1].stop)
        return {server.number: server.address() for server in started}

    addresses: dict[int, Address] = {}
    for part in workers.all_or_none("servers", "start its server", start, own=False):
        addresses |= {int(number): where if isinstance(where, str) else tuple(where) for number, where in part.items()}
    return started, [addresses[number] for number in range(count)]


def _replicated(
    workers: Workers,
    count: int,
    settings: dict,
    placement: Placement,
    files: Certificates | None,
    local: bool,
    undo: ExitStack,
) -> ReplicatedStore:
    """The store of servers that have replicas: see :mod:`d2lps.kvstore.replicas`."""
    owned = owners(workers.hosts, count)
    keepers: list[Keeper] = []

    def start() -> dict[int, list]:
        files and context(files, False)  # so that all hear what is wrong with them
        mine = [number for number, owner in enumerate(owned) if owner == workers.rank]
        with ExitStack() as until_they_hold_it:
            folder, *holds = socket_folder() if mine and local else (None,)
            for descriptor in holds:
                until_they_hold_it.callback(os.close, descriptor)
            for number in mine:
                where = {"folder": folder, "address": None if folder else own_address()}
                who = {"run": workers.run, "number": number, "servers": count, "tls": files}
                keepers.append(Keeper({"store": settings} | where | who, workers.left, holds))
                undo.callback(keepers[-1].stop)
        return {keeper.number: list(keeper.names().items()) for keeper in keepers}

    names: dict[int, dict[int, tuple]] = {}
    for part in workers.all_or_none("servers", "start its server", start, own=False):
        names |= {int(number): {slot: as_name(name) for slot, name in named} for number, named in part.items()}
    views = joined(workers.run)
    undo.callback(views.close)
    workers.all_or_none("views", "say who has what", lambda: workers.rank or begin(names, views))
    clients: list[SlotClient] = []

    def connect_to_all() -> None:
        who = {"secret": read_secret() or b"", "run": workers.run, "certificates": files}
        clients.extend(connect_to_slots(count, views, workers.rank, undo, deadline=settings["deadline"], **who))

    workers.all_or_none("connected", "connect", connect_to_all, seconds=settings["deadline"])
    of = settings["kind"], workers.rank, workers.size, clients, placement
    store = ReplicatedStore(
        *of, nan=settings["nan"], started=[views, *keepers], kill=partial(kill, keepers, owned, workers.rank)
    )
    undo.pop_all()  # from here on they are the store's
    return store


def socket_folder() -> tuple[str, int]:
    """A folder of this user's own for Unix sockets, and the descriptor that holds it. Raises Refused.

    Their paths may have 103 bytes everywhere. Where the folder for temporary files has a long one, another will do.
    """
    folders = [tempfile.gettempdir(), *filter(None, [os.environ.get("XDG_RUNTIME_DIR")]), "/tmp"]
    try:
        short = next(f for f in folders if len(os.fsencode(f)) < MOST_OF_A_PATH and os.access(f, os.W_OK | os.X_OK))
        return leftovers.held(tempfile.mkdtemp, short)
    except StopIteration:
        trouble = f"have paths of {MOST_OF_A_PATH} bytes or more, or cannot be written to"
    except OSError as error:
        trouble = f"cannot be used ({error.strerror})"
    raise Refused(f"{', '.join(folders)} {trouble}: let TMPDIR name a folder for the sockets of the servers")


def connect(addresses: Sequence[Address], rank: int, undo: ExitStack, **options) -> list[ServerClient]:
    """A connection to each server, in their order; ``undo`` closes them."""
    clients = []
    for number, address in enumerate(addresses):
        clients.append(ServerClient(number, address, rank, **options))
        undo.callback(clients[-1].close)
    return clients


def owners(hosts: list[str], servers: int) -> list[int]:
    """The rank that starts each server: one host after the other, and on each host one rank after the other."""
    order = sorted(range(len(hosts)), key=lambda rank: (hosts[:rank].count(hosts[rank]), rank))
    return [order[number % len(order)] for number in range(servers)]


def own_address() -> str:
    """The address at which the other hosts reach this one: that from which it reaches the rendezvous. Or Refused."""
    where = os.environ["MASTER_ADDR"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((where, int(os.environ["MASTER_PORT"])))  # which sends nothing
            return probe.getsockname()[0]
        except OSError as error:
            raise Refused(text("store.own-address", where=where, why=error.strerror)) from None

"""The start of a distributed store: each worker starts its share of the servers, then all workers connect."""

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from d2lps.carriers import leftovers, ranks
from d2lps.carriers.rendezvous import DEADLINE
from d2lps.kvstore.errors import Refused
from d2lps.kvstore.options import validate_deadline, validate_joining, validate_placement, validate_replicas
from d2lps.kvstore.placement import Placement, require_count
from d2lps.kvstore.rendezvous import Workers, meet
from d2lps.kvstore.server.process import Keeper, ServerProcess, kill
from d2lps.kvstore.server.register import as_name, joined
from d2lps.kvstore.server.server import begin
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire.arena import Arena
from d2lps.kvstore.wire.handshake import read_secret
from d2lps.kvstore.wire.tls import Certificates, context, validate_certificates
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore
from d2lps.messages import text, why

MOST_OF_A_PATH = 70  # bytes of a folder's path, which leave room for a name in it and the number of a server
Address = str | tuple[str, int]  # a Unix socket's path, or (host, port)


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
    SlotStore(workers=1, **settings)  # refuses what a server would refuse, before one is started
    if servers is not None:
        validate_placement(placement, require_count("servers", servers))
        validate_replicas(replicas, servers)
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
        replicas = validate_replicas(replicas, count)
        spec = {"store": settings, "run": workers.run, "servers": count, "replicas": replicas, "tls": files}
        started, names = _start_servers(workers, spec, local, undo)
        kills, register = partial(kill, started[:], owners(workers.hosts, count), workers.rank), None
        addresses: list = [names[number][number][2] for number in range(count)]
        if replicas:
            register, addresses = joined(workers.run), [None] * count  # the register knows them
            started.insert(0, register)
            undo.callback(register.close)
            workers.all_or_none("views", lambda: workers.rank or begin(names, register))
        arena = Arena.available() if local and not replicas else None
        clients: list = []

        def connect_to_all() -> None:
            who = {"secret": read_secret() or b"", "run": workers.run, "certificates": files}
            where = {"arena": arena, "register": register, "deadline": deadline}
            clients.extend(connect(addresses, workers.rank, undo, **who, **where))

        workers.all_or_none("connected", connect_to_all, seconds=deadline)
        own = {"started": started, "arena": arena, "kill": kills}
        store = DistStore(kind, workers.rank, workers.size, clients, placement, **own)
        undo.pop_all()  # the store closes them from here on
        return store


def _start_servers(workers: Workers, spec: dict, local: bool, undo: ExitStack) -> tuple[list, dict]:
    """Start this worker's share of the servers; return them, and the names of all servers' replicas, by slot.

    They listen at Unix sockets if they are ``local``, and ``undo`` stops them.
    """
    mine = [number for number, owner in enumerate(owners(workers.hosts, spec["servers"])) if owner == workers.rank]
    started: list = []

    def start_mine() -> list:
        spec["tls"] and context(spec["tls"], False)  # so that all workers are told about invalid files
        with ExitStack() as until_started:
            folder, *holds = socket_folder() if mine and local else (None,)  # the descriptor keeps the folder
            for descriptor in holds:
                until_started.callback(os.close, descriptor)
            place = {"folder": folder, "address": None if local or not mine else own_address()}
            for number in mine:
                start = Keeper if spec["replicas"] else ServerProcess
                started.append(start(spec | place | {"number": number}, workers.left, holds))
                undo.callback(started[-1].stop)
        return [[server.number, [*server.names().items()]] for server in started]

    described = sum(workers.all_or_none("servers", start_mine, own=False), [])
    return started, {number: {slot: as_name(name) for slot, name in slots} for number, slots in described}


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


def connect(addresses: Sequence[Address | None], rank: int, undo: ExitStack, **options) -> list[ServerClient]:
    """Connect to each slot, in order; ``undo`` closes the connections. The register knows an address that is None."""
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

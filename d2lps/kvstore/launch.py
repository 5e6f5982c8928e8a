"""The start of a distributed store: workers meet, each starts its share of the servers, and all connect.

torchrun or ``d2lps.ranks`` has started the workers. They meet in the same way for a store of MXNet.
"""

import os
import secrets
import select
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import NamedTuple

from d2lps.algorithms.placement import Placement, PlacementError, require_count
from d2lps.carriers import leftovers, ranks
from d2lps.carriers.rendezvous import DEADLINE, GRACE, NoRanks, ProcessesError, RankLost, Rendezvous, require_seconds
from d2lps.kvstore.errors import KVError, Refused, WorkerLost
from d2lps.kvstore.server.process import Keeper, ServerProcess, kill
from d2lps.kvstore.server.register import as_name, joined
from d2lps.kvstore.server.server import begin
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire.handshake import read_secret
from d2lps.kvstore.wire.shared_buffer import SharedBuffer
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore
from d2lps.messages import text, why

MOST_OF_A_PATH = 70  # bytes of a folder's path, which leave enough for a name in it and the number of a server
JOINING = 8.0  # the shortest default, in seconds: Python and torch take some time to start
Address = str | tuple[str, int]  # a Unix socket's path, or (host, port)


# ---- the meeting of the workers


class Meeting(Rendezvous):
    """A rendezvous of workers that notices at once if a process on this machine ends. Its errors are KVErrors."""

    def __init__(self, *arguments):
        self._others: dict[int, int] = {}  # descriptor of a process → rank
        self._dead: set[int] = set()  # ranks whose process had ended before
        with _as_store_errors():
            super().__init__(*arguments)

    def join(self, mine: dict) -> list[dict]:
        namespace = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""  # of process ids
        with _as_store_errors():
            members = super().join(mine | {"process": [ranks.host(), namespace, os.getpid()]})
        here = members[self.rank]["process"]
        for rank, (*place, pid) in enumerate(member["process"] for member in members):
            if rank != self.rank and place == here[:-1] and hasattr(os, "pidfd_open"):
                try:
                    self._others[os.pidfd_open(pid)] = rank
                except ProcessLookupError:
                    self._dead.add(rank)
                except OSError:
                    pass  # the system does not allow it, so the process is lost when it is silent
        return members

    def all_gather(self, what: str, mine: object) -> list:
        with _as_store_errors():
            return super().all_gather(what, mine)

    def ended(self) -> set[int]:
        poll = select.poll()
        for descriptor in self._others:
            poll.register(descriptor, select.POLLIN)
        return self._dead | {self._others[descriptor] for descriptor, _ in poll.poll(0)}

    def close(self) -> None:
        super().close()
        while self._others:
            os.close(self._others.popitem()[0])


class Workers(NamedTuple):
    """The workers of a store: this worker's ``rank``, the ``hosts`` by rank, and worker 0's name for the ``run``.

    They agree on more in ``rendezvous``, which the caller closes, before ``until`` on the monotonic clock.
    """

    rendezvous: Meeting
    rank: int
    until: float
    hosts: list[str]
    run: str

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def one_host(self) -> bool:
        return len({*self.hosts}) == 1

    @property
    def left(self) -> float:
        """The seconds that are left, at least 1."""
        return max(1.0, self.until - time.monotonic())

    def all_or_none(
        self, task: str, work: Callable[[], object], own: bool = True, seconds: float | None = None
    ) -> list:
        """Do ``work()`` on each worker within ``seconds``, and return all results; if one raises a KVError, all raise.

        The others raise Refused, with the ``task`` that a worker could not do; so does the worker that failed, unless
        it raises its ``own`` error.
        """
        until = time.monotonic() + (self.left if seconds is None else seconds)
        result, failure = None, None
        try:
            result = work()
        except KVError as error:
            failure = error
        # A worker that fails at the last moment can still say so.
        self.rendezvous.deadline = round(max(0.0, until - time.monotonic()) + GRACE, 1)
        outcomes = self.rendezvous.all_gather(task, [result, failure and str(failure)])
        for rank, (_, sentence) in enumerate(outcomes):
            if sentence:
                raise own and failure or Refused(text(f"store.could-not.{task}", rank=rank, why=sentence))
        return [result for result, _ in outcomes]


def meet(kind: str, options: dict, joining: float, run: str = "") -> Workers:
    """Wait until all workers have come with the same ``options`` for a store, for at most ``joining`` seconds.

    ``kind`` names the rendezvous: a program that makes stores of several kinds meets for one after the other. Raises
    Refused if the ``options`` differ, WorkerLost if one does not come, NoRanks if this process is no worker.
    """
    until = time.monotonic() + joining
    with _as_store_errors():
        store, rank, size, holder = ranks.from_environment(joining)
    rendezvous = Meeting(store, kind, rank, size, joining, holder)
    try:
        members = rendezvous.join({"host": ranks.host(), "options": options, "run": run})
        for other, member in enumerate(members):
            if member["options"] != members[0]["options"]:
                theirs, first = member["options"], members[0]["options"]
                raise Refused(text("store.other-store", worker=other, theirs=theirs, first=first))
    except BaseException:
        rendezvous.close()
        raise
    return Workers(rendezvous, rank, until, [member["host"] for member in members], members[0]["run"])


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except NoRanks:
        raise
    except RankLost as error:
        raise (WorkerLost(str(error), error.ranks) if error.ranks else KVError(str(error))) from None
    except ProcessesError as error:
        raise KVError(str(error)) from None


# ---- the store


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
    transport: str | None = None,
    replicas: int = 0,
) -> DistStore:
    """Make the store of this process, one of the workers that torchrun or ``d2lps.ranks`` has started.

    All workers call it with the same options, those of :func:`d2lps.kvstore.create`.
    """
    deadline = require_seconds("deadline", deadline, Refused)
    joining = max(deadline, JOINING) if joining is None else require_seconds("joining", joining, Refused)
    settings = {"kind": kind, "staleness": staleness, "lost": lost, "deadline": deadline, "record": record}
    SlotStore(workers=1, **settings)  # refuses what a server would refuse, before one is started
    if servers is not None:
        validate_placement(placement, require_count("servers", servers, error=Refused))
        validate_replicas(replicas, servers)
    plain = [placement.servers, placement.large, placement.virtual] if isinstance(placement, Placement) else placement
    if transport not in (None, "tcp"):
        raise Refused(text("store.over-tcp", transport=repr(transport)))
    options = settings | {"servers": servers, "placement": plain, "transport": transport, "replicas": replicas}
    workers = meet("kvstore", options, joining, secrets.token_hex(8))
    local = workers.one_host and transport is None  # Unix sockets and shared memory
    with closing(workers.rendezvous), ExitStack() as undo:
        count = require_count("servers", workers.size if servers is None else servers, error=Refused)
        placement = validate_placement(placement, count)
        settings |= {"workers": workers.size}
        replicas = validate_replicas(replicas, count)
        spec = {"store": settings, "run": workers.run, "servers": count, "replicas": replicas}
        started, names = _start_servers(workers, spec, local, undo)
        kills, register = partial(kill, started[:], owners(workers.hosts, count), workers.rank), None
        addresses: list = [names[number][number][2] for number in range(count)]
        if replicas:
            register, addresses = joined(workers.run), [None] * count  # the register knows them
            started.insert(0, register)
            undo.callback(register.close)
            workers.all_or_none("views", lambda: workers.rank or begin(names, register))
        shared_buffer = SharedBuffer.available() if local and not replicas else None
        clients: list = []

        def connect_to_all() -> None:
            who = {"secret": read_secret() or b"", "run": workers.run}
            where = {"shared_buffer": shared_buffer, "register": register, "deadline": deadline}
            clients.extend(connect(addresses, workers.rank, undo, **who, **where))

        workers.all_or_none("connected", connect_to_all, seconds=deadline)
        own = {"started": started, "shared_buffer": shared_buffer, "kill": kills}
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


# ---- options, which are checked before anything is started


def validate_placement(placement: Placement | Mapping | None, servers: int) -> Placement:
    """Return the placement of keys, or the default one, on so many servers. Raises Refused."""
    if isinstance(placement, Placement):
        if not {*placement.servers} <= {*range(servers)}:
            raise Refused(text("store.placement-over", given=placement.servers, last=servers - 1))
        return placement
    if placement is not None and (not isinstance(placement, Mapping) or {*placement} - {"large", "virtual"}):
        raise Refused(text("store.placement", given=repr(placement)))
    try:
        return Placement(servers, **placement or {})
    except PlacementError as error:
        raise Refused(str(error)) from None


def validate_replicas(replicas: object, servers: int) -> int:
    """Return how many servers may be lost at once, 0 or 1. Raises Refused."""
    if type(replicas) is not int or replicas not in (0, 1):
        raise Refused(text("store.replicas", value=repr(replicas)))
    if replicas and servers < 2:
        raise Refused(text("store.replicas-servers"))
    return replicas

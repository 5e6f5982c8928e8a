"""Tools for the tests of faults: bad connections, servers in processes of their own, and checks for leftovers.

A server beside the tests is a process of its own, so that its memory, its files and what its interpreter is asked to
do can be looked at: ``with Beside(…) as server``.
"""

import os
import random
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
import torch

from d2lps.algorithms.placement import Placement
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import HEADER, Op, handshake
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore
from helpers.ranks import FORKED
from helpers.waits import LIVE

DEADLINE = 2.0
SECRET = b"0123456789abcdef0123456789abcdef"
MIB = 1 << 20


def tables(kind="dist_sync", workers=2, servers=1, secret=b"", **options):
    """Start servers in this process: with a secret on the loopback interface, else on this user's sockets."""
    return [
        Server(
            SlotStore(kind, workers, deadline=DEADLINE, **options),
            ("127.0.0.1", 0) if secret else socket_path(),
            secret=secret,
            number=number,
        )
        for number in range(servers)
    ]


def socket_path() -> str:
    """Return a path for a Unix socket that does not exist yet."""
    return tempfile.mktemp(prefix="d2-", suffix=".socket")


def store(servers, rank, workers=2, addresses=None, kind="dist_sync", deadline=DEADLINE, **options):
    """Return the store of one worker, which knows the secret if one is needed and no other is given."""
    where = {server.number: server.address for server in servers} | (addresses or {})
    if not all(isinstance(address, str) for address in where.values()):
        options = {"secret": SECRET} | options
    lines = [ServerClient(number, address, rank, deadline=deadline, **options) for number, address in where.items()]
    return DistStore(kind, rank, workers, lines, Placement(len(servers), large=1000))


@contextmanager
def closing(*things):
    """Close them in the end, whatever happens, in this order."""
    try:
        yield things
    finally:
        for thing in things:
            thing.close()


def connected(address) -> socket.socket:
    """Open a connection to ``address``, on which nothing has been sent yet."""
    found = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    found.settimeout(10)
    found.connect(address)
    return found


# ---------------------------------------------------------------- bad lines


class Between:
    """Listens in the place of a server, and joins each who comes with the server at ``address``."""

    def __init__(self, address):
        own = isinstance(address, str)
        self.address, self.listener = address, socket.socket(socket.AF_UNIX if own else socket.AF_INET)
        self.listener.bind(socket_path() if own else ("127.0.0.1", 0))
        self.listener.listen()
        self.here, self._ends = self.listener.getsockname(), []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self.listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        if isinstance(self.here, str):
            with suppress(OSError):
                os.unlink(self.here)

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = connected(self.address)
                far.settimeout(None)
                self._ends += [near, far]
                for pump, *pair in ((self.up, near, far), (self.down, far, near)):
                    threading.Thread(target=self._join, args=(pump, *pair), daemon=True).start()

    @staticmethod
    def _join(pump, source, target):
        with suppress(OSError):
            pump(source, target)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def up(self, source, target):
        """From the worker to the server."""
        while data := source.recv(1 << 16):
            target.sendall(data)

    down = up


class Gate(Between):
    """Holds back the bytes of the directions that are ``shut``, "up" or "down", and ends no connection."""

    def __init__(self, address):
        self.shut: set[str] = set()
        super().__init__(address)

    def up(self, source, target, way="up"):
        while data := source.recv(1 << 16):
            while way in self.shut:
                time.sleep(0.01)
            target.sendall(data)

    def down(self, source, target):
        self.up(source, target, "down")


class Proxy(Between):
    """Cuts, stalls, or flips a bit, as a seed says."""

    def __init__(self, address, seed, faults=3, fewest=200, kinds=("cut", "flip", "stall")):
        self.chance, self.left, self.kinds = random.Random(seed), faults, kinds
        self.fewest, self.done, self.lock = fewest, [], threading.Lock()
        super().__init__(address)

    def up(self, source, target):
        until, kind = self._fault()
        while data := source.recv(self.chance.randint(1, 1 << 16)):
            if until < len(data):
                with self.lock:
                    if self.left > 0:
                        self.left -= 1
                        self.done.append(kind)
                        if kind == "flip":
                            data = bytearray(data)
                            data[until] ^= 1 << self.chance.randint(0, 7)
                        elif kind == "cut":
                            target.sendall(data[:until])
                            break
                        else:
                            time.sleep(0.3)
                until, kind = self._fault()
            until = max(0, until - len(data))
            target.sendall(data)

    down = up

    def _fault(self):
        return self.chance.randint(self.fewest, 40_000), self.chance.choice(self.kinds)


class Frames(Between):
    """Frame by frame: ``change(op, frame)`` gives the frames that go on in its place; None among them hangs up.

    ``up`` or ``down``: those of the worker, or those of the server; ``coded``: whether there is a secret.
    """

    def __init__(self, address, change, way="up", coded=False):
        setattr(self, way, lambda source, target: self._each(source, target, change, coded))
        super().__init__(address)

    def _each(self, source, target, change, coded):
        while frame := _frame(source, coded):
            for one in change(Op(frame[5]), frame):
                if one is None:
                    return
                target.sendall(one)


def _frame(sock, coded) -> bytes:
    """Return the next frame, or nothing at the end."""

    def take(size):
        found = b""
        while len(found) < size:
            if not (data := sock.recv(size - len(found))):
                return b""
            found += data
        return found

    head = take(HEADER.size)
    if not head:
        return b""
    _, _, op, _, _, table, payload, _, _ = HEADER.unpack(head)
    more = table + 4 * (table > 0) + payload + 8 * (payload > 0)
    return head + take(more + 32 * (coded and op not in (Op.HELLO, Op.CHALLENGE, Op.PROOF)))


# ---------------------------------------------------------------- servers beside the tests


class Beside:
    """A server in a process of its own, forked from a process that has imported torch.

    ``handshake``: seconds of a handshake; ``files``: how many more it may open; ``options``: those of SlotStore.
    Call it with the name of what to look at: ``rss`` (bytes), ``full`` (whether no more file can be
    opened), ``heard`` (events of ``sys.addaudithook`` since the last time),
    ``state`` (per part: value, pushes by worker), ``try`` (does what the hook must hear), ``ended``
    (what ended a thread unexpectedly).
    """

    def __init__(
        self,
        kind="dist_sync",
        workers=2,
        addresses=(("127.0.0.1", 0),),
        secret=SECRET,
        handshake=5.0,
        files=0,
        deadline=DEADLINE,
        **options,
    ):
        self.pipe, theirs = FORKED.Pipe()
        told = {"kind": kind, "workers": workers, "deadline": deadline, **options}
        arguments = theirs, told, addresses, secret, handshake, files
        self.process = FORKED.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.addresses = self._heard()
        self.address, self.number = self.addresses[0], 0

    def __call__(self, what: str):
        self.pipe.send(what)
        return self._heard()

    def _heard(self):
        assert self.pipe.poll(LIVE), "the server beside the tests says nothing"
        return self.pipe.recv()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.join(10)
        self.pipe.close()


def _serve(pipe, told, addresses, secret, seconds, files):
    torch.set_num_threads(1)
    handshake.SECONDS = seconds
    heard, armed = [], []
    sys.addaudithook(lambda event, arguments: armed and heard.append((event, str(arguments)[:200])))
    ended: set[str] = set()
    threading.excepthook = lambda of: ended.add(_last(of))  # a whole traceback would open and compile sources
    servers = [
        Server(
            SlotStore(**told),
            tuple(address) if not isinstance(address, str) else address,
            secret=b"" if isinstance(address, str) else secret,
        )
        for address in addresses
    ]
    if files:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + files, most))
    pipe.send([server.address for server in servers])
    with suppress(EOFError):
        while what := pipe.recv():
            if what == "rss":
                answer = psutil.Process().memory_info().rss
            elif what == "heard":
                answer = list(heard)
                armed.append(True)
                heard.clear()
            elif what == "full":
                answer = _full()
            elif what == "try":
                answer = eval("1")
            elif what == "state":
                answer = [
                    [(held.value.tolist(), list(held.rounds)) for held in server.store.shards if held.value is not None]
                    for server in servers
                ]
            else:
                answer = sorted(ended)
            pipe.send(answer)
    for server in servers:
        server.close()


def _full() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False


def _last(of: threading.ExceptHookArgs) -> str:
    place = of.exc_traceback
    while place.tb_next:
        place = place.tb_next
    return f"{of.exc_type.__name__} in {place.tb_frame.f_code.co_qualname}: {of.exc_value}"


# ---------------------------------------------------------------- leftovers


def gone(pids, seconds=LIVE) -> bool:
    """Return whether all of these processes end within ``seconds``."""
    until = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(running, pids))


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def left(token: str, folder: str, sockets: int, others: set[int]) -> list[str]:
    """Return the leftovers of this test: processes that have ``token``, files of ours in its folder or in shared
    memory, threads of servers, and sockets; ``others`` are the processes that were there before it."""
    found = []
    for pid in {*psutil.pids()} - others:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get("D2LPS_TEST") == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
    found += [f"file {name}" for name in os.listdir(folder) if name.startswith("d2lps")]
    if os.path.isdir("/dev/shm"):
        found += [f"shared memory {name}" for name in os.listdir("/dev/shm") if f"{os.getpid()}" in name]
    found += [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if thread.name.startswith(("d2lps server", "d2lps answers", "d2lps barrier"))
    ]
    more = open_sockets() - sockets
    return found + [f"{more} sockets"] * (more > 0)


def open_sockets() -> int:
    return sum(link.startswith("socket:") for link in links())


def links() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


@pytest.fixture
def nothing_left(monkeypatch, record_property, tmp_path_factory):
    """No process, file, shared memory, thread or socket beyond those before; temporary files go to a folder of its own.

    Others may test on this machine at the same time: only what has this test's mark is looked at.
    """
    tmp_path_factory.getbasetemp()  # which is for all tests
    if not FORKED_STARTED:
        _start_forking()
    folder, token = tempfile.mkdtemp(prefix="d2-"), f"{os.getpid()}-{time.monotonic_ns()}"
    before = open_sockets(), {*psutil.pids()}
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("D2LPS_TEST", token)
    yield
    until = time.monotonic() + LIVE
    while (found := left(token, folder, *before)) and time.monotonic() < until:
        time.sleep(0.01)
    record_property("left", len(found))
    shutil.rmtree(folder, ignore_errors=True)
    assert found == []


FORKED_STARTED: list[bool] = []


def _start_forking() -> None:
    """Now, so that the process that all tests share has no test's mark."""
    process = FORKED.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    FORKED_STARTED.append(True)


@pytest.fixture
def recovery(record_property):
    """``with recovery():`` from the fault until the typed error, or until all is well again."""

    @contextmanager
    def measured():
        begin = time.monotonic()
        try:
            yield
        finally:
            record_property("seconds", time.monotonic() - begin)

    return measured

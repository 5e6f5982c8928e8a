"""The processes of an MXNet store: how they are started, asked, watched and ended."""

import importlib.util
import os
import select
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, WorkerLost
from d2lps.kvstore.pslite.node import receive, send

GRACE = 2.0  # seconds that an answer may still take when another process has gone: it may have been the last to leave
AT_ONCE = 0.3  # seconds within which the processes end that one worker has started
LEAVING = 5.0  # seconds that a server has to end by itself


def needed() -> None:
    """Raises Refused where there is no MXNet."""
    if sys.platform != "linux" or importlib.util.find_spec("mxnet") is None:
        raise Refused(
            "engine='mxnet' needs MXNet 1.9.1, which is not installed here: pip install mxnet==1.9.1 (Linux "
            "on x86-64, Python 3.11, NumPy 1.23); all else works without it"
        )


def free_port() -> int:
    """A port of the loopback interface that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class What(NamedTuple):
    """A process to be started."""

    name: str  # scheduler, server or worker
    number: int
    environment: dict[str, str]  # beside this process's own
    arguments: tuple[str, ...] = ()


def _cluster(role: str, host: str, port: int, workers: int, servers: int) -> dict[str, str]:
    # DMLC_NODE_HOST is where a node listens: an address of loopback, so that no other machine can reach what would
    # unpickle whatever it is sent.
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": "lo",
        "DMLC_NODE_HOST": host,
    }


def _address(group: int, number: int) -> str:
    """An own address on loopback. ps-lite ranks its nodes by their addresses, as text, the largest first."""
    return f"127.{group}.{254 - number // 155}.{254 - number % 155}"


def scheduler(*cluster: int) -> What:
    """The process that the others report to; ``cluster``: port, workers, servers."""
    return What("scheduler", 0, _cluster("scheduler", "127.0.0.1", *cluster))


def server(number: int, *cluster: int) -> What:
    """A process that adds."""
    return What("server", number, _cluster("server", _address(1, number), *cluster))


def worker(kind: str, rank: int, *cluster: int) -> What:
    """The process that speaks for a worker; that of a store without servers knows of no cluster."""
    return What("worker", rank, _cluster("worker", _address(2, rank), *cluster) if cluster else {}, (kind,))


class _Started(NamedTuple):
    what: What
    process: subprocess.Popen
    line: socket.socket  # the process ends with it
    said: int  # a file in memory with what it says on its stderr


class Nodes:
    """The processes that worker ``rank`` has started, the last of them the one that speaks for it; and the others'."""

    def __init__(self, rank: int, deadline: float):
        self.rank, self.deadline = rank, deadline
        self.over: KVError | None = None
        self._started: list[_Started] = []
        self._watched: list[tuple[str, int, int]] = []  # (name, number, descriptor of the process)

    def start(self, what: What) -> None:
        """Start it, quietly, and out of the way of Ctrl-C, which is for the worker."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("DMLC_") and name != "PORT"
        }
        mine, theirs = socket.socketpair()
        said = os.memfd_create("d2lps")
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "d2lps.kvstore.pslite.node", *what.arguments],
                stdin=theirs,
                stderr=said,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | inherited | what.environment,
            )
        self._started.append(_Started(what, process, mine, said))

    def pids(self) -> list:
        """[(name, number, process id)] of what was started here, for the others to watch."""
        return [(one.what.name, one.what.number, one.process.pid) for one in self._started]

    def watch(self, pids: list) -> None:
        """Hear when one of these ends."""
        for name, number, pid in pids:
            try:
                self._watched.append((name, number, os.pidfd_open(pid)))
            except ProcessLookupError:
                self.over = self.over or _lost(name, number, "")

    def hello(self, seconds: float) -> None:
        """Wait until all of MXNet's processes have found each other. Raises KVError."""
        self.watch(self.pids()[:-1])
        said = self._answer("start", seconds)
        if "error" in said:
            self.over = Refused(f"engine='mxnet' needs MXNet 1.9.1, which does not run here: {said['error']}")
            raise self.over
        if said["rank"] != self.rank:
            self.over = KVError(f"MXNet calls worker {self.rank} worker {said['rank']}")
            raise self.over

    def ask(self, do: str, fds: list[int] = (), **more) -> None:
        """Let this worker's process do something, and wait. Raises what is wrong, within the deadline."""
        if self.over:
            again = type(self.over)(f"{self.over}; this store is at its end: make another, in all processes")
            vars(again).update(vars(self.over))  # whom it names
            raise again
        try:
            send(self._started[-1].line, {"do": do} | more, fds)
        except OSError:
            self.over = self._why_ended()
            raise self.over from None
        said = self._answer(do, self.deadline)
        if "error" in said:
            raise Refused(f"MXNet: {said['error']}")

    def _answer(self, do: str, seconds: float) -> dict:
        try:
            self._wait(do, time.monotonic() + seconds, seconds)
            return receive(self._started[-1].line)[0]
        except (EOFError, ConnectionError):
            self.over = self._why_ended()
            raise self.over from None
        except BaseException as error:  # also Ctrl-C: what the process still does, nobody expects any more
            self.over = error if isinstance(error, KVError) else KVError(f"{do} was interrupted")
            self._started[-1].process.kill()
            raise

    def _wait(self, do: str, until: float, seconds: float) -> None:
        """Until the answer can be read. Raises what keeps it from coming."""
        line = self._started[-1].line.fileno()
        looking, watched = select.poll(), {fd: (name, number) for name, number, fd in self._watched}
        for fd in (line, *watched):
            looking.register(fd, select.POLLIN)
        gone, since = self.over, time.monotonic()
        until = min(until, since + GRACE) if gone else until
        while (left := until - time.monotonic()) > 0:
            for fd, _ in looking.poll(1e3 * left):
                if fd == line:
                    return
                looking.unregister(fd)
                now, lost = time.monotonic(), self._lost(*watched[fd])
                if gone is None:
                    until, gone, since = min(until, now + GRACE), lost, now
                elif isinstance(lost, WorkerLost) and now - since < AT_ONCE:
                    gone = lost  # what it had started has gone with it
        raise gone or Timeout(
            f"MXNet has not done {do} within {seconds:g} s, though all its processes are there: it "
            "waits for a worker that has not called the same"
        )

    def _lost(self, name: str, number: int) -> KVError:
        mine = [one for one in self._started if (one.what.name, one.what.number) == (name, number)]
        return _lost(name, number, _last_words(mine[0]) if mine else "")

    def _why_ended(self) -> KVError:
        """Why this worker's process is no more."""
        return _lost("worker", self.rank, _last_words(self._started[-1]))

    def end(self, seconds: float = LEAVING) -> None:
        """End all that were started here: at once if something was wrong, else those that do not end by themselves."""
        until = time.monotonic() + (0.0 if self.over else seconds)
        for one in reversed(self._started):
            try:
                one.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.line.close()
            os.close(one.said)
        for _, _, fd in self._watched:
            os.close(fd)
        self._started, self._watched = [], []
        self.over = self.over or Refused("this store is closed")


def _lost(name: str, number: int, words: str) -> KVError:
    why = f" ({words})" if words else ""
    if name == "worker":
        return WorkerLost(f"the MXNet process of worker {number} has ended{why}", (number,))
    if name == "scheduler":
        return ServerLost(f"the scheduler of MXNet has ended{why}")
    return ServerLost(f"server {number} of MXNet has ended{why}", (number,))


def _last_words(one: _Started) -> str:
    """What it said on its stderr: the failed check, or the last line."""
    said = os.pread(one.said, os.fstat(one.said).st_size, 0).decode(errors="replace")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    checks = [line for line in lines if "Check failed" in line]
    found = (checks or lines[-1:] or [""])[0]
    return found[found.find("Check failed") :][:300] if checks else found[:300]

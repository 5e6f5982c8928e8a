"""The processes of an MXNet store: how they are started, asked, watched and ended."""

import copy
import importlib.util
import os
import socket
import subprocess
import sys
import time
from multiprocessing.connection import wait

from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, WorkerLost

GRACE = 2.0  # seconds that an answer may still take when another process has gone: it may have been the last to leave
AT_ONCE = 0.3  # seconds within which the processes end that one worker has started
INTERFACE = "DMLC_INTERFACE"  # the network card between hosts, under MXNet's own name for it
LEAVING = 5.0  # seconds that a server has to end by itself


def require_mxnet() -> None:
    """Raises Refused where there is no MXNet."""
    if sys.platform != "linux" or importlib.util.find_spec("mxnet") is None:
        raise Refused(
            "engine='mxnet' needs MXNet 1.9.1, which is not installed here: pip install mxnet==1.9.1 (Linux "
            "on x86-64, Python 3.11, NumPy 1.23); all else works without it"
        )


def free_port(address: str) -> int:
    """A port of this host's that nobody uses."""
    with socket.create_server((address, 0)) as probe:
        return probe.getsockname()[1]


def environment(
    role: str, number: int, root: tuple[str, int], workers: int, servers: int, own: str | None = None
) -> dict[str, str]:
    """By which ps-lite's nodes find each other.

    ``role`` is scheduler, server or worker; ``root``: where the scheduler is; ``own``: this host's address among
    several hosts.
    """
    # On one host each has an address of its own on loopback, so that no other machine can reach what would unpickle
    # whatever it is sent. ps-lite ranks its nodes by their addresses, as text, the largest first.
    last = f"{254 - number // 155}.{254 - number % 155}"
    loopback = {"scheduler": "127.0.0.1", "server": f"127.1.{last}", "worker": f"127.2.{last}"}[role]
    return {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": root[0],
        "DMLC_PS_ROOT_PORT": str(root[1]),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_INTERFACE": os.environ[INTERFACE] if own else "lo",
        "DMLC_NODE_HOST": _ranked(own, number) if own else loopback,
    }


def _ranked(address: str, number: int) -> str:
    """The same IPv4 address in a form that comes before, as text and the largest first, those of larger numbers.

    A number that begins with 0 is octal, and may begin with more of them: 10.77.0.3 is 012.77.0.3 and 0012.77.0.3.
    """
    first, _, rest = address.partition(".")
    return f"{'0' * (number + 1)}{int(first):o}.{rest}"


class Node(ChildProcess):
    """A process of MXNet's that is started quietly, with these ``settings`` in its environment."""

    def __init__(self, role: str, number: int, settings: dict[str, str]):
        self.role, self.number, self._stderr = role, number, os.memfd_create("d2lps")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DMLC_") and key != "PORT"}
        usual = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        super().__init__("d2lps.kvstore.pslite", usual | inherited | settings, self._stderr)

    def last_words(self) -> str:
        """The check that failed, or the last line on its stderr."""
        text = os.pread(self._stderr, 1 << 20, 0).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
        checks = [line[line.find("Check failed") :] for line in lines if "Check failed" in line]
        return (checks or lines[-1:])[0][:300]

    def end(self, until: float) -> None:
        """Wait for its end until then, on the monotonic clock, and kill it if it has not ended."""
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.line.close()
        os.close(self._stderr)


class Nodes:
    """The processes that worker ``rank`` has started, the last of them the one that speaks for it; and the others'.

    ``over``: why no more can be asked, once that is so.
    """

    def __init__(self, rank: int, deadline: float):
        self.rank, self.deadline = rank, deadline
        self.over: KVError | None = None
        self._gone: KVError | None = None  # already when it was to be watched
        self._started: list[Node] = []
        self._watched: dict[int, tuple[str, int]] = {}  # descriptor of a process → its role and number

    def start(self, role: str, number: int, settings: dict[str, str]) -> None:
        """Start a scheduler, a server or a worker."""
        self._started.append(Node(role, number, settings))

    def pids(self) -> list[tuple[str, int, int]]:
        """[(role, number, process id)] of what was started here, for the others to watch."""
        return [(node.role, node.number, node.process.pid) for node in self._started]

    def watch(self, pids: list) -> None:
        """Hear when one of these ends; they are on this host."""
        for role, number, pid in pids:
            try:
                self._watched[os.pidfd_open(pid)] = role, number
            except ProcessLookupError:
                self._gone = self._loss(role, number)

    def join(self, kind: str, seconds: float) -> None:
        """Wait until all of MXNet's processes have found each other. Raises KVError."""
        self.watch(self.pids()[:-1])
        answer = self._answer("start", seconds, {"kind": kind})
        if "error" in answer:
            self.over = Refused(
                f"engine='mxnet' needs MXNet 1.9.1, which does not run here: {': '.join(answer['error'])}"
            )
        elif answer["result"] != self.rank:
            self.over = KVError(f"MXNet calls worker {self.rank} worker {answer['result']}")
        if self.over:
            raise self.over

    def require_usable(self) -> None:
        """Raises what has ended this store."""
        if not self._started:
            raise Refused("this store is closed")
        if self.over:
            again = copy.copy(self.over)  # whom it names
            again.args = (f"{self.over}; this store is at its end: make another, in all processes",)
            raise again

    def ask(self, do: str, **request) -> None:
        """Let this worker's process do something, and wait. Raises what is wrong, within the deadline."""
        self.require_usable()
        if error := self._answer(do, self.deadline, request).get("error"):
            raise Refused(f"MXNet: {next(iter(error[1].strip().splitlines()), error[0])}")

    def interrupt(self) -> None:
        """Whoever asked does not wait any more: what the process still does, nobody expects."""
        self.over = self.over or KVError("a call was interrupted")
        self._started[-1].process.kill()

    def _answer(self, do: str, seconds: float, request: dict) -> dict:
        mine = self._started[-1]
        try:
            send(mine.line, {"do": do} | request)
            self._wait(do, seconds)
            return receive(mine.line)
        except (EOFError, ConnectionError):
            self.over = self.over or self._loss("worker", self.rank)
            raise self.over from None
        except BaseException as error:
            self.over = error if isinstance(error, KVError) else KVError(f"{do} has failed: {error}")
            mine.process.kill()
            raise

    def _wait(self, do: str, seconds: float) -> None:
        """Until the answer can be read. Raises what keeps it from coming."""
        line, watched = self._started[-1].line, dict(self._watched)
        gone, since = self._gone, time.monotonic()
        until = since + (min(seconds, GRACE) if gone else seconds)
        while (left := until - time.monotonic()) > 0:
            for ready in wait([line, *watched], left):
                if ready is line:
                    return
                now, loss = time.monotonic(), self._loss(*watched.pop(ready))
                if gone is None:
                    until, gone, since = min(until, now + GRACE), loss, now
                elif isinstance(loss, WorkerLost) and now - since < AT_ONCE:
                    gone = loss  # what it had started has gone with it
        raise gone or Timeout(
            f"MXNet has not done {do} within {seconds:g} s, though all its processes on this host are there: it "
            "waits for a worker that has not called the same, or for another host"
        )

    def _loss(self, role: str, number: int) -> KVError:
        """That this process has ended; why, it may have said to who has started it."""
        words = [node.last_words() for node in self._started if (node.role, node.number) == (role, number)]
        why = f" ({words[0]})" if words and words[0] else ""
        if role == "worker":
            return WorkerLost(f"the MXNet process of worker {number} has ended{why}", (number,))
        if role == "scheduler":
            return ServerLost(f"the scheduler of MXNet has ended{why}")
        return ServerLost(f"server {number} of MXNet has ended{why}", (number,))

    def end(self, seconds: float = LEAVING) -> None:
        """End all that were started here: at once if something was wrong, else those that do not end by themselves."""
        until = time.monotonic() + (0.0 if self.over else seconds)
        for node in reversed(self._started):
            node.end(until)
        for descriptor in self._watched:
            os.close(descriptor)
        self._started, self._watched = [], {}

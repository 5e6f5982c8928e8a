"""The processes of an MXNet store: start, requests, losses, end."""

import copy
import importlib.util
import os
import subprocess
import sys
import time
from multiprocessing.connection import wait

from d2lps.kvstore.child import ChildProcess, receive, send
from d2lps.kvstore.errors import KVError, Refused, ServerLost, Timeout, WorkerLost, as_known
from d2lps.messages import text

GRACE = 2.0  # seconds for an answer after another process has ended, which may have left last
AT_ONCE = 0.3  # seconds within which all processes of a lost worker end
INTERFACE = "DMLC_INTERFACE"  # MXNet's variable for the network card between hosts
LEAVING = 5.0  # seconds for a server to end by itself


def require_mxnet() -> None:
    """Raise Refused if MXNet is not installed."""
    if sys.platform != "linux" or importlib.util.find_spec("mxnet") is None:
        raise Refused(text("store.mxnet.missing"))


def environment(
    role: str, number: int, root: tuple[str, int], workers: int, servers: int, own: str | None = None
) -> dict[str, str]:
    """Return the environment variables by which ps-lite's nodes find each other.

    ``role`` is scheduler, server or worker; ``root`` is the address of the scheduler; ``own`` is this host's address
    if there are several hosts.
    """
    # On one host each node has its own loopback address, so that no other machine can reach it: ps-lite unpickles what
    # it receives. ps-lite ranks its nodes by their addresses, as text, the largest first.
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
    """Write an IPv4 address so that, as text, it is smaller for larger numbers.

    A number that begins with zeros is octal: 10.77.0.3 is also 012.77.0.3 and 0012.77.0.3.
    """
    first, _, rest = address.partition(".")
    return f"{'0' * (number + 1)}{int(first):o}.{rest}"


class Node(ChildProcess):
    """A process of MXNet with these ``settings`` in its environment; its stderr is kept."""

    def __init__(self, role: str, number: int, settings: dict[str, str]):
        self.role, self.number, self._stderr = role, number, os.memfd_create("d2lps")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DMLC_") and key != "PORT"}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        super().__init__("d2lps.kvstore.pslite", defaults | inherited | settings, self._stderr)

    def last_words(self) -> str:
        """Return the check that failed, or the last line of its stderr."""
        output = os.pread(self._stderr, 1 << 20, 0).decode(errors="replace")
        lines = [line.strip() for line in output.splitlines() if line.strip()] or [""]
        checks = [line[line.find("Check failed") :] for line in lines if "Check failed" in line]
        return (checks or lines[-1:])[0][:300]

    def end(self, until: float) -> None:
        """Wait for its end until then, on the monotonic clock; kill it after that."""
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.line.close()
        os.close(self._stderr)


class Nodes:
    """The processes that worker ``rank`` has started, of which the last makes its calls, and those that it watches.

    ``over`` is the error that has ended this store, if there is one.
    """

    def __init__(self, rank: int, deadline: float):
        self.rank, self.deadline = rank, deadline
        self.over: KVError | None = None
        self._gone: KVError | None = None  # had ended before it was watched
        self._started: list[Node] = []
        self._watched: dict[int, tuple[str, int]] = {}  # descriptor of a process → (role, number)

    def start(self, role: str, number: int, settings: dict[str, str]) -> None:
        """Start a scheduler, a server or a worker."""
        self._started.append(Node(role, number, settings))

    def pids(self) -> list[tuple[str, int, int]]:
        """Return [(role, number, process id)] of the processes started here, for the other workers to watch."""
        return [(node.role, node.number, node.process.pid) for node in self._started]

    def watch(self, pids: list) -> None:
        """Watch these processes, which are on this host."""
        for role, number, pid in pids:
            try:
                self._watched[os.pidfd_open(pid)] = role, number
            except ProcessLookupError:
                self._gone = self._loss(role, number)

    def join(self, kind: str, seconds: float) -> None:
        """Wait until all processes of MXNet are connected. Raises KVError."""
        self.watch(self.pids()[:-1])
        answer = self._answer("start", seconds, {"kind": kind})
        if "error" in answer:
            self.over = Refused(text("store.mxnet.broken", why=": ".join(answer["error"])))
        elif answer["result"] != self.rank:
            self.over = KVError(text("store.mxnet.rank", rank=self.rank, number=answer["result"]))
        if self.over:
            raise self.over

    def require_usable(self) -> None:
        """Raise the error that has ended this store, if there is one."""
        if not self._started:
            raise Refused(text("store.closed"))
        if self.over:
            error = copy.copy(self.over)  # with its ranks or servers
            error.args = (text("store.mxnet.ended", why=self.over),)
            raise error

    def ask(self, do: str, **request) -> None:
        """Let this worker's child do something, and wait for it. Raises KVError within the deadline."""
        self.require_usable()
        if error := self._answer(do, self.deadline, request).get("error"):
            raise Refused(text("store.mxnet.failed", why=next(iter(error[1].strip().splitlines()), error[0])))

    def interrupt(self) -> None:
        """End the store, because the thread that waits for an answer is interrupted."""
        self.over = self.over or KVError(text("store.mxnet.interrupted"))
        self._started[-1].process.kill()

    def _answer(self, do: str, seconds: float, request: dict) -> dict:
        child = self._started[-1]
        try:
            send(child.line, {"do": do} | request)
            self._wait(do, seconds)
            return receive(child.line)
        except (EOFError, ConnectionError):
            self.over = self.over or self._loss("worker", self.rank)
            raise self.over from None
        except BaseException as error:
            self.over = as_known(error)
            child.process.kill()
            raise

    def _wait(self, do: str, seconds: float) -> None:
        """Wait until the answer can be read. Raises Timeout, or the loss that prevents it."""
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
                    gone = loss  # it takes the processes that it has started with it
        raise gone or Timeout(text("store.mxnet.late", task=do, seconds=f"{seconds:g}"))

    def _loss(self, role: str, number: int) -> KVError:
        """Return the error for the end of a process, with its last words if it was started here."""
        words = [node.last_words() for node in self._started if (node.role, node.number) == (role, number)]
        why = f" ({words[0]})" if words and words[0] else ""
        if role == "worker":
            return WorkerLost(text("store.mxnet.worker", number=number, why=why), (number,))
        if role == "scheduler":
            return ServerLost(text("store.mxnet.scheduler", why=why))
        return ServerLost(text("store.mxnet.server", number=number, why=why), (number,))

    def end(self, seconds: float = LEAVING) -> None:
        """End the processes started here: at once after an error, else those that have not ended after ``seconds``."""
        until = time.monotonic() + (0.0 if self.over else seconds)
        for node in reversed(self._started):
            node.end(until)
        for descriptor in self._watched:
            os.close(descriptor)
        self._started, self._watched = [], {}

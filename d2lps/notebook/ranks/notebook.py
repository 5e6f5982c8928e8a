"""The notebook's side: start the ranks, ask them, interrupt them, end them.

The store in which the ranks meet is in the notebook's own process, so that it outlives any of them.
"""

import atexit
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

import d2lps
from d2lps.carriers.rendezvous import ProcessesError, require_seconds
from d2lps.messages import text, why
from d2lps.notebook.ranks.rank import TRAINING, process, read_connection
from d2lps.units import is_count

IPV4, IPV6 = "127.0.0.1", "::1"
MOST = 64  # more ranks on one machine are a typing error

_running: "RunningRanks | None" = None


def ranks(count: int = 4, deadline: float = 60.0) -> "RunningRanks":
    """Return the processes of this notebook, rank 0 to ``count`` − 1: the running ones, or new ones.

    A cell that begins with ``%%px`` runs on all of them. In it ``Processes()``, ``SharedMemory()`` and
    ``torch.distributed.init_process_group("gloo")`` work as they do under torchrun. The ranks end with the notebook,
    or when they are closed.

    Args:
        count: The number of processes, 1 to 64.
        deadline: Seconds within which they must start, and answer.

    Returns:
        ``ranks[0]["trace"]`` is a copy of rank 0's variable ``trace``; ``close()`` ends all ranks.

    Raises:
        ProcessesError: If they do not start in time, or an argument is not valid.

    Example:
        >>> with ranks(1) as one:
        ...     one[0]["x"] = 7
        ...     one[0]["x"]
        7
    """
    global _running
    if not is_count(count, 1, MOST):
        raise ProcessesError(text("ranks.count", count=repr(count), most=MOST))
    deadline = require_seconds("deadline", deadline)
    if _running is not None and not (len(_running) == count and _running.answer()):
        _running.close()
        _running = None
    if _running is None:
        _running = RunningRanks(count, deadline)
    _running.deadline = deadline
    return _running


class RunningRanks:
    """The result of :func:`ranks`: ``ranks[0]`` is rank 0; a ``with`` block closes them at its end.

    Attributes:
        deadline: Seconds within which a rank must answer.
        closed (bool): True once the ranks have been ended.
        view (ipyparallel.DirectView): All ranks, for users of ipyparallel.
    """

    def __init__(self, count: int, deadline: float):
        try:
            import ipyparallel
            import psutil
            import zmq
        except ImportError as error:
            raise ProcessesError(text("ranks.missing", name=error.name)) from None
        self.deadline, self.closed = deadline, False
        self.view: Any = None
        self._count, self._processes = count, []
        self._client: Any = None
        # Bound to loopback here, because the store itself would listen on all networks.
        listener = _listener()
        address, port, *_ = listener.getsockname()
        self._store = dist.TCPStore(
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._folder = Path(tempfile.mkdtemp(prefix="d2lps-ranks-"))
        self._guard, self._pipe = _guard(self._folder, count, address, port)
        atexit.register(self.close)
        self._owner = os.getpid()
        until = time.monotonic() + deadline
        try:
            connection = self._wait(lambda: read_connection(self._folder, "client"), until)
            if address == IPV6:
                zmq.Context.instance().ipv6 = True
            self._client = ipyparallel.Client(connection, timeout=deadline)
            self._wait(lambda: len(self._client.ids) == count, until)
            self.view = self._client[:]
            numbers = self.view.apply_async(process).get(max(0.1, until - time.monotonic()))
            self._processes = [psutil.Process(number) for number in numbers]
        except BaseException as error:
            output = (self._folder / "output").read_text("utf-8", "replace").strip()[-2000:]
            self.close()
            if isinstance(error, TimeoutError | psutil.NoSuchProcess):
                values = {"count": count, "seconds": f"{deadline:g}", "output": output}
                raise ProcessesError(text("ranks.not-started", **values)) from None
            raise
        self._register_magics()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        gone = self.gone
        living = [str(process.pid) for rank, process in enumerate(self._processes) if rank not in gone]
        state = "closed" if self.closed else " ".join(["processes", *living]) if living else ""
        if gone and not self.closed:
            state = "; ".join(filter(None, [state, self._sentence_of(gone)]))
        return f"<{len(self)} rank{'s' * (len(self) > 1)}: {state}>"

    def __getitem__(self, rank: int) -> "OneRank":
        if not is_count(rank, most=len(self) - 1):
            raise ProcessesError(text("ranks.no-rank", rank=repr(rank), count=len(self)))
        return OneRank(self, rank)

    def __enter__(self) -> "RunningRanks":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def again(self) -> str:
        """The advice for the case that a rank is lost, as a sentence."""
        return text("ranks.again", count=len(self))

    @property
    def gone(self) -> list[int]:
        """The ranks whose processes have ended."""
        return [rank for rank in range(len(self._processes)) if not self.alive(rank)]

    def alive(self, rank: int) -> bool:
        """Return True if the process of this rank is still running."""
        return self._processes[rank].is_running()

    def answer(self, within: float = 2.0) -> bool:
        """Return True if all ranks answer within so many seconds: all are there and none is busy."""
        with suppress(ProcessesError, TimeoutError):
            self.ensure_usable()
            self.view.apply_async(process).get(within)
            return self._guard.poll() is None
        return False

    def ensure_usable(self) -> None:
        """Raise ProcessesError if they are closed or one is gone."""
        if self.closed:
            raise ProcessesError(text("ranks.closed", again=self.again))
        if gone := self.gone:
            raise ProcessesError(self._sentence_of(gone))

    def _sentence_of(self, gone: list[int]) -> str:
        return text("ranks.gone", ranks=", ".join(map(str, gone)), again=self.again)

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Interrupt these ranks, as Ctrl-C interrupts a program."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGINT)

    def close(self) -> None:
        """End all ranks at once, whatever they do; do nothing in a forked child."""
        if self.closed or os.getpid() != self._owner:
            return
        self.closed = True
        atexit.unregister(self.close)
        os.close(self._pipe)
        try:
            self._guard.wait(3)
        except subprocess.TimeoutExpired:  # it is still starting and does not watch the pipe yet
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._client is not None:
            self._client.close()

    def _wait(self, done: Callable[[], object], until: float) -> object:
        while not (result := done()):
            if time.monotonic() > until or self._guard.poll() is not None:
                raise TimeoutError
            time.sleep(0.01)
        return result

    def _register_magics(self) -> None:
        """Let ``%px`` and ``%%px`` of this notebook run on these ranks."""
        from IPython import get_ipython

        from d2lps.notebook.ranks.px import Px

        if shell := get_ipython():
            shell.register_magics(Px(shell, self))


class OneRank:
    """One of the ranks: ``rank["x"]`` is a copy of its variable ``x``, and ``rank["x"] = 7`` sets it to a copy."""

    def __init__(self, ranks: RunningRanks, number: int):
        self._ranks, self.number = ranks, number

    def __repr__(self) -> str:
        return f"<rank {self.number} of {len(self._ranks)}>"

    def __getitem__(self, name: str) -> object:
        return self._ask(name, lambda view: view.pull(name, block=False))

    def __setitem__(self, name: str, value: object) -> None:
        self._ask(name, lambda view: view.push({name: value}, block=False))

    def _ask(self, name: str, question: Callable):
        from ipyparallel.error import RemoteError

        self._ranks.ensure_usable()
        try:
            return question(self._ranks._client[self.number]).get(self._ranks.deadline)
        except TimeoutError:
            values = {"seconds": f"{self._ranks.deadline:g}", "again": self._ranks.again}
            raise ProcessesError(text("ranks.busy", rank=self.number, **values)) from None
        except RemoteError as error:
            raise ProcessesError(f"rank {self.number}, {name!r}: {error.ename}: {error.evalue}") from None


def _listener() -> socket.socket:
    """Return a socket that listens on the loopback interface; some hosts have IPv6 only. Raises ProcessesError."""
    try:
        return socket.create_server((IPV4, 0))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        try:
            return socket.create_server((IPV6, 0), family=socket.AF_INET6)
        except OSError as error:
            raise ProcessesError(text("ranks.no-loopback", why=why(error))) from None


def _guard(folder: Path, count: int, address: str, port: int) -> tuple[subprocess.Popen, int]:
    """Start the process that starts and ends all others; return it, and our end of its pipe."""
    modules = os.pathsep.join([str(Path(d2lps.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": modules,
        "TMPDIR": str(folder),
    }
    theirs, ours = os.pipe()
    further = TRAINING if TRAINING[0] in sys.modules else ()  # the ranks of a notebook that trains will probably train
    command = [sys.executable, "-m", "d2lps.notebook.ranks", str(folder), str(theirs), str(count), "", *further]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [theirs], "start_new_session": True}
    try:
        with (folder / "output").open("wb") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output, **options), ours
    finally:
        os.close(theirs)

"""Rank processes for the tests: forked off one server that has imported torch once, so that many of them cost little.

``ranks()(function, *arguments, n=4)`` calls a function of a test module in 4 processes, ``function(rank, *arguments)``,
and gives back what they returned. The processes stay for the next call; who kills some takes ``Ranks(n)`` of its own.
"""

import gc
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from functools import cache
from multiprocessing.connection import wait as wait_for
from typing import NamedTuple

import psutil
import torch
import torch.distributed as dist

from helpers.waits import LIVE

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "d2lps.carriers.processes",
        "d2lps.carriers.shared_memory",
        "d2lps.algorithms",
        "d2lps.topology.hosts",
        "d2lps.kvstore.launch",
        "d2lps.kvstore.server.server",
        "psutil",
        "pytest",
        "hypothesis",
        "hypothesis.strategies",
    ]
)
# multiprocessing would take these processes for those of a forked child, and end the daemons when the child ends.
os.register_at_fork(after_in_child=lambda: multiprocessing.process._children.clear())
PATIENCE = LIVE  # the deadline of a carrier whose ranks all live: a loaded machine may keep one waiting
DEADLINE = 4.0  # seconds, if a rank dies or stops and the test waits until the others notice


class Rank(NamedTuple):
    """The argument of a rank's function: its number, how many ranks there are, and the store where they meet."""

    store: dist.Store
    number: int
    size: int

    def carrier(self, kind, playing=None, **options):
        usual = {"deadline": PATIENCE, "store": self.store, "rank": self.number, "size": self.size}
        return kind(playing, **usual | options)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that torchrun would set."""
        return {
            "RANK": str(self.number),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.underlying_store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def meet(self) -> None:
        """Wait for all ranks, without a carrier."""
        until = -(-self.store.add("met", 1) // self.size) * self.size
        while self.store.add("met", 0) < until:
            time.sleep(0.005)


class Failed(AssertionError):
    """An error in the function of a rank, with its traceback."""


@cache
def store() -> dist.TCPStore:
    """Return the store where all ranks of all tests meet; it lives in the process of the tests, which outlives them."""
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


class Ranks:
    """``size`` processes that run one function after another until they are ended."""

    calls = 0

    def __init__(self, size: int):
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, theirs = FORKED.Pipe()
            process = FORKED.Process(target=_serve, args=(theirs, store().port), name=f"rank {rank}", daemon=True)
            process.start()
            self.processes.append(process)
            theirs.close()
            self.pipes.append(mine)

    def __call__(self, function, *arguments, n: int | None = None, timeout: float = 2 * LIVE) -> list:
        """Return the results of ``function`` on the first n ranks. An error that it raises fails the test."""
        n = self.start(function, *arguments, n=n)
        return self.results(range(n), timeout)

    def start(self, function, *arguments, n: int | None = None) -> int:
        Ranks.calls += 1
        n = len(self.pipes) if n is None else n
        self.name = f"call {Ranks.calls}"
        for rank, pipe in enumerate(self.pipes[:n]):
            pipe.send((function, self.name, rank, n, arguments))
        return n

    def results(self, of, timeout: float = 2 * LIVE) -> list:
        """Return the results of the ranks ``of``, in their order."""
        found, waiting = {}, {self.pipes[rank]: rank for rank in of}
        while waiting:
            ready = wait_for(list(waiting), timeout)
            if not ready:
                self.end()
                raise Failed(f"nothing from ranks {sorted(waiting.values())} within {timeout} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    found[rank] = None, f"rank {rank} died"
        for rank, (_, trouble) in sorted(found.items()):
            if trouble:
                raise Failed(f"rank {rank}:\n{trouble}")
        return [found[rank][0] for rank in of]

    def said(self, rank: int, timeout: float = LIVE):
        """Return the next object that the function of ``rank`` sends by ``tell`` before it returns."""
        if not self.pipes[rank].poll(timeout):
            self.end()
            raise Failed(f"nothing from rank {rank} within {timeout} s")
        return self.pipes[rank].recv()

    def let(self, key: str) -> None:
        """Let the ranks go on that wait for ``key`` in their store."""
        dist.PrefixStore(self.name, store()).set(key, "")

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    @property
    def usable(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def end(self) -> None:
        """Kill all processes, and wait until they are gone."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
        for pipe in self.pipes:
            pipe.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


_shared: list[Ranks] = []


def ranks() -> Ranks:
    """Eight processes that all tests share."""
    if not _shared or not _shared[-1].usable:
        _shared.append(Ranks(8))
    return _shared[-1]


def tell(what: object) -> None:
    """Send something to the test while a rank's function is at work."""
    _pipe.send(what)


def _serve(pipe, port: int) -> None:
    global _pipe
    _pipe = pipe
    gc.freeze()  # the objects of torch are many, and stay
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    joined = dist.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=LIVE), wait_for_workers=False)
    while True:
        try:
            function, name, rank, size, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(Rank(dist.PrefixStore(name, joined), rank, size), *arguments), None
        except BaseException:
            answer = None, traceback.format_exc()
        pipe.send(answer)


def outcome(function, *arguments):
    """Return the result of a function, or the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def settled(measure, like, patience: float = LIVE):
    """Call ``measure`` until it returns ``like`` or patience runs out, and return its last result."""
    until = time.monotonic() + patience
    while (found := measure()) != like and time.monotonic() < until:
        time.sleep(0.02)
    return found


def left_behind() -> set[tuple]:
    """Return everything that processes could leave behind: child processes, and files of ours, also in /dev/shm."""
    me = psutil.Process()
    files = {
        ("file", folder, name)
        for folder in ("/dev/shm", tempfile.gettempdir())
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.startswith(("d2lps", "torch", "pym", "psm"))
    }
    return files | {("process", child.pid) for child in me.children(recursive=True)}


def survivors(function, size: int, lost: int) -> list:
    """Return what ``function(rank)`` returned on all of so many ranks but the one that it kills."""
    several = Ranks(size)
    try:
        several.start(function)
        return several.results([rank for rank in range(size) if rank != lost])
    finally:
        several.end()

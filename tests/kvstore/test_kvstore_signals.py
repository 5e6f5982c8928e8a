"""Signals, forks, clocks, names and full disks: waiting calls raise, and the store can be used again."""

import atexit
import gc
import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from helpers import breaking
from helpers.breaking import DEADLINE, SECRET, Beside, closing, connected, gone, running, store
from helpers.ranks import FORKED
from helpers.stores import each

from d2lps import kvstore
from d2lps.kvstore import KVError, ServerLost, WorkerLost
from d2lps.kvstore.server.process import ServerProcess
from d2lps.kvstore.worker.client import ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")
MANY = 100_000  # elements: as large as those that do not travel through the socket


@contextmanager
def joined(function, size):
    """``function(store, pipe)`` in ``size`` worker processes with a server; gives processes and pipes."""
    meeting = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    usual = {
        "WORLD_SIZE": f"{size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{meeting.port}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TMPDIR": os.environ["TMPDIR"],
        "D2LPS_TEST": os.environ["D2LPS_TEST"],
    }
    processes, pipes = [], []
    for rank in range(size):
        mine, theirs = FORKED.Pipe()
        arguments = function, theirs, usual | {"RANK": f"{rank}"}
        processes.append(FORKED.Process(target=_worker, args=arguments))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        yield processes, pipes
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(10)
            process.kill()
            process.join(5)
            pipe.close()


def _worker(function, pipe, environment):
    os.setsid()  # as a shell does for each command, so that Ctrl-C reaches it and nobody else
    os.environ.update(environment)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    store = kvstore.create("dist_sync", servers=1, joining=60.0, deadline=3.0)
    store.init("w", torch.zeros(MANY))
    pipe.send([server.process.pid for server in store.started])
    try:
        function(store, pipe)
    finally:
        store.close()


def heard(pipe, seconds=30):
    assert pipe.poll(seconds), "a worker says nothing"
    return pipe.recv()


def waits(store, pipe):
    """Worker 0 pulls what is not there, until it is interrupted; worker 1 pushes when it is told to."""
    out = torch.full((MANY,), -1.0)
    if store.rank == 0:
        pipe.send("waits")
        try:
            store.pushpull("w", torch.ones(MANY), out=out)
        except KeyboardInterrupt:
            pipe.send(time.monotonic())
        out.fill_(7.0)
        pipe.recv()  # worker 1 has pushed
        time.sleep(0.3)
        pipe.send(out.unique().tolist())
        store.pull("w", out=out)
        pipe.send(out.unique().tolist())
    else:
        pipe.recv()
        with suppress(WorkerLost):  # worker 0 may have gone; what it had pushed counts
            store.pushpull("w", torch.full((MANY,), 4.0), out=out)
        pipe.send(out.unique().tolist())
    try:
        store.pushpull("w", torch.full((MANY,), 16.0 * 4**store.rank), out=out)
        pipe.send(out.unique().tolist())
    except WorkerLost as error:
        pipe.send(error.ranks)


@pytest.mark.fault("F15", "Ctrl-C at a worker that waits in a pull")
def test_ctrl_c_ends_the_call_and_not_the_store(record_property):
    with joined(waits, 2) as (processes, (first, second)):
        servers = heard(first) + heard(second)
        assert heard(first) == "waits"
        time.sleep(0.5)
        begin = time.monotonic()
        os.killpg(processes[0].pid, signal.SIGINT)
        took = heard(first) - begin
        record_property("seconds", took)
        assert took < 1.0 and all(map(running, servers))
        second.send("push")
        assert heard(second) == [5.0]
        first.send("go on")
        assert heard(first) == [7.0], "what was pulled came after the call had ended"
        assert heard(first) == [5.0]
        assert heard(first) == heard(second) == [80.0]
    assert [process.exitcode for process in processes] == [0, 0] and gone(servers)


@pytest.mark.fault("F15", "SIGTERM at a worker that waits in a pull, and has started a server")
def test_a_worker_that_is_terminated_leaves_nothing(recovery):
    with joined(waits, 2) as (processes, (first, second)):
        servers = heard(first) + heard(second)
        assert heard(first) == "waits"
        time.sleep(0.3)
        processes[0].terminate()
        processes[0].join(5)
        second.send("push")
        with recovery():
            assert heard(second) in ([5.0], [-1.0]) and heard(second) == (0,)
        assert processes[0].exitcode == -signal.SIGTERM and gone(servers)


@pytest.mark.fault("F15", "SIGTERM at a server")
def test_a_server_that_is_terminated_is_named_and_leaves_nothing(recovery):
    folder = tempfile.mkdtemp(prefix="d2lps-")
    options = {"kind": "dist_sync", "workers": 2, "deadline": DEADLINE}
    started = ServerProcess({"store": options, "folder": folder, "number": 0}, 30.0)
    server = SimpleNamespace(number=0, address=started.names()[0][2])
    with closing(store([server], 0), store([server], 1)) as (first, second), closing(started):

        def work(mine):
            mine.init("w", torch.zeros(3))
            mine.barrier()
            if mine.rank:
                time.sleep(0.3)
                started.process.terminate()
            with recovery():
                with pytest.raises(ServerLost, match="server 0") as caught:
                    mine.pushpull("w", torch.ones(3)) if mine.rank == 0 else mine.barrier()
                assert caught.value.servers == (0,)
            return "named"

        assert each((first, second), work) == ["named"] * 2
        assert started.process.wait(5) == 0 and not os.path.exists(folder)


@pytest.mark.fault("F15", "SIGTERM at a server that is adding what was pushed")
def test_a_server_that_is_busy_ends_in_order():
    """Python ends its threads where they are, in the midst of torch, too: left to that, every third one aborts."""
    keys, ends, deadline = list(range(3000)), [], 5 * DEADLINE  # as long as 3000 keys take where others compute, too
    with ExitStack() as later:  # who is left waits for a server that is gone: all at the same time
        for _ in range(6):
            options = {"kind": "dist_sync", "workers": 1, "deadline": deadline}
            folder = tempfile.mkdtemp(prefix="d2-")
            started = ServerProcess({"store": options, "folder": folder, "number": 0}, 30.0)
            server = SimpleNamespace(number=0, address=started.names()[0][2])
            (mine,) = stores = [store([server], 0, 1, deadline=deadline)]
            later.enter_context(closing(*stores, started))
            values = [torch.ones(100) for _ in keys]
            mine.init(keys, values)

            def work(mine=mine, values=values):
                with suppress(KVError):
                    while True:
                        mine.pushpull(keys, values)

            worker = threading.Thread(target=work)
            worker.start()
            later.callback(worker.join, 20)
            time.sleep(0.2)
            started.process.terminate()
            ends.append(started.process.wait(10))
    assert ends == [0] * 6


def forks(store, pipe):
    """A child that leaves as programs do, one that uses the store, and one that lets go of it."""
    for how in ("leaves", "uses", "lets go"):
        if not (child := os.fork()):
            status = 1
            try:
                if how == "leaves":
                    atexit._run_exitfuncs()
                elif how == "uses":
                    with suppress(KVError):
                        store.pushpull("w", torch.ones(MANY))
                        os._exit(2)
                else:
                    store.close()
                    del store
                    gc.collect()
                status = 0
            finally:
                os._exit(status)
        until, ended = time.monotonic() + 5, (0, 0)
        while not ended[0] and time.monotonic() < until:
            ended = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        out = torch.empty(MANY)
        try:
            store.pushpull("w", torch.full((MANY,), 4.0), out=out)
            said = out.unique().tolist()
        except KVError as error:
            said = str(error)
        pipe.send((how, "ends" if ended[0] else "hangs", os.waitstatus_to_exitcode(ended[1]), said))


@pytest.mark.fault("F15", "a worker with a store that forks")
def test_a_child_does_not_disturb_the_store_of_its_parent():
    with joined(forks, 1) as (processes, (pipe,)):
        (server,) = heard(pipe)
        for how in ("leaves", "uses", "lets go"):
            assert heard(pipe) == (how, "ends", 0, [4.0])
            assert running(server) and os.listdir(
                next(each.path for each in os.scandir(os.environ["TMPDIR"]) if each.name.startswith("d2lps"))
            )
    assert processes[0].exitcode == 0


@pytest.mark.fault("F15", "a server that can open no more files")
def test_a_server_without_files_serves_who_is_there_and_recovers(recovery):
    with Beside(handshake=0.5, files=8, deadline=10.0) as server:
        first = store([server], 0, deadline=10.0)
        crowd = [connected(server.address) for _ in range(30)]
        time.sleep(0.2)
        assert server("full"), "it can still open files"
        with recovery():
            second = store([server], 1, deadline=10.0)

        def work(mine):
            mine.init("w", torch.zeros(3))
            mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
            return out.tolist()

        with closing(first, second, *crowd):
            assert each((first, second), work) == [[5.0] * 3] * 2
            assert server("ended") == []


@pytest.mark.fault("F15", "no thread left for another connection")
def test_a_server_without_threads_recovers(monkeypatch):
    start, left = threading.Thread.start, [3]

    def fails(self):
        if getattr(self._target, "__name__", "") == "_meet" and left[0]:
            left[0] -= 1
            raise RuntimeError("can't start new thread")
        start(self)

    (server,) = breaking.tables(workers=1)
    monkeypatch.setattr(threading.Thread, "start", fails)
    with closing(server):
        with closing(store([server], 0, 1)) as (mine,):
            mine.init("w", torch.zeros(3))
        assert server._guests == {} and left == [0]


@pytest.mark.fault("F15", "a clock that jumps")
def test_a_clock_that_jumps_changes_nothing(monkeypatch):
    def work(mine):
        mine.init("w", torch.zeros(3))
        out = torch.empty(3)
        for _ in range(20):
            mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=out)
        return out.tolist()

    jumps = iter(range(0, 10**15, 10**6))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    with kvstore.cluster("dist_sync", 2, 1, deadline=DEADLINE) as stores:
        assert each(stores, work) == [[5.0] * 3] * 2


@pytest.mark.fault("F15", "a host whose name is not found")
def test_a_name_that_is_not_found_is_a_server_lost(monkeypatch, recovery):
    def fails(self, address):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", fails)
    with recovery(), pytest.raises(ServerLost, match="server 2 at nowhere:1 .*Name or service not known"):
        ServerClient(2, ("nowhere", 1), 0, secret=SECRET, deadline=0.5)

"""Nothing late: what is interrupted or closed neither sends nor writes any more, and the store can be used again."""

import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from helpers import breaking
from helpers.breaking import DEADLINE, Beside, closing, connected, gone, running, store
from helpers.ctrl_c import pressed
from helpers.ranks import FORKED
from helpers.servers import fork_servers, servers_forked
from helpers.stores import aside, each, full, pulled, soon
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, ServerLost, WorkerLost
from d2lps.kvstore.calls import Interrupted
from d2lps.kvstore.server.process import ServerProcess
from d2lps.kvstore.worker.client import ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
NOTHING_LEFT = pytest.mark.usefixtures("nothing_left")
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
            process.join(LIVE)
            process.kill()
            process.join(LIVE)
            pipe.close()


def _worker(function, pipe, environment):
    os.setsid()  # as a shell does for each command, so that Ctrl-C reaches it alone
    os.environ.update(environment)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    fork_servers()
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

        def tells():
            soon(lambda: any(client._pending for client in store.clients))
            pipe.send("waits")

        threading.Thread(target=tells).start()
        try:
            store.pushpull("w", torch.ones(MANY), out=out)
        except KeyboardInterrupt:
            pipe.send("interrupted")
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


@contextmanager
def waiting_for_a_push(seconds):
    """Yield two workers of which the first has waited in a pull for so long: processes, servers, and both pipes."""
    with joined(waits, 2) as (processes, (first, second)):
        servers = heard(first) + heard(second)
        assert heard(first) == "waits"
        time.sleep(seconds)
        yield processes, servers, first, second


@NOTHING_LEFT
@pytest.mark.fault("F15", "Ctrl-C at a worker that waits in a pull")
def test_ctrl_c_ends_the_call_and_not_the_store(recovery):
    with waiting_for_a_push(0.5) as (processes, servers, first, second):
        with recovery():
            os.killpg(processes[0].pid, signal.SIGINT)
            assert heard(first) == "interrupted"  # while worker 1 still has not pushed
        assert all(map(running, servers))
        second.send("push")
        assert heard(second) == [5.0]
        first.send("go on")
        assert heard(first) == [7.0], "what was pulled came after the call had ended"
        assert heard(first) == [5.0]
        assert heard(first) == heard(second) == [80.0]
    assert [process.exitcode for process in processes] == [0, 0] and gone(servers)


@NOTHING_LEFT
@pytest.mark.fault("F15", "SIGTERM at a worker that waits in a pull, and has started a server")
def test_a_worker_that_is_terminated_leaves_nothing(recovery):
    with waiting_for_a_push(0.3) as (processes, servers, first, second):
        processes[0].terminate()
        processes[0].join(LIVE)
        second.send("push")
        with recovery():
            assert heard(second) in ([5.0], [-1.0]) and heard(second) == (0,)
        assert processes[0].exitcode == -signal.SIGTERM and gone(servers)


@NOTHING_LEFT
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
                    if mine.rank == 0:
                        mine.pushpull("w", torch.ones(3))
                    else:
                        mine.barrier()
                assert caught.value.servers == (0,)
            return "named"

        assert each((first, second), work) == ["named"] * 2
        assert started.process.wait(LIVE) == 0
    assert not os.path.exists(folder)


@NOTHING_LEFT
@pytest.mark.fault("F15", "SIGTERM at a server that is adding what was pushed")
def test_a_server_that_is_busy_ends_in_order():
    """Python ends its threads where they are, in the midst of torch, too: left to that, every third one aborts."""
    keys, ends, deadline = list(range(3000)), [], 5 * DEADLINE  # as long as 3000 keys take where others compute, too
    with servers_forked(), ExitStack() as later:  # all workers wait for a server that is gone at the same time
        for _ in range(4):
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
            ends.append(started.process.wait(LIVE))
    assert ends == [0] * 4


@NOTHING_LEFT
@pytest.mark.fault("F15", "a server that can open no more files")
def test_a_server_without_files_serves_its_workers_and_recovers(recovery):
    with Beside(handshake=0.5, files=8, deadline=10.0) as server:
        first = store([server], 0, deadline=10.0)
        crowd = [connected(server.address) for _ in range(30)]
        soon(lambda: server("full"))  # it can open no more files
        with recovery():
            second = store([server], 1, deadline=10.0)

        def work(mine):
            mine.init("w", torch.zeros(3))
            mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
            return out.tolist()

        with closing(first, second, *crowd):
            assert each((first, second), work) == [[5.0] * 3] * 2
            assert server("ended") == []


@NOTHING_LEFT
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
        assert server._unauthenticated == {} and left == [0]


# ---------------------------------------------------------------- interrupted calls and closed stores


def test_ctrl_c_ends_a_call_whose_turn_to_send_does_not_come():
    with kvstore.cluster("dist_async", 1, 1) as (store,):
        store.init("w", full(0))
        with store.clients[0]._sending, pressed(0.1), pytest.raises(KeyboardInterrupt) as error:
            store.pull("w", full(0))  # another thread, which sends much, has the turn
        assert not store._calls._running and error.value.counted == ()
        assert pulled(store) == [0.0]


def test_an_answer_that_no_call_waits_for_is_not_kept():
    size = 40_000
    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as cluster:
        store, other = cluster
        each(cluster, lambda store: store.init("w", full(0, size)))
        (server,) = cluster.servers
        for _ in range(5):
            store.push("w", full(1, size))
            pull, _ = aside(pytest.raises, Interrupted, pulled, store, "w", size)
            soon(lambda: server.store._pulls)
            assert store._calls._running[0].interrupt()
            pull.join(LIVE)
            other.push("w", full(1, size))
        assert pulled(store, "w", size) == [2.0]
        soon(lambda: not server._sessions[0]._unread)  # at the latest with the next heartbeat


def test_a_close_that_is_interrupted_leaves_no_line_open(monkeypatch):
    with kvstore.cluster("dist_async", 1, 3) as (store,):

        def ask(self, request):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(ServerClient, "ask", ask)
            with pytest.raises(KeyboardInterrupt):
                store.close()
        assert not any(client._open for client in store.clients)
        store.close()
        with pytest.raises(Refused, match="closed"):
            store.barrier()


def test_a_store_that_is_closed_says_so():
    with kvstore.cluster("dist_sync", 1, 1) as stores:
        stores[0].init("w", full(0))
    with pytest.raises(KVError, match="this store is closed"):
        stores[0].push("w", full(0))

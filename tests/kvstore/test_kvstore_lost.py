"""A lost worker or server is named in time, and the others go on or stop, as asked; a slow one is waited for."""

import os
import re
import signal
import socket
import textwrap
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import torch
from helpers import breaking
from helpers.breaking import DEADLINE, SECRET, Beside, Frames, closing, gone, store, tables
from helpers.scripts import forked
from helpers.stores import Function, aside, each, full, raised, soon, until_whole
from helpers.waits import LIVE

from d2lps import kvstore
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.kvstore import KVError, Refused, ServerLost, Timeout, WorkerLost, launch, threads
from d2lps.kvstore.launch import Meeting
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import Op
from d2lps.kvstore.worker.client import Request, ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")
STOOD = pytest.mark.fault("F4", "all stopped for longer than a deadline")


@pytest.mark.fault("F1", "worker gone, idle or after its push")
@pytest.mark.fault("F1", "worker killed in a barrier")
@pytest.mark.parametrize(
    "when, lost, replicas",
    [
        ("idle", "fail", 1),
        ("idle", "drop", 0),
        ("pushed", "fail", 0),
        ("pushed", "drop", 1),
        ("in a barrier", "fail", 1),
        ("in a barrier", "drop", 0),
    ],
)
def test_killed_worker_is_named_or_the_others_go_on_without_it(when, lost, replicas, recovery):
    def work(mine):
        mine.init("w", full(0))
        if mine.rank == 1:
            if when == "pushed":
                mine.push("w", full(4))
            elif when == "in a barrier":
                aside(raised, mine.barrier)
                time.sleep(0.2)
            stores.kill_worker(1)  # no goodbye, and it does not come back
            assert isinstance(raised(mine.push, "w", full(4)), KVError)
            return "killed"
        if when == "in a barrier" and mine.rank == 2:
            time.sleep(0.9 * DEADLINE)  # it is lost by then
        out = full(0)
        with recovery():
            error = (
                raised(mine.barrier) if when == "in a barrier" else raised(mine.pushpull, "w", full(4**mine.rank), out)
            )
        return error or out[0].item()

    with kvstore.cluster("dist_sync", 3, 2, lost=lost, deadline=DEADLINE, replicas=replicas) as stores:
        first, _, third = each(stores, work)
    if lost == "fail" and when != "pushed":
        for error in (first, third):
            assert isinstance(error, WorkerLost) and error.ranks == (1,)
            assert str(error) == "worker 1 is lost (the connection was closed)"
    else:
        assert first == third == {"idle": 17.0, "pushed": 21.0, "in a barrier": 0.0}[when]


@pytest.mark.fault("F1", "worker killed in the middle of a push")
@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_half_a_push_counts_for_nothing(lost, recovery):
    (server,) = tables(lost=lost)

    def change(op, frame):
        if op != Op.PUSH:
            return [frame]
        between.listener.close()  # and it does not come back
        return [frame[: len(frame) // 2], None]

    between = Frames(server.address, change)
    stores = [store([server], 0), store([server], 1, addresses={0: between.here})]

    def work(mine):
        mine.init("w", torch.zeros(5000))
        if mine.rank:
            with pytest.raises(ServerLost):
                mine.push("w", torch.full((5000,), 4.0))
            return "killed"
        with recovery():
            try:
                mine.pushpull("w", torch.ones(5000), out=(out := torch.empty(5000)))
                return out.unique().tolist()
            except WorkerLost as error:
                return error.ranks

    with closing(*stores, server, between):
        assert each(stores, work) == [(1,) if lost == "fail" else [1.0], "killed"]


@contextmanager
def silent(store):
    """A worker says nothing, as if it were stopped: its connections stand."""
    with ExitStack() as held:
        for client in store.clients:
            held.enter_context(client._sending)
        yield


@pytest.mark.fault("F4", "worker that is silent, and the others go on without it")
@pytest.mark.fault("F4", "worker that is silent")
@pytest.mark.parametrize(
    "call, lost, replicas",
    [("pushpull", "fail", 0), ("pushpull", "drop", 1), ("barrier", "fail", 1), ("barrier", "drop", 0)],
)
def test_silent_worker_is_lost(call, lost, replicas, recovery):
    with kvstore.cluster("dist_sync", 2, 2, lost=lost, deadline=DEADLINE, replicas=replicas) as stores:
        each(stores, lambda mine: mine.init("w", full(0)))
        out = full(0)
        arguments = ("w", full(1), out) if call == "pushpull" else ()
        with silent(stores[1]), recovery():
            error = raised(getattr(stores[0], call), *arguments)
            if lost == "drop":
                assert error is None and out[0] == (call == "pushpull")
            else:
                assert isinstance(error, WorkerLost | Timeout) and "worker 1" in str(error)
                soon(lambda: isinstance(raised(stores[0].pull, "w", out), WorkerLost))
                because = r"it has sent nothing for [\d.]+ s, with deadline=2: on a busy machine, set a longer"
                with pytest.raises(WorkerLost, match=because):
                    stores[0].push("w", full(1))


@pytest.mark.fault("F4", "worker that comes back after it was lost")
def test_a_dropped_worker_that_returns_changes_nothing(recovery):
    with kvstore.cluster("dist_sync", 2, 1, lost="drop", deadline=DEADLINE) as stores:
        each(stores, lambda mine: mine.init("w", full(0)))
        with silent(stores[1]):
            for _ in range(2):
                stores[0].pushpull("w", full(1), out=(out := full(0)))
        with recovery(), pytest.raises(WorkerLost, match="worker 1 counts as lost here"):
            stores[1].push("w", full(4))
        stores[0].pull("w", out=out)
        assert out.tolist() == [1.0] * 3


@pytest.mark.fault("F4", "server stopped for less than the deadline")
def test_a_server_that_is_slow_is_waited_for(recovery):
    with Beside(workers=1) as server, closing(store([server], 0, 1)) as (mine,):
        mine.init("w", torch.zeros(3))
        os.kill(server.process.pid, signal.SIGSTOP)
        timer = threading.Timer(0.5, os.kill, (server.process.pid, signal.SIGCONT))
        timer.start()
        with recovery():
            mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3


@pytest.mark.fault("F4", "worker nearly as slow as the deadline")
def test_a_worker_that_waits_for_a_slow_one_is_not_lost():
    """Its second push stays in the socket for nearly the deadline, and it says nothing meanwhile."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.barrier()
        time.sleep(3.0 * mine.rank)
        for push in range(3):
            mine.push("w", torch.full((3,), 4.0**mine.rank))
            time.sleep(3.0 * mine.rank * (push < 2))
        mine.pull("w", out=(out := torch.empty(3)))
        return out.tolist()

    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as stores:
        assert each(stores, work) == [[5.0] * 3] * 2


def test_a_worker_that_one_server_goes_on_without_leaves_the_others():
    """Else these would wait for it in every round."""
    servers = tables(servers=2, lost="drop")
    with closing(store(servers, 0), store(servers, 1), *servers) as (one, other, first, second):
        each([one, other], lambda worker: worker.init("w", torch.zeros(5000)))
        first.store.lose(1, "its line is cut")
        with pytest.raises(WorkerLost, match="worker 1 counts as lost"):
            other.push("w", torch.ones(5000))
        soon(lambda: second.store.live == {0})
        with pytest.raises(WorkerLost):
            other.pull("w", out=torch.empty(5000))
        for value in (2.0, 3.0):
            one.pushpull("w", torch.full((5000,), value), out=(out := torch.empty(5000)))
        assert out.unique().tolist() == [3.0]


def test_an_answer_that_takes_longer_than_the_deadline_is_late_and_its_server_is_not_lost():
    with kvstore.cluster(workers=1, deadline=0.5, transport="tcp") as (only,):
        only.init("w", torch.arange(3.0))
        (line,) = only.clients
        receive, out = line._receive, torch.empty(3)

        def slowly(channel, frame, request):
            soon(lambda: channel.sock.fileno() < 0)  # the call that waited has given up
            receive(channel, frame, request)

        line._receive = slowly
        for _ in range(2):
            with pytest.raises(Timeout, match="has not answered pull within 0.5 s"):
                only.pull("w", out=out)
        line._receive = receive
        only.pull("w", out=out)
        assert out.tolist() == [0.0, 1.0, 2.0]


# ---------------------------------------------------------------- all processes stand still


@pytest.fixture
def clock(monkeypatch):
    """The clock that a process looks at to know for how long it ran."""
    made = SimpleNamespace(ahead=0.0, sleep=time.sleep, monotonic=lambda: time.monotonic() + made.ahead)
    monkeypatch.setattr(threads, "time", made)
    yield made
    monkeypatch.undo()
    threads._read()  # the clock goes back


def test_of_a_long_pause_little_counts(clock):
    before = threads.own_time()
    clock.ahead += 1000.0
    assert threads.own_time() - before <= 2 * threads.PAUSE
    time.sleep(3 * threads.PAUSE)
    assert 2 * threads.PAUSE < threads.own_time() - before < 100


@STOOD
@pytest.mark.parametrize("lost, replicas", [("fail", 1), ("drop", 0)])
def test_no_member_is_lost_if_all_stood_still(lost, replicas, clock):
    """The clock jumps ahead twice as far as the deadline, again and again, while no member is asked for anything."""
    with kvstore.cluster("dist_sync", 2, 2, lost=lost, deadline=1.0, replicas=replicas) as stores:
        each(stores, lambda store: store.init("w", full(0)))
        if replicas:
            until_whole(stores)
        views = stores.views
        for _ in range(6):
            clock.ahead += 2.0
            time.sleep(0.3)  # in which all that live say so
        each(stores, lambda store: store.pushpull("w", full(1)))
        for store in stores:
            store.pull("w", out=(out := full(0)))
            assert out.tolist() == [2.0] * 3
        assert stores.views == views


def test_a_silent_server_is_lost_in_time_and_the_deadline_is_named():
    with kvstore.cluster("dist_sync", 1, 1, deadline=1.0) as stores:
        store, (server,) = stores[0], stores.servers
        store.init("w", full(0))
        until = time.monotonic() + LIVE
        with server._sessions[0]._sending, pytest.raises(ServerLost, match=r"deadline=1: on a busy machine") as error:
            while True:
                assert time.monotonic() < until
                try:
                    store.pull("w", out=full(0))
                except Timeout:
                    continue
        assert error.value.servers == (0,)


@pytest.mark.parametrize("counts_time", [True, False])
def test_a_worker_that_was_stopped_takes_the_answers_that_came_meanwhile(counts_time, monkeypatch):
    with kvstore.cluster("dist_sync", 2, 1, deadline=4.0) as (store, other):
        (client,), request = store.clients, Request(Op.BARRIER, metadata={"name": "", "round": 1})
        client.ask(request)
        if counts_time:
            client._heard -= 100  # it has heard nothing for long
        else:
            stood = threads.own_time()
            monkeypatch.setattr("d2lps.kvstore.worker.client.own_time", lambda: stood)
        late = threading.Timer(0.1 if counts_time else 1.0, other._calls.run, [Function(other._meet, "", 1)])
        late.start()
        assert client.wait(request, time.monotonic() + 0.7 * (not counts_time)).op == Op.OK
        late.join(LIVE)


STOPPING = """
import os, subprocess, sys, time
from pathlib import Path
import torch
from d2lps import kvstore

here = Path(sys.argv[0]).parent
with kvstore.create("dist_sync", servers=2, deadline=1.0, joining=60.0, replicas=1) as store:
    mine = [os.getpid()]
    for each in store.started:
        process = getattr(each, "process", None)
        mine += [getattr(process, "process", process).pid] if process else []
    (here / str(store.rank)).write_text(" ".join(map(str, mine)))
    store.init("w", torch.zeros(3))
    store.set_optimizer("sgd", lr=-1.0)
    if store.rank == 0:
        everyone = " ".join((here / str(rank)).read_text() for rank in range(2))
        act = "sleep 0.3; kill -STOP " + everyone + "; sleep 2.5; kill -CONT " + everyone
        stopper = subprocess.Popen(["bash", "-c", act], start_new_session=True)
        print(len(everyone.split()), "processes")
    out, begun = torch.empty(3), time.time()
    try:
        for _ in range(60):
            time.sleep(0.02)
            while True:
                try:
                    store.pushpull("w", torch.ones(3), out=out)
                    break
                except (kvstore.Timeout, kvstore.Unknown):
                    continue
        print(out.tolist(), time.time() - begun > 2.5)
    except kvstore.KVError as error:
        print(type(error).__name__, error)
    if store.rank == 0:
        stopper.wait()
"""


@STOOD
def test_processes_that_are_all_stopped_go_on(tmp_path):
    (tmp_path / "work.py").write_text(STOPPING)
    one, other = forked(tmp_path / "work.py", 2)
    assert one == ["4 processes", *other] and other == [f"{[120.0] * 3} True"]


# ---------------------------------------------------------------- workers and servers in processes of their own


SCRIPT = """
import os, sys, time, torch
from d2lps import kvstore

def say(*what):  # in one piece: the others write to the same pipe
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

store = kvstore.create("dist_sync", servers=2, joining=60.0, deadline=2.0)
say("pids", *[server.process.pid for server in store.started])
store.init("w", torch.zeros(400_000))
out = torch.empty(400_000)
{body}
store.close()
"""


def said(script, n):
    """Return the lines of each of ``n`` workers, of which no server is left."""
    lines = forked(script, n)
    pids = [int(pid) for some in lines for line in some if line.startswith("pids") for pid in line.split()[1:]]
    assert len(pids) == 2 and gone(pids), "a server is left behind"
    return [[line for line in some if not line.startswith("pids")] for some in lines]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.fault("F2", "server ended by SIGTERM, without replicas")),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.fault("F4", "server stopped for longer than the deadline")),
    ],
)
def test_lost_server_process_is_named_by_every_worker(tmp_path, how):
    script = tmp_path / "work.py"
    script.write_text(
        SCRIPT.format(
            body=textwrap.dedent(f"""
        import pathlib, signal
        store.pushpull("w", torch.ones(400_000), out=out)
        store.barrier()  # all have what they pulled
        time.sleep(0.3)
        if store.started:
            for server in store.started:
                if server.number == 1:
                    os.kill(server.process.pid, {int(how)})
        time.sleep(0.3)
        try:
            store.pushpull("w", torch.ones(400_000), out=out)
        except kvstore.KVError as error:
            say(type(error).__name__, getattr(error, "servers", ()))
        if {int(how)} == {int(signal.SIGSTOP)}:  # it goes on when all have been told, or some would get their sums
            (heard := pathlib.Path({str(tmp_path)!r}, "heard")).mkdir(exist_ok=True)
            (heard / str(store.rank)).touch()
            until = time.monotonic() + 60
            while len([*heard.iterdir()]) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            for server in store.started:
                os.kill(server.process.pid, signal.SIGCONT)
    """)
        )
    )
    assert said(script, 2) == [["ServerLost (1,)"]] * 2


@pytest.mark.fault("F1", "worker process killed, with a server of its own")
def test_killed_worker_process_takes_no_server_with_it(tmp_path):
    """Worker 1 has started a server, which the others still need."""
    script = tmp_path / "work.py"
    script.write_text(
        SCRIPT.replace("deadline=2.0", "deadline=2.0, lost='drop'").format(
            body=textwrap.dedent("""
        store.barrier()
        if store.rank == 1:
            os.kill(os.getpid(), 9)
        store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=out)
        say(out.unique().tolist())
    """)
        )
    )
    assert said(script, 3) == [["[17.0]"], [], ["[17.0]"]]


@pytest.mark.fault("F10", "a worker that cannot reach the servers as the store is made")
def test_all_workers_fail_if_one_cannot_reach_the_servers(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        textwrap.dedent("""
        import os, time
        from d2lps import kvstore
        from d2lps.kvstore import launch
        from d2lps.kvstore.server import process

        class Client(launch.ServerClient):
            def __init__(self, number, address, rank, **more):
                super().__init__(number, address + ".gone" if (number, rank) == (1, 1) else address, rank, **more)

        class ServerProcess(process.ServerProcess):
            def __init__(self, *told):
                super().__init__(*told)
                print("pid", self.process.pid, flush=True)

        launch.ServerClient, launch.ServerProcess = Client, ServerProcess
        try:
            kvstore.create("dist_sync", servers=2, joining=60.0, deadline=2.0)
        except kvstore.KVError as error:
            print(type(error).__name__, error)
    """)
    )
    lines = forked(script, 2)
    assert gone([int(some[0].split()[1]) for some in lines]), "a server is left behind"
    assert lines[0][1].startswith("Refused worker 1 could not connect: server 1 at ")
    assert lines[1][1].startswith("ServerLost server 1 at ")


# ---------------------------------------------------------------- workers meet to make a store


MAKING = """
import os, signal, sys, time
from pathlib import Path
from d2lps import kvstore
from d2lps.kvstore import launch

def until_others_end():
    while not all(Path(sys.argv[0]).with_suffix(f".{{rank}}.txt").stat().st_size for rank in (0, 2)):
        time.sleep(0.05)

end, start = lambda *_: os.kill(os.getpid(), {signal}), launch._start_servers
if os.environ["RANK"] == "1":
    {where} = {how}
try:
    with kvstore.create("dist_sync", servers=2, {options}):
        print("it was made")
except kvstore.KVError as error:
    print(type(error).__name__, getattr(error, "ranks", ()), error, flush=True)
"""
PHASES = {  # where worker 1 ends, what it does there, and deadlines: a long one is not to be waited for
    "before they meet": ("launch.meet", "end", "deadline=2.0, joining=2.0"),
    "when all are there": ("launch._start_servers", "end", "deadline=600.0"),
    "when its servers listen": (
        "launch._start_servers",
        "lambda *told: (start(*told), end())",
        "deadline=2.0, joining=600.0",
    ),
}


def making(folder, where, how, options, number=9):
    """Return the last line of each of three workers."""
    script = folder / "work.py"
    script.write_text(textwrap.dedent(MAKING).format(where=where, how=how, options=options, signal=number))
    return [lines[-1] if lines else None for lines in forked(script, 3)]


@pytest.mark.fault("F1", "worker process killed as the store is made")
@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_that_is_killed_as_the_store_is_made_is_named_by_all(tmp_path, phase):
    first, second, third = making(tmp_path, *PHASES[phase])
    assert second is None
    for said in (first, third):
        assert re.match(r"WorkerLost \(1,\) rank 1 (died|gave no sign of life for 2 s)", said), said


@pytest.mark.fault("F3", "a worker that is stopped as the store is made")
def test_no_worker_waits_longer_than_for_joining(tmp_path):
    first, _, third = making(tmp_path, "launch._start_servers", "lambda *_: (until_others_end(), end())", "joining=3.0")
    for said in (first, third):  # not that it has died, as it does later
        assert said.startswith("WorkerLost (1,) rank 1 gave no sign of life"), said


@pytest.mark.fault("F11", "a second process of a rank")
def test_second_process_of_a_rank_is_refused():
    servers = tables()
    first = store(servers, 0)
    with pytest.raises(Refused, match="there is a worker 0 already: each rank is one process"):
        ServerClient(0, servers[0].address, 0, deadline=DEADLINE, incarnation="another")
    first.close()
    servers[0].close()


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Refused, match="cannot listen at .*in use"):
        Server(SlotStore("dist_sync", 1), other.getsockname(), secret=SECRET)


def test_a_server_that_is_not_there_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(ServerLost, match=f"server 3 at 127.0.0.1:{port} cannot be reached"):
        ServerClient(3, ("127.0.0.1", port), 0, secret=SECRET, deadline=0.5)


@pytest.mark.fault("F15", "a host whose name is not found")
def test_a_name_that_is_not_found_is_a_server_lost(monkeypatch, recovery):
    def fails(self, address):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", fails)
    with recovery(), pytest.raises(ServerLost, match="server 2 at nowhere:1 .*Name or service not known"):
        ServerClient(2, ("nowhere", 1), 0, secret=SECRET, deadline=0.5)


def test_a_lost_rendezvous_is_an_error_of_the_store(monkeypatch):
    class Gone:
        """A store of torch whose process ends after the first question."""

        def add(self, *_):
            return 0

        def set(self, *_):
            raise RuntimeError("connection reset")

        check = compare_set = set

    meeting = Meeting(Gone(), "test", 1, 2, 1.0, 0)
    with pytest.raises(KVError, match="rank 0, and with it the store"):
        meeting.join({})
    monkeypatch.setattr(Rendezvous, "close", lambda self: self._thread.end())
    meeting.close()


def test_servers_listen_where_this_host_reaches_the_rendezvous(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    for address in ("127.0.0.1", "::1"):
        monkeypatch.setenv("MASTER_ADDR", address)
        assert launch.own_address() == address
    monkeypatch.setenv("MASTER_ADDR", "nosuch.invalid")
    with pytest.raises(Refused, match="MASTER_ADDR nosuch.invalid cannot be reached from this host"):
        launch.own_address()

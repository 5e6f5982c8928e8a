"""A store survives bad connections, lost and stopped workers and lost servers. Every call ends in time."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest
import torch
from helpers import breaking
from helpers.breaking import DEADLINE, SECRET, Beside, Frames, Proxy, closing, gone, store, tables
from helpers.scripts import forked, torchrun
from helpers.stores import each, refuse_first_push

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, ServerLost, Timeout, Unknown, WorkerLost
from d2lps.kvstore.server.server import Server
from d2lps.kvstore.server.session import WorkerSession
from d2lps.kvstore.server.store import SlotStore
from d2lps.kvstore.wire import PUSHES, Op
from d2lps.kvstore.worker.client import Request, ServerClient

nothing_left, recovery = breaking.nothing_left, breaking.recovery  # fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.fault("F6", "connections cut and stalled in the middle of a frame")
@pytest.mark.fault("F7", "bits flipped on the way")
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("seed", range(8))
def test_lines_that_break_count_every_push_once(kind, seed):
    servers = tables(kind, servers=2)
    proxies = [
        [Proxy(server.address, 100 * seed + 10 * rank + server.number) for server in servers] for rank in range(2)
    ]
    stores = [
        store(servers, rank, addresses={i: p.here for i, p in enumerate(proxies[rank])}, kind=kind) for rank in range(2)
    ]

    def work(mine):
        mine.init("w", torch.zeros(5000, dtype=torch.float64))
        if kind != "dist_sync":
            mine.set_optimizer("sgd", lr=-1.0)
        seen = torch.empty(5000, dtype=torch.float64)
        for _ in range(10):
            mine.push("w", torch.full((5000,), 64.0**mine.rank, dtype=torch.float64))
            mine.pull("w", out=seen)
            if kind == "dist_sync":
                assert seen.unique().tolist() == [65.0]
        mine.barrier()
        mine.pull("w", out=seen)
        return seen.unique().tolist()

    try:
        assert each(stores, work) == [[65.0 if kind == "dist_sync" else 650.0]] * 2
        assert sum(len(proxy.done) for mine in proxies for proxy in mine) > 0
    finally:
        for mine in stores:
            mine.close()
        for server in servers:
            server.close()
        for mine in proxies:
            for proxy in mine:
                proxy.close()


@pytest.mark.fault("F7", "bits flipped on the way, with a secret")
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_are_noticed_by_their_codes(seed):
    (server,) = tables(workers=1, secret=SECRET)
    with closing(Proxy(server.address, seed, faults=5, kinds=("flip",))) as (proxy,):
        mine = store([server], 0, 1, {0: proxy.here}, secret=SECRET)
        with closing(mine, server):
            assert rounds(mine, 10) == [[4.0]] * 10 and proxy.done


def rounds(mine, many=5, elements=5000):
    """Return the values that a worker sees in so many rounds."""
    mine.init("w", torch.zeros(elements, dtype=torch.float64))
    out, seen = torch.empty(elements, dtype=torch.float64), []
    for _ in range(many):
        mine.pushpull("w", torch.full((elements,), 4.0 ** (mine.rank + 1), dtype=torch.float64), out=out)
        seen.append(out.unique().tolist())
    return seen


# ---------------------------------------------------------------- messages lost, twice, late, out of order


class Twice:
    """Every frame goes on twice; with a secret three of them do, since each costs a connection."""

    def __init__(self, coded):
        self.left = 3 if coded else 10_000

    def __call__(self, op, frame):
        if op in (Op.HELLO, Op.PROOF, Op.ALIVE) or not self.left:
            return [frame]
        self.left -= 1
        return [frame, frame]


class Again(Twice):
    """A push of a round before comes again, before each frame."""

    before = None

    def __call__(self, op, frame):
        found = [self.before, frame] if self.before and self.left else [frame]
        self.left -= len(found) - 1
        self.before = frame if op in PUSHES else self.before
        return found


class Late(Twice):
    """Each frame takes its time, by chance up to 20 ms."""

    chance = random.Random(1)

    def __call__(self, op, frame):
        self.left -= 1
        time.sleep(self.chance.random() / 50)
        return [frame]


class Turned(Twice):
    """What is asked for after a push comes before it."""

    kept = None

    def __call__(self, op, frame):
        if op in PUSHES and self.left and not self.kept:
            self.left -= 1
            self.kept = frame
            return []
        found, self.kept = [frame, self.kept] if self.kept else [frame], None
        return found


@pytest.mark.fault("F6", "messages twice, again later, delayed, out of order; with and without a secret")
@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("change", [Twice, Again, Late, Turned])
def test_repeated_late_and_reordered_pushes_count_once(change, coded):
    secret = SECRET if coded else b""
    (server,) = tables(secret=secret)
    changes = [change(coded), change(coded)]
    between = [Frames(server.address, each, coded=coded) for each in changes]
    stores = [store([server], rank, addresses={0: between[rank].here}, secret=secret) for rank in range(2)]
    with closing(*stores, server, *between):
        assert each(stores, rounds) == [[[20.0]] * 5] * 2
        assert all(one.left < change(coded).left for one in changes), "the fault was not there"


@pytest.mark.fault("F6", "messages twice, where each push is applied at once")
def test_a_push_that_comes_twice_counts_once_where_it_is_applied_at_once():
    """Asynchronously, so that one which counts twice cannot be missed."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.set_optimizer("sgd", lr=-1.0)
        for _ in range(3):
            mine.push("w", torch.full((3,), 4.0**mine.rank))
        mine.barrier()
        mine.pull("w", out=(out := torch.empty(3)))
        return out.tolist()

    (server,) = tables("dist_async")
    between = [Frames(server.address, lambda op, frame: [frame] * (2 if op == Op.PUSH else 1)) for _ in range(2)]
    stores = [store([server], rank, addresses={0: between[rank].here}, kind="dist_async") for rank in range(2)]
    with closing(*stores, server, *between):
        assert each(stores, work) == [[15.0] * 3] * 2


@pytest.mark.fault("F6", "a push lost, its answer lost")
@pytest.mark.parametrize("way, lost", [("up", Op.PUSH), ("down", Op.OK)])
def test_a_push_that_is_lost_is_unknown_and_counts_once_when_it_is_pushed_again(way, lost, recovery):
    (server,) = tables(workers=1)
    asked = []

    def change(op, frame):
        if armed and op == lost and not asked:
            asked.append(op)
            return []
        return [frame]

    armed = []
    with closing(Frames(server.address, change, way)) as (between,):
        mine = store([server], 0, 1, {0: between.here})
        with closing(mine, server):
            mine.init("w", torch.zeros(3))
            armed.append(True)
            with recovery(), pytest.raises(Unknown, match="push the same again, and it counts once"):
                mine.push("w", torch.ones(3))
            mine.push("w", torch.ones(3))
            mine.pull("w", out=(out := torch.empty(3)))
            assert out.tolist() == [1.0] * 3 and server.store.shards[0].rounds == [1] and asked


@pytest.mark.fault("F6", "a push and pull in one lost, its answer lost")
@pytest.mark.parametrize("way, lost", [("up", Op.PUSHPULL), ("down", Op.DATA)])
@pytest.mark.parametrize("waits", [False, True])
def test_a_confirmed_push_stays_known_after_later_losses(way, lost, waits, recovery):
    """``waits``: the other worker pushes later, so that this one first hears that its push is counted."""
    (server,) = tables()
    asked, armed = [], []

    def change(op, frame):
        if armed and op == lost and not asked:
            asked.append(op)
            return []
        return [frame]

    with closing(Frames(server.address, change, way)) as (between,):
        stores = [store([server], 0, addresses={0: between.here}), store([server], 1)]

        def work(mine):
            out = torch.empty(3)
            mine.init("w", torch.zeros(3))
            if mine.rank:
                time.sleep(0.5 * waits)
                mine.push("w", torch.full((3,), 4.0))
                return [5.0]
            time.sleep(0.5 * (not waits))
            armed.append(True)
            known = waits and way == "down"
            with recovery(), pytest.raises(Timeout if known else Unknown) as error:
                mine.pushpull("w", torch.ones(3), out=out)
            assert type(error.value) is (Timeout if known else Unknown) and asked
            if known:
                mine.pull("w", out=out)
            else:
                mine.pushpull("w", torch.ones(3), out=out)
            return out.unique().tolist()

        with closing(*stores, server):
            assert each(stores, work) == [[5.0]] * 2
            assert server.store.shards[0].rounds == [1, 1]


@pytest.mark.fault("F10", "a push and pull in one that is refused")
@pytest.mark.parametrize("elements", [3, 400_003])
def test_a_refused_push_fails_at_once_and_may_be_repeated(elements, recovery, monkeypatch):
    refuse_first_push(monkeypatch, rank=1)

    def work(mine):
        out = torch.empty(elements)
        mine.init("w", torch.zeros(elements))
        if mine.rank:
            with recovery(), pytest.raises(Refused, match="the first push of worker 1"):
                mine.pushpull("w", torch.full((elements,), 4.0), out=out)
        mine.pushpull("w", torch.full((elements,), 4.0**mine.rank), out=out)
        return out.unique().tolist()

    with kvstore.cluster("dist_sync", 2, 2, deadline=DEADLINE) as stores:
        assert each(stores, work) == [[5.0]] * 2  # the others have not waited in vain


# ---------------------------------------------------------------- lost workers


@pytest.mark.fault("F1", "worker gone, idle or after its push")
@pytest.mark.parametrize("lost", ["fail", "drop"])
@pytest.mark.parametrize("before", ["idle", "pushed"])
def test_a_worker_that_hangs_up(lost, before, recovery):
    servers = tables(workers=3, lost=lost)
    stores = [store(servers, rank, 3) for rank in range(3)]

    def work(mine):
        mine.init("w", torch.zeros(3))
        if mine.rank == 1:
            if before == "pushed":
                mine.push("w", torch.full((3,), 4.0))
            mine.clients[0]._open = False  # as if it were killed: no goodbye, and it does not come back
            mine.clients[0]._channel.close()
            return "gone"
        begin, out = time.monotonic(), torch.empty(3)
        try:
            with recovery():
                mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=out)
        finally:
            assert time.monotonic() - begin < 2 * DEADLINE
        return out.tolist()

    first, _, third = each(stores, work)
    if lost == "fail" and before == "idle":
        for error in (first, third):
            assert isinstance(error, WorkerLost) and error.ranks == (1,) and "worker 1 is lost" in str(error)
    else:
        assert first == third == [21.0 if before == "pushed" else 17.0] * 3
    for mine in stores:
        mine.close()
    servers[0].close()


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


@pytest.mark.fault("F1", "worker killed between two rounds")
@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_a_worker_of_a_cluster_that_is_killed_says_no_goodbye(lost):
    def work(mine):
        mine.init("w", torch.zeros(3))
        if mine.rank == 1:
            stores.kill_worker(1)
            with pytest.raises(KVError):
                mine.push("w", torch.ones(3))
            return "killed"
        try:
            mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
            return out.tolist()
        except WorkerLost as error:
            return str(error)

    with kvstore.cluster("dist_sync", 3, 2, lost=lost, deadline=DEADLINE) as stores:
        seen = "worker 1 is lost (the connection was closed)" if lost == "fail" else [2.0] * 3
        assert each(stores, work) == [seen, "killed", seen]


@pytest.mark.fault("F1", "worker killed in a barrier")
@pytest.mark.parametrize("lost", ["fail", "drop"])
def test_a_worker_that_dies_in_a_barrier(lost, recovery):
    (server,) = tables(workers=3, lost=lost)
    stores = [store([server], rank, 3) for rank in range(3)]

    def work(mine):
        if mine.rank == 1:
            mine.clients[0].ask(Request(Op.BARRIER, metadata={"round": 1}))
            time.sleep(0.2)
            mine.clients[0]._open = False
            mine.clients[0]._channel.close()
            return "killed"
        if mine.rank == 2:
            time.sleep(1.8)  # it is lost by then
        with recovery():
            try:
                mine.barrier()
                return "passed"
            except WorkerLost as error:
                return error.ranks

    with closing(*stores, server):
        said = each(stores, work)
        assert said == [(1,) if lost == "fail" else "passed", "killed", (1,) if lost == "fail" else "passed"]


@pytest.mark.fault("F4", "worker that is silent, and the others go on without it")
@pytest.mark.slow
@pytest.mark.parametrize("call", ["pushpull", "barrier"])
def test_a_wait_for_a_silent_worker_ends_without_timeout(call, recovery):
    servers = tables(lost="drop")
    stores = [store(servers, rank) for rank in range(2)]
    each(stores, lambda mine: mine.init("w", torch.zeros(3)))
    with stores[1].clients[0]._sending:  # as if it were stopped: its connection stands, and it says nothing
        with recovery():
            if call == "barrier":
                stores[0].barrier()
            stores[0].pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
        assert out.tolist() == [1.0] * 3
    with closing(*stores, *servers):
        assert servers[0].store.live == {0}


@pytest.mark.fault("F4", "worker that is silent")
def test_a_worker_that_is_silent_is_lost_within_twice_the_deadline(recovery):
    servers = tables()
    stores = [store(servers, rank) for rank in range(2)]

    def work(mine):
        mine.init("w", torch.zeros(3))
        if mine.rank == 1:
            mine.clients[0]._sending.acquire()  # as if it were stopped: its connection stands, and it says nothing
            return "silent"
        begin = time.monotonic()
        with recovery(), pytest.raises((WorkerLost, Timeout), match="worker 1"):
            mine.pushpull("w", torch.ones(3))
        assert time.monotonic() - begin < 2 * DEADLINE
        time.sleep(max(0.0, 1.5 * DEADLINE - (time.monotonic() - begin)))
        with pytest.raises(WorkerLost, match=r"worker 1 is lost \(it has sent nothing for"):
            mine.pull("w", out=torch.empty(3))

    assert each(stores, work) == [None, "silent"]
    stores[1].clients[0]._sending.release()
    for mine in stores:
        mine.close()
    servers[0].close()


@pytest.mark.fault("F4", "worker that comes back after it was lost")
def test_a_dropped_worker_that_returns_changes_nothing(recovery):
    (server,) = tables(lost="drop")
    stores = [store([server], rank) for rank in range(2)]

    def work(mine):
        mine.init("w", torch.zeros(3))
        out = torch.empty(3)
        if mine.rank:
            with mine.clients[0]._sending:  # as if it were stopped
                time.sleep(1.5 * DEADLINE)
            with recovery(), pytest.raises(WorkerLost, match="worker 1 counts as lost here"):
                mine.push("w", torch.full((3,), 4.0))
            return "sent away"
        for _ in range(3):
            with suppress(Timeout):  # until the other one is lost
                mine.pushpull("w", torch.ones(3), out=out)
        time.sleep(DEADLINE)
        mine.pull("w", out=out)
        return out.tolist()

    with closing(*stores, server):
        assert each(stores, work) == [[1.0] * 3, "sent away"]


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


@pytest.mark.fault("F11", "a second process of a rank, another run")
def test_two_of_one_rank_are_not_both_let_in():
    servers = tables()
    first = store(servers, 0)
    with pytest.raises(Refused, match="there is a worker 0 already: each rank is one process"):
        ServerClient(0, servers[0].address, 0, deadline=DEADLINE, incarnation="another")
    with pytest.raises(Refused, match="there is no worker 2: they are 0 to 1"):
        ServerClient(0, servers[0].address, 2, deadline=DEADLINE)
    with pytest.raises(Refused, match="worker 1 belongs to run 'other', this server to ''"):
        ServerClient(0, servers[0].address, 1, deadline=DEADLINE, run="other")
    first.close()
    servers[0].close()


# ---------------------------------------------------------------- lost servers, under torchrun


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


def workers(body, folder, n=2):
    """Return the output of ``n`` workers under torchrun, by line, and the exit status."""
    script = folder / "work.py"
    script.write_text(SCRIPT.format(body=textwrap.dedent(body)))
    done = torchrun(script, n)
    pids = [int(pid) for line in done.stdout.splitlines() if line.startswith("pids") for pid in line.split()[1:]]
    assert gone(pids), "a server is left behind"
    return sorted(line for line in done.stdout.splitlines() if not line.startswith("pids")), done


def test_workers_under_torchrun_find_their_servers(tmp_path):
    said, done = workers(
        """
        for _ in range(3):
            store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=out)
        say(store.rank, out.unique().tolist(), len(store.clients))
    """,
        tmp_path,
        n=3,
    )
    assert done.returncode == 0, done.stderr
    assert said == [f"{rank} [21.0] 2" for rank in range(3)]


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGSTOP, marks=pytest.mark.fault("F4", "server stopped for longer than the deadline")),
    ],
)
def test_a_server_that_is_lost_is_named_by_every_worker(tmp_path, how):
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
        begin = time.monotonic()
        try:
            store.pushpull("w", torch.ones(400_000), out=out)
        except kvstore.KVError as error:
            say(type(error).__name__, getattr(error, "servers", ()), time.monotonic() - begin < 4.5)
        if {int(how)} == {int(signal.SIGSTOP)}:  # it goes on when all have been told, or some would get their sums
            (heard := pathlib.Path({str(tmp_path)!r}, "heard")).mkdir(exist_ok=True)
            (heard / str(store.rank)).touch()
            until = time.monotonic() + 10
            while len([*heard.iterdir()]) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            for server in store.started:
                os.kill(server.process.pid, signal.SIGCONT)
    """)
        )
    )
    said = forked(script, 2)
    pids = [int(pid) for lines in said for line in lines if line.startswith("pids") for pid in line.split()[1:]]
    assert [lines[1:] for lines in said] == [["ServerLost (1,) True"]] * 2
    assert len(pids) == 2 and gone(pids), "a server is left behind"


@pytest.mark.fault("F1", "worker process killed, with and without a server of its own")
@pytest.mark.parametrize("lost", ["fail", "drop"])
@pytest.mark.parametrize("owner", [True, False])
def test_a_worker_that_is_killed(tmp_path, lost, owner):
    """``owner``: it is one that had started a server, which the others still need."""
    victim = 1 if owner else 2
    script = tmp_path / "work.py"
    script.write_text(
        SCRIPT.replace("deadline=2.0", f"deadline=2.0, lost={lost!r}").format(
            body=textwrap.dedent(f"""
        store.barrier()
        if store.rank == {victim}:
            os.kill(os.getpid(), 9)
        try:
            store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=out)
            say(out.unique().tolist())
        except kvstore.WorkerLost as error:
            say(error.ranks)
    """)
        )
    )
    said = forked(script, 3)
    pids = [int(pid) for lines in said for line in lines if line.startswith("pids") for pid in line.split()[1:]]
    want = f"({victim},)" if lost == "fail" else f"[{21.0 - 4**victim}]"
    assert [lines[1:] for lines in said] == [[] if rank == victim else [want] for rank in range(3)]
    assert len(pids) == 2 and gone(pids), "a server is left behind"


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

        launch.ServerClient, launch.ServerProcess, begin = Client, ServerProcess, time.monotonic()
        try:
            kvstore.create("dist_sync", servers=2, joining=60.0, deadline=2.0)
        except kvstore.KVError as error:
            print(type(error).__name__, error, time.monotonic() - begin < 20)
    """)
    )
    said = forked(script, 2)
    assert gone([int(lines[0].split()[1]) for lines in said]), "a server is left behind"
    assert said[0][1].startswith("Refused worker 1 could not connect: server 1 at ") and said[0][1].endswith("True")
    assert said[1][1].startswith("ServerLost server 1 at ") and said[1][1].endswith("True")


def test_a_single_process_is_refused_with_the_way_to_start_several():
    code = "from d2lps import kvstore; kvstore.create('dist_sync')"
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)
    assert "torchrun --local-addr=127.0.0.1 --nproc-per-node=4" in done.stderr


# ---------------------------------------------------------------- missing and slow workers


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Refused, match="cannot listen at .*in use"):
        Server(SlotStore("dist_sync", 1), other.getsockname(), secret=SECRET)


def test_nobody_there_is_a_server_lost():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(ServerLost, match=f"server 3 at 127.0.0.1:{port} cannot be reached"):
        ServerClient(3, ("127.0.0.1", port), 0, secret=SECRET, deadline=0.5)
    assert time.monotonic() - begin < 2


@pytest.mark.fault("F4", "worker slower than the deadline")
def test_a_push_counts_although_its_pull_came_too_late():
    """What is pushed next is another push, not the same again."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.barrier()
        out = torch.empty(3)
        if mine.rank == 1:
            time.sleep(2.5)
            mine.push("w", torch.full((3,), 4.0))
        else:
            with pytest.raises(Timeout, match="for push 1 of worker 1"):
                mine.pushpull("w", torch.full((3,), 1.0), out=out)
            time.sleep(1.0)
        mine.pushpull("w", torch.full((3,), 16.0 * 4**mine.rank), out=out)
        return out.tolist()

    with kvstore.cluster("dist_sync", 2, 1, deadline=2.0) as stores:
        assert each(stores, work) == [[80.0] * 3] * 2


@pytest.mark.fault("F4", "worker nearly as slow as the deadline")
def test_a_worker_that_waits_for_a_slow_one_is_not_lost():
    """Its second push stays in the socket for nearly the deadline, and it says nothing meanwhile."""

    def work(mine):
        mine.init("w", torch.zeros(3))
        mine.barrier()
        time.sleep(0.9 * mine.rank)
        for push in range(3):
            mine.push("w", torch.full((3,), 4.0**mine.rank))
            time.sleep(0.9 * mine.rank * (push < 2))
        mine.pull("w", out=(out := torch.empty(3)))
        return out.tolist()

    with kvstore.cluster("dist_sync", 2, 1, deadline=1.2) as stores:
        assert each(stores, work) == [[5.0] * 3] * 2


@pytest.mark.fault("F4", "worker that does not push")
def test_a_pull_that_waits_for_a_worker_says_for_whom():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:

        def work(mine):
            mine.init("w", torch.zeros(3))
            if mine.rank == 0:
                mine.pushpull("w", torch.ones(3))

        error, _ = each(stores, work)
        assert isinstance(error, KVError) and "for push 1 of worker 1" in str(error)


# ---------------------------------------------------------------- faults


NUMBERS = [10**5000, 10**400, float("inf"), float("-inf"), float("nan"), True, "0.1", None, [0.1], 1j]


@pytest.mark.fault("F10", "optimizers whose numbers are none")
@pytest.mark.parametrize("number", NUMBERS, ids=["10^5000", *map(str, NUMBERS[1:])])
@pytest.mark.parametrize("name", ["lr", "rescale_grad"])
def test_what_is_no_finite_number_is_no_number_of_an_optimizer(name, number):
    numbers = {"lr": 0.1, name: number}
    with kvstore.cluster("dist_sync", 1, 1, deadline=DEADLINE) as stores:
        for mine in (kvstore.create("local"), stores[0]):
            with pytest.raises(Refused, match=name):
                mine.set_optimizer("sgd", **numbers)
        line = stores[0].clients[0]
        if not isinstance(number, complex) and number != 10**5000:  # which are not in JSON
            said = {"rule": "sgd", "numbers": numbers}
            with pytest.raises(Refused, match=name):  # who asks without the checks of a store
                line.wait(line.ask(Request(Op.OPTIMIZER, metadata=said)), time.monotonic() + 5)
        assert rounds(stores[0], 1) == [[4.0]]


@pytest.mark.fault("F10", "rows that do not fit")
@pytest.mark.parametrize(
    "rows, shape", [([0, 1], (3, 2)), ([0, 1, 2], (2, 2)), ([], (1, 2)), ([0], (2,)), ([9], (1, 2))]
)
def test_rows_and_their_room_are_of_one_length(rows, shape):
    with kvstore.cluster("dist_sync", 1, 1, deadline=DEADLINE) as stores:
        for mine in (kvstore.create("local"), stores[0]):
            mine.init("w", torch.zeros(4, 2))
            out = torch.full(shape, 7.0)
            with pytest.raises(Refused, match="key 'w'"):
                mine.row_sparse_pull("w", out=out, row_ids=torch.tensor(rows, dtype=torch.int64))
            assert out.equal(torch.full(shape, 7.0))


ASKED = [
    ("rows wider than the world", Op.ROWS, {"part": 1, "width": 2**70, "round": 1}),
    ("rows of a part that is none", Op.ROWS, {"part": 7, "width": 1, "round": 0}),
    ("a barrier without a number", Op.BARRIER, {"round": "1"}),
    ("a name that is no text", Op.INIT, {"dtype": 0, "parts": [["\ud800", 3], [5, 5]]}),
    ("a huge number of elements", Op.INIT, {"dtype": 0, "parts": [["x", -(10**4000)]]}),
    ("a rule that is no name", Op.OPTIMIZER, {"rule": ["sgd"], "numbers": {"lr": 1}}),
    ("numbers that are none", Op.OPTIMIZER, {"rule": "sgd", "numbers": [1]}),
    ("nothing that is read", Op.READ, {"read": 5}),
    ("nothing that can be read", Op.READ, {"read": [{}]}),
    ("nothing that was read", Op.READ, {"read": [[{}, 1, 2]]}),
    ("a time that is none", Op.READ, {"read": [[1, "now", None]]}),
]


@pytest.mark.fault("F10", "requests that are wrong in a legal worker's frames")
@pytest.mark.parametrize("what, op, said", ASKED, ids=[what for what, _, _ in ASKED])
def test_what_is_asked_wrongly_is_an_error_to_its_caller_only(what, op, said):
    stores = kvstore.cluster("dist_sync", 2, 1, transport="tcp", deadline=DEADLINE)

    def work(mine):
        mine.init(["w", "empty"], [torch.zeros(3), torch.zeros(0)])
        line = mine.clients[0]
        if mine.rank:
            request = line.ask(Request(op, metadata=said, into=memoryview(bytearray(4))))
            with suppress(KVError):
                mine.pushpull("empty", torch.zeros(0))
            if op != Op.READ:
                with pytest.raises(Refused):
                    line.wait(request, time.monotonic() + DEADLINE)
        else:
            mine.pushpull("empty", torch.zeros(0))
        mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=(out := torch.empty(3)))
        return out.tolist()

    with closing(stores):
        assert each(stores, work) == [[5.0] * 3] * 2


@pytest.mark.fault("F10", "an error of the server itself in the middle of a push")
@pytest.mark.parametrize("times", [1, 10**9])
def test_a_failure_at_a_server_reaches_its_caller_alone(times, monkeypatch, recovery):
    count, left = WorkerSession._count, [times]

    def fails(self, frame):
        if self.rank == 1 and left[0]:
            left[0] -= 1
            raise ZeroDivisionError
        count(self, frame)

    def work(mine):
        mine.init("w", torch.zeros(3))
        out = torch.empty(3)
        with recovery():
            for again in (True, False):
                try:
                    mine.pushpull("w", torch.full((3,), 4.0**mine.rank), out=out)
                    return out.tolist()
                except KVError as error:
                    if mine.rank == 0 or not again:
                        return str(error)

    monkeypatch.setattr(WorkerSession, "_count", fails)
    with kvstore.cluster("dist_sync", 2, 1, deadline=DEADLINE) as stores:
        found = each(stores, work)
    if times == 1:  # it is pushed again, and counts
        assert found == [[5.0] * 3] * 2
    else:  # nobody is lost: who waits hears for whom
        assert "has waited 2 s for push 1 of worker 1" in found[0]
        assert "server 0 failed at pushpull: ZeroDivisionError" in found[1]

"""What a store survives: bad lines, lost and stopped workers, lost servers, strangers. Every call ends in time."""

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
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from test_kvstore import each
from test_kvstore_wire import head

from d2lps import kvstore
from d2lps.kvstore import KVError, Refused, ServerLost, Timeout, WorkerLost
from d2lps.kvstore.client import Line
from d2lps.kvstore.dist import DistStore
from d2lps.kvstore.placement import Placement
from d2lps.kvstore.rounds import Table
from d2lps.kvstore.server import STRANGERS, Server
from d2lps.kvstore.wire import Op

DEADLINE = 2.0


class Proxy:
    """Between a worker and its server: cuts, stalls, or flips a bit, as a seed says."""

    def __init__(self, address, seed, faults=3, fewest=200):
        self.address, self.chance, self.left = address, random.Random(seed), faults
        self.fewest, self.done, self.lock = fewest, [], threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.here = self.listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
                far.connect(self.address)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, target):
        until, kind = self._fault()
        with suppress(OSError):
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
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _fault(self):
        return self.chance.randint(self.fewest, 40_000), self.chance.choice(["cut", "flip", "stall"])


def tables(kind="dist_sync", workers=2, servers=1, **options):
    return [Server(Table(kind, workers, deadline=DEADLINE, **options), number=number) for number in range(servers)]


def store(servers, rank, workers=2, addresses=None, kind="dist_sync", **options):
    where = {server.number: server.address for server in servers} | (addresses or {})
    lines = [Line(number, address, rank, deadline=DEADLINE, **options) for number, address in where.items()]
    return DistStore(kind, rank, workers, lines, Placement(len(servers), large=1000))


@pytest.fixture
def nothing_left():
    """No thread of ours, no open socket beyond those before."""
    yield
    until = time.monotonic() + 5
    while time.monotonic() < until and any(t.name.startswith("d2lps server") for t in threading.enumerate()):
        time.sleep(0.05)
    assert [t.name for t in threading.enumerate() if t.name.startswith("d2lps server")] == []


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("seed", range(8))
def test_lines_that_break_count_every_push_once(kind, seed, nothing_left):
    servers = tables(kind, servers=2)
    proxies = [[Proxy(server.address, 100 * seed + 10 * rank + server.number) for server in servers]
               for rank in range(2)]  # fmt: skip
    stores = [store(servers, rank, addresses={i: p.here for i, p in enumerate(proxies[rank])}, kind=kind)
              for rank in range(2)]  # fmt: skip

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
                proxy.listener.close()


# ---------------------------------------------------------------- lost workers


@pytest.mark.parametrize("lost", ["fail", "drop"])
@pytest.mark.parametrize("before", ["idle", "pushed"])
def test_a_worker_that_hangs_up(lost, before, nothing_left):
    servers = tables(workers=3, lost=lost)
    stores = [store(servers, rank, 3) for rank in range(3)]

    def work(mine):
        mine.init("w", torch.zeros(3))
        if mine.rank == 1:
            if before == "pushed":
                mine.push("w", torch.full((3,), 4.0))
            mine.lines[0]._open = False  # as if it were killed: no goodbye, and it does not come back
            mine.lines[0]._channel.close()
            return "gone"
        begin, out = time.monotonic(), torch.empty(3)
        try:
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


def test_a_worker_that_is_silent_is_lost_within_twice_the_deadline(nothing_left):
    servers = tables()
    stores = [store(servers, rank) for rank in range(2)]

    def work(mine):
        mine.init("w", torch.zeros(3))
        if mine.rank == 1:
            mine.lines[0]._sending.acquire()  # as if it were stopped: its connection stands, and it says nothing
            return "silent"
        begin = time.monotonic()
        with pytest.raises((WorkerLost, Timeout), match="worker 1"):
            mine.pushpull("w", torch.ones(3))
        assert time.monotonic() - begin < 2 * DEADLINE
        time.sleep(max(0.0, 1.5 * DEADLINE - (time.monotonic() - begin)))
        with pytest.raises(WorkerLost, match=r"worker 1 is lost \(silent for"):
            mine.pull("w", out=torch.empty(3))

    assert each(stores, work) == [None, "silent"]
    stores[1].lines[0]._sending.release()
    for mine in stores:
        mine.close()
    servers[0].close()


def test_two_of_one_rank_are_not_both_let_in():
    servers = tables()
    first = store(servers, 0)
    with pytest.raises(Refused, match="there is a worker 0 already: each rank is one process"):
        Line(0, servers[0].address, 0, deadline=DEADLINE, incarnation="another")
    with pytest.raises(Refused, match="there is no worker 2: they are 0 to 1"):
        Line(0, servers[0].address, 2, deadline=DEADLINE)
    with pytest.raises(Refused, match="worker 1 belongs to run 'other', this server to ''"):
        Line(0, servers[0].address, 1, deadline=DEADLINE, run="other")
    first.close()
    servers[0].close()


# ---------------------------------------------------------------- lost servers, under torchrun


SCRIPT = """
import os, sys, time, torch
from d2lps import kvstore

def say(*what):  # in one piece: the others write to the same pipe
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

store = kvstore.create("dist_sync", servers=2, deadline=2.0)
say("pids", *[server.process.pid for server in store.started])
store.init("w", torch.zeros(400_000))
out = torch.empty(400_000)
{body}
store.close()
"""


def gone(pids, seconds=10) -> bool:
    """Whether none of these processes is there any more, or will be soon."""
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(psutil.pid_exists(pid) for pid in pids)


def workers(body, n=2, **more):
    """What ``n`` workers under torchrun say, by line, and the exit status."""
    script = Path(more.pop("folder")) / "work.py"
    script.write_text(SCRIPT.format(body=textwrap.dedent(body)))
    ask = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={n}", "--rdzv-backend=c10d",
           "--rdzv-endpoint=127.0.0.1:0", str(script)]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(ask, capture_output=True, text=True, timeout=120, env=environment)
    pids = [int(pid) for line in done.stdout.splitlines() if line.startswith("pids") for pid in line.split()[1:]]
    assert gone(pids), "a server is left behind"
    return sorted(line for line in done.stdout.splitlines() if not line.startswith("pids")), done


def test_workers_under_torchrun_find_their_servers(tmp_path):
    said, done = workers("""
        for _ in range(3):
            store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=out)
        say(store.rank, out.unique().tolist(), len(store.lines))
    """, n=3, folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said == [f"{rank} [21.0] 2" for rank in range(3)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost_is_named_by_every_worker(tmp_path, how):
    said, done = workers(f"""
        import signal
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
        if {int(how)} == {int(signal.SIGSTOP)} and store.started:
            for server in store.started:
                os.kill(server.process.pid, signal.SIGCONT)
    """, folder=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said == ["ServerLost (1,) True"] * 2, (said, done.stderr)


@pytest.mark.parametrize("lost", ["fail", "drop"])
@pytest.mark.parametrize("owner", [True, False])
def test_a_worker_that_is_killed(tmp_path, lost, owner):
    """``owner``: it is one that had started a server, which the others still need."""
    victim, meeting = 1 if owner else 2, dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    script = tmp_path / "work.py"
    script.write_text(SCRIPT.replace("deadline=2.0", f"deadline=2.0, lost={lost!r}").format(body=textwrap.dedent(f"""
        store.barrier()
        if store.rank == {victim}:
            os.kill(os.getpid(), 9)
        try:
            store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=out)
            say(out.unique().tolist())
        except kvstore.WorkerLost as error:
            say(error.ranks)
    """)))
    usual = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port), "OMP_NUM_THREADS": "1",
             "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
    running = [subprocess.Popen([sys.executable, str(script)], env=os.environ | usual | {"RANK": str(rank)},
                                stdout=subprocess.PIPE, text=True) for rank in range(3)]  # fmt: skip
    said = [process.communicate(timeout=60)[0].splitlines() for process in running]
    pids = [int(pid) for lines in said for line in lines if line.startswith("pids") for pid in line.split()[1:]]
    want = f"({victim},)" if lost == "fail" else f"[{21.0 - 4**victim}]"
    assert [lines[1:] for lines in said] == [[] if rank == victim else [want] for rank in range(3)]
    assert len(pids) == 2 and gone(pids), "a server is left behind"


def test_who_runs_alone_hears_how_to_start_several():
    code = "from d2lps import kvstore; kvstore.create('dist_sync')"
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)
    assert "torchrun --nproc-per-node=4" in done.stderr


# ---------------------------------------------------------------- strangers


def test_strangers_are_sent_away_and_the_others_are_served(nothing_left):
    servers = tables(workers=1)
    mine = store(servers, 0, 1)
    mine.init("w", torch.zeros(3))
    noise = [b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), head(op=Op.STATE), head(op=Op.HELLO, table=4000), b"d2kv"]
    for data in noise:
        with socket.create_connection(servers[0].address) as stranger, suppress(OSError):
            stranger.sendall(data)
    slow = [socket.create_connection(servers[0].address) for _ in range(3 * STRANGERS)]
    for one in slow:
        with suppress(OSError):
            one.sendall(b"d")
    mine.pushpull("w", torch.ones(3), out=(out := torch.empty(3)))
    assert out.tolist() == [1.0] * 3 and servers[0]._strangers <= STRANGERS
    until = time.monotonic() + 8
    while servers[0]._strangers and time.monotonic() < until:
        time.sleep(0.1)
    assert servers[0]._strangers == 0
    for one in slow:
        one.close()
    mine.close()
    servers[0].close()


@pytest.mark.parametrize("op", [Op.STATE, Op.RESTORE, Op.STATUS, Op.HELLO, Op.WELCOME])
def test_a_worker_may_not_command_a_server(op):
    from d2lps.kvstore.client import Request

    servers = tables(workers=1)
    mine = store(servers, 0, 1)
    with pytest.raises(Refused, match=f"a worker may not ask a server for {op.name}"):
        mine.lines[0].wait(mine.lines[0].ask(Request(op)), time.monotonic() + 5)
    mine.init("w", torch.zeros(3))
    mine.close()
    servers[0].close()


def test_an_address_that_others_reach_needs_a_secret():
    with pytest.raises(Refused, match="a server at 0.0.0.0 can be reached from other hosts: put a secret"):
        Server(Table("dist_sync", 1), ("0.0.0.0", 0))
    with pytest.raises(Refused, match="is on another host: the secret of the run"):
        Line(0, ("192.0.2.1", 1), 0, deadline=0.2)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Refused, match="cannot listen at .*in use"):
        Server(Table("dist_sync", 1), other.getsockname())


def test_nobody_there_is_a_server_lost():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(ServerLost, match=f"server 3 at 127.0.0.1:{port} cannot be reached"):
        Line(3, ("127.0.0.1", port), 0, deadline=0.5)
    assert time.monotonic() - begin < 2


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


def test_who_waits_for_a_slow_worker_is_not_lost():
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


def test_a_pull_that_waits_for_a_worker_says_for_whom():
    with kvstore.cluster("dist_sync", 2, 1, deadline=1.0) as stores:
        def work(mine):
            mine.init("w", torch.zeros(3))
            if mine.rank == 0:
                mine.pushpull("w", torch.ones(3))

        error, _ = each(stores, work)
        assert isinstance(error, KVError) and "for push 1 of worker 1" in str(error)

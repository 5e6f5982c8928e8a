"""The key–value store on this machine: against MXNet's ps-lite, against our ring, with a secret, and its memory.

P4      MXNet dist_sync ÷ ours, push and pull of 40 MB in 4 keys: over TCP, and on one host (ours over Unix sockets,
        MXNet over the better of TCP and its own local sockets). MXNet pushes without the copy that a program needs
        whose gradients must not change, and with the best settings that were found right before: they are printed
small   the same with 10 000 keys of 100 floats, in operations (a push or a pull of one key by one worker) per second
P5      round of the store ÷ ring over sockets, 4 workers, 40 MB
P14     push and pull with a code on every frame ÷ with a secret that is only proved as they meet (on the loopback
        interface), over a shaped link, in a network namespace of its own
held    the most that a server process held, beyond what it held before the first key, ÷ the bytes of its values
"""

import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from benchmarks.common import HERE, ROOT, WARM, Run, busy, ceilings, divided, in_turns, on_ranks, processor_time
from benchmarks.common import timed as seconds_of
from d2lps import Processes, algorithms, kvstore
from d2lps.algorithms.placement import Placement
from d2lps.carriers.execute import compile
from d2lps.kvstore.pslite.store import Nodes, environment, require_mxnet
from d2lps.kvstore.server.process import ServerProcess
from d2lps.kvstore.worker.client import ServerClient
from d2lps.kvstore.worker.dist import DistStore


class Sizes(NamedTuple):
    """Floats of each key, and bytes of a payload that travels over a shaped link."""

    large: list[int]
    small: list[int]
    shaped: int


FULL = Sizes([2_500_000] * 4, [100] * 10_000, 16_000_000)
TINY = Sizes([50_000] * 4, [100] * 200, 320_000)
DEADLINE = 60.0
RATES = (800, 400, 200)  # Mbit/s of both directions together: the first at which the link is the limit
BURST = 256  # KiB that pass at once
BUSY = 0.6  # share of the processors' time above which they, and not the link, are the limit
SETTINGS = {  # settings that are tried for MXNet, starting with its own defaults
    "MXNET_KVSTORE_BIGARRAY_BOUND": ("1000000", "100000", "10000000"),
    "OMP_NUM_THREADS": ("1", "2"),
    "MXNET_CPU_WORKER_NTHREADS": ("1", "2", "4"),
    "MXNET_KVSTORE_REDUCTION_NTHREADS": ("4", "1"),
    "DMLC_LOCAL": ("0", "1"),  # 1: Unix sockets
    "servers": ("same", "half", "double"),
}


# ---------------------------------------------------------------- on the ranks: ways to do a round


def opened(where: "list | None", run: str, servers: int) -> DistStore:
    """Our store; ``where``: its servers' addresses, or None for what ``create`` makes."""
    if where is None:
        return kvstore.create("dist_sync", servers=servers, deadline=DEADLINE)
    secret = os.environ["D2LPS_SECRET"].encode()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    lines = [
        ServerClient(number, tuple(address), rank, secret=secret, run=run, deadline=DEADLINE)
        for number, address in enumerate(where)
    ]
    return DistStore("dist_sync", rank, size, lines, Placement(servers))


def ours(sizes: list[int], *how):
    """(go, what is pushed, what is pulled, the store); ``how`` as in :func:`opened`."""
    store = opened(*how)
    given, found = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    keys, pushed, pulled = list(range(len(sizes))), list(given.split(sizes)), list(found.split(sizes))
    store.init(keys, pushed)
    return (lambda: store.pushpull(keys, pushed, out=pulled)), given, found, store


def theirs(sizes: list[int], cluster: list):
    """The same of MXNet's, whose arrays lie where the tensors do."""
    os.environ.update(environment("worker", int(os.environ["RANK"]), *cluster))
    import mxnet as mx

    store = mx.kv.create("dist_sync")
    given, found = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    keys = list(range(len(sizes)))
    pushed, pulled = ([mx.nd.from_numpy(part.numpy()) for part in flat.split(sizes)] for flat in (given, found))
    store.init(keys, [mx.nd.zeros((count,)) for count in sizes])

    def go() -> None:
        store.push(keys, pushed)
        store.pull(keys, out=pulled)
        mx.nd.waitall()

    go()
    return go, given, found, store


def ring(sizes: list[int]):
    """The same by all-reduce in a ring."""
    carrier, given = Processes(), torch.empty(sum(sizes))
    return compile(algorithms.ring(carrier.names), given, carrier).execute, given, given, carrier


WAYS = {"ours": ours, "theirs": theirs, "ring": ring}


def timed(one: tuple, other: tuple, pairs: int):
    """Seconds of two ways in pairs, A B B A. Each is a name of WAYS with its arguments."""
    dist.init_process_group("gloo")
    ways = [WAYS[name](*arguments) for name, *arguments in (one, other)]
    rank, size, begun = dist.get_rank(), dist.get_world_size(), []

    def fill(turn: int, which: int) -> None:
        if turn == WARM and not begun:
            begun.append(processor_time())
        ways[which][1].fill_(4.0**rank + turn % 7)

    def check(turn: int, which: int) -> None:
        want = sum(4.0**other for other in range(size)) + size * (turn % 7)
        assert bool((ways[which][2] == want).all()), "a wrong sum is no measurement"

    times = in_turns(ways[0][0], ways[1][0], pairs, before=fill, after=check)
    used = busy(begun[0])
    dist.barrier()
    for *_, store in ways:
        if isinstance(store, DistStore):
            store.close()
    return *times, used


def alone(sizes: list[int], cluster: list, rounds: int) -> float:
    """Median seconds of MXNet's, with nobody beside it."""
    dist.init_process_group("gloo")
    go, given, *_ = theirs(sizes, cluster)
    times = []
    for _ in range(3 + rounds):
        given.fill_(1.0)
        times.append(seconds_of(go))
    return statistics.median(times[3:])


def one_flow(nbytes: int, rounds: int):
    """(bytes per second of one TCP flow on loopback, seconds of a ping-pong of one byte), between two ranks."""
    dist.init_process_group("gloo")
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        port[0] = listener.getsockname()[1]
    dist.broadcast(port, 0)
    link = listener.accept()[0] if dist.get_rank() == 0 else socket.create_connection(("127.0.0.1", int(port)))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, flows, pings = memoryview(bytearray(nbytes)), [], []
    for _ in range(rounds):
        start = time.perf_counter()
        if dist.get_rank() == 0:
            link.sendall(data)
            link.recv(1)
        else:
            _fill(link, data)
            link.sendall(b"!")
        flows.append(time.perf_counter() - start)
    for _ in range(200):
        start = time.perf_counter()
        if dist.get_rank() == 0:
            link.sendall(b"!")
            link.recv(1)
        else:
            link.recv(1)
            link.sendall(b"!")
        pings.append(time.perf_counter() - start)
    return nbytes / statistics.median(flows), statistics.median(pings)


def _fill(link: socket.socket, room: memoryview) -> None:
    while room:
        room = room[link.recv_into(room) :]


def memory_held(sizes: list[int], pid: int, rule: str, *how) -> dict[str, int]:
    """Bytes that the server ``pid``, or the one that ``create`` starts, holds over 10 rounds."""
    store = opened(*how)
    pid = pid or (store.started[0].process.pid if store.started else os.getpid())
    before = _memory(pid)["VmRSS"]
    keys, given = list(range(len(sizes))), list(torch.ones(sum(sizes)).split(sizes))
    store.init(keys, given)
    if rule:
        store.set_optimizer(rule, lr=0.1)
    for _ in range(10):
        store.pushpull(keys, given, out=[torch.empty(count) for count in sizes])
    store.barrier()
    found = _memory(pid)
    store.barrier()
    store.close()
    return {"before": before, "most": found["VmHWM"], "own": found["RssAnon"], "shared": found["RssShmem"]}


def _memory(pid: int) -> dict[str, int]:
    """Bytes, by their names in /proc/PID/status."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0][:-1]: 1024 * int(line[1]) for line in lines if line[0][:3] in ("VmR", "VmH", "Rss")}


# ---------------------------------------------------------------- servers, from here


@contextmanager
def our_servers(workers: int, servers: int, host: str = "127.0.0.1"):
    """(addresses, run, process ids) of servers of ours over TCP."""
    run, started = secrets.token_hex(8), []
    options = {"kind": "dist_sync", "workers": workers, "deadline": DEADLINE}
    try:
        for number in range(servers):
            started.append(ServerProcess({"store": options, "address": host, "run": run, "number": number}, 60.0))
        yield [one.names()[one.number][2] for one in started], run, [one.process.pid for one in started]
    finally:
        for one in started:
            one.stop()


@contextmanager
def mxnet_servers(workers: int, servers: int, settings: dict):
    """The cluster that MXNet's workers join; the settings are in the environment meanwhile."""
    count = {"same": servers, "half": max(1, servers // 2), "double": 2 * servers}[settings["servers"]]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        cluster = [probe.getsockname(), workers, count]  # the scheduler takes the port that is free now
    before = dict(os.environ)
    os.environ.update({name: value for name, value in settings.items() if name != "servers"})
    if settings["DMLC_LOCAL"] == "0":
        del os.environ["DMLC_LOCAL"]
    local = {name: value for name, value in os.environ.items() if name == "DMLC_LOCAL"}
    nodes = Nodes(0, DEADLINE)
    try:
        for name, number in (("scheduler", 0), *(("server", number) for number in range(count))):
            nodes.start(name, number, environment(name, number, *cluster) | local)
        yield cluster
    finally:
        nodes.end(0.0)
        os.environ.clear()
        os.environ.update(before)


def tuned(workers: int, servers: int, sizes: list[int], rounds: int, local: bool) -> dict[str, str]:
    """The settings with which MXNet is quickest: one after the other is varied, and the best of each kept."""
    best = {name: values[0] for name, values in SETTINGS.items()}
    quickest = float("inf")
    for name, values in SETTINGS.items():
        for value in values if name != "DMLC_LOCAL" or local else values[:1]:
            tried = best | {name: value}
            if tried == best and quickest < float("inf"):
                continue
            with mxnet_servers(workers, servers, tried) as cluster:
                took = on_ranks(workers, alone, sizes, cluster, rounds)
            if took < quickest:
                best, quickest = tried, took
            print(f"       MXNet, {workers} + {servers}, {name} = {value}: {1e3 * took:.1f} ms")
    return best


# ---------------------------------------------------------------- the rows


def against_mxnet(run: Run, name: str, sizes: list[int], cases: list) -> None:
    try:
        require_mxnet()
    except kvstore.Refused as error:
        print(f"{name:6} not measured: {error}")
        return
    run.versions = {"mxnet": "1.9.1"}
    for workers, servers, tcp, aim in cases:
        settings = {what: values[0] for what, values in SETTINGS.items()}
        if not (run.untuned or run.quick):
            settings = tuned(workers, servers, sizes, 7, local=not tcp)
        print(f"       MXNet {' '.join(f'{what}={value}' for what, value in settings.items())}")
        with our_servers(workers, servers) as (where, token, _), mxnet_servers(workers, servers, settings) as cluster:
            one = ("ours", sizes, where if tcp else None, token, servers)
            mine, other, _ = on_ranks(workers, timed, one, ("theirs", sizes, cluster), pairs_of(run))
        what = f"{'TCP' if tcp else 'one host'}, {workers} workers + {servers} servers"
        times = {"ours": mine, "mxnet": other}
        operations = 2 * workers * len(sizes) if name == "small" else 0
        rates = {f"{which}_per_second": operations / statistics.median(some) for which, some in times.items()}
        rates = rates if operations else {}
        run.compare(name, what, divided(other, mine), times, aim, mxnet=settings, **rates)
        for which, rate in rates.items():
            print(f"       {which.replace('_', ' ')}: {rate:.0f} operations")


def sizes_of(run: Run) -> Sizes:
    return TINY if run.quick else FULL


def pairs_of(run: Run) -> int:
    return run.pairs or (2 if run.quick else 20)


def flow(run: Run) -> None:
    copies = (2,) if run.quick else (1, 2)
    for n, rate in zip(copies, ceilings(copies), strict=True):
        run.note(f"memory traffic of {n} copying at once, GB/s", value=rate / 1e9)
    rate, ping = on_ranks(2, one_flow, 4 * sum(sizes_of(run).large), 10)
    print(f"       one TCP flow on loopback: {rate / 1e9:.2f} GB/s, ping-pong {1e6 * ping:.0f} µs")
    run.note("TCP flow, GB/s", value=rate / 1e9)
    run.note("ping-pong, µs", value=1e6 * ping)


def p4(run: Run) -> None:
    cases = [(n, n, tcp, "≥ 2" if tcp else "≥ 5") for n in ((2,) if run.quick else (2, 4)) for tcp in (True, False)]
    against_mxnet(run, "P4", sizes_of(run).large, cases)


def small(run: Run) -> None:
    cases = [(2, 2, True, "≥ 2"), (2, 2, False, "≥ 2")]
    against_mxnet(run, "small", sizes_of(run).small, cases[:1] if run.quick else cases)


def p5(run: Run) -> None:
    large = sizes_of(run).large
    store, rings, _ = on_ranks(4, timed, ("ours", large, None, "", 4), ("ring", large), pairs_of(run))
    run.compare("P5", "store ÷ ring, 4 workers", divided(store, rings), {"store": store, "ring": rings}, "≤ 3")


def held(run: Run) -> None:
    if not Path("/proc/self/status").exists():
        print("memory not measured: this system has no /proc")
        return
    large = sizes_of(run).large
    for tcp in (True,) if run.quick else (True, False):
        for rule in ("",) if run.quick else ("", "adam"):
            if tcp:
                with our_servers(2, 1) as (where, token, pids):
                    memory = on_ranks(2, memory_held, large, pids[0], rule, where, token, 1)
            else:
                memory = on_ranks(2, memory_held, large, 0, rule, None, "", 1)
            stored = 4 * sum(large)
            ratio = (memory["most"] - memory["before"]) / stored
            what = f"server, {'TCP' if tcp else 'one host'}, {rule or 'no optimizer'}"
            print(
                f"memory {what:34} {ratio:6.2f}   before {memory['before'] / 1e6:.0f} MB, most "
                f"{memory['most'] / 1e6:.0f} MB, at the end {memory['own'] / 1e6:.0f} MB of its own and "
                f"{memory['shared'] / 1e6:.0f} MB shared; values {stored / 1e6:.0f} MB"
            )
            run.note(f"memory {what}", ratio=ratio, stored=stored, **memory)


def p14(run: Run) -> None:
    """In a network namespace of its own, where the loopback interface can be shaped and has a second address."""
    said = HERE / "measured" / f".p14-{os.getpid()}.json"
    code = "from benchmarks.kvstore import Run, inside_namespace; "
    code += f"inside_namespace({str(said)!r}, Run({run.quick}, {run.pairs}))"
    inside = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    missing = [tool for tool in ("unshare", "ip", "tc") if not shutil.which(tool)]
    try:
        if not missing and not subprocess.run(inside, cwd=ROOT).returncode:
            run.figures += json.loads(said.read_text())
            return
    finally:
        said.unlink(missing_ok=True)
    why = f"{', '.join(missing)} not installed" if missing else "the kernel allows no shaped link here (see above)"
    print(f"P14    unshaped: {why}")
    with_secret(run, own_address(), f"with a secret ÷ without, UNSHAPED ({why})")


def inside_namespace(said: str, run: Run) -> None:
    for command in ("ip link set lo up", "ip address add 10.9.0.1/32 dev lo"):
        subprocess.run(command.split(), check=True)
    Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").write_text("0")
    for rate in RATES[:1] if run.quick else RATES:
        shape = f"tc qdisc replace dev lo root tbf rate {rate}mbit burst {BURST}kb latency 500ms"
        subprocess.run(shape.split(), check=True)
        with_secret(run, "10.9.0.1", f"with a secret ÷ without, {rate} Mbit/s")
        if run.figures[-1]["busy"] <= BUSY:
            break
    Path(said).write_text(json.dumps(run.figures))


def own_address() -> "str | None":
    """An address of this machine that is not of its loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # which sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def with_secret(run: Run, host: "str | None", what: str) -> None:
    """Both over the same interface: at 127.0.0.1 nothing is coded, at another address all data are."""
    if host is None:
        print("P14    not measured: this machine has no address but that of its loopback interface")
        return
    keys = [sizes_of(run).shaped // 16] * 4
    with our_servers(2, 2) as (plain, token, _), our_servers(2, 2, host) as (covered, other, _):
        ways = ("ours", keys, covered, other, 2), ("ours", keys, plain, token, 2)
        mine, bare, used = on_ranks(2, timed, *ways, pairs_of(run))
    run.compare("P14", what, divided(mine, bare), {"secret": mine, "bare": bare}, "≤ 1.05", busy=used)
    print(f"       processors {used:.0%} busy{': they were the limit, not the link' if used > BUSY else ''}")

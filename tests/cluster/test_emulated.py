"""Several hosts on this machine: what runs on them, what slows them down, what kills them, and that nothing is left."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from helpers.ctrl_c import pressed
from helpers.waits import LIVE

from d2lps import aggregate_at, cluster, cost, hierarchical, kvstore, ring, sharded, speak
from d2lps.carriers.execute import run
from d2lps.carriers.processes import Processes
from d2lps.carriers.rendezvous import RankLost
from d2lps.cluster import ClusterError, HostLost, NoAnswer, NoEmulation, RunFailed, control, emulation
from d2lps.kvstore import Refused, Timeout
from d2lps.topology import TopologyError
from d2lps.units import UnitError, bandwidth

torch = pytest.importorskip("torch")

DEADLINE = 4.0
RANKS = [f"rank{i}" for i in range(4)]
ROOT = Path(__file__).parents[2]
mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet 1.9.1 is for Linux on x86-64")


@pytest.fixture(scope="module")
def three():
    """Three hosts with a GPU each and a server, for the tests that leave them as they are."""
    with emulated(hosts=3, gpus_per_host=1, bandwidth="200 Mbit/s", servers=1) as hosts:
        yield hosts


def emulated(**options):
    try:
        return cluster.emulated(**options)
    except NoEmulation as error:
        pytest.skip(f"system: {error}")


def me():
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK"
    return socket.gethostname(), [os.environ[name] for name in names], cluster.playing(), "torch" in sys.modules


def test_a_function_runs_on_every_host(three):
    found = three.run(me)
    assert [name for name, *_ in found] == ["host0", "host1", "host2", "server0"] == list(three.hosts)
    assert [ranks for _, ranks, *_ in found] == [[str(rank), "4", "0"] for rank in range(4)]
    assert [nodes for *_, nodes, _ in found] == [*((f"host{i}/gpu0", f"host{i}/cpu") for i in range(3)), ("server0",)]
    assert all(there for *_, there in found)
    some = three.run(me, hosts=["host1", "host0"], per_host=2)
    assert [(name, *ranks) for name, ranks, *_ in some] == [
        ("host1", "0", "4", "0"),
        ("host1", "1", "4", "1"),
        ("host0", "2", "4", "0"),
        ("host0", "3", "4", "1"),
    ]


def test_hosts_have_networks_of_their_own(three):
    def addresses():
        with socket.create_server(("0.0.0.0", 8888)):  # the same port on all
            found = {a.address for some in psutil.net_if_addrs().values() for a in some if a.family == socket.AF_INET}
            return found, socket.gethostbyname("host2"), len(os.listdir("/dev/shm"))

    for found, name in zip(three.run(addresses), three.hosts, strict=True):
        assert found == ({"127.0.0.1", three.address[name]}, three.address["host2"], 1)  # its table of names
    here = {address.address for some in psutil.net_if_addrs().values() for address in some}
    assert here.isdisjoint(three.address.values())


def test_output_of_programs_is_shown_with_their_host(three, capfd):
    ended = three.run(["sh", "-c", "echo here; echo $HOME-there >&2"], hosts=["host0", "host2"], env={"HOME": "x"})
    assert [(each.host, each.rank, each.status, each.output) for each in ended] == [
        ("host0", 0, 0, "here\nx-there\n"),
        ("host2", 1, 0, "here\nx-there\n"),
    ]
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(
        f"{host} │ {line}" for host in ("host0", "host2") for line in ("here", "x-there")
    )


def test_a_failed_program_is_named_with_its_output(three):
    with pytest.raises(RunFailed, match="server0, rank 3, ended with 3.*\nlast words") as failed:
        three.run(["sh", "-c", "[ $RANK = 3 ] && echo last words && exit 3; true"])
    assert [getattr(each, "status", None) for each in failed.value.results[:3]] == [0, 0, 0]
    with pytest.raises(RunFailed, match="signal 9"):
        three.run(["sh", "-c", "kill -9 $$"], hosts=["host0"])


def test_an_error_of_a_function_is_raised_here_with_its_traceback(three):
    def fails():
        if os.environ["RANK"] == "1":
            raise UnitError("no unit")

    with pytest.raises(UnitError, match="no unit") as failed:
        three.run(fails)
    assert "in fails" in failed.value.__notes__[0] and failed.value.__notes__[0].startswith("host1")

    speak("vi")
    try:
        with pytest.raises(UnitError, match="thiếu đơn vị"):
            three.run(bandwidth, 400, hosts=["host0"])  # it speaks as the notebook does
    finally:
        speak("en")

    def strange():
        raise type("Strange", (Exception,), {"__reduce__": lambda self: 1 / 0})("odd")

    with pytest.raises(RunFailed, match="odd"):
        three.run(strange, hosts=["host0"])
    with pytest.raises(RunFailed, match="host0, rank 0, ended with 0"):
        three.run(os._exit, 0, hosts=["host0"])  # without a word


def soon(cluster, processes, **where) -> bool:
    """Whether hosts have so many processes, once those that were killed are gone."""
    until = time.monotonic() + LIVE
    while (found := cluster.run(lambda: len(psutil.pids()), **where)) != processes and time.monotonic() < until:
        pass
    return found == processes


def test_what_does_not_end_is_ended(three):
    with pytest.raises(RunFailed, match="host1 did not finish"):
        three.run(lambda: os.environ["RANK"] == "0" or time.sleep(1000), hosts=["host0", "host1"], deadline=0.5)

    def leaves_something():
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

    three.run(leaves_something)
    assert soon(three, [3, 2, 2, 2])  # the first, the one that counts; the meeting place


def test_a_flood_of_output_is_cut_off_and_delays_no_host(three):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert three.run(lambda: print("x" * 5_000_000) or 1, hosts=["host0", "host1"]) == [1, 1]
    assert 200_000 < len(shown.getvalue()) < 800_000 and "the rest is not shown" in shown.getvalue()


def test_ctrl_c_ends_the_run_and_not_the_cluster(three):
    job = three.start(time.sleep, 1000)
    with pressed(0.5), pytest.raises(KeyboardInterrupt):
        job.results()
    assert soon(three, [3], hosts=["server0"])


def plans():
    hosts = [f"host{i}/cpu" for i in range(3)]
    inside = {f"host{i}/cpu": [f"host{i}/gpu0", f"host{i}/cpu"] for i in range(3)}
    return {
        "ring": ring(hosts),
        "sharded": sharded(hosts, chunks=2),
        "server": aggregate_at(hosts, "server0"),
        "levels": hierarchical(inside, sharded(hosts, ["server0"])),
    }


@pytest.mark.parametrize("name", plans())
def test_a_plan_is_run_and_no_faster_than_its_links(three, name):
    plan, nbytes = plans()[name], 4_000_001
    trace = three.measure(plan, nbytes, rounds=1)
    assert trace.measured and trace.plan == plan and trace.nbytes == 4_000_000
    bursts = 2 * 80 * 1024 * len(plan.steps) / 25e6
    assert trace.duration > 0.95 * cost.shared(plan, three.topology, nbytes).duration - bursts


def test_the_store_works_between_hosts(three):
    def pushes():
        with kvstore.create("dist_sync", servers=2, deadline=20.0) as store:
            value = torch.zeros(1000)
            store.init("w", value)
            store.pushpull("w", torch.full((1000,), 4.0**store.rank), out=value)
            return value[0].item()

    assert three.run(pushes, hosts=three.hosts[:3]) == [21.0] * 3


def trains(rounds):
    """With a server on each host, and a copy of it on the next one; whoever is lost, the others go on."""
    options = {"servers": 3, "replicas": 1, "lost": "drop", "deadline": DEADLINE, "joining": 60.0}
    with kvstore.create("dist_sync", placement={"large": 500}, **options) as store:
        store.init("w", torch.zeros(3000))
        seen = []
        for round_ in range(rounds):
            if round_ == 3:
                print("at it", flush=True)
            out = torch.empty(3000)
            store.pushpull("w", torch.full((3000,), 4.0**store.rank), out=out)
            seen.append(out.unique().tolist())
            time.sleep(0.02)
        return seen[0], seen[-1], [view.members for view in store.views]


@pytest.mark.fault("F2", "host killed, with a worker, and a server that has a copy on another")
def test_training_continues_after_a_host_is_killed_with_its_worker_and_server():
    """It ends as if its power were cut: no host says goodbye."""
    with emulated(hosts=3, gpus_per_host=0, bandwidth="200 Mbit/s") as hosts:
        job = begun(hosts, trains, 250)
        hosts.kill("host2")
        with pytest.raises(HostLost, match="host2 is lost") as lost:
            job.results()
        for first, last, members in lost.value.results[:2]:
            assert first == [21.0] and last == [5.0], "all elements of a key are of the same workers"
            assert members == [(0, 1), (1,), (0,)]


@mxnet
def test_the_store_of_mxnet_works_between_hosts(three):
    def pushes():
        with kvstore.create("dist_sync", engine="mxnet", servers=4, deadline=5.0) as store:
            store.init("w", torch.full((1000,), 7.0 + store.rank))  # of rank 0, also where MXNet would have another
            store.pull("w", out=(first := torch.zeros(1000)))
            store.init("wide", torch.zeros(1_200_000))  # which MXNet cuts over all servers
            store.pushpull("wide", torch.full((1_200_000,), 4.0**store.rank), out=(wide := torch.zeros(1_200_000)))
            lo, eth0 = (psutil.net_io_counters(pernic=True)[card].bytes_sent for card in ("lo", "eth0"))
            opened = [psutil.Process(pid).net_connections("tcp") for _, _, pid in store._nodes.pids()]
            listening = {place.laddr.ip for places in opened for place in places if place.status == "LISTEN"}
            return store.rank, first.unique().tolist(), wide.unique().tolist(), eth0 > lo, listening

    hosts = ["host2", "host0", "host1"]  # ranks go by this order, not by that of addresses
    for rank, host, seen in zip(range(3), hosts, three.run(pushes, hosts=hosts), strict=True):
        assert seen == (rank, [7.0], [21.0], True, {three.address[host]})
    with pytest.raises(Refused, match="DMLC_INTERFACE names no network card"):
        three.run(lambda: os.environ.pop("DMLC_INTERFACE") and pushes(), hosts=hosts)


@mxnet
def test_a_host_of_mxnet_that_is_killed_is_a_timeout():
    def pushes_for_ever():
        with kvstore.create("dist_sync", engine="mxnet", servers=2, deadline=3.0) as store:
            store.init("w", torch.zeros(1000))
            print("at it", flush=True)
            while True:
                store.pushpull("w", torch.ones(1000))

    with emulated(hosts=2, gpus_per_host=0, bandwidth="200 Mbit/s") as hosts:
        job = begun(hosts, pushes_for_ever)
        hosts.kill("host1")
        with pytest.raises(HostLost, match="host1 is lost") as lost:
            job.results()
        assert [type(each) for each in lost.value.results] == [Timeout, HostLost]


# ---------------------------------------------------------------- the order of nodes


def around_hosts(orders, nbytes):
    """Run rings through the four processes of two hosts; return the MB that the first process of each host sent out."""
    crossed, local = [], os.environ["LOCAL_RANK"] == "0"
    with Processes(deadline=30.0) as carrier:
        for order in orders:
            carrier.barrier()
            before = psutil.net_io_counters(pernic=True)["eth0"].bytes_sent
            trace = run(ring(order), torch.full((nbytes // 4,), 1.0 + carrier.rank), carrier)
            carrier.barrier()
            crossed.append((psutil.net_io_counters(pernic=True)["eth0"].bytes_sent - before) / 1e6)
    return trace.origin, cluster.playing(), crossed if local else None


def test_a_ring_reordered_by_name_crosses_the_wire_more_often():
    gpus = [f"host{i}/gpu{j}" for i in range(2) for j in range(2)]
    orders = [[names[i] for i in order] for names in (RANKS, gpus) for order in ((0, 1, 2, 3), (0, 2, 1, 3))]
    with emulated(hosts=2, gpus_per_host=2, bandwidth="400 Mbit/s") as two:
        results = two.run(around_hosts, orders, 4_000_000, per_host=2)
    assert [origin for origin, *_ in results] == ["gloo ×4"] * 4
    assert [node for _, nodes, _ in results for node in nodes if "gpu" in node] == gpus
    for crossed in (found for *_, found in results if found):
        # Each node sends 1.5 times its 4 MB to the next one: one node of a host sends to the other host, or both do.
        assert crossed == pytest.approx([6, 12] * 2, rel=0.1)


# ---------------------------------------------------------------- racks


@pytest.fixture(scope="module")
def racks():
    """Eight hosts in two racks, whose uplinks are as fast as one host."""
    with emulated(hosts=8, gpus_per_host=0, bandwidth="200 Mbit/s", racks=2, uplink="200 Mbit/s") as hosts:
        yield hosts


def sent(hosts) -> dict[str, int]:
    """Return the bytes that have entered each end of each uplink."""
    lines = Path(f"/proc/{hosts._control._switch.pid}/net/dev").read_text().splitlines()[2:]
    counters = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return {f"rack{i}-{end}": int(counters[f"rack{i}-{end}"][8]) for i in range(2) for end in ("up", "down")}


def measured(hosts, order, nbytes):
    """Return the trace of a ring through hosts, and the bytes that entered each end of each uplink meanwhile."""
    before = sent(hosts)
    trace = hosts.measure(ring([f"host{i}/cpu" for i in order]), nbytes, rounds=1)
    return trace, {end: count - before[end] for end, count in sent(hosts).items()}


@pytest.mark.parametrize("order, crossings", [("01234567", 1), ("01452367", 2), ("04152637", 4)])
def test_the_order_of_hosts_decides_how_much_passes_the_spine(racks, order, crossings):
    trace, passed = measured(racks, order, 4_000_000)
    expected = 2 * crossings * 14 * 500_000  # a round to warm up and one that is timed, of 14 steps each
    assert passed == pytest.approx(dict.fromkeys(passed, expected), rel=0.05)
    bursts = 2 * 80 * 1024 * len(trace.plan.steps) / 25e6
    predicted = cost.shared(trace.plan, racks.topology, trace.nbytes).duration
    assert predicted == pytest.approx(0.28 * crossings / emulation.GOODPUT)
    assert trace.duration > 0.95 * predicted - bursts


@pytest.mark.parametrize("rack", ["0123", "4567"])
def test_traffic_inside_a_rack_does_not_pass_its_uplink(racks, rack):
    assert max(measured(racks, rack, 4_000_000)[1].values()) < 50_000


def test_connections_between_racks_have_equal_windows(racks, three):
    routes = ["sh", "-c", "PATH=$PATH:/usr/sbin:/sbin ip route"]
    assert {each.output.count("\n") for each in racks.run(routes)} == {1}
    assert all("window 62500" in each.output for each in racks.run(routes))
    assert not any("window" in each.output for each in three.run(routes))


def test_an_uplink_is_as_wide_as_the_hosts_of_its_rack_unless_it_is_given():
    with emulated(hosts=2, gpus_per_host=0, bandwidth="80 Mbit/s", servers=1, racks=2) as hosts:
        route = hosts.topology.route("host0/cpu", "server0")
        assert [link.dst for link in route] == ["host0/switch", "rack0", "network", "rack1", "server0"]
        assert [link.capacity / emulation.GOODPUT for link in route[1:]] == pytest.approx([1e7, 2e7, 1e7, 1e7])
        hosts.reshape("host0", "8 Mbit/s")
        route = hosts.topology.route("host0/cpu", "server0")
        assert [link.capacity / emulation.GOODPUT for link in route[1:]] == pytest.approx([1e6, 2e7, 1e7, 1e7])
        assert len(hosts.run(me)) == 3


# ---------------------------------------------------------------- hosts that are lost, links that are cut


def rounds_for_ever(deadline):
    carrier = Processes(cluster.playing()[-1:], deadline=deadline)
    plan, tensor = ring([f"host{i}/cpu" for i in range(carrier.size)]), torch.ones(100_000)
    print("at it", flush=True)
    while True:
        run(plan, tensor, carrier)


def begun(cluster, what, *arguments, **options):
    job = cluster.start(what, *arguments, **options)
    until = time.monotonic() + LIVE
    while not all(b"at it" in b"".join(member.output) for member in job.members):
        assert time.monotonic() < until
        time.sleep(0.02)
    return job


def test_links_are_reshaped_cut_and_healed_and_a_host_is_killed():
    with emulated(hosts=3, gpus_per_host=0, bandwidth="200 Mbit/s") as hosts:
        hosts.reshape("host1", "20 Mbit/s")
        two = ring(["host0/cpu", "host1/cpu"])
        assert hosts.measure(two, "2 MB", rounds=1).duration > 0.6  # 2 MB each way at 2.5 MB/s, less two bursts
        assert hosts.topology.route("host1/cpu", "host0/cpu")[1].capacity < 2.5e6
        hosts.reshape("host1", "200 Mbit/s")

        job = begun(hosts, rounds_for_ever, DEADLINE, hosts=["host0", "host1"])
        hosts.cut("host1")
        with pytest.raises((RankLost, RunFailed)):
            job.results()
        hosts.heal("host1")
        assert hosts.measure(two, "1 MB", rounds=1).measured

        job = begun(hosts, rounds_for_ever, DEADLINE)
        hosts.kill("host2")
        with pytest.raises(HostLost, match="host2 is lost") as lost:
            job.results()
        assert [type(each) for each in lost.value.results] == [RankLost, RankLost, HostLost]
        for call in (lambda: hosts.run(me), lambda: hosts.reshape("host2", "20 Mbit/s")):
            with pytest.raises(HostLost, match="host2"):
                call()
        hosts.kill("host2")
        assert len(hosts.run(me, hosts=["host0", "host1"])) == 2


# ---------------------------------------------------------------- leftovers


@pytest.fixture
def left(monkeypatch):
    """The processes that this test has started and that live; others may have hosts of their own meanwhile."""
    mark = f"test-{time.time_ns()}"
    monkeypatch.setenv("D2LPS_TEST", mark)

    def still() -> set[int]:
        found = set()
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get("D2LPS_TEST") == mark:
                    found.add(each.pid)
        return found

    return still


def gone(left) -> bool:
    until = time.monotonic() + LIVE
    while left() and time.monotonic() < until:
        time.sleep(0.02)
    return not left()


def test_nothing_is_left_of_one_after_another_and_two_at_once(left):
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(2):
        one, other = emulated(hosts=2, bandwidth="50 Mbit/s"), emulated(hosts=1, bandwidth="50 Mbit/s")
        with contextlib.suppress(ZeroDivisionError), one, other:
            assert one.run(me)[1][0] == "host1" and len(other.run(me)) == 1
            one.start(time.sleep, 1000)
            raise ZeroDivisionError
        one.close()
        assert "closed" in repr(one)
        for call, *given in [(one.run, me), (one.kill, "host0"), (one.cut, "host0"), (one.reshape, "host0", "1 MB/s")]:
            with pytest.raises(ClusterError, match="closed"):
                call(*given)
    assert gone(left)  # and with the last process of a namespace the kernel removes its network
    assert len(os.listdir("/proc/self/fd")) <= before[0] and threading.active_count() <= before[1]


ALONE = """
import sys, time
from d2lps import cluster
hosts = cluster.emulated(hosts=2, bandwidth="50 Mbit/s")
print(hosts.run(lambda: 7), flush=True)
hosts.start(time.sleep, 1000)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("user", ["who runs the tests", "nobody in particular"])
def test_nothing_is_left_of_a_notebook_that_is_killed(user, left):
    emulated(hosts=1).close()
    # As a user who is not root, and yet may read what root may: neither names nor files of an account are needed.
    as_user = [] if user == "who runs the tests" else ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*as_user, sys.executable, "-c", ALONE], cwd=ROOT, **given) as process:
        assert process.stdout.readline() == "[7, 7]\n" and process.stdout.readline() == "ready\n"
        assert len(left()) >= 5  # the notebook, unshare, the switch, two hosts (and what has just been started there)
        process.kill()
    assert gone(left)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "options, said",
    [
        ({"hosts": 0}, "hosts = 0"),
        ({"hosts": 2.0}, "hosts = 2.0"),
        ({"hosts": 65}, "from 1 to 64"),
        ({"servers": -1}, "servers = -1"),
        ({"gpus_per_host": True}, "gpus_per_host = True"),
        ({"bandwidth": "900 kbit/s"}, "from 125 kB/s"),
        ({"bandwidth": "100 Gbit/s"}, "to 1.25 GB/s"),
        ({"hosts": 64, "bandwidth": "10 Gbit/s"}, "64 hosts .* processors .* at most"),
        ({"hosts": 4, "racks": 5}, "racks = 5: it must be a whole number from 1 to 4"),
        ({"racks": 2, "uplink": "900 kbit/s"}, "from 125 kB/s"),
    ],
)
def test_invalid_input_is_refused(options, said):
    with pytest.raises(ClusterError, match=said):
        cluster.emulated(**options)


def test_a_machine_without_namespaces_is_refused_in_a_sentence(monkeypatch):
    with pytest.raises(UnitError):
        cluster.emulated(bandwidth=400)
    with pytest.raises(TopologyError, match="hosts in one rack have no uplink"):
        cluster.emulated(uplink="1 Gbit/s")
    with pytest.raises(ClusterError, match="belongs to no cluster"):
        cluster.playing()
    monkeypatch.setattr(emulation, "PATHS", "/nowhere")
    with pytest.raises(NoEmulation, match="missing here: unshare, ip, tc"):
        cluster.emulated()
    monkeypatch.setattr(emulation.sys, "platform", "darwin")
    with pytest.raises(NoEmulation, match="Linux only"):
        cluster.emulated()


def test_hosts_that_do_not_start_in_time_are_no_refusal(monkeypatch):
    emulated(hosts=1, gpus_per_host=0).close()  # skips where nothing can be emulated
    monkeypatch.setattr(control, "ANSWER", 0.0)
    with pytest.raises(NoAnswer, match="did not start within 0 s"):
        cluster.emulated(hosts=1, gpus_per_host=0)


def test_an_invalid_program_is_refused(three, tmp_path):
    for what, options, said in [
        (me, {"hosts": ["host7"]}, "no host 'host7'; there are host0"),
        (me, {"per_host": 0}, "per_host = 0"),
        ("ls", {}, "its arguments as a list"),
        ([], {}, "its arguments as a list"),
        (["no-such-program"], {}, "no program no-such-program"),
        ([sys.executable, "no-such.py"], {}, "no script no-such.py"),
    ]:
        with pytest.raises(ClusterError, match=said):
            three.run(what, **options)
    for call in (lambda: three.kill("x"), lambda: three.cut("host0", "x"), lambda: three.reshape("host0", "1 bit/s")):
        with pytest.raises(ClusterError):
            call()
    assert three.run(lambda: 1, hosts="host1") == [1]


def over_ipv6():
    """Run a plan and make both kinds of stores, where hosts have no address of IPv4 but that of loopback."""
    os.environ.pop("GLOO_SOCKET_IFNAME")  # gloo finds the card
    with Processes(deadline=10.0) as carrier:
        run(ring(carrier.names), gradient := torch.full((1000,), 1.0 + carrier.rank), carrier)
    pulled = [gradient.unique().tolist()]
    for replicas in 0, 1:
        with kvstore.create("dist_sync", servers=2, joining=60.0, replicas=replicas) as store:
            store.init("w", torch.zeros(1000))
            store.pushpull("w", torch.ones(1000), out=(out := torch.empty(1000)))
            pulled.append(out.unique().tolist())
    try:
        kvstore.create("dist_sync", engine="mxnet")
    except Refused as error:
        return [*pulled, str(error)]


@mxnet
def test_hosts_may_have_addresses_of_ipv6_only():
    with emulated(hosts=2, gpus_per_host=0, bandwidth="200 Mbit/s") as two:
        addresses = {name: f"fd00:77::{i}" for i, name in enumerate(two.hosts, 1)}
        changes = {
            name: ([f"address add {six}/64 dev eth0 nodad", f"address del {two.address[name]}/24 dev eth0"], [])
            for name, six in addresses.items()
        }
        try:
            two._control.network(changes)
        except ClusterError as error:
            pytest.skip(f"system: {error}")
        results = two.run(over_ipv6, env={"MASTER_ADDR": addresses["host0"]})
    for (*pulled, refused), six in zip(results, addresses.values(), strict=True):
        assert pulled == [[3.0], [2.0], [2.0]]
        assert refused.startswith(f"this host reaches the others over IPv6 ({six}), and MXNet knows IPv4 only: set")

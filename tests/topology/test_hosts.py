"""Hosts by name: their links, their routes, and refused arguments."""

import pytest

from d2lps import Topology, aggregate_at, cost, ring, two_rings
from d2lps.topology import TopologyError
from d2lps.topology.hosts import dgx1_v100, machines, nvswitch, one_memory, pcie_server
from d2lps.units import UnitError

GPUS = [f"gpu{i}" for i in range(8)]


def test_every_gpu_of_a_dgx1_has_six_nvlinks():
    host = dgx1_v100()
    for gpu in GPUS:
        assert sum(link.count for link in host.links if link.src == gpu and link.dst in GPUS) == 6


def test_on_a_dgx1_no_message_goes_through_a_third_gpu():
    for host in (dgx1_v100(), dgx1_v100("25 GB/s", pcie="1 GB/s", between_cpus="100 MB/s")):
        direct = {(link.src, link.dst) for link in host.links}
        for a in GPUS:
            for b in GPUS:
                way = [link.dst for link in host.route(a, b)]
                assert not {*way[:-1]} & {*GPUS}
                assert (len(way) == 1) == ((a, b) in direct)


def test_the_two_rings_of_a_dgx1_take_as_long_as_the_facts_say():
    for rate, one, both in [("18 GB/s", 5.19, 2.59), ("25 GB/s", 3.73, 1.87)]:
        host = dgx1_v100(rate)
        for ways, milliseconds in [(False, one), (True, both)]:
            took = cost.shared(two_rings(host, both=ways), host, "160 MB").duration
            assert round(1000 * took, 2) == milliseconds


def test_links_of_a_dgx1_are_as_fast_as_one_says():
    host = dgx1_v100("25 GB/s", "2 us", "12 GB/s", "9 GB/s")
    rates = {(link.src, link.dst): link.bandwidth for link in host.links}
    assert rates["gpu0", "gpu3"] == 25e9 and rates["gpu0", "switch0"] == rates["switch3", "cpu1"] == 12e9
    assert rates["cpu0", "cpu1"] == 9e9 and {link.latency for link in host.links} == {2e-6}


@pytest.mark.parametrize(
    "host, gpus, rate", [(nvswitch(), 16, 150e9), (nvswitch(8, links=12), 8, 300e9), (nvswitch(8, links=18), 8, 450e9)]
)
def test_behind_nvswitch_all_pairs_are_alike(host, gpus, rate):
    assert len(host.kinds) == gpus + 1
    ways = [host.route(f"gpu{i}", f"gpu{j}") for i in range(gpus) for j in range(gpus) if i != j]
    assert {(len(way), *(link.capacity for link in way)) for way in ways} == {(2, rate, rate)}


def test_one_memory_may_take_time_to_add_for_each_message_and_on_the_way():
    host = one_memory(["a", "b"], "10 GB/s", adding="5 GB/s", overhead="5 ms", latency="1 ms")
    assert (host.through, host.adding, host.overhead) == ({"memory": 10e9}, {"memory": 5e9}, {"memory": 5e-3})
    assert sum(link.latency for link in host.route("a", "b")) == 1e-3
    times = cost.shared(aggregate_at(["a"], "b"), host, "20 MB").step_times()
    added, copied = 2 + 4 + 1, 5 + 1  # moving, adding, latency; overhead, since moving takes less, latency
    assert [round(1e3 * (end - start)) for start, end in times] == [added, copied]


def test_one_memory_only_costs_movement_by_default():
    host = one_memory(["a", "b"], "10 GB/s")
    assert host.adding == host.overhead == {} and {link.latency for link in host.links} == {0.0}
    assert host == one_memory(["a", "b"], "10 GB/s", None, 0.0, 0.0)


@pytest.mark.parametrize(
    "build, error, sentence",
    [
        (lambda: nvswitch(0), TopologyError, "gpus = 0: a server has a whole number of GPUs, 1 or more"),
        (lambda: nvswitch(2, links=0), TopologyError, "link gpu0→switch has count 0: write a whole number, 1 or more"),
        (lambda: dgx1_v100(18), UnitError, "bandwidth 18 has no unit: write '16 GB/s' (bytes) or '128 Gbit/s' (bits)"),
        (lambda: one_memory("ab", "1 GB/s"), ValueError, None),
        (lambda: one_memory(["a"], "1 GB/s", adding="0 GB/s"), UnitError, "bandwidth '0 GB/s' is not positive"),
        (lambda: one_memory(["a"], "1 GB/s", overhead="20"), UnitError, "time '20' has no unit that d2lps knows"),
    ],
)
def test_a_host_that_cannot_be_is_refused(build, error, sentence):
    with pytest.raises(error) as caught:
        build()
    assert sentence is None or sentence in str(caught.value)


def test_hosts_are_hashable():
    hosts = [pcie_server(2), dgx1_v100(), nvswitch(4), one_memory(["a"], "1 GB/s")]
    assert len({*hosts, *hosts, pcie_server(2)}) == 4 and all(isinstance(host, Topology) for host in hosts)


def test_machines_have_cards_of_their_own():
    network = machines(hosts=2, gpus_per_host=2, nic=["10 Gbit/s", "20 Gbit/s", "40 Gbit/s"], servers=1, latency="5 us")
    assert [node for node, kind in network.kinds.items() if kind != "switch"] == (
        "host0/gpu0 host0/gpu1 host0/cpu host1/gpu0 host1/gpu1 host1/cpu server0".split()
    )
    route = network.route("host0/gpu1", "server0")
    assert [(link.src, link.dst) for link in route] == [
        ("host0/gpu1", "host0/switch"),
        ("host0/switch", "network"),
        ("network", "server0"),
    ]
    assert [link.capacity for link in route] == [16e9, 1.25e9, 5e9]
    assert sum(link.latency for link in route) == pytest.approx(1e-5)
    assert len(network.route("host0/gpu0", "host0/cpu")) == 2  # inside, no card is passed


def ends(route):
    return [route[0].src, *(link.dst for link in route)]


def test_hosts_and_servers_are_dealt_to_racks_and_only_messages_between_racks_pass_the_spine():
    network = machines(hosts=5, gpus_per_host=1, nic="10 Gbit/s", servers=2, racks=3, uplink="1 Gbit/s", latency="5 us")
    racks = {rack: [link.src for link in network.links if link.dst == rack] for rack in ("rack0", "rack1", "rack2")}
    assert racks == {
        "rack0": ["host0/switch", "host1/switch", "host2/switch", "network"],
        "rack1": ["host3/switch", "host4/switch", "network"],
        "rack2": ["server0", "server1", "network"],
    }
    assert list(network.kinds)[-6:] == ["server0", "server1", *racks, "network"] and network.kinds["rack0"] == "switch"
    near, far = network.route("host0/gpu0", "host2/cpu"), network.route("host2/gpu0", "server1")
    assert ends(near) == ["host0/gpu0", "host0/switch", "rack0", "host2/switch", "host2/cpu"]
    assert ends(far) == ["host2/gpu0", "host2/switch", "rack0", "network", "rack2", "server1"]
    assert [link.capacity for link in far] == [16e9, 1.25e9, 1.25e8, 1.25e8, 1.25e9]
    assert [sum(link.latency for link in route) for route in (near, far)] == pytest.approx([1e-5, 2e-5])


def test_an_uplink_is_as_wide_as_the_cards_below_it_unless_it_is_given():
    def up(**options):
        network = machines(hosts=3, gpus_per_host=0, nic=["1 GB/s", "2 GB/s", "4 GB/s"], racks=2, **options)
        rates = {(link.src, link.dst): link.capacity for link in network.links}
        assert all(rates["network", rack] == rates[rack, "network"] for rack in ("rack0", "rack1"))
        return [rates[rack, "network"] for rack in ("rack0", "rack1")]

    assert up() == [3e9, 4e9] and up(uplink="1 GB/s") == [1e9, 1e9] and up(uplink=["1 GB/s", "5 GB/s"]) == [1e9, 5e9]


def test_one_rack_needs_no_switch_of_its_own():
    assert machines(hosts=2, racks=1) == machines(hosts=2) and "rack0" not in machines(hosts=2).kinds


def test_the_order_of_hosts_in_a_ring_decides_how_often_each_step_passes_an_uplink():
    network = machines(hosts=8, gpus_per_host=0, nic="12.5 MB/s", racks=2, uplink="12.5 MB/s")
    for order, crossings, seconds in [("01234567", 1, 0.56), ("01452367", 2, 1.12), ("04152637", 4, 2.24)]:
        trace = cost.shared(ring([f"host{i}/cpu" for i in order]), network, "4 MB")
        across = sum(e.nbytes for link, es in trace.occupied().items() if link_is(link, "rack0", "network") for e in es)
        assert (across, round(trace.duration, 9)) == (crossings * 14 * 500_000, seconds)


def link_is(place, src, dst):
    return (getattr(place, "src", ""), getattr(place, "dst", "")) == (src, dst)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"racks": 0}, "racks = 0: it must be a whole number from 1 to 5, the number of hosts and servers, so that no"),
        ({"racks": 6}, "racks = 6: it must be"),
        ({"racks": 2.0}, "racks = 2.0: it must be"),
        (
            {"uplink": "1 GB/s"},
            "uplink = '1 GB/s', but hosts in one rack have no uplink: leave it out, or give racks=2",
        ),
        ({"racks": 3, "uplink": ["1 GB/s"] * 2}, "2 bandwidths for the uplinks of 3 racks: give a single one for all"),
    ],
)
def test_racks_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(TopologyError) as caught:
        machines(hosts=4, servers=1, **options)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(UnitError):
        machines(racks=2, uplink=400)


@pytest.mark.parametrize(
    "options", [{"hosts": 0}, {"hosts": True}, {"gpus_per_host": -1}, {"servers": 1.5}, {"nic": ["1 GB/s"] * 3}]
)
def test_machines_that_cannot_be_are_refused(options):
    with pytest.raises(TopologyError):
        machines(**options)

"""Fabrics of data centres: their widths, their routes, and what an order of hosts costs on them."""

from fractions import Fraction

import pytest

from d2lps import (
    Plan,
    PlanError,
    all_to_all,
    bandwidth,
    check,
    cost,
    halving_doubling,
    hierarchical,
    in_switch,
    leaf_spine,
    nvswitch,
    rail_rings,
    rail_wise,
    rails,
    ring,
)
from d2lps.topology import TopologyError, busiest_uplink
from d2lps.units import UnitError

HOSTS = [f"host{i}" for i in range(8)]


def seconds(plan, place, size="400 MB"):
    return cost.shared(plan, place, size).duration


@pytest.mark.parametrize("r", [1, 2, 4])
def test_an_order_of_hosts_costs_up_to_the_oversubscription(r):
    # Two leaves of four hosts: in order one flow crosses each uplink, alternating all four do.
    place = leaf_spine(8, per_leaf=4, nic="1 GB/s", oversubscription=r)
    alternating = [HOSTS[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    least = 2 * 7 / 8 * 0.4
    assert seconds(ring(HOSTS), place) == pytest.approx(least)
    assert seconds(ring(alternating), place) == pytest.approx(least * r)
    # All-to-all crosses with (N−d)/(N−1) of its messages. The total counts the buffers of all nodes.
    assert seconds(all_to_all(HOSTS), place, "3200 MB") >= 7 / 8 * 0.4 * max(1, r * 4 / 7) * (1 - 1e-9)


def test_pods_join_leaves_and_the_core_joins_pods():
    place = leaf_spine(16, per_leaf=2, nic="1 GB/s", per_pod=4)
    names = [link.dst for link in place.route("host0", "host15")]
    assert names == ["leaf0", "pod0", "core", "pod1", "leaf7", "host15"]
    assert [link.dst for link in place.route("host0", "host7")] == ["leaf0", "pod0", "leaf3", "host7"]
    assert place.route("host0", "host15")[2].capacity == 8e9


def test_the_uplink_of_a_rail_has_the_cards_of_its_pod():
    place = rails(4, gpus=2, nic="50 GB/s", per_pod=2, oversubscription=4)
    assert place.route("host0/gpu1", "host3/gpu1")[1].capacity == 2 * 50e9 / 4


def test_rails_reach_the_speed_of_all_cards_together():
    hosts = [[f"host{h}/gpu{g}" for g in range(4)] for h in range(6)]
    place = rails(6, gpus=4, nic="50 GB/s", inside="450 GB/s")
    assert [link.dst for link in place.route("host0/gpu1", "host5/gpu2")] == ["rail1", "spine", "rail2", "host5/gpu2"]
    plan = rail_wise(hosts)
    trace = cost.shared(plan, place, "960 MB")
    inside, across = 2 * 3 / 4 * 0.96 / 450, 2 * 5 / 6 * 0.24 / 50
    assert trace.duration == pytest.approx(inside + across)
    # A flat ring moves all bytes by one card of each host.
    assert cost.shared(ring([gpu for host in hosts for gpu in host]), place, "960 MB").duration > 2.5 * trace.duration
    assert bandwidth(trace).factor == Fraction(2 * 23, 24)


@pytest.mark.parametrize("across", [ring, halving_doubling])
def test_rail_wise_is_an_all_reduce_of_any_size_and_is_costed_lazily(across):
    hosts = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(16)]
    place = rails(16, latency="7 us")
    plan = rail_wise(hosts, across)
    check(plan)
    written = Plan(plan.nodes, plan.share, tuple(plan.steps))
    assert written == plan
    lazy, single = cost.shared(plan, place, "1 GB"), cost.shared(written, place, "1 GB")
    assert lazy.duration == single.duration
    assert [event.end for event in lazy.events[:9]] == [event.end for event in single.events[:9]]


def test_rail_wise_adds_up_for_uneven_numbers_and_refuses_unequal_hosts():
    for hosts in (1, 2, 3, 5):
        for gpus in (1, 2, 3):
            plan = rail_wise([[f"h{h}g{g}" for g in range(gpus)] for h in range(hosts)])
            check(plan)
            assert len(plan.steps) == 2 * (hosts - 1) + 2 * (gpus > 1)
    with pytest.raises(PlanError, match="they have 2 1"):
        rail_wise([["a", "b"], ["c"]])


@pytest.mark.parametrize("n, g", [(2, 2), (2, 1), (3, 2), (3, 3), (4, 8), (5, 4), (16, 8)])
@pytest.mark.parametrize("inside", ["450 GB/s", "100 GB/s"])
def test_rail_rings_add_up_and_take_the_time_of_their_formula(n, g, inside):
    hosts = [[f"host{h}/gpu{i}" for i in range(g)] for h in range(n)]
    plan, b, c = rail_rings(hosts), 50e9, 1e9 * float(inside.split()[0])
    check(plan)
    links = 4 if n % 2 and g == 2 else 2  # an odd number of hosts needs three rails, else a hop passes the spine
    took = 2 * (n * g - 1) * (7e-6 * links + 1e9 / (n * g * g) * max(1 / b, (g - 1) / c))
    trace = cost.shared(plan, rails(n, g, "50 GB/s", inside, latency="7 us", inside_latency="7 us"), "1 GB")
    assert trace.duration == pytest.approx(took, rel=1e-9)
    assert len({send.dst for send in plan.steps[0]}) == n * g


@pytest.mark.parametrize("n, g", [(2, 2), (3, 3), (4, 8), (7, 3)])
def test_each_card_sends_for_one_ring_and_no_message_changes_the_rail(n, g):
    plan = rail_rings([[f"host{h}/gpu{i}" for i in range(g)] for h in range(n)])
    ends = [(*send.src.split("/"), *send.dst.split("/"), send.key[:2]) for send in plan.steps[0]]
    crossing = [(src, rail, dst, key) for src, rail, dst, other, key in ends if src != dst and rail == other]
    assert len(crossing) == sum(src != dst for src, _, dst, *_ in ends) == n * g
    for host in (0, 2):
        assert len({(send[host], send[1]) for send in crossing}) == len({(send[host], send[3]) for send in crossing})
        assert len({(send[host], send[1]) for send in crossing}) == n * g


def test_rail_rings_of_one_host_and_of_unequal_hosts():
    check(rail_rings([["a", "b", "c"]]))
    assert rail_rings([["a"]]).steps == ()
    with pytest.raises(PlanError, match="they have 2 1"):
        rail_rings([["a", "b"], ["c"]])


@pytest.mark.parametrize("n, make", [(4, tuple), (16, list)])  # from 65 nodes on, steps are made on demand
def test_a_trace_names_the_network_cards_that_rest(n, make):
    hosts = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(n)]
    place, flat = rails(n), ring(make(gpu for host in hosts for gpu in host))
    trace = cost.shared(flat, place, "1 GB")
    assert trace.resting() == [f"host{h}/nic{g}" for h in range(n) for g in range(7)]
    assert repr(trace).endswith(f", {7 * n} of {8 * n} network cards send nothing>")
    for busy in (rail_wise(hosts), rail_rings(hosts)):
        trace = cost.shared(busy, place, "1 GB")
        assert trace.resting() == [] and "cards" not in repr(trace)
    assert "cards" not in repr(cost.shared(ring(hosts[0]), place, "1 GB"))  # inside a host all of them may rest


def test_one_sum_per_host_beats_a_ring_of_all():
    hosts = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(4)]
    place = rails(4)
    led = hierarchical({gpus[0]: gpus for gpus in hosts}, ring([gpus[0] for gpus in hosts]))
    assert seconds(rail_wise(hosts), place) < seconds(led, place)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_switch_that_adds_sends_n_plus_1_nth(n):
    gpus, c = [f"gpu{i}" for i in range(n)], 64
    plan, place = in_switch(gpus, chunks=c), nvswitch(n, links=18)
    check(plan)
    trace = cost.shared(plan, place, "450 MB")
    sizes = [trace.bytes_sent("gpu0"), trace.bytes_received("gpu0")]
    assert sizes == [450_000_000 * (n + 1) / n, 450_000_000]
    assert (n + 1) / n <= trace.duration / 1e-3 <= (n + 1) / n * (c + 3) / c
    # busbw beyond the link: it compares with what an algorithm without the switch would need.
    if n == 8:
        assert 660e9 < bandwidth(trace).busbw < 700e9
    assert (trace.duration < cost.shared(ring(gpus), place, "450 MB").duration) == (n >= 4)


def test_a_straggler_slows_a_ring_as_a_whole():
    gpus = [f"gpu{i}" for i in range(4)]
    place = nvswitch(4)
    slow = place.slowed("gpu2", by=4)
    assert seconds(ring(gpus), slow) == pytest.approx(4 * seconds(ring(gpus), place))
    assert seconds(ring(gpus[:2]), slow) == seconds(ring(gpus[:2]), place)
    for by in (0, -1, float("nan")):
        with pytest.raises(UnitError):
            place.slowed("gpu2", by=by)
    with pytest.raises(TopologyError, match="no node 'gpu9'"):
        place.slowed("gpu9", by=2)


def test_hashed_flows_collide_and_more_parts_even_them_out():
    loads = {parts: sum(busiest_uplink(32, 32, parts, seed) for seed in range(50)) / 50 for parts in (1, 4, 16, 64)}
    assert loads[1] > 3 > loads[4] > 1.8 > loads[16] > loads[64] > 1


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: leaf_spine(0), "hosts = 0"),
        (lambda: leaf_spine(8, per_leaf=0), "per_leaf = 0"),
        (lambda: leaf_spine(8, per_pod=0), "per_pod = 0"),
        (lambda: leaf_spine(8, oversubscription=0), "oversubscription = 0"),
        (lambda: leaf_spine(8, oversubscription="much"), "oversubscription = 'much'"),
        (lambda: rails(2, gpus=2.5), "gpus = 2.5"),
        (lambda: rails(2, oversubscription=float("nan")), "oversubscription = nan"),
        (lambda: busiest_uplink(0, 1), "flows = 0"),
    ],
)
def test_bad_numbers_are_refused(make, sentence):
    with pytest.raises(TopologyError, match=sentence):
        make()

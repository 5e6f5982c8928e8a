"""Measured figures become a topology; predictions stand beside measurements."""

import pickle
import re

import pytest

from d2lps import (
    Here,
    Processes,
    aggregate_at,
    calibrate,
    cluster,
    compare,
    cost,
    hierarchical,
    machines,
    naive_ring,
    one_memory,
    rails,
    ring,
    sharded,
)
from d2lps.carriers.tensors import TensorError
from d2lps.measure import calibration
from d2lps.measure.calibration import SIZES, Across, Calibration, _fitted, _plans
from d2lps.measure.comparing import Compared, Comparison
from d2lps.units import Bandwidth, size

NODES = ("rank0", "rank1", "rank2", "rank3")


def seconds_on(place, nodes):
    """Return the seconds of each measurement on a machine that is exactly ``place``, eight times over."""
    return {
        (what, size(s)): [cost.shared(plan, place, size(s)).duration] * 8
        for what, plan in _plans(nodes).items()
        for s in SIZES
    }


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_machine_that_is_as_the_model_says_is_found_again(n):
    nodes = tuple(f"rank{i}" for i in range(n))
    true = one_memory(
        nodes, "5 GB/s", adding="20 GB/s", overhead="30 us", latency="50 us", each="3 GB/s", each_adding="10 GB/s"
    )
    result = _fitted(nodes, seconds_on(true, nodes))
    assert (result.alone, result.adding_alone) == (pytest.approx(3e9, rel=1e-2), pytest.approx(10e9, rel=2e-2))
    if n > 3:  # so few do not fill what all share
        assert result.together == pytest.approx(5e9, rel=1e-2)
        assert result.adding == pytest.approx(20e9, rel=5e-2)
    for make in (ring, sharded, naive_ring):
        predicted, real = (cost.shared(make(nodes), place, "16 MB").duration for place in (result.topology(), true))
        assert predicted == pytest.approx(real, rel=0.03 if n > 3 else 0.3)


def test_the_ping_pong_alone_sees_no_crowd():
    true = one_memory(NODES, "5 GB/s", each="3 GB/s")
    result = _fitted(NODES, seconds_on(true, NODES))
    crowded, naive = ring(NODES), naive_ring(NODES)

    def off(plan):
        return cost.shared(plan, true, "40 MB").duration / cost.shared(plan, result.ping_pong(), "40 MB").duration

    assert off(crowded) == pytest.approx(4 * 3 / 5, rel=0.01)
    assert off(naive) == pytest.approx(1, rel=0.01)


def test_measured_values_are_positive_and_labeled():
    result = calibrate(Here(), NODES, repeats=3)
    assert min(result.alone, result.together, result.adding, result.adding_alone) > 1e6
    assert min(result.latency, result.overhead) >= 0
    assert [what for what, _, _ in result.measured] == [w for w in _plans(NODES) for _ in SIZES]
    pattern = r"latency .*s\noverhead .*s\nalone .*B/s\ntogether .*B/s\nadding together .*B/s\nadding alone .*B/s"
    assert re.fullmatch(pattern, str(result))
    shown = result.table()
    assert [row[0] for row in shown.rows] == "latency,overhead,alone,together,adding together,adding alone".split(",")
    assert [row[1] for row in shown.rows[2:4]] == [str(result.alone), str(result.together)]
    assert pickle.loads(pickle.dumps(result)) == result
    assert [node for node in result.topology(6).kinds] == [*(f"rank{i}" for i in range(6)), "memory"]
    assert [node for node in result.topology(["a", "b"]).kinds] == ["a", "b", "memory"]


# ---------------------------------------------------------------- several hosts


class Apart(Here):
    """Processes on hosts as their names say; nothing is sent."""

    def __init__(self, names):
        self.names = tuple(names)
        self.members = [{"host": name.partition("/")[0]} for name in self.names]

    def ranks(self, plan):
        return {node: self.names.index(node) for node in plan.nodes}


def ways(hosts):
    """The five ways of the benchmark: ring, reordered ring, sharded, two levels, all at the first node."""
    names, dealt = sum(hosts, []), [node for row in zip(*hosts, strict=True) for node in row]
    led = hierarchical({host[0]: host for host in hosts}, ring([host[0] for host in hosts]))
    return [ring(names), ring(dealt), sharded(names), led, aggregate_at(names, names[0])]


@pytest.mark.parametrize("hosts, each", [(2, 2), (3, 2), (2, 4), (3, 1)])
@pytest.mark.parametrize("nic", ["200 Mbit/s", "10 Gbit/s"])
def test_hosts_that_are_as_the_model_says_are_found_again(monkeypatch, hosts, each, nic):
    true = machines(hosts, each, nic, inside="12 GB/s", latency="25 us")
    members = [[f"host{h}/gpu{i}" for i in range(each)] for h in range(hosts)]

    def as_true(plans, sizes, carrier, repeats):
        return {
            (n, size(s)): [cost.shared(p, true, size(s)).duration] * repeats for n, p in plans.items() for s in sizes
        }

    monkeypatch.setattr(calibration, "_measured", as_true)
    found = calibrate(Apart(sum(members, [])))
    rate = 25e6 if nic == "200 Mbit/s" else 1.25e9
    assert found.hosts == tuple(map(tuple, members)) and found.across.latency == pytest.approx(50e-6, rel=0.02)
    assert (found.across.alone, found.across.together) == (pytest.approx(rate, 0.02), pytest.approx(hosts * rate, 0.02))
    for plan in ways(members):
        predicted, real = (cost.shared(plan, place, "12 MB").duration for place in (found.topology(), true))
        assert predicted == pytest.approx(
            real, rel=0.02 if rate < 1e9 else 0.6
        )  # there PCIe counts, which is no memory


def test_a_host_with_several_cards_sends_by_all_of_them(monkeypatch):
    """A pair uses one card of 1 GB/s, all four ranks together use four."""
    true = rails(2, 4, nic="1 GB/s", inside="100 GB/s")

    def as_true(plans, sizes, carrier, repeats):
        return {
            (n, size(s)): [cost.shared(p, true, size(s)).duration] * repeats for n, p in plans.items() for s in sizes
        }

    monkeypatch.setattr(calibration, "_measured", as_true)
    found = calibrate(Apart(node for node in true.kinds if "gpu" in node))
    assert (found.across.alone, found.across.together) == (
        pytest.approx(1e9, rel=0.01),
        pytest.approx(2 * 4e9, rel=0.01),
    )


# What benchmarks/hosts.py measured on two hosts of two processes: figures, and seconds of 12 MB in each way.
RECORDED = {
    200: (
        (0.0, 297.2e-6, 1.41e9, 776.7e6, 1.526e9, 8.871e9),
        (411.4e-6, 24.14e6, 44.08e6),
        (0.7635, 1.675, 1.1, 0.5487, 2.01),
    ),
    400: (
        (0.0, 197.4e-6, 1.336e9, 958.2e6, 2.078e9, 27.56e9),
        (156.4e-6, 47.77e6, 89.04e6),
        (0.4161, 0.8464, 0.5439, 0.2927, 1.034),
    ),
}


@pytest.mark.parametrize("rate", RECORDED)
def test_the_predicted_order_of_ways_is_the_measured_one(rate):
    (latency, overhead, *rates), (wait, *across), took = RECORDED[rate]
    between = Across(wait, *map(Bandwidth, across))
    found = Calibration(NODES, latency, overhead, *map(Bandwidth, rates), hosts=(NODES[:2], NODES[2:]), across=between)
    plans = ways([[*NODES[:2]], [*NODES[2:]]])
    predicted = [cost.shared(plan, found.topology(), "12 MB").duration for plan in plans]
    assert sorted(range(5), key=predicted.__getitem__) == sorted(range(5), key=took.__getitem__)
    assert max(abs(one / other - 1) for one, other in zip(predicted, took, strict=True)) < 0.12


SLOWLY = Across(1e-3, Bandwidth(1e7), Bandwidth(2e7))


def test_other_names_need_a_place():
    found = Calibration(NODES, *[1e-5] * 2, *[Bandwidth(1e9)] * 4, hosts=(NODES[:2], NODES[2:]), across=SLOWLY)
    place = found.topology({"a": "rank0", "b": "rank3"})
    assert [link.dst for link in place.route("a", "b")] == ["host0/card", "network", "host1/card", "b"]
    for strange in (["rank0", "gpu7"], 5):
        with pytest.raises(TensorError, match="the host of (gpu7|rank4) is unknown: calibrate measured rank0 rank1"):
            found.topology(strange)
    assert [row[:2] for row in found.table().rows[-3:]] == [
        ["latency, between hosts", "1 ms"],
        ["alone, between hosts", "10 MB/s"],
        ["together, between hosts", "20 MB/s"],
    ]


def compared():
    """The program of each process of the next test."""
    import torch.distributed as dist

    carrier = Processes()
    figures = calibrate(carrier, repeats=5)
    own = [f"host{h}/gpu{i}" for h in range(2) for i in range(carrier.size // 2)]
    plans = {"ring": ring(carrier.names), "own names": sharded(own), "all_reduce": dist.all_reduce}
    strange = compare({"all_reduce": dist.all_reduce}, "4 kB", carrier, one_memory(["a", "b"], "1 GB/s"), repeats=1)
    assert strange.rows[0].predicted is None
    return figures, compare(plans, "500 kB", carrier, figures, repeats=1)


@pytest.mark.parametrize("per_host", [1, 2])
def test_real_processes_find_their_hosts_and_the_slow_wire(per_host):
    try:
        hosts = cluster.emulated(hosts=2, gpus_per_host=per_host, bandwidth="100 Mbit/s")
    except cluster.NoEmulation as error:
        pytest.skip(f"system: {error}")
    with hosts:
        figures, table = hosts.run(compared, per_host=per_host)[0]
    assert figures.hosts == tuple(tuple(f"rank{per_host * h + i}" for i in range(per_host)) for h in range(2))
    # The wire has 12.5 MB/s each way; a busy machine may have less to send.
    assert 1e6 < figures.across.alone < 14e6 and 1e6 < figures.across.together < 28e6
    assert figures.alone > figures.across.alone
    predicted = {row.name: row.predicted for row in table}
    assert predicted["all_reduce"] == predicted["ring"] and min(row.measured for row in table) > 0.02


@pytest.mark.parametrize("nodes", [None, [], ["alone"]])
def test_calibration_needs_two_ranks(nodes):
    with pytest.raises(ValueError):
        calibrate(Here(), nodes)


def test_predicted_beside_measured():
    place = one_memory(NODES, "10 GB/s")
    result = compare({"ring": ring(NODES), "sharded": sharded(NODES)}, ["1 MB", "2 MB"], Here(), place, repeats=3)
    assert [(row.name, row.nbytes) for row in result] == [
        ("ring", 10**6),
        ("sharded", 10**6),
        ("ring", 2 * 10**6),
        ("sharded", 2 * 10**6),
    ]
    for row in result:
        assert row.predicted == cost.shared(ring(NODES), place, row.nbytes).duration
        assert len(row.runs) == 3 and row.measured == sorted(row.runs)[1]
        assert row.error == row.predicted / row.measured - 1
    assert str(result.table()).splitlines()[0].split("   ")[0] == "strategy" and "<table>" in result._repr_html_()
    assert pickle.loads(pickle.dumps(result)) == result


def test_without_a_topology_nothing_is_predicted_and_no_column_stands_empty():
    here = Here()
    result = compare({"ring": ring(NODES), "elsewhere": (sharded(NODES), Here())}, "100 kB", here, repeats=2)
    assert all(row.predicted is None and row.error is None for row in result)
    assert str(result).splitlines()[0].split() == ["strategy", "size", "measured", "spread", "(p90/p10)"]


def test_a_function_may_take_part_and_a_wrong_sum_is_no_measurement():
    result = compare({"nothing to add": lambda tensor: tensor}, "4 kB", Here(), repeats=2)
    assert result.rows[0].measured >= 0
    with pytest.raises(TensorError, match=r"the function leaves 2, not 1: a wrong sum"):
        compare({"doubles": lambda tensor: tensor.mul_(2)}, "4 kB", Here(), repeats=2)


def test_runs_that_disagree_are_marked():
    steady, unsteady = Compared("a", 1, 1.0, (1.0, 1.1, 1.2)), Compared("b", 1, 1.0, (1.0, 1.1, 2.0))
    assert steady.steady and not unsteady.steady
    lines = str(Comparison((steady, unsteady))).splitlines()
    assert "~" not in lines[1] and "~ 2.00" in lines[2]


def test_a_plot_has_two_bars_for_each_strategy():
    import matplotlib

    matplotlib.use("Agg")
    axes = Comparison((Compared("a", 10**6, 0.001, (0.002,)), Compared("b", 10**6, None, (0.003,)))).plot()
    assert len(axes.patches) == 4 and [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]


def test_bandwidths_are_bandwidths():
    result = _fitted(NODES, seconds_on(one_memory(NODES, "5 GB/s", each="3 GB/s"), NODES))
    assert isinstance(result.alone, Bandwidth)

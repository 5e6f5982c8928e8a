"""Measured figures become a topology; predictions stand beside measurements."""

import pickle
import re

import pytest

from d2lps import Here, calibrate, compare, cost, naive_ring, one_memory, ring, sharded
from d2lps.carriers.tensors import TensorError
from d2lps.measure.calibration import SIZES, _fitted, _plans
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


@pytest.mark.slow
def test_what_was_measured_here_is_positive_and_says_what_it_is():
    result = calibrate(Here(), NODES, repeats=3)
    assert min(result.alone, result.together, result.adding, result.adding_alone) > 1e6
    assert min(result.latency, result.overhead) >= 0
    assert [what for what, _, _ in result.measured] == [w for w in _plans(NODES) for _ in SIZES]
    pattern = r"latency .*\noverhead .*\nalone .*B/s\ntogether .*B/s\nadding .*B/s together, .*B/s alone"
    assert re.fullmatch(pattern, str(result))
    shown = result.table()
    assert [row[0] for row in shown.rows] == "latency,overhead,alone,together,adding together,adding alone".split(",")
    assert [row[1] for row in shown.rows[2:4]] == [str(result.alone), str(result.together)]
    assert pickle.loads(pickle.dumps(result)) == result
    assert [node for node in result.topology(6).kinds] == [*(f"rank{i}" for i in range(6)), "memory"]
    assert [node for node in result.topology(["a", "b"]).kinds] == ["a", "b", "memory"]


@pytest.mark.parametrize("nodes", [None, [], ["alone"]])
def test_there_must_be_somebody_to_talk_to(nodes):
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

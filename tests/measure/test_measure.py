"""Measuring gives real, plausible figures and restores nothing it should not touch."""

import pytest

from d2lps import aggregate_at, one_memory
from d2lps.measure import timing
from d2lps.units import Bandwidth


def test_a_copy_has_a_bandwidth_with_a_unit():
    bandwidth = timing.copy_bandwidth("1 MB", repeats=3)
    assert isinstance(bandwidth, Bandwidth) and 1e7 < bandwidth < 1e13 and str(bandwidth).endswith("B/s")


@pytest.mark.parametrize("repeats", [1, 2, 5])
def test_the_median_run_is_a_measured_trace_on_the_topology(repeats):
    plan = aggregate_at(["gpu0", "gpu1"], "cpu")
    memory = one_memory(plan.nodes, "10 GB/s")
    trace = timing.median_run(plan, "1 MB", repeats=repeats, topology=memory)
    assert trace.measured and trace.origin == "cpu ×3" and trace.nbytes == 10**6 and trace.duration > 0
    assert trace.topology == memory and trace.bytes_received("cpu") == 2 * 10**6

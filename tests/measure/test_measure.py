"""Measuring gives real, plausible figures."""

from d2lps.measure import timing
from d2lps.units import Bandwidth


def test_a_copy_has_a_bandwidth_with_a_unit():
    bandwidth = timing.copy_bandwidth("1 MB", repeats=3)
    assert isinstance(bandwidth, Bandwidth) and 1e7 < bandwidth < 1e13 and str(bandwidth).endswith("B/s")

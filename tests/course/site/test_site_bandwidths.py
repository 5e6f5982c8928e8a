"""The page of bus bandwidths: nothing fitted, published rings met within 10 %, and a table for each topology."""

import re
from statistics import mean

import pytest

from course.site import bandwidths


def test_published_rings_are_met():
    errors = [speeds["all-reduce"][-1] / host.ring.speed - 1 for host, speeds in bandwidths.predicted() if host.ring]
    assert len(errors) == 5
    assert max(map(abs, errors)) < 0.1 and mean(map(abs, errors)) < 0.05


def test_bus_bandwidth_of_sums_in_the_switch_exceeds_the_link():
    over = {host.name: speeds["all-reduce, NVLS"][-1] for host, speeds in bandwidths.predicted() if host.switch}
    assert len(over) == 2
    for host, speeds in bandwidths.predicted():
        if host.switch:
            assert speeds["all-reduce, NVLS"][-1] > host.switch.speed > speeds["all-reduce"][-1]


@pytest.mark.parametrize("language", ["en", "vi", "zh"])
def test_the_page_has_a_table_for_each_topology(language):
    page = bandwidths.page(language)
    assert page.count("<table>") == len(bandwidths.hosts()) == 8
    assert len(re.findall(r'<a href="https://github.com/NVIDIA/', page)) == 7
    assert page.count("<tbody>") == 8 + 3 and not re.search(r"\de\+", page)  # and a picture: 8 topologies, 3 with NVLS
    assert "{" not in page and "nan" not in page

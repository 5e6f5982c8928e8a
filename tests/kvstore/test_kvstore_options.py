"""Options of a distributed store are looked at before anything is started, with every way to make one."""

from fractions import Fraction

import numpy as np
import pytest

from d2lps import kvstore
from d2lps.kvstore import Refused
from d2lps.kvstore.placement import Placement

MAKE = {
    "create": lambda servers=2, **options: kvstore.create("dist_sync", servers=servers, **options),
    "cluster": lambda servers=2, **options: kvstore.cluster(servers=servers, **options),
}


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), 1e18, "30", True, None, 1j])
def test_a_deadline_is_a_number_of_seconds(make, deadline):
    with pytest.raises(Refused, match="deadline = .*: seconds, more than 0"):
        MAKE[make](deadline=deadline)


@pytest.mark.parametrize("deadline", [np.float32(2.5), np.float64(2.5), np.int64(2), Fraction(5, 2), 2])
def test_a_number_of_seconds_may_be_of_any_type(deadline):
    with kvstore.cluster(workers=1, deadline=deadline) as stores:
        assert type(stores[0].deadline) is float and stores[0].deadline == float(deadline)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("servers", [0, -1, True, "2", 1.0])
def test_servers_are_counted(make, servers):
    with pytest.raises(Refused, match="servers = .*: a whole number, 1 or more"):
        MAKE[make](servers=servers)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("wrong", [{"nan": "ignore"}, {"lost": "wait"}])
def test_what_a_server_would_refuse_is_refused_at_once(make, wrong):
    with pytest.raises(Refused, match=r"(nan = 'ignore'|lost = 'wait'): it is one of"):
        MAKE[make](**wrong)


@pytest.mark.parametrize("placement", [{"large": 10, "virtual": 8}, Placement(2, large=10, virtual=8)])
def test_a_placement_is_given_as_it_is_or_by_its_numbers(placement):
    with kvstore.cluster(servers=2, placement=placement) as stores:
        assert (stores.placement.servers, stores.placement.large, stores.placement.virtual) == ((0, 1), 10, 8)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    "placement, sentence",
    [
        (Placement(3), r"placement is over servers \(0, 1, 2\), where there are 0 to 1"),
        ({"larger": 10}, "a Placement, or its numbers"),
        (["large"], "a Placement, or its numbers"),
        ({"large": 0}, "large = 0: a whole number, 1 or more"),
    ],
)
def test_another_placement_is_refused(make, placement, sentence):
    with pytest.raises(Refused, match=sentence):
        MAKE[make](placement=placement)

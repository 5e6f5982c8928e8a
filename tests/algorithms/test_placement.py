"""Keys to servers: the evenness of the ring, the keys that move when a server joins, the cuts of arrays."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps import kvstore
from d2lps.algorithms.placement import Placement, PlacementError

KEYS = [f"layer{i}.weight" for i in range(20_000)]


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_loads_differ_by_one_over_the_root_of_the_virtual_nodes(servers):
    for virtual in (16, 64, 256):
        shares = [Placement(servers, virtual=virtual).share(server) for server in range(servers)]
        assert sum(shares) == pytest.approx(1)
        assert statistics.pstdev(shares) * servers < 2 / virtual**0.5


def test_the_share_of_a_server_is_its_part_of_the_keys():
    place = Placement(4)
    for server in range(4):
        counted = sum(place.owner(key) == server for key in KEYS) / len(KEYS)
        assert counted == pytest.approx(place.share(server), abs=0.02)


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_a_server_that_joins_takes_its_part_and_nothing_moves_between_the_others(k):
    before, after = Placement(k), Placement(k + 1)
    moved = [key for key in KEYS if before.owner(key) != after.owner(key)]
    assert {after.owner(key) for key in moved} == {k}
    assert len(moved) / len(KEYS) == pytest.approx(1 / (k + 1), rel=0.35)


def test_a_server_that_leaves_gives_its_keys_to_all_others():
    before, after = Placement(range(5)), Placement([0, 1, 3, 4])
    moved = [key for key in KEYS if before.owner(key) != after.owner(key)]
    assert {before.owner(key) for key in moved} == {2} and {after.owner(key) for key in moved} == {0, 1, 3, 4}


@given(st.integers(0, 3000), st.integers(1, 9), st.integers(1, 7), st.integers(1, 1000))
def test_parts_are_all_of_a_key_in_order_and_rows_are_whole(rows, servers, width, large):
    elements = rows * width
    parts = Placement(servers, large=large).parts("w", elements, width)
    assert parts[0].start == 0 and parts[-1].stop == elements
    assert all(a.stop == b.start for a, b in zip(parts, parts[1:], strict=False))
    assert all(part.start % width == part.stop % width == 0 for part in parts)
    if elements < large:
        assert len(parts) == 1
    elif rows >= servers:
        sizes = [part.stop - part.start for part in parts]
        assert len(parts) == servers and max(sizes) - min(sizes) <= width


def test_three_and_its_name_are_two_keys():
    place = Placement(64)
    assert any(place.owner(i) != place.owner(str(i)) for i in range(20))


def test_a_whole_number_of_numpy_is_the_number():
    place = Placement(5, large=100)
    for number in (3, -1, 2**40):
        assert place.owner(np.int64(number)) == place.owner(number)
        for elements in (10, 1000):
            parts = place.parts(np.int64(number), elements)
            assert parts == place.parts(number, elements) and {type(part.key) for part in parts} == {int}


def test_it_says_who_holds_how_much():
    lines = str(Placement(3, large=1000)).splitlines()
    assert lines[0].startswith("server 0: ") and lines[0].endswith("% of the small keys")
    assert lines[-1] == "an array of 1000 elements or more is cut over all 3 servers"


WRONG = [
    {"servers": 0},
    {"servers": [1, 1]},
    {"servers": None},
    {"servers": 2, "large": 0},
    {"servers": 2, "virtual": True},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_placement_is_refused(wrong):
    with pytest.raises(PlacementError, match="1 or more"):
        Placement(**wrong)


@pytest.mark.parametrize("numbers", [{"large": 0}, {"virtual": True}])
def test_a_store_refuses_a_wrong_placement_as_any_other_option(numbers):
    with pytest.raises(PlacementError) as error:
        Placement(2, **numbers)
    with pytest.raises(kvstore.Refused) as refused:
        kvstore.cluster(servers=2, placement=numbers)
    assert str(refused.value) == str(error.value)


def test_the_placement_of_the_store_is_that_of_the_algorithm():
    assert kvstore.Placement is Placement

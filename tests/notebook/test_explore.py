"""``explore``: sliders draw plans, times and the race again, whatever a strategy does."""

import re

import pytest

from d2lps import Plan, PlanError, Send, aggregate_at, explore, one_memory, pcie_server, ring, sharded
from d2lps.notebook.explore import slowed
from d2lps.notebook.explore_page import MOST_MESSAGES
from d2lps.topology import TopologyError
from d2lps.units import UnitError


def times(lab) -> dict[str, float]:
    return {name: pytest.approx(1e3 * trace.duration) for name, trace in lab.traces.items()}


def page(lab) -> str:
    """Return the page for readers without a kernel; working out all positions takes half a second."""
    return lab._repr_mimebundle_()["text/html"]


def bars(page: str) -> list[str]:
    return re.findall(r"</span>([\d.]+ ms)", page)


def test_it_begins_with_the_race_of_chapter_01():
    lab = explore()
    assert times(lab) == {"GPU 0": 60, "CPU": 80, "shards": 15}
    assert bars(page(lab)) == ["60 ms", "80 ms", "15 ms"]
    assert repr(lab.player) == "<Player: GPU 0 60 ms, CPU 80 ms, shards 15 ms>"
    assert list(lab.controls) == ["gpus", "chunks", "nbytes", "bandwidth", "slow", "slower"]
    assert lab.controls["slow"].label == "none"


@pytest.mark.parametrize(
    "moved, wanted",
    [
        ({"gpus": 8}, {"GPU 0": 140, "CPU": 160, "shards": 17.5}),
        ({"chunks": 4}, {"GPU 0": 37.5, "CPU": 50, "shards": 15}),
        ({"nbytes": 640_000_000}, {"GPU 0": 240, "CPU": 320, "shards": 60}),
        ({"bandwidth": 32e9}, {"GPU 0": 30, "CPU": 40, "shards": 7.5}),
        ({"slow": ("cpu", "switch")}, {"GPU 0": 60, "CPU": 160, "shards": 15}),
        ({"slow": ("gpu0", "switch")}, {"GPU 0": 120, "CPU": 80, "shards": 30}),
        ({"slow": ("gpu0", "switch"), "slower": 10}, {"GPU 0": 600, "CPU": 200, "shards": 150}),
    ],
)
def test_each_slider_shows_everything_anew(moved, wanted):
    lab = explore()
    before = lab.player
    lab.set(**moved)
    assert times(lab) == wanted
    shown = lab._report.value
    assert [float(each.split()[0]) for each in bars(shown)] == list(wanted.values())
    assert lab.player is not before and list(lab.children[1].children) == [lab.player]
    assert all(str(trace.plan).splitlines()[0] in shown for trace in lab.traces.values())


def test_other_devices_have_other_links():
    lab = explore()
    lab.set(gpus=6, slow=("gpu5", "switch"))
    assert times(lab) == {"GPU 0": 100, "CPU": 120, "shards": pytest.approx(2 * 2 * 5 * 10 / 6)}
    lab.set(gpus=4)
    assert lab.controls["slow"].label == "none" and times(lab) == {"GPU 0": 60, "CPU": 80, "shards": 15}
    lab.set(slow=("gpu0", "switch"), gpus=5)
    assert lab.controls["slow"].value == ("gpu0", "switch")
    lab.set(slow=())
    assert times(lab) == {"GPU 0": 80, "CPU": 100, "shards": 16}


def test_a_slowed_link_is_slow_both_ways_and_no_other():
    server = pcie_server(2)
    slow = slowed(server, ("gpu0", "switch"), 4)
    assert {(link.src, link.dst) for link in slow.links if link.bandwidth == 4e9} == {
        ("gpu0", "switch"),
        ("switch", "gpu0"),
    }
    assert len(slow.links) == len(server.links) and slow.limits == server.limits


def test_a_place_without_a_bandwidth_has_no_slider_for_it():
    def memory(count):
        return one_memory([f"rank{i}" for i in range(count)], "10 GB/s")

    lab = explore({"ring": ring, "rank0": lambda ranks: aggregate_at(ranks, "rank0")}, memory, gpus=8, nbytes="40 MB")
    assert "bandwidth" not in lab.controls and times(lab) == {"ring": 56, "rank0": 56}


def test_a_strategy_that_fails_says_why_and_the_others_go_on():
    def mine(gpus):
        raise ValueError("<script>")

    def two(gpus):
        return Plan(gpus, {"g": 1}, [[Send("gpu1", "gpu0", "g", "add")]])

    lab = explore({"mine": mine, "two": two, "shards": sharded})
    assert times(lab) == {"shards": 15} and set(lab.refused) == {"mine", "two"}
    page = lab._repr_mimebundle_()["text/html"]
    assert "mine: ValueError: &lt;script&gt;" in page and "two: PlanError: " in page
    lab = explore({"mine": mine})
    assert lab.player is None and lab.traces == {} and repr(lab) == "<explore: mine>"


def test_large_plans_are_shown_as_numbers():
    lab = explore({"shards": sharded}, gpus=16)
    assert lab.player is not None
    lab.set(chunks=4)
    assert len(lab.traces["shards"].events) > MOST_MESSAGES
    assert lab.player is None and not lab.children[1].children
    shown = page(lab)
    assert str(MOST_MESSAGES) in shown and bars(shown) == ["18.75 ms"]
    lab.set(chunks=1)
    assert lab.player is not None


def test_a_start_value_may_lie_between_two_stops_of_a_slider():
    lab = explore(gpus=3, chunks=3, nbytes="100 MB", bandwidth="10 GB/s")
    assert lab.controls["nbytes"].label == "100 MB" and lab.controls["bandwidth"].label == "10 GB/s"
    assert lab.controls["chunks"].value == 3 and times(lab)["CPU"] == 40


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"gpus": 0}, TopologyError),
        ({"gpus": "4"}, TopologyError),
        ({"nbytes": "100"}, UnitError),
        ({"nbytes": -1}, UnitError),
        ({"bandwidth": "16 Gb/s"}, UnitError),
        ({"bandwidth": 16}, UnitError),
        ({"chunks": 0}, PlanError),
    ],
)
def test_invalid_input_is_refused(wrong, error):
    with pytest.raises(error):
        explore(**wrong)

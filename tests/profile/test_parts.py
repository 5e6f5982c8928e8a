"""Parts of a step add up to it, and each moment belongs to one of them."""

from pathlib import Path

import pytest
from helpers.profiles import ADD, COPY, GEMM, SEND, call, kernel, reduce, step, write
from hypothesis import given
from hypothesis import strategies as st

from d2lps import Trace
from d2lps.profile import ProfileError, divide, read, seen
from d2lps.profile.parts import lasts, union, without

KINETO = Path(__file__).with_name("kineto")
RECORDED = [["ddp_rank0"], ["dlrm_rank0"], ["dlrm_rank0", "dlrm_rank1"]]
EXACT = 1e-9  # sums of some hundred floats of less than a second


def microseconds(seconds):
    return {part: round(1e6 * each, 3) for part, each in seconds.items()}


def test_each_moment_goes_to_the_first_part_in_order(tmp_path):
    file = write(
        tmp_path,
        0,
        step(1, 0, 100),
        kernel(GEMM, 0, 20),
        kernel(ADD, 10, 30, 8),
        reduce(25, 50),
        kernel(COPY, 45, 60, 9),
        call("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 55, 75),
    )
    (found,) = divide(read([file]))
    parts = {"matrices": 20, "others": 10, "all_reduce": 20, "copies": 10, "loading": 15, "idle": 25}
    assert microseconds(found.parts) == parts
    assert microseconds(found.hidden) == {"all_reduce": 5} and found.waited == {}


def test_waiting_ends_when_the_last_rank_has_come(tmp_path):
    early = write(tmp_path, 0, step(1, 0, 100), kernel(GEMM, 0, 20), reduce(20, 70))
    late = write(tmp_path, 1, step(1, 0, 100), kernel(GEMM, 0, 50), reduce(50, 70))
    first, second = divide(read([late, early]))
    assert microseconds(first.parts) == {"matrices": 20, "others": 0, "all_reduce": 20, "waiting": 30, "idle": 30}
    assert microseconds(first.waited) == {1: 30} and second.waited == {}
    assert microseconds(second.parts) == {"matrices": 50, "others": 0, "all_reduce": 20, "idle": 30}


def test_waiting_for_another_stage_is_a_bubble(tmp_path):
    about = {"Process_Group_Ranks": "[0, 1]", "Process_Group_Description": "pp"}
    sender = kernel(SEND, 60, 70, 20, Collective_name="send", **about)
    receiver = kernel(SEND, 10, 70, 20, Collective_name="recv", **about)
    files = [
        write(tmp_path, 0, step(1, 0, 100), kernel(GEMM, 0, 60), sender),
        write(tmp_path, 1, step(1, 0, 100), kernel(ADD, 0, 10), receiver),
    ]
    _, found = divide(read(files))
    assert microseconds(found.parts) == {"matrices": 0, "others": 10, "bubble": 50, "p2p pp": 10, "idle": 30}


@pytest.mark.parametrize("host, apart", [({}, 0.0), ({"host_name": "one"}, 40.0)])
def test_clocks_of_different_hosts_are_set_by_the_end_of_a_collective(tmp_path, host, apart):
    """The second clock is ahead by 40 µs; with one host for both, this would be real."""
    events = [step(1, 0, 300), kernel(GEMM, 0, 10), reduce(10, 210)]
    later = [each | {"ts": each["ts"] + 40} for each in events]
    files = [write(tmp_path, 0, *events, **host), write(tmp_path, 1, *later, **host)]
    first, _ = divide(read(files))
    assert first.parts.get("waiting", 0.0) == pytest.approx(apart / 1e6, abs=EXACT)


def test_two_collectives_that_do_not_overlap_are_not_one(tmp_path):
    same = {"host_name": "one"}
    files = [
        write(tmp_path, 0, step(1, 0, 100), kernel(GEMM, 0, 10), reduce(10, 30), **same),
        write(tmp_path, 1, step(1, 0, 100), kernel(GEMM, 0, 50), reduce(50, 70), **same),
    ]
    assert all("waiting" not in found.parts for found in divide(read(files)))


def test_groups_are_told_apart_by_their_ranks_and_roles(tmp_path):
    def events(group, late):
        return step(1, 0, 100), kernel(GEMM, 0, late), reduce(late, 60, group, "dp"), reduce(60, 90, "[0, 1, 2, 3]")

    groups = {0: "[0, 2]", 1: "[1, 3]", 2: "[0, 2]", 3: "[1, 3]"}
    lates = {0: 10, 1: 40, 2: 20, 3: 50}
    files = [write(tmp_path, rank, *events(groups[rank], lates[rank]), world=4) for rank in range(4)]
    waited = {found.rank: microseconds(found.waited) for found in divide(read(files))}
    assert waited == {0: {2: 10}, 1: {3: 10}, 2: {}, 3: {}}


def test_a_step_ends_when_the_next_begins(tmp_path):
    file = write(tmp_path, 0, step(1, 0, 40), step(2, 50, 90), kernel(GEMM, 30, 60))
    assert [(found.step, round(1e6 * found.seconds)) for found in divide(read([file]))] == [(1, 50), (2, 40)]


def test_without_steps_the_whole_recording_is_one(tmp_path):
    (found,) = divide(read([write(tmp_path, 0, kernel(GEMM, 30, 60), kernel(ADD, 70, 80))]))
    assert found.step == 0 and microseconds(found.parts) == {"matrices": 30, "others": 10, "idle": 10}


@pytest.mark.parametrize("names", RECORDED, ids=" ".join)
def test_parts_of_recorded_steps_add_up_to_them(names):
    found = divide(read([KINETO / f"{name}.json.gz" for name in names]))
    assert len(found) == 2 * len(names)
    for each in found:
        assert sum(each.parts.values()) == pytest.approx(each.seconds, abs=EXACT)
        assert each.parts["matrices"] > 0 and each.parts["others"] > 0 and min(each.parts.values()) >= 0


def test_a_recorded_step_is_that_of_its_kernels():
    """DDP of a convolutional network: 5 all-reduces of 25.5 million gradients, two of them hardly hidden."""
    profile = read([KINETO / "ddp_rank0.json.gz"])[0]
    start, end = profile.steps[5]
    sent = [message for message in profile.messages if start <= message.start < end]
    reduced = [message for message in sent if message.collective == "all_reduce"]
    assert sum(message.nbytes for message in reduced) == 4 * 25_557_032 and profile.world == 2
    assert {message.group for message in reduced} == {(0, 1)} and {message.role for message in reduced} == {""}
    found = next(each for each in divide([profile]) if each.step == 5)
    whole = sum(message.end - message.start for message in reduced) / 1e9
    assert found.parts["all_reduce"] + found.hidden["all_reduce"] == pytest.approx(whole, abs=EXACT)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(SPANS, SPANS)
def test_spans_are_sets_of_moments(one, other):
    def moments(spans):
        return {at for start, end in spans for at in range(start, end)}

    left = without(union(one), union(other))
    assert moments(union(one)) == moments(one) and moments(left) == moments(one) - moments(other)
    assert lasts(union(one)) == pytest.approx(len(moments(one)) / 1e9) and union(left) == left


def test_a_step_becomes_a_trace_with_a_lane_per_stream(tmp_path):
    files = [
        write(tmp_path, rank, step(1, 0, 100), kernel(GEMM, 0, late), kernel(ADD, 75, 80), reduce(late, 70))
        for rank, late in enumerate((20, 50))
    ]
    trace = Trace.from_kineto(files)
    assert trace.plan.nodes == ("rank0/s7", "rank0/s20", "rank1/s7", "rank1/s20") and trace.measured
    tasks = {
        (e.src, e.op + e.key): (round(1e6 * e.start), round(1e6 * e.end)) for e in trace.events if e.kind == "task"
    }
    assert tasks["rank0/s7", "M"] == (0, 20) and tasks["rank1/s7", "K"] == (75, 80)
    assert tasks["rank0/s20", "A0"] == (20, 70) and tasks["rank1/s20", "A0"] == (50, 70)
    sends = {
        (e.src, e.dst): (round(1e6 * e.start), round(1e6 * e.end), e.nbytes) for e in trace.events if e.kind == "send"
    }
    way = "rank0/s20", "rank1/s20"
    assert sends == {way: (50, 70, 400), way[::-1]: (50, 70, 400)}
    assert Trace.from_json(trace.to_json()) == trace


def test_a_trace_of_many_kernels_has_few_tasks():
    trace = Trace.from_kineto(KINETO / "ddp_rank0.json.gz", step=6)
    profile = read([KINETO / "ddp_rank0.json.gz"])[0]
    computing = [e for e in trace.events if e.src == "rank0/s7"]
    assert 100 < len(computing) <= 400 < len(profile.others.start)
    assert all(a.end <= b.start for a, b in zip(computing, computing[1:], strict=False))


def test_a_step_that_a_rank_lacks_is_refused(tmp_path):
    profiles = read([write(tmp_path, 0, step(1, 0, 9), kernel(GEMM, 0, 9))])
    with pytest.raises(ProfileError, match="no step 7"):
        seen(profiles, 7)

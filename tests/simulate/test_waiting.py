"""The pushes of workers in virtual time: rounds, bounds and backup workers, by hand and by formula."""

import math

import pytest

from d2lps import Trace, simulate
from d2lps.simulate.waiting import HistoryError
from d2lps.view.drawing.motion import follow


def one_slow(random, rank):
    return 3.0 if rank == 2 else 1.0


def exponential(random, rank):
    return random.expovariate(1.0)


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


def test_a_round_takes_as_long_as_the_slowest_and_the_others_wait():
    run = simulate.synchronous(3, 4, one_slow)
    assert [step.seconds for step in run.steps] == [3, 6, 9, 12] and run.staleness == [0] * 12
    assert run.idle == pytest.approx(2 / 3 * 2 / 3) and run.dropped == ()


def test_with_a_backup_worker_the_slow_one_computes_for_nothing():
    run = simulate.synchronous(3, 7, one_slow, backup=1)
    assert [step.seconds for step in run.steps] == [1, 2, 3, 4, 5, 6, 7] and run.idle == 0
    assert {push.rank for step in run.steps for push in step.pushes} == {0, 1}
    assert [(push.rank, push.number, push.read, push.end) for push in run.dropped] == [(2, 1, 0, 3.0), (2, 3, 2, 6.0)]


def test_nobody_waits_and_gradients_are_older_the_slower_their_worker_is():
    run = simulate.asynchronous(3, 12, one_slow)
    assert run.idle == 0 and run.steps[-1].seconds == 6
    by_rank = {rank: [] for rank in range(3)}
    for step, tau in zip(run.steps, run.staleness, strict=True):
        by_rank[step.pushes[0].rank].append(tau)
    assert min(by_rank[2]) > max(by_rank[0] + by_rank[1])


@pytest.mark.parametrize("s", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_reads_who_is_too_far_ahead(s, seed):
    run = simulate.asynchronous(5, 200, exponential, staleness=s, seed=seed)
    pushed, times, leads = [0] * 5, [step.seconds for step in run.steps], []
    reads = sorted((push.start, push.read, push.rank, push.number) for step in run.steps for push in step.pushes)
    for _, read, rank, number in reads:
        pushed = [0] * 5
        for step in run.steps[:read]:
            pushed[step.pushes[0].rank] += 1
        assert pushed[rank] == number - 1  # it sees its own pushes
        leads.append(pushed[rank] - min(pushed))
    assert max(leads) == s and times == sorted(times)


def test_a_bound_costs_waiting_and_no_bound_costs_none():
    runs = [simulate.asynchronous(8, 400, exponential, staleness=s, seed=3) for s in (0, 1, 3, math.inf)]
    idle, tau = [run.idle for run in runs], [sum(run.staleness) / 400 for run in runs]
    assert idle == sorted(idle, reverse=True) and idle[0] > 0.5 and idle[-1] == 0
    assert tau == sorted(tau) and tau[0] == 3.5 and tau[-1] == pytest.approx(7, abs=0.3)


def test_exponential_times_make_a_round_as_long_as_the_harmonic_number():
    run = simulate.synchronous(100, 300, exponential)
    assert run.steps[-1].seconds / 300 == pytest.approx(harmonic(100), rel=0.05)
    some = simulate.synchronous(100, 300, exponential, backup=4).steps[-1].seconds / 300
    give_up = harmonic(100) - harmonic(4)
    assert harmonic(100) / give_up * 0.96 == pytest.approx(1.604, abs=0.001)
    assert give_up < some < 1.15 * give_up  # who is late finishes first


def test_the_same_seed_is_the_same_run_and_another_seed_another():
    runs = [simulate.asynchronous(4, 50, exponential, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: simulate.synchronous(3, 5, one_slow, travel=0.2),
        lambda: simulate.synchronous(3, 5, one_slow, backup=1, travel=0.2),
        lambda: simulate.asynchronous(3, 12, one_slow, staleness=1, travel=0.2),
    ],
)
def test_its_trace_can_be_played_and_kept(make):
    run = make()
    trace = run.trace()
    assert Trace.from_json(trace.to_json()) == trace
    assert trace.duration >= run.steps[-1].seconds
    assert sum(event.kind == "update" for event in trace.events) == len(run.steps)
    assert sum(event.op == "add" for event in trace.events) == sum(len(s.pushes) for s in run.steps) + len(run.dropped)
    follow(trace)


def test_a_dropped_gradient_carries_no_color_and_old_weights_lack_one():
    run = simulate.synchronous(3, 6, one_slow, backup=1, travel=0.2)
    motion = follow(run.trace())
    arrived = [motion.looks[message.look] for message in motion.messages if message.src == "w2"]
    assert arrived and all(look.who == () for look in arrived)
    late = follow(simulate.asynchronous(3, 9, one_slow, staleness=1, travel=0.2).trace())
    seen = [late.looks[message.look].who for message in late.messages if message.src == "server"]
    assert (0, 1) in seen and (0, 1, 2) in seen


def test_the_lanes_show_every_gradient_and_the_waiting_between():
    rounds, free = simulate.synchronous(3, 4, one_slow), simulate.asynchronous(3, 12, one_slow)
    spans = {
        node: [(event.start, event.end) for event in rounds.lanes().events if event.src == node]
        for node in ("w0", "w2")
    }
    assert spans == {"w0": [(0, 1), (3, 4), (6, 7), (9, 10)], "w2": [(0, 3), (3, 6), (6, 9), (9, 12)]}
    assert rounds.lanes().bubble() == pytest.approx(rounds.idle) and free.lanes().bubble() == free.idle == 0
    assert [push.rank for push in rounds.unfinished] == [0, 1, 2]  # each has read the last weights


def test_lanes_end_with_the_last_step_in_the_middle_of_a_gradient():
    run = simulate.asynchronous(3, 7, one_slow, travel=0.25)
    assert sorted((push.rank, push.start, push.end) for push in run.unfinished)[-1] == (2, 3.5, 7.0)
    (begun,) = [event for event in run.lanes().events if event.src == "w2" and event.start > 3]
    assert (begun.start, begun.end) == (3.75, run.steps[-1].seconds) == (3.75, 4.5)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: simulate.synchronous(0, 1, one_slow), "workers"),
        (lambda: simulate.asynchronous(1, 0, one_slow), "steps"),
        (lambda: simulate.synchronous(3, 1, one_slow, backup=3), "backup"),
        (lambda: simulate.asynchronous(3, 1, one_slow, staleness=-1), "staleness"),
        (lambda: simulate.asynchronous(3, 1, one_slow, staleness=math.nan), "staleness"),
        (lambda: simulate.asynchronous(3, 3, one_slow).trace(), "travel"),
    ],
)
def test_invalid_input_is_refused(make, says):
    with pytest.raises(HistoryError, match=says):
        make()

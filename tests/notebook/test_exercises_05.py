"""The exercises of chapter 05: right answers, and the judges of buckets, clocks and local steps."""

import math
import random
from collections import Counter, defaultdict
from itertools import combinations, pairwise

import pytest
from helpers.exercises import EXERCISES, module

from d2lps import check_exercise
from d2lps.notebook.grading.course import texts_of

torch = pytest.importorskip("torch")

CHAPTER = "05-asynchrony"
IDS = ("buckets", "staleness", "backup", "local-sgd")
SOLVED = {id: texts_of(id).solution() for id in IDS}
grader, judge_backup, judge_local_sgd, judge_buckets, judge_staleness, staleness_rules = (
    module(CHAPTER, name)
    for name in ("grader", "judge_backup", "judge_local_sgd", "judge_buckets", "judge_staleness", "staleness_rules")
)


# ---- right answers that are unlike the solutions


def by_heap(sizes, ready, alpha, bandwidth):
    """Goes on from whatever is done soonest, as on a map."""
    import heapq

    queue, seen = [(0.0, 0, ())], set()
    while True:
        free, i, cuts = heapq.heappop(queue)
        if i == len(sizes):
            return [list(range(start, stop)) for start, stop in pairwise((0, *cuts))]
        if i in seen:
            continue
        seen.add(i)
        for j in range(i + 1, len(sizes) + 1):
            arrived = max(free, ready[j - 1]) + alpha + sum(sizes[i:j]) / bandwidth
            heapq.heappush(queue, (arrived, j, (*cuts, j)))


def by_lag(n, s):
    """Keeps for each key who is how far, lets go of who leaves, and counts from the front."""
    there, clocks = set(range(n)), defaultdict(Counter)

    def push(worker, key, number):
        if number == clocks[key][worker] + 1:
            clocks[key][worker] = number

    def may_read(worker, key, number):
        behind = [other for other in there if clocks[key][other] + s < number]
        return not behind and clocks[key][worker] >= number

    return [push, may_read, there.discard]


class Rounds:
    """An object that adds on arrival, in double precision, and forgets what is over."""

    def __init__(self, n, b):
        self.n, self.open, self.version = n, {}, 0

    def __call__(self, worker, number, gradient):
        if number <= self.version:
            return None
        who, total = self.open.get(number, (frozenset(), 0))
        if worker not in who:
            who, total = who | {worker}, total + gradient.double()
            self.open[number] = who, total
        if len(who) == self.n:
            self.version = number
            self.open = {each: kept for each, kept in self.open.items() if each > number}
            return total / self.n
        return None


def recursive(weights, push, pull, step, h, share):
    """The steps one within the other."""
    if h > 0:
        return recursive(step(weights), push, pull, step, h - 1, share)
    push(weights.mul(share))
    return pull()


def in_place(weights, push, pull, step, h, share):
    """Writes into the weights that it was given, and in double precision."""
    weights = weights.double()
    while h:
        weights.copy_(step(weights))
        h -= 1
    weights *= share
    push(weights)
    weights.copy_(pull())
    return weights


RIGHT = {"buckets": [by_heap], "staleness": [by_lag], "backup": [Rounds], "local-sgd": [recursive, in_place]}
MEASURED = {  # 13 ms of sending end 4.5 ms after the backward pass
    "buckets": ["busy for 13 ms, and 4.5 ms of that", "65% is hidden"]
}


# ---- buckets


def every_cut(n):
    for count in range(n):
        for cuts in combinations(range(1, n), count):
            yield [list(range(start, stop)) for start, stop in pairwise((0, *cuts, n))]


def test_no_cut_is_better_than_the_best():
    for seed in range(20):
        draw = random.Random(seed)
        case = judge_buckets.drawn_case(seed, draw.randrange(1, 9), draw.choice((1e-5, 3e-4, 2e-3)), 5e9)
        end, buckets = judge_buckets.best(case)
        assert end == pytest.approx(min(judge_buckets.sent(case, each)[-1][1] for each in every_cut(len(case.sizes))))
        assert judge_buckets.sent(case, buckets)[-1][1] == pytest.approx(end)


def test_equally_fast_buckets_are_equally_right():
    case = judge_buckets.BucketsCase((4_000_000, 4_000_000), (1e-3, 2e-3), 1e-3, 1e9)
    for buckets in ([[0, 1]], [[0], [1]]):
        assert judge_buckets.judge(case, lambda *_, buckets=buckets: buckets)["end"] == "11\u00a0ms"


def test_the_first_case_needs_a_thought():
    """The obvious answer is slower there by at least 9 %."""
    case = EXERCISES["buckets"].cases[0]
    solutions, soonest = texts_of("buckets").solutions(), judge_buckets.best(case)[0]
    given = list(case.sizes), list(case.ready), case.alpha, case.bandwidth
    natural = [solutions[name] for name in ("every_one_alone", "all_together", "whatever_is_ready", "only_two")]
    natural += [solutions["up_to"](mb * 1e6) for mb in range(1, 15)]
    for answer in natural:
        assert judge_buckets.sent(case, answer(*given))[-1][1] > 1.09 * soonest


@pytest.mark.parametrize("most", [8, 14, 20, 30, 39])
def test_no_number_of_buckets_is_enough(most):
    """The best cut into a bounded number of buckets is refused, even if the bound is large."""

    def answer(sizes, ready, alpha, bandwidth):
        ends = {0: (0.0, [])}  # of the first j gradients, in at most so many buckets
        for _ in range(min(most, len(sizes))):
            more = dict(ends)
            for j in range(1, len(sizes) + 1):
                for i, (end, cut) in ends.items():
                    if i < j:
                        arrived = max(end, ready[j - 1]) + alpha + sum(sizes[i:j]) / bandwidth
                        more[j] = min(more.get(j, (math.inf,)), (arrived, [*cut, list(range(i, j))]))
            ends = more
        return ends[len(sizes)][1]

    verdict = check_exercise("buckets", answer, "100 s")
    assert not verdict.passed and "len(sizes) = 40 (" in verdict.sentence and "is possible" in verdict.sentence, verdict


# ---- staleness


@pytest.mark.parametrize("name, rule", staleness_rules.INSTEAD)
def test_every_rule_that_learners_write_instead_is_named(name, rule):
    def answer(n, s):
        made = rule(n, s)
        return made.push, made.may_read, made.leave

    verdict = check_exercise("staleness", answer, deadline="100 s")
    assert verdict.mistake == name, verdict


@pytest.mark.parametrize("s", [0, 1, 3, math.inf])
def test_drawn_trainings_have_every_difficulty_and_end(s):
    twice = overtaken = left = refused = 0
    for seed in range(judge_staleness.SEEDS):
        events, rule = judge_staleness.drawn_events(3, s, seed), staleness_rules.Rule(3, s)
        assert events == judge_staleness.drawn_events(3, s, seed)
        pushes = [event for event in events if event.kind == "push"]
        twice += len(pushes) - len(set(pushes))
        left += sum(event.kind == "leave" for event in events)
        for at, event in enumerate(events):
            overtaken += event.kind == "read" and event._replace(kind="push") not in events[:at]
        played = judge_staleness.play(events, rule, lambda *_: None, rule.may_read)
        refused += sum(not each.answer for each in played)
        assert {each.event for each in played if each.answer} == {each for each in events if each.kind == "read"}
    assert twice > 10 and overtaken > 3 and left == 3 * judge_staleness.SEEDS and refused > 3


def test_the_larger_the_bound_the_fewer_wait():
    told = judge_staleness.waits()
    counts = [int(told[name]) for name in ("zero", "one", "three", "never")]
    assert counts == sorted(counts, reverse=True) and len(set(counts)) == 4
    assert counts[0] > int(told["reads"]) / 2 and counts[3] < int(told["reads"]) / 10


def test_a_waiting_read_is_named_with_the_clocks():
    told = check_exercise("staleness", lambda n, s: (lambda *_: None, lambda *_: True, lambda _: None)).sentence
    assert "0:8 1:1 2:1" in told and told.endswith("read(0, 7, 8)")


# ---- backup


def test_the_sequences_have_every_difficulty():
    for case in EXERCISES["backup"].cases:
        twice = late = early = 0
        for pushes in case.sequences:
            for at, push in enumerate(pushes):
                twice += push in pushes[:at]
                late += judge_backup.closed(pushes[:at], push.number, case.n) and push not in pushes[:at]
                early += push.number > 1 and not judge_backup.closed(pushes[:at], push.number - 1, case.n)
        assert twice > 10 and (late > 10 or not case.b) and (early > 3 or case.n == 1)


def test_a_gradient_of_the_next_round_takes_no_place_of_this_one():
    def a_place_for_each_worker(n, b):
        places, closed = {}, [0]

        def receive(worker, number, gradient):
            if number <= closed[0]:
                return None
            if places.get(worker, (0,))[0] < number:
                places[worker] = number, gradient
            here = [gradient for of, gradient in places.values() if of == number]
            if len(here) < n:
                return None
            closed[0] = number
            return sum(here) / n

        return receive

    verdict = check_exercise("backup", a_place_for_each_worker)
    assert not verdict.passed, verdict


def test_waiting_for_the_first_is_as_long_as_drawn():
    """H(n+b) − H(b), beside 20,000 drawn rounds of 100 workers: 5.187 and 3.104."""
    told = grader.waiting_times(96, 4)
    assert told == {"everybody": "5.19", "first": "3.10", "wasted": "4%"}
    drawn = torch.empty(20000, 100).exponential_(generator=torch.Generator().manual_seed(1)).sort(1).values.mean(0)
    assert float(drawn[-1]) == pytest.approx(5.187, abs=0.05)
    assert float(drawn[95]) == pytest.approx(3.104, abs=0.03)


# ---- local steps


def test_one_local_step_is_a_synchronous_one():
    """The mean of the weights after one step each is the weights minus the mean of what the steps take away."""
    case, start = judge_local_sgd.LocalCase((0.5, 0.25, 0.25), 1), torch.linspace(-2, 2, judge_local_sgd.ELEMENTS)
    mean = judge_local_sgd._play(case, SOLVED["local-sgd"], judge_local_sgd.Round(case, 0, 0, start))
    gradients = [start - judge_local_sgd.stepped(i, 0, start) for i in range(3)]
    together = sum(share * gradient for share, gradient in zip(case.shares, gradients, strict=True))
    assert torch.allclose(mean, start - together, atol=1e-5)


def test_the_steps_of_two_workers_lead_elsewhere():
    case, start = EXERCISES["local-sgd"].cases[2], torch.zeros(judge_local_sgd.ELEMENTS)
    ends = [judge_local_sgd.Round(case, worker, 0, start).after(worker, case.local) for worker in range(3)]
    assert all(not judge_local_sgd.near(one, other) for one, other in combinations(ends, 2))


# ---- whatever else may be given


def test_an_answer_that_swallows_a_refusal_is_refused_again():
    def swallows(weights, push, pull, step, h, share):
        for each in (lambda: push("weights"), lambda: push(weights), pull, pull):
            try:
                each()
            except Exception:
                continue
        return weights

    assert check_exercise("local-sgd", swallows).mistake == "wrong-type"

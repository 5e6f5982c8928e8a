"""The exercises of chapter 03: right answers, bounds, and the sentences about answers."""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest
from helpers.exercises import EXERCISES, module

import d2lps
from d2lps import Plan, Send, Trace, check_exercise, cost, machines, ring, sharded
from d2lps.notebook.grading.course import texts_of
from d2lps.plan import check

CHAPTER = "03-many-machines"
IDS = ("servers", "seven-steps", "hierarchy", "best-mix")
judge_best_mix, judge_servers, judge_seven_steps, grader = (
    module(CHAPTER, name) for name in ("judge_best_mix", "judge_servers", "judge_seven_steps", "grader")
)


def rounded_up(m, machine, server):
    return math.ceil(m * machine / server)


def by_the_model(m, machine, server):
    """Asks the cost model until a further server changes nothing."""

    def takes(k):
        place = machines(m, 0, [f"{machine} B/s"] * m + [f"{server} B/s"] * k, servers=k)
        names = [f"server{j}" for j in range(k)]
        return cost.shared(sharded([f"host{i}/cpu" for i in range(m)], names), place, "1 GB").duration

    return next(k for k in range(1, 100) if takes(k + 1) == takes(k))


def in_one_pass(trace):
    """First start and last end of each step, by its (same machine, op)."""
    first, last = defaultdict(lambda: math.inf), defaultdict(float)
    for event in trace.events:
        same = event.src.rpartition("/")[0] == event.dst.rpartition("/")[0] != ""
        name = (same, event.op) if event.kind == "send" else "update"
        first[name], last[name] = min(first[name], event.start), max(last[name], event.end)
    names = {3: (True, "add"), 4: (False, "add"), 5: "update", 6: (False, "copy"), 7: (True, "copy")}
    return {step: last[name] - first[name] if name in last else 0 for step, name in names.items()}


def in_rings(hosts):
    """A reduce-scatter ring in every machine, rings between the machines, an all-gather ring in every machine."""
    m, n = len(hosts), len(hosts[0])
    keys = list(product(range(n), range(m)))

    def inside(t, op, ahead):
        return [
            Send(gpus[j], gpus[(j + 1) % n], f"{(j + ahead - t) % n}.{i}", op)
            for gpus in hosts
            for j in range(n)
            for i in range(m)
        ]

    def across(t):
        op = "add" if t < m - 1 else "copy"
        return [Send(hosts[i][j], hosts[(i + 1) % m][j], f"{j}.{(i - t) % m}", op) for j, i in keys]

    steps = [inside(t, "add", -1) for t in range(n - 1)]
    steps += [across(t) for t in range(2 * (m - 1))]
    steps += [inside(t, "copy", 0) for t in range(n - 1)]
    shares = {f"{j}.{i}": Fraction(1, m * n) for j, i in keys}
    return Plan([gpu for gpus in hosts for gpu in gpus], shares, steps)


def rail_after_rail(hosts):
    """One GPU of a machine fills its card as well as all of them."""
    plan = texts_of("hierarchy").solution()(hosts)
    between = [
        [send for send in step if send.key.startswith(f"{j}.")]
        for step in plan.steps[1:3]
        for j in range(len(hosts[0]))
    ]
    return Plan(plan.nodes, plan.share, [plan.steps[0], *between, plan.steps[3]])


def by_bisection(machines, bandwidth, servers):
    """Looks for the part of the servers with which a machine's card and a server's are done at the same time."""
    m, total = len(machines), sum(map(Fraction, servers.values()))
    if not servers:
        return dict.fromkeys(machines, Fraction(1, m))
    cards, low, high = total / Fraction(bandwidth), Fraction(0), Fraction(1)
    for _ in range(60):
        theirs = (low + high) / 2
        if 1 + (m - 2) * (1 - theirs) / m > m * theirs / cards:
            low = theirs
        else:
            high = theirs
    theirs = low
    return {machine: (1 - theirs) / m for machine in machines} | {
        server: theirs * Fraction(rate) / total for server, rate in servers.items()
    }


def as_text(machines, bandwidth, servers):
    return {node: str(share) for node, share in texts_of("best-mix").solution()(machines, bandwidth, servers).items()}


RIGHT = {
    "servers": [rounded_up, by_the_model],
    "seven-steps": [in_one_pass],
    "hierarchy": [in_rings, rail_after_rail],
    "best-mix": [by_bisection, as_text],
}
MEASURED = {  # parts of the sentence about the solution
    "servers": [
        "server = 1200 Mbit/s: 3 servers.",
        "take 1.867 s, 933.3 ms, 800 ms, 800 ms: the last one buys nothing",
    ],
    "seven-steps": ["step 4 1.624 s, step 5 10 ms", "lasts only 3.401 s"],
    "hierarchy": ["20.27 ms for four machines", "takes 22.4 ms"],
    "best-mix": ["for 505.3 ms.", "would need 600 ms", "the cost model says 521.1 ms"],
}


# ---- servers


def test_the_model_says_what_the_formula_says():
    for case in EXERCISES["servers"].cases:
        machine, server = (d2lps.units.bandwidth(rate) for rate in (case.machine, case.server))
        for k in range(1, 10):
            seconds = 2 * judge_servers.NBYTES * max(case.m / (k * server), 1 / machine)
            assert case.takes(k) == pytest.approx(seconds, rel=1e-12)
        assert case.enough() == max(1, math.ceil(Fraction(case.m) * Fraction(machine) / Fraction(server)))


@pytest.mark.parametrize(
    "answer, mistake",
    [(10**12, "differs"), (math.inf, "rounding"), (math.nan, "rounding"), (-1, "todo"), (True, "wrong-type")],
)
def test_any_number_gets_an_answer(answer, mistake):
    assert check_exercise("servers", lambda m, machine, server: answer).mistake == mistake


# ---- the seven steps


def test_the_traces_are_sound_and_unlike_predictions():
    for case in EXERCISES["seven-steps"].cases:
        trace = case.trace
        check(trace.plan)
        assert trace.origin == "made up" and Trace.from_json(trace.to_json()) == trace
        sums = {}  # when a node has what it sends
        for event in trace.events:
            assert event.start >= sums.get((event.src, event.key), 0.0) - 1e-12
            arrived = max(sums.get((event.dst, event.key), 0.0), event.end)
            sums[event.dst, event.key] = arrived


# ---- two levels


def test_two_levels_cost_what_the_formula_says_and_no_card_passes_more_than_it_must():
    S, card, inside = 160e6, 12.5e9, 150e9
    for case in EXERCISES["hierarchy"].cases:
        (hosts,) = case.arguments
        m, n = len(hosts), len(hosts[0])
        seconds = 2 * (n - 1) / n * S / inside + 2 * (m - 1) / m * S / card
        assert float(case.allowed) == pytest.approx(seconds, rel=1e-12) and case.bound <= case.allowed
        for answer in (texts_of("hierarchy").solution(), in_rings, rail_after_rail):
            plan = answer(hosts)
            assert cost.shared(plan, case.topology, case.nbytes).duration == pytest.approx(seconds, rel=1e-12)
            passed = grader.over_cards(plan)
            assert all(part == Fraction(2 * (m - 1), m) for part in passed.values())
            assert len(passed) == (2 * m if m > 1 else 0)


# ---- the best mix


def test_the_best_mix_is_that_of_byteps_where_servers_are_as_fast_as_machines():
    assert [round(float(byteps(8, k)), 3) for k in (0, 2, 4, 8)] == [1.75, 1.474, 1.273, 1.0]
    for m, k in product((2, 3, 4, 8), (0, 1, 2, 4)):
        if k <= m:
            case = judge_best_mix.mix_case(m, "8 Gbit/s", *["8 Gbit/s"] * k)
            assert case.bound == byteps(m, k) * case.nbytes / 10**9


def byteps(n, k):
    """Jiang et al., OSDI 2020: in units of S/b."""
    return Fraction(2 * n * (n - 1), n * n + k * n - 2 * k)


def test_no_other_mix_is_better():
    for case in EXERCISES["best-mix"].cases:
        hosts, _, servers = case.arguments
        rates = judge_best_mix.rates(case)
        total = sum(rates[server] for server in servers)
        best = texts_of("best-mix").solution()(*case.arguments)
        theirs = sum((best[server] for server in servers), Fraction(0))

        def takes(part, case=case, hosts=hosts, servers=servers, rates=rates, total=total):
            shares = {host: (1 - part) / len(hosts) for host in hosts}
            shares |= {server: part * rates[server] / total for server in servers}
            trace = cost.shared(judge_best_mix.served(case, shares, 2), case.topology, case.nbytes)
            return judge_best_mix.fullest(case, trace)[2]

        assert float(takes(theirs)) == pytest.approx(float(case.bound), rel=1e-12)
        for tenth in range(11 if servers else 1):
            assert takes(Fraction(tenth, 10)) >= takes(theirs) * (1 - Fraction(1, 10**9))


def test_equal_pieces_come_near_what_the_fullest_card_allows():
    solve = texts_of("best-mix").solution()
    for case in EXERCISES["best-mix"].cases[:2]:
        assert judge_best_mix.best_shares(case) == solve(*case.arguments)
        found = judge_best_mix.in_pieces(case)
        assert found == pytest.approx(33 / 32 * float(case.bound), rel=1e-9)
        two_steps = cost.shared(judge_best_mix.served(case, solve(*case.arguments), 1), case.topology, case.nbytes)
        alone = cost.shared(ring(case.workers), case.topology, case.nbytes)
        assert (
            two_steps.duration >= alone.duration
        )  # where a step ends before the way back begins, servers gain nothing

"""The algorithms: steps, bytes per node and times are the closed forms of their docstrings, for n = 1 … 9."""

from fractions import Fraction
from typing import NamedTuple

import pytest

from d2lps import Plan, Send, Update, aggregate_at, cost, pcie_server, sharded
from d2lps.steps import sends, updates

S = 160_000_000  # bytes
B = 16_000_000_000  # bytes per second, each way
CHUNKS = [1, 2, 3, 7]


class Case(NamedTuple):
    """A plan and its closed forms: times in units of S/b, bytes in units of S. ``node_bytes`` are sent and received."""

    plan: Plan
    steps: int
    shared: Fraction
    ideal: Fraction
    node_bytes: dict[str, Fraction]


def gpus(n, start=0):
    return [f"gpu{i}" for i in range(start, start + n)]


def overlapped(c):
    """c chunks in c + 1 steps, each 1/c of the whole: both phases take (c+1)/c together, and 2 without chunks."""
    return Fraction(c + 1, c)


def at_gpu0(n, c):
    others = n - 1
    return Case(
        aggregate_at(gpus(n), "gpu0", chunks=c),
        steps=c + 1 if others else 0,
        shared=overlapped(c) * others,
        ideal=overlapped(c) if others else Fraction(0),
        node_bytes={"gpu0": Fraction(others), **dict.fromkeys(gpus(others, 1), Fraction(1))},
    )


def at_cpu(n, c):
    return Case(
        aggregate_at(gpus(n), "cpu", chunks=c),
        steps=c + 1,
        shared=overlapped(c) * n,
        ideal=overlapped(c),
        node_bytes={"cpu": Fraction(n), **dict.fromkeys(gpus(n), Fraction(1))},
    )


def over_the_workers(n, c):
    return Case(
        sharded(gpus(n), chunks=c),
        steps=c + 1 if n > 1 else 0,
        shared=Fraction(2 * (n - 1), n),  # whatever c: both directions are full already
        ideal=overlapped(c) / n if n > 1 else Fraction(0),
        node_bytes=dict.fromkeys(gpus(n), Fraction(2 * (n - 1), n)),
    )


def over_some_of_the_workers(k):
    def case(n, c):
        some = min(k, n)
        in_the_middle = n + some - 2  # a server sends sums to the n−1 others, and to some−1 its own chunk
        return Case(
            sharded(gpus(n), servers=gpus(some), chunks=c),
            steps=c + 1 if n > 1 else 0,
            shared=Fraction(2 * (n - 1) + (c - 1) * in_the_middle, some * c),
            ideal=overlapped(c) / some if n > 1 else Fraction(0),
            node_bytes={
                **dict.fromkeys(gpus(n), Fraction(1)),
                **dict.fromkeys(gpus(some), Fraction(n + some - 2, some)),
            },
        )

    return case


def over_dedicated_servers(k):
    def case(n, c):
        servers = gpus(k, start=n)
        return Case(
            sharded(gpus(n), servers=servers, chunks=c),
            steps=c + 1,
            shared=overlapped(c) * max(Fraction(1), Fraction(n, k)),
            ideal=overlapped(c) / k,
            node_bytes={**dict.fromkeys(gpus(n), Fraction(1)), **dict.fromkeys(servers, Fraction(n, k))},
        )

    return case


def over_unequal_servers(n, c):
    parts = {f"gpu{n}": Fraction(1, 2), f"gpu{n + 1}": Fraction(1, 3), f"gpu{n + 2}": Fraction(1, 6)}
    # Messages of one worker run alike until the smallest has arrived: the worker's link and the servers' decide.
    phase, done = Fraction(0), Fraction(0)
    for running, part in zip((3, 2, 1), sorted(parts.values()), strict=True):
        phase += (part - done) * max(n, running)
        done = part
    return Case(
        sharded(gpus(n), servers={name: str(part) for name, part in parts.items()}, chunks=c),
        steps=c + 1,
        shared=overlapped(c) * phase,
        ideal=overlapped(c) * Fraction(1, 2),
        node_bytes={**dict.fromkeys(gpus(n), Fraction(1)), **{name: n * part for name, part in parts.items()}},
    )


CASES = {
    "aggregate_at gpu0": at_gpu0,
    "aggregate_at cpu": at_cpu,
    "sharded over the workers": over_the_workers,
    "sharded over 1 of the workers": over_some_of_the_workers(1),
    "sharded over 2 of the workers": over_some_of_the_workers(2),
    "sharded over 5 of the workers": over_some_of_the_workers(5),
    "sharded over 1 dedicated server": over_dedicated_servers(1),
    "sharded over 2 dedicated servers": over_dedicated_servers(2),
    "sharded over 4 dedicated servers": over_dedicated_servers(4),
    "sharded over unequal servers": over_unequal_servers,
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_n = pytest.mark.parametrize("n", range(1, 10))


@every_n
@every_case
def test_steps_bytes_and_times_are_the_closed_forms(case, n):
    for c in CHUNKS:
        plan, steps, shared, ideal, node_bytes = case(n, c)
        assert len(plan.steps) == steps
        server = pcie_server(gpus=n + 4, bandwidth="16 GB/s")
        predicted = cost.shared(plan, server, S)
        assert predicted.duration == pytest.approx(float(shared * S / B), rel=1e-12, abs=0)
        assert cost.ideal(plan, server, S).duration == pytest.approx(float(ideal * S / B), rel=1e-12, abs=0)
        assert set(plan.nodes) == set(node_bytes)
        for node, part in node_bytes.items():
            assert predicted.bytes_sent(node) == pytest.approx(float(part * S), rel=1e-12, abs=0)
            assert predicted.bytes_received(node) == pytest.approx(float(part * S), rel=1e-12, abs=0)


@every_case
def test_bytes_are_exact_fractions_of_the_buffer(case):
    plan, _, _, _, node_bytes = case(9, 7)
    for node, part in node_bytes.items():
        assert sum(plan.share[s.key] for step in plan.steps for s in sends(step) if s.src == node) == part
        assert sum(plan.share[s.key] for step in plan.steps for s in sends(step) if s.dst == node) == part


@every_n
@every_case
def test_ideal_is_never_slower_than_shared(case, n):
    for c in CHUNKS:
        plan, server = case(n, c).plan, pcie_server(gpus=n + 4)
        assert cost.ideal(plan, server, S).duration <= cost.shared(plan, server, S).duration


@every_n
def test_more_chunks_are_never_slower_and_approach_half(n):
    for case in (at_gpu0, at_cpu):
        times = [cost.shared(case(n, c).plan, pcie_server(gpus=n), S).duration for c in (1, 2, 3, 7, 100)]
        assert times == sorted(times, reverse=True)
        assert times[-1] == pytest.approx(times[0] / 2 * 1.01)


@every_n
def test_no_plan_among_the_workers_beats_the_lower_bound_and_sharding_meets_it(n):
    bound = float(Fraction(2 * (n - 1), n) * S / B)
    for case in (at_gpu0, over_the_workers, over_some_of_the_workers(2), over_some_of_the_workers(5)):
        for c in CHUNKS:
            assert cost.shared(case(n, c).plan, pcie_server(gpus=n), S).duration >= bound * (1 - 1e-12)
    assert cost.shared(sharded(gpus(n)), pcie_server(gpus=n), S).duration == pytest.approx(bound, rel=1e-12)


@every_n
def test_sums_begin_with_the_own_gradient_and_go_on_in_the_order_of_the_workers(n):
    workers = gpus(n)

    def added(first, *rest):
        return added((first, rest[0]), *rest[1:]) if rest else first

    for root in workers:
        others = [worker for worker in workers if worker != root]
        assert aggregate_at(workers, root).order("g") == added(root, *others)
        assert sharded(workers).order(f"g{workers.index(root) + 1}") == added(root, *others)
    assert aggregate_at(workers, "cpu").order("g") == added(*workers)


def test_a_plan_is_what_one_would_write_by_hand():
    assert aggregate_at(["a", "b"], "a") == Plan(
        ["a", "b"], {"g": 1}, [[Send("b", "a", "g", "add")], [Send("a", "b", "g", "copy")]]
    )
    assert aggregate_at(["a", "b"], "s", chunks=2) == Plan(
        ["a", "b", "s"],
        {"g1": "1/2", "g2": "1/2"},
        [
            [Send("a", "s", "g1"), Send("b", "s", "g1")],
            [Send("s", "a", "g1", "copy"), Send("s", "b", "g1", "copy"), Send("a", "s", "g2"), Send("b", "s", "g2")],
            [Send("s", "a", "g2", "copy"), Send("s", "b", "g2", "copy")],
        ],
        holds=["a", "b"],
        wants=["a", "b"],
    )


def test_one_server_is_aggregation_and_one_worker_has_nothing_to_do():
    one, star = sharded(gpus(4), servers=["cpu"]), aggregate_at(gpus(4), "cpu")
    assert [[s[:2] for s in step] for step in one.steps] == [[s[:2] for s in step] for step in star.steps]
    for alone in (aggregate_at(["gpu0"], "gpu0", chunks=3), sharded(["gpu0"], chunks=3)):
        assert alone.steps == () and alone.order(next(iter(alone.share))) == "gpu0"


@pytest.mark.parametrize("c", CHUNKS)
@pytest.mark.parametrize("make", [
    lambda c, u: aggregate_at(gpus(3), "gpu0", chunks=c, update=u),
    lambda c, u: aggregate_at(gpus(3), "cpu", chunks=c, update=u),
    lambda c, u: sharded(gpus(3), chunks=c, update=u),
    lambda c, u: sharded(gpus(3), {"cpu0": "2/3", "cpu1": "1/3"}, chunks=c, update=u),
])  # fmt: skip
def test_with_an_update_every_key_is_updated_once_where_it_is_summed_and_everyone_gets_the_weights(make, c):
    plan, without = make(c, ("sgd", {"lr": 0.1, "momentum": 0.9})), make(c, None)
    assert [sends(step) for step in plan.steps] == [sends(step) for step in without.steps]
    acts = [act for step in plan.steps for act in updates(step)]
    assert [act.key for act in acts] == list(dict.fromkeys(s.key for step in plan.steps for s in sends(step)))
    assert {act.key: act.node for act in acts} == {s.key: s.dst for step in plan.steps for s in step
                                                   if isinstance(s, Send) and s.op == "add"}  # fmt: skip
    assert all(act[2:] == ("sgd", (("lr", 0.1), ("momentum", 0.9))) for act in acts)
    assert {state for *_, state in plan.wants} == {"updated"}


def test_a_lone_worker_still_updates():
    plan = aggregate_at(["gpu0"], "gpu0", update=("sgd", {"lr": 0.1}))
    assert plan.steps == ((Update("gpu0", "g", "sgd", (("lr", 0.1),)),),)

"""The algorithms: steps, bytes per node and times are the closed forms of their docstrings, for n from 1 on."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import pytest
from helpers.plans import large_beyond
from helpers.plans import ring as ring_by_hand

from d2lps import (
    Plan,
    PlanError,
    Send,
    Topology,
    Update,
    aggregate_at,
    all_gather,
    all_to_all,
    bidirectional_ring,
    broadcast,
    bruck,
    check,
    cost,
    double_tree,
    doubling,
    gather,
    halving,
    halving_doubling,
    naive_ring,
    one_memory,
    pcie_server,
    recursive_doubling,
    reduce,
    reduce_scatter,
    ring,
    scatter,
    sharded,
    together,
    tree,
    two_rings,
)
from d2lps.plan.acts import sends, updates
from d2lps.plan.lazy import Lazy
from d2lps.topology import both_ways
from d2lps.trace import Predicted

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
every_n = pytest.mark.parametrize("n", [1, 2, 3, 5, 8])


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
def test_sums_begin_with_the_own_gradient_and_go_on_in_the_order_of_the_workers(n):
    workers = gpus(n)

    def added(first, *rest):
        return added((first, rest[0]), *rest[1:]) if rest else first

    for root in workers:
        others = [worker for worker in workers if worker != root]
        assert aggregate_at(workers, root).order("g") == added(root, *others)
        assert sharded(workers).order(f"g{workers.index(root) + 1}") == added(root, *others)
    assert aggregate_at(workers, "cpu").order("g") == added(*workers)


def test_a_plan_equals_one_written_by_hand():
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
@pytest.mark.parametrize(
    "make",
    [
        lambda c, u: aggregate_at(gpus(3), "gpu0", chunks=c, update=u),
        lambda c, u: aggregate_at(gpus(3), "cpu", chunks=c, update=u),
        lambda c, u: sharded(gpus(3), chunks=c, update=u),
        lambda c, u: sharded(gpus(3), {"cpu0": "2/3", "cpu1": "1/3"}, chunks=c, update=u),
    ],
)
def test_with_an_update_every_key_is_updated_once_where_it_is_summed_and_everyone_gets_the_weights(make, c):
    plan, without = make(c, ("sgd", {"lr": 0.1, "momentum": 0.9})), make(c, None)
    assert [sends(step) for step in plan.steps] == [sends(step) for step in without.steps]
    acts = [act for step in plan.steps for act in updates(step)]
    assert [act.key for act in acts] == list(dict.fromkeys(s.key for step in plan.steps for s in sends(step)))
    assert {act.key: act.node for act in acts} == {
        s.key: s.dst for step in plan.steps for s in step if isinstance(s, Send) and s.op == "add"
    }
    assert all(act[2:] == ("sgd", (("lr", 0.1), ("momentum", 0.9))) for act in acts)
    assert {state for *_, state in plan.wants} == {"updated"}


def test_a_lone_worker_still_updates():
    plan = aggregate_at(["gpu0"], "gpu0", update=("sgd", {"lr": 0.1}))
    assert plan.steps == ((Update("gpu0", "g", "sgd", (("lr", 0.1),)),),)


# ---------------------------------------------------------------- without chunks: closed forms with latency

A = "5 us"  # of each of the two links on a message's way
ALPHA = 2 * Fraction(5e-6)


class Form(NamedTuple):
    """A plan for n workers on links of their own, and its closed form: steps·α + times·S/b, and bytes in units of S."""

    plan: Callable[[int], Plan]
    steps: Callable[[int], int]
    times: Callable[[int], Fraction]
    sent: Callable[[int], list[Fraction]]
    received: Callable[[int], list[Fraction]] | None = None  # if left out: as much as it sends


def lg(n):
    """⌈lg n⌉."""
    return (n - 1).bit_length()


def alike(part):
    return lambda n: [part(n)] * n


def passed_on(n):
    """Whole tensors in a binomial tree: one to the parent, one to each child; and the same back."""
    children = [sum(i % (2 * d) == 0 and i + d < n for d in (2**t for t in range(lg(n)))) for i in range(n)]
    return [Fraction(count + (i > 0)) for i, count in enumerate(children)]


def children(n):
    """Whole tensors in a binomial tree, from the parent to each child."""
    return [Fraction(sum(i % (2 * d) == 0 and i + d < n for d in (2**t for t in range(lg(n))))) for i in range(n)]


def around(n, ends):
    return [Fraction(2 - (i in ends)) if n > 1 else Fraction(0) for i in range(n)]


def both_halves(n):
    return Fraction(2 * (n - 1), n)


def one_half(n):
    return Fraction(n - 1, n)


def one_half_of_a_part(n):
    return Fraction(n - 1, n * n)


def by_powers(n):
    """Bruck's all-to-all: a part goes as many times as its way has bits."""
    return Fraction(sum(way.bit_count() for way in range(n)), n * n)


FORMS = {
    "star on a worker": Form(
        lambda n: aggregate_at(gpus(n), "gpu0"),
        lambda n: 2 * (n > 1),
        lambda n: 2 * (n - 1),
        lambda n: [Fraction(n - 1), *[Fraction(1)] * (n - 1)],
    ),
    "sharded": Form(lambda n: sharded(gpus(n)), lambda n: 2 * (n > 1), both_halves, alike(both_halves)),
    "ring": Form(lambda n: ring(gpus(n)), lambda n: 2 * (n - 1), both_halves, alike(both_halves)),
    "reduce-scatter": Form(lambda n: reduce_scatter(gpus(n)), lambda n: n - 1, one_half, alike(one_half)),
    "all-gather": Form(lambda n: all_gather(gpus(n)), lambda n: n - 1, one_half, alike(one_half)),
    "reduce-scatter, direct": Form(
        lambda n: reduce_scatter(gpus(n), direct=True), lambda n: int(n > 1), one_half, alike(one_half)
    ),
    "all-gather, direct": Form(
        lambda n: all_gather(gpus(n), direct=True), lambda n: int(n > 1), one_half, alike(one_half)
    ),
    "all-gather, Bruck": Form(lambda n: bruck(gpus(n)), lg, one_half, alike(one_half)),
    "all-to-all": Form(lambda n: all_to_all(gpus(n)), lambda n: n - 1, one_half_of_a_part, alike(one_half_of_a_part)),
    "all-to-all in few steps": Form(lambda n: all_to_all(gpus(n), few_steps=True), lg, by_powers, alike(by_powers)),
    "broadcast along a chain": Form(
        lambda n: broadcast(gpus(n), chunks=3),
        lambda n: (n + 1) * (n > 1),
        lambda n: Fraction((n + 1) * (n > 1), 3),
        lambda n: [Fraction(i < n - 1) for i in range(n)],
        lambda n: [Fraction(i > 0) for i in range(n)],
    ),
    "reduce along a chain": Form(
        lambda n: reduce(gpus(n), chunks=3),
        lambda n: (n + 1) * (n > 1),
        lambda n: Fraction((n + 1) * (n > 1), 3),
        lambda n: [Fraction(i > 0) for i in range(n)],
        lambda n: [Fraction(i < n - 1) for i in range(n)],
    ),
    "broadcast": Form(lambda n: broadcast(gpus(n)), lg, lg, children, lambda n: [Fraction(i > 0) for i in range(n)]),
    "reduce": Form(lambda n: reduce(gpus(n)), lg, lg, lambda n: [Fraction(i > 0) for i in range(n)], children),
    "naive ring": Form(
        lambda n: naive_ring(gpus(n)),
        lambda n: 2 * (n - 1),
        lambda n: 2 * (n - 1),
        lambda n: around(n, {n - 2, n - 1}),
        lambda n: around(n, {0, n - 1}),
    ),
    "bidirectional ring through one port": Form(
        lambda n: bidirectional_ring(gpus(n)), lambda n: 2 * (n - 1), both_halves, alike(both_halves)
    ),
    "tree": Form(lambda n: tree(gpus(n)), lambda n: 2 * lg(n), lambda n: 2 * lg(n), passed_on),
}
SIZES = [1, 2, 3, 4, 5, 8, 16, 19]


def exactly(fraction):
    return pytest.approx(float(fraction), rel=1e-12, abs=0)


def moved(plan, end):
    """Return the bytes that each node sends (end 0) or receives (end 1), in units of S."""
    found = dict.fromkeys(plan.nodes, Fraction(0))
    for send in (send for step in plan.steps for send in sends(step)):
        found[send[end]] += plan.share[send.key]
    return list(found.values())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_without_chunks_all_is_the_closed_form_with_its_latency(form, n):
    plan, place = form.plan(n), pcie_server(gpus=n, bandwidth="16 GB/s", latency=A)
    trace = cost.shared(plan, place, S)
    assert trace.duration == exactly(form.steps(n) * ALPHA + form.times(n) * Fraction(S, B))
    assert (trace.steps, len(trace.events)) == (form.steps(n), sum(map(len, plan.steps)))
    assert moved(plan, 0) == form.sent(n)
    assert moved(plan, 1) == (form.received or form.sent)(n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_k_dedicated_servers(n, k):
    plan, place = sharded(gpus(n), servers=gpus(k, start=n)), pcie_server(gpus=n + k, latency=A)
    assert cost.shared(plan, place, S).duration == exactly(2 * ALPHA + 2 * max(1, Fraction(n, k)) * Fraction(S, B))
    star = aggregate_at(gpus(n), "cpu")
    assert cost.shared(star, place, S).duration == exactly(2 * ALPHA + 2 * n * Fraction(S, B))


@pytest.mark.parametrize("make", [scatter, gather])
@pytest.mark.parametrize("n", SIZES)
def test_scatter_and_gather(make, n):
    plan = make(gpus(n))
    assert len(plan.steps) == lg(n)
    root = moved(plan, 0 if make is scatter else 1)[0]
    assert root == one_half(n)
    trace = cost.shared(plan, pcie_server(gpus=n, latency=A), S)
    assert trace.duration >= float(lg(n) * ALPHA + one_half(n) * Fraction(S, B)) * (1 - 1e-12)
    if n & (n - 1) == 0:
        assert trace.duration == exactly(lg(n) * ALPHA + one_half(n) * Fraction(S, B))


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_pairs_that_exchange_whole_tensors_or_halves(n):
    place = pcie_server(gpus=n, latency=A)
    whole, parts = lg(n) * (ALPHA + Fraction(S, B)), lg(n) * ALPHA + one_half(n) * Fraction(S, B)
    assert cost.shared(recursive_doubling(gpus(n)), place, S).duration == exactly(whole)
    for make in (halving, doubling):
        assert cost.shared(make(gpus(n)), place, S).duration == exactly(parts)
    owners = {(node, key) for node, key, _ in halving(gpus(n)).wants}
    assert owners == {*doubling(gpus(n)).holds} == {*bruck(gpus(n)).holds}


@pytest.mark.parametrize("make", [recursive_doubling, halving, doubling])
@pytest.mark.parametrize("n", [3, 6, 12])
def test_pairs_need_a_power_of_two(make, n):
    with pytest.raises(PlanError, match=f"{n}"):
        make(gpus(n))


@pytest.mark.parametrize("n, travels", [(8, Fraction(3, 2)), (13, Fraction(22, 13))])
def test_all_to_all_in_few_steps_sends_more(n, travels):
    # Of the buffer of a node: 1.5 S for 8 nodes, 1.692 S for 13, instead of (n−1)/n.
    assert [part * n for part in moved(all_to_all(gpus(n), few_steps=True), 0)] == [travels] * n


@pytest.mark.parametrize("make", [halving_doubling, bruck])
def test_joined_messages_cost_what_single_ones_cost(make):
    n = 16
    with large_beyond(8):
        plan = make(gpus(n))
    assert isinstance(plan.steps, Lazy)
    alone = Plan(plan.nodes, plan.share, tuple(plan.steps), plan.holds, plan.wants)
    for place in (pcie_server(gpus=n, latency=A), one_memory(gpus(n), "16 GB/s", "9 GB/s", "20 us")):
        joined, single = cost.shared(plan, place, S), cost.shared(alone, place, S)
        assert joined.duration == single.duration
        assert [e.end for e in joined.events[:50]] == [e.end for e in single.events[:50]]
        assert len(joined.events) == len(single.events)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_halving_and_doubling(n):
    plan = halving_doubling(gpus(n))
    trace = cost.shared(plan, pcie_server(gpus=n, latency=A), S)
    assert trace.duration == exactly(2 * lg(n) * ALPHA + both_halves(n) * Fraction(S, B))
    assert (trace.steps, len(trace.events)) == (2 * lg(n), 2 * n * (n - 1))
    assert moved(plan, 0) == moved(plan, 1) == [both_halves(n)] * n
    half = len(plan.steps) // 2
    begun = Plan(plan.nodes, plan.share, plan.steps[:half], wants=[(f"gpu{i}", f"g{i + 1}") for i in range(n)])
    assert len(begun.steps) == lg(n)


def test_halving_and_doubling_refuse_any_other_number():
    for n in [n for n in range(1, 65) if n & (n - 1)]:
        with pytest.raises(PlanError) as caught:
            halving_doubling(gpus(n))
        assert caught.value.reason == "power-of-two"


def neighbours(n):
    """n nodes in a circle, each with a full-duplex link to either neighbour; two of them have two links."""
    around = {tuple(sorted((i, (i + 1) % n))) for i in range(n)} if n > 1 else set()
    count = 2 if n == 2 else 1
    links = [link for i, j in sorted(around) for link in both_ways(f"gpu{i}", f"gpu{j}", "16 GB/s", A, count)]
    return Topology("circle", dict.fromkeys(gpus(n), "gpu"), links)


@pytest.mark.parametrize("n", SIZES)
def test_both_ways_round_halve_the_time_where_the_links_are_separate(n):
    latency = 2 * (n - 1) * Fraction(5e-6)
    circle = neighbours(n)
    assert cost.shared(bidirectional_ring(gpus(n)), circle, S).duration == exactly(latency + one_half(n) * S / B)
    if n > 2:
        assert cost.shared(ring(gpus(n)), circle, S).duration == exactly(latency + both_halves(n) * S / B)


# ---------------------------------------------------------------- two trees


def double_tree_form(n, c):
    """Return (steps, times S/b) of the docstring."""
    height = n.bit_length() - 1
    steps = 2 * (c + height - 1) if n > 1 else 0
    return steps, {1: Fraction(0), 2: Fraction(1), 4: Fraction(2 * c + 1, c)}.get(n, Fraction(steps, c))


@pytest.mark.parametrize("n", [*range(1, 9), 13, 16, 33])
def test_two_trees(n):
    for c in (1, 2, 5, None):
        plan = double_tree(gpus(n), c)
        chunks = len(plan.share) // 2
        assert chunks == (c or max(1, 4 * (n.bit_length() - 1)))
        steps, times = double_tree_form(n, chunks)
        trace = cost.shared(plan, pcie_server(gpus=n, latency=A), S)
        assert (trace.steps, len(trace.events)) == (steps, 4 * (n - 1) * chunks)
        assert trace.duration == exactly(steps * ALPHA + times * Fraction(S, B))
        assert moved(plan, 0) == moved(plan, 1)
        assert max(moved(plan, 0)) <= 2 and sum(moved(plan, 0)) == 2 * (n - 1)
    assert times < Fraction(5, 2)


@pytest.mark.parametrize("n", [*range(1, 18), 33, 64])
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(n):
    plan, inner = double_tree(gpus(n), chunks=1), {"g1": set(), "g2": set()}
    for send in (send for step in plan.steps for send in sends(step) if send.op == "add"):
        inner[send.key].add(send.dst)
    assert not inner["g1"] & inner["g2"]
    for key in inner:
        parents = [s.src for step in plan.steps for s in sends(step) if (s.op, s.key) == ("copy", key)]
        assert all(parents.count(node) <= 2 for node in plan.nodes)


# ---------------------------------------------------------------- halves, rings in parts, several together


@every_n
@pytest.mark.parametrize("direct", [False, True])
def test_the_halves_make_the_whole_and_meet_where_one_ends_and_the_other_begins(n, direct):
    first, second = reduce_scatter(gpus(n), direct), all_gather(gpus(n), direct)
    whole = sharded(gpus(n)) if direct else ring(gpus(n))
    assert whole == Plan(whole.nodes, whole.share, [*first.steps, *second.steps])
    assert [(node, key) for node, key, _ in first.wants] == list(second.holds)
    assert len(second.holds) == n


def test_the_ring_of_the_texts():
    """Key 1 starts on node 1 and is complete on node n: (2,4,6), (1,2,3), (4,8,12) give 7 on 3, 14 on 1, 21 on 2."""
    devices = ["1", "2", "3"]
    numbers = {"1": [2, 4, 6], "2": [1, 2, 3], "3": [4, 8, 12]}
    half = reduce_scatter(devices)
    assert half.steps[0][0] == Send("1", "2", "g1", "add")
    complete = {node: sum(numbers[d][int(key[1:]) - 1] for d in devices) for node, key, _ in half.wants}
    assert complete == {"3": 7, "1": 14, "2": 21}
    assert half.order("g1") == ("3", ("2", "1"))


@every_n
def test_the_ring_equals_one_written_by_hand(n):
    assert ring(gpus(n)) == ring_by_hand(gpus(n))


def test_several_together_take_as_long_as_the_longest_and_share_the_links():
    workers = gpus(4)
    half_each = together(ring(workers), tree(workers, key="h"))
    assert [str(part) for part in half_each.share.values()] == ["1/8"] * 4 + ["1/2"]
    assert len(half_each.steps) == 6 and half_each.order("h") == tree(workers).order("g")
    served = sharded(workers, ["cpu"], key="h", update=("sgd", {"lr": 0.1}))
    uneven = together(ring(workers), served, shares=["0.75", "1/4"])
    assert uneven.nodes == (*workers, "cpu") and uneven.share["h1"] == Fraction(1, 4)
    assert {state for _, key, state in uneven.wants if key == "h1"} == {"updated"}
    assert ("cpu", "g1") not in uneven.holds and together(uneven) == uneven


def test_keys_bear_the_name_that_was_asked_for():
    workers = gpus(4)
    for make in (
        ring,
        reduce_scatter,
        all_gather,
        naive_ring,
        bidirectional_ring,
        tree,
        halving_doubling,
        double_tree,
        sharded,
        lambda nodes, key: aggregate_at(nodes, "gpu0", key=key),
    ):
        assert all(name.startswith("own") for name in make(workers, key="own").share)


DOUBLE, SINGLE = "0-3 3-2 2-1 1-5 5-6 6-7 7-4 4-0", "0-1 1-3 3-7 7-5 5-4 4-6 6-2 2-0"


@pytest.mark.parametrize(
    "rate, both, milliseconds",
    [
        ("18 GB/s", False, Fraction(140, 27)),
        ("18 GB/s", True, Fraction(70, 27)),
        ("25 GB/s", False, Fraction(56, 15)),
        ("25 GB/s", True, Fraction(28, 15)),
    ],
)
def test_two_rings_on_a_dgx_1(rate, both, milliseconds):
    links = [
        link
        for hops, count in ((DOUBLE, 2), (SINGLE, 1))
        for hop in hops.split()
        for link in both_ways(f"gpu{hop[0]}", f"gpu{hop[2]}", rate, count=count)
    ]
    mesh = Topology("dgx1", dict.fromkeys(gpus(8), "gpu"), links)
    plan = two_rings(mesh, both)
    for model in (cost.shared, cost.ideal):  # no link carries two messages
        assert model(plan, mesh, S).duration == exactly(milliseconds / 1000)
    assert plan.nodes == tuple(gpus(8)) and len(plan.steps) == 14
    assert moved(plan, 0) == moved(plan, 1) == [both_halves(8)] * 8
    first, *_, last = (part * 8 for part in plan.share.values())
    assert sorted([first, last]) == ([Fraction(1, 6), Fraction(1, 3)] if both else [Fraction(1, 3), Fraction(2, 3)])


# ---------------------------------------------------------------- beyond 64 nodes


LAZY = {
    "ring": lambda: ring(gpus(9)),
    "reduce-scatter": lambda: reduce_scatter(gpus(9)),
    "all-gather": lambda: all_gather(gpus(9)),
    "bidirectional ring": lambda: bidirectional_ring(gpus(9)),
    "halving-doubling": lambda: halving_doubling(gpus(16)),
    "all-to-all": lambda: all_to_all(gpus(9)),
    "all-to-all in few steps": lambda: all_to_all(gpus(9), few_steps=True),
    "Bruck": lambda: bruck(gpus(9)),
    "together": lambda: together(ring(gpus(9)), ring(gpus(12), key="h")),
}


@pytest.mark.parametrize(
    "make, beyond",
    [*((make, 8) for make in LAZY.values()), (lambda: ring(gpus(65)), 64)],
    ids=[*LAZY, "ring, which is really large"],
)
def test_a_lazy_plan_is_the_plan_that_is_written_out(make, beyond):
    with large_beyond(beyond):
        lazy = make()
        assert isinstance(lazy.steps, Lazy)
        written = Plan(lazy.nodes, lazy.share, tuple(lazy.steps), list(lazy.holds), list(lazy.wants))
        check(lazy)
        assert not isinstance(written.steps, Lazy)
        assert lazy == written and written == lazy and hash(lazy) == hash(written) and lazy == make()
        assert lazy != Plan(lazy.nodes, lazy.share, lazy.steps[:-1], lazy.holds, lazy.wants)
        assert pickle.loads(pickle.dumps(lazy)) == lazy and repr(lazy) == repr(written)
        place = pcie_server(gpus=65, latency=A)
        thought, listed = cost.shared(lazy, place, S), cost.shared(written, place, S)
        assert isinstance(thought.events, Predicted)
        assert (thought.duration, thought.step_times(), thought) == (listed.duration, listed.step_times(), listed)
        assert thought.events[-1] == listed.events[-1] and thought.events[15:17] == listed.events[15:17]
        assert len(thought.events) == len(listed.events)


def test_json_writes_a_lazy_plan_out():
    lazy = reduce_scatter(gpus(66))
    assert Plan.from_json(lazy.to_json()) == lazy


def test_a_duration_is_known_without_making_the_events(monkeypatch):
    trace = cost.shared(ring(gpus(100)), pcie_server(gpus=100), S)
    monkeypatch.setattr(Predicted, "step", None)
    assert trace.duration == exactly(both_halves(100) * S / B)
    assert len(trace.step_times()) == trace.steps == 198 and "19800 events" in repr(trace)


def test_a_step_of_equal_messages_is_timed_without_filling(monkeypatch):
    monkeypatch.setattr(cost, "fluid", None)
    trace = cost.shared(ring(gpus(100)), pcie_server(gpus=100, latency=A), S)
    assert trace.duration == exactly(2 * 99 * ALPHA + both_halves(100) * Fraction(S, B))


def test_a_large_plan_is_pickled_as_the_call_that_makes_it():
    plan = ring(gpus(1000))
    pickled = pickle.dumps(plan)
    assert len(pickled) < 100_000 and pickle.loads(pickled) == plan
    half = reduce_scatter(gpus(1000))
    assert pickle.loads(pickle.dumps(half)).steps == half.steps == plan.steps[:999]

"""Carriers of several processes: the same bits as Here, from every algorithm, on any number of ranks, in any memory."""

import gc
import os
import pickle
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from helpers.plans import legal_plans
from helpers.ranks import outcome, ranks, settled
from helpers.tensors import LARGER, LOGADDEXP, UPDATING, gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lps import (
    Here,
    Plan,
    Processes,
    RankLost,
    Send,
    SharedMemory,
    Trace,
    aggregate_at,
    all_gather,
    all_to_all,
    bidirectional_ring,
    broadcast,
    bruck,
    double_tree,
    doubling,
    gather,
    halving,
    halving_doubling,
    hierarchical,
    naive_ring,
    recursive_doubling,
    reduce,
    reduce_scatter,
    ring,
    run,
    scatter,
    sharded,
    together,
    tree,
)
from d2lps.carriers import ranks as ranks_module
from d2lps.carriers.execute import compile
from d2lps.plan.acts import sends, updates
from d2lps.view.drawing.still import origin

CARRIERS = [Processes, SharedMemory]
BUFFERS = [
    (13, torch.float32),
    (1009, torch.float32),
    (1, torch.float64),
    (100, torch.bfloat16),
    (0, torch.float32),
    (64, torch.int64),
    (7, torch.float16),
    (3, torch.int32),
    (5, torch.float64),
    (1009, torch.bfloat16),
]
MEMORIES = {  # the place of the tensors of rank r
    "ordinary": lambda rank, values: values.clone(),
    "shared": lambda rank, values: SharedMemory.tensor(values),
    "mixed": lambda rank, values: values.clone() if rank % 2 else SharedMemory.tensor(values),
    "strided": lambda rank, values: strided(torch.zeros(3 * values.numel(), dtype=values.dtype), values),
    "strided, mixed": lambda rank, values: (
        values.clone() if rank % 2 else strided(SharedMemory.tensor(3 * values.numel(), values.dtype), values)
    ),
}
WAYS = [(Processes, "ordinary"), (Processes, "strided"), *((SharedMemory, memory) for memory in MEMORIES)]
each_carrier = pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.__name__)


def strided(wide, values):
    wide[1::3] = values
    return wide[1::3]


def same(one, other):
    """Whether two tensors are the same bits, of which there may be millions."""
    return torch.equal(*(torch.cat([each]).view(torch.uint8) if each.numel() else each for each in (one, other)))


def around(nodes, key="g"):
    """Everyone hands its tensor on, twice: each place is read and written in one step."""
    pairs = zip(nodes, (*nodes[1:], nodes[0]), strict=True)
    return Plan(nodes, {key: 1}, [[Send(a, b, key, "copy") for a, b in pairs if a != b]] * 2, wants=[])


def algorithms(nodes):
    """Every algorithm on these nodes."""
    plans = [
        ring(nodes),
        naive_ring(nodes),
        bidirectional_ring(nodes),
        tree(nodes),
        double_tree(nodes),
        double_tree(nodes, chunks=2),
        sharded(nodes),
        sharded(nodes, chunks=2),
        aggregate_at(nodes, nodes[0]),
        aggregate_at(nodes, nodes[-1], chunks=3),
        reduce_scatter(nodes),
        reduce_scatter(nodes, direct=True),
        all_gather(nodes),
        all_gather(nodes, direct=True),
        around(nodes),
        broadcast(nodes),
        broadcast(nodes, chunks=3),
        reduce(nodes),
        reduce(nodes, chunks=2),
        scatter(nodes),
        gather(nodes),
        bruck(nodes),
        all_to_all(nodes),
        all_to_all(nodes, few_steps=True),
        together(ring(nodes), tree(nodes, key="h"), naive_ring(nodes, key="i"), shares=["1/2", "1/3", "1/6"]),
    ]
    if len(nodes) > 2:
        leaders = [nodes[0], nodes[-1]]
        plans.append(hierarchical({leaders[0]: nodes[:-1], leaders[1]: leaders[1:]}, ring(leaders)))
    if len(nodes) > 1:
        plans += [aggregate_at(nodes[:-1], nodes[-1]), sharded(nodes[:-1], {nodes[-1]: "2/3", nodes[0]: "1/3"})]
    if not len(nodes) & (len(nodes) - 1):
        plans += [halving_doubling(nodes), recursive_doubling(nodes), halving(nodes), doubling(nodes)]
    return plans


def differences(carrier, plan, memory, size, dtype, seed=0, **more):
    """Where the tensors of this rank's nodes, after a run, are other bits than a run Here leaves."""
    start, want = gradients(plan, size, dtype, seed), gradients(plan, size, dtype, seed)
    mine = {node: MEMORIES[memory](carrier.rank, start[node]) for node in carrier.playing(plan)}
    trace = run(plan, mine, carrier, **more)
    run(plan, want, Here(), **more)
    assert carrier.rank or len(trace.events) == sum(map(len, plan.steps))
    return [f"{node} on {plan!r}, {size} × {dtype}" for node in mine if not same(mine[node], want[node])]


# ---------------------------------------------------------------- who plays what


def played(rank, kind, plans, playing=None):
    """Run plans on buffers full of 1 on rank 0, 10 on rank 1, 100 on rank 2; return the buffers left, and a trace."""
    carrier, left = rank.carrier(kind, playing and playing[rank.number]), []
    for plan in plans:
        mine = torch.full((2 * len(plan.share),), 10.0**rank.number)
        trace = run(plan, mine, carrier)
        left.append(mine.unique().tolist())
    return left, trace


def numbers(kind, *plans, **more):
    """Return, for each plan, the values that ranks 0, 1 and 2 end with; and the trace of the last plan."""
    results = ranks()(played, kind, plans, *more.values(), n=3)
    return [*zip(*[left for left, _ in results], strict=True)], results[0][1]


TURNED = ["rank2", "rank0", "rank1"]


@each_carrier
def test_a_process_plays_the_node_of_its_own_name(kind):
    one_send = Plan(TURNED, {"g": 1}, [[Send("rank0", "rank2", "g", "copy")]], ["rank0"], ["rank2"])
    levels = hierarchical({"rank2": ["rank1"], "rank0": ["rank0"]}, ring(["rank2", "rank0"]))
    assert levels.nodes == ("rank1", "rank2", "rank0")
    found, trace = numbers(
        kind,
        broadcast(TURNED),
        aggregate_at(TURNED[1:], "rank2"),
        reduce(TURNED),
        gather(TURNED),
        all_gather(TURNED),
        levels,
        ring(TURNED),
        one_send,
    )
    first, at_2, reduced, gathered, everywhere, in_levels, around_it, sent = found
    assert first == ([100],) * 3
    assert at_2 == ([11],) * 3
    assert reduced[0] != [111] != reduced[1] and reduced[2] == [111]
    assert [len(values) for values in gathered][2] == 3 and set(gathered[2]) == {1, 10, 100}
    assert everywhere == ([1, 10, 100],) * 3
    assert in_levels[:2] == ([11], [11])  # rank 2 only passes on
    assert around_it == ([111],) * 3
    assert sent == ([1], [10], [1])
    assert [(event.src, event.dst) for event in trace.events] == [("rank0", "rank2")] and "(" not in trace.origin


@each_carrier
def test_position_decides_for_foreign_names_and_the_trace_says_who_played_them(kind):
    found, trace = numbers(kind, ring(["c", "a", "b"]), broadcast(["c", "a", "b"]))
    assert found == [([111],) * 3, ([1],) * 3]
    assert trace.origin.endswith(" ×3 (rank0 = c, rank1 = a, rank2 = b)")
    assert trace.origin in repr(trace) and trace.origin in origin(trace)
    assert Trace.from_json(trace.to_json()).origin == trace.origin


def on_four(rank, names, playing):
    carrier, mine = rank.carrier(Processes, playing[rank.number]), torch.ones(4)
    plan = ring(names)
    return run(plan, {node: mine.clone() for node in carrier.playing(plan)}, carrier).origin


@pytest.mark.parametrize(
    "names, playing, origin",
    [
        ("bdac", [None] * 4, "gloo ×4 (rank0 … rank3 = b … c)"),
        ("abcd", [["c"], ["b"], ["a"], ["d"]], "gloo ×4 (rank2 = a, rank1 = b, rank0 = c, rank3 = d)"),
        ("abcde", [["e", "a"], ["b"], ["c"], ["d"]], "gloo ×4 (rank0 = a e, rank1 = b, rank2 = c, rank3 = d)"),
    ],
)
def test_the_ends_of_a_long_list_say_who_played_what_only_in_the_order_of_the_plan(names, playing, origin):
    assert ranks()(on_four, [*names], playing, n=4) == [origin] * 4


@each_carrier
def test_a_process_without_nodes_of_its_own_choice_keeps_its_name(kind):
    plan = aggregate_at(["rank1", "rank0"], "server")
    found, trace = numbers(kind, plan, playing=[None, None, ["server"]])
    assert found == [([11],) * 3]
    assert trace.origin.endswith(" ×3 (rank2 = server)")


# ---------------------------------------------------------------- the same bits


def on_every_algorithm(rank, kind, memory, names, playing=None):
    carrier, errors = rank.carrier(kind, playing and playing[rank.number]), []
    for i, plan in enumerate(algorithms(names)):
        for j in range(0, len(BUFFERS), 2 * rank.size - 1):  # all on one rank; on more every plan takes some others
            errors += differences(carrier, plan, memory, *BUFFERS[(i + j) % len(BUFFERS)], seed=i)
    return errors


WAYS_OF = {1: WAYS[::3], 2: WAYS[::2], 3: WAYS[1::2], 8: WAYS[2::4]}


@pytest.mark.parametrize("n, ways", WAYS_OF.items(), ids=map(str, WAYS_OF))
def test_the_same_bits_from_every_algorithm(n, ways):
    names = tuple(f"gpu{i}" for i in range(n))
    for kind, memory in ways:
        errors = ranks()(on_every_algorithm, kind, memory, names, n=n)
        assert sum(errors, []) == [], (kind, memory)


@each_carrier
def test_a_rank_may_play_several_nodes_or_a_server_alone(kind):
    names, playing = tuple("abcde"), [("e", "a"), ("d",), ("b", "c")]
    assert sum(ranks()(on_every_algorithm, kind, "mixed", names, playing, n=3), []) == []


def in_many_pieces(rank, kind):
    carrier, errors = rank.carrier(kind), []
    for plan in (tree(carrier.names), around(carrier.names), aggregate_at(carrier.names, "rank1", chunks=2)):
        for memory in ("strided", "shared"):
            errors += differences(carrier, plan, memory, 1_100_003, torch.float32)
    return errors


@each_carrier
def test_the_same_bits_where_a_part_travels_in_pieces(kind):
    assert sum(ranks()(in_many_pieces, kind, n=2), []) == []


def overwritten_while_it_leaves(rank):
    """What b should get is overwritten in the next step, before b asks for it."""
    carrier, size = rank.carrier(Processes, ["abc"[rank.number]]), 4_000_000
    steps = [[Send("a", "b", "g", "copy")], [Send("c", "a", "g", "copy")]]
    plan = Plan([*"abc"], {"g": 1}, steps, holds=["a", "c"], wants=[])
    mine = torch.full((size,), float(rank.number))
    program = compile(plan, mine, carrier)
    rank.meet()
    time.sleep(0.3 * (rank.number == 1))
    program.execute()
    return mine[0].item(), mine[-1].item()


def test_what_is_overwritten_has_left_before():
    assert ranks()(overwritten_while_it_leaves, n=3) == [(2.0, 2.0), (0.0, 0.0), (2.0, 2.0)]


def on_plans(rank, cases):
    carriers = {kind: rank.carrier(kind) for kind in CARRIERS}
    errors = []
    for i, (plan, size, dtype, seed) in enumerate(cases):
        for kind, memory in (WAYS[i % 2], *WAYS[2 + i % 3 :: 3]):
            errors += updated_differently(carriers[kind], plan, memory, size, dtype, seed)
    return errors


def updated_differently(carrier, plan, memory, size, dtype, seed, turns=2):
    """As ``differences``, for plans with updates: the weights and what their rules remember, too, over some turns."""
    nodes, errors, results = sorted({act.node for step in plan.steps for act in updates(step)}), [], {}
    here = Here()
    for current, playing in ((carrier, carrier.playing(plan)), (here, plan.nodes)):
        weights = {node: gradients(plan, size, dtype, seed + 1)[plan.holds[0][0]] for node in nodes if node in playing}
        remembered = {}
        for turn in range(turns):
            start = gradients(plan, size, dtype, seed + turn)
            kind = memory if current is carrier else "ordinary"
            tensors = {node: MEMORIES[kind](getattr(current, "rank", 0), start[node]) for node in playing}
            run(plan, tensors, current, weights=weights, memory=remembered)
        state = {(*place, name): value for place, rule in remembered.items() for name, value in rule.items()}
        results[current] = {"tensors": tensors, "weights": weights, "memory": state}
    for part, mine in results[carrier].items():
        want = results[here][part]
        errors += [(part, name, memory, str(plan)) for name in mine if not same(mine[name], want[name])]
    return errors


CASES = st.tuples(
    legal_plans(), st.sampled_from([0, 2, 11]), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 99)
)


@settings(max_examples=4)
@given(st.lists(CASES, min_size=8, max_size=8))
def test_any_legal_plan_leaves_the_same_bits_everywhere(cases):
    for n in {len(plan.nodes) for plan, *_ in cases}:
        alike = [case for case in cases if len(case[0].nodes) == n]
        assert sum(ranks()(on_plans, alike, n=n), []) == []


def on_updates(rank):
    carriers = {
        kind: rank.carrier(kind, ["gpu0", "cpu", "cpu0"] if not rank.number else ["gpu1", "gpu2", "cpu1"])
        for kind in CARRIERS
    }
    errors = []
    for make in UPDATING.values():
        plan = make(("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}))
        if len(plan.nodes) > 1:
            for dtype in (torch.float32, torch.bfloat16):
                for kind, memory in WAYS:
                    errors += updated_differently(carriers[kind], plan, memory, 101, dtype, seed=3, turns=3)
    return errors


def on_a_lone_worker(rank):
    plan = aggregate_at(["gpu0"], "gpu0", update=("sgd", {"lr": 0.1, "momentum": 0.9}))
    return sum(
        [
            updated_differently(rank.carrier(kind), plan, memory, 101, torch.float32, seed=3, turns=3)
            for kind, memory in WAYS
        ],
        [],
    )


def test_servers_that_update_leave_the_same_weights_and_remember_the_same():
    assert sum(ranks()(on_updates, n=2), []) == []
    assert sum(ranks()(on_a_lone_worker, n=1), []) == []


REDUCED = [
    ("max", torch.float32),
    ("min", torch.int64),
    ("max", torch.int32),
    ("product", torch.float64),
    ("or", torch.int16),
    ("or", torch.bool),
    (LOGADDEXP, torch.float32),
    (LARGER, torch.int32),
    (LARGER, torch.float16),
]


def with_reductions(rank, kind):
    carrier, errors = rank.carrier(kind), []
    for plan in (ring(carrier.names), sharded(carrier.names), aggregate_at(carrier.names[:-1], carrier.names[-1])):
        for reduction, dtype in REDUCED:
            for memory in ("ordinary", "strided, mixed"):
                errors += differences(carrier, plan, memory, 23, dtype, reduce=reduction)
    return errors


@each_carrier
def test_the_same_bits_from_every_reduction(kind):
    assert sum(ranks()(with_reductions, kind, n=3), []) == []


# ---------------------------------------------------------------- the trace of a run


def traced(rank, kind, size):
    carrier = rank.carrier(kind)
    plan = sharded(carrier.names, chunks=2, update=("sgd", {"lr": 0.1}))
    mine = {node: torch.ones(size) for node in carrier.playing(plan)}
    begin = time.monotonic()
    trace = run(plan, mine, carrier, weights={node: torch.zeros(size) for node in mine})
    return trace, time.monotonic() - begin, carrier.describe(plan, mine)


@each_carrier
@pytest.mark.parametrize("size", [0, 3, 100_000])
def test_rank_0_gets_every_act_once_and_the_others_their_own_part(kind, size):
    (whole, took, devices), *others = ranks()(traced, kind, size, n=4)
    plan = whole.plan
    acts = [(number, act) for number, step in enumerate(plan.steps, 1) for act in (*sends(step), *updates(step))]
    assert sorted((e.step, e.src, e.dst, e.key, e.op) for e in whole.events) == sorted(
        (number, act.src, act.dst, act.key, act.op)
        if isinstance(act, Send)
        else (number, act.node, act.node, act.key, act.rule)
        for number, act in acts
    )
    assert all(0 <= event.start <= event.end <= took for event in whole.events)
    assert [event.step for event in whole.events] == sorted(event.step for event in whole.events)
    assert whole.measured and whole.origin == devices and whole.nbytes == 4 * size
    assert {node: whole.bytes_sent(node) for node in plan.nodes} == {
        node: sum(e.nbytes for e in whole.events if e.src == node != e.dst) for node in plan.nodes
    }
    assert Trace.from_json(whole.to_json()) == whole == pickle.loads(pickle.dumps(whole))
    for rank, (part, took, _) in enumerate(others, 1):
        ours = {(e.step, e.src, e.dst, e.key) for e in part.events}
        assert len(ours) == len(part.events) > 0 and all(0 <= e.start <= e.end <= took for e in part.events)
        if kind is Processes:  # what begins or ends there
            assert ours == {(e.step, e.src, e.dst, e.key) for e in whole.events if f"rank{rank}" in (e.src, e.dst)}
    if kind is SharedMemory:  # each act is done by one rank
        assert sum(len(part.events) for part, *_ in others) < len(whole.events)


def with_a_clock_ahead(rank, seconds):
    real, hosts = time.perf_counter, ranks_module.host
    time.perf_counter = lambda: real() + seconds * rank.number
    ranks_module.host = lambda: f"host {rank.number}"
    try:
        carrier = rank.carrier(Processes)
        run(ring(carrier.names), torch.ones(1000), carrier)
        begin = time.monotonic()
        trace = run(ring(carrier.names), torch.ones(1000), carrier)
        return carrier.one_host, carrier._ahead, trace, time.monotonic() - begin
    finally:
        time.perf_counter, ranks_module.host = real, hosts


def test_the_times_of_several_hosts_are_brought_on_one_clock():
    (one_host, ahead, trace, took), *_ = ranks()(with_a_clock_ahead, 1000.0, n=3)
    assert not one_host and ahead == pytest.approx([0, 1000, 2000], abs=5)  # a round trip of a busy machine
    assert len(trace.events) == 12 and all(0 <= event.start <= event.end < took + 5 for event in trace.events)


def on_several_hosts(rank):
    ranks_module.host, hosts = lambda: f"host {rank.number}", ranks_module.host
    try:
        return str(outcome(rank.carrier, SharedMemory))
    finally:
        ranks_module.host = hosts


def test_memory_is_not_shared_between_hosts():
    assert set(ranks()(on_several_hosts, n=2)) == {
        "the ranks run on several hosts, which share no memory: use Processes()"
    }


def test_a_lost_rank_and_its_step_survive_the_way_to_another_process():
    lost = pickle.loads(pickle.dumps(RankLost("rank 2 died.", (2,), 5)))
    assert (str(lost), lost.ranks, lost.step) == ("rank 2 died.", (2,), 5)


# ---------------------------------------------------------------- memory


def again_and_again(rank, kind):
    carrier = rank.carrier(kind)
    plan = together(ring(carrier.names), around(carrier.names, key="h"))
    mine = SharedMemory.tensor(1000) if rank.number else torch.zeros(1000)

    def measured():
        gc.collect()
        return {
            "keys": rank.store.num_keys(),
            "files": len(os.listdir("/proc/self/fd")),
            "maps": sum("memfd:d2lps" in line for line in Path("/proc/self/maps").read_text().splitlines()),
            "threads": threading.active_count(),
        }

    def turns(count, like=None):
        for _ in range(count):
            run(plan, mine, carrier)
        rank.meet()
        values = settled(measured, like, **{} if like else {"patience": 0.3})
        rank.meet()
        return values

    turns(3)
    before = turns(3)
    return before, turns(30, like=before)


@each_carrier
def test_runs_that_are_repeated_do_not_grow(kind):
    for before, after in ranks()(again_and_again, kind, n=3):
        assert before == after


def carriers_made(rank, kind):
    def measured():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(psutil.Process().net_connections())

    def made(count, like=None):
        for _ in range(count):
            carrier = rank.carrier(kind)
            run(ring(carrier.names), torch.zeros(1000), carrier)
            del carrier
        return settled(measured, like, **{} if like else {"patience": 0.3})

    before = made(2)
    return before, made(6, like=before)


@each_carrier
def test_carriers_that_are_let_go_leave_no_thread_no_file_and_no_connection(kind):
    for before, after in ranks()(carriers_made, kind, n=3):
        assert before == after


def a_segment_outlives_its_maker(rank):
    carrier = rank.carrier(SharedMemory)
    mine = SharedMemory.tensor(torch.arange(10.0))[2:7:2]  # no name refers to the tensor itself any more
    gc.collect()
    run(ring(carrier.names), mine, carrier)
    return mine.tolist()


def test_a_view_keeps_the_memory_that_others_open():
    assert ranks()(a_segment_outlives_its_maker, n=3) == [[6.0, 12.0, 18.0]] * 3


def without_memfd(rank):
    memfd_create, os.memfd_create = os.memfd_create, None
    del os.memfd_create
    try:
        before = set(os.listdir(tempfile.gettempdir()))
        carrier = rank.carrier(SharedMemory)
        errors = differences(carrier, ring(carrier.names), "mixed", 1009, torch.float32)
        files = carrier.all_gather(sorted(set(os.listdir(tempfile.gettempdir())) - before))
        del carrier
        gc.collect()
        return errors, files
    finally:
        os.memfd_create = memfd_create


def test_a_system_without_anonymous_memory_has_files_that_go_with_their_tensors():
    results = ranks()(without_memfd, n=2)
    left = {name for _, files in results for names in files for name in names if name.startswith("d2lps-")}
    assert [errors for errors, _ in results] == [[], []] and left
    assert not left & set(os.listdir(tempfile.gettempdir()))

"""Running plans on real tensors: the same bits as the plan says, everywhere; and nothing half done."""

import gc
import re
import weakref

import pytest
import torch
from helpers.plans import legal_plans
from helpers.tensors import FLOATS, INTEGERS, PLANS, UPDATING, added, bits, gpus, gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lps import Here, Plan, Send, Trace, Update, aggregate_at, one_memory, pcie_server, run, sharded
from d2lps.carriers.tensors import TensorError
from d2lps.plan.acts import sends, updates
from d2lps.topology import TopologyError

SIZES = [0, 1, 2, 3, 5, 8, 13, 100, 1009]


def expected(plan, tensors):
    """Return the value of every key on every wanting node, from ``plan.order`` alone."""
    cut = plan.slices(next(iter(tensors.values())).numel())
    return {key: added(plan.order(key), tensors, cut[key]) for key in dict.fromkeys(k for _, k, _ in plan.wants)}


def check_run(plan, tensors, carrier=None):
    want, trace = expected(plan, tensors), run(plan, tensors, carrier)
    cut = plan.slices(next(iter(tensors.values())).numel())
    for node, key, _ in plan.wants:
        assert bits(tensors[node][cut[key]]) == bits(want[key]), (node, key)
    return trace


# ---------------------------------------------------------------- the sum


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_run_leaves_the_sum_in_the_plans_order_for_every_size(make, n):
    for size in SIZES:
        check_run(make(n), gradients(make(n), size))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_everyone_ends_with_the_sum_in_the_plans_order_for_every_dtype(make, dtype):
    plan = make(5)
    for size in SIZES:
        check_run(plan, gradients(plan, size, dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around_as_everywhere_in_torch(dtype):
    plan = sharded(gpus(3))
    most = torch.iinfo(dtype).max
    tensors = {node: torch.full((4,), most, dtype=dtype) for node in plan.nodes}
    run(plan, tensors)
    assert tensors["gpu2"].tolist() == (torch.full((4,), most, dtype=dtype) * 3).tolist()


@given(legal_plans(), st.integers(0, 40), st.sampled_from(FLOATS + INTEGERS), st.integers(0, 2**31))
def test_any_sound_plan_without_updates_computes_its_sums(plan, size, dtype, seed):
    if any(updates(step) for step in plan.steps):
        plan = without_updates(plan)
    check_run(plan, gradients(plan, size, dtype, seed))


def without_updates(plan):
    return Plan(plan.nodes, plan.share, [sends(step) for step in plan.steps], plan.holds, [w[:2] for w in plan.wants])


def by_the_letter(plan, tensors):
    """The docstring of a plan, sentence by sentence: all sends of a step read before any of them writes."""
    cut, have = plan.slices(next(iter(tensors.values())).numel()), {}
    for node, key in plan.holds:
        have[node, key] = tensors[node][cut[key]].clone()
    for step in plan.steps:
        read = {send: have[send.src, send.key].clone() for send in sends(step)}
        for send in sends(step):
            place = send.dst, send.key
            have[place] = read[send] if send.op == "copy" or place not in have else have[place] + read[send]
    return have


@given(legal_plans(), st.integers(0, 20), st.integers(0, 2**31))
def test_every_node_has_what_the_plans_docstring_says_wanted_or_not(plan, size, seed):
    plan = without_updates(plan)
    tensors = gradients(plan, size, seed=seed)
    said = by_the_letter(plan, tensors)
    run(plan, tensors)
    cut = plan.slices(size)
    for (node, key), value in said.items():
        assert bits(tensors[node][cut[key]]) == bits(value)


def test_a_swap_and_a_rotation_read_before_they_write():
    swap = Plan(["a", "b"], {"g": 1}, [[Send("a", "b", "g", "copy"), Send("b", "a", "g", "copy")]], wants=[])
    tensors = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    run(swap, tensors)
    assert (tensors["a"].item(), tensors["b"].item()) == (2.0, 1.0)
    rotation = Plan(["a", "b", "c"], {"g": 1}, [[Send(*ends, "g", "copy") for ends in ("ab", "bc", "ca")]], wants=[])
    tensors = {node: torch.tensor([value]) for node, value in zip("abc", (1, 2, 3), strict=True)}
    run(rotation, tensors)
    assert [tensors[node].item() for node in "abc"] == [3, 1, 2]
    exchange = Plan(["a", "b"], {"g": 1}, [[Send("a", "b", "g"), Send("b", "a", "g")]])
    tensors = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    run(exchange, tensors)
    assert (tensors["a"].item(), tensors["b"].item()) == (3.0, 3.0)


def test_sums_are_taken_in_the_order_written():
    def star(*order):
        return Plan([*"abcd"], {"g": 1}, [[Send(src, "d", "g") for src in order]], holds=[*"abc"], wants=["d"])

    values = {"a": 1e16, "b": -1e16, "c": 1.0, "d": float("nan")}
    for order, total in (("abc", 1.0), ("acb", 0.0), ("cab", 0.0), ("bac", 1.0)):
        tensors = {node: torch.tensor([value], dtype=torch.float64) for node, value in values.items()}
        run(star(*order), tensors)
        assert tensors["d"].item() == total, order


def test_add_into_empty_begins_with_the_arriving_value_itself():
    negative_zero = torch.tensor([-0.0])
    server = Plan(["a", "s"], {"g": 1}, [[Send("a", "s", "g", "add")]], holds=["a"], wants=["s"])
    tensors = {"a": negative_zero, "s": torch.tensor([0.0])}
    run(server, tensors)
    assert bits(tensors["s"]) == bits(torch.tensor([-0.0]))  # 0 + −0 would be +0


# ---------------------------------------------------------------- carriers and memory

DEVICE_LISTS = {
    "none": lambda nodes: None,
    "one": lambda nodes: ["cpu"],
    "each": lambda nodes: ["cpu"] * len(nodes),
    "torch.device": lambda nodes: [torch.device("cpu")],
    "text": lambda nodes: "cpu",
    "mapping": lambda nodes: dict.fromkeys(nodes, "cpu"),
}


@pytest.mark.parametrize("devices", DEVICE_LISTS.values(), ids=DEVICE_LISTS)
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_the_same_bits_on_every_list_of_devices(make, devices):
    plan = make(4)
    tensors, plain = gradients(plan, 1009), gradients(plan, 1009)
    run(plan, plain)
    check_run(plan, tensors, Here(devices(plan.nodes)))
    assert {node: bits(t) for node, t in tensors.items()} == {node: bits(t) for node, t in plain.items()}


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="hardware: this machine has no CUDA GPU")


@on_a_gpu
def test_the_same_bits_on_gpus():
    cards = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    for make in PLANS.values():
        for dtype in FLOATS + INTEGERS:
            for carrier in (Here(cards), Here(["cuda:0", "cpu"]), Here("cuda")):
                plan = make(4)
                places = carrier.place(plan.nodes)
                tensors = {node: t.to(places[node]) for node, t in gradients(plan, 1009, dtype).items()}
                trace = check_run(plan, tensors, carrier)
                assert all(0 <= e.start <= e.end <= trace.duration for e in trace.events)
                assert Trace.from_json(trace.to_json()) == trace


@on_a_gpu
def test_a_swap_and_a_rotation_between_gpus_read_before_they_write():
    cards = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    rotation = Plan([*"abc"], {"g": 1}, [[Send(*ends, "g", "copy") for ends in ("ab", "bc", "ca")]], wants=[])
    for carrier in (Here(cards), Here(["cuda:0", "cpu"])):
        places = carrier.place(rotation.nodes)
        for size in (1, 1_000_003):
            tensors = {node: torch.full((size,), float(i), device=places[node]) for i, node in enumerate("abc")}
            run(rotation, tensors, carrier)
            assert [tensors[node].unique().tolist() for node in "abc"] == [[2.0], [0.0], [1.0]]


@on_a_gpu
def test_an_update_on_a_gpu_is_torch_sgd_on_that_gpu():
    plan, numbers = aggregate_at(gpus(3), "gpu0", update=("sgd", SGDS[-1])), SGDS[-1]
    reference = torch.ones(1009, device="cuda:0", requires_grad=True)
    weights, memory = {"gpu0": torch.ones(1009, device="cuda:0")}, {}
    optimizer = torch.optim.SGD([reference], foreach=False, **numbers)
    for turn in range(3):
        tensors = {node: t.to("cuda:0") for node, t in gradients(plan, 1009, seed=turn).items()}
        reference.grad = expected(plan, tensors)["g"].to("cuda:0")
        optimizer.step()
        run(plan, tensors, Here("cuda:0"), weights=weights, memory=memory)
        assert all(bits(t) == bits(reference) for t in (*tensors.values(), weights["gpu0"]))


def test_nodes_are_dealt_to_the_devices_in_turn_and_cpus_to_main_memory():
    places = Here(["meta", "cpu"]).place(["gpu0", "cpu", "gpu1", "cpu0", "gpu2"])
    assert {node: str(device) for node, device in places.items()} == {
        "gpu0": "meta",
        "cpu": "cpu",
        "gpu1": "cpu",
        "cpu0": "cpu",
        "gpu2": "meta",
    }
    assert Here().place(["gpu0"]) is None


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_strided_buffers_are_summed_in_place_without_touching_the_gaps(make):
    plan = make(4)
    strided = {node: torch.full((3 * 50,), 5.0) for node in plan.nodes}
    tensors = {node: buffer[1::3] for node, buffer in strided.items()}
    for node, values in gradients(plan, 50).items():
        tensors[node].copy_(values)
    check_run(plan, tensors)
    for buffer in strided.values():
        assert buffer[0::3].eq(5.0).all() and buffer[2::3].eq(5.0).all()


def test_views_of_a_larger_buffer_and_parameters_that_require_gradients():
    whole = torch.arange(12.0)
    tensors = {"gpu0": whole[:4], "gpu1": whole[4:8], "gpu2": whole[8:].requires_grad_(False)}
    run(sharded(gpus(3)), tensors)
    assert whole.tolist() == [12.0, 15.0, 18.0, 21.0] * 3
    leaf = torch.ones(3, requires_grad=True)
    run(aggregate_at(["a", "b"], "a"), {"a": leaf, "b": torch.ones(3)})
    assert leaf.tolist() == [2.0] * 3 and leaf.is_leaf and leaf.requires_grad


def test_a_run_lets_its_tensors_go_without_the_garbage_collector():
    gc.disable()
    try:
        tensors = gradients(PLANS["ring"](3), 10)
        references = [weakref.ref(tensor) for tensor in tensors.values()]
        run(PLANS["ring"](3), tensors)
        del tensors
        assert [ref() for ref in references] == [None] * 3
    finally:
        gc.enable()


# ---------------------------------------------------------------- updates


SGDS = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.01, "weight_decay": 0.1},
    {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.01},
]


@pytest.mark.parametrize("numbers", SGDS, ids=str)
@pytest.mark.parametrize("make", UPDATING.values(), ids=UPDATING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sgd_is_torch_sgd_bit_for_bit_over_several_runs(make, numbers, dtype):
    plan = make(("sgd", numbers))
    for size in (1, 7, 64, 101):
        start = gradients(plan, size, dtype, seed=99)[plan.nodes[0]]
        reference = start.clone().requires_grad_()
        optimizer = torch.optim.SGD([reference], **numbers)
        nodes = {act.node for step in plan.steps for act in updates(step)}
        weights, memory = {node: start.clone() for node in nodes}, {}
        for turn in range(4):
            tensors = gradients(plan, size, dtype, seed=turn)
            total, cut = torch.empty_like(start), plan.slices(size)
            for key, value in expected(plan, tensors).items():
                total[cut[key]] = value
            reference.grad = total
            optimizer.step()
            run(plan, tensors, weights=weights, memory=memory)
            for node, key, state in plan.wants:
                assert state == "updated" and bits(tensors[node][cut[key]]) == bits(reference[cut[key]])
            for act in (act for step in plan.steps for act in updates(step)):
                assert bits(weights[act.node][cut[act.key]]) == bits(reference[cut[act.key]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weights_are_the_same_bits_however_the_gradient_is_cut_or_the_dtype_is_refused(dtype):
    rule = "sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    results = []
    for chunks in (1, 2, 5, 33):
        plan, memory = aggregate_at(gpus(2), "cpu", chunks=chunks, update=rule), {}
        weights = {"cpu": gradients(plan, 101, dtype, seed=9)["gpu0"]}
        try:
            for turn in range(3):
                run(plan, gradients(plan, 101, dtype, seed=turn), weights=weights, memory=memory)
        except TensorError:
            continue
        results.append(bits(weights["cpu"]))
    assert all(result == results[0] for result in results)
    assert results or dtype.itemsize < 4  # the dtypes that people train in are not refused


def test_a_server_changes_only_the_keys_that_it_updates():
    plan = sharded(gpus(2), update=("sgd", {"lr": 1.0}))
    weights = {"gpu0": torch.zeros(4), "gpu1": torch.zeros(4)}
    run(plan, {node: torch.ones(4) for node in plan.nodes}, weights=weights)
    assert weights["gpu0"].tolist() == [-2, -2, 0, 0] and weights["gpu1"].tolist() == [0, 0, -2, -2]


def test_memory_holds_one_entry_per_update_and_starts_anew_after_it_is_cleared():
    plan = aggregate_at(gpus(2), "gpu0", chunks=2, update=("sgd", {"lr": 1.0, "momentum": 0.5}))
    memory, weights = {}, {"gpu0": torch.zeros(2)}
    for _ in range(2):
        run(plan, {node: torch.ones(2) for node in plan.nodes}, weights=weights, memory=memory)
    assert set(memory) == {("gpu0", "g1"), ("gpu0", "g2")}
    assert weights["gpu0"].tolist() == [-5, -5]  # −2, then −(0.5·2 + 2)
    fresh = {"gpu0": torch.zeros(2)}
    for _ in range(2):
        run(plan, {node: torch.ones(2) for node in plan.nodes}, weights=fresh, memory={})
    assert fresh["gpu0"].tolist() == [-4, -4]


def test_a_copy_of_an_updated_key_carries_the_new_weights():
    steps = [
        [Send("b", "a", "g"), Update("a", "g", "sgd", (("lr", 1.0),))],
        [Send("a", "b", "g", "copy")],
        [Send("b", "c", "g", "copy")],
    ]
    plan = Plan(["a", "b", "c"], {"g": 1}, steps, holds=["a", "b"])
    tensors = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.zeros(2)}
    run(plan, tensors, weights={"a": torch.full((2,), 10.0)})
    assert all(tensor.tolist() == [8.0, 8.0] for tensor in tensors.values())


# ---------------------------------------------------------------- the trace of a run


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("size", [0, 3, 1009])
def test_every_act_is_one_event_with_the_bytes_that_really_travelled(make, size):
    plan = make(4)
    trace = run(plan, gradients(plan, size, torch.float16))
    acts = [(number, act) for number, step in enumerate(plan.steps, 1) for act in step]
    cut = plan.slices(size)
    assert [(e.step, e.src, e.dst, e.key, e.op) for e in trace.events] == [(n, *act) for n, act in acts]
    assert [e.nbytes for e in trace.events] == [2 * (cut[a.key].stop - cut[a.key].start) for _, a in acts]
    assert trace.nbytes == 2 * size and trace.measured and trace.plan == plan
    for node in plan.nodes:
        said = sum(plan.share[act.key] for _, act in acts if act.src == node) * 2 * size
        rounded = 2 * sum(act.src == node for _, act in acts)  # each key is cut to whole elements
        assert abs(trace.bytes_sent(node) - said) <= rounded
        assert trace.messages(node) == sum(act.src == node for _, act in acts)


@pytest.mark.parametrize("make", UPDATING.values(), ids=UPDATING)
def test_events_follow_each_other_and_stay_inside_their_steps(make):
    plan = make(("sgd", {"lr": 0.1}))
    weights = {node: torch.zeros(1009) for node in plan.nodes}
    trace = run(plan, gradients(plan, 1009), weights=weights)
    assert all(0 <= event.start <= event.end <= trace.duration for event in trace.events)
    assert [e.step for e in trace.events] == sorted(e.step for e in trace.events)
    times = [time for event in trace.events for time in (event.start, event.end)]
    assert times == sorted(times)  # on one processor one thing happens after the other
    assert [e.kind for e in trace.events] == [
        "update" if isinstance(a, Update) else "send" for step in plan.steps for a in (*sends(step), *updates(step))
    ]
    for (_, end), (start, _) in zip(trace.step_times(), trace.step_times()[1:], strict=False):
        assert end <= start


def test_a_measured_trace_goes_through_json():
    plan = aggregate_at(gpus(3), "cpu", chunks=2, update=("sgd", {"lr": 0.1}))
    trace = run(plan, gradients(plan, 10), weights={"cpu": torch.zeros(10)})
    assert Trace.from_json(trace.to_json()) == trace
    assert trace.origin == "cpu ×4"


def test_a_run_is_drawn_on_the_topology_given_or_on_the_pairs_it_uses():
    plan = aggregate_at(gpus(2), "cpu")
    given_ = run(plan, gradients(plan, 4), topology=pcie_server(2))
    assert given_.topology == pcie_server(2)
    alone = run(plan, gradients(plan, 4))
    assert {(k.src, k.dst) for k in alone.topology.links} == {
        ("gpu0", "cpu"),
        ("cpu", "gpu0"),
        ("gpu1", "cpu"),
        ("cpu", "gpu1"),
    }


# ---------------------------------------------------------------- refusals: nothing half done

STAR = aggregate_at(["gpu0", "gpu1"], "gpu0")
STEP = aggregate_at(["gpu0", "gpu1"], "gpu0", update=("sgd", {"lr": 0.1, "momentum": 0.9}))
BUFFER = torch.arange(8.0)


def two(**changed):
    return {"gpu0": torch.arange(4.0), "gpu1": torch.arange(4.0) + 1} | changed


REFUSED = {
    "a node without a tensor": (STAR, lambda: {"gpu0": torch.ones(4)}, {}, "node gpu1 has no tensor"),
    "a tensor for the root as well": (aggregate_at(["gpu0", "gpu1"], "cpu"), two, {}, "node cpu has no tensor"),
    "an extra tensor": (STAR, lambda: two(gpu7=torch.ones(4)), {}, "given for 'gpu7'"),
    "not a tensor": (STAR, lambda: two(gpu1=[1.0, 2.0]), {}, "gpu1's tensor is a list"),
    "no tensors": (STAR, lambda: None, {}, None),
    "a list of tensors": (STAR, lambda: list(two().values()), {}, None),
    "another shape": (STAR, lambda: two(gpu1=torch.ones(2, 2)), {}, "gpu1's tensor has shape (2, 2)"),
    "another size": (STAR, lambda: two(gpu1=torch.ones(5)), {}, "gpu1's tensor has 5 elements"),
    "another dtype": (STAR, lambda: two(gpu1=torch.ones(4, dtype=torch.float64)), {}, "gpu1's tensor is torch.float64"),
    "complex": (STAR, lambda: two(gpu0=torch.ones(4, dtype=torch.complex64)), {}, "gpu0's tensor is torch.complex64"),
    "bool": (
        STAR,
        lambda: {node: torch.ones(4, dtype=torch.bool) for node in two()},
        {},
        "torch.bool cannot be summed",
    ),
    "a dtype that cannot be added": (STAR, lambda: {n: t.to(torch.float8_e4m3fn) for n, t in two().items()}, {}, None),
    "a tensor on no device": (STAR, lambda: two(gpu1=torch.ones(4, device="meta")), {}, None),
    "all on no device": (STAR, lambda: {n: torch.ones(4, device="meta") for n in STAR.nodes}, {}, "meta"),
    "sparse": (STAR, lambda: two(gpu1=torch.ones(4).to_sparse()), {}, "sparse"),
    "one element repeated": (STAR, lambda: two(gpu1=torch.ones(1).expand(4)), {}, "gpu1's tensor repeats one element"),
    "the same tensor twice": (STAR, lambda: dict.fromkeys(STAR.nodes, torch.ones(4)), {}, "gpu0 and gpu1 share memory"),
    "overlapping views": (STAR, lambda: {"gpu0": BUFFER[:4], "gpu1": BUFFER[3:7]}, {}, "gpu0 and gpu1 share memory"),
    "an inference tensor": (STAR, lambda: two(gpu0=inference()), {}, None),
    "on another device than the carrier has": (STAR, two, {"carrier": Here(["meta"])}, "gpu0 is on cpu, but"),
    "a carrier without that node": (STAR, two, {"carrier": Here({"gpu0": "cpu"})}, "no device for gpu1"),
    "weights missing": (STEP, two, {}, "gpu0 updates key g"),
    "weights of another node": (STEP, two, {"weights": {"gpu1": torch.ones(4)}}, "gpu0 updates key g"),
    "weights that are no tensor": (STEP, two, {"weights": {"gpu0": 1.0}}, "weight tensor is a float"),
    "weights that are no mapping": (STEP, two, {"weights": torch.ones(4)}, None),
    "weights of another size": (STEP, two, {"weights": {"gpu0": torch.ones(5)}}, "size 5"),
    "weights of another dtype": (
        STEP,
        two,
        {"weights": {"gpu0": torch.ones(4, dtype=torch.float64)}},
        "dtype torch.float64",
    ),
    "weights on no device": (STEP, two, {"weights": {"gpu0": torch.ones(4, device="meta")}}, "meta"),
    "a memory of another dtype": (
        STEP,
        two,
        {
            "weights": {"gpu0": torch.ones(4)},
            "memory": {("gpu0", "g"): {"velocity": torch.ones(4, dtype=torch.float64)}},
        },
        None,
    ),
    "a memory of something else": (STEP, two, {"weights": {"gpu0": torch.ones(4)}, "memory": {("gpu0", "g"): 5}}, None),
    "a memory in the weights": (
        STEP,
        two,
        {"weights": {"gpu0": BUFFER[:4]}, "memory": {("gpu0", "g"): {"velocity": BUFFER[:4]}}},
        None,
    ),
    "weights of integers": (
        STEP,
        lambda: {n: t.int() for n, t in two().items()},
        {"weights": {"gpu0": torch.ones(4, dtype=torch.int32)}},
        "torch.int32: sgd",
    ),
    "weights in the gradient's memory": (
        STEP,
        lambda: two(gpu0=BUFFER[:4]),
        {"weights": {"gpu0": BUFFER[2:6]}},
        "gpu0's weights share memory",
    ),
    "weights in another node's gradient": (STEP, lambda: two(gpu1=BUFFER[:4]), {"weights": {"gpu0": BUFFER[:4]}}, None),
    "a memory of another run": (
        STEP,
        two,
        {"weights": {"gpu0": torch.ones(4)}, "memory": {("gpu0", "g"): {"velocity": torch.ones(3)}}},
        None,
    ),
    "a memory that is none": (STEP, two, {"weights": {"gpu0": torch.ones(4)}, "memory": 5}, None),
}


def inference():
    with torch.inference_mode():
        return torch.ones(4)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_half_done(case):
    plan, make, arguments, sentence = REFUSED[case]
    tensors = make()
    real = [
        t
        for t in (*values(tensors), *values(arguments.get("weights")))
        if isinstance(t, torch.Tensor) and t.device.type == "cpu" and not t.is_sparse
    ]
    before = [bits(t.clone()) for t in real]
    with pytest.raises(TensorError) as error:
        run(plan, tensors, **arguments)
    assert [bits(t) for t in real] == before
    assert sentence is None or sentence in str(error.value)


def values(mapping):
    return mapping.values() if isinstance(mapping, dict) else mapping if isinstance(mapping, list) else ()


@pytest.mark.parametrize(
    "topology, sentence",
    [
        (pcie_server(1), "there is no node 'gpu1' on pcie_server (nodes: gpu0 switch cpu)"),
        (one_memory(["gpu0"], "1 GB/s"), "there is no node 'gpu1' on one_memory (nodes: gpu0 memory)"),
    ],
)
def test_a_topology_that_lacks_a_node_is_refused_before_anything_moves(topology, sentence):
    tensors = two()
    with pytest.raises(TopologyError) as error:
        run(STAR, tensors, topology=topology)
    assert str(error.value) == sentence
    assert tensors["gpu0"].tolist() == [0, 1, 2, 3] and tensors["gpu1"].tolist() == [1, 2, 3, 4]


def test_a_topology_must_know_even_the_nodes_that_send_nothing():
    with pytest.raises(TopologyError, match="there is no node 'lonely' on pcie_server"):
        run(aggregate_at(["lonely"], "lonely"), {"lonely": torch.ones(1)}, topology=pcie_server(1))


@pytest.mark.parametrize("devices", [[], ["gpu"], [3.5], ["cpu", None], {"gpu0": "nowhere"}, 5])
def test_what_is_no_list_of_devices_is_refused(devices):
    with pytest.raises(TensorError):
        Here(devices)


@pytest.mark.skipif(torch.cuda.is_available(), reason="hardware: this machine has a CUDA GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_that_is_not_there_is_named(device):
    with pytest.raises(TensorError, match="cuda"):
        run(STAR, two(), Here([device]))


def test_interleaved_buffers_do_not_share_an_element_but_are_refused_with_the_remedy():
    whole = torch.arange(8.0)
    with pytest.raises(TensorError, match=re.escape("give each a buffer of its own")):
        run(STAR, {"gpu0": whole[0::2], "gpu1": whole[1::2]})


@settings(max_examples=30)
@given(st.integers(0, 12), st.integers(0, 12))
def test_views_are_refused_exactly_where_they_overlap(start, other):
    whole = torch.zeros(16)
    tensors = {"gpu0": whole[start : start + 4], "gpu1": whole[other : other + 4]}
    if abs(start - other) < 4:
        with pytest.raises(TensorError, match="share memory"):
            run(STAR, tensors)
    else:
        run(STAR, tensors)

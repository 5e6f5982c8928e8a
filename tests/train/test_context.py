"""One attention whose tokens are cut: against PyTorch on one device, against formulas, and between processes."""

from fractions import Fraction
from itertools import chain, permutations

import pytest
import torch
from helpers.tensors import close
from torch.nn.functional import scaled_dot_product_attention

from d2lps import Topology, Transformer, cost, nvswitch
from d2lps.plan.acts import Send
from d2lps.scaling import Layout, sent
from d2lps.schedule import Schedule, ScheduleError, Task, attention, seen_pairs, token_places
from d2lps.schedule.context import WAYS
from d2lps.train import context
from d2lps.units import Bandwidth
from d2lps.view.drawing.lanes import Lanes, marks


def gpus(count):
    return [f"gpu{i}" for i in range(count)]


def problem(heads, groups, tokens, size, dtype=torch.float64):
    draw = torch.Generator().manual_seed(heads * tokens + size)
    return [torch.randn(n, tokens, size, dtype=dtype, generator=draw) for n in (heads, groups, groups, heads)]


def by_torch(q, k, v, do, causal):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    groups = len(q) // len(k)
    o = scaled_dot_product_attention(
        q, k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0), is_causal=causal
    )
    o.backward(do)
    return {"o": o.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


SHAPES = [(4, 4, 24, 3, 4), (6, 3, 12, 5, 3), (4, 2, 16, 4, 2), (2, 1, 8, 4, 1), (10, 5, 40, 2, 5)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("causal, zigzag", [(True, False), (True, True), (False, False)])
def test_outputs_and_gradients_are_those_of_one_device(way, causal, zigzag, dtype):
    for heads, groups, tokens, size, n in SHAPES:
        if way == "heads" and groups % n:
            continue
        tensors = problem(heads, groups, tokens, size, dtype)
        results, _ = context.attend(gpus(n), way, *tensors, causal, zigzag)
        places = [[*chain(*each)] for each in token_places(tokens, n, zigzag)]
        for name, right in by_torch(*tensors, causal).items():
            made = torch.cat([each[name] for each in results.values()], 1)
            close(made, right[:, sum(places, [])], tokens + size)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("zigzag", [False, True])
def test_every_device_sends_the_bytes_of_the_formula(way, zigzag):
    for heads, groups, tokens, size, n in SHAPES:
        if way == "heads" and groups % n:
            continue
        tensors = problem(heads, groups, tokens, size)
        keys_values, queries = (8 * count * tokens * size for count in (2 * groups, heads))
        forward, both = {"heads": (1, 2)}.get(way, (1, 3))
        unit = Fraction(n - 1, n) * (Fraction(keys_values + 2 * queries, n) if way == "heads" else keys_values)
        for backward, times in ((tensors[3], both), (None, forward)):
            _, trace = context.attend(gpus(n), way, *tensors[:3], backward, zigzag=zigzag)
            assert [trace.bytes_sent(node) for node in gpus(n)] == [times * unit] * n
            assert [cost.shared(trace.plan).bytes_sent(node) for node in gpus(n)] == [times * unit] * n


def test_parts_merge_in_any_order_and_a_masked_part_changes_nothing():
    q, k, v, _ = problem(2, 2, 12, 4)
    seen = torch.tril(torch.ones(12, 12, dtype=torch.bool))
    blocks = [slice(start, start + 3) for start in range(0, 12, 3)]
    parts = [context.part(q, k[:, at], v[:, at], seen[:, at]) for at in blocks]
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    for first, second, third, fourth in permutations(parts):
        chained = context.merge(context.merge(context.merge(first, second), third), fourth)
        paired = context.merge(context.merge(first, second), context.merge(third, fourth))
        for each in (chained, paired):
            close(context.output(each), right, 12 + 4)
    nothing = context.part(q, k, v, torch.zeros_like(seen))
    for one in parts:
        assert torch.equal(context.merge(nothing, one), one) and torch.equal(context.merge(one, nothing), one)


def test_scores_too_large_for_exp_give_the_same_output():
    q, k, v, _ = problem(1, 1, 8, 4, torch.float32)
    q, k = ((100 * x).round() for x in (q, k))  # whole numbers, so scores have no rounding that exp would enlarge
    results, _ = context.attend(gpus(2), "ring", q, k, v)
    right = scaled_dot_product_attention(q, k, v, is_causal=True)
    made = torch.cat([each["o"] for each in results.values()], 1)
    close(made, right, 8)
    assert float((q @ k.mT).max() / 2) > 1000


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_pairs_are_counted_as_in_the_mask(n):
    tokens = 4 * n
    for zigzag in (False, True):
        places = token_places(tokens, n, zigzag)
        mask = torch.tril(torch.ones(tokens, tokens))
        for queries in places:
            for keys in places:
                block = mask[[*chain(*queries)]][:, [*chain(*keys)]]
                assert seen_pairs(queries, keys) == int(block.sum())
                assert seen_pairs(queries, keys, causal=False) == block.numel()


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_contiguous_parts_have_2i_plus_1_parts_of_n_squared_and_zigzag_equal_ones(n):
    fine, everything = 1000 * 2 * n, (range(1000 * 2 * n),)
    for i, place in enumerate(token_places(fine, n)):
        work = sum(seen_pairs(place, other) for other in token_places(fine, n))
        assert work / (fine * (fine + 1) // 2) == pytest.approx((2 * i + 1) / n**2, rel=2e-3)
    zigzag = token_places(fine, n, zigzag=True)
    work = [[seen_pairs(place, other) for other in zigzag] for place in zigzag]
    assert len({sum(row) for row in work}) == 1 and seen_pairs(everything, everything) == sum(map(sum, work))
    steps = [work[i][j] for i in range(n) for j in range(n) if i != j]
    assert len({*steps}) == 1  # so every step of the ring is balanced, too


def timed(way, n, tokens, rate, flops, **options):
    switch = nvswitch(n, rate, links=1)
    place = Topology(switch.name, switch.kinds, switch.links, computing=dict.fromkeys(gpus(n), flops))
    return cost.shared(attention(gpus(n), way, tokens, **options), place)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_a_contiguous_causal_ring_takes_2_minus_1_nth_times_as_long(n):
    tokens = 2000 * n
    plain, zigzag = (timed("ring", n, tokens, "1000 TB/s", 1e12, zigzag=z) for z in (False, True))
    assert plain.duration / zigzag.duration == pytest.approx(2 - 1 / n, rel=2e-3)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1, 2])
def test_the_ring_hides_its_messages_from_the_tokens_of_the_formula(ratio):
    n, heads, groups, size, flops = 4, 8, 2, 16, 1e12
    rate = Bandwidth(
        2 * groups * 4 * flops / (4 * heads * 4000)
    )  # a block of 4000 tokens is computed as fast as it is sent
    trace = timed("ring", n, int(4000 * ratio) * n, rate, flops, heads=heads, groups=groups, size=size, causal=False)
    alone = sum(task.work for task in trace.plan.tasks if task.node == "gpu0") / flops
    waits = trace.duration / alone - 1
    assert waits == pytest.approx(max(0, (1 / ratio - 1) * (n - 1) / n), abs=0.01)


def test_a_gather_waits_for_all_and_frees_what_it_gathered():
    trace = timed("gather", 4, 4000, "1 GB/s", 1e12, heads=2, size=8)
    first = min(event.start for event in trace.events if event.kind == "task")
    assert first == pytest.approx(3 * 2 * 2 * 1000 * 8 * 4 / 1e9)
    peaks = {way: attention(gpus(8), way, 8000, heads=8, size=8).peak["gpu0"] for way in WAYS}
    q, kv, o = (1000 * 8 * 4 * each for each in (8, 16, 10))
    assert peaks["gather"] == q + 8 * kv + o and peaks["ring"] == q + 3 * kv + o


def test_a_block_that_counts_twice_or_is_missing_is_refused():
    schedule = attention(gpus(3), "ring", 6)
    for change, reason in (("twice", "twice"), ("less", "incomplete")):
        backward = attention(gpus(3), "ring", 6, backward=True)
        first = next(act for act in backward.acts if isinstance(act, Task) and act.reads[1] != "kv0")
        acts = [*backward.acts]
        place = acts.index(first)
        acts[place : place + 1] = [first, first] if change == "twice" else []
        with pytest.raises(ScheduleError) as refused:
            Schedule(backward.nodes, backward.values, acts, backward.holds, backward.wants)
        assert refused.value.reason == reason
    assert Schedule.from_json(schedule.to_json()) == schedule


REFUSED = [
    (lambda: attention(gpus(2), "tree", 8), "way = 'tree': attention is shared by one of gather, ring, heads"),
    (lambda: attention(gpus(3), "ring", 8), "8 tokens cannot be cut into 3 equal parts"),
    (lambda: attention(gpus(3), "ring", 9, zigzag=True), "9 tokens cannot be cut into 6 equal parts"),
    (lambda: attention(gpus(2), "ring", True), "True tokens cannot be cut"),
    (lambda: attention(gpus(4), "heads", 8, heads=8, groups=2), "8 heads of queries and 2 of keys"),
    (lambda: attention(gpus(2), "ring", 8, heads=4, groups=3), "4 heads of queries and 3 of keys"),
]


@pytest.mark.parametrize("cause, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(cause, words):
    with pytest.raises(ScheduleError, match=words.replace("(", r"\(")):
        cause()


def test_sends_come_before_the_task_that_they_overlap():
    column = attention(gpus(3), "ring", 6).column("gpu0")
    assert [isinstance(act, Send) for act in column] == [True, False, True, False, False]


def test_the_bytes_of_a_layout_are_those_of_the_schedule():
    model = Transformer(layers=3, width=32, heads=8, context=64, vocabulary=100, groups=4)
    alone = attention(gpus(4), "ring", 64, heads=8, size=4, groups=4, backward=True, itemsize=2)
    assert sent(model, Layout(context=4))["context"] == 3 * cost.shared(alone).bytes_sent("gpu0")


def test_a_color_of_the_ring_is_a_block_of_keys():
    scene = Lanes(cost.shared(attention(gpus(3), "ring", 12)))
    colors = {(block.label, block.hue) for block in scene.tasks}
    assert colors == {("F0", 0), ("F1", 1), ("F2", 2)}
    assert "a color per block of keys" in [meaning for _, meaning in marks([scene])]

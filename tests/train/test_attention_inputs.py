"""Inputs of attention on devices: other keys, wider values, batches, 16-bit numbers and packed documents."""

from itertools import chain

import pytest
import torch
from helpers.ranks import ranks
from torch.nn.functional import scaled_dot_product_attention

from d2lps import Processes, cost
from d2lps.plan.acts import Send
from d2lps.schedule import ScheduleError, attention, token_places
from d2lps.schedule.context import WAYS
from d2lps.train import context
from d2lps.train.operators import OperatorError

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def draw(*shapes, dtype=torch.float64, mean=0.0):
    generator = torch.Generator().manual_seed(sum(shapes[0]))
    return [(torch.randn(shape, dtype=torch.float64, generator=generator) + mean).to(dtype) for shape in shapes]


def by_formula(q, k, v, do, seen=None):
    """Return output and gradients of softmax(q kᵀ/√d) v, by autograd."""
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    times = q.shape[-3] // k.shape[-3]
    scores = q @ k.repeat_interleave(times, -3).mT / q.shape[-1] ** 0.5
    weights = (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1)
    o = weights @ v.repeat_interleave(times, -3)
    o.backward(do)
    return {"o": o.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def whole(results, name, places):
    """Return what all devices have together, in the order of the sequence."""
    joined = torch.cat([each[name] for each in results.values()], -2)
    return joined[..., torch.tensor([*chain(*chain(*places))]).argsort(), :]


def require_right(tensors, way, n=4, zigzag=False, seen=None, **options):
    results, trace = context.attend(GPUS[:n], way, *tensors, zigzag=zigzag, **options)
    for name, right in by_formula(*tensors, seen).items():
        tokens = right.shape[-2]
        made = whole(results, name, token_places(tokens, n, zigzag))
        # Sums of as many products as there are tokens and numbers of a head, and a softmax, in other orders.
        near = 8 * (tokens + right.shape[-1]) * torch.finfo(right.dtype).eps * right.abs().max()
        assert made.shape == right.shape and made.dtype == right.dtype
        assert float((made - right).abs().max()) <= near, name
    return trace


# queries, keys, values
SHAPES = {
    "more keys": [(4, 16, 8), (4, 32, 8), (4, 32, 8)],
    "fewer keys": [(4, 32, 8), (4, 8, 8), (4, 8, 8)],
    "wider values": [(4, 16, 6), (4, 16, 6), (4, 16, 9)],
    "narrower values": [(4, 16, 6), (4, 16, 6), (4, 16, 1)],
    "a batch": [(3, 4, 16, 6), (3, 4, 16, 6), (3, 4, 16, 6)],
    "everything": [(2, 8, 16, 6), (2, 4, 24, 6), (2, 4, 24, 3)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_keys_and_values_of_another_shape_give_attention_by_its_formula(name, way):
    q, k, v = SHAPES[name]
    tensors = draw(q, k, v, (*q[:-1], v[-1]))
    for zigzag in (False, True):
        require_right(tensors, way, zigzag=zigzag, causal=False)
    if q[-2] == k[-2]:
        require_right(tensors, way, seen=torch.ones(q[-2], q[-2], dtype=torch.bool).tril())


@pytest.mark.parametrize("way", WAYS)
def test_a_trace_has_the_bytes_of_the_schedule_with_other_keys_and_wider_values(way):
    tensors = draw((4, 16, 6), (4, 32, 6), (4, 32, 3), (4, 16, 3))
    trace = require_right(tensors, way, causal=False)
    q, kv, o = 8 * 4 * 16 * 6, 8 * 4 * 32 * (6 + 3), 8 * 4 * 16 * 3
    total = 2 * (q + kv + o) / 4 if way == "heads" else 3 * kv
    assert {trace.bytes_sent(node) for node in GPUS} == {total * 3 / 4}
    assert cost.shared(trace.plan).bytes_sent("gpu0") == total * 3 / 4
    forward, backward = (sum(task.work for task in trace.plan.tasks if task.name == name) for name in "FB")
    pairs = 4 * 16 * 32
    assert (forward, backward) == (2 * (6 + 3) * pairs, 2 * (3 * 6 + 2 * 3) * pairs)


WRONG = {
    "lengths of keys and values": [(4, 16, 8), (4, 32, 8), (4, 16, 8)],
    "heads of keys and values": [(4, 16, 8), (4, 16, 8), (2, 16, 8)],
    "sizes": [(4, 16, 8), (4, 16, 4), (4, 16, 8)],
    "two dimensions": [(16, 8), (16, 8), (16, 8)],
    "a batch for queries alone": [(2, 4, 16, 8), (4, 16, 8), (4, 16, 8)],
    "other batches": [(2, 4, 16, 8), (1, 4, 16, 8), (1, 4, 16, 8)],
    "no number": [(4, 16, 0), (4, 16, 0), (4, 16, 8)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRONG)
def test_shapes_that_are_no_attention_are_refused_in_one_sentence(name, way):
    q, k, v = draw(*WRONG[name])
    with pytest.raises(OperatorError, match="attention wants queries .*, not torch.float64"):
        context.attend(GPUS, way, q, k, v, causal=False)


@pytest.mark.parametrize("way", WAYS)
def test_other_types_and_another_gradient_are_refused(way):
    q, k, v, do = draw(*[(4, 16, 8)] * 4, dtype=torch.float32)
    wrong = [(q, k.bfloat16(), v, None), (q, k, v.double(), do), (q, k, v, do.half()), (q, k, v, do[:, :8])]
    for tensors in [*wrong, [each.long() for each in (q, k, v, do)]]:
        with pytest.raises(OperatorError, match="attention wants queries"):
            context.attend(GPUS, way, *tensors)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_over_two_sequences_is_refused(way):
    q, k, v = draw((4, 16, 8), (4, 32, 8), (4, 32, 8))
    sentence = "16 queries and 32 keys: take causal=False and no segments"
    for options in ({"causal": True}, {"causal": False, "segments": torch.zeros(16, dtype=torch.int64)}):
        with pytest.raises(ScheduleError, match=sentence):
            context.attend(GPUS, way, q, k, v, **options)


# ---------------------------------------------------------------- 16-bit numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_16_bit_numbers_are_rounded_once(way, dtype):
    tensors = draw(*[(4, 256, 16)] * 4, dtype=dtype)
    right = by_formula(*[each.double() for each in tensors], torch.ones(256, 256, dtype=torch.bool).tril())
    results, _ = context.attend(GPUS, way, *tensors)
    for name, exact in right.items():
        made = whole(results, name, token_places(256, 4))
        off = float((made.double() - exact).abs().max() / exact.abs().max())
        # Half of this is the rounding, and the other half is room for the errors of 32-bit numbers.
        assert made.dtype == dtype and off <= torch.finfo(dtype).eps, name


@pytest.mark.parametrize("way", WAYS)
def test_sums_beyond_the_largest_float16_do_no_harm(way):
    tokens, mean = 2048, 40.0  # the weights of 2048 keys add up to more than 65504/40
    q, k, v = draw(*[(1, tokens, 4)] * 3, dtype=torch.float16)
    q, k, v = (each.repeat(4, 1, 1) for each in (q / 1024, k, v + mean))
    results, _ = context.attend(GPUS, way, q, k, v, causal=False)
    right = scaled_dot_product_attention(q.double(), k.double(), v.double())
    made = torch.cat([each["o"] for each in results.values()], -2)
    assert float((made - right).abs().max()) <= torch.finfo(torch.float16).eps * float(right.abs().max())


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_16_bit_numbers_travel_in_32_bits_while_they_are_added_up(way):
    tensors = draw(*[(4, 16, 8)] * 4, dtype=torch.bfloat16)
    _, trace = context.attend(GPUS, way, *tensors)
    sizes = {send.key[:2]: trace.plan.size(send.key) for send in trace.plan.acts if isinstance(send, Send)}
    block = 4 * 4 * 8  # heads, tokens of a device, size
    wanted = {"kv": 2 * 2 * block, "dk": 4 * 2 * block}
    if way == "heads":
        wanted = {"a0": 2 * 3 * block / 4, "y0": 2 * block / 4, "do": 2 * block / 4, "da": 2 * 3 * block / 4}
    assert {key: sizes[key] for key in wanted} == wanted
    both = attention(GPUS, way, 16, heads=4, size=8, backward=True, itemsize=2, sums=4)
    assert trace.plan == both and cost.shared(both).bytes_sent("gpu0") == trace.bytes_sent("gpu0")


# ---------------------------------------------------------------- packed documents

LENGTHS = 5, 1, 17, 9  # none ends where a device's tokens end
SEGMENTS = torch.repeat_interleave(torch.tensor([3, -1, 7, 3000]), torch.tensor(LENGTHS))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("causal, zigzag", [(True, False), (True, True), (False, False)])
def test_packed_documents_are_as_if_each_were_alone(way, causal, zigzag):
    tensors = draw((4, 32, 6), (4, 32, 6), (4, 32, 5), (4, 32, 5))
    results, _ = context.attend(GPUS, way, *tensors, causal, zigzag, segments=SEGMENTS)
    parts = [each.split(LENGTHS, 1) for each in tensors]
    masks = [torch.ones(size, size, dtype=torch.bool).tril() if causal else None for size in LENGTHS]
    alone = [by_formula(*each, seen) for *each, seen in zip(*parts, masks, strict=True)]
    for name in alone[0]:
        right = torch.cat([each[name] for each in alone], 1)
        made = whole(results, name, token_places(32, 4, zigzag))
        near = 8 * (32 + 6) * torch.finfo(torch.float64).eps * right.abs().max()
        assert float((made - right).abs().max()) <= near, name


@pytest.mark.parametrize("way", WAYS)
def test_segments_that_come_back_or_are_the_same_everywhere_are_a_mask_like_any_other(way):
    tensors = draw(*[(2, 4, 16, 6)] * 4)
    again = torch.arange(16) % 3
    require_right(tensors, way, seen=again[:, None] == again, causal=False, segments=again)
    plain, _ = context.attend(GPUS, way, *tensors)
    same, _ = context.attend(GPUS, way, *tensors, segments=[1] * 16)
    for node in GPUS:
        assert all(torch.equal(plain[node][name], same[node][name]) for name in plain[node])


@pytest.mark.parametrize("segments", [torch.zeros(15).long(), torch.zeros(2, 16).long(), torch.zeros(16)])
def test_segments_that_are_not_a_whole_number_per_token_are_refused(segments):
    with pytest.raises(OperatorError, match=r"segments must be one whole number per token, of shape \(16,\)"):
        context.attend(GPUS, "ring", *draw(*[(4, 16, 6)] * 3), segments=segments)


def in_processes(rank, way):
    with rank.carrier(Processes, backend="gloo") as carrier:
        tensors = draw((4, 32, 6), (4, 32, 6), (4, 32, 5), (4, 32, 5), dtype=torch.bfloat16)
        results, trace = context.attend(carrier.names, way, *tensors, carrier=carrier, segments=SEGMENTS)
        return results[carrier.names[rank.number]], trace.bytes_sent(carrier.names[rank.number])


@pytest.mark.parametrize("way", WAYS)
def test_processes_have_the_bits_of_one_process_with_all_of_this(way):
    tensors = draw((4, 32, 6), (4, 32, 6), (4, 32, 5), (4, 32, 5), dtype=torch.bfloat16)
    results, trace = context.attend([f"rank{i}" for i in range(4)], way, *tensors, segments=SEGMENTS)
    for (node, alone), (made, nbytes) in zip(results.items(), ranks()(in_processes, way, n=4), strict=True):
        assert all(torch.equal(made[name], alone[name]) for name in ("o", "dq", "dk", "dv"))
        assert nbytes == trace.bytes_sent(node)

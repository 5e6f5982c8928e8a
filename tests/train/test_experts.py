"""A mixture of experts on several devices: one device's outputs and gradients, its bytes, dropped tokens, refusals."""

import math
from functools import partial

import pytest
import torch
from helpers import tensors
from helpers.ranks import ranks

from d2lps import PlanError, Processes, all_to_all, check, cost, nvswitch
from d2lps.carriers.rendezvous import ProcessesError
from d2lps.train.experts import ExpertError, Experts

NODES = ["a", "b", "c", "d"]
WIDTH, TOKENS = 6, 24
close = partial(tensors.close, added=4 * TOKENS)


def made(devices, experts, capacity=1.25, carrier=None):
    torch.manual_seed(0)
    return Experts(devices, WIDTH, experts, capacity, carrier)


def inputs(count, tokens=TOKENS):
    torch.manual_seed(1)
    return [torch.randn(tokens + i, WIDTH, requires_grad=True) for i in range(count)]


def loss(outputs):
    return sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in outputs)


def plainly(layer, x, capacity):
    """The same on one device, one token after the other."""
    experts, room = len(layer.experts), math.ceil(capacity * len(x) / len(layer.experts))
    rows, seen, dropped = [], [0] * experts, 0
    for token in x:
        gate, choice = layer.router(token).softmax(-1).max(-1)
        seen[choice] += 1
        if seen[choice] <= room:
            rows.append(gate * layer.experts[f"{choice.item()}"](token))
        else:
            rows.append(torch.zeros_like(token))
            dropped += 1
    return torch.stack(rows), dropped, seen


@pytest.mark.parametrize("count, experts", [(1, 4), (2, 2), (2, 4), (3, 3), (4, 4), (4, 8)])
@pytest.mark.parametrize("capacity", [0.5, 1.25, 100])
def test_outputs_and_gradients_are_those_of_one_device(count, experts, capacity):
    layer, xs = made(NODES[:count], experts, capacity), inputs(count)
    outputs = layer(xs)
    loss(outputs).backward()
    one, copies = made(["one"], experts, capacity), inputs(count)
    assert one.state_dict().keys() == layer.state_dict().keys()
    right, dropped, seen = zip(*[plainly(one, x, capacity) for x in copies], strict=True)
    loss(right).backward()
    for ours, theirs in zip([*outputs, *[x.grad for x in xs]], [*right, *[x.grad for x in copies]], strict=True):
        close(ours, theirs)
    theirs = dict(one.named_parameters())
    for name, parameter in layer.named_parameters():
        assert (parameter.grad is None) == (theirs[name].grad is None) or not parameter.grad.any()
        if theirs[name].grad is not None:
            close(parameter.grad, theirs[name].grad)
    assert layer.load.dropped == sum(dropped) and layer.load.tokens == [sum(row) for row in zip(*seen, strict=True)]
    assert (layer.load.dropped == 0) == (capacity == 100) or capacity == 1.25


@pytest.mark.parametrize("count", [2, 4])
def test_only_tokens_travel_whose_expert_is_elsewhere_and_four_times(count):
    layer, xs = made(NODES[:count], count, capacity=100), inputs(count)
    outputs = layer(xs)
    assert len(layer.traces) == 2
    loss(outputs).backward()
    there, back, gradients_there, gradients_back = layer.traces
    choices = [layer.router(x).argmax(-1).tolist() for x in xs]
    for j, node in enumerate(layer.devices):
        coming = sum(row.count(j) for i, row in enumerate(choices) if i != j) * WIDTH * 4
        going = sum(1 for choice in choices[j] if choice != j) * WIDTH * 4
        assert there.bytes_received(node) == back.bytes_sent(node) == gradients_there.bytes_received(node) == coming
        assert there.bytes_sent(node) == back.bytes_received(node) == gradients_back.bytes_received(node) == going


def test_unbalanced_routing_drops_tokens_and_loads_one_device():
    layer, xs = made(NODES, 4, capacity=1), [torch.ones(16, WIDTH) + x[:16] / 100 for x in inputs(4)]
    layer(xs)  # all tokens are nearly alike
    (busy,) = [expert for expert, tokens in enumerate(layer.load.tokens) if tokens]
    assert layer.load.tokens[busy] == 64 and layer.load.dropped == 64 - 4 * 4
    received = [layer.traces[0].bytes_received(node) for node in NODES]
    assert received == [3 * 4 * WIDTH * 4 if i == busy else 0 for i in range(4)]
    generous = made(NODES, 4, capacity=4)
    generous(xs)
    assert generous.load.dropped == 0
    assert generous.traces[0].bytes_received(NODES[busy]) == 3 * 16 * WIDTH * 4  # what balance would have spread


@pytest.mark.parametrize("few_steps", [False, True])
def test_an_all_to_all_of_unequal_parts(few_steps):
    sizes = [[5, 0, 2], [1, 0, 0], [0, 0, 3]]
    nodes = ["gpu0", "gpu1", "gpu2"]
    plan = all_to_all(nodes, few_steps, sizes=sizes)
    check(plan)
    assert set(plan.share) == {"g1.1", "g1.3", "g2.1", "g3.3"}
    trace = cost.shared(all_to_all(nodes, sizes=sizes), nvswitch(3), "11 B")
    assert [trace.bytes_sent(node) for node in nodes] == [2, 1, 0]


@pytest.mark.parametrize("sizes", [[[0, 0], [0, 0]], [[1, 1]], [[1], [1]], [[1, -1], [1, 1]], [[1, 0.5], [1, 1]]])
def test_sizes_that_are_none(sizes):
    with pytest.raises(PlanError, match="the sizes of an all-to-all are 2 rows of 2 whole numbers"):
        all_to_all(["a", "b"], sizes=sizes)


# ---------------------------------------------------------------- over gloo


def on_a_process(rank, nodes):
    carrier = rank.carrier(Processes, backend="gloo")
    layer = made(nodes, 2 * rank.size, carrier=carrier)
    x = inputs(rank.size)[nodes.index(*layer.mine)]
    outputs = layer([x])
    places = torch.linspace(-1, 1, x.numel()).view(x.shape)
    (outputs[0] * places).sum().backward()
    layer.sum_router()
    carrier.close()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return outputs[0].detach(), x.grad, gradients, layer.load


@pytest.mark.parametrize("nodes", [NODES[:2], NODES, ["rank2", "rank0", "rank1"]])
def test_processes_have_the_numbers_of_one(nodes):
    count = len(nodes)
    layer, xs = made(nodes, 2 * count), inputs(count)
    outputs = layer(xs)
    loss(outputs).backward()
    right = {name: parameter.grad for name, parameter in layer.named_parameters()}
    results = ranks()(on_a_process, nodes, n=count)
    for rank, (output, gradient, gradients, load) in enumerate(results):
        i = nodes.index(f"rank{rank}") if f"rank{rank}" in nodes else rank
        assert torch.equal(output, outputs[i]) and torch.equal(gradient, xs[i].grad) and load == layer.load
        for name, theirs in gradients.items():
            close(theirs, right[name])
    assert {name for _, _, gradients, _ in results for name in gradients} == {*right}


def with_nan_on_one(rank):
    carrier = rank.carrier(Processes, backend="gloo")
    layer = made(NODES[:2], 2, carrier=carrier)
    try:
        layer([torch.ones(3, WIDTH) * (float("nan") if rank.number else 1)])
    except (ExpertError, ProcessesError) as error:
        return str(error)


def test_what_is_not_finite_on_one_process_is_named_on_all():
    for sentence in ranks()(with_nan_on_one, n=2):
        assert "the router gives no finite numbers" in sentence


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: made(NODES, 6), "6 experts cannot be dealt to 4 devices in equal numbers"),
        (lambda: made(NODES, 0), "0 experts cannot be dealt"),
        (lambda: made(NODES, 4, capacity=0), "capacity = 0: an expert must accept some tokens"),
        (lambda: made(NODES, 4, capacity=float("nan")), "capacity = nan"),
        (lambda: made(NODES[:2], 2)([torch.ones(3, WIDTH)]), "each of the 2 devices of this process needs one tensor"),
        (lambda: made(NODES[:1], 2)([torch.ones(3, 5)]), r"1 or more tokens × 6, not \(3, 5\)"),
        (lambda: made(NODES[:1], 2)([torch.ones(0, WIDTH)]), r"not \(0, 6\)"),
        (lambda: made(NODES[:1], 2)([torch.ones(2, WIDTH) / 0]), "the router gives no finite numbers"),
    ],
)
def test_what_does_not_fit_is_refused(call, sentence):
    with pytest.raises(ExpertError, match=sentence):
        call()


# ---------------------------------------------------------------- autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_outputs_have_the_type_of_the_inputs_and_the_numbers_of_one_device(dtype):
    layer, xs = made(NODES, 4, capacity=100), inputs(4)
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(4, WIDTH))  # so that no rounding changes a choice
        for x in xs:
            x.mul_(0.1)[torch.arange(len(x)), torch.arange(len(x)) % 4] += 4
    one, copies = made(["one"], 4, capacity=100).double(), [x.detach().double().requires_grad_() for x in xs]
    one.router.weight.data.copy_(layer.router.weight)
    with torch.autocast("cpu", dtype):
        outputs = layer(xs)
    loss(outputs).backward()
    right = [plainly(one, x, 100)[0] for x in copies]
    loss(right).backward()
    outcomes = [(outputs, right, 8), ([x.grad for x in xs], [x.grad for x in copies], 8)]
    outcomes.append(([*layer.parameters()], [*one.parameters()], sum(map(len, xs))))
    for ours, theirs, roundings in outcomes:  # a few matrices; for a weight, a product for each token
        for here, exact in zip(ours, theirs, strict=True):
            here, exact = (each.grad if isinstance(each, torch.nn.Parameter) else each for each in (here, exact))
            assert here.dtype == torch.float32
            assert (here - exact).abs().max() <= roundings * torch.finfo(dtype).eps * exact.abs().max()

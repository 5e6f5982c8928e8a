"""Layers whose matrices are cut: the gradients of one device, four all-reduces per block, and refusals."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from helpers import tensors
from helpers.ranks import ranks
from torch import nn
from torch.nn.functional import dropout, gelu
from torch.nn.utils import clip_grad_norm_, parametrizations

from d2lps import Processes
from d2lps.train.gpt import GPT, examples, loss, prose
from d2lps.train.tensor import ColumnLinear, CutModule, Group, RowLinear, SplitError, clip, cut_gpt, cut_linear

NODES = ["a", "b", "c", "d"]
LAYERS, WIDTH, CONTEXT, EXAMPLES = 2, 24, 10, 3
close = partial(tensors.close, added=EXAMPLES * CONTEXT + 4 * WIDTH)


def small_gpt():
    torch.manual_seed(0)
    return GPT(LAYERS, WIDTH, heads=12, context=CONTEXT), examples(prose("en"), EXAMPLES, CONTEXT)


def step(net, batch):
    value = loss(net(batch[0]), batch[1])
    value.backward()
    return value.detach()


def whole_gradients(net, count):
    """Return name → gradient of the part of each device, for the parameters of a whole model."""
    cut = {"query": 0, "key": 0, "value": 0, "up": 0, "out": 1, "down": 1}
    gradients = {}
    for name, parameter in net.named_parameters():
        *path, layer, kind = name.split(".")
        if layer not in cut or (kind == "bias" and cut[layer]):
            gradients[".".join([*path, kind] if layer in cut else [*path, layer, kind])] = parameter.grad
            continue
        for i, part in enumerate(parameter.grad.chunk(count, cut[layer])):
            gradients[".".join([*path, "parts", str(i), layer, kind])] = part
    return gradients


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_cut_gpt_has_the_gradients_of_the_whole_one(count):
    net, batch = small_gpt()
    group = Group(NODES[:count])
    cut = cut_gpt(net, group)
    close(step(cut, batch), step(net, batch))
    right = whole_gradients(net, count)
    assert right.keys() == {name for name, _ in cut.named_parameters()}
    for name, parameter in cut.named_parameters():
        close(parameter.grad, right[name])


@pytest.mark.parametrize("count", [2, 4])
def test_a_block_needs_two_all_reduces_forward_and_two_backward_of_one_activation_each(count):
    net, batch = small_gpt()
    group = Group(NODES[:count])
    cut = cut_gpt(net, group)
    value = loss(cut(batch[0]), batch[1])
    assert len(group.traces) == 2 * LAYERS
    value.backward()
    assert len(group.traces) == 4 * LAYERS
    activation = EXAMPLES * CONTEXT * WIDTH * 4
    for trace in group.traces:
        assert sum(map(trace.bytes_sent, group.devices)) == 2 * (count - 1) * activation


def test_each_device_has_its_part_of_the_parameters_only():
    net, _ = small_gpt()
    block = net[1]
    cut = CutModule(block.perceptron, Group(NODES), ["up"], "down")
    for part in cut.parts:
        shapes = [tuple(parameter.shape) for parameter in part.parameters()]
        assert shapes == [(WIDTH, WIDTH), (WIDTH,), (WIDTH, WIDTH)]


def test_columns_then_rows():
    torch.manual_seed(0)
    up, down, x = nn.Linear(5, 12), nn.Linear(12, 7), torch.randn(4, 5, requires_grad=True)
    right = down(gelu(up(x)))
    (gradient,) = torch.autograd.grad(right.square().sum(), x)
    group = Group(NODES[:3])
    columns, rows = ColumnLinear(up, group), RowLinear(down, group)
    ours = rows([gelu(part) for part in columns(group.to_all(x))])
    close(ours, right)
    close(torch.autograd.grad(ours.square().sum(), x)[0], gradient)


def on_a_process(rank, count):
    torch.set_num_threads(1)
    carrier = rank.carrier(Processes, backend="gloo")
    net, batch = small_gpt()
    group = Group(NODES[:count], carrier)
    cut = cut_gpt(net, group)
    value = step(cut, batch)
    carrier.close()
    gradients = {}
    for name, parameter in cut.named_parameters():  # the only part here is number 0
        gradients[name.replace("parts.0", f"parts.{rank.number}")] = parameter.grad
    return value, gradients, len(group.traces)


def test_processes_have_the_bits_of_one():
    torch.set_num_threads(1)
    net, batch = small_gpt()
    cut = cut_gpt(net, Group(NODES[:2]))
    value = step(cut, batch)
    right = {name: parameter.grad for name, parameter in cut.named_parameters()}
    for theirs, gradients, sums in ranks()(on_a_process, 2, n=2):
        assert torch.equal(theirs, value) and sums == 4 * LAYERS
        assert all(torch.equal(gradient, right[name]) for name, gradient in gradients.items())


def test_an_invalid_cut_is_refused():
    net, whole = GPT(1, 24, heads=3, context=4), nn.Linear(4, 9)
    with pytest.raises(SplitError, match="3 heads or columns cannot be dealt to 2 devices in equal numbers"):
        cut_gpt(net, Group(NODES[:2]))
    with pytest.raises(SplitError, match="9 heads or columns cannot be dealt to 4 devices"):
        ColumnLinear(whole, Group(NODES))


class Between(nn.Module):
    """Columns, rows, and a module between them."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.between, self.down = nn.Linear(6, 8), between, nn.Linear(8, 6)

    def forward(self, x):
        return self.down(self.between(self.up(x)))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Pairs(nn.Module):
    """A normalization of each pair of columns, as that of the queries of a head, and a scale that occurs twice."""

    def __init__(self, size=1):
        super().__init__()
        self.norm, self.scale = nn.RMSNorm(2), nn.Parameter(torch.full([size], 1.5))
        self.again = Function(None)
        self.again.scale = self.scale

    def forward(self, x):
        return gelu(self.norm((x * self.scale).unflatten(-1, (-1, 2))).flatten(-2)) * self.again.scale


def train(net, clipped, steps=3):
    """Return the weights and the norm of the gradient of each step."""
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    optimizer, norms = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        norms.append(float(clipped(net)))
        optimizer.step()
    return {name: parameter.detach() for name, parameter in net.named_parameters()}, norms


def train_cut(net, group):
    return train(CutModule(net, group, ["up"], "down", 4), lambda net: clip(net, group, 2.0))


def check_trained(ours, norms, part, count):
    """Compare the part of a device with the weights of one device that is clipped by PyTorch."""
    right, wanted = train(Between(Pairs()), lambda net: clip_grad_norm_(net.parameters(), 2.0))
    assert norms == pytest.approx(wanted, rel=1e-4) and min(norms) > 2
    cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    for name, weight in right.items():
        weight = weight.chunk(count, cut[name])[part] if name in cut else weight
        torch.testing.assert_close(ours["bias" if name == "down.bias" else name], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_copied_parameters_have_the_whole_gradient_and_count_once_in_the_norm(count):
    weights, norms = train_cut(Between(Pairs()), Group(NODES[:count]))
    assert sum("between" in name for name in weights) == 2  # one object for all devices of a process
    for part in range(count):
        named = {name.replace("parts.0.between", f"parts.{part}.between"): weight for name, weight in weights.items()}
        check_trained({name.removeprefix(f"parts.{part}."): named[name] for name in named}, norms, part, count)


def train_on_a_process(rank, count):
    torch.set_num_threads(1)
    carrier = rank.carrier(Processes, backend="gloo")
    result = train_cut(Between(Pairs()), Group(NODES[:count], carrier))
    carrier.close()
    return result


def test_copied_parameters_stay_equal_on_all_processes():
    for part, (weights, norms) in enumerate(ranks()(train_on_a_process, 2, n=2)):
        check_trained({name.removeprefix("parts.0."): weight for name, weight in weights.items()}, norms, part, 2)


def test_a_cut_keeps_frozen_parameters_dtypes_mode_and_order():
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)).bfloat16().eval()
    whole[0].weight.requires_grad = whole[2].bias.requires_grad = False
    cut, x = CutModule(whole, Group(NODES[:2]), ["0"], "2"), torch.randn(3, 4).bfloat16()
    torch.testing.assert_close(cut(x), whole(x), rtol=0.02, atol=0.02)
    frozen = {name for name, parameter in cut.named_parameters() if not parameter.requires_grad}
    assert frozen == {"bias", "parts.0.0.weight", "parts.1.0.weight"}
    assert {parameter.dtype for parameter in cut.parameters()} == {torch.bfloat16}
    layers = ColumnLinear(whole[0], Group(NODES)), RowLinear(whole[2], Group(NODES)), *cut.parts
    assert not any(layer.training for layer in layers)
    assert not layers[1].bias.requires_grad and not any(part.weight.requires_grad for part in layers[0].parts)


@pytest.mark.parametrize(
    "between, sentence",
    [
        (nn.Dropout(0.5), "random numbers"),
        (Function(dropout), "random numbers"),
        (nn.BatchNorm1d(4), "statistics"),
        (nn.LayerNorm(8), "Between does not work with a part of its columns"),
        (Pairs(8), "Between does not work with a part of its columns"),
    ],
)
def test_a_layer_that_devices_would_compute_differently_is_refused(between, sentence):
    cut = CutModule(Between(between), Group(NODES[:2]), ["up"], "down")
    with pytest.raises(SplitError, match=sentence):
        cut(torch.randn(2, 4, 6))


@pytest.mark.parametrize("between", [nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.ReLU(inplace=True)])
def test_a_layer_that_draws_no_numbers_is_cut(between):
    whole, x = Between(between), torch.randn(2, 4, 6)
    close(CutModule(whole, Group(NODES[:2]), ["up"], "down")(x), whole(x))


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_only_plain_linear_layers_are_cut(kind):
    hooked = nn.Linear(4, 8)
    getattr(hooked, f"register_{kind}")(lambda *_: None)
    for layer in hooked, parametrizations.weight_norm(nn.Linear(4, 8)), nn.Conv1d(4, 8, 1):
        with pytest.raises(SplitError, match=rf"{type(layer).__name__} cannot be cut"):
            cut_linear(layer, Group(NODES[:2]), 0)


def test_tied_matrices_are_refused_by_name_unless_whole_blocks_are_the_same():
    group, (net, batch) = Group(NODES[:2]), small_gpt()
    same = nn.Sequential(net[0], net[1], net[1], net[3])
    close(cut_gpt(same, group)(batch[0]), same(batch[0]))
    matrix, attention, joined = net, deepcopy(net), deepcopy(net)
    matrix[2].perceptron.up.weight = matrix[1].perceptron.up.weight
    attention[2].attention = attention[1].attention
    for tied, name in (matrix, "1.perceptron.up.weight"), (attention, "1.attention.query.weight"):
        with pytest.raises(SplitError, match=f"{name} occurs in several layers"):
            cut_gpt(tied, group)
    joined[3][1].weight = joined[0].bytes.weight  # not cut: it stays one parameter
    cut = cut_gpt(joined, group)
    step(cut, batch), step(joined, batch)
    close(cut[0].bytes.weight.grad, joined[0].bytes.weight.grad)

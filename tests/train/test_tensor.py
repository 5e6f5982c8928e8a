"""Layers whose matrices are cut: the gradients of one device, four all-reduces per block, and refusals."""

import pytest
import torch
from helpers.ranks import ranks
from torch import nn
from torch.nn.functional import gelu

from d2lps import Processes
from d2lps.train.gpt import GPT, examples, loss, prose
from d2lps.train.tensor import ColumnLinear, CutModule, Group, RowLinear, SplitError, cut_gpt

NODES = ["a", "b", "c", "d"]
LAYERS, WIDTH, CONTEXT, EXAMPLES = 2, 24, 10, 3


def close(ours, right):
    assert (ours - right).abs().max() <= 1e-5 * right.abs().max()


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


@pytest.mark.slow(5)
def test_processes_have_the_bits_of_one():
    torch.set_num_threads(1)
    net, batch = small_gpt()
    cut = cut_gpt(net, Group(NODES[:2]))
    value = step(cut, batch)
    right = {name: parameter.grad for name, parameter in cut.named_parameters()}
    for theirs, gradients, sums in ranks()(on_a_process, 2, n=2):
        assert torch.equal(theirs, value) and sums == 4 * LAYERS
        assert all(torch.equal(gradient, right[name]) for name, gradient in gradients.items())


def test_what_cannot_be_dealt_out_is_refused():
    net, whole = GPT(1, 24, heads=3, context=4), nn.Linear(4, 9)
    with pytest.raises(SplitError, match="3 heads or columns cannot be dealt to 2 devices in equal numbers"):
        cut_gpt(net, Group(NODES[:2]))
    with pytest.raises(SplitError, match="9 heads or columns cannot be dealt to 4 devices"):
        ColumnLinear(whole, Group(NODES))

"""Ordinary modules in each way of training: the weights of plain PyTorch, or a refusal in one sentence of d2lps."""

from copy import deepcopy

import pytest
import torch
from helpers.tensors import close
from torch import nn
from torch.nn.functional import cross_entropy, prelu
from torch.nn.utils import parameters_to_vector

from d2lps import kvstore, sharded
from d2lps.train import by_plan, by_store
from d2lps.train.buckets import Buckets, BucketsError
from d2lps.train.by_plan import GradientError
from d2lps.train.tensor import CutModule, Group, SplitError

SIZE, STEPS, LR = 12, 2, 0.1


class Scale(nn.Module):
    """A scale that is used in two places, and one parameter more."""

    def __init__(self, dtype=torch.float32, unused=0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5], dtype=dtype))
        self.rest, self.again = nn.Parameter(torch.zeros(unused, dtype=dtype)), nn.PReLU(1)
        self.again.weight = self.scale

    def forward(self, x):
        x = prelu(x * self.scale.to(x.dtype), self.again.weight.to(x.dtype))
        return x if len(self.rest) else x + self.rest.sum()


def net_of(*between, first=()):
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(6, 8), *between, nn.Linear(8, 3))


def in_parts(sentence, **others):
    return dict.fromkeys(["parallel", "by_store"], sentence) | others


def as_vector(sentence, **others):
    return in_parts(sentence, one_device=sentence, **others)


# Row: the network, and what a refusal says, by column; the other columns have the weights of PyTorch.
ROWS = {
    "frozen": (net_of(nn.PReLU().requires_grad_(False)), {}),
    "unused": (net_of(Scale(unused=2)), as_vector("1.rest has no gradient", buckets=r"1 gradients .* shape \(2,\)")),
    "without weights": (nn.Sequential(nn.Softmax(1)), as_vector("no parameter", cut="Softmax cannot be cut")),
    "in-place first operation": (net_of(nn.ReLU(), first=[nn.ReLU(inplace=True)]), {}),
    "dropout": (net_of(nn.Dropout(0.5)), in_parts(r"layer 1 \(Dropout\)", cut="random numbers")),
    "BatchNorm": (net_of(nn.BatchNorm1d(8)), in_parts(r"layer 1 \(BatchNorm1d\)", cut="part of its columns")),
    "tied": (net_of(Scale()), {}),
    "bf16": (net_of(nn.ReLU()).bfloat16(), {}),
    "bf16 beside float32": (net_of(Scale(torch.bfloat16)), as_vector("torch.bfloat16 torch.float32")),
    "non-contiguous input": (net_of(nn.ReLU()), {}),
    "zero-size parameter": (net_of(Scale()), {}),
    "padding labels": (net_of(nn.ReLU()), as_vector("label -100")),
    "sparse gradient": (net_of(first=[nn.Embedding(9, 1, sparse=True), nn.Flatten()]), {}),
}


def data_of(row):
    X, y = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(1)).T, torch.arange(SIZE) % 3
    y[:3] = -100 if row == "padding labels" else y[:3]
    given = {"bf16": X.bfloat16(), "non-contiguous input": X, "sparse gradient": X.abs().long()}
    return given.get(row, X.contiguous()), y


def plain(net, data, after=lambda: None, lr=LR):
    """Return the network after it was trained by PyTorch alone."""
    optimizer = torch.optim.SGD(net.parameters(), lr)
    for X, y in by_plan.batches(data, SIZE, STEPS):
        optimizer.zero_grad()
        cross_entropy(net(X), y).backward()
        after()
        optimizer.step()
    return net


def flat(net):
    return parameters_to_vector(weight for weight in net.parameters() if weight.requires_grad).detach()


def parallel(net, data):
    return by_plan.parallel(net, sharded(["a", "b"], update=("sgd", {"lr": LR})), data, SIZE, STEPS).weights


def one_device(net, data):
    return by_plan.one_device(net, data, SIZE, STEPS, LR).weights


def through_store(net, data):
    def work(store):
        return by_store.work(store, deepcopy(net), data, SIZE, STEPS, ("sgd", {"lr": LR})).weights

    with kvstore.cluster("dist_sync", workers=2) as stores:
        return by_store.each(stores, work)[0]


class Doubled:
    """A message to another worker with the same gradient, and the sum that comes back."""

    def __init__(self, flat):
        flat *= 2

    def wait(self):
        pass


def in_buckets(net, data):
    buckets = Buckets([*net.parameters()][::-1], 64, Doubled)
    return flat(plain(net, data, buckets.wait, LR / 2))


def cut(net, data):
    first, *_, last = [name for name, layer in net.named_children() if isinstance(layer, nn.Linear)] or "00"
    trained = plain(CutModule(net, Group(["a", "b"]), [first], last), data)
    for name, dim in (f"{first}.weight", 0), (f"{first}.bias", 0), (f"{last}.weight", 1):
        net.get_parameter(name).data = torch.cat([part.get_parameter(name) for part in trained.parts], dim)
    net.get_parameter(f"{last}.bias").data = trained.bias
    for name in trained.copied:
        net.get_parameter(name).data = trained.parts[0].get_parameter(name)
    return flat(net)


COLUMNS = {"parallel": parallel, "one_device": one_device, "by_store": through_store, "buckets": in_buckets, "cut": cut}
CELLS = {(row, column) for row in ROWS for column in COLUMNS} - {("without weights", "buckets")}  # has no backward pass


@pytest.mark.parametrize("row, column", sorted(CELLS))
def test_a_module_trains_as_in_pytorch_or_is_refused_in_one_sentence(row, column):
    (net, refused), data = ROWS[row], data_of(row)

    def trained(how):
        torch.manual_seed(2)
        return how(deepcopy(net), data)

    if column in refused:
        with pytest.raises((GradientError, BucketsError, SplitError), match=refused[column]):
            trained(COLUMNS[column])
    else:
        ours, right = trained(COLUMNS[column]), flat(trained(plain))
        if "bf16" in row:
            torch.testing.assert_close(ours, right, rtol=0.02, atol=0.02)
        else:
            close(ours, right, STEPS * SIZE)

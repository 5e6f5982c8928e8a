"""Memory measured on real modules, which is what the closed forms predict."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from d2lps import Transformer, memory, parallelize
from d2lps.scaling import Layout, ScalingError, kept, measured
from d2lps.train.gpt import GPT, examples, prose


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers, width, heads, context, count, length", [(2, 32, 4, 16, 8, 16), (3, 64, 2, 64, 3, 40)])
def test_the_ledger_of_our_gpt_is_exact(dtype, layers, width, heads, context, count, length):
    net = GPT(layers, width, heads, context).to(dtype)
    before = [weight.clone() for weight in net.parameters()]
    ledger = memory(net, examples(prose("en"), count, context=length))
    assert [item.name for item in ledger.items if item.mark == "both"] == (
        "weights gradients optimizer normalization attention perceptron output".split()
    )
    for item in ledger.items[:-1]:
        wrong = abs(item.predicted / item.measured - 1)
        assert wrong < (0.01 if item.name in ("optimizer", "output") else 1e-12), item
    assert "predicted ÷ measured" in str(ledger)
    assert all(map(torch.equal, before, net.parameters())) and next(net.parameters()).grad is None


class Classic(nn.Module):
    """A layer with dropout whose attention saves its scores."""

    def __init__(self, h, a):
        super().__init__()
        self.a, self.drops = a, nn.ModuleList(nn.Dropout(0.1) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(h, h) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(h, h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, h = x.shape
        y = self.norms[0](x)
        q, k, v = (f(y).view(b, s, self.a, -1).transpose(1, 2) for f in self.qkv)
        scores = self.drops[0]((q @ k.transpose(2, 3) / (h // self.a) ** 0.5).softmax(-1))
        x = x + self.drops[1](self.out((scores @ v).transpose(1, 2).flatten(2)))
        return x + self.drops[2](self.down(nn.functional.gelu(self.up(self.norms[1](x)))))


def test_a_layer_with_dropout_saves_36_bytes_and_6_per_score_on_a_cpu():
    b, s, h, a = 2, 16, 32, 4
    net, x = Classic(h, a).bfloat16(), torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    saved = sum(measured.activations(net, lambda: net(x).sum().backward()).values())
    model = Transformer(1, h, a, s, 256)
    predicted = sum(model.activations(b, precise=2, mask=2).values())
    assert predicted == pytest.approx(s * b * h * (36 + 6 * a * s / h + 8 / h))
    assert saved == predicted


class Recomputed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=True)


def test_full_recomputation_saves_only_the_inputs_of_layers():
    net, (inputs, _) = GPT(3, 32, 4, 16), examples(prose("en"), 8, context=16)
    blocks = nn.Sequential(net[0], *map(Recomputed, [*net][1:-1]), net[-1])
    outputs = []
    saved = measured.activations(blocks, lambda: outputs.append(blocks(inputs)))
    predicted = kept(net.transformer, Layout(micro=8, recompute="full"), "float32", 16)
    assert saved["recomputed"] == predicted["inputs"] == 3 * 8 * 16 * 32 * 4


def test_any_module_is_measured():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.ones(5, 4), torch.zeros(5).long()
    ledger = memory(net, batch)
    assert ledger["weights"].mark == "both" and ledger["weights"].predicted == ledger["weights"].measured == 4 * 67
    assert ledger["output"].mark == "measured" and ledger["buffers"].mark == "not included"
    assert memory(net)["activations"].mark == "not included"
    assert memory(nn.ReLU())["weights"].predicted == 0
    with pytest.raises(ScalingError, match="one device"):
        memory(net, batch, tensor=2)
    with pytest.raises(ScalingError, match="batch = Tensor"):
        memory(net, batch[0])


def test_our_gpt_can_be_described_and_divided():
    net = GPT(4, 64, 4, 32)
    assert net.transformer.parameters == sum(weight.numel() for weight in net.parameters())
    assert parallelize(net, gpus=8, batch=64).layout.data == 8

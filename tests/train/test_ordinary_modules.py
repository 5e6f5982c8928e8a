"""Ordinary modules in every schedule of a pipeline and in every stage of ZeRO: PyTorch's numbers, or one sentence.

The reference is ``loss(net(X), y).backward()``, with the whole batch at once.
"""

import copy
import re
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from helpers import tensors
from helpers.ranks import ranks
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.checkpoint import checkpoint

from d2lps import Processes
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline, zero_bubble
from d2lps.train import pipeline as pipelines
from d2lps.train.by_plan import GradientError
from d2lps.train.flat import ShardError
from d2lps.train.pipeline import PipelineError, one_device, run
from d2lps.train.sharded import Sharded

SGD = partial(torch.optim.SGD, lr=1.0)
SCHEDULES = {
    "gpipe": gpipe(4, 4),
    "1F1B": one_f_one_b(4, 4),
    "zero bubble": zero_bubble(4, 4),
    "interleaved": interleaved(2, 4, 2),
}


class Unused(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.other = nn.Parameter(torch.ones(3))


class Noisy(nn.Linear):
    def forward(self, x):
        return dropout(super().forward(x))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Empty(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.none = nn.Parameter(torch.ones(0))

    def forward(self, x):
        return super().forward(x) + self.none.sum()


class Checkpointed(nn.Linear):
    def forward(self, x):
        return checkpoint(lambda x: super(Checkpointed, self).forward(x).tanh(), x, use_reentrant=False)


def frozen(module):
    return module.requires_grad_(False)


def rectified():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))


def low_rank():
    """A frozen matrix between two small ones that learn."""
    return nn.Sequential(nn.Linear(6, 6), frozen(nn.Linear(6, 6)), nn.Linear(6, 6))


def row(*middle, first=None, last=None):
    torch.manual_seed(0)
    middle = [make() for make in middle] or [nn.Linear(6, 6), nn.Linear(6, 6)]
    return [first() if first else nn.Linear(4, 6), *middle, last() if last else nn.Linear(6, 5)]


def tied():
    stages = row(partial(nn.Linear, 6, 6, bias=False), partial(nn.Linear, 6, 6, bias=False))
    stages[2].weight = stages[1].weight
    return stages


def twice():
    stages = row()
    return [stages[0], stages[1], stages[1], stages[3]]


LINEAR, TANH = partial(nn.Linear, 6, 6), nn.Tanh
BATCH = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
# name: stages, batch, and the sentences that refuse them in a pipeline and in ZeRO
CASES = {
    "plain": (row, BATCH, None, None),
    "frozen first": (lambda: row(first=lambda: frozen(nn.Linear(4, 6))), BATCH, None, None),
    "frozen middle": (lambda: row(lambda: frozen(LINEAR()), low_rank), BATCH, None, None),
    "frozen last": (lambda: row(last=lambda: frozen(nn.Linear(6, 5))), BATCH, None, None),
    "unused": (lambda: row(partial(Unused, 6, 6), LINEAR), BATCH, None, None),
    "without weights": (lambda: row(TANH, TANH), BATCH, None, None),
    "without weights first": (
        lambda: row(partial(nn.Linear, 4, 6), LINEAR, first=partial(nn.Flatten, 1)),
        (BATCH[0].view(8, 2, 2), BATCH[1]),
        None,
        None,
    ),
    "in place": (lambda: row(rectified, rectified), BATCH, None, None),
    "tuple": (lambda: row(LINEAR, partial(Pair, 6, 6)), BATCH, "F2.0 returned tuple", "F2.0 returned tuple"),
    "dropout": (lambda: row(lambda: nn.Sequential(nn.Dropout(0.5), LINEAR()), LINEAR), BATCH, "Dropout", "Dropout"),
    "functional dropout": (lambda: row(partial(Noisy, 6, 6), LINEAR), BATCH, "F1.0 drew", "F1.0 drew"),
    "dropout in use": (lambda: row(lambda: nn.Dropout(0.5).eval(), LINEAR), BATCH, None, None),
    "BatchNorm": (lambda: row(partial(nn.BatchNorm1d, 6), LINEAR), BATCH, "BatchNorm1d", "BatchNorm1d"),
    "BatchNorm in use": (lambda: row(lambda: nn.BatchNorm1d(6).eval(), LINEAR), BATCH, None, None),
    "tied": (tied, BATCH, None, "two layers share a parameter"),
    "twice": (twice, BATCH, None, "two layers share a parameter"),
    "bf16": (lambda: [s.bfloat16() for s in row()], (BATCH[0].bfloat16(), BATCH[1]), None, None),
    "autocast": (row, BATCH, None, None),
    "activation checkpointing": (lambda: row(*[partial(Checkpointed, 6, 6)] * 2), BATCH, None, None),
    "not contiguous": (row, (BATCH[0].t().contiguous().t(), BATCH[1]), None, None),
    "zero size": (lambda: row(partial(Empty, 6, 6), LINEAR), BATCH, None, None),
    "some padding": (row, (BATCH[0], torch.tensor([0, -100, -100, -100, 4, 0, 1, -100])), None, None),
    "a part of padding": (row, (BATCH[0], torch.tensor([-100, -100, 2, 3, -100, 0, 1, 2])), None, None),
    "only padding": (row, (BATCH[0], torch.full((8,), -100)), "ignores all labels", "ignores all labels"),
    "nine examples": (row, (torch.cat([BATCH[0], BATCH[0][:1]]), torch.cat([BATCH[1], BATCH[1][:1]])), None, None),
}


def plain(stages, batch):
    """Return the loss and the gradients of PyTorch alone, and the modules."""
    stages = copy.deepcopy(stages)
    loss = cross_entropy(nn.Sequential(*stages)(batch[0].clone()), batch[1])
    loss.backward()
    return loss.item(), nn.ModuleList(stages)


def close(ours, theirs, name):
    if theirs is None:
        assert ours is None
    elif name in ("bf16", "autocast"):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)
    else:
        tensors.close(ours, theirs, 4 * 8)  # layers and examples


@pytest.mark.parametrize("name", CASES)
def test_pipelines_have_the_gradient_of_the_whole_batch_or_say_why_not(name):
    make, batch, sentence, _ = CASES[name]
    for schedule in SCHEDULES.values():
        stages = make()
        if sentence:
            with pytest.raises((PipelineError, GradientError), match=sentence):
                run(pipeline(schedule), stages, batch)
        else:
            require_gradient(name, stages, batch, lambda stages: run(pipeline(schedule), stages, batch)[0])  # noqa: B023
    if not sentence:
        require_gradient(name, make(), batch, lambda stages: one_device(stages, batch, 4))


def casting(name):
    return torch.autocast("cpu", torch.bfloat16) if name == "autocast" else nullcontext()


def require_gradient(name, stages, batch, work):
    loss, right = plain(stages, batch)
    with casting(name):
        ours = work(stages)
    close(torch.tensor(ours), torch.tensor(loss), name)
    for ours, theirs in zip(nn.ModuleList(stages).parameters(), right.parameters(), strict=True):
        close(ours.grad, theirs.grad, name)


@pytest.mark.parametrize("name", CASES)
def test_zero_takes_the_step_of_the_whole_batch_or_says_why_not(name):
    make, batch, _, sentence = CASES[name]
    for stage in range(4):
        stages = make()
        ours = partial(Sharded, nn.Sequential(*stages), ["a", "b"], stage, SGD, micro=2)
        if sentence:
            with pytest.raises((ShardError, PipelineError, GradientError), match=sentence):
                ours().step(batch)
        else:
            loss, right = plain(stages, batch)
            torch.optim.SGD(right.parameters(), lr=1.0).step()
            model = ours()
            with casting(name):
                losses = model.step(batch)
            close(torch.tensor(sum(losses.values())), torch.tensor(loss), name)
            close(model.weights(), nn.utils.parameters_to_vector(right.parameters()).detach(), name)


# ---------------------------------------------------------------- clipping


@pytest.mark.parametrize("max_norm", [0.1, 100.0, torch.tensor(0.1)])
@pytest.mark.parametrize("make", [row, tied, CASES["frozen middle"][0]])
def test_clipping_is_that_of_pytorch(make, max_norm):
    stages = make()
    _, right = plain(stages, BATCH)
    norm = nn.utils.clip_grad_norm_(right.parameters(), max_norm).item()
    run(pipeline(gpipe(4, 4)), stages, BATCH)
    assert pipelines.clip(stages, max_norm) == pytest.approx(norm, rel=1e-5)
    for ours, theirs in zip(nn.ModuleList(stages).parameters(), right.parameters(), strict=True):
        close(ours.grad, theirs.grad, "clip")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_zero_clips_by_the_norm_of_the_whole_model_with_the_same_bits_in_all_stages(count):
    _, right = plain(row(), BATCH)
    norm = nn.utils.clip_grad_norm_(right.parameters(), 0.1).item()
    torch.optim.SGD(right.parameters(), lr=1.0).step()
    found = []
    for stage in range(4):
        model = Sharded(nn.Sequential(*row()), ["a", "b", "c"][:count], stage, SGD, max_norm=0.1)
        model.step(BATCH)
        found.append(model.weights())
        assert model.norm == pytest.approx(norm, rel=1e-5)
    assert all(torch.equal(weights, found[0]) for weights in found)
    close(found[0], nn.utils.parameters_to_vector(right.parameters()).detach(), "clip")


@pytest.mark.parametrize("max_norm", [0, -1.0, float("nan"), "1", torch.tensor(0.0), torch.ones(2)])
def test_a_norm_that_is_no_limit_is_refused(max_norm):
    stages = row()
    run(pipeline(gpipe(4, 4)), stages, BATCH)
    with pytest.raises(PipelineError, match="max_norm"):
        pipelines.clip(stages, max_norm)
    with pytest.raises(PipelineError, match="max_norm"):
        Sharded(nn.Sequential(*stages), ["a", "b"], 2, max_norm=max_norm).step(BATCH)


def test_an_optimizer_that_inherits_from_one_that_is_element_by_element_is_refused():
    class Clipping(torch.optim.SGD):
        def step(self):
            nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
            super().step()

    with pytest.raises(ShardError, match="Clipping may need whole tensors.*max_norm"):
        Sharded(nn.Sequential(*row()), ["a", "b"], 1, partial(Clipping, lr=0.1))


# ---------------------------------------------------------------- over processes


class Widening(nn.Linear):
    """Makes more columns, or another type, for the second micro-batch."""

    def __init__(self, kind):
        super().__init__(4, 6)
        self.kind, self.calls = kind, 0

    def forward(self, x):
        self.calls += 1
        y = super().forward(x)
        if self.kind == "dtype":
            return y.double() if self.calls == 2 else y
        return torch.cat([y, y], 1) if (self.calls == 2) == (self.kind == "wider") else y


class Narrowing(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :6].float())


def refusal(rank, kind):
    carrier = rank.carrier(Processes, backend="gloo")
    stages, batch = row(), BATCH
    if kind in ("wider", "narrower", "dtype"):
        stages = [Widening(kind), Narrowing(6, 6), LINEAR(), nn.Linear(6, 5)]
    if kind == "tied":
        stages = tied()
    if kind == "batch" and rank.number == 1:
        batch = BATCH[0] + 1, BATCH[1]
    if kind == "labels" and rank.number == 3:
        batch = BATCH[0], BATCH[1].flip(0)
    try:
        run(pipeline(one_f_one_b(4, 4)), stages, batch, carrier)
    except PipelineError as error:
        return str(error)
    finally:
        carrier.close()


@pytest.mark.parametrize(
    "kind, sentence",
    [
        ("wider", r"micro-batch 1 sends x1.1 as torch.float32 \(12,\) per example, .* sent it as torch.float32 \(6,\)"),
        ("narrower", r"micro-batch 1 sends x1.1 as torch.float32 \(6,\) per example, .* torch.float32 \(12,\)"),
        ("dtype", r"micro-batch 1 sends x1.1 as torch.float64 \(6,\) per example"),
        ("tied", "stages 1 and 2 share a parameter"),
        ("batch", "rank . has another batch than rank ."),
        ("labels", "rank . has another batch than rank ."),
    ],
)
def test_all_processes_raise_the_same_error(kind, sentence):
    found = ranks()(refusal, kind, n=4)
    assert len({*found}) == 1 or kind in ("batch", "labels", "tied")
    for text in found:
        assert re.search(sentence, text)


def clipped(rank):
    carrier = rank.carrier(Processes, backend="gloo")
    stages = row()
    run(pipeline(one_f_one_b(4, 4)), stages, BATCH, carrier)
    norm = pipelines.clip(stages, 0.1, carrier)
    sgd = partial(torch.optim.SGD, lr=1.0)
    models = [
        Sharded(nn.Sequential(*row()), list("abcd"), stage, sgd, carrier=carrier, max_norm=max_norm)
        for stage, max_norm in ((0, 0.1), (2, torch.tensor(0.1)))
    ]
    for model in models:
        model.step(BATCH)
    weights = [model.weights() for model in models]
    carrier.close()
    return norm, stages[rank.number].weight.grad, [model.norm for model in models], weights


def test_processes_clip_by_the_norm_of_the_whole_model():
    _, right = plain(row(), BATCH)
    norm = nn.utils.clip_grad_norm_(right.parameters(), 0.1).item()
    gradients = [module.weight.grad for module in right]
    torch.optim.SGD(right.parameters(), lr=1.0).step()
    vector = nn.utils.parameters_to_vector(right.parameters()).detach()
    for number, (ours, gradient, norms, weights) in enumerate(ranks()(clipped, n=4)):
        assert [ours, *norms] == pytest.approx([norm] * 3, rel=1e-5)
        close(gradient, gradients[number], "clip")
        for found in weights:
            close(found, vector, "clip")


def unlike_in_zero(rank):
    carrier = rank.carrier(Processes, backend="gloo")
    model = Sharded(nn.Sequential(*row()), ["a", "b", "c"], 2, carrier=carrier)
    try:
        model.step((BATCH[0] + (rank.number == 2), BATCH[1]))
    except PipelineError as error:
        return str(error)
    finally:
        carrier.close()


def test_zero_notices_that_processes_have_different_batches():
    assert all("has another batch than rank" in (sentence or "") for sentence in ranks()(unlike_in_zero, n=3))

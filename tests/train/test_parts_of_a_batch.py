"""What cannot be computed in parts of a batch is refused in one sentence; everything else has PyTorch's numbers.

The reference is ``loss(net(X), y).backward()``, with the whole batch at once.
"""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from helpers.ranks import ranks
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss

from d2lps import Processes
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline, zero_bubble
from d2lps.train.pipeline import PipelineError, one_device, run
from d2lps.train.sharded import Sharded

SGD = partial(torch.optim.SGD, lr=1.0)
SCHEDULES = [gpipe(3, 4), one_f_one_b(3, 8), zero_bubble(3, 2), interleaved(3, 3, 1)]
LABELS = torch.tensor([0, 1, 1, 3, 4, 0, 2, 2])
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def row(middle=None, make=lambda: nn.Linear(6, 6)):
    """Return three modules, with the same weights each time; the middle one is given, or made after the seed is set."""
    torch.manual_seed(0)
    return [nn.Linear(4, 6), middle or make(), nn.Linear(6, 5)]


def everywhere(make, batch, loss):
    """Yield functions that compute in parts, of which each returns the loss."""
    for schedule in SCHEDULES:
        yield lambda schedule=schedule: run(pipeline(schedule), make(), batch, loss=loss)[0]
    for micro in (2, 3, 8):
        yield lambda micro=micro: one_device(make(), batch, micro, loss=loss)
    for stage, devices, micro in ((0, 2, 1), (1, 2, 2), (2, 8, 1), (3, 1, 2), (3, 2, 4)):

        def step(stage=stage, devices=devices, micro=micro):
            names = [f"gpu{i}" for i in range(devices)]
            model = Sharded(nn.Sequential(*make()), names, stage, SGD, loss=loss, micro=micro)
            return sum(model.step(batch).values())

        yield step


# ---------------------------------------------------------------- losses


def contrastive(output, labels):
    return cross_entropy(output @ output.T, torch.arange(len(output)))


NO_MEAN = {
    "a sum": lambda o, y: cross_entropy(o, y, reduction="sum"),
    "pairs": contrastive,
    "another ignored label": lambda o, y: cross_entropy(o, y, ignore_index=1),
    "weighted classes": lambda o, y: cross_entropy(o, y, weight=torch.tensor([1.0, 2, 3, 4, 5])),
}


@pytest.mark.parametrize("name", NO_MEAN)
def test_a_loss_that_is_no_mean_is_refused_even_if_it_has_no_name(name):
    for work in everywhere(row, (X, LABELS), NO_MEAN[name]):
        with pytest.raises(PipelineError, match="plain mean over labels.* compare no examples"):
            work()


@pytest.mark.parametrize("name", ["a sum", "pairs"])
def test_such_a_loss_is_right_on_the_whole_batch(name):
    right = NO_MEAN[name](nn.Sequential(*row())(X), LABELS).item()
    assert one_device(row(), (X, LABELS), 1, loss=NO_MEAN[name]) == pytest.approx(right, rel=1e-5)
    assert run(pipeline(gpipe(3, 1)), row(), (X, LABELS), loss=NO_MEAN[name])[0] == pytest.approx(right, rel=1e-5)


PADDED = torch.tensor([0, -100, -100, 3, 4, 0, -100, -100])
MEANS = {
    "cross entropy": (lambda o, y: cross_entropy(o, y), LABELS),
    "some padding": (lambda o, y: cross_entropy(o, y), PADDED),
    "smoothed": (partial(cross_entropy, label_smoothing=0.1), PADDED),
    "one ignored label": (partial(cross_entropy, ignore_index=0), LABELS),
    "probabilities": (lambda o, y: cross_entropy(o, y), torch.rand(8, 5).softmax(1)),
    "squares": (lambda o, y: mse_loss(o, y), torch.rand(8, 5)),
    "absolute": (nn.L1Loss(), torch.rand(8, 5)),
    "positive weights": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 4, 5])), torch.rand(8, 5).round()),
    "zero": (lambda o, y: (o.sum(1) * 0 + y).mean(), torch.tensor([1.0, -1, 3, -3, 1e3, -1e3, 0, 0])),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_of_parts_are_the_mean_of_the_batch(name):
    loss, labels = MEANS[name]
    exact = loss(nn.Sequential(*row()).double()(X.double()), labels.double() if labels.is_floating_point() else labels)
    near = 64 * torch.finfo(torch.float32).eps * (labels.abs().max() if name == "zero" else 4)
    for work in everywhere(row, (X, labels), loss):
        assert abs(work() - exact.item()) <= near


def test_a_loss_that_draws_random_numbers_is_not_compared():
    def noisy(output, labels):
        return cross_entropy(dropout(output), labels)

    for work in everywhere(row, (X, LABELS), noisy):
        work()


def test_a_loss_is_looked_at_once():
    calls = []

    def counted(output, labels):
        calls.append(len(output))
        return cross_entropy(output, labels)

    for _ in range(3):
        one_device(row(), (X, LABELS), 2, loss=counted)
    assert sorted(calls) == [4] * 8 + [8]  # two per step, and once those of the whole batch and of its parts


@dataclass
class Scaled:
    """A loss that has no weak reference as a key: it cannot be hashed."""

    by: float

    def __call__(self, output, labels):
        return cross_entropy(output, labels, reduction="sum") * self.by


def test_a_loss_that_cannot_be_a_key_is_looked_at_too():
    with pytest.raises(PipelineError, match="plain mean"):
        one_device(row(), (X, LABELS), 2, loss=Scaled(0.5))


def test_probes_draw_no_random_numbers():
    for loss in (lambda o, y: cross_entropy(o, y), lambda o, y: cross_entropy(o, y)):
        stages = row()
        torch.manual_seed(7)
        one_device(stages, (X, LABELS), 2, loss=loss)
        drawn = torch.get_rng_state()
        torch.manual_seed(7)
        assert torch.equal(drawn, torch.get_rng_state())


# ---------------------------------------------------------------- modules


class Centered(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0)


class Normed(nn.Module):
    def forward(self, x):
        return x / x.abs().amax()


class Remembering(nn.Linear):
    """Has a moving average of what it sees, as a codebook has."""

    def __init__(self):
        super().__init__(6, 6)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return super().forward(x) - self.average


REFUSED = {
    "centered": (partial(Centered, 6, 6), "computes something else on a part"),
    "normed": (Normed, "computes something else on a part"),
    "remembering": (Remembering, "changes its buffer (0.)?average in a forward pass"),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
        "changes its buffer .*parametrizations.weight.0._u in a forward pass",
    ),
    "old spectral norm": (lambda: nn.utils.spectral_norm(nn.Linear(6, 6)), "changes its buffer .*weight_u"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_mixes_examples_or_changes_in_a_forward_pass_is_refused(name):
    make, sentence = REFUSED[name]
    for work in everywhere(lambda: row(make()), (X, LABELS), cross_entropy):
        with pytest.raises(PipelineError, match=sentence):
            work()


class Cached(nn.Linear):
    """Makes a buffer when it is first called, as some layers do with the sines of positions."""

    def forward(self, x):
        if not hasattr(self, "sines"):
            self.register_buffer("sines", torch.arange(x.shape[1]).sin())
        return super().forward(x) + self.sines


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Chooses(nn.Linear):
    """Rounds hard, so that two almost equal inputs may have unlike outputs."""

    def forward(self, x):
        y = super().forward(x)
        return y + (y.argmax(1, keepdim=True) - y).detach() * 0.1


class InPlace(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2))


FINE = {
    "cached": lambda: Cached(6, 6),
    "counting": lambda: Counting(6, 6),
    "chooses": lambda: Chooses(6, 6),
    "in place": lambda: nn.Sequential(nn.Linear(6, 6), InPlace(6, 6)),
    "spectral norm in use": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)).eval(),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)),
    "nothing left": lambda: nn.Sequential(nn.Linear(6, 6), nn.Threshold(1e3, 0.0)),
}


@pytest.mark.parametrize("name", FINE)
def test_modules_that_take_each_example_alone_have_the_numbers_of_the_whole_batch(name):
    make = lambda: row(make=FINE[name])  # noqa: E731
    right = nn.Sequential(*copy.deepcopy(make())).double()
    cross_entropy(right(X.double()), LABELS).backward()
    for schedule in SCHEDULES:
        stages = make()
        run(pipeline(schedule), stages, (X, LABELS))
        for ours, theirs in zip(nn.ModuleList(stages).parameters(), right.parameters(), strict=True):
            near = 256 * torch.finfo(torch.float32).eps * theirs.grad.abs().max().clamp(min=1)
            assert (ours.grad - theirs.grad).abs().max() <= near
    for work in everywhere(make, (X, LABELS), cross_entropy):
        work()


def test_a_module_that_takes_only_micro_batches_of_one_size_is_not_probed():
    middle = lambda: nn.Sequential(nn.Unflatten(0, (2, 1)), nn.Flatten(0, 1), nn.Linear(6, 6))  # noqa: E731
    loss, _ = run(pipeline(gpipe(3, 4)), row(make=middle), (X, LABELS))
    assert loss == one_device(row(make=middle), (X, LABELS), 4)


def test_a_module_is_called_once_per_micro_batch():
    middle = Counting(6, 6)
    for _ in range(2):
        run(pipeline(gpipe(3, 4)), row(middle), (X, LABELS))
    assert middle.calls == 8


def test_a_module_that_trains_again_is_probed_again():
    middle = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)).eval()
    run(pipeline(gpipe(3, 4)), row(middle), (X, LABELS))
    with pytest.raises(PipelineError, match="changes its buffer"):
        run(pipeline(gpipe(3, 4)), row(middle.train()), (X, LABELS))


# ---------------------------------------------------------------- processes


def refusals(rank, what):
    torch.manual_seed(0)  # all ranks make the same model
    middle, loss = (Centered(6, 6), cross_entropy) if what == "module" else (None, NO_MEAN["a sum"])
    works = [
        lambda carrier: run(pipeline(one_f_one_b(3, 4)), row(middle), (X, LABELS), carrier, loss),
        lambda carrier: Sharded(nn.Sequential(*row(middle)), list("abc"), 3, SGD, loss, carrier).step((X, LABELS)),
    ]
    found = []
    for work in works:
        with rank.carrier(Processes, backend="gloo") as carrier:
            try:
                work(carrier)
            except PipelineError as error:
                found.append(str(error))
    return found


@pytest.mark.parametrize("what, sentence", [("module", "something else on a part"), ("loss", "plain mean")])
def test_all_processes_refuse_it(what, sentence):
    for found in ranks()(refusals, what, n=3):
        assert len(found) == 2 and all(sentence in each for each in found)

"""Data-parallel training equals one device: bit for bit in turn, within rounding on the joined minibatch."""

import copy

import pytest
import torch
from helpers.nets import net
from helpers.tensors import close
from torch import nn
from torch.nn.utils import parameters_to_vector

from d2lps import Here, aggregate_at, sharded, simulate
from d2lps.notebook.d2l_compat import d2l
from d2lps.train import by_history, by_plan, compress

GPUS = ["gpu0", "gpu1", "gpu2", "gpu3"]
LR, MOMENTUM = 0.03, 0.9
RULE = ("sgd", {"lr": LR, "momentum": MOMENTUM})
PLANS = {
    "gpu0": lambda gpus: aggregate_at(gpus, "gpu0", update=RULE),
    "cpu": lambda gpus: aggregate_at(gpus, "cpu", update=RULE),
    "cpu in chunks": lambda gpus: aggregate_at(gpus, "cpu", chunks=3, update=RULE),
    "sharded": lambda gpus: sharded(gpus, update=RULE),
    "two servers": lambda gpus: sharded(gpus, ["s0", "s1"], update=RULE),
}


def test_the_digits_are_real_and_always_the_same():
    digits = by_plan.digits()
    assert [len(y) for _, y in digits] == [1536, 261]
    assert digits.train[0].shape == (1536, 1, 8, 8) and digits.train[0].dtype == torch.float32
    assert abs(digits.train[0].mean()) < 1e-5 and digits.train[0].std() == pytest.approx(1)
    assert sorted(set(digits.test[1].tolist())) == list(range(10))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_several_devices_are_one_that_takes_the_parts_in_turn_bit_for_bit(name, n):
    plan, data = PLANS[name]([f"gpu{i}" for i in range(n)]), by_plan.digits().train
    several = by_plan.parallel(net(), plan, data, size=34, steps=6, carrier=Here(["cpu"]))
    one = by_plan.one_device(net(), data, size=34, steps=6, lr=LR, momentum=MOMENTUM, in_turn=plan)
    assert torch.equal(several.weights, one.weights)
    assert several.losses == one.losses
    assert [trace.measured for trace in several.traces] == [True] * 6


@pytest.mark.parametrize("name", PLANS)
def test_several_devices_are_one_on_the_joined_batch_within_rounding(name):
    data = by_plan.digits().train
    several = by_plan.parallel(net(), PLANS[name](GPUS), data, size=64, steps=4)
    joined = by_plan.one_device(net(), data, size=64, steps=4, lr=LR, momentum=MOMENTUM)
    close(several.weights, joined.weights, 4 * 64)
    close(several.losses, joined.losses, 4 * 64)


def test_the_joined_reference_is_torch_sgd_bit_for_bit():
    data, model = by_plan.digits().train, net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    with by_plan.deterministic():
        for X, y in by_plan.batches(data, 32, 5):
            optimizer.zero_grad()
            (nn.functional.cross_entropy(model(X), y, reduction="sum") / len(y)).backward()
            optimizer.step()
    ours = by_plan.one_device(net(), data, size=32, steps=5, lr=LR, momentum=MOMENTUM)
    assert torch.equal(ours.weights, parameters_to_vector(model.parameters()))


def test_training_really_learns_and_leaves_the_network_as_it_was():
    model, before = net(), parameters_to_vector(net().parameters())
    run = by_plan.parallel(model, sharded(GPUS, update=RULE), by_plan.digits().train, size=128, steps=48)
    assert run.losses[-1] < 0.5 < 2 < run.losses[0]
    assert by_plan.accuracy(model, run.weights, by_plan.digits().test) > 0.85
    assert torch.equal(parameters_to_vector(model.parameters()), before)


@pytest.mark.parametrize("count, sizes", [(8, [2, 2, 2, 2]), (7, [2, 2, 2, 1]), (5, [2, 2, 1, 0]), (1, [1, 0, 0, 0])])
def test_split_gives_every_device_a_part_even_an_empty_one(count, sizes):
    X, y = torch.arange(count * 3.0).view(count, 3), torch.arange(count)
    parts = by_plan.split(X, y, [torch.device("cpu")] * 4)
    assert [len(part_y) for _, part_y in parts] == sizes
    assert torch.equal(torch.cat([part_X for part_X, _ in parts]), X)


def test_an_empty_part_has_a_gradient_of_zero():
    loss, gradient = by_plan.loss_and_gradient(net(), torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), 4)
    assert loss == 0 and not gradient.any() and len(gradient) == 1490


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_deterministic_sets_and_restores_even_after_an_error(mode):
    torch.set_deterministic_debug_mode(mode)
    try:
        threads = torch.get_num_threads()
        with pytest.raises(KeyError), by_plan.deterministic():
            assert torch.get_num_threads() == 1 and torch.get_deterministic_debug_mode() == 2
            raise KeyError
        assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == (threads, mode)
    finally:
        torch.set_deterministic_debug_mode(0)


def test_buffers_are_copies_and_empty_where_nothing_is_held():
    gradients = {gpu: torch.ones(3) for gpu in GPUS}
    held = by_plan.buffers(aggregate_at(GPUS, "cpu"), gradients, Here(["cpu"]))
    held["gpu0"].zero_()
    assert list(held) == [*GPUS, "cpu"] and gradients["gpu0"].all() and held["cpu"].shape == (3,)


def test_d2l_works_beside_a_torch_without_torchvision():
    pytest.importorskip("d2l", reason="d2l is for Python 3.11")
    assert d2l.try_all_gpus() == [torch.device(f"cuda:{i}") for i in range(torch.cuda.device_count())]
    timer = d2l.Timer()
    assert timer.stop() >= 0
    try:
        import torchvision  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="torchvision cannot be imported"):
            d2l.FashionMNIST()


@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_the_mean_is_over_all_labels_if_an_example_has_several(kind):
    torch.manual_seed(0)
    model, X = nn.Conv1d(3, 4, 1), torch.randn(7, 3, 5)
    y = torch.randint(4, (7, 5)) if kind == "classes" else torch.rand(7, 4, 5).softmax(1)
    right = copy.deepcopy(model)
    loss = nn.functional.cross_entropy(right(X), y)
    loss.backward()
    gradient = parameters_to_vector([weight.grad for weight in right.parameters()])
    run = by_plan.parallel(model, sharded(["a", "b"], update=("sgd", {"lr": 1.0})), (X, y), 7, 1)
    close(run.losses, [loss.item()], 35)
    close(run.weights, parameters_to_vector(model.parameters()) - gradient, 35)


def test_a_label_that_is_no_class_is_refused_before_the_loss_is_computed():
    X, y = by_plan.digits().train
    with pytest.raises(by_plan.GradientError, match="label -1 is not"):
        by_plan.loss_and_gradient(net(), X[:4], y[:4] - y[:4] - 1, 4)


def test_frozen_parameters_are_left_out_of_every_vector():
    model, (X, y) = net(), by_plan.digits().train
    model[0].requires_grad_(False)
    last, right = [*model[3].parameters()], copy.deepcopy(model)
    optimizer = torch.optim.SGD(right.parameters(), lr=0.1)
    nn.functional.cross_entropy(right(X[:64]), y[:64]).backward()
    optimizer.step()
    history = simulate.synchronous(workers=2, steps=1, seconds=lambda random, rank: 1.0)
    for weights in (
        by_history.fit(model, (X, y), 32, history, lr=0.1)[-1],
        compress.fit(model, [(X[:32], y[:32]), (X[32:64], y[32:64])], 32, 1, lr=0.1).weights,
    ):
        close(weights, parameters_to_vector(right[3].parameters()), 64)
    found, wanted = by_plan.accuracy(model, weights, (X, y)), by_plan.accuracy(right, weights, (X, y))
    assert found == wanted and torch.equal(parameters_to_vector(last), parameters_to_vector(model[3].parameters()))

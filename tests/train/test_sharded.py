"""ZeRO on real tensors: the bits of plain data parallelism, the bytes and the memory of the formulas, and refusals."""

import os
import signal
from functools import partial

import pytest
import torch
from helpers.ranks import DEADLINE, ranks, survivors
from helpers.tensors import close
from torch import nn
from torch.nn.functional import cross_entropy

from d2lps import Processes, Trace, ring
from d2lps.carriers.rendezvous import ProcessesError, RankLost
from d2lps.schedule import ScheduleError
from d2lps.train import by_plan, gpt
from d2lps.train.flat import counts_of, layers_of
from d2lps.train.pipeline import PipelineError, split
from d2lps.train.sharded import Sharded, ShardError, train

NODES = ["a", "b", "c", "d"]
ADAMW = partial(torch.optim.AdamW, lr=0.01)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)


def digits():
    return by_plan.small_cnn(), by_plan.digits().train, cross_entropy


def small_gpt():
    torch.manual_seed(0)
    return gpt.GPT(layers=2, width=20, heads=4, context=12), gpt.examples(gpt.prose("en"), 50, 12), gpt.loss


def reference(model, count, optimizer, size, steps, micro=1):
    """Losses and weights of plain data parallelism, in torch alone but for the order in which the ring adds up."""
    net, data, loss = model()
    layers, nodes, losses = layers_of(net), NODES[:count], []
    optimizer = optimizer(net.parameters())
    with by_plan.deterministic():
        for batch in by_plan.batches(data, size, steps):
            total, gradients = 0.0, []
            for part in split(batch, count):
                net.zero_grad()
                mine = 0.0
                for X, y in split(part, micro):
                    value = loss(net(X), y) * (len(y) / size)
                    value.backward()
                    mine += value.item()
                total += mine
                gradients.append([torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers])
            for k, layer in enumerate(layers):
                own = {node: rows[k] for node, rows in zip(nodes, gradients, strict=True)}
                parameters = [*layer.parameters()]
                sums = by_plan.added(ring(nodes), own).split([parameter.numel() for parameter in parameters])
                for parameter, gradient in zip(parameters, sums, strict=True):
                    parameter.grad = gradient.view_as(parameter).clone()
            optimizer.step()
            losses.append(total)
    return losses, nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.parametrize(
    "count, optimizer, model",
    [(1, ADAMW, digits), (2, SGD, small_gpt), (3, ADAMW, small_gpt), (3, SGD, digits), (4, ADAMW, digits)],
)
def test_all_stages_have_the_bits_of_data_parallelism_over_the_ring(count, optimizer, model):
    losses, weights = reference(model, count, optimizer, size=10, steps=3)
    for stage in range(4):
        net, data, loss = model()
        run = train(net, data, NODES[:count], stage, size=10, steps=3, optimizer=optimizer, loss=loss)
        assert run.losses == losses and torch.equal(run.weights, weights)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_model_of_one_layer_has_the_bits_of_one_device_that_adds_up_like_the_ring(count):
    net, data, _ = digits()
    right = by_plan.one_device(net, data, 64, 3, lr=0.1, momentum=0.9, in_turn=ring(NODES[:count]))
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    for stage in range(4):
        run = train(nn.Sequential(net), data, NODES[:count], stage, size=64, steps=3, optimizer=optimizer)
        assert torch.equal(run.weights, right.weights) and run.losses == right.losses


@pytest.mark.parametrize("count", [1, 3])
def test_micro_batches(count):
    losses, weights = reference(small_gpt, count, SGD, size=17, steps=2, micro=3)
    net, data, loss = small_gpt()
    given = {"size": 17, "steps": 2, "optimizer": SGD, "loss": loss, "micro": 3}
    for stage in range(4):
        run = train(net, data, NODES[:count], stage, **given, wait=True)
        assert run.losses == losses and torch.equal(run.weights, weights)
    second, third = (train(net, data, NODES[:count], stage, **given) for stage in (2, 3))
    assert torch.equal(second.weights, third.weights)  # sent with each micro-batch, they add up in another order
    close(second.weights, weights, 2 * 17 * 12)  # steps, examples, tokens


@pytest.mark.parametrize("count, micro", [(2, 3), (3, 1), (4, 2)])
def test_bytes_are_those_of_the_formulas(count, micro):
    net, data, loss = small_gpt()
    counts = counts_of(net)
    psi, last, nodes = 4 * sum(counts), 4 * counts[-1], NODES[:count]
    m = micro
    formulas = {
        (0, False, True): 2 * psi,
        (1, False, True): 2 * psi,
        (2, False, True): (m + 1) * psi,
        (2, True, True): 2 * psi,
        (3, False, True): m * (3 * psi - last),
        (3, False, False): 3 * m * psi,
        (3, True, False): (2 * m + 1) * psi,
    }
    for (stage, wait, keep), nbytes in formulas.items():
        options = {"size": 12, "steps": 1, "loss": loss, "micro": micro, "wait": wait, "keep": keep}
        (trace,) = train(net, data, nodes, stage, **options).traces
        assert sum(map(trace.bytes_sent, nodes)) == (count - 1) * nbytes
        for node in nodes:  # the parts of a layer differ by one number, and each is sent (n−1)/n times as often
            assert abs(trace.bytes_sent(node) - (count - 1) * nbytes / count) <= 4 * len(trace.events)
        assert trace.measured and Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_memory_is_that_of_the_formulas(count):
    net, data, loss = small_gpt()
    counts, nodes = counts_of(net), NODES[:count]
    psi = 4 * sum(counts)
    for stage in range(4):
        model = Sharded(net, nodes, stage, ADAMW, loss)
        for batch in by_plan.batches(data, 8, 2):
            model.step(batch)
        devices = [model.own[node] for node in nodes]
        assert [device.peak for device in devices] == [model.schedule.peak[node] for node in nodes]
        parts = [sum(layer.held() for layer in device.layers) for device in devices]  # between steps: w and s
        lasting = {0: count * 3 * psi, 1: count * psi + 2 * psi, 2: count * psi + 2 * psi, 3: 3 * psi}[stage]
        assert sum(parts) == (lasting if count > 1 else 3 * psi)
        if stage < 2 or count == 1:  # all gradients are there at once
            assert sum(device.peak for device in devices) == sum(parts) + count * psi
        elif stage == 2:  # the parts, and one layer whole
            assert sum(device.peak for device in devices) <= sum(parts) + psi + count * 4 * max(counts)
        else:
            assert sum(device.peak for device in devices) <= sum(parts) + psi + count * 2 * 4 * max(counts)


def test_parts_may_be_empty():
    net = nn.Sequential(nn.Linear(3, 1), nn.LayerNorm(1), nn.Linear(1, 2))  # of 2 parameters on 4 devices
    data = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    runs = [train(net, data, NODES, stage, size=8, steps=2, optimizer=ADAMW) for stage in range(4)]
    assert all(torch.equal(run.weights, runs[0].weights) for run in runs)
    assert not torch.equal(runs[0].weights, nn.utils.parameters_to_vector(net.parameters()))


def test_the_model_that_is_given_is_not_changed():
    net, data, _ = digits()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    train(net, data, NODES[:2], 3, size=8, steps=1)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)


# ---------------------------------------------------------------- over gloo


def on_a_process(rank, stage, micro):
    carrier = rank.carrier(Processes, backend="gloo")
    net, data, loss = small_gpt()
    nodes = NODES[: rank.size]
    run = train(net, data, nodes, stage, size=13, steps=2, optimizer=ADAMW, loss=loss, micro=micro, carrier=carrier)
    carrier.close()
    return run.losses, run.weights, run.peaks, [run.traces[1].bytes_sent(node) for node in nodes]


@pytest.mark.parametrize("count, micro", [(2, 2), (3, 1)])
def test_processes_have_the_bits_of_one(count, micro):
    net, data, loss = small_gpt()
    given = {"size": 13, "steps": 2, "optimizer": ADAMW, "loss": loss, "micro": micro}
    for stage in (1, 2, 3) if count == 2 else (0, 3):
        alone = train(net, data, NODES[:count], stage, **given)
        results = ranks()(on_a_process, stage, micro, n=count)
        for losses, weights, peaks, _ in results:
            assert losses == alone.losses and torch.equal(weights, alone.weights) and peaks == alone.peaks
        assert results[0][3] == [alone.traces[1].bytes_sent(node) for node in NODES[:count]]


def two_devices_each(rank):
    carrier = rank.carrier(Processes, NODES[2 * rank.number : 2 * rank.number + 2], backend="gloo")
    net, data, loss = small_gpt()
    run = train(net, data, NODES, 3, size=13, steps=2, optimizer=ADAMW, loss=loss, carrier=carrier)
    carrier.close()
    return run


def test_a_process_may_have_several_devices():
    net, data, loss = small_gpt()
    alone = train(net, data, NODES, 3, size=13, steps=2, optimizer=ADAMW, loss=loss)
    for run in ranks()(two_devices_each, n=2):
        assert run.losses == alone.losses and torch.equal(run.weights, alone.weights) and run.peaks == alone.peaks


def until_one_dies(rank):
    carrier = rank.carrier(Processes, backend="gloo", deadline=DEADLINE)
    net, data, loss = small_gpt()
    model = Sharded(net, NODES[:3], 3, ADAMW, loss, carrier)
    if rank.number == 1:
        model.loaded["w2"] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    try:
        model.step((data[0][:9], data[1][:9]))
    except RankLost as error:
        return str(error)


def test_a_rank_that_dies_in_a_gather_is_named():
    for sentence in survivors(until_one_dies, size=3, lost=1):
        assert "rank 1" in sentence


def with_nan_on_one(rank):
    carrier = rank.carrier(Processes, backend="gloo")
    net, (X, y), loss = small_gpt()
    if rank.number:
        loss = lambda output, labels: output.sum() * float("nan")  # noqa: E731
    try:
        Sharded(net, NODES[:2], 2, ADAMW, loss, carrier).step((X[:4], y[:4]))
    except (ShardError, ProcessesError) as error:
        return str(error)


def test_a_loss_that_is_no_number_on_one_process_is_named_on_all():
    for sentence in ranks()(with_nan_on_one, n=2):
        assert "the loss is nan: check the data" in sentence


def with_other_arguments(rank, what):
    carrier = rank.carrier(Processes, backend="gloo")
    net, _, loss = small_gpt()
    if what == "weights" and rank.number == 1:
        net = gpt.GPT(layers=2, width=20, heads=4, context=12)
    try:
        Sharded(net, NODES[:3], 3 if what == "stage" and rank.number == 1 else 2, ADAMW, loss, carrier)
    except (ShardError, ProcessesError) as error:
        return str(error)


@pytest.mark.parametrize("what", ["weights", "stage"])
def test_processes_with_other_weights_or_options_are_named(what):
    for sentence in ranks()(with_other_arguments, what, n=3):
        assert "rank 1 has other weights or options than rank 0: call torch.manual_seed" in sentence


# ---------------------------------------------------------------- refusals


def tied():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


def frozen():
    return nn.Sequential(nn.Linear(3, 3)).requires_grad_(False)


@pytest.mark.parametrize(
    "net, options, error, sentence",
    [
        (nn.ReLU(), {}, ShardError, "the model has no parameters"),
        (tied(), {}, ShardError, "two layers share a parameter"),
        (frozen(), {}, ShardError, "all parameters of the model are frozen"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double()), {}, ShardError, "torch.float32 torch.float64"),
        (nn.Linear(3, 3), {"optimizer": torch.optim.Adafactor}, ShardError, "Adafactor may need whole tensors"),
        (nn.Linear(3, 3), {"stage": 4}, ScheduleError, "stage = 4, micro = 1: the stage must be 0, 1, 2 or 3"),
        (nn.Linear(3, 3), {"micro": 0}, ScheduleError, "micro = 0"),
        (nn.Linear(3, 3), {"micro": 5}, PipelineError, "4 examples cannot be cut into 5 micro-batches"),
        (nn.Linear(3, 3), {"loss": lambda output, y: output.sum() / 0}, ShardError, "the loss is (nan|inf|-inf)"),
    ],
)
def test_an_invalid_sharding_is_refused(net, options, error, sentence):
    with pytest.raises(error, match=sentence):
        Sharded(net, NODES[:2], **options).step((torch.ones(8, 3), torch.zeros(8, dtype=torch.int64)))

"""Buckets under hooks, and gradients along a schedule: the same sums, and what staleness does to them."""

import threading

import pytest
import torch
from helpers.tensors import close
from helpers.waits import LIVE
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import simulate, train
from d2lps.simulate.waiting import History, HistoryError, Push, Step
from d2lps.train import by_history, by_store
from d2lps.train.buckets import Buckets, BucketsError

DIGITS = train.digits()


class Sent:
    """An all-reduce among one: it notes what leaves, and doubles it when it is waited for."""

    log: list = []

    def __init__(self, flat):
        self.flat = flat
        self.log.append(flat.nbytes)

    def wait(self):
        self.flat *= 2


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(Sent, "log", [])
    return Sent.log


def backward(net):
    X, y = DIGITS.train
    nn.functional.cross_entropy(net(X[:32]), y[:32]).backward()


def gradients(net):
    return [weight.grad.clone() for weight in net.parameters()]


@pytest.mark.parametrize("nbytes", [1, 1000, 20_000, 10**9])
@pytest.mark.parametrize("order", [1, -1])
def test_every_gradient_is_sent_once_and_comes_back(nbytes, order, log):
    alone, net = train.small_cnn(), train.small_cnn()
    buckets = Buckets([*net.parameters()][::order], nbytes, Sent)
    with train.deterministic():
        backward(alone)
        for _ in range(2):  # and again in the next step
            log.clear()
            net.zero_grad()
            backward(net)
            buckets.wait()
            assert all(torch.equal(two, 2 * one) for one, two in zip(gradients(alone), gradients(net), strict=True))
            assert log == [sum(weight.nbytes for weight in bucket) for bucket in buckets.buckets]
    sizes = [weight.nbytes for bucket in buckets.buckets for weight in bucket]
    assert sizes == [weight.nbytes for weight in [*net.parameters()][::order]]
    assert all(len(bucket) == 1 or sum(w.nbytes for w in bucket) <= nbytes for bucket in buckets.buckets)


def test_a_bucket_leaves_while_others_are_computed_unless_the_first_layer_goes_first(log):
    def left_before_the_first_layer(order):
        net, seen = train.small_cnn(), []
        net[0].weight.register_hook(lambda _: seen.append(len(log)))  # before its gradient is ready
        log.clear()
        buckets = Buckets([*net.parameters()][::order], 1, Sent)
        backward(net)
        buckets.wait()
        return seen

    assert left_before_the_first_layer(-1) >= [3] and left_before_the_first_layer(1) == [0]


def test_two_workers_add_up_the_same_buckets():
    """Each in a thread; ``send`` meets the other worker's, whatever its number."""
    barrier, shared, nets = threading.Barrier(2, timeout=20), {}, [train.small_cnn() for _ in range(2)]

    class Meeting:
        def __init__(self, rank, flat):
            self.rank, self.flat = rank, flat
            shared.setdefault(rank, []).append(flat.clone())

    def work(rank):
        sent = []

        class Handle(Meeting):
            def __init__(self, flat):
                super().__init__(rank, flat)
                self.number = len(sent)
                sent.append(self)

            def wait(self):
                barrier.wait()
                self.flat.copy_(shared[0][self.number] + shared[1][self.number])

        buckets = Buckets([*nets[rank].parameters()][::-1], 20_000, Handle)
        X, y = DIGITS.train
        now = slice(32 * rank, 32 * rank + 32)
        (nn.functional.cross_entropy(nets[rank](X[now]), y[now], reduction="sum") / 64).backward()
        buckets.wait()

    with train.deterministic():
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIVE)
        one = train.small_cnn()
        X, y = DIGITS.train
        nn.functional.cross_entropy(one(X[:64]), y[:64]).backward()
    for ours, theirs, whole in zip(*map(gradients, (*nets, one)), strict=True):
        assert torch.equal(ours, theirs)
        close(ours, whole, 64)


def test_a_missing_gradient_and_a_repeated_one_are_reported(log):
    net = train.small_cnn()
    unused = nn.Parameter(torch.ones(2))
    buckets = Buckets([*net.parameters(), unused][::-1], 1, Sent)
    backward(net)
    with pytest.raises(BucketsError, match=r"1 gradients never came, the first of a parameter of shape \(2,\)"):
        buckets.wait()
    buckets.close()
    net.zero_grad()
    backward(net)  # the hooks are gone
    assert not log
    again = Buckets([*net.parameters()][::-1], 1, Sent)
    backward(net)
    with pytest.raises(BucketsError, match=r"wait\(\)"):
        backward(net)
    again.close()


def test_a_bucket_has_one_type_and_no_frozen_parameter_and_none_twice(log):
    sizes = [(torch.float32, 4), (torch.float32, 2), (torch.bfloat16, 3), (torch.float32, 1)]
    weights = [nn.Parameter(torch.ones(size, dtype=dtype)) for dtype, size in sizes]
    frozen = nn.Parameter(torch.ones(5), requires_grad=False)
    buckets = Buckets([weights[0], frozen, *weights, weights[1]], 24, Sent)
    assert [[weight.numel() for weight in bucket] for bucket in buckets.buckets] == [[4, 2], [3], [1]]
    sum(weight.float().sum() for weight in weights).backward()
    buckets.wait()
    assert log == [24, 6, 4] and all(weight.grad.eq(2).all() for weight in weights)
    buckets.close()


def delayed(tau, lr, momentum=0.0, steps=144):
    """The loss after gradients that are all ``tau`` updates old."""
    pushes = [Push(0, i + 1, max(0, i - tau), float(i), float(i + 1)) for i in range(steps)]
    schedule = History(1, tuple(Step(push.end, (push,)) for push in pushes))
    weights = by_history.fit(train.small_cnn(), DIGITS.train, 64, schedule, lr, momentum)[-1]
    with train.deterministic():
        return by_store.loss(train.small_cnn(), weights, DIGITS.train)


@pytest.mark.parametrize("lr, momentum, fine, lost", [(0.1, 0.0, [0, 4], [8]), (0.02, 0.9, [2], [4])])
def test_staleness_is_a_cliff_that_learning_rate_and_momentum_move(lr, momentum, fine, lost):
    assert max(delayed(tau, lr, momentum) for tau in fine) < 0.3
    assert min(delayed(tau, lr, momentum) for tau in lost) > 1


def test_without_staleness_it_is_one_device():
    alike = simulate.synchronous(4, 6, lambda random, rank: 1.0)
    fitted = by_history.fit(train.small_cnn(), DIGITS.train, 16, alike, lr=0.1, momentum=0.9)
    one = train.one_device(train.small_cnn(), DIGITS.train, 64, 6, lr=0.1, momentum=0.9)
    assert len(fitted) == 7
    close(fitted[-1], one.weights, 6 * 64)


def test_the_data_of_a_worker_that_is_always_dropped_are_never_learned():
    X, y = DIGITS.train
    order = y.argsort(stable=True)

    def right(parts, backup):
        run = simulate.synchronous(4, 144, lambda random, rank: 1.0 + (rank == 3), backup=backup)
        net, (images, labels) = train.small_cnn(), DIGITS.test
        vector_to_parameters(by_history.fit(net, parts, 16, run, lr=0.1)[-1], net.parameters())
        found = net(images).argmax(1)
        return [(found == labels)[labels == digit].float().mean().item() for digit in range(10)]

    by_label = [(X[some], y[some]) for some in order.chunk(4)]
    shuffled = [(X[some], y[some]) for some in torch.arange(len(y)).chunk(4)]
    dropped, fair = right(by_label, 1), right(shuffled, 1)
    assert dropped[8:] == [0, 0] and min(fair) > 0.8
    assert right(by_label, 0)[9] > 0.9


def test_data_for_other_workers_than_there_are_is_refused():
    run = simulate.synchronous(3, 2, lambda random, rank: 1.0)
    with pytest.raises(HistoryError, match="2 workers"):
        by_history.fit(train.small_cnn(), [DIGITS.train] * 2, 16, run, lr=0.1)


def test_the_network_that_is_given_stays_as_it_is():
    net = train.small_cnn()
    before = parameters_to_vector(net.parameters()).detach().clone()
    by_history.fit(net, DIGITS.train, 16, simulate.asynchronous(2, 4, lambda random, rank: 1.0), lr=0.1)
    assert torch.equal(parameters_to_vector(net.parameters()).detach(), before)

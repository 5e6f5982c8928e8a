"""Sending less: bytes against formulas, error feedback, local steps against the mean of weights, and the outer step."""

import math

import pytest
import torch
from helpers.tensors import close
from torch.nn.utils import parameters_to_vector

from d2lps import train
from d2lps.train.compress import CompressError, Largest, Lowered, fit, lowered, raised

DIGITS = train.digits()


def parts(n):
    X, y = DIGITS.train
    return [(X[rank::n], y[rank::n]) for rank in range(n)]


def tensors(n, entries, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(entries, generator=generator) for _ in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_mean_in_few_bits_costs_what_a_ring_costs(n, dtype):
    given, send = tensors(n, 1003), Lowered(dtype)
    before = [each.clone() for each in given]
    mean, scales = send(given), 4 * 2 * (n - 1) if dtype.itemsize == 1 else 0
    assert send.nbytes == pytest.approx(2 * (n - 1) / n * 1003 * dtype.itemsize + scales)
    error = (mean - sum(given) / n).abs().max() / sum(given).abs().max()
    assert error < {4: 1e-6, 2: 1e-2, 1: 0.15}[dtype.itemsize]
    assert all(map(torch.equal, given, before))


@pytest.mark.parametrize("unit", [1e-20, 1e-3, 1.0, 1e6])
def test_a_scale_keeps_numbers_of_any_size_within_eight_bits(unit):
    numbers = unit * tensors(1, 1000)[0]
    error = (raised(*lowered(numbers, torch.float8_e4m3fn)) - numbers).abs()
    assert torch.all(error <= numbers.abs() / 16 + numbers.abs().max() / 448 / 1024)
    assert raised(*lowered(torch.zeros(3), torch.float8_e4m3fn)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 3), (3, 10), (5, 100)])
def test_the_largest_entries_cost_an_index_and_a_value_each(n, k):
    given, send = tensors(n, 100), Largest(k)
    mean = send(given)
    assert send.nbytes == pytest.approx((n - 1) * k * 8)
    assert int((mean != 0).sum()) <= n * k
    if k == 100:
        close(mean, sum(given) / n, n)


def test_with_feedback_nothing_is_lost():
    given = [tensors(2, 50, seed) for seed in range(20)]
    keep, forget = Largest(5), Largest(5, feedback=False)
    kept, forgotten = (sum(send(pair) for pair in given) for send in (keep, forget))
    total = sum(sum(pair) / 2 for pair in given)
    close(kept + sum(keep.left.values()) / 2, total, 40)
    assert (total - forgotten).norm() > 1.5 * (total - kept).norm()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_meeting_after_every_step_is_a_synchronous_step(n):
    net = train.small_cnn()
    sent = fit(net, parts(n), 16, 6, lr=0.1)
    weights = parameters_to_vector(net.parameters()).detach()
    data = [train.batches(part, 16, 6) for part in parts(n)]
    for _ in range(6):
        torch.nn.utils.vector_to_parameters(weights, net.parameters())
        gradients = [train.loss_and_gradient(net, *next(mine), count=16)[1] for mine in data]
        weights = weights - 0.1 * sum(gradients) / n
    close(sent.weights, weights, 6 * 16)
    assert sent.nbytes == pytest.approx(6 * 2 * (n - 1) / n * 4 * weights.numel())


def test_the_outer_step_is_nesterovs():
    net, start = train.small_cnn(), parameters_to_vector(train.small_cnn().parameters()).detach()
    seen = []

    def mean(differences):
        seen.append(sum(differences) / len(differences))
        return seen[-1]

    sent = fit(net, parts(2), 16, 6, lr=0.1, send=mean, h=2, outer=0.7, momentum=0.9)
    weight = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    for gradient in seen:
        weight.grad = gradient
        optimizer.step()
    assert len(seen) == 3 and math.isnan(sent.nbytes)
    close(sent.weights, weight.detach(), 3 * 4)
    assert torch.equal(parameters_to_vector(net.parameters()).detach(), start)


@pytest.mark.parametrize("k", [0, 4, -1])
def test_a_number_of_entries_that_does_not_fit_is_refused(k):
    with pytest.raises(CompressError, match="1 to 3"):
        Largest(k)([torch.zeros(3)])


@pytest.mark.parametrize(("steps", "h"), [(5, 2), (4, 0)])
def test_steps_that_meetings_do_not_divide_are_refused(steps, h):
    with pytest.raises(CompressError, match="multiple"):
        fit(train.small_cnn(), parts(2), 16, steps, lr=0.1, h=h)

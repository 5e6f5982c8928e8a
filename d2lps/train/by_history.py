"""Real gradients in the order of a simulation: the effect of a waiting rule on training, whatever this machine does."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps.messages import text
from d2lps.simulate.waiting import History, HistoryError
from d2lps.train.by_plan import Batch, batches, deterministic, loss_and_gradient, trained


def fit(
    net: nn.Module, data: "Batch | list[Batch]", size: int, history: History, lr: float, momentum: float = 0.0
) -> list[Tensor]:
    """Train along a history of pushes: every gradient is computed with the weights that its worker had read.

    A step takes the mean of its gradients. Minibatches are dealt out in the order in which gradients count, from the
    shared data, or to each worker from its own.

    Args:
        net: the network to begin with; it is not changed.
        data: images and labels; or a list of such pairs, one for each worker.
        size: the number of examples for one gradient.
        history: a history of :mod:`d2lps.simulate.waiting`.
        lr, momentum: the hyperparameters of SGD.

    Returns:
        the weights, flat: before the first step, and after each.

    Raises:
        HistoryError: If the number of pairs is not the history's number of workers.

    Example:
        >>> from d2lps import simulate, train
        >>> alike = simulate.synchronous(workers=2, steps=3, seconds=lambda random, rank: 1.0)
        >>> net, data = train.small_cnn(), train.digits().train
        >>> *_, weights = fit(net, data, 32, alike, lr=0.1)
        >>> float((weights - train.one_device(net, data, 64, 3, lr=0.1).weights).abs().max()) < 1e-5
        True
    """
    if isinstance(data, list) and len(data) != history.workers:
        raise HistoryError(text("history.data", given=len(data), workers=history.workers))
    net = copy.deepcopy(net)
    weights = parameters_to_vector(trained(net).values()).detach().clone()
    velocity, versions = torch.zeros_like(weights), [weights]
    pushes = sum(len(step.pushes) for step in history.steps)
    if isinstance(data, list):
        examples = [batches(part, size, pushes) for part in data]
    else:
        examples = [batches(data, size, pushes)] * history.workers  # one after the other, whoever asks
    with deterministic():
        for step in history.steps:
            total = torch.zeros_like(weights)
            for push in step.pushes:
                vector_to_parameters(versions[push.read], trained(net).values())
                X, y = next(examples[push.rank])
                total += loss_and_gradient(net, X, y, count=len(y))[1]
            velocity = momentum * velocity + total / len(step.pushes)
            versions.append(versions[-1] - lr * velocity)
    return versions

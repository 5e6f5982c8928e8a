"""Send less: differences of weights in fewer bits, or only their largest entries, and after several steps alone.

``fit`` is the training. What its workers send is up to :class:`Lowered` or :class:`Largest`; both count bytes.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps.messages import text
from d2lps.messages.raised import Brief
from d2lps.train.by_plan import Batch, batches, deterministic, loss_and_gradient, trained

LARGEST = 448.0  # the largest number of float8_e4m3fn; each piece is scaled so that its largest entry becomes this


class CompressError(Brief, ValueError):
    """The numbers do not fit each other."""


def lowered(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Round to a type of fewer bits. Types of 8 bits come with the scale that brings the largest entry to 448.

    Args:
        numbers: a tensor of float32.
        dtype: a floating-point type.

    Returns:
        the rounded numbers; for 8 bits also the scale, a float32 of no dimensions.

    Example:
        >>> tiny = torch.tensor([1e-5, -4e-5])
        >>> tiny.to(torch.float8_e4m3fn).float().tolist()
        [0.0, -0.0]
        >>> torch.allclose(raised(*lowered(tiny, torch.float8_e4m3fn)), tiny)
        True
    """
    if dtype.itemsize > 1:
        return (numbers.to(dtype),)
    scale = numbers.abs().max().clamp(min=1e-30) / LARGEST
    return (numbers / scale).to(dtype), scale


def raised(numbers: Tensor, scale: "Tensor | float" = 1.0) -> Tensor:
    """Return what :func:`lowered` has rounded, as float32."""
    return numbers.float() * scale


class Lowered:
    """The mean of all workers' tensors, sent in few bits: a reduce-scatter and an all-gather.

    Each worker adds up one piece, in float32, and rounds the mean of this piece once more for the others. All get the
    same bits.

    Attributes:
        nbytes (float): the bytes that a worker has sent so far, on average.

    Example:
        >>> send = Lowered(torch.bfloat16)
        >>> send([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]), send.nbytes
        (tensor([2., 4.]), 4.0)
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.nbytes = dtype, 0.0

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the mean of flat float32 tensors of the same length, one of each worker."""
        n, means = len(tensors), []
        for owner, pieces in enumerate(zip(*(each.tensor_split(n) for each in tensors), strict=True)):
            arrived = [piece if rank == owner else self._over(piece, 1 / n) for rank, piece in enumerate(pieces)]
            means.append(self._over(sum(arrived) / n, (n - 1) / n))
        return torch.cat(means)

    def _over(self, numbers: Tensor, times: float) -> Tensor:
        """Return what arrives; each of the n workers sends this message ``times`` times on average."""
        message = lowered(numbers, self.dtype)
        self.nbytes += times * sum(part.nbytes for part in message)
        return raised(*message)


class Largest:
    """The mean of the k largest entries of each worker's tensor, as an all-gather of indices and values.

    With ``feedback`` a worker adds what it did not send to its next tensor. ``nbytes`` are the bytes that a worker has
    sent so far, on average: 4 for an index, 4 for a value.

    Example:
        >>> send = Largest(k=1)
        >>> send([torch.tensor([3.0, 2.0])]), send([torch.tensor([0.5, 2.0])])
        (tensor([3., 0.]), tensor([0., 4.]))
    """

    def __init__(self, k: int, feedback: bool = True) -> None:
        self.k, self.feedback, self.nbytes = k, feedback, 0.0
        self.left: dict[int, Tensor] = {}

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the mean of what the workers send of flat float32 tensors of the same length."""
        if not 1 <= self.k <= len(tensors[0]):
            raise CompressError(text("compress.k", k=self.k, entries=len(tensors[0])))
        total, n = torch.zeros_like(tensors[0]), len(tensors)
        for rank, numbers in enumerate(tensors):
            numbers = numbers + self.left.get(rank, 0.0)
            chosen = numbers.abs().topk(self.k).indices
            indices, values = chosen.to(torch.int32), numbers[chosen]
            if self.feedback:
                self.left[rank] = numbers.index_fill(0, chosen, 0.0)
            # Each message goes around the ring, over n - 1 of its n links.
            self.nbytes += (n - 1) / n * (indices.nbytes + values.nbytes)
            total.index_add_(0, indices, values)
        return total / n


class Sent(NamedTuple):
    """A training: its last weights, flat, and the bytes that a worker has sent on average."""

    weights: Tensor
    nbytes: float


def fit(
    net: nn.Module,
    parts: Sequence[Batch],
    size: int,
    steps: int,
    lr: float,
    send: "Callable[[Sequence[Tensor]], Tensor] | None" = None,
    h: int = 1,
    outer: float = 1.0,
    momentum: float = 0.0,
) -> Sent:
    """Train with workers that make h steps alone, and then send by how much their weights have changed.

    The mean of these differences is a gradient for an outer step: with ``outer=1`` and no momentum the new weights are
    the mean of all workers' weights, and with h = 1 this is an ordinary synchronous step. With ``outer=0.7`` and
    ``momentum=0.9``, Nesterov's, it is DiLoCo (https://arxiv.org/abs/2311.08105), here with SGD inside.

    Args:
        net, parts: the network to begin with, which is not changed; images and labels of each worker.
        size, steps, lr: examples in a minibatch, steps and learning rate of each worker; steps must be a multiple of h.
        send, h: the way the differences go, ``Lowered()`` if left out; steps between two meetings.
        outer, momentum: the hyperparameters of the outer step.

    Returns:
        the weights, and the bytes; NaN if ``send`` does not count them.

    Raises:
        CompressError: If steps is no multiple of h.

    Example:
        >>> from d2lps import train
        >>> net, (X, y) = train.small_cnn(), train.digits().train
        >>> fit(net, [(X[::2], y[::2]), (X[1::2], y[1::2])], 16, steps=4, lr=0.1, h=2).nbytes
        79440.0
    """
    if h < 1 or steps % h:
        raise CompressError(text("compress.steps", steps=steps, h=h))
    net, send = copy.deepcopy(net), send or Lowered()
    weights = parameters_to_vector(trained(net).values()).detach().clone()
    velocity, data = torch.zeros_like(weights), [batches(part, size, steps) for part in parts]
    with deterministic():
        for _ in range(steps // h):
            differences = []
            for mine in data:
                own = weights
                for _ in range(h):
                    vector_to_parameters(own, trained(net).values())
                    own = own - lr * loss_and_gradient(net, *next(mine), count=size)[1]
                differences.append(weights - own)
            mean = send(differences)
            velocity = momentum * velocity + mean
            weights = weights - outer * (mean + momentum * velocity)
    return Sent(weights, getattr(send, "nbytes", math.nan))

"""Gradients are sent while others are still computed, several in one message."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from d2lps.messages import text
from d2lps.messages.raised import Brief


class BucketsError(Brief, RuntimeError):
    """A backward pass that does not fit the buckets."""


class Handle(Protocol):
    """What stands for a message that is under way."""

    def wait(self) -> object:
        """Return when it has arrived."""


class Buckets:
    """Sends gradients in buckets, each as soon as all of it is ready and all before it have been sent.

    The order of the buckets never changes, since all workers must send the same bucket at the same time.

    Parameters
    ----------
    parameters : iterable of Parameter
        In the order in which they are to be sent: the last layer first, ``[*net.parameters()][::-1]``, as that is the
        order in which gradients become ready.
    nbytes : int
        A bucket is full when the next gradient would take it above that.
    send : callable
        ``send(flat)`` begins to replace a flat tensor by the sum of all workers' and returns a :class:`Handle`, as
        ``partial(dist.all_reduce, async_op=True)`` does.

    Attributes
    ----------
    buckets : list of list of Parameter
        What is sent together.

    Examples
    --------
    >>> class Doubled:
    ...     def __init__(self, flat):
    ...         flat *= 2
    ...     def wait(self):
    ...         pass
    >>> net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    >>> buckets = Buckets([*net.parameters()][::-1], nbytes=12, send=Doubled)
    >>> [[tuple(weight.shape) for weight in bucket] for bucket in buckets.buckets]
    [[(1,), (1, 2)], [(2,)], [(2, 4)]]
    >>> net(torch.ones(1, 4)).backward()
    >>> buckets.wait()
    >>> net[1].bias.grad
    tensor([2.])
    """

    def __init__(self, parameters: Iterable[nn.Parameter], nbytes: int, send: Callable[[Tensor], Handle]):
        self.send, self.buckets = send, _filled(parameters, nbytes)
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(self._ready, i))
            for i, bucket in enumerate(self.buckets)
            for weight in bucket
        ]
        self._again()

    def _again(self) -> None:
        self._sent: list[tuple[Tensor, Handle]] = []
        self._missing = [len(bucket) for bucket in self.buckets]

    def _ready(self, i: int, _: Tensor) -> None:
        if not self._missing[i]:
            raise BucketsError(text("buckets.twice"))
        self._missing[i] -= 1
        while len(self._sent) < len(self.buckets) and not self._missing[len(self._sent)]:
            flat = torch.cat([weight.grad.flatten() for weight in self.buckets[len(self._sent)]])
            self._sent.append((flat, self.send(flat)))

    def wait(self) -> None:
        """Wait until all buckets have arrived, and put the sums into ``.grad``.

        Raises
        ------
        BucketsError
            If a gradient was never computed: its bucket cannot be sent, nor those after it.
        """
        if len(self._sent) < len(self.buckets):
            raise BucketsError(text("buckets.missing", count=sum(self._missing)))
        for bucket, (flat, handle) in zip(self.buckets, self._sent, strict=True):
            handle.wait()
            for weight, piece in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad.copy_(piece.view_as(weight))
        self._again()

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()


def _filled(parameters: Iterable[nn.Parameter], nbytes: int) -> list[list[nn.Parameter]]:
    buckets, room = [], 0
    for weight in parameters:
        if not buckets or weight.nbytes > room:
            buckets.append([])
            room = nbytes
        buckets[-1].append(weight)
        room -= weight.nbytes
    return buckets

"""Send gradients while others are still computed, several in one message."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from d2lps.messages import text
from d2lps.messages.raised import Brief


class BucketsError(Brief, RuntimeError):
    """The backward pass does not fit the buckets."""


class Handle(Protocol):
    """A message under way."""

    def wait(self) -> object:
        """Return when it has arrived."""


class Buckets:
    """Buckets of gradients, each sent as soon as it is complete and all before it have been sent.

    The order of the buckets never changes, since all workers must send the same bucket at the same time.

    Args:
        parameters: In the order of sending: the last layer first, ``[*net.parameters()][::-1]``, because its gradients
            are ready first. Those that are frozen are left out.
        nbytes: The largest size of a bucket, unless a single gradient is larger. All gradients of a bucket have one
            type.
        send: ``send(flat)`` starts to replace a flat tensor by the sum over all workers and returns a :class:`Handle`,
            as ``partial(dist.all_reduce, async_op=True)`` does.

    Attributes:
        buckets (list of list of Parameter): The parameters of each bucket.

    Example:
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
        self._missing = [dict.fromkeys(bucket) for bucket in self.buckets]

    def _ready(self, i: int, weight: nn.Parameter) -> None:
        if weight not in self._missing[i]:
            raise BucketsError(text("buckets.twice"))
        del self._missing[i][weight]
        while len(self._sent) < len(self.buckets) and not self._missing[len(self._sent)]:
            flat = torch.cat([weight.grad.to_dense().flatten() for weight in self.buckets[len(self._sent)]])
            self._sent.append((flat, self.send(flat)))

    def wait(self) -> None:
        """Wait until all buckets have arrived, and put the sums into ``.grad``.

        Raises:
            BucketsError: If a gradient was never computed, so that its bucket and those after it cannot be sent.
        """
        if len(self._sent) < len(self.buckets):
            missing = [weight for bucket in self._missing for weight in bucket]
            raise BucketsError(text("buckets.missing", count=len(missing), shape=tuple(missing[0].shape)))
        for bucket, (flat, handle) in zip(self.buckets, self._sent, strict=True):
            handle.wait()
            for weight, piece in zip(bucket, flat.split([weight.numel() for weight in bucket]), strict=True):
                weight.grad = piece.view_as(weight)
        self._again()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


def _filled(parameters: Iterable[nn.Parameter], nbytes: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for weight in dict.fromkeys(parameters):
        if not weight.requires_grad:
            continue
        if not buckets or weight.nbytes > room or weight.dtype != buckets[-1][0].dtype:
            buckets.append([])
            room = nbytes
        buckets[-1].append(weight)
        room -= weight.nbytes
    return buckets

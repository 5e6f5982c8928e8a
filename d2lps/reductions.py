"""Reductions: what "add" does where two values of a key meet. The sum, unless a run says otherwise.

>>> import torch
>>> MAX.combined(torch.tensor([1, 5]), torch.tensor([3, 2]))
tensor([3, 5])

A reduction works element by element and must be associative and commutative: a plan may put the pairs
together in any order. Floating-point sums and products are so only up to rounding, which is why two plans
give different last bits, and one plan always the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from d2lps.tensors import TensorError


@dataclass(frozen=True)
class Reduction:
    """``combine(own, arrived, out=None)`` with its ``identity``, the value that changes nothing.

    Your own: ``Reduction("log of sum of exp", torch.logaddexp, identity=float("-inf"))``. ``combine`` takes
    two tensors of one shape and dtype, returns a new one like them and changes neither; the keyword ``out``
    is not needed. A run tries the identity on its tensors before anything moves, and refuses one that changes them.
    """

    name: str
    combine: Callable[[Tensor, Tensor], Tensor]
    identity: float | int | bool
    in_place: bool = False

    def combined(self, own: Tensor, arrived: Tensor) -> Tensor:
        """The two put together, as a new tensor."""
        return self.combine(own, arrived)

    def into(self, target: Tensor, own: Tensor, arrived: Tensor) -> None:
        """Put the two together in ``target``, which may be ``own``."""
        if self.in_place:
            self.combine(own, arrived, out=target)
        else:
            target.copy_(self.combine(own, arrived))

    def fits(self, tensor: Tensor) -> None:
        """TensorError unless this reduction can work on tensors like ``tensor``, with its identity changing nothing."""
        sample = tensor[:8] if tensor.numel() else torch.ones(1, dtype=tensor.dtype, device=tensor.device)
        sample = sample.clone()
        try:
            neutral = torch.full_like(sample, self.identity)
            found = self.combine(neutral, sample)
            self.into(neutral, neutral, sample)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise TensorError(f"{tensor.dtype} cannot be reduced by {self.name} on {tensor.device} "
                              f"({str(error).splitlines()[0]})") from None  # fmt: skip
        if not isinstance(found, Tensor) or found.shape != sample.shape or found.dtype != sample.dtype:
            like = f"{tuple(found.shape)}, {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise TensorError(f"{self.name} makes {like} of two tensors of {tuple(sample.shape)}, {sample.dtype}: "
                              "a reduction returns one like them")  # fmt: skip
        if not torch.allclose(found.double(), sample.double(), rtol=1e-3, equal_nan=True):
            raise TensorError(f"{self.name} with its identity {self.identity!r} changes {sample.tolist()} to "
                              f"{found.tolist()}: give the identity that changes nothing")  # fmt: skip


def _or(own: Tensor, arrived: Tensor, out: Tensor | None = None) -> Tensor:
    # Of integers bit by bit, which on 0 and 1 is the logical one; a true logical or would turn 2 into 1.
    return torch.bitwise_or(own, arrived, out=out)


SUM = Reduction("sum", torch.add, 0, in_place=True)
MAX = Reduction("max", torch.maximum, float("-inf"), in_place=True)
MIN = Reduction("min", torch.minimum, float("inf"), in_place=True)
PRODUCT = Reduction("product", torch.mul, 1, in_place=True)
OR = Reduction("or", _or, 0, in_place=True)
NAMED = {reduction.name: reduction for reduction in (SUM, MAX, MIN, PRODUCT, OR)}


def reduction(given: "str | Reduction") -> Reduction:
    """The reduction of that name, or the one given. Raises TensorError for anything else."""
    found = given if isinstance(given, Reduction) else NAMED.get(given) if isinstance(given, str) else None
    if found is None:
        raise TensorError(f"{given!r} is not a reduction: write {', '.join(map(repr, NAMED))} or a Reduction of your own")
    return found


def usable(found: Reduction, tensor: Tensor) -> None:
    """TensorError unless ``found`` can work on tensors like ``tensor``."""
    if tensor.dtype == torch.bool and found.name == "sum":
        raise TensorError("torch.bool cannot be summed: run with reduce='or'")
    least = not tensor.dtype.is_floating_point and isinstance(found.identity, float)
    if found in (MAX, MIN) and least:
        return  # the least and the largest integer depend on the dtype; torch knows how to compare all of them
    found.fits(tensor)

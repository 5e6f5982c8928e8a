"""Reductions: the operation that combines two values of a key. A run sums unless it names another one.

>>> import torch
>>> MAX.combine(torch.tensor([1, 5]), torch.tensor([3, 2]))
tensor([3, 5])

A reduction works element by element and must be associative and commutative, because a plan may combine values in
any order. Floating-point sums and products are associative only up to rounding: two plans differ in the last bits,
while one plan always gives the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from d2lps.carriers.tensors import TensorError
from d2lps.messages import text


@dataclass(frozen=True)
class Reduction:
    """An operation that combines two values of a key.

    A run tries the identity on its tensors before anything moves, and refuses an identity that changes them.

    Args:
        name: its name in error messages.
        combine: ``combine(own, arrived)`` takes two tensors of one shape and dtype, returns a new one like them and
            changes neither.
        identity: the value that changes nothing.
        in_place: whether ``combine`` can write its result into an existing tensor, given as the keyword ``out``.

    Example:
        >>> softest = Reduction("log of sum of exp", torch.logaddexp, identity=float("-inf"))
        >>> softest.combine(torch.zeros(1), torch.zeros(1))
        tensor([0.6931])
    """

    name: str
    combine: Callable[..., Tensor]
    identity: float | int | bool
    in_place: bool = False

    def into(self, target: Tensor, own: Tensor, arrived: Tensor) -> None:
        """Write the combination of two tensors into a third.

        Args:
            target: the tensor for the result; it may be ``own``.
            own, arrived: two tensors of its shape and dtype.
        """
        if self.in_place:
            self.combine(own, arrived, out=target)
        else:
            # A function may round differently on strided memory: contiguous copies give the same bits on every carrier.
            target.copy_(self.combine(own.contiguous(), arrived.contiguous()))

    def fits(self, tensor: Tensor) -> None:
        """Try this reduction and its identity on some elements of a tensor.

        Args:
            tensor: flat; the reduction has to work on tensors like this one.

        Raises:
            TensorError: if it does not.
        """
        sample = tensor[:: max(1, tensor.numel() // 8)][:8] if tensor.numel() else tensor.new_ones(1)
        sample, arrived = sample.clone(), sample.clone()
        try:
            neutral = torch.full_like(sample, _identity(self, tensor.dtype))
            own = neutral.clone()
            result = self.combine(own, arrived)
            if self.in_place:
                self.combine(own, arrived, out=torch.empty_like(sample))
        except (NotImplementedError, RuntimeError, TypeError) as error:
            values = {"dtype": tensor.dtype, "device": tensor.device, "why": str(error).splitlines()[0]}
            raise TensorError(text("reduction.cannot", name=self.name, **values)) from None
        if not isinstance(result, Tensor) or (result.shape, result.dtype) != (sample.shape, sample.dtype):
            like = f"{tuple(result.shape)}, {result.dtype}" if isinstance(result, Tensor) else type(result).__name__
            wanted = f"{tuple(sample.shape)}, {sample.dtype}"
            raise TensorError(text("reduction.unlike", name=self.name, made=like, given=wanted))
        if not (_same(own, neutral) and _same(arrived, sample)):
            raise TensorError(text("reduction.changes", name=self.name))
        if not _same(result, sample):
            values = {"identity": repr(self.identity), "before": sample.tolist(), "after": result.tolist()}
            raise TensorError(text("reduction.identity", name=self.name, **values))


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if the two are equal, floats up to rounding."""
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    return torch.allclose(one.double(), other.double(), rtol=8 * torch.finfo(one.dtype).eps, atol=0, equal_nan=True)


def _identity(reducer: Reduction, dtype: torch.dtype) -> float | int | bool:
    """Return the identity as a value of ``dtype``, which decides the least and the largest integer."""
    if reducer not in (MAX, MIN) or dtype.is_floating_point:
        return reducer.identity
    if dtype == torch.bool:
        return reducer == MIN
    return torch.iinfo(dtype).min if reducer == MAX else torch.iinfo(dtype).max


def _or(own: Tensor, arrived: Tensor, out: Tensor | None = None) -> Tensor:
    # Bitwise on integers, which on 0 and 1 equals the logical or; a logical or would turn 2 into 1.
    return torch.bitwise_or(own, arrived, out=out)


SUM = Reduction("sum", torch.add, 0, in_place=True)
MAX = Reduction("max", torch.maximum, float("-inf"), in_place=True)
MIN = Reduction("min", torch.minimum, float("inf"), in_place=True)
PRODUCT = Reduction("product", torch.mul, 1, in_place=True)
OR = Reduction("or", _or, 0, in_place=True)
NAMED = {reduction.name: reduction for reduction in (SUM, MAX, MIN, PRODUCT, OR)}


def reduction(named: "str | Reduction") -> Reduction:
    """Return the reduction of that name, or the one given; raise TensorError for anything else."""
    reducer = named if isinstance(named, Reduction) else NAMED.get(named) if isinstance(named, str) else None
    if reducer is None:
        names = ", ".join(map(repr, NAMED))
        raise TensorError(text("reduction.unknown", given=repr(named), names=names))
    if not isinstance(reducer.name, str):
        raise TensorError(text("reduction.bad-name", name=repr(reducer.name)))
    return reducer


def require_usable(reducer: Reduction, tensor: Tensor) -> None:
    """Raise TensorError unless the reduction can work on tensors like ``tensor``."""
    if tensor.dtype == torch.bool and reducer.name == "sum":
        raise TensorError(text("reduction.bool"))
    reducer.fits(tensor)

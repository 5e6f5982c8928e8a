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

from d2lps.carriers.tensors import TensorError
from d2lps.messages import text


@dataclass(frozen=True)
class Reduction:
    """What "add" does where two values of a key meet.

    A run tries the identity on its tensors before anything moves, and refuses one that changes them.

    Parameters
    ----------
    name
        as it stands in error messages.
    combine
        ``combine(own, arrived)`` takes two tensors of one shape and dtype, returns a new one like them and changes
        neither.
    identity
        the value that changes nothing.
    in_place
        whether ``combine`` can put its result into a tensor that is there, given as the keyword ``out``.

    Examples
    --------
    >>> softest = Reduction("log of sum of exp", torch.logaddexp, identity=float("-inf"))
    >>> softest.combined(torch.zeros(1), torch.zeros(1))
    tensor([0.6931])
    """

    name: str
    combine: Callable[[Tensor, Tensor], Tensor]
    identity: float | int | bool
    in_place: bool = False

    def combined(self, own: Tensor, arrived: Tensor) -> Tensor:
        """The two put together, as a new tensor.

        Parameters
        ----------
        own, arrived
            two tensors of one shape and dtype.

        Returns
        -------
        Tensor
            a new one, of their shape and dtype.
        """
        return self.combine(own, arrived)

    def into(self, target: Tensor, own: Tensor, arrived: Tensor) -> None:
        """Put the two together in a third.

        Parameters
        ----------
        target
            where the result goes; it may be ``own``.
        own, arrived
            two tensors of its shape and dtype.
        """
        if self.in_place:
            self.combine(own, arrived, out=target)
        else:
            # A function may round otherwise on memory with gaps: with none it is the same bits on every carrier.
            target.copy_(self.combine(own.contiguous(), arrived.contiguous()))

    def fits(self, tensor: Tensor) -> None:
        """See whether this reduction can work on tensors like this one, with its identity changing nothing.

        Parameters
        ----------
        tensor
            flat; some of its elements are tried.

        Raises
        ------
        TensorError
            if it cannot.
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
            given = f"{tuple(sample.shape)}, {sample.dtype}"
            raise TensorError(text("reduction.unlike", name=self.name, made=like, given=given))
        if not (_same(own, neutral) and _same(arrived, sample)):
            raise TensorError(text("reduction.changes", name=self.name))
        if not _same(result, sample):
            values = {"identity": repr(self.identity), "before": sample.tolist(), "after": result.tolist()}
            raise TensorError(text("reduction.identity", name=self.name, **values))


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding, which integers do not know."""
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    return torch.allclose(one.double(), other.double(), rtol=8 * torch.finfo(one.dtype).eps, atol=0, equal_nan=True)


def _identity(of: Reduction, dtype: torch.dtype) -> float | int | bool:
    """The identity among values of ``dtype``: the least and the largest integer depend on it."""
    if of not in (MAX, MIN) or dtype.is_floating_point:
        return of.identity
    if dtype == torch.bool:
        return of == MIN
    return torch.iinfo(dtype).min if of == MAX else torch.iinfo(dtype).max


def _or(own: Tensor, arrived: Tensor, out: Tensor | None = None) -> Tensor:
    # Of integers bit by bit, which on 0 and 1 is the logical one; a true logical or would turn 2 into 1.
    return torch.bitwise_or(own, arrived, out=out)


SUM = Reduction("sum", torch.add, 0, in_place=True)
MAX = Reduction("max", torch.maximum, float("-inf"), in_place=True)
MIN = Reduction("min", torch.minimum, float("inf"), in_place=True)
PRODUCT = Reduction("product", torch.mul, 1, in_place=True)
OR = Reduction("or", _or, 0, in_place=True)
NAMED = {reduction.name: reduction for reduction in (SUM, MAX, MIN, PRODUCT, OR)}


def reduction(named: "str | Reduction") -> Reduction:
    """The reduction of that name, or the one given. Raises TensorError for anything else."""
    how = named if isinstance(named, Reduction) else NAMED.get(named) if isinstance(named, str) else None
    if how is None:
        names = ", ".join(map(repr, NAMED))
        raise TensorError(text("reduction.unknown", given=repr(named), names=names))
    if not isinstance(how.name, str):
        raise TensorError(text("reduction.bad-name", name=repr(how.name)))
    return how


def require_usable(how: Reduction, tensor: Tensor) -> None:
    """TensorError unless ``how`` can work on tensors like ``tensor``."""
    if tensor.dtype == torch.bool and how.name == "sum":
        raise TensorError(text("reduction.bool"))
    how.fits(tensor)

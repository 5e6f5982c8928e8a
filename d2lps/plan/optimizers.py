"""The optimizer steps that a server may take, chosen by name and numbers, never by code from another process.

Each rule changes ``weight`` in place from the complete sum ``gradient`` and keeps its state in ``memory``, one dict per
node and key. The rules call methods of their tensors only, so a plan can name a rule without importing torch.
"""

import inspect
from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import TypeGuard

from d2lps.messages import text
from d2lps.units import show_number


def sgd(weight, gradient, memory: dict, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
    """Stochastic gradient descent: v ← μv + g + λw, w ← w − ηv.

    ``lr`` is η, ``momentum`` μ (from the second step on), ``weight_decay`` λ. In float32 and float64 the result equals
    that of ``torch.optim.SGD`` bit for bit; half precision is computed in float32.
    """
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    if momentum:
        velocity = memory.get("velocity")
        if velocity is None:
            memory["velocity"] = gradient = gradient.clone()
        else:
            gradient = velocity.mul_(momentum).add_(gradient)
    weight.add_(gradient, alpha=-lr)


def adagrad(weight, gradient, memory: dict, *, lr: float, weight_decay: float = 0.0, eps: float = 1e-10) -> None:
    """AdaGrad: s ← s + g², w ← w − η·g/(√s + ε), with g + λw in place of g.

    ``lr`` is η, ``weight_decay`` λ, ``eps`` ε. In float32 and float64 the result equals that of
    ``torch.optim.Adagrad`` bit for bit. Source: Duchi, Hazan and Singer, JMLR 2011.
    """
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    squares = _state(memory, "squares", weight)
    squares.addcmul_(gradient, gradient, value=1)
    weight.addcdiv_(gradient, squares.sqrt().add_(eps), value=-lr)


def adam(
    weight,
    gradient,
    memory: dict,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Adam: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², w ← w − η·m̂/(√v̂ + ε), where m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).

    ``lr`` is η; ``weight_decay`` is λ, with g + λw in place of g. In float32 and float64 the result equals that of
    ``torch.optim.Adam`` bit for bit. Source: Kingma and Ba, ICLR 2015.
    """
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    first, second = _state(memory, "first", weight), _state(memory, "second", weight)
    memory["steps"] = steps = memory.get("steps", 0) + 1
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    spread = second.sqrt().div_((1 - beta2**steps) ** 0.5).add_(eps)
    weight.addcdiv_(first, spread, value=-lr / (1 - beta1**steps))


def _state(memory: dict, name: str, weight):
    """Return the tensor stored as ``name``: at first zeros, of the same shape and dtype as ``weight``."""
    if name not in memory:
        memory[name] = weight.new_zeros(weight.shape)
    return memory[name]


RULES: dict[str, Callable] = {"sgd": sgd, "adagrad": adagrad, "adam": adam}
# The state of each rule, complete from the first step on (sgd: with momentum): tensors like the weight, and a count.
REMEMBERED = {"sgd": {"velocity"}, "adagrad": {"squares"}, "adam": {"first", "second", "steps"}}
COUNTS = {"steps"}
LARGEST = 1e20  # divided by 1 − β, which is at least 1e-16, it is still a float32
AT_LEAST_0 = {"momentum", "weight_decay", "eps"}  # as in torch
BELOW_1 = {"beta1", "beta2"}  # Adam divides by 1 − β


def is_number(value: object) -> TypeGuard[float]:
    """Return True if a rule accepts ``value``: a real number, finite as a float."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def fitting(name: str, value: object) -> str | None:
    """Return None if ``value`` fits the number ``name`` of a rule, else a description of the values that fit."""
    if not is_number(value):
        return text("number.finite")
    if name in BELOW_1:
        return None if 0 <= value < 1 else text("number.below-1")
    if name in AT_LEAST_0 and value < 0:
        return text("number.at-least-0")
    return None if abs(value) <= LARGEST else text("number.at-most", most=show_number(LARGEST))


def numbers_of(rule: str) -> dict[str, bool]:
    """Return the names of a rule's numbers, each with True if it must be given."""
    parameters = inspect.signature(RULES[rule]).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}

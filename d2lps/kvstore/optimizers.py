"""The optimizer of a server: a rule by name, with its numbers, and never code from a worker."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.tensors import widened
from d2lps.kvstore.errors import Refused
from d2lps.messages import text
from d2lps.plan.optimizers import COUNTS, REMEMBERED, RULES, fitting, is_number, numbers_of

State = dict[str, "Tensor | int | float"]  # of a key: "value", flat, and what the optimizer remembers
Memory = dict[str, State]  # rule → its state for a key; one rule at a time


class Lent(dict):
    """The state of a rule while another owner reads it: the next step works on a copy."""


class Optimizer(NamedTuple):
    """A ``rule`` with ``numbers``; gradients are first multiplied by ``scale``; if it is "mean", they are averaged."""

    rule: str
    numbers: dict[str, float]
    scale: "float | str" = 1.0

    @classmethod
    def read(cls, rule: object, numbers: object) -> "Optimizer":
        """Check the rule and numbers of a worker; ``rescale_grad`` is a number, or ``"mean"``. Raises Refused."""
        if not isinstance(rule, str) or not isinstance(numbers, Mapping):
            raise Refused(text("store.optimizer-numbers"))
        if rule not in RULES:
            raise Refused(text("store.optimizer", rule=repr(rule), rules=", ".join(RULES)))
        known, numbers = numbers_of(rule), dict(numbers)
        scale = numbers.pop("rescale_grad", 1.0)
        for name, value in numbers.items():
            if name not in known:
                raise Refused(text("store.no-number", rule=rule, name=repr(name), names=", ".join(known)))
            if taken := fitting(name, float(value) if is_number(value) else value):  # float() turns True into 1
                raise Refused(text("store.number", name=name, value=_shown(value), rule=rule, taken=taken))
        for name, needed in known.items():
            if needed and name not in numbers:
                raise Refused(text("store.needs", rule=rule, name=name))
        if not (isinstance(scale, str) and scale == "mean") and fitting("rescale_grad", scale):
            raise Refused(text("store.rescale", value=_shown(scale)))
        floats = {name: float(value) for name, value in numbers.items()}
        return cls(rule, floats, scale if isinstance(scale, str) else float(scale))

    @property
    def as_read(self) -> dict:
        """The numbers in the form that :meth:`read` takes."""
        return self.numbers | {"rescale_grad": self.scale}

    def validate_dtype(self, dtype: torch.dtype, key: object) -> None:
        """Raise Refused where the values of a key are whole numbers, with which no rule can step."""
        if not dtype.is_floating_point:
            raise Refused(text("store.whole-numbers", key=key, dtype=dtype, rule=self.rule))

    def stepped(self, value: Tensor, gradient: Tensor, memory: Memory, counted: int, buffer: Tensor) -> Tensor:
        """Return the new value, in ``buffer``; ``gradient``, a sum of ``counted`` pushes, may be overwritten.

        The same rule continues with its ``memory``, also with other numbers; another rule begins with an empty one.
        """
        if self.rule not in memory:
            memory.clear()
            memory[self.rule] = {}
        elif isinstance(memory[self.rule], Lent):
            state = memory[self.rule].items()
            memory[self.rule] = {name: item.clone() if isinstance(item, Tensor) else item for name, item in state}
        gradient, scale = widened(gradient), 1 / counted if self.scale == "mean" else self.scale
        if scale != 1:
            gradient.mul_(scale)
        weight = widened(buffer.copy_(value))
        RULES[self.rule](weight, gradient, memory[self.rule], **self.numbers)
        return buffer if weight is buffer else buffer.copy_(weight)


def lent(memory: Memory) -> Memory:
    """Return the state of now, which later steps do not change; they copy it when they have to."""
    memory.update({rule: Lent(state) for rule, state in memory.items()})
    return dict(memory)


def remembered(optimizer: Optimizer | None, memory: Memory) -> State:
    """Return the state with which the optimizer continues: none of another rule."""
    return memory.get(optimizer.rule, {}) if optimizer else {}


def validate_state(state: State, optimizer: Optimizer | None, elements: int, dtype: torch.dtype, key: object) -> None:
    """Raise Refused unless ``state`` is such a value, with the complete state of the optimizer or none."""
    value, memory = state.get("value"), {name: item for name, item in state.items() if name != "value"}
    if not isinstance(value, Tensor) or (value.dtype, value.numel()) != (dtype, elements):
        raise Refused(text("store.saved-unlike", key=key, elements=elements, dtype=dtype))
    if optimizer:
        optimizer.validate_dtype(dtype, key)
    known, spec = REMEMBERED[optimizer.rule] if optimizer else set(), (widened(value[:0]).dtype, elements)
    counts = {name for name, item in memory.items() if type(item) is int and 0 <= item < 1 << 53}
    tensors = {name for name, item in memory.items() if isinstance(item, Tensor) and (item.dtype, item.numel()) == spec}
    if memory and (memory.keys() != known or counts != known & COUNTS or tensors != known - COUNTS):
        rule = optimizer.rule if optimizer else text("store.no-rule")
        raise Refused(text("store.saved-state", key=key, names=", ".join(memory), rule=rule))


def said(optimizer: Optimizer | None) -> dict:
    """Return an optimizer as JSON for servers."""
    return {"rule": optimizer and optimizer.rule, "numbers": optimizer.as_read if optimizer else {}}


def _shown(value: object) -> str:
    try:
        shown = repr(value)
        return shown if len(shown) < 80 else f"{shown[:60]}…"
    except ValueError:  # Python writes at most 4300 digits
        return "a whole number of very many digits"

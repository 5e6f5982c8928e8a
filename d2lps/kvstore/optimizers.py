"""The optimizer of a server: a rule by name, with its numbers; never code from a worker."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from d2lps.carriers.tensors import widened
from d2lps.kvstore.codec import State
from d2lps.kvstore.errors import Refused
from d2lps.messages import text
from d2lps.plan.optimizers import COUNTS, REMEMBERED, RULES, fitting, is_number, numbers_of

Memory = dict[str, State]  # what is remembered of a key, by the rule that does: of one rule at a time


class Lent(dict):
    """What a rule remembers, where somebody else has it, too: whoever steps on has a copy of it first."""


class Optimizer(NamedTuple):
    """``rule`` with ``numbers``; gradients are multiplied by ``scale`` before, or divided by how many were summed."""

    rule: str
    numbers: dict[str, float]
    scale: "float | str" = 1.0

    @classmethod
    def read(cls, rule: object, numbers: object) -> "Optimizer":
        """As a worker asks for it. ``rescale_grad``: a number, or ``"mean"``. Raises Refused, with what would do."""
        if not isinstance(rule, str) or rule not in RULES:
            raise Refused(text("store.optimizer", rule=repr(rule), rules=", ".join(RULES)))
        if not isinstance(numbers, Mapping):
            raise Refused(text("store.optimizer-numbers"))
        known, numbers = numbers_of(rule), dict(numbers)
        scale = numbers.pop("rescale_grad", 1.0)
        for name, value in numbers.items():
            if name not in known:
                raise Refused(text("store.no-number", rule=rule, name=repr(name), names=", ".join(known)))
            if taken := fitting(name, float(value) if is_number(value) else value):  # which may have become 1
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
        """The numbers as :meth:`read` takes them."""
        return self.numbers | {"rescale_grad": self.scale}

    def validate_dtype(self, dtype: torch.dtype, key: object) -> None:
        """Raises Refused where the values of a key are whole numbers, with which no rule can step."""
        if not dtype.is_floating_point:
            raise Refused(text("store.whole-numbers", key=key, dtype=dtype, rule=self.rule))

    def stepped(self, value: Tensor, gradient: Tensor, memory: Memory, counted: int, room: Tensor) -> Tensor:
        """The new value, in ``room``; ``gradient``, the sum of ``counted``, may be changed.

        The same rule goes on with its ``memory``, also with other numbers; another one begins anew.
        """
        if self.rule not in memory:
            memory.clear()
            memory[self.rule] = {}
        elif isinstance(memory[self.rule], Lent):
            kept = memory[self.rule].items()
            memory[self.rule] = {name: one.clone() if isinstance(one, Tensor) else one for name, one in kept}
        wide, scale = widened(gradient), 1 / counted if self.scale == "mean" else self.scale
        if scale != 1:
            wide.mul_(scale)
        weight = widened(room.copy_(value))
        RULES[self.rule](weight, wide, memory[self.rule], **self.numbers)
        return room if weight is room else room.copy_(weight)


def lent(memory: Memory) -> Memory:
    """What is remembered now, which stays as it is, whatever becomes of ``memory``; nothing is copied yet."""
    memory.update({rule: Lent(state) for rule, state in memory.items()})
    return dict(memory)


def remembered(optimizer: Optimizer | None, memory: Memory) -> State:
    """What of ``memory`` the optimizer goes on with: nothing of another rule's."""
    return memory.get(optimizer.rule, {}) if optimizer else {}


def validate_state(state: State, optimizer: Optimizer | None, elements: int, dtype: torch.dtype, key: object) -> None:
    """Raises Refused unless it is a value of that kind, with all that the optimizer remembers of it, or nothing."""
    value, kept = state.get("value"), {name: one for name, one in state.items() if name != "value"}
    if not isinstance(value, Tensor) or (value.dtype, value.numel()) != (dtype, elements):
        raise Refused(f"key {key} has {elements} elements of {dtype} here: load what was saved of it")
    if optimizer:
        optimizer.validate_dtype(dtype, key)
    known, wide = REMEMBERED[optimizer.rule] if optimizer else set(), widened(value[:0]).dtype
    counts = {name for name, one in kept.items() if type(one) is int and 0 <= one < 1 << 53}
    tensors = {
        name for name, one in kept.items() if isinstance(one, Tensor) and (one.dtype, one.numel()) == (wide, elements)
    }
    if kept and (kept.keys() != known or counts != known & COUNTS or tensors != known - COUNTS):
        rule = optimizer.rule if optimizer else "no optimizer"
        raise Refused(f"key {key} has {', '.join(kept)}, which is not what {rule} remembers: load what was saved")


def said(optimizer: Optimizer | None) -> dict:
    """It as servers are told it."""
    return {"rule": optimizer and optimizer.rule, "numbers": optimizer.as_read if optimizer else {}}


def of_mxnet(optimizer) -> tuple[str, dict]:
    """(rule, numbers) that do the same steps as an optimizer of MXNet. Raises Refused."""
    # AdaGrad is not among them: MXNet takes ε into the root, and decays weights otherwise.
    kinds = {
        "SGD": ("sgd", {"momentum": "momentum"}),
        "Adam": ("adam", {"beta1": "beta1", "beta2": "beta2", "epsilon": "eps"}),
    }
    kind = type(optimizer).__name__
    if kind not in kinds or not hasattr(optimizer, "learning_rate"):
        raise Refused(
            f"set_optimizer({kind}): give a name and numbers, set_optimizer('sgd', lr=0.1), or MXNet's "
            f"{', '.join(kinds)}"
        )
    for what in ("lr_scheduler", "clip_gradient"):
        if getattr(optimizer, what, None) is not None:
            raise Refused(
                f"set_optimizer({kind}) with {what}: a server steps with numbers that stay as they are; "
                "set_optimizer again to change one"
            )
    factors = [*getattr(optimizer, "lr_mult", {}).values(), *getattr(optimizer, "wd_mult", {}).values()]
    if any(factor != 1 for factor in factors) or getattr(optimizer, "param_dict", None):
        raise Refused(f"set_optimizer({kind}) with lr_mult or wd_mult: a server has the same numbers for all keys")
    rule, names = kinds[kind]
    names = {"learning_rate": "lr", "wd": "weight_decay", "rescale_grad": "rescale_grad"} | names
    numbers = {ours: float(getattr(optimizer, its)) for its, ours in names.items() if hasattr(optimizer, its)}
    return rule, numbers


def _shown(value: object) -> str:
    try:
        text = repr(value)
        return text if len(text) < 80 else f"{text[:60]}…"
    except ValueError:  # Python writes out no more than 4300 digits
        return "a whole number of very many digits"

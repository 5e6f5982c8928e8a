"""The optimizer of a server: a rule by name, with its numbers; never code from a worker."""

from typing import NamedTuple

from torch import Tensor

from d2lps.carriers.tensors import widened
from d2lps.kvstore.errors import Refused
from d2lps.plan.optimizers import RULES, is_number, numbers_of


class Optimizer(NamedTuple):
    """``rule`` with ``numbers``; gradients are multiplied by ``scale`` before, or divided by how many were summed."""

    rule: str
    numbers: dict[str, float]
    scale: "float | str" = 1.0

    @classmethod
    def read(cls, rule: object, numbers: object) -> "Optimizer":
        """As a worker asks for it. ``rescale_grad``: a number, or ``"mean"``. Raises Refused, with what would do."""
        if not isinstance(rule, str) or rule not in RULES:
            raise Refused(f"there is no optimizer {rule!r}: they are {', '.join(RULES)}")
        known, numbers = numbers_of(rule), dict(numbers)
        scale = numbers.pop("rescale_grad", 1.0)
        for name, value in numbers.items():
            if name not in known:
                raise Refused(f"{rule} has no number {name!r}: it has {', '.join(known)} and rescale_grad")
            if not is_number(value):
                raise Refused(f"{name} = {_shown(value)}: {rule} takes finite numbers")
        for name, needed in known.items():
            if needed and name not in numbers:
                raise Refused(f"{rule} needs {name}: set_optimizer({rule!r}, {name}=…)")
        if scale != "mean" and not is_number(scale):
            raise Refused(f"rescale_grad = {_shown(scale)}: a number, or 'mean' to divide by how many were summed")
        return cls(rule, numbers, scale)

    @property
    def as_read(self) -> dict:
        """The numbers as :meth:`read` takes them."""
        return self.numbers | {"rescale_grad": self.scale}

    def stepped(self, value: Tensor, gradient: Tensor, memory: dict, counted: int, room: Tensor) -> Tensor:
        """The new value, in ``room``; ``gradient``, the sum of ``counted``, may be changed."""
        wide, scale = widened(gradient), 1 / counted if self.scale == "mean" else self.scale
        if scale != 1:
            wide.mul_(scale)
        weight = widened(room.copy_(value))
        RULES[self.rule](weight, wide, memory, **self.numbers)
        return room if weight is room else room.copy_(weight)


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
        return repr(value)
    except ValueError:  # Python writes out no more than 4300 digits
        return "a whole number of very many digits"

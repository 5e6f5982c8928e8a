"""What MXNet can do: the values that it holds, and the optimizers of it that take our steps."""

import torch

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import KeySpec

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8)
FLOATING = DTYPES[:3]  # a server of MXNet ends at the sight of any other


def require_value(known: KeySpec, dist: bool) -> None:
    """Raises Refused where a store of MXNet cannot hold such a value."""
    dtypes = FLOATING if dist else DTYPES
    if known.dtype not in dtypes or not known.elements:
        raise Refused(
            f"key {known.key!r} has {known.elements} elements of {known.dtype}: MXNet holds values of one "
            f"element or more, of {', '.join(map(name, dtypes))}"
        )


def require_steps(known: KeySpec, optimizer: Optimizer) -> None:
    """Raises Refused where MXNet's optimizer cannot step such a value."""
    dtypes = FLOATING[:1] if optimizer.rule == "adagrad" else FLOATING
    if known.dtype not in dtypes:
        names = ", ".join(map(name, dtypes))
        raise Refused(f"key {known.key!r} is {known.dtype}: MXNet's {optimizer.rule} is for {names}")


def name(dtype: torch.dtype) -> str:
    """Of a dtype, as MXNet and NumPy have it."""
    return str(dtype).removeprefix("torch.")


def mxnet_optimizer(optimizer: Optimizer, summed: int) -> tuple[str, dict]:
    """(name, numbers) by which MXNet makes the optimizer that does the same steps. Raises Refused where it has none.

    MXNet's AdaGrad has eps under the root, and its Adam adds it before the bias is taken out: with an eps as small as
    usual that is the same but for rounding, and no more is promised.
    """
    rule, numbers = optimizer.rule, dict(optimizer.numbers)
    theirs = {
        "learning_rate": numbers.pop("lr"),
        "wd": numbers.pop("weight_decay", 0.0),
        "rescale_grad": 1 / summed if optimizer.scale == "mean" else optimizer.scale,
    }
    eps = numbers.pop("eps", 1e-8 if rule == "adam" else 1e-10)
    if rule != "sgd" and not 0 < eps <= 1e-8:
        raise Refused(f"eps = {eps!r}: {rule} of MXNet has it in another place; up to 1e-8 that makes no difference")
    if rule == "adagrad" and theirs["wd"]:
        raise Refused(
            "adagrad of MXNet takes the weight decay out of the weight, not into the gradient: leave "
            "weight_decay out, or take engine='d2lps'"
        )
    eps = {"sgd": {}, "adagrad": {"eps": eps**2}, "adam": {"epsilon": eps}}[rule]
    return rule, theirs | eps | numbers

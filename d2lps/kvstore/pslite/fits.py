"""What fits MXNet: the values that it holds, and the optimizers of it that take our steps."""

from collections.abc import Iterable

import torch

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import KeySpec

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
}
FLOATING = [dtype for dtype in DTYPES if dtype.is_floating_point]  # a server of MXNet ends at the sight of any other


def holds(known: KeySpec, dist: bool) -> None:
    """Raises Refused where a store of MXNet cannot hold such a value."""
    held = FLOATING if dist else DTYPES
    if known.dtype not in held or not known.elements:
        raise Refused(
            f"key {known.key!r} has {known.elements} elements of {known.dtype}: MXNet holds values of one "
            f"element or more, of {_names(held)}"
        )


def updates(known: KeySpec, optimizer: Optimizer | None) -> None:
    """Raises Refused where MXNet's optimizer cannot step such a value."""
    held = [torch.float32] if optimizer and optimizer.rule == "adagrad" else FLOATING
    if optimizer and known.dtype not in held:
        raise Refused(f"key {known.key!r} is {known.dtype}: MXNet's {optimizer.rule} is for {_names(held)}")


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(DTYPES[dtype] for dtype in dtypes)


def for_mxnet(optimizer: Optimizer, summed: int) -> tuple[str, dict]:
    """(name, numbers) by which MXNet makes the optimizer that does the same steps.

    MXNet's AdaGrad has eps under the root, and its Adam adds it before the bias is taken out: with an eps as small as
    usual that is the same but for rounding, and no more is promised.
    """
    rule, numbers = optimizer.rule, dict(optimizer.numbers)
    found = {
        "learning_rate": numbers.pop("lr"),
        "wd": numbers.pop("weight_decay", 0.0),
        "rescale_grad": 1 / summed if optimizer.scale == "mean" else optimizer.scale,
    }
    eps = numbers.pop("eps", 1e-8 if rule == "adam" else 1e-10)
    if rule != "sgd" and not 0 < eps <= 1e-8:
        raise Refused(f"eps = {eps!r}: {rule} of MXNet has it in another place; up to 1e-8 that makes no difference")
    if rule == "adagrad":
        if found["wd"]:
            raise Refused(
                "adagrad of MXNet takes the weight decay out of the weight, not into the gradient: leave "
                "weight_decay out, or take engine='d2lps'"
            )
        found["eps"] = eps**2
    elif rule == "adam":
        found["epsilon"] = eps
    if numbers.get("momentum", 0.0) < 0:
        raise Refused(f"momentum = {numbers['momentum']!r}: MXNet's sgd takes 0 or more")
    return rule, found | numbers

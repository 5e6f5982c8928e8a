"""The values that MXNet can hold, and its optimizers that take the same steps as ours."""

import torch

from d2lps.kvstore.errors import Refused
from d2lps.kvstore.optimizers import Optimizer
from d2lps.kvstore.values import KeySpec
from d2lps.messages import text

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8)
FLOATING = DTYPES[:3]  # a server of MXNet ends when it receives another dtype


def require_value(known: KeySpec, dist: bool) -> None:
    """Raise Refused if a store of MXNet cannot hold such a value."""
    dtypes = FLOATING if dist else DTYPES
    if known.dtype not in dtypes or not known.elements:
        like = {"elements": known.elements, "dtype": known.dtype, "dtypes": ", ".join(map(name, dtypes))}
        raise Refused(text("store.mxnet.value", key=repr(known.key), **like))


def require_steps(known: KeySpec, optimizer: Optimizer) -> None:
    """Raise Refused if MXNet's optimizer cannot step such a value."""
    dtypes = FLOATING[:1] if optimizer.rule == "adagrad" else FLOATING
    if known.dtype not in dtypes:
        like = {"dtype": known.dtype, "rule": optimizer.rule, "dtypes": ", ".join(map(name, dtypes))}
        raise Refused(text("store.mxnet.step", key=repr(known.key), **like))


def name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in MXNet and NumPy."""
    return str(dtype).removeprefix("torch.")


def mxnet_optimizer(optimizer: Optimizer, summed: int) -> tuple[str, dict]:
    """Return (name, numbers) of MXNet's optimizer with the same steps. Raises Refused if there is none.

    MXNet's AdaGrad has eps under the root, and its Adam adds eps before the bias correction: with the usual small eps
    the steps are the same up to rounding.
    """
    rule, numbers = optimizer.rule, dict(optimizer.numbers)
    options = {
        "learning_rate": numbers.pop("lr"),
        "wd": numbers.pop("weight_decay", 0.0),
        "rescale_grad": 1 / summed if optimizer.scale == "mean" else optimizer.scale,
    }
    eps = numbers.pop("eps", 1e-8 if rule == "adam" else 1e-10)
    if rule != "sgd" and not 0 < eps <= 1e-8:
        raise Refused(text("store.mxnet.eps", eps=repr(eps), rule=rule))
    if rule == "adagrad" and options["wd"]:
        raise Refused(text("store.mxnet.decay"))
    eps = {"sgd": {}, "adagrad": {"eps": eps**2}, "adam": {"epsilon": eps}}[rule]
    return rule, options | eps | numbers

"""Training in data parallel: ``by_plan`` runs a plan at each step, ``by_store`` pushes and pulls, ``ddp`` is the same
with torch's DistributedDataParallel. The names of ``by_plan`` are handed on.
"""

from d2lps.train import ddp
from d2lps.train.by_plan import (
    Digits,
    Run,
    accuracy,
    added,
    batches,
    buffers,
    deterministic,
    digits,
    loss_and_gradient,
    one_device,
    parallel,
    small_cnn,
    split,
)

__all__ = [
    "Digits",
    "Run",
    "accuracy",
    "added",
    "batches",
    "buffers",
    "ddp",
    "deterministic",
    "digits",
    "loss_and_gradient",
    "one_device",
    "parallel",
    "small_cnn",
    "split",
]

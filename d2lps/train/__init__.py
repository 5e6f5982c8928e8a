"""Training in data parallel, three times the same, and when somebody is late.

``by_plan`` runs a plan at each step, ``by_store`` pushes gradients to a store and pulls weights from it, ``ddp`` leaves
it to torch's DistributedDataParallel. Each has the one device beside it that they are compared with, bit for bit or
within rounding. ``by_schedule`` follows a simulation of who pushes when; ``Buckets`` sends gradients while others are
still computed. The names of ``by_plan`` are handed on: the data, the small network, and the pieces of a step; and those
of ``checkpoints``, from which a training that was killed goes on.
"""

from d2lps.train import by_schedule, by_store, ddp
from d2lps.train.buckets import Buckets
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
from d2lps.train.checkpoints import CheckpointError, Checkpoints, Resumed

__all__ = [
    "by_schedule",
    "by_store",
    "Buckets",
    "CheckpointError",
    "Checkpoints",
    "Digits",
    "Resumed",
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

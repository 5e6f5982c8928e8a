"""Training, done in several ways that give the same weights.

Start with ``by_plan``: the data, the small network, the pieces of a training step, and ``one_device``, the reference
that the other ways are compared with, bit for bit or within rounding::

    by_plan       a plan adds the gradients in each step
    by_store      workers push gradients to a key-value store and pull weights
    ddp           torch's DistributedDataParallel does it
    by_history    a simulation decides which worker pushes when, and with which weights
    buckets       gradients are sent in buckets while others are still computed
    large_batch   how many steps each size of a minibatch needs
    compress      gradients are sent in fewer bytes, or weights less often
    checkpoints   a training that was killed continues from its last checkpoint

Models that are cut into pieces are trained by schedules::

    gpt           a small language model, and the course's prose to train it on
    pipeline      stages on devices, micro-batches one after the other
    operators     schedules of operators that are cut, or placed on several devices
    tensor        layers whose matrices are cut, for autograd
    context       one attention whose tokens are cut
    sharded       ZeRO: copies of a model that share out weights, gradients and states; its layers are in ``flat``
    experts       a layer of experts on several devices, to which tokens are sent

Models with a large table of vectors have servers for it::

    recommender   generated clicks of known optimum; a dense part by all-reduce, a sparse part by push and pull
"""

from d2lps.train import (
    by_history,
    by_store,
    compress,
    context,
    ddp,
    experts,
    gpt,
    large_batch,
    operators,
    pipeline,
    recommender,
    sharded,
    tensor,
)
from d2lps.train.buckets import Buckets
from d2lps.train.by_plan import (
    Digits,
    TrainingResult,
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
    "by_history",
    "by_store",
    "compress",
    "Buckets",
    "CheckpointError",
    "Checkpoints",
    "Digits",
    "Resumed",
    "TrainingResult",
    "accuracy",
    "added",
    "batches",
    "buffers",
    "context",
    "ddp",
    "deterministic",
    "digits",
    "experts",
    "gpt",
    "large_batch",
    "loss_and_gradient",
    "one_device",
    "operators",
    "parallel",
    "pipeline",
    "recommender",
    "sharded",
    "small_cnn",
    "split",
    "tensor",
]

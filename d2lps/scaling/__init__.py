"""Large models: their parameters, memory and speed by closed forms, and how to divide them over many GPUs.

>>> choice = parallelize("gpt3", gpus=1024, batch=1536)
>>> choice.layout.tensor, choice.layout.pipeline, choice.layout.data
(4, 8, 32)
>>> print(choice.reason.partition(":")[0])
t·p = 4·8 (ZeRO stage 1) is the smallest cut among the fast ones that fit

Start with ``transformer.py``: it counts the parameters, FLOPs and activations of a :class:`Transformer`; ``models.py``
knows some by name, and reads ``config.json``. ``layout.py`` defines a division, a :class:`Layout`, and the bytes that
it keeps and sends per GPU; ``ledger.py`` lists the memory, and ``measured.py``, the only part that needs torch,
measures it. ``gpu.py`` has the data sheets and the rates of groups of GPUs; ``speed.py`` predicts seconds with one
calibrated constant, ``runs.py`` has published runs, and ``interval.py`` how far these are predicted off.
``prediction.py`` puts time, interval, memory and changes of one layout together; ``choosing.py`` ranks all layouts, and
``command.py`` is ``python -m d2lps parallelize``; ``job.py`` has time to accuracy and its cost for a batch, and
``published.toml`` the compute of known trainings, the speed of GPUs and prices, which ``published.py`` reads.
"""

from d2lps.scaling.choosing import Choice, parallelize
from d2lps.scaling.gpu import GPUS, Gpu
from d2lps.scaling.interval import Spread, Tried, spread, tried
from d2lps.scaling.job import Job, fit
from d2lps.scaling.layout import Layout, kept, sent
from d2lps.scaling.ledger import Ledger, memory
from d2lps.scaling.models import MODELS
from d2lps.scaling.prediction import Prediction, predict_step
from d2lps.scaling.published import CHIPS, PRICES, TRAINED
from d2lps.scaling.runs import LLAMA3, MEGATRON, MLSYS23, RUNS, SC21, Published
from d2lps.scaling.speed import calibrate, error, step, throughput
from d2lps.scaling.transformer import ScalingError, Transformer

__all__ = [
    "CHIPS",
    "GPUS",
    "LLAMA3",
    "MEGATRON",
    "MLSYS23",
    "MODELS",
    "PRICES",
    "RUNS",
    "SC21",
    "TRAINED",
    "Choice",
    "Gpu",
    "Job",
    "Layout",
    "Ledger",
    "Prediction",
    "Published",
    "ScalingError",
    "Spread",
    "Tried",
    "Transformer",
    "calibrate",
    "error",
    "fit",
    "kept",
    "memory",
    "parallelize",
    "predict_step",
    "sent",
    "spread",
    "step",
    "throughput",
    "tried",
]

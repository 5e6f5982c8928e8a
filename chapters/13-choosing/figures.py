"""With what this chapter opens: one step of the same model on the same 64 GPUs, divided in three ways."""

import re

from d2lps import Trace
from d2lps.scaling import GPUS, MODELS, Layout, Prediction, step
from d2lps.scaling.command import trace_of

MODEL, GPU, SEQUENCES = MODELS["gpt-39.1b"], GPUS["a100"], 16
DIVISIONS = ((2, 8, 4), (8, 4, 2), (16, 2, 2))  # GPUs per matrix, stages, replicas


def opening() -> dict[str, Trace]:
    """Return the pipeline of one replica of each division; messages between replicas are not in it."""
    return {" · ".join(map(str, cut)): _trace(*cut) for cut in DIVISIONS}


def _trace(t: int, p: int, d: int) -> Trace:
    layout = Layout(t, p, d, 1, 1, SEQUENCES // d, stage=1, recompute="selective")
    trace = trace_of(Prediction(MODEL, GPU, layout, step(MODEL, layout, GPU)))

    def all_of(lane: re.Match) -> str:
        first = t * int(lane[1])
        return f'"gpu{first}–{first + t - 1}"'

    return Trace.from_json(re.sub(r'"gpu(\d+)"', all_of, trace.to_json()))  # a lane stands for all GPUs of a stage

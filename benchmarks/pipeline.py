"""Pipelines over gloo: ours against PyTorch's, and the bubble predicted against measured.

A process per stage. Gradients are compared before anything is measured.

P15  time of our 1F1B ÷ PyTorch's Schedule1F1B, for two stages of the GPT, 4 and 8 micro-batches of 8 examples
P16  idle time measured − predicted, in the fastest of 5 runs: two stages of the GPT, and four that sleep 40 ms per task
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.common import Run, divided, in_turns, on_ranks
from d2lps import Processes
from d2lps.schedule import gpipe, one_f_one_b, pipeline
from d2lps.train import gpt
from d2lps.train.pipeline import run as train

NAP = 0.04  # seconds of a task that sleeps
MAKERS = {"GPipe": gpipe, "1F1B": one_f_one_b}


def two_stages(width: int) -> list[nn.Sequential]:
    torch.manual_seed(0)
    return gpt.GPT(layers=6, width=width).stages(2)


def against_torch(micro: int, width: int, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of our runs and of PyTorch's, in pairs."""
    carrier = Processes(backend="gloo")
    dist.init_process_group("gloo")
    rank, batch = carrier.rank, gpt.examples(gpt.prose("en"), 8 * micro)
    mine, schedule = two_stages(width)[rank], pipeline(one_f_one_b(2, micro))
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    theirs = Schedule1F1B(stage, n_microbatches=micro, loss_fn=gpt.loss)

    def ours() -> None:
        train(schedule, {rank: mine}, batch, carrier, loss=gpt.loss)

    def torchs() -> None:
        mine.zero_grad()
        theirs.step(batch[0]) if rank == 0 else theirs.step(target=batch[1], losses=[])

    gradients = []
    for way in (ours, torchs):
        way()
        gradients.append([weight.grad.clone() for weight in mine.parameters()])
    assert all(map(torch.equal, *gradients)), "other bits are no measurement"
    return in_turns(ours, torchs, pairs, warm=3)


class Nap(torch.autograd.Function):
    """Sleeps for the GPU, forwards and backwards."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(NAP)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(NAP)
        return gradient


class Sleeping(nn.Linear):
    """A stage that takes its time, and no processor."""

    def forward(self, x):
        return Nap.apply(super().forward(x))


def bubbles(stages: int, width: int | None, tables: list[tuple[str, int]], best_of: int) -> list[float]:
    """Return the measured idle time of each (schedule, micro-batches), as a part of the total, in the fastest run."""
    carrier = Processes(backend="gloo")
    torch.manual_seed(0)  # all ranks have the same batch
    if width is None:
        own, batch, options = Sleeping(8, 8), (torch.randn(8, 8), torch.zeros(8, dtype=torch.int64)), {}
    else:
        own, options = two_stages(width)[carrier.rank], {"loss": gpt.loss}
        batch = gpt.examples(gpt.prose("en"), 64)
    found = []
    for name, micro in tables:
        schedule = pipeline(MAKERS[name](stages, micro))
        traces = [train(schedule, {carrier.rank: own}, batch, carrier, **options)[1] for _ in range(best_of)]
        found.append(min(traces, key=lambda trace: trace.duration).bubble())
    return found


def p15(run: Run) -> None:
    pairs, width = (2, 32) if run.quick else (run.pairs or 30, 128)
    for micro in (4, 8):
        ours, theirs = on_ranks(2, against_torch, micro, width, pairs)
        times = {"ours": ours, "torch": theirs}
        run.compare("P15", f"1F1B, p = 2, m = {micro}", divided(ours, theirs), times, "≤ 1.1")


def p16(run: Run) -> None:
    two = [("GPipe", 2), ("GPipe", 4), ("GPipe", 8), ("1F1B", 4), ("1F1B", 8)]
    four = [("GPipe", 2), ("GPipe", 8), ("1F1B", 8)]
    best_of, width = (1, 32) if run.quick else (5, 128)
    for what, stages, size, tables in [("GPT", 2, width, two), ("asleep", 4, None, four)]:
        tables = tables[:1] if run.quick else tables
        found = on_ranks(stages, bubbles, stages, size, tables, best_of)
        for (name, micro), measured in zip(tables, found, strict=True):
            predicted = (stages - 1) / (micro + stages - 1)
            print(
                f"P16  {what:7} {name:6} p = {stages}, m = {micro:2}   predicted {predicted:6.1%}   "
                f"measured {measured:6.1%}   difference {measured - predicted:+.3f}   aim ±0.03"
            )
            run.note(f"P16 {what} {name} {stages} {micro}", predicted=predicted, measured=measured)

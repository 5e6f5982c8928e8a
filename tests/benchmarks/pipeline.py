"""Pipelines over gloo: ours against PyTorch's, and the bubble predicted against measured.

    python tests/benchmarks/pipeline.py [--save] [--quick] [--pairs 30]

A process per stage, one thread each. Ratios are of pairs, taken in turns A B B A in one set of processes; the time of a
run is the slowest rank's, between barriers. Gradients are compared before anything is measured.

P15  time of our 1F1B ÷ PyTorch's Schedule1F1B, for two stages of the GPT, 4 and 8 micro-batches of 8 examples
P16  idle time measured − predicted, in the fastest of 5 runs: two stages of the GPT, and four that sleep 40 ms per task
"""

import argparse
import statistics
import sys
import time

import torch
import torch.distributed as dist
from carriers import on_ranks, spread
from saved import save
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from d2lps import Processes
from d2lps.schedule import gpipe, one_f_one_b, pipeline
from d2lps.train import gpt
from d2lps.train.pipeline import run

WARM = 3
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
        run(schedule, {rank: mine}, batch, carrier, loss=gpt.loss)

    def torchs() -> None:
        mine.zero_grad()
        theirs.step(batch[0]) if rank == 0 else theirs.step(target=batch[1], losses=[])

    gradients = []
    for way in (ours, torchs):
        way()
        gradients.append([weight.grad.clone() for weight in mine.parameters()])
    assert all(map(torch.equal, *gradients)), "other bits are no measurement"
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM + pairs):
        for which in (0, 1) if turn % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            (ours, torchs)[which]()
            took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn >= WARM:
                times[which].append(took.item())
    return times


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
        traces = [run(schedule, {carrier.rank: own}, batch, carrier, **options)[1] for _ in range(best_of)]
        found.append(min(traces, key=lambda trace: trace.duration).bubble())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only to see that everything runs")
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    pairs, best_of, width = (2, 1, 32) if given.quick else (given.pairs, 5, 128)
    found = []
    for micro in (4, 8):
        ours, theirs = on_ranks(2, against_torch, micro, width, pairs)
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        middle, low, high = spread(ratios)
        mine, torchs = (1e3 * statistics.median(times) for times in (ours, theirs))
        print(
            f"P15  1F1B, p = 2, m = {micro}   {middle:.2f}  [{low:.2f}, {high:.2f}]   "
            f"ours {mine:.1f} ms   torch {torchs:.1f} ms   aim ≤ 1.1"
        )
        found.append({"what": f"P15 1F1B 2 {micro}", "ratio": middle, "p10": low, "p90": high})
    two = [("GPipe", 2), ("GPipe", 4), ("GPipe", 8), ("1F1B", 4), ("1F1B", 8)]
    four = [("GPipe", 2), ("GPipe", 8), ("1F1B", 8)]
    for what, stages, size, tables in [("GPT", 2, width, two), ("asleep", 4, None, four)]:
        tables = tables[:1] if given.quick else tables
        for (name, micro), measured in zip(
            tables, on_ranks(stages, bubbles, stages, size, tables, best_of), strict=True
        ):
            predicted = (stages - 1) / (micro + stages - 1)
            print(
                f"P16  {what:7} {name:6} p = {stages}, m = {micro:2}   predicted {predicted:6.1%}   "
                f"measured {measured:6.1%}   difference {measured - predicted:+.3f}   aim ±0.03"
            )
            found.append({"what": f"P16 {what} {name} {stages} {micro}", "predicted": predicted, "measured": measured})
    if given.save:
        save("pipeline", found)


if __name__ == "__main__":
    sys.exit(main())

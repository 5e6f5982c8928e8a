"""ZeRO over gloo: ours against PyTorch's, in bytes and in time.

    python tests/benchmarks/sharded.py [--save] [--quick] [--pairs 20]

A process per device, one thread each, one training step of the GPT with AdamW. Ratios are of pairs, taken in turns
A B B A in one set of processes; the time of a step is the slowest rank's, between barriers. The losses of the first
steps are compared before anything is measured. Bytes are those that a process writes to its sockets, of which Ψ is the
size of all weights; ours are also those of the trace.

P17  bytes of our step ÷ PyTorch's: ZeroRedundancyOptimizer with DistributedDataParallel for stage 1, fully_shard that
     keeps layers until the backward pass for stage 2, and fully_shard for stage 3
P18  time of our step ÷ PyTorch's
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from carriers import on_ranks, spread
from saved import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from d2lps import Processes
from d2lps.train import gpt
from d2lps.train.flat import counts_of
from d2lps.train.sharded import Sharded

WARM, LR, EXAMPLES = 3, 1e-3, 8  # of a device


def written() -> int:
    """Return the bytes that this process has written so far."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


def theirs(stage: int, net: torch.nn.Sequential, count: int):
    """Return PyTorch's model and optimizer of a stage."""
    if stage == 1:
        model = DistributedDataParallel(net)
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LR)
    mesh = init_device_mesh("cpu", (count,))
    for layer in net:
        fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    model = fully_shard(net, mesh=mesh, reshard_after_forward=stage == 3)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def against_torch(stage: int, width: int, pairs: int) -> dict:
    """Return the seconds of our steps and of PyTorch's in pairs, and the bytes of one step of each."""
    carrier = Processes(backend="gloo")
    dist.init_process_group("gloo")
    count, rank = carrier.size, carrier.rank
    batch = gpt.examples(gpt.prose("en"), EXAMPLES * count)
    own = [part.chunk(count)[rank] for part in batch]

    def net() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return gpt.GPT(layers=6, width=width)

    ours = Sharded(net(), carrier.names, stage, lambda part: torch.optim.AdamW(part, lr=LR), gpt.loss, carrier)
    model, optimizer = theirs(stage, net(), count)

    def we() -> float:
        return sum(ours.step(batch).values())

    def they() -> float:
        value = gpt.loss(model(own[0]), own[1])
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item() / count

    for _ in range(WARM):
        losses = torch.tensor([we(), they()])
        assert abs(losses[0] - losses[1]) <= 1e-3 * losses[0], f"other losses are no measurement: {losses.tolist()}"
    trace = ours.trace()  # in all processes
    sent = {"trace": trace.bytes_sent(carrier.names[0]), "psi": 4 * sum(counts_of(net()))}
    for name, step in (("ours", we), ("theirs", they)):
        dist.barrier()
        before = written()
        step()
        sent[name] = written() - before
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(pairs):
        for which in (0, 1) if turn % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            (we, they)[which]()
            took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            times[which].append(took.item())
    return {"times": times, **sent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only to see that everything runs")
    parser.add_argument("--pairs", type=int, default=20)
    given = parser.parse_args()
    pairs, width = (2, 32) if given.quick else (given.pairs, 128)
    rows = [(2, 3)] if given.quick else [(2, 1), (2, 2), (2, 3), (4, 2), (4, 3)]
    found = []
    for count, stage in rows:
        result = on_ranks(count, against_torch, stage, width, pairs)
        ideal, psi = (count - 1) / count, result["psi"]
        mine, torchs, traced = (result[name] / psi / ideal for name in ("ours", "theirs", "trace"))
        print(
            f"P17  ZeRO-{stage}, n = {count}   {mine / torchs:.2f}   "
            f"ours {mine:.2f} Ψ, by the trace {traced:.2f} Ψ   torch {torchs:.2f} Ψ, each × (n−1)/n"
        )
        ours, theirs = result["times"]
        middle, low, high = spread([one / other for one, other in zip(ours, theirs, strict=True)])
        took = [1e3 * statistics.median(times) for times in (ours, theirs)]
        print(
            f"P18  ZeRO-{stage}, n = {count}   {middle:.2f}  [{low:.2f}, {high:.2f}]   "
            f"ours {took[0]:.1f} ms   torch {took[1]:.1f} ms   aim ≤ 1.1"
        )
        bytes_ = {"ours": mine, "torch": torchs, "trace": traced}
        found.append({"what": f"ZeRO-{stage} {count}", "ratio": middle, "p10": low, "p90": high, "psi": bytes_})
    if given.save:
        save("sharded", found)


if __name__ == "__main__":
    sys.exit(main())

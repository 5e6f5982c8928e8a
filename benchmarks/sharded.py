"""ZeRO over gloo: ours against PyTorch's, in bytes and in time.

A process per device, and one training step of the GPT with AdamW. The losses of the first steps are compared before
anything is measured. Bytes are those that a process writes to its sockets, of which Ψ is the size of all weights; ours
are also those of the trace.

P17  bytes of our step ÷ PyTorch's: ZeroRedundancyOptimizer with DistributedDataParallel for stage 1, fully_shard that
     keeps layers until the backward pass for stage 2, and fully_shard for stage 3
P18  time of our step ÷ PyTorch's
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import Run, divided, in_turns, on_ranks
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
    return {"times": in_turns(we, they, pairs, warm=0), **sent}


def p17(run: Run) -> None:
    pairs, width = (2, 32) if run.quick else (run.pairs or 20, 128)
    for count, stage in [(2, 3)] if run.quick else [(2, 1), (2, 2), (2, 3), (4, 2), (4, 3)]:
        result = on_ranks(count, against_torch, stage, width, pairs)
        ideal, psi = (count - 1) / count, result["psi"]
        mine, torchs, traced = (result[name] / psi / ideal for name in ("ours", "theirs", "trace"))
        print(
            f"P17  ZeRO-{stage}, n = {count}   {mine / torchs:.2f}   "
            f"ours {mine:.2f} Ψ, by the trace {traced:.2f} Ψ   torch {torchs:.2f} Ψ, each × (n−1)/n"
        )
        ours, other = result["times"]
        times, sizes = {"ours": ours, "torch": other}, {"ours": mine, "torch": torchs, "trace": traced}
        run.compare("P18", f"ZeRO-{stage}, n = {count}", divided(ours, other), times, "≤ 1.1", psi=sizes)

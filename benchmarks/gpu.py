"""One CUDA GPU: its memory and speed against predictions, copies to it, and NCCL between ranks that share it.

P21  bytes that CUDA's allocator counts ÷ bytes that ``d2lps.memory`` predicts, for a GPT in bfloat16
P22  predicted ÷ measured seconds of its forward and backward passes
P23  copies between main memory and the GPU; both directions at once ÷ the sum of both alone
P24  overlap of a copy with products of matrices: (apart − together) ÷ the shorter of both
P25  plans over NCCL between ranks that share the GPU: the same bits as ``Here``, and the time ÷ that of ``all_reduce``.
     NCCL refuses two ranks on one GPU of one host, so each rank names a host of its own, and its messages go through
     sockets: the times say nothing about NVLink.

Without a GPU, P22 runs a tiny model on the CPU, and the others say that they were not measured.
"""

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import d2lps
from benchmarks.common import Run, divided, on_ranks, spread
from d2lps import Here, Processes
from d2lps.carriers import ranks
from d2lps.scaling import GPUS, Layout, step
from d2lps.scaling.layout import kept
from d2lps.train import gpt

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
GPU = GPUS["h100"]
if CUDA and "H200" in torch.cuda.get_device_name():
    GPU = GPU._replace(memory=141 * 10**9, reading=4.8e12)  # of NVIDIA's data sheet; the rest is that of the H100
SHAPES = [(24, 1024, 16), (24, 2048, 4), (12, 4096, 2)]  # layers, width, sequences of a micro-batch
CONTEXT, SIZE = 2048, 10**9
PLANS = {
    "ring": d2lps.ring,
    "sharded": d2lps.sharded,
    "tree": d2lps.tree,
    "gpu0": lambda n: d2lps.aggregate_at(n, n[0]),
}


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each of ``times`` calls, after three that are not counted."""
    taken = []
    for turn in range(times + 3):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if turn >= 3:
            taken.append(time.perf_counter() - start)
    return taken


def model(layers: int, width: int, micro: int, context: int) -> tuple[gpt.GPT, torch.Tensor, torch.Tensor]:
    """Return a GPT in bfloat16 on the device, with a batch of random bytes."""
    torch.manual_seed(0)
    net = gpt.GPT(layers, width, max(1, width // 128), context).to(DEVICE, torch.bfloat16)
    inputs, labels = torch.randint(256, (2, micro, context), device=DEVICE)
    return net, inputs, labels


def ledger(layers: int, width: int, micro: int, context: int) -> dict[str, float]:
    """Return allocated ÷ predicted bytes of weights, activations, gradients and optimizer (P21)."""
    small, *batch = model(1, 128, 1, 64)
    gpt.loss(small(batch[0]), batch[1]).backward()  # the libraries allocate their own buffers
    del small, batch
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    net, inputs, labels = model(layers, width, micro, context)
    batch = inputs.untyped_storage().nbytes()
    moments = [torch.cuda.memory_allocated() - batch - before]
    predicted = kept(net.transformer, Layout(micro=micro), "pure-bf16", context)
    optimizer = torch.optim.AdamW(net.parameters())
    loss = gpt.loss(net(inputs), labels)
    moments.append(torch.cuda.memory_allocated() - batch - before)
    loss.backward()
    del loss
    moments.append(torch.cuda.memory_allocated() - batch - before)
    optimizer.step()
    moments.append(torch.cuda.memory_allocated() - batch - before)
    weights, forward, backward, end = moments
    states = ("weights", "gradients", "optimizer")
    measured = {"weights": weights, "gradients": backward - weights, "optimizer": end - backward}
    measured["activations"] = forward - weights
    expected = {name: predicted[name] for name in states}
    expected["activations"] = sum(size for name, size in predicted.items() if name not in states)
    return {name: measured[name] / expected[name] for name in measured} | {"bytes": sum(measured.values())}


def speed(layers: int, width: int, micro: int, context: int, times: int) -> dict[str, object]:
    """Return the seconds of forward and backward passes, predicted and measured (P22)."""
    net, inputs, labels = model(layers, width, micro, context)

    def work() -> None:
        gpt.loss(net(inputs), labels).backward()
        net.zero_grad()

    taken = seconds(work, times)
    parts = step(net.transformer, Layout(micro=micro), GPU, precision="pure-bf16")
    predicted = sum(parts.values()) - parts["update"]
    flops = micro * context * net.transformer.flops_per_token()
    middle = statistics.median(taken)
    return {
        "predicted": predicted,
        "seconds": taken,
        "ratio": predicted / middle,
        "share of the peak": flops / middle / GPU.peak,
    }


def copies(size: int, times: int) -> dict[str, float]:
    """Return bytes per second of copies, and of both directions at once (P23)."""
    here = {name: torch.empty(size, dtype=torch.uint8, pin_memory=name == "pinned") for name in ("pageable", "pinned")}
    there, back = (torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    landing = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    down, up = torch.cuda.Stream(), torch.cuda.Stream()

    def both() -> None:
        with torch.cuda.stream(down):
            there.copy_(here["pinned"], non_blocking=True)
        with torch.cuda.stream(up):
            landing.copy_(back, non_blocking=True)

    works = {
        "to the GPU, pageable": lambda: there.copy_(here["pageable"]),
        "to the GPU, pinned": lambda: there.copy_(here["pinned"], non_blocking=True),
        "from the GPU, pinned": lambda: landing.copy_(back, non_blocking=True),
        "both at once": both,
        "inside the GPU": lambda: there.copy_(back),
    }
    return {name: size / statistics.median(seconds(work, times)) for name, work in works.items()}


def overlap(size: int, times: int) -> float:
    """Return (apart − together) ÷ the shorter, of a copy to the GPU and products of matrices (P24)."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target, side = torch.empty(size, dtype=torch.uint8, device=DEVICE), torch.cuda.Stream()
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)

    def copy() -> None:
        with torch.cuda.stream(side):
            target.copy_(source, non_blocking=True)

    def multiply() -> None:
        for _ in range(10):
            a @ a

    def together() -> None:
        copy()
        multiply()

    one, other, joint = (statistics.median(seconds(work, times)) for work in (copy, multiply, together))
    return (one + other - joint) / min(one, other)


def over_nccl(numbers: int, pairs: int) -> dict[str, list[float]]:
    """Return the ratios plan ÷ ``all_reduce`` of pairs; every sum is compared with that of ``Here`` (P25)."""
    rank = os.environ["RANK"]
    os.environ |= {"NCCL_HOSTID": rank, "NCCL_SOCKET_IFNAME": "lo"}
    ranks.host = lambda: f"host {rank}"
    with Processes(backend="nccl") as carrier:
        own, found = carrier.names[carrier.rank], {}
        gradients = {}
        for seed, name in enumerate(carrier.names):
            gradients[name] = torch.randn(numbers, generator=torch.Generator().manual_seed(seed))
        for label, make in PLANS.items():
            plan = make(list(carrier.names))
            right = {name: tensor.clone() for name, tensor in gradients.items()}
            d2lps.run(plan, right, Here())
            mine, times = gradients[own].to(carrier.device), ([], [])
            d2lps.run(plan, {own: mine}, carrier)
            assert torch.equal(mine.cpu(), right[own]), f"{label}: other bits than Here on rank {rank}"
            for turn in range(2 * pairs):
                carrier.barrier()
                start = carrier.clock()
                if turn % 2:
                    dist.all_reduce(mine)
                else:
                    d2lps.run(plan, {own: mine}, carrier)
                carrier.barrier()
                times[turn % 2].append(carrier.clock() - start)
            found[label] = divided(*times)
    return found


def on_gpu(run: Run, row: str) -> bool:
    """Return whether there is a GPU; note which, or say that the row was not measured."""
    run.versions = {"gpu": torch.cuda.get_device_name() if CUDA else "none", "cuda": str(torch.version.cuda)}
    if not CUDA:
        print(f"{row}  not measured: this machine has no CUDA GPU")
    return CUDA


def shapes(run: Run) -> list[tuple[str, tuple[int, int, int, int]]]:
    """Return names and shapes: layers, width, sequences and their length."""
    some, context = (SHAPES, CONTEXT) if CUDA and not run.quick else ([(2, 128, 1)], 64)
    return [("{} layers, h = {}, b = {}".format(*shape), (*shape, context)) for shape in some]


def p21(run: Run) -> None:
    for name, shape in shapes(run) if on_gpu(run, "P21") else ():
        ratios = ledger(*shape)
        print(f"P21  {name}   " + "   ".join(f"{key} {value:.4g}" for key, value in ratios.items()))
        run.note(f"P21 {name}", **ratios)


def p22(run: Run) -> None:
    for name, shape in shapes(run):
        result = speed(*shape, 2 if run.quick else 20)
        print(f"P22  {name}   {result['ratio']:.3f}   {result['share of the peak']:.1%} of the peak")
        run.note(f"P22 {name}", **result)


def p23(run: Run) -> None:
    if on_gpu(run, "P23"):
        rates = copies(*((10**6, 2) if run.quick else (SIZE, 20)))
        alone = 2 / sum(1 / rates[f"{way} the GPU, pinned"] for way in ("to", "from"))
        print("P23  " + "   ".join(f"{name} {rate / 1e9:.4g} GB/s" for name, rate in rates.items()))
        print(f"     both at once ÷ one after the other   {2 * rates['both at once'] / alone:.2f}")
        run.note("P23", **rates)


def p24(run: Run) -> None:
    if on_gpu(run, "P24"):
        hidden = overlap(*((10**6, 2) if run.quick else (SIZE, 20)))
        print(f"P24  {hidden:.2f}   aim ≥ 0.85")
        run.note("P24", ratio=hidden)


def p25(run: Run) -> None:
    numbers, times = (10**4, 2) if run.quick else (10**7 + 1, 20)
    for count in ((2,) if run.quick else (2, 3, 4)) if on_gpu(run, "P25") else ():
        for label, taken in on_ranks(count, over_nccl, numbers, times).items():
            middle, low, high = spread(taken)
            print(f"P25  {label}, n = {count}   {middle:.2f}  [{low:.2f}, {high:.2f}]   the same bits as Here")
            run.note(f"P25 {label} {count}", ratio=middle, p10=low, p90=high)

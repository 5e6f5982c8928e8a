"""One training step of a GPT on one GPU: number formats, matrices and memory, and the overlap of its streams.

P26  seconds, bytes and MFU of a whole step (forward, backward, AdamW) in each number format, and with recomputation.
     MFU divides the FLOPs that the model needs by the seconds and by the GPU's peak in bfloat16; HFU counts those of
     the recomputation, too.
P27  FLOP/s of products of matrices and of what lies between them, beside their FLOPs per byte
P28  the kernels and copies of a forward pass whose weights come from main memory, by stream: layer by layer, and with
     the next layer on its way while this one computes

Without a GPU, P26 and P27 run tiny examples on the CPU, and P28 says that it was not measured.
"""

import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from benchmarks.common import Run
from benchmarks.gpu import CUDA, DEVICE, GPU, on_gpu, seconds
from d2lps.train import gpt

# name: type of the weights, type that autocast computes in, whether TF32 is used, whether blocks are recomputed
FORMATS = {
    "float32": (torch.float32, None, False, False),
    "tf32": (torch.float32, None, True, False),
    "float16, scaled loss": (torch.float32, torch.float16, True, False),
    "bfloat16": (torch.float32, torch.bfloat16, True, False),
    "bfloat16, recomputed": (torch.float32, torch.bfloat16, True, True),
    "bfloat16 weights": (torch.bfloat16, None, True, False),
}


def training(shape: tuple[int, int, int, int], name: str, times: int) -> dict[str, object]:
    """Return what a training step takes in a number format (P26)."""
    layers, width, micro, context = shape
    weights, compute, tf32, again = FORMATS[name]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.manual_seed(0)
    net = gpt.GPT(layers, width, max(1, width // 128), context).to(DEVICE, weights)
    inputs, labels = torch.randint(256, (2, micro, context), device=DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=compute is torch.float16)
    losses = []

    def work() -> None:
        with torch.autocast(DEVICE.type, compute) if compute else nullcontext():
            x = inputs
            for module in net:
                inner = again and isinstance(module, gpt.Block)
                x = checkpoint(module, x, use_reentrant=False) if inner else module(x)
            loss = gpt.loss(x.float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())

    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    taken = seconds(work, times)
    middle, model = statistics.median(taken), net.transformer
    flops = micro * context * model.flops_per_token()
    blocks = flops / 3 * (1 - 2 * width * gpt.VOCABULARY / (model.flops_per_token() / 3)) if again else 0.0
    found = {"seconds": taken, "mfu": flops / middle / GPU.peak, "hfu": (flops + blocks) / middle / GPU.peak}
    found["loss"] = [losses[0].item(), losses[-1].item()]
    found["parameters"] = sum(parameter.numel() for parameter in net.parameters())
    return found | ({"most bytes": torch.cuda.max_memory_allocated()} if CUDA else {})


def operations(sizes: list[int], rows: int, width: int, times: int) -> dict[str, dict[str, float]]:
    """Return FLOPs, bytes and seconds of single operations (P27)."""
    works: dict[str, tuple[float, float, Callable[[], object]]] = {}
    kinds = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
    kinds |= {"float8": torch.float8_e4m3fn} if CUDA else {}
    for n in sizes:
        for name, kind in kinds.items():
            a, b = (torch.randn(n, n, device=DEVICE).to(kind) for _ in range(2))
            multiply = partial(torch.matmul, a, b)
            if name == "float8":
                one = torch.ones((), device=DEVICE)
                multiply = partial(torch._scaled_mm, a, b.t(), one, one, out_dtype=torch.bfloat16)
            works[f"{name} matrices, n = {n}"] = 2.0 * n**3, n * n * (2 * a.itemsize + multiply().itemsize), multiply
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    both = 2 * x.numel() * x.itemsize
    works["gelu"] = 10.0 * x.numel(), both, partial(gelu, x)
    works["layer norm"] = 8.0 * x.numel(), both, partial(layer_norm, x, (width,))
    works["sum of two"] = 1.0 * x.numel(), 1.5 * both, partial(torch.add, x, x.clone())
    works["softmax"] = 5.0 * x.numel(), both, partial(torch.softmax, x, 1)
    heads = x.view(1, rows, max(1, width // 128), -1).transpose(1, 2)
    attention = partial(scaled_dot_product_attention, heads, heads, heads)
    works["attention, fused"] = 4.0 * rows * rows * width, 2.0 * both, attention

    def parts() -> torch.Tensor:
        return torch.softmax(heads @ heads.transpose(2, 3) / heads.shape[3] ** 0.5, 3) @ heads

    scores = heads.shape[1] * rows * rows * x.itemsize
    works["attention in parts"] = 4.0 * rows * rows * width, 2.0 * both + 6.0 * scores, parts
    found = {}
    for name, (flops, size, work) in works.items():
        torch.backends.cuda.matmul.allow_tf32 = not name.startswith("float32")
        found[name] = {"flops": flops, "bytes": size, "seconds": statistics.median(seconds(work, times))}
    return found


def streams(layers: int, width: int, rows: int, ahead: bool) -> list[tuple[str, int, float, float]]:
    """Return (name, stream, start, seconds) of all kernels and copies of a forward pass from main memory (P28)."""
    blocks = [gpt.Block(width, width // 128).to(torch.bfloat16) for _ in range(layers)]
    there = [[p.detach().pin_memory() for p in block.parameters()] for block in blocks]
    homes = [[torch.empty_like(p, device=DEVICE) for p in there[0]] for _ in range(2)]  # two layers at a time
    gpu, side = gpt.Block(width, width // 128).to(DEVICE, torch.bfloat16), torch.cuda.Stream()
    here = torch.cuda.current_stream()
    arrived, used = ([torch.cuda.Event() for _ in range(layers)] for _ in range(2))

    def fetch(k: int) -> None:
        with torch.cuda.stream(side):
            if k >= (2 if ahead else 1):
                side.wait_event(used[k - (2 if ahead else 1)])
            for target, source in zip(homes[k % 2], there[k], strict=True):
                target.copy_(source, non_blocking=True)
            arrived[k].record()

    @torch.no_grad()
    def forward() -> None:
        x = torch.zeros(1, rows, width, device=DEVICE, dtype=torch.bfloat16)
        fetch(0)
        for k in range(layers):
            if ahead and k + 1 < layers:
                fetch(k + 1)
            here.wait_event(arrived[k])
            for parameter, weights in zip(gpu.parameters(), homes[k % 2], strict=True):
                parameter.data = weights
            x = gpu(x)
            used[k].record()
            if not ahead and k + 1 < layers:
                fetch(k + 1)

    for _ in range(3):
        forward()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        forward()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(str(path := Path(folder) / "trace.json"))
        events = json.loads(path.read_text())["traceEvents"]
    events = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    start = min(event["ts"] for event in events)
    return [(e["name"][:60], e["args"]["stream"], (e["ts"] - start) * 1e-6, e["dur"] * 1e-6) for e in events]


def p26(run: Run) -> None:
    small = run.quick or not CUDA
    for shape in [(1, 128, 1, 64)] if small else [(24, 1024, 16, 1024), (24, 2048, 8, 1024)]:
        for name in FORMATS if CUDA else ("float32", "bfloat16", "bfloat16, recomputed"):
            found = training(shape, name, 2 if small else 10)
            title = "P26 {} layers, h = {}, b = {}, s = {}, {}".format(*shape, name)
            print(f"{title}   MFU {found['mfu']:.1%}   HFU {found['hfu']:.1%}   loss {found['loss']}")
            run.note(title, **found)
            if CUDA:
                torch.cuda.empty_cache()


def p27(run: Run) -> None:
    small = run.quick or not CUDA
    sizes, rows, width = ([32, 64], 64, 128) if small else ([2**k for k in range(8, 15)], 8192, 4096)
    for name, found in operations(sizes, rows, width, 2 if small else 10).items():
        rate, intensity = found["flops"] / found["seconds"], found["flops"] / found["bytes"]
        print(f"P27 {name}   {rate / 1e12:.3g} TFLOP/s   {intensity:.3g} FLOP per byte")
        run.note(f"P27 {name}", **found)


def p28(run: Run) -> None:
    for ahead in (False, True) if on_gpu(run, "P28") else ():
        events = streams(*((2, 256, 64) if run.quick else (6, 4096, 8192)), ahead)
        end, work = max(start + took for _, _, start, took in events), sum(took for *_, took in events)
        print(f"P28 {'next layer ahead' if ahead else 'one by one'}   {end * 1e3:.3f} ms, work {work * 1e3:.3f} ms")
        run.note(f"P28 {'ahead' if ahead else 'one by one'}", seconds=end, events=events)

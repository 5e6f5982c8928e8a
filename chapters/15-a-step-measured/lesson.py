# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("15")

# %% imports
import json
import math
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import clip_grad_norm_
from torch.utils.flop_counter import FlopCounterMode

from d2lps import cost, d2l, memory, table, watch
from d2lps.scaling import GPUS, LLAMA3
from d2lps.simulate import replayed, streams
from d2lps.train import gpt, pipeline, sharded, tensor
from d2lps.units import show_number, show_seconds, show_size

torch.set_num_threads(1)
folder = Path(d2lps.__file__).parents[1] / "tests" / "benchmarks" / "measured"
recorded = json.loads(max(folder.glob("step-*.json")).read_text("utf-8"))
print(recorded["device"], recorded["date"], recorded["command"], sep="   ")

# %% flops
torch.manual_seed(0)
net, batch = gpt.GPT(layers=4), gpt.examples(gpt.prose("en"), 16)
model, tokens = net.transformer, batch[0].numel()
with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
    gpt.loss(net(batch[0]), batch[1]).backward()
weights = sum(w.numel() for w in net[1:].parameters() if w.dim() > 1)
scores = 4 * model.layers * model.context * model.width
print(counted.get_total_flops(), 3 * tokens * (2 * weights + scores))
print(tokens * model.flops_per_token(), 6 * tokens * model.parameters)

# %% rates
def rate(work, times=5):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)

points = {}
for n in (16, 64, 256, 1024):
    a, b = torch.randn(2, n, n)
    points[f"n = {n}"] = 2 * n**3, 12 * n**2, rate(partial(torch.matmul, a, b))
a, b, c = torch.randn(3, 1 << 22)
points["a + b"] = len(a), 12 * len(a), rate(partial(torch.add, a, b, out=c))
points["gelu"] = 10 * len(a), 8 * len(a), rate(partial(nn.functional.gelu, a))
table("operation", "per-byte", "speed", "traffic", rows=[
    [name, f"{flops / size:.3g}", f"{flops / took / 1e9:.3g} GFLOP/s",
     f"{size / took / 1e9:.3g} GB/s"]
    for name, (flops, size, took) in points.items()])

# %% roofline
h200 = GPUS["h200"]
single = {each["what"].removeprefix("P27 "): each for each in recorded["figures"]
          if each["what"].startswith("P27")}
rows = []
for name in ("sum of two", "softmax", "layer norm", "gelu", "attention in parts",
             "attention, fused", *(f"bfloat16 matrices, n = {2**k}" for k in (9, 11, 13))):
    flops, size, took = (single[name][kind] for kind in ("flops", "bytes", "seconds"))
    roof = min(h200.peak, flops / size * h200.reading)
    rows.append([name, f"{flops / size:.3g}", f"{flops / took / 1e12:.3g}",
                 f"{roof / 1e12:.3g}", f"{flops / took / roof:.0%}"])
print(f"{h200.peak / h200.reading:.0f}")
table("operation", "per-byte", "tera", "roof", "of-roof", rows=rows)

# %% roofline-picture
def seen(kind):
    names = [name for name in single if name.startswith(kind)]
    return ([single[name]["flops"] / single[name]["bytes"] for name in names],
            [single[name]["flops"] / single[name]["seconds"] / 1e12 for name in names])

others = [name for name in single if "matrices" not in name]
x = [2.0**k for k in range(-3, 14)]
kinds = {"float32": "o", "tf32": "s", "bfloat16": "^", "float8": "v"}
xs, ys = zip(*(seen(kind) for kind in kinds), seen(tuple(others)))
roofs = [[min(peak, each * h200.reading) / 1e12 for each in x]
         for peak in (h200.peak, h200.fp8)]
d2l.plot([x, x, *xs], [*roofs, *ys], "per-byte", "tera", xscale="log", yscale="log",
         legend=["roof", "roof-fp8", *kinds, "others"], figsize=(6, 4),
         fmts=["k-", "k:", *kinds.values(), "x"])

# %% guess-mfu
guess = d2lps.predict("mfu", {"bfloat16": "%", "bfloat16, recomputed": "%"})
guess

# %% mfu
shape = "P26 24 layers, h = 2048, b = 8, s = 1024, "
steps = {each["what"].removeprefix(shape): each for each in recorded["figures"]
         if each["what"].startswith(shape)}
guess.reveal({name: 100 * steps[name]["mfu"] for name in guess.asked})

# %% mfu-table
model = gpt.GPT(1, 2048, 16, 1024).transformer
model = type(model)(**{**vars(model), "layers": 24})
flops, rows = 8 * 1024 * model.flops_per_token(), []
for name, found in steps.items():
    took = median(found["seconds"])
    rows.append([name, show_seconds(took), f"{flops / took / h200.peak:.1%}",
                 f"{found['hfu']:.1%}", show_size(found["most bytes"])])
print(f"{flops:.4g}", found["parameters"])
table("number-format", "a-step", "mfu", "hfu", "most-memory", rows=rows)

# %% published-mfu
rows = []
for run in LLAMA3[:2]:
    whole, causal = (run.model.flops_per_token() if all else run.model.flops_per_token()
                     for all in (True, False))
    rows.append([run.name, run.layout.gpus, f"{run.flops / 1e12:.0f}",
                 f"{run.flops / GPUS['h100'].peak:.1%}"])
table("model", "gpus", "published-speed", "mfu", rows=rows)

# %% formats
kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
         "float8 e4m3": torch.float8_e4m3fn, "float8 e5m2": torch.float8_e5m2}
rows = []
for name, kind in kinds.items():
    about = torch.finfo(kind)
    rows.append([name, about.bits // 8, f"{about.max:.3g}", f"{about.tiny:.2g}",
                 f"{about.smallest_normal * about.eps:.2g}", f"1/{1 / about.eps:.0f}"])
table("number-format", "bytes-each", "largest", "smallest-full", "smallest", "spacing", rows=rows)

# %% sums
ones = torch.full((4096,), 1.0)
for kind in (torch.bfloat16, torch.float16, torch.float32):
    total = torch.zeros((), dtype=kind)
    for one in ones.to(kind):
        total += one
    print(kind, total.item(), ones.to(kind).sum().item(), sep="   ")
weight = torch.tensor(1.0, dtype=torch.bfloat16)
print(weight - 0.001, weight.float() - 0.001)

# %% guess-zeros
guess = d2lps.predict("zeros", {"512": "%", "524 288": "%"})
guess

# %% zeros
def spread(net, batch):
    gradients = []
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.register_full_backward_hook(
                lambda layer, inner, outer: gradients.append(outer[0].flatten()))
    gpt.loss(net(batch[0]), batch[1]).backward()
    return torch.cat(gradients)

def lost(gradients, kind):
    return (gradients.to(kind) == 0).sum().item() / gradients.numel()

torch.manual_seed(0)
small = [part[:8] for part in batch]
g = spread(gpt.GPT(layers=2), small)
guess.reveal({"512": 100 * lost(g, torch.float16),
              "524 288": 100 * lost(g / 1024, torch.float16)})

# %% zeros-table
rows = [[name, *(f"{lost(g * 2.0**k, kind):.1%}" for k in (0, -10, 6))]
        for name, kind in kinds.items()]
print(small[0].numel(), f"{g.abs().median():.2g} … {g.abs().max():.2g}")
table("number-format", "as-it-is", "over-1024", "times-64", rows=rows)

# %% scaler
class Scaler:
    def __init__(self, scale=2.0**16, patience=10):
        self.scale, self.patience, self.good, self.skipped = scale, patience, 0, 0

    def step(self, optimizer):
        weights = [w for group in optimizer.param_groups for w in group["params"]]
        for w in weights:
            w.grad /= self.scale
        if all(w.grad.isfinite().all() for w in weights):
            optimizer.step()
            self.good += 1
            self.scale *= 2 if self.good % self.patience == 0 else 1
        else:
            self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1

# %% eight-bits
def rounded(x, kind, scaled):
    most = torch.finfo(kind).max
    scale = most / x.abs().max() if scaled else 1.0
    return (x * scale).clamp(-most, most).to(kind).float() / scale

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scaled):
        x, weight = (rounded(part, torch.float8_e4m3fn, scaled) for part in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.scaled = scaled
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = rounded(gradient, torch.float8_e5m2, ctx.scaled)
        return gradient @ weight, gradient.flatten(0, -2).T @ x.flatten(0, -2), None

class Eight(nn.Linear):
    def forward(self, x):
        y = Product.apply(x, self.weight, self.scaled)
        return y if self.bias is None else y + self.bias

def in_eight_bits(net, scaled):
    for layer in [layer for layer in net.modules() if type(layer) is nn.Linear]:
        layer.__class__, layer.scaled = Eight, scaled
    return net

# %% train-formats
data = gpt.examples(gpt.prose("en"), 8 * 30)

def fit(kind=torch.float32, scaler=None, change=lambda net: net, divide=1024):
    torch.manual_seed(0)
    net, losses = change(gpt.GPT(layers=2)), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    for i in range(30):
        inputs, labels = (part[8 * i:8 * i + 8] for part in data)
        with torch.autocast("cpu", kind, enabled=kind != torch.float32):
            output = net(inputs)
        loss = gpt.loss(output.float(), labels)
        (loss / divide * (scaler.scale if scaler else 1)).backward()
        scaler.step(optimizer) if scaler else optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

scaler = Scaler()
curves = {
    "float32": fit(), "bfloat16": fit(torch.bfloat16), "float16": fit(torch.float16),
    "float16, scaled": fit(torch.float16, scaler),
    "float8": fit(change=partial(in_eight_bits, scaled=False)),
    "float8, scaled": fit(change=partial(in_eight_bits, scaled=True)),
    "bfloat16 weights": fit(change=lambda net: net.bfloat16())}

# %% formats-plot
print(scaler.skipped, scaler.scale)
table("number-format", "last-loss", rows=[
    [name, f"{sum(losses[-5:]) / 5:.3f}"] for name, losses in curves.items()])

# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("13")

# %% divide
d2lps.divide("gpt-39.1b", gpus=64, batches=(16, 64, 256))

# %% imports
import json
import re
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from d2lps import all_to_all, cost, memory, nvswitch, parallelize, table
from d2lps.scaling import GPUS, LLAMA3, MEGATRON, MLSYS23, MODELS, SC21
from d2lps.scaling import Layout, ScalingError, Transformer
from d2lps.scaling import calibrate, error, kept, sent, spread, step, throughput, tried
from d2lps.train import gpt
from d2lps.train.experts import Experts
from d2lps.units import show_seconds, show_size

torch.set_num_threads(1)
nodes = ["gpu0", "gpu1", "gpu2", "gpu3"]

# %% ledger
torch.manual_seed(0)
net, batch = gpt.GPT(layers=4), gpt.examples(gpt.prose("en"), 16)
memory(net, batch)

# %% gpt3-activations
gpt3 = MODELS["gpt3"]
ways = {"t = 1": {}, "t = 8": {"tensor": 8},
        "t = 8, SP": {"tensor": 8, "sequence": True},
        "+ selective": {"tensor": 8, "sequence": True, "recompute": "selective"},
        "full": {"recompute": "full"}}
kinds = ["normalization", "attention", "scores", "perceptron", "dropout", "inputs"]
layers = {way: gpt3.activations(**options) for way, options in ways.items()}
table("way", *(f"of-{kind}" for kind in kinds), "in-all", rows=[
    [way, *(show_size(layer[kind]) if kind in layer else None for kind in kinds),
     f"{96 * sum(layer.values()) / 1e9:.1f} GB"] for way, layer in layers.items()
]).bars(*(f"of-{kind}" for kind in kinds), end="in-all")

# %% recompute
class Again(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=True)

def saved(net):
    own, there = {w.data_ptr() for w in net.parameters()}, {}
    def pack(tensor):
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            there[storage.data_ptr()] = storage
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gpt.loss(net(batch[0]), batch[1])
    return sum(storage.nbytes() for storage in there.values())

again = nn.Sequential(net[0], *map(Again, list(net)[1:-1]), net[-1])
values = [value.item() for value in (gpt.loss(net(batch[0]), batch[1]),
                                     gpt.loss(again(batch[0]), batch[1]))]
inputs = 4 * 16 * 64 * 64 * 4
print(values[0] == values[1], saved(net), saved(again), inputs)
f"{gpt3.flops_per_token('full') / gpt3.flops_per_token():.3f}"

# %% route
def send_counts(choices, n):
    return [[choice.eq(e).sum().item() for e in range(n)] for choice in choices]

torch.manual_seed(0)
x = [torch.randn(6, 4) for _ in range(2)]
router, two = torch.randn(4, 2), ["gpu0", "gpu1"]
choices = [(part @ router).argmax(1) for part in x]
print(*choices, send_counts(choices, 2), sep="\n")
print(all_to_all(two, sizes=send_counts(choices, 2)))

# %% experts-code
print(d2lps.source(Experts.route), d2lps.source(Experts.forward),
      sep="\n\n")

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-experts
# %%px
import torch
from d2lps import Processes
from d2lps.train.experts import Experts

torch.set_num_threads(1)
carrier = Processes(backend="gloo")
torch.manual_seed(0)
layer = Experts(carrier.names, width=64, experts=4, capacity=4, carrier=carrier)
x = torch.randn(256, 64, generator=torch.Generator().manual_seed(carrier.rank))
(y,) = layer([x])
y.square().sum().backward()
layer.sum_router()
trace = layer.traces[0]

# %% experts-same
torch.manual_seed(0)
layer = Experts([f"rank{r}" for r in range(4)], 64, experts=4, capacity=4)
x = [torch.randn(256, 64, generator=torch.Generator().manual_seed(r))
     for r in range(4)]
y = layer(x)
print(*(torch.equal(y[r], ranks[r]["y"]) for r in range(4)), layer.load)
print([ranks[r]["trace"].bytes_sent(f"rank{r}") for r in range(4)])
ranks.close()

# %% guess-experts
guess = d2lps.predict("experts", {"slowdown": "×", "dropped": "%"})
guess

# %% unbalanced
def routed(share, capacity, tokens=1024):
    layer = Experts(nodes, 64, experts=4, capacity=capacity)
    layer.router.weight.data = torch.eye(4, 64)
    choice = torch.arange(tokens) % 3 + 1
    choice[:int(share * tokens)] = 0
    x = torch.nn.functional.one_hot(choice, 64).float()
    layer([x] * 4)
    return layer

place, rows = nvswitch(4, links=12), []
for share in (0.25, 0.5, 1.0):
    layer, strict = routed(share, capacity=4), routed(share, capacity=1.25)
    plan, total = layer.traces[0].plan, sum(layer.load.tokens)
    most = max(layer.load.tokens) / (total / 4)
    rows.append([f"{share:.0%}", *layer.load.tokens, f"{most:.2f} ×",
                 cost.shared(plan, place, total * 64 * 4),
                 f"{strict.load.dropped / total:.1%}"])
guess.reveal({"slowdown": float(rows[1][5].split()[0]),
              "dropped": float(rows[1][7].rstrip("%"))})

# %% unbalanced-table
table("favorite", *range(4), "slowest-device", "all-to-all-takes", "dropped", rows=rows)

# %% wires
short = {"tensor": "TP", "pipeline": "PP", "data": "DP"}
one, other = Layout(8, 16, 8, 1, 1, 192), Layout(8, 16, 128, 1, 1, 16, stage=1)
runs = {"GPT-3": ("gpt3", "a100", "mixed", one._replace(recompute="full")),
        "Llama 3": ("llama3-405b", "h100", "bf16", other)}
rows = []
for name, (model, gpu, precision, layout) in runs.items():
    by = sent(MODELS[model], layout, precision)
    for dimension in short:
        seconds = [show_seconds(by[dimension] / getattr(GPUS[gpu], wire))
                   for wire in ("inside", "outside")]
        rows.append([name, short[dimension], getattr(layout, dimension),
                     show_size(by[dimension]), *seconds])
table("model", "dimension", "devices", "bytes-sent", "at-inside",
      "at-outside", rows=rows).bars("bytes-sent", label=2, log=True)

# %% seconds
def seconds(model, layout, gpu, e=0.67):
    t, p, m = layout.tensor, layout.pipeline, layout.batches
    tokens = layout.sequences * model.context
    flops = tokens * model.flops_per_token(layout.recompute) / layout.gpus
    by = sent(model, layout)
    computing = flops / (e * gpu.peak)
    matrices = by["tensor"] / (gpu.inside if t <= 8 else gpu.outside)
    stages = by["pipeline"] / gpu.outside
    bubble = (p - 1) / m * (computing + matrices + stages)
    cards = max(1, 8 // (t * p))
    replicas = by["data"] / min(gpu.inside, cards * gpu.outside)
    return {"computing": computing, "tensor": matrices, "pipeline": stages,
            "bubble": bubble, "data": replicas}

# %% some-layouts
a100, rows = GPUS["a100"], []
for t, p, stage in [(1, 1, 1), (1, 1, 3), (8, 1, 3), (8, 4, 1),
                    (8, 16, 1), (1, 32, 1), (32, 4, 1)]:
    d = 1024 // (t * p)
    layout = Layout(t, p, d, 1, 1, 2048 // d, stage, recompute="full")
    parts = seconds(gpt3, layout, a100)
    rows.append([f"{t} · {p} · {d}", f"ZeRO-{stage}",
                 show_size(sum(kept(gpt3, layout).values())),
                 *map(show_seconds, parts.values()), show_seconds(sum(parts.values()))])
causes = ["matrix-work", "by-matrices", "by-stages", "bubble", "by-replicas"]
table("division", "zero-stage", "kept-by-gpu", *causes, "in-all",
      rows=rows).bars(*causes, label=3, end="in-all")

# %% best-of-64
best = parallelize("gpt-39.1b", gpus=64, batch=16, precision="mixed")
second = Layout(8, 4, 2, 1, 1, 8, stage=1, recompute="selective")
for layout in (second, *(layout for layout, _, _ in best.ranked[:2])):
    print(*layout[:3], sep=" · ", end="   ")
    print(f"v = {layout.chunks}", f"micro = {layout.micro}", layout.recompute,
          show_seconds(sum(step(best.model, layout, a100).values())), sep="   ")

# %% published
rows = []
for published in SC21:
    plain = 100 * error(published, crossings=0)[0]
    off = 100 * error(published)[0]
    rows.append([published.name, published.layout.gpus, f"{published.flops / 1e12:.0f}",
                 *(f"{throughput(published, crossings=each) / 1e12:.0f}"
                   for each in (7, 0)),
                 *(f"{round(each, 1) + 0:+.1f}%" for each in (off, plain))])
print(f"e = {calibrate():.3f}, {calibrate(0):.3f}")
for crossings in range(5, 11):
    mean = sum(abs(error(published, crossings)[0]) for published in SC21) / 9
    print(f"{crossings}: {mean:.1%}", end="   " if crossings < 10 else "\n")
speeds = ["published-speed", "predicted", "predicted-without"]
table("model", "gpus", *speeds, "error-percent", "without-reading",
      rows=rows).dots(*speeds, end="error-percent")

# %% more-published
far, rows = spread(gpt3, GPUS["a100"]).far, []
for published in MLSYS23 + MEGATRON:
    low, high = error(published)
    ends = (1 + high) / far - 1, (1 + high) * far - 1
    off, around = ([f"{each:+.1%}" for each in pair] for pair in ((low, high), ends))
    rows.append([published.name, f"{published.flops / 1e12:.0f}", " … ".join(around),
                 " … ".join(dict.fromkeys(off))])
table("model", "published-speed", "speed-interval", "error-percent",
      rows=rows).dots("error-percent", "speed-interval", end="published-speed")

# %% llama
rows = []
for published in LLAMA3[:2]:
    for layout in published.layouts:
        speed = throughput(published._replace(layout=layout))
        rows.append([layout.gpus, layout.chunks,
                     f"{published.flops / 1e12:.0f}", f"{speed / 1e12:.0f}"])
table("gpus", "chunks-per-device", *speeds[:2], rows=rows).dots(*speeds[:2], label=2)

# %% other-sources
by_source = {}
for each in tried():
    by_source.setdefault(each.run.source, []).append(each)
for source, runs in by_source.items():
    middle = median(abs(each.error) for each in runs)
    inside = sum(each.inside for each in runs)
    print(f"{source:18} {middle:5.1%}   {runs[0].far:.2f}   {inside} / {len(runs)}")
print(f"{far:.4f}", sum(each.inside for each in tried()), len(tried()))

# %% choose
start = time.perf_counter()
choice = parallelize("gpt3", gpus=1024, batch=1536)
print(f"{time.perf_counter() - start:.2f} s")
print(show_seconds(choice.duration))
choice

# %% choose-llama
start = time.perf_counter()
choice = parallelize("llama3-405b", gpus=16384, gpu="h100", batch=2048)
print(f"{time.perf_counter() - start:.2f} s")
print(show_seconds(choice.duration))
choice

# %% llama-memory
llama, plain = MODELS["llama3-405b"], LLAMA3[1].layout
fused = plain._replace(fused_swiglu=True)
for layout in (plain, fused):
    print(show_size(sum(kept(llama, layout, precision="bf16").values())))
memory(llama, precision="bf16", **fused._asdict()).table().bars("predicted")

# %% same-recomputation
other = parallelize(llama, gpus=16384, gpu="h100", batch=2048, fused_swiglu=True)
for chosen in (plain._replace(chunks=8), other.layout):
    for recompute in ("full", "none"):
        layout = chosen._replace(recompute=recompute, fused_swiglu=True)
        parts = step(llama, layout, GPUS["h100"], precision="bf16")
        print(*layout[:3], sep=" · ", end="   ")
        print(f"CP {layout.context}", f"v = {layout.chunks}", recompute,
              show_size(sum(kept(llama, layout, "bf16").values())),
              show_seconds(sum(parts.values())), sep="   ")

# %% too-large
try:
    parallelize("gpt3", gpus=8)
except ScalingError as problem:
    print(problem)

# %% real-gpu
folder = Path(d2lps.__file__).parents[1] / "benchmarks" / "measured"
newest = json.loads(max(folder.glob("gpu-*.json")).read_text("utf-8"))
ledgers, speeds, (copies,) = (
    [each for each in newest["figures"] if each["what"].startswith(number)]
    for number in ("P21", "P22", "P23"))
rows = []
for lines, speed in zip(ledgers, speeds):
    shape = re.findall("[0-9]+", lines["what"])[1:]
    depth, h, b = map(int, shape)
    net = Transformer(depth, h, h // 128, 2048, 256, fused=True, dropout=False)
    parts = step(net, Layout(micro=b), GPUS["h200"], precision="pure-bf16")
    took = median(speed["seconds"])
    worst = max((lines[kind] for kind in ("weights", "gradients", "optimizer",
                                          "activations")), key=lambda r: abs(r - 1))
    rows.append([" · ".join(shape), f"{worst:.6f}",
                 f"{(sum(parts.values()) - parts['update']) / took:.3f}",
                 f"{speed['share of the peak']:.0%}"])
_, pageable, pinned, back, both, _ = copies.values()
print(newest["gpu"], f"{pageable / 1e9:.0f} GB/s", f"{pinned / 1e9:.0f} GB/s",
      f"{both * (1 / pinned + 1 / back):.1f} ×", sep="   ")
table("shape", "allocated-by-predicted", "predicted-by-measured", "of-peak", rows=rows)

# %% exercise-choose
def choose(model, gpus, memory, per_node, batch):
    best = None
    # TODO
    return best

d2lps.check_exercise("choose", choose)

# %% exercise-experts
def experts(x, choice, gate, ranks, capacity, exchange, expert):
    y = torch.zeros_like(x)
    # TODO
    return y

d2lps.check_exercise("experts", experts)

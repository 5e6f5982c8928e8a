# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("15")

# %% imports
import json
import math
import re
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
from d2lps.scaling import GPUS, LLAMA3, Transformer
from d2lps.simulate import replayed, streams
from d2lps.train import gpt, pipeline, sharded, tensor
from d2lps.units import show_number, show_seconds, show_size

torch.set_num_threads(1)
folder = Path(d2lps.__file__).parents[1] / "benchmarks" / "measured"
recorded = json.loads(max(folder.glob("step-*.json")).read_text("utf-8"))

def measured(number):
    figures = [each for each in recorded["figures"] if each["what"].startswith(number)]
    return {"-".join(re.findall(r"\w+", each["what"])): each for each in figures}

print(recorded["device"], recorded["date"], recorded["command"], sep="   ")

# %% flops
torch.manual_seed(0)
net, batch = gpt.GPT(layers=4), gpt.examples(gpt.prose("en"), 16)
model, tokens = net.transformer, batch[0].numel()
with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
    gpt.loss(net(batch[0]), batch[1]).backward()
matrices = [w for layer in [*net][1:] for w in layer.parameters() if w.dim() > 1]
weights = sum(w.numel() for w in matrices)
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
    [name, show_number(flops / size), f"{show_number(flops / took / 1e9)} GFLOP/s",
     f"{show_number(size / took / 1e9)} GB/s"]
    for name, (flops, size, took) in points.items()])

# %% roofline
h200, single = GPUS["h200"], measured("P27")
names = ["sum-of-two", "softmax", "layer-norm", "gelu",
         "attention-in-parts", "attention-fused"]
rows = []
names += [f"bfloat16-matrices-n-{2**k}" for k in (9, 11, 13)] + ["float8-matrices-n-8192"]
for name in names:
    found = single[f"P27-{name}"]
    flops, size, took = found["flops"], found["bytes"], found["seconds"]
    roof = min(h200.fp8 if "float8" in name else h200.peak, flops / size * h200.reading)
    speeds = [show_number(each / 1e12) for each in (flops / took, roof)]
    rows.append([name.replace("-matrices-n-", " n = "), show_seconds(took),
                 show_number(flops / size), *speeds, f"{flops / took / roof:.0%}"])
print(f"{h200.peak / h200.reading:.0f}")
table("operation", "takes", "per-byte", "tera", "roof", "of-roof", rows=rows)

# %% roofline-picture
formats = {"float32": "o", "tf32": "s", "bfloat16": "^", "float8": "v"}
xs, ys = [], []
for each in (*formats, ""):
    wanted = f"P27-{each}-matrices" if each else tuple(f"P27-{n}" for n in names[:6])
    points = [point for name, point in single.items() if name.startswith(wanted)]
    xs.append([point["flops"] / point["bytes"] for point in points])
    ys.append([point["flops"] / point["seconds"] / 1e12 for point in points])
x = [2.0**k for k in range(-3, 14)]
roofs = [[min(peak, each * h200.reading) / 1e12 for each in x]
         for peak in (h200.peak, h200.fp8)]
d2l.plot([x, x, *xs], [*roofs, *ys], "flop-per-byte", "tera", xscale="log", yscale="log",
         legend=["roof", "roof-fp8", *formats, "other-operations"], figsize=(6, 4),
         fmts=["k-", "k:", *formats.values(), "x"])

# %% guess-mfu
guess = d2lps.predict("mfu", {"bfloat16": "%", "bfloat16-recomputed": "%"})
guess

# %% mfu
shape = "P26-24-layers-h-2048-b-8-s-1024-"
steps = {name.removeprefix(shape): each
         for name, each in measured("P26 24 layers, h = 2048").items()}
guess.reveal({name: 100 * steps[name]["mfu"] for name in guess.asked})

# %% mfu-table
large = Transformer(layers=24, width=2048, heads=16, context=1024, vocabulary=256,
                    fused=True)
flops, rows = 8 * 1024 * large.flops_per_token(), []
for name, found in steps.items():
    took = median(found["seconds"])
    rows.append([name, show_seconds(took), f"{flops / took / h200.peak:.1%}",
                 f"{found['hfu']:.1%}", show_size(found["most bytes"])])
print(show_number(flops), show_number(found["parameters"]))
table("number-format", "a-step", "mfu", "hfu", "most-memory", rows=rows)

# %% published-mfu
rows = []
for run in LLAMA3[:2]:
    rows.append([run.name, run.layout.gpus, f"{run.flops / 1e12:.0f}",
                 f"{run.flops / GPUS['h100'].peak:.1%}"])
table("model", "gpus", "published-speed", "mfu", rows=rows)

# %% formats
kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
         "float8 e4m3": torch.float8_e4m3fn, "float8 e5m2": torch.float8_e5m2}
rows = []
for name, kind in kinds.items():
    about = torch.finfo(kind)
    numbers = about.max, about.tiny, about.smallest_normal * about.eps
    rows.append([name, about.bits // 8, *(show_number(each, 5) for each in numbers),
                 f"1/{show_number(1 / about.eps, 7)}"])
table("number-format", "bytes-each", "largest", "smallest-full", "smallest",
      "spacing", rows=rows)

# %% sums
ones = torch.full((4096,), 1.0)
for kind in (torch.bfloat16, torch.float16, torch.float32):
    total = torch.zeros((), dtype=kind)
    for one in ones.to(kind):
        total += one
    print(kind, total.item(), ones.to(kind).sum().item(), sep="   ")
weight = torch.tensor(1.0, dtype=torch.bfloat16)
print(weight - 0.001, weight.float() - 0.001)

# %% bytes
parts, rows = ["weights", "gradients", "optimizer"], []
for name in ("mixed", "bf16"):
    ledger = memory(7.5e9, precision=name)
    each = [ledger[part].predicted for part in parts]
    rows.append([name, *(f"{size / 7.5e9:g}" for size in (*each, sum(each)))])
table("number-format", *(f"of-{part}" for part in parts), "in-all", rows=rows)

# %% guess-zeros
guess = d2lps.predict("zeros", {"512": "%", "524 288": "%"})
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
    return (gradients.to(kind).float() == 0).sum().item() / gradients.numel()

torch.manual_seed(0)
small = [part[:8] for part in batch]
g = spread(gpt.GPT(layers=2), small)
guess.reveal({"512": 100 * lost(g, torch.float16),
              "524 288": 100 * lost(g / 1024, torch.float16)})

# %% zeros-table
rows = [[name, *(f"{lost(g * 2.0**k, kind):.1%}" for k in (0, -10, 6))]
        for name, kind in kinds.items()]
print(small[0].numel(), show_number(g.abs().median().item(), 2),
      show_number(g.abs().max().item(), 2))
table("number-format", "as-it-is", "over-1024", "times-64", rows=rows)

# %% scaler
class Scaler:
    def __init__(self, scale=2.0**30, patience=10):
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
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003, eps=1e-12)
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
    "float16-scaled": fit(torch.float16, scaler),
    "float8": fit(change=partial(in_eight_bits, scaled=False)),
    "float8-scaled": fit(change=partial(in_eight_bits, scaled=True)),
    "bfloat16-weights": fit(change=lambda net: net.bfloat16())}
d2l.plot(list(range(30)), list(curves.values()), "step", "loss", legend=[*curves],
         figsize=(6, 4), fmts=["-", "m--", "r:", "c-.", "y:", "k--", "b-."])
print(scaler.skipped, show_number(scaler.scale), sep="   ")
table("number-format", "last-loss", rows=[
    [name, f"{sum(losses[-5:]) / 5:.3f}"] for name, losses in curves.items()])

# %% guess-norm
guess = d2lps.predict("norm", {"16 parts": "", "16 copies": ""})
guess

# %% norms
def new():
    torch.manual_seed(0)
    return gpt.GPT(layers=2)

def norm_of(weights):
    return math.sqrt(sum(w.grad.double().square().sum().item() for w in weights))

nodes, one = ["gpu0", "gpu1"], new()
gpt.loss(one(small[0]), small[1]).backward()
whole = clip_grad_norm_(one.parameters(), 1.0).item()
each = torch.ones(16)
guess.reveal({"16 parts": each.norm().item(), "16 copies": each[:1].norm().item()})

# %% norm-stages
from d2lps.schedule import one_f_one_b, pipeline as lay_out

stages = new().stages(2)
pipeline.run(lay_out(one_f_one_b(2, 2)), stages, small, loss=gpt.loss)
alone = [norm_of(stage.parameters()) for stage in stages]
print(*(f"{each:.4f}" for each in (*alone, math.hypot(*alone))))
print(f"{pipeline.clip(stages, 1.0):.4f} {whole:.4f}")

# %% norm-tensor
group = tensor.Group(nodes)
cut = tensor.cut_gpt(new(), group)
gpt.loss(cut(small[0]), small[1]).backward()
parts = [w for module in cut.modules() if type(module).__name__ == "_Part"
         for w in module.parameters()]
copied = [w for w in cut.parameters() if all(w is not part for part in parts)]
twice = math.hypot(norm_of(parts), math.sqrt(2) * norm_of(copied))
print(len(parts), len(copied), f"{norm_of(parts):.4f} {norm_of(copied):.4f} {twice:.4f}")
print(f"{tensor.clip(cut, group, 1.0):.4f} {whole:.4f}")

# %% norm-zero
for stage in range(4):
    model = sharded.Sharded(new(), nodes, stage, loss=gpt.loss, max_norm=1.0)
    model.step(small)
    print(stage, f"{model.norm:.4f} {whole:.4f}")

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-clip
# %%px
import os

os.environ["TORCH_FR_BUFFER_SIZE"] = "200"
import time
import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_
from d2lps import Processes
from d2lps.train import gpt, tensor

torch.set_num_threads(1)
carrier = Processes(backend="gloo")
group = tensor.Group(carrier.names, carrier)
data = gpt.examples(gpt.prose("en"), 4 * 5)

def sum_of_norms(net):
    own = clip_grad_norm_(net.parameters(), float("inf")).item()
    norm = sum(carrier.all_gather(own))
    for w in net.parameters():
        w.grad *= min(1.0, 0.1 / norm)
    return norm

ways = {"norm-of-all": lambda net: tensor.clip(net, group, 0.1),
        "own-norm": lambda net: clip_grad_norm_(net.parameters(), 0.1).item(),
        "sum-of-norms": sum_of_norms}
losses, norms, copies = {}, {}, {}
for name, clip in ways.items():
    torch.manual_seed(0)
    net, losses[name], norms[name] = tensor.cut_gpt(gpt.GPT(layers=1), group), [], []
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    for i in range(5):
        inputs, labels = (part[4 * i:4 * i + 4] for part in data)
        optimizer.zero_grad()
        loss = gpt.loss(net(inputs), labels)
        loss.backward()
        norms[name].append(clip(net))
        optimizer.step()
        losses[name].append(loss.item())
    copies[name] = torch.cat([w.detach().flatten() for w in net[2].parameters()])

# %% clip-curves
rows = []
for name, curve in ranks[0]["losses"].items():
    apart = max((ranks[0]["copies"][name] - ranks[r]["copies"][name]).abs().max().item()
                for r in range(1, 4))
    rows.append([name, *(f"{ranks[r]['norms'][name][0]:.3f}" for r in (0, 3)),
                 f"{curve[-1]:.4f}", show_number(apart, 2)])
table("way", "norm-of-0", "norm-of-3", "loss", "copies-apart", rows=rows)

# %% guess-ahead
guess = d2lps.predict("ahead", {"H200": "ms"})
guess

# %% layers-seen
def layers_seen(events):
    copies = [each for each in events if each[0].startswith("Memcpy")]
    kernels = [each for each in events if not each[0].startswith("Memcpy")][1:]
    spans = {}
    for letter, each in ("C", copies), ("F", kernels):
        for k in range(6):
            first, last = each[12 * k], each[12 * k + 11]
            spans[f"{letter}{k}"] = first[2], last[2] + last[3]
    return spans

turns, ahead = (layers_seen(measured("P28")[f"P28-{name}"]["events"])
                for name in ("one-by-one", "ahead"))
guess.reveal({"H200": 1e3 * max(end for _, end in ahead.values())})

# %% forward-streams
def forward(places, seconds, layers=6):
    copies, computing = ([f"{kind}{k}" for k in range(layers)] for kind in "CF")
    waits = {f"F{k}": [f"C{k}"] for k in range(layers)}
    waits |= {f"C{k}": [f"F{k - places}"] for k in range(places, layers)}
    return streams({"copies": copies, "computing": computing}, waits, seconds)

seconds = {task: end - start for task, (start, end) in turns.items()}
traces = []
for places, spans in (1, turns), (2, ahead):
    schedule = forward(places, seconds)
    traces += [cost.shared(schedule), replayed(schedule, spans, "H200")]
print(*(show_seconds(sum(seconds[f"{kind}{k}"] for k in range(6))) for kind in "CF"))
print(*(show_seconds(trace.duration) for trace in traces))
watch(*traces, name="streams", names=[
    "alternating", "measured-alternating", "one-ahead", "measured-one-ahead"])

# %% px-overlap
# %%px
import tempfile
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
place = carrier.all_gather(tempfile.mkdtemp())[0]

def mark(name):
    with record_function(name):
        pass

def marked(net):
    for k, layer in enumerate(net):
        def begins(layer, inputs, output, k=k):
            output.register_hook(lambda gradient: mark(f"B{k}"))
        layer.register_forward_hook(begins)
    for w in net[0].parameters():
        w.register_post_accumulate_grad_hook(lambda w: mark("W"))
    return net

def step():
    mark("F")
    gpt.loss(model(inputs), labels).backward()
    mark("U")
    optimizer.step()
    optimizer.zero_grad()
    mark("end")

def profiled(file=None):
    errors = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    if file:
        profiler.export_chrome_trace(file)
    os.dup2(errors, 2)
    return [(event.name, event.time_range.start, event.time_range.end)
            for event in profiler.events()
            if len(event.name) < 4 or event.name.startswith("gloo:")]

if carrier.rank < 2:
    torch.manual_seed(0)
    net = marked(gpt.GPT(layers=4, width=256, heads=4))
    homes = {id(w): k for k, layer in enumerate(net) for w in layer.parameters()}
    model = DistributedDataParallel(net, process_group=pair, bucket_cap_mb=3)
    last, sizes = {}, {}
    def hook(state, bucket):
        last[bucket.index()] = min(homes[id(w)] for w in bucket.parameters())
        sizes[bucket.index()] = bucket.buffer().nbytes
        return allreduce_hook(pair, bucket)
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = gpt.examples(gpt.prose("en"), 1, seed=carrier.rank)
    for _ in range(3):
        step()
    seen = [profiled(f"{place}/rank{carrier.rank}.json") for _ in range(3)]
    with model.no_sync():
        quiet = [profiled() for _ in range(3)]
    alone = {}
    for index, size in sizes.items():
        buffer, taken = torch.zeros(size // 4), []
        for _ in range(5):
            begun = time.perf_counter()
            dist.all_reduce(buffer, group=pair)
            taken.append(time.perf_counter() - begun)
        alone[index] = min(taken)

# %% step-seen
from d2lps.cluster.step import report
from d2lps.profile import compare, read, read_dumps

line, parts, who = report(read(f"{ranks[0]['place']}/rank{r}.json" for r in (0, 1)))
print(line, who, sep="\n")
display(parts)

def spans_of(seen):
    starts = {name: start for name, start, _ in seen if not name.startswith("gloo:")}
    begun, order = starts["F"], sorted(starts, key=starts.get)
    spans = {name: (starts[name] - begun, starts[after] - begun)
             for name, after in zip(order, order[1:]) if name != "W"}
    sent = sorted((start - begun, end - begun) for name, start, end in seen
                  if name.startswith("gloo:"))
    spans |= {f"A{i}": span for i, span in enumerate(sent)}
    return {name: (start / 1e6, end / 1e6) for name, (start, end) in spans.items()}

seen, quiet = ([*map(spans_of, ranks[0][name])] for name in ("seen", "quiet"))
seen = min(seen, key=lambda spans: spans["U"][1])
last, alone = ranks[0]["last"], ranks[0]["alone"]
computing = [name for name in seen if name[0] in "FBU"]
waits = {f"A{i}": [f"B{k}"] for i, k in last.items()} | {"U": [f"A{i}" for i in last]}
seconds = {name: min(each[name][1] - each[name][0] for each in quiet)
           for name in computing}
seconds |= {f"A{i}": each for i, each in alone.items()}
queues = {"computing": computing, "messages": [f"A{i}" for i in last]}
schedule = streams(queues, waits, seconds)
plain = streams(queues, {**waits, "A0": [computing[-2]]}, seconds)
watch(cost.shared(plain), cost.shared(schedule), replayed(schedule, seen, "gloo"),
      names=["turns-messages", "early-messages", "measured"], name="overlap")

# %% px-hang
# %%px
import pickle
import tempfile
from datetime import timedelta
from torch._C._distributed_c10d import _dump_fr_trace

timed = dist.new_group(timeout=timedelta(seconds=3))
log, problem = [], None

def add_up(name, count=1000):
    log.append([name, count, "waits"])
    dist.all_reduce(torch.ones(count), group=timed)
    log[-1][2] = "done"

try:
    for number in range(2):
        for layer in reversed(range(4)):
            if (carrier.rank, number, layer) != (2, 1, 2):
                add_up(f"{number}.g{layer}")
except RuntimeError as error:
    problem = str(error).split("] ", 1)[-1][:50]

# %% hang-seen
for r in range(4):
    print(r, ranks[r]["log"][-1], ranks[r]["problem"])

logs = [ranks[r]["log"] for r in range(4)]
names = [[name for name, *_ in log] for log in logs]
place = next(i for i, row in enumerate(zip(*names)) if len({*row}) > 1)
for r, row in enumerate(names):
    print(r, *row[:place], "|", *row[place:])

# %% px-recorder
# %%px
folder = carrier.all_gather(tempfile.mkdtemp())[0]
dump = pickle.loads(_dump_fr_trace(True, False, False))
dump["entries"] = [
    entry | {"process_group": ("0", ""), "record_id": entry["collective_seq_id"]}
    for entry in dump["entries"] if entry["process_group"][0] == timed.group_name]
dump["pg_config"] = {"0": {"desc": "", "ranks": "[0, 1, 2, 3]"}}
with open(f"{folder}/rank{carrier.rank}", "wb") as file:
    pickle.dump(dump, file)
entries = [{name: entry[name] for name in ("collective_seq_id", "profiling_name",
            "input_sizes", "state")} for entry in dump["entries"]]

# %% recorder
for r in range(4):
    print(r, ranks[r]["entries"][-1])

import subprocess
import sys

command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace",
           ranks[0]["folder"], "--prefix", "rank"]
done = subprocess.run(command, capture_output=True, text=True)
print(*(line for line in done.stderr.splitlines()
        if ": " in line and ".py:" not in line), sep="\n")
print(*compare(read_dumps([ranks[0]["folder"]])), sep="\n")

# %% px-save
# %%px
import torch.distributed.checkpoint as dcp
from hashlib import sha256
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

four, two = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [0, 1])

def made(seed, mesh):
    torch.manual_seed(seed)
    net = gpt.GPT(layers=2)
    for layer in [*net, net]:
        fully_shard(layer, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=0.003)

def state_of(net, optimizer):
    net_state, optimizer_state = get_state_dict(net, optimizer)
    return {"net": net_state, "optimizer": optimizer_state}

def trained(net, optimizer, batches):
    losses = []
    for number in batches:
        inputs, labels = (part[8 * number:8 * number + 8] for part in data)
        loss = gpt.loss(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def digest(state):
    found = sha256()
    for kind in (state["net"], state["optimizer"]["state"]):
        for name, value in sorted(kind.items()):
            tensors = value.values() if isinstance(value, dict) else [value]
            for tensor in tensors:
                whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                found.update(whole.numpy().tobytes())
    return found.hexdigest()[:16]

data = gpt.examples(gpt.prose("en"), 8 * 6)
net, optimizer = made(0, four)
trained(net, optimizer, range(3))
state, checkpoint = state_of(net, optimizer), f"{folder}/checkpoint"
dcp.save(state, checkpoint_id=checkpoint)
before, after = digest(state), trained(net, optimizer, range(3, 6))
local = sum(w.to_local().numel() for w in net.parameters())

# %% files
checkpoint = ranks[0]["checkpoint"]
before, after = ranks[0]["before"], ranks[0]["after"]
local = [ranks[r]["local"] for r in range(4)]
for file in sorted(Path(checkpoint).iterdir()):
    print(file.name, show_size(file.stat().st_size))

from torch.distributed import checkpoint as dcp

about = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
name = "net.1.perceptron.up.weight"
print(len(about), [(*chunk.offsets, *chunk.sizes) for chunk in about[name].chunks])
count = sum(w.numel() for w in gpt.GPT(layers=2).parameters())
held = sum(math.prod(each.size) * 4 for each in about.values() if hasattr(each, "size"))
print(local, count, held / count)

# %% px-load
# %%px
if carrier.rank < 2:
    net, optimizer = made(1, two)
    state = state_of(net, optimizer)
    dcp.load(state, checkpoint_id=checkpoint, process_group=two.get_group())
    set_state_dict(net, optimizer, model_state_dict=state["net"],
                   optim_state_dict=state["optimizer"])
    loaded = digest(state_of(net, optimizer))
    goes_on = trained(net, optimizer, range(3, 6))
    smaller = sum(w.to_local().numel() for w in net.parameters())

# %% loaded
print(before, *(ranks[r]["loaded"] for r in range(2)))
print(*(ranks[r]["smaller"] for r in range(2)))
print(after, ranks[0]["goes_on"], sep="\n")

# %% load-alone
import warnings
from torch.distributed.checkpoint.state_dict import get_state_dict

warnings.simplefilter("ignore")
net = gpt.GPT(layers=2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
state = dict(zip(("net", "optimizer"), get_state_dict(net, optimizer)))
dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
net.load_state_dict(state["net"])
inputs, labels = (part[24:32] for part in gpt.examples(gpt.prose("en"), 48))
print(f"{gpt.loss(net(inputs), labels).item():.4f} {ranks[0]['after'][0]:.4f}")
ranks.close()

# %% exercise-mfu
def mfu(layers, width, vocabulary, context, tokens, seconds, gpus, peak, again):
    model = hardware = 0
    # TODO
    return model, hardware

d2lps.check_exercise("mfu", mfu)

# %% exercise-global-norm
def global_norm(gradients, copies, sum_tensor, sum_stages):
    norm = 0.0
    # TODO
    return norm

d2lps.check_exercise("global-norm", global_norm)

# %% exercise-who-hangs
def who_hangs(logs):
    rank, place, kind = None, None, None
    # TODO
    return rank, place, kind

d2lps.check_exercise("who-hangs", who_hangs)

# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("14")

# %% imports
from dataclasses import replace
from functools import reduce
from itertools import permutations

import torch
from torch.nn.functional import scaled_dot_product_attention, softmax

from d2lps import Reduction, Topology, cluster, cost, d2l, memory, nvswitch
from d2lps import parallelize, ring, run, table, tree, watch
from d2lps.scaling import GPUS, LLAMA3, MODELS, sent, throughput
from d2lps.schedule import ScheduleError, attention, seen_pairs, token_places
from d2lps.train import context, gpt
from d2lps.units import show_error, show_seconds, show_size

torch.set_num_threads(1)
nodes = ["gpu0", "gpu1", "gpu2", "gpu3"]
WAYS = {"gather": "gather keys", "ring": "ring", "heads": "heads"}

# %% guess-share
guess = d2lps.predict("share", {"s = 131072": "%"})
guess

# %% share
llama = MODELS["llama3-405b"]

def share(s):
    scores = 6 * llama.layers * llama.width * s
    return scores / replace(llama, context=s).flops_per_token()

guess.reveal({"s = 131072": 100 * share(131072)})

# %% growth
rows = []
for s in (8192, 32768, 131072, 1048576):
    saved = llama.layers * sum(llama.activations(tokens=s).values())
    keys_values = 2 * 2 * s * llama.keys
    rows.append([s, show_size(saved), show_size(keys_values), f"{share(s):.0%}"])
table("tokens", "activations", "keys-values", "scores-share", rows=rows)

# %% token-by-token
torch.manual_seed(0)
block, x = gpt.Block(width=64, heads=4), torch.randn(1, 64, 64)
for name, module in block.named_children():
    parts = torch.cat([module(part) for part in x.chunk(4, 1)], 1)
    print(name, torch.allclose(parts, module(x), atol=1e-5))

# %% mean-of-parts
torch.manual_seed(0)
q, k, v = torch.randn(3, 64, 6, dtype=torch.float64)
blocks = list(zip(k.chunk(4), v.chunk(4)))

def attend(q, k, v):
    return softmax(q @ k.T / 6**0.5, -1) @ v

whole = attend(q, k, v)
mean = sum(attend(q, *block) for block in blocks) / 4
float((mean - whole).abs().max() / whole.abs().max())

# %% three-numbers
def part(q, k, v):
    scores = q @ k.T / 6**0.5
    m = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - m)
    return torch.cat([m, weights.sum(-1, keepdim=True), weights @ v], -1)

def merge(one, other):
    m = torch.maximum(one[:, :1], other[:, :1])
    sums = [torch.exp(each[:, :1] - m) * each[:, 1:] for each in (one, other)]
    return torch.cat([m, sums[0] + sums[1]], -1)

def output(joined):
    return joined[:, 2:] / joined[:, 1:2]

joined = reduce(merge, [part(q, *block) for block in blocks])
show_error(float((output(joined) - whole).abs().max() / whole.abs().max()), 1e-12)

# %% orders
rows = []
for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
    parts = [part(*(x.to(dtype) for x in (q, *block))) for block in blocks]
    outputs = [output(reduce(merge, order)) for order in permutations(parts)]
    bits = {each.numpy().tobytes() for each in outputs}
    off = max(float((each - whole).abs().max() / whole.abs().max()) for each in outputs)
    rows.append([str(dtype).removeprefix("torch."), len(outputs), len(bits),
                 show_error(off, bound)])
table("precision", "merge-orders", "other-outputs", "largest-off", rows=rows)

# %% reduction
def combine(own, arrived):
    one, other = own.view(-1, 8), arrived.view(-1, 8)
    joined = torch.where(one[:, :1].isinf(), other, merge(one, other))
    return torch.where(other[:, :1].isinf(), one, joined).flatten()

soft = Reduction("softmax", combine, identity=float("-inf"))
for plan in (ring(nodes), tree(nodes)):
    buffers = {node: part(q, *block).flatten() for node, block in zip(nodes, blocks)}
    run(plan, buffers, reduce=soft)
    outputs = [output(buffer.view(-1, 8)) for buffer in buffers.values()]
    print(len(plan.steps), *(torch.equal(each, outputs[0]) for each in outputs),
          show_error(float((outputs[0] - whole).abs().max()), 1e-12))

# %% hand-gather
torch.manual_seed(0)
tensors = torch.randn(3, 4, 32, 8, dtype=torch.float64)
right = scaled_dot_product_attention(*tensors)
mine = [[x.chunk(4, 1)[i] for x in tensors] for i in range(4)]

def off(outputs):
    return show_error(float((torch.cat(outputs, 1) - right).abs().max()), 1e-12)

def by_gathering(i):
    keys, values = (torch.cat([parts[x] for parts in mine], 1) for x in (1, 2))
    return scaled_dot_product_attention(mine[i][0], keys, values)

off([by_gathering(i) for i in range(4)])

# %% hand-ring
def around(n=4):
    at, done = [parts[1:] for parts in mine], [None] * n
    seen = torch.ones(8, 8, dtype=torch.bool)
    for step in range(n):
        for i in range(n):
            made = context.part(mine[i][0], *at[i], seen)
            done[i] = context.merge(done[i], made) if step else made
        at = [at[i - 1] for i in range(n)]
    return [context.output(each) for each in done]

off(around())

# %% hand-heads
def by_heads(n=4):
    outputs = []
    for j in range(n):
        whole = [torch.cat([parts[x].chunk(n)[j] for parts in mine], 1)
                 for x in range(3)]
        outputs.append(scaled_dot_product_attention(*whole).chunk(n, 1))
    return [torch.cat([each[i] for each in outputs]) for i in range(n)]

off(by_heads())

# %% columns
for way in WAYS:
    column = attention(nodes, way, tokens=32, heads=4, size=8).column("gpu0")
    print(way, *column, sep="   ")

# %% guess-bytes
guess = d2lps.predict("heads", {"n = 4": "×", "n = 8": "×"})
guess

# %% gradients-code
print(d2lps.source(context.gradients))

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-data
# %%px
import torch
from torch.nn.functional import scaled_dot_product_attention
from d2lps import Processes
from d2lps.schedule import token_places
from d2lps.train import context

torch.set_num_threads(1)
carrier = Processes(backend="gloo")
own = slice(64 * carrier.rank, 64 * (carrier.rank + 1))

def problem(dtype, heads=8, tokens=256, size=16):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(4, heads, tokens, size, dtype=dtype, generator=draw)

def alone(q, k, v, do):
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    o = scaled_dot_product_attention(q, k, v, is_causal=True)
    o.backward(do)
    return {"o": o.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}

# %% px-ways
# %%px
off, traces = {}, {}
for bits, dtype in (("32", torch.float32), ("64", torch.float64)):
    tensors = problem(dtype)
    right = alone(*tensors)
    for way in ("gather", "ring", "heads"):
        results, traces[way] = context.attend(carrier.names, way, *tensors,
                                              carrier=carrier)
        for name, made in results[carrier.names[carrier.rank]].items():
            wrong = (made - right[name][:, own]).abs().max()
            off[f"{way} {name} {bits}"] = float(wrong / right[name].abs().max())

# %% ways-bytes
def forward_bytes(way, n=4, heads=8, groups=8, tokens=256, size=16, itemsize=8):
    keys_values, queries = (x * tokens * size * itemsize for x in (2 * groups, heads))
    moved = (keys_values + 2 * queries) / n if way == "heads" else keys_values
    return (n - 1) / n * moved

guess.reveal({f"n = {n}": forward_bytes("heads", n) / forward_bytes("ring", n)
              for n in (4, 8)})

# %% ways-table
found, traces = [ranks[r]["off"] for r in range(4)], ranks[0]["traces"]

def worst(way, names, bits):
    return max(off[f"{way} {name} {bits}"] for off in found for name in names)

rows, passes = [], {"gather": 3, "ring": 3, "heads": 2}
for way, name in WAYS.items():
    formula = round(passes[way] * forward_bytes(way))
    wrong = [show_error(worst(way, names, bits), bound)
             for bits, bound in ((64, 1e-12), (32, 1e-5))
             for names in (["o"], ["dq", "dk", "dv"])]
    rows.append([name, traces[way].bytes_sent("rank0"), formula, *wrong])
table("way", "bytes-sent", "formula-bytes", "output-64", "gradient-64",
      "output-32", "gradient-32", rows=rows)

# %% ways-watch
watch(traces["ring"], name="ring")

# %% limits
def limit(way, n, tokens=131072):
    try:
        made = attention([f"gpu{i}" for i in range(n)], way, tokens, heads=128,
                         groups=8, size=128, itemsize=2)
    except ScheduleError:
        return ["–", "–"]
    sent = sum(made.size(act.key) for act in made.column("gpu0")
               if hasattr(act, "src"))
    return [show_size(sent), show_size(made.peak["gpu0"])]

table("way", *(f"{what}-{n}" for n in (8, 16) for what in ("sent", "peak")),
      rows=[[name, *limit(way, 8), *limit(way, 16)] for way, name in WAYS.items()])

# %% px-torch
# %%px
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

dist.init_process_group("gloo")
tensors = problem(torch.float32)
right, (q, k, v, do) = alone(*tensors), tensors[:, None]
buffers = [x.clone() for x in (q, k, v)]
with context_parallel(init_device_mesh("cpu", (4,)), buffers=buffers,
                      buffer_seq_dims=[2, 2, 2]):
    shape = tuple(scaled_dot_product_attention(*buffers, is_causal=True).shape)
    try:
        torch.nn.functional.scaled_dot_product_attention(*buffers, is_causal=True)
    except NotImplementedError as error:
        refused = str(error)

# %% torch-refuses
print(ranks[0]["shape"], ranks[0]["refused"])

# %% px-torch-ring
# %%px
from torch.distributed.tensor.experimental._context_parallel import _attention as cp

group, aten, theirs = dist.group.WORLD, torch.ops.aten, {}
forward = aten._scaled_dot_product_flash_attention_for_cpu.default
backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
for zigzag in (False, True):
    cp._cp_options.enable_load_balance = zigzag
    ranges = token_places(256, 4, zigzag)[carrier.rank]
    place = torch.cat([torch.arange(each.start, each.stop) for each in ranges])
    here = [x[:, :, place].contiguous() for x in (q, k, v, do)]
    o, log_sum = cp._templated_ring_attention(
        group, 2, forward, *here[:3], is_causal=True)[:2]
    made = o, *cp._templated_ring_attention_backward(
        group, 2, backward, here[3], "grad_out", *here[:3], o, log_sum,
        is_causal=True, dropout_p=0.0)
    for name, mine in zip(("o", "dq", "dk", "dv"), made):
        wrong = (mine[0] - right[name][:, place]).abs().max()
        theirs[f"{name} {zigzag}"] = float(wrong / right[name].abs().max())

# %% torch-ring
found = [ranks[r]["theirs"] for r in range(4)]
for zigzag in (False, True):
    wrong = [max(each[f"{name} {zigzag}"] for each in found)
             for name in ("o", "dq", "dk", "dv")]
    print(*map(show_error, wrong))
ranks.close()

# %% guess-causal
guess = d2lps.predict("causal", {"busy": "%", "slowdown": "×"})
guess

# %% causal
def on_gpus(way, n=4, tokens=32768, rate="60 GB/s", flops=400e12, **options):
    plain = nvswitch(n, rate, links=1)
    gpus = [f"gpu{i}" for i in range(n)]
    place = Topology(plain.name, plain.kinds, plain.links,
                     computing=dict.fromkeys(gpus, flops))
    options = {"heads": 16, "size": 128, "itemsize": 2} | options
    return cost.shared(attention(gpus, way, tokens, **options), place)

def busy(trace, gpu="gpu0"):
    tasks = [each for each in trace.events if each.kind == "task"]
    return sum(each.end - each.start for each in tasks if each.src == gpu)

plain, better = (on_gpus("ring", 16, rate="6 TB/s", zigzag=zigzag)
                 for zigzag in (False, True))
guess.reveal({"busy": 100 * busy(plain) / plain.duration,
              "slowdown": plain.duration / better.duration})

# %% pairs-table
rows = []
for name, zigzag in (("contiguous", False), ("zigzag", True)):
    places = token_places(1024, 4, zigzag)
    everywhere = [part for place in places for part in place]
    pairs = [seen_pairs(place, everywhere) for place in places]
    rows.append([name, *(f"{count / sum(pairs):.2%}" for count in pairs)])
table("part-of-pairs", *range(4), rows=rows)

# %% zigzag-watch
watch(on_gpus("ring"), on_gpus("ring", zigzag=True),
      names=["contiguous", "zigzag"], name="zigzag")

# %% guess-hide
guess = d2lps.predict("hide", {"tokens": ""})
guess

# %% hide
def least(flops, rate, heads, groups, itemsize=2, causal=True):
    return (2 if causal else 1) * groups / heads * itemsize * flops / (2 * rate)

h100 = GPUS["h100"]
computing = 0.59 * h100.peak
guess.reveal({"tokens": least(computing, h100.outside, 16, 16)})

# %% hide-table
rows = []
for groups in (128, 8):
    for wire in ("inside", "outside"):
        rate = getattr(h100, wire)
        rows.append([f"128 / {groups}", f"{rate / 1e9:.0f} GB/s",
                     round(least(computing, rate, 128, groups))])
print(*(round(least(400e12, 60e9, 16, 16, causal=causal))
        for causal in (False, True)))
table("heads-groups", "bandwidth", "least-tokens", rows=rows)

# %% hide-plot
parts = [1024 * 2**i for i in range(7)]

def slowdown(groups, rate, n=8):
    for each in parts:
        trace = on_gpus("ring", n, each * n, rate, computing, heads=128,
                        groups=groups, zigzag=True)
        yield trace.duration / busy(trace)

wires = {"128 / 128, 50 GB/s": (128, "50 GB/s"),
         "128 / 128, 450 GB/s": (128, "450 GB/s"),
         "128 / 8, 50 GB/s": (8, "50 GB/s")}
d2l.plot(parts, [list(slowdown(*wire)) for wire in wires.values()], "s / n",
         "slowdown", legend=list(wires), xscale="log", yscale="log",
         fmts=["-", "m--", "g-."], figsize=(6, 3))

# %% ring-of-two
try:
    two = cluster.emulated(hosts=2, bandwidth="200 Mbit/s")
except cluster.ClusterError as error:
    two = None
    print(error)

def ring_of_two(lengths, width=64):
    import time
    import torch
    import torch.distributed as dist
    from d2lps.train.context import merge, part

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    other = 1 - dist.get_rank()

    def step(length, sends, computes):
        q, *mine = torch.randn(3, 1, length, width)
        theirs = [torch.empty_like(x) for x in mine]
        seen = torch.ones(length, length, dtype=torch.bool)
        dist.barrier()
        start = time.perf_counter()
        under_way = [dist.irecv(x, other) for x in theirs] if sends else []
        under_way += [dist.isend(x, other) for x in mine] if sends else []
        done = part(q, *mine, seen) if computes else None
        for message in under_way:
            message.wait()
        if sends and computes:
            merge(done, part(q, *theirs, seen))
        return time.perf_counter() - start

    kinds = {"block": (0, 1), "message": (1, 0), "ring": (1, 1)}
    return {(length, kind): min(step(length, *what) for _ in range(5))
            for length in lengths for kind, what in kinds.items()}

# %% overlap-table
def overlap_rows():
    lengths = (256, 512, 1024, 2048)
    took = two.run(ring_of_two, lengths)[0]
    two.close()
    for length in lengths:
        block, message, both = (took[length, kind]
                                for kind in ("block", "message", "ring"))
        predicted = max(block, message) + block
        yield [length, *map(show_seconds, (block, message, predicted, both)),
               f"{both / (2 * block):.2f}"]

table("tokens", "block-takes", "message-takes", "predicted", "measured",
      "by-computing", rows=overlap_rows() if two else [])

# %% ledger
long = LLAMA3[2]
rows = []
for context_gpus, data, batches in ((1, 128, 1), (1, 128, 16), (16, 8, 16)):
    layout = long.layout._replace(context=context_gpus, data=data, batches=batches)
    kept = memory(long.model, **layout._asdict())
    saved = sum(kept[kind].predicted
                for kind in ("normalization", "attention", "perceptron"))
    speed = throughput(long._replace(layout=layout))
    rows.append([context_gpus, data, batches, show_size(saved),
                 show_size(kept.predicted), f"{speed / 1e12:.0f}"])
table("context-gpus", "replica-count", "micro-batches", "activations", "in-all",
      "tera", rows=rows)

# %% sent
by = sent(long.model, long.layout)
short = {"tensor": "TP", "context": "CP", "pipeline": "PP", "data": "DP"}
table("dimension", "devices", "bytes-sent", "at-inside", "at-outside", rows=[
    [short[name], getattr(long.layout, name), show_size(by[name]),
     show_seconds(by[name] / h100.inside), show_seconds(by[name] / h100.outside)]
    for name in short])

# %% speed
rows = []
for layout in long.layouts:
    speed = throughput(long._replace(layout=layout))
    rows.append([layout.chunks, f"{long.flops / 1e12:.0f}", f"{speed / 1e12:.0f}"])
table("chunks-per-device", "published-speed", "predicted", rows=rows)

# %% choose
choice = parallelize(long.model, gpus=16384, gpu="h100", batch=128)
choice

# %% exercise-merge
def merge(parts):
    o, log_sum = parts[0]
    # TODO
    return o, log_sum

d2lps.check_exercise("merge", merge)

# %% exercise-zigzag
def zigzag(n, blocks):
    devices = [[] for _ in range(n)]
    # TODO
    return devices

d2lps.check_exercise("zigzag", zigzag)

# %% exercise-which-way
def which_way(tokens, n, heads, groups, size, itemsize):
    ways = {}
    # TODO
    return ways

d2lps.check_exercise("which-way", which_way)

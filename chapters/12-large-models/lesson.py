# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("12")

# %% imports
import torch
from torch import nn

from d2lps import all_gather, cost, d2l, memory, reduce_scatter, ring, run, table
from d2lps.plan import slices
from d2lps.schedule import one_f_one_b, pipeline, zero
from d2lps.train import gpt, sharded, tensor
from d2lps.train.flat import Layer, allocate, counts_of, free
from d2lps.units import show_error, show_size

torch.set_num_threads(1)

# %% guess-state
guess = d2lps.predict("zero-state", {
    "ZeRO-1": "GB", "ZeRO-2": "GB", "ZeRO-3": "GB"})
guess

# %% state
ledgers = {f"ZeRO-{stage}": memory(7.5e9, data=64, stage=stage)
           for stage in range(4)}
guess.reveal({name: ledgers[name].predicted / 1e9 for name in guess.asked})

# %% state-table
kinds = ["weights", "gradients", "optimizer"]
table("zero-stage", *(f"of-{kind}" for kind in kinds), "in-all", rows=[
    [name, *(show_size(ledger[kind].predicted) for kind in kinds),
     show_size(ledger.predicted)] for name, ledger in ledgers.items()])

# %% by-hand
def two_halves(parts, nodes, update):
    plan = all_gather(nodes)
    key, cut = dict(plan.holds), slices(plan.share, len(parts[nodes[0]]))
    run(reduce_scatter(nodes), parts)
    for node in nodes:
        own = cut[key[node]]
        parts[node][own] = update(parts[node][own])
    run(plan, parts)

def gradients(nodes, count=1000):
    draw = torch.Generator().manual_seed(0)
    return {node: torch.randn(count, generator=draw) for node in nodes}

nodes = ["gpu0", "gpu1", "gpu2", "gpu3"]
whole, halves = gradients(nodes), gradients(nodes)
run(ring(nodes), whole)
two_halves(halves, nodes, lambda gradient: -0.1 * gradient)
all(torch.equal(-0.1 * whole[node], halves[node]) for node in nodes)

# %% guess-bytes
guess = d2lps.predict("zero-bytes", {"ZeRO-1": "×", "ZeRO-2": "×", "ZeRO-3": "×"})
guess

# %% acts
def acts(stage):
    for act in zero(["gpu0", "gpu1"], [6, 6], stage).acts:
        if getattr(act, "node", "gpu0") == "gpu0":
            label = str(act).replace("gpu0,gpu1 ", "").replace("gpu0 ", "")
            freed = getattr(act, "frees", ()) is True and act.value[0] == "g"
            yield f"{label}−{act.value}" if freed else label

for stage in range(4):
    print(stage, *acts(stage), sep="  ")

# %% layer-code
for part in (free, allocate, Layer.begin_gather, Layer.end_reduce,
             sharded.Sharded._collect):
    print(d2lps.source(part), end="\n\n")

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-tools
# %%px
from collections import Counter
from functools import partial
import torch
from d2lps import Processes
from d2lps.train import batches as in_turn, deterministic, gpt, sharded

torch.set_num_threads(1)
carrier, SIZE, STEPS = Processes(backend="gloo"), 16, 12
adamw = partial(torch.optim.AdamW, lr=0.01)
data = gpt.examples(gpt.prose("en"), SIZE * STEPS)
batches = list(in_turn(data, SIZE, STEPS))
losses, bytes_sent, states, activations = {}, {}, {}, {}

def new():
    torch.manual_seed(0)
    return gpt.GPT(layers=4)

def sent(trace, rank):
    return trace.bytes_sent(trace.plan.nodes[rank])

def fit(name, net, step):
    optimizer, losses[name] = adamw(net.parameters()), []
    for batch in batches:
        optimizer.zero_grad()
        loss, bytes_sent[name] = step(batch)
        optimizer.step()
        losses[name].append(loss)
    weights = [*net.parameters()]
    kinds = {"w": weights, "g": [w.grad for w in weights],
             "s": [s for w in weights
                   for s in optimizer.state[w].values() if s.dim()]}
    states[name] = {kind: sum(tensor.nbytes for tensor in tensors)
                    for kind, tensors in kinds.items()}

def saved(net, inputs):
    own, storages = {w.data_ptr() for w in net.parameters()}, {}
    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(inputs)
    return sum(storage.nbytes() for storage in storages.values())

def alone(batch):
    loss = gpt.loss(net(batch[0]), batch[1])
    loss.backward()
    return loss.item(), 0

net = new()
activations["n = 1"] = saved(net, data[0][:SIZE])
fit("n = 1", net, alone)

# %% px-zero
# %%px
def at_peak(schedule, node):
    now, most = Counter(), Counter()
    for _, name, comes in schedule.lives(node):
        now[name[0]] += schedule.size(name) if comes else -schedule.size(name)
        most = now.copy() if now.total() > most.total() else most
    return {kind: most[kind] for kind in "wgs"}

final, peaks = [], []
for stage in range(4):
    name = f"ZeRO-{stage}" if stage else "DP"
    model = sharded.Sharded(new(), carrier.names, stage, adamw, gpt.loss, carrier)
    losses[name] = []
    for batch in batches:
        parts = carrier.all_gather(sum(model.step(batch).values()))
        losses[name].append(sum(parts))
    bytes_sent[name] = sent(model.trace(), carrier.rank)
    states[name] = at_peak(model.schedule, f"rank{carrier.rank}")
    activations[name] = saved(new(), data[0][:SIZE // 4])
    peaks.append(model.own[f"rank{carrier.rank}"].peak)
    final.append(model.weights())
same = [torch.equal(weights, final[0]) for weights in final]

# %% same-bits
print(ranks[0]["same"], ranks[3]["same"])
kinds = [ranks[0]["states"][name] for name in ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3")]
print(ranks[0]["peaks"] == [sum(each.values()) for each in kinds])
psi = 4 * sum(counts_of(gpt.GPT(layers=4)))
sent_by = ranks[0]["bytes_sent"]
guess.reveal({name: sent_by[name] / sent_by["DP"] for name in guess.asked})

# %% px-tensor
# %%px
from d2lps.train import tensor

group = tensor.Group(carrier.names, carrier)
cut = tensor.cut_gpt(new(), group)

def by_tensors(batch):
    group.traces.clear()
    loss = gpt.loss(cut(batch[0]), batch[1])
    loss.backward()
    return loss.item(), sum(sent(trace, carrier.rank) for trace in group.traces)

activations["TP"] = saved(cut, data[0][:SIZE])
with deterministic():
    fit("TP", cut, by_tensors)

# %% px-pipeline
# %%px
from d2lps.schedule import one_f_one_b, pipeline
from d2lps.train.pipeline import run

stages = new().stages(4)
own = stages[carrier.rank]

def by_stages(batch):
    schedule = pipeline(one_f_one_b(4, 4))
    loss, trace = run(schedule, {carrier.rank: own}, batch, carrier, gpt.loss)
    return carrier.all_gather(loss)[3], sent(trace, carrier.rank)

activations["PP"] = 4 * saved(stages[0], data[0][:SIZE // 4])
fit("PP", own, by_stages)

# %% px-hybrid
# %%px
from torch.distributed import PrefixStore
from d2lps import ring, run as run_plan

replica, stage = divmod(carrier.rank, 2)

def pair(name, rank):
    store = PrefixStore(name, carrier.store)
    return Processes(backend="gloo", store=store, rank=rank, size=2)

row, column = pair(f"row{replica}", stage), pair(f"column{stage}", replica)
stages = new().stages(2)
mine = stages[stage]

def by_both(batch):
    half = [part.chunk(2)[replica] for part in batch]
    schedule = pipeline(one_f_one_b(2, 2))
    loss, trace = run(schedule, {stage: mine}, half, row, gpt.loss)
    weights = [*mine.parameters()]
    total = torch.cat([w.grad.flatten() for w in weights]) / 2
    sums = run_plan(ring(column.names), total, column)
    for w, part in zip(weights, total.split([w.numel() for w in weights])):
        w.grad = part.view_as(w)
    parts = carrier.all_gather(loss)
    return (parts[1] + parts[3]) / 2, sent(trace, stage) + sent(sums, replica)

activations["PP × DP"] = 2 * saved(stages[0], data[0][:SIZE // 4])
fit("PP × DP", mine, by_both)

# %% ways
names = ["n = 1", "DP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "TP", "PP", "PP × DP"]
losses = {name: ranks[0]["losses"][name] for name in names}
d2l.plot(list(range(12)), list(losses.values()), "step", "loss",
         legend=names, figsize=(6, 4),
         fmts=["-", "m--", "g-.", "r:", "c-", "y--", "k-.", "b:"])

def formulas(n=4, x=16 * 64 * 64 * 4):
    part, ring_of_n = (n - 1) / n * psi, 2 * (n - 1) / n
    last = 4 * counts_of(gpt.GPT(layers=4))[-1]
    half = 4 * sum(w.numel() for w in gpt.GPT(layers=4).stages(2)[0].parameters())
    return {"n = 1": 0, "DP": 2 * part, "ZeRO-1": 2 * part, "ZeRO-2": 2 * part,
            "ZeRO-3": 3 * part - (n - 1) / n * last, "TP": 4 * 4 * ring_of_n * x,
            "PP": x, "PP × DP": x / 2 + half}

one, sent_by = losses["n = 1"], ranks[0]["bytes_sent"]
idle = {"PP": cost.shared(pipeline(one_f_one_b(4, 4))).bubble(),
        "PP × DP": cost.shared(pipeline(one_f_one_b(2, 2))).bubble()}
rows = []
for name, formula in formulas().items():
    off = max(abs(a / b - 1) for a, b in zip(losses[name], one))
    rows.append([name, show_error(off), sent_by[name], round(formula),
                 f"{idle.get(name, 0):.1%}"])
table("way", "loss-off", "bytes-sent", "formula-bytes", "of-total", rows=rows)

# %% kinds
def most(table, name):
    return max((ranks[rank][table][name] for rank in range(4)),
               key=lambda kinds: sum(kinds.values()))

rows = []
for name in names:
    kinds = most("states", name)
    saved = max(ranks[rank]["activations"][name] for rank in range(4))
    rows.append([name, *(show_size(kinds[kind]) for kind in "wgs"),
                 show_size(sum(kinds.values())), show_size(saved)])
table("way", "of-weights", "of-gradients", "of-optimizer", "at-peak",
      "activations", rows=rows)

# %% px-torch-sharded
# %%px
from pathlib import Path
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
line, rank = init_device_mesh("cpu", (4,)), carrier.rank
theirs, one = {}, new()
gpt.loss(one(batches[0][0]), batches[0][1]).backward()

def written():
    file = Path("/proc/self/io")
    if file.exists():
        return int(file.read_text().split("wchar: ")[1].split()[0])

def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

def off(module, right):
    return max(float((whole(w.grad) - g.grad).abs().max() / g.grad.abs().max())
               for w, g in zip(module.parameters(), right))

def by_torch(name, module, step, right, optimizer=None):
    optimizer, found, gradient = optimizer or adamw(module.parameters()), [], None
    for number, batch in enumerate(batches[:4]):
        before = written()
        optimizer.zero_grad()
        loss = step(batch)
        gradient = off(module, right) if number == 0 else gradient
        before = written() if number == 0 else before
        optimizer.step()
        sent = before and written() - before
        found.append(sum(x for x in carrier.all_gather(loss) if x is not None))
    theirs[name] = found, gradient, sent

def on_part(module):
    def step(batch):
        X, y = [part.chunk(4)[rank] for part in batch]
        loss = gpt.loss(module(X), y)
        loss.backward()
        return loss.item() / 4
    return step

model = DistributedDataParallel(new())
share_states = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
by_torch("ZeRO-1", model, on_part(model), one.parameters(), share_states)
for name, reshard in [("ZeRO-2", False), ("ZeRO-3", True)]:
    model = new()
    for layer in model:
        fully_shard(layer, mesh=line, reshard_after_forward=reshard)
    fully_shard(model, mesh=line, reshard_after_forward=reshard)
    by_torch(name, model, on_part(model), one.parameters())

# %% px-torch-cut
# %%px
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module)

columns, rows = ColwiseParallel(), RowwiseParallel()
plan = {"attention": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "attention.query": columns, "attention.key": columns,
        "attention.value": columns, "attention.out": rows,
        "perceptron.up": columns, "perceptron.down": rows}
model = new()
for block in list(model)[1:-1]:
    parallelize_module(block, line, plan)

def on_all(batch):
    loss = gpt.loss(model(batch[0]), batch[1])
    loss.backward()
    return loss.item() / 4

by_torch("TP", model, on_all, one.parameters())

own = new().stages(4)[rank]
place = PipelineStage(own, rank, 4, torch.device("cpu"))
schedule = Schedule1F1B(place, n_microbatches=4, loss_fn=gpt.loss)

def in_stages(batch):
    found = []
    schedule.step(*batch[:1] if rank == 0 else (), losses=found,
                  **{"target": batch[1]} if rank == 3 else {})
    return sum(loss.item() for loss in found) / 4 if found else None

by_torch("PP", own, in_stages, one.stages(4)[rank].parameters())

# %% torch
rows = []
for name in names[2:-1]:
    found, _, written = ranks[0]["theirs"][name]
    gradient = max(ranks[rank]["theirs"][name][1] for rank in range(4))
    off = max(abs(a / b - 1) for a, b in zip(found, one))
    rows.append([name, show_error(off), show_error(gradient),
                 show_size(sent_by[name]), written and show_size(written)])
ranks.close()
table("way", "loss-off", "gradient-off", "ours-sent", "torch-sent", rows=rows)

# %% sequence
tokens, width, traces = 64, 64, []
key, cut = dict(all_gather(nodes).holds), slices(all_gather(nodes).share, tokens)
own = {node: cut[key[node]] for node in nodes}

def exchange(plan, wholes):
    buffers = {node: whole.flatten() for node, whole in wholes.items()}
    traces.append(run(plan, buffers))
    return [buffers[node].view(1, tokens, width) for node in nodes]

def gather(parts):
    wholes = {node: torch.zeros(1, tokens, width) for node in nodes}
    for node, part in zip(nodes, parts):
        wholes[node][:, own[node]] = part
    return tuple(exchange(all_gather(nodes), wholes))

def scatter(wholes):
    copies = {node: whole.clone() for node, whole in zip(nodes, wholes)}
    sums = exchange(reduce_scatter(nodes), copies)
    return tuple(whole[:, own[node]] for node, whole in zip(nodes, sums))

class Gather(torch.autograd.Function):
    forward = staticmethod(lambda ctx, *parts: gather(parts))
    backward = staticmethod(lambda ctx, *gradients: scatter(gradients))

class Scatter(torch.autograd.Function):
    forward = staticmethod(lambda ctx, *wholes: scatter(wholes))
    backward = staticmethod(lambda ctx, *gradients: gather(gradients))

# %% sequence-run
torch.manual_seed(0)
block, x = gpt.Block(width, heads=4), torch.randn(1, tokens, width)
group = tensor.Group(nodes)
cut_in_four = tensor.cut_gpt(nn.Sequential(block), group)[0]

def half_block(parts, norm, cut):
    wholes = Gather.apply(*map(norm, parts))
    sums = [piece(whole) for piece, whole in zip(cut.parts, wholes)]
    bias = 0 if cut.bias is None else cut.bias
    return [part + y + bias for part, y in zip(parts, Scatter.apply(*sums))]

inputs = [x.clone().requires_grad_() for _ in range(3)]
block(inputs[0]).square().sum().backward()
cut_in_four(inputs[1]).square().sum().backward()
parts = [inputs[2][:, own[node]] for node in nodes]
parts = half_block(parts, cut_in_four.norm1, cut_in_four.attention)
parts = half_block(parts, cut_in_four.norm2, cut_in_four.perceptron)
sum(part.square().sum() for part in parts).backward()

right = inputs[0].grad
print(*(show_error(float((x.grad - right).abs().max() / right.abs().max()))
        for x in inputs[1:]))
for used in (group.traces, traces):
    print(len(used), sum(trace.bytes_sent("gpu0") for trace in used))

# %% exercise-state-bytes
def state_bytes(params, ranks, stage):
    nbytes = 0
    # TODO
    return nbytes

d2lps.check_exercise("state-bytes", state_bytes)

# %% exercise-fully-sharded
def fully_sharded(layers):
    todo = []
    # TODO
    return todo

d2lps.check_exercise("fully-sharded", fully_sharded)

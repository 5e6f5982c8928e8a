# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("01")

# %% allreduce
import torch

def allreduce(gradients):
    root, *others = gradients
    for gradient in others:
        root += gradient.to(root.device)
    for gradient in others:
        gradient.copy_(root)

gradients = [torch.full((2,), 10.0**i) for i in range(4)]
allreduce(gradients)
gradients

# %% gpu0-run
from d2lps import Plan, Send, run, watch

gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
at_gpu0 = Plan(
    nodes=gpus,
    share={"g": 1},
    steps=[
        [Send(gpu, "gpu0", "g", "add") for gpu in gpus[1:]],
        [Send("gpu0", gpu, "g", "copy") for gpu in gpus[1:]],
    ])
buffers = {gpu: torch.full((1_000_000,), 10.0**i) for i, gpu in enumerate(gpus)}
trace = run(at_gpu0, buffers)
print(buffers["gpu3"])
watch(trace)

# %% gpu0-plan
at_gpu0

# %% gpu0-refused
from d2lps import PlanError

try:
    Plan(gpus, {"g": 1}, [*at_gpu0.steps, at_gpu0.steps[0]])
except PlanError as error:
    print(error)

# %% by-hand-run
def play(plan, buffers):
    where = plan.slices(len(buffers[plan.nodes[0]]))
    for step in plan.steps:
        sent = [buffers[src][where[key]].clone() for src, dst, key, op in step]
        for (src, dst, key, op), values in zip(step, sent):
            if op == "add":
                buffers[dst][where[key]] += values
            else:
                buffers[dst][where[key]] = values

again = {gpu: torch.full((1_000_000,), 10.0**i) for i, gpu in enumerate(gpus)}
play(at_gpu0, again)
all(torch.equal(again[gpu], buffers[gpu]) for gpu in gpus)

# %% gpu0-ready
from d2lps import aggregate_at

at_gpu0 == aggregate_at(gpus, "gpu0")

# %% devices
from d2lps import Here, d2l

carrier = Here(d2l.try_all_gpus() or ["cpu"])
places = carrier.place(gpus)
print(carrier)

# %% digits
from d2lps import train

digits = train.digits()
images, labels = digits.train
d2l.show_images(images[:10, 0], 1, 10, titles=labels[:10].tolist(), scale=0.8)
len(labels), len(digits.test[1])

# %% net
new_net = train.small_cnn
print(sum(parameter.numel() for parameter in new_net().parameters()))
d2lps.source(new_net)

# %% split
X, y = images[:128], labels[:128]
parts = dict(zip(gpus, train.split(X, y, [places[gpu] for gpu in gpus])))
{gpu: len(part_y) for gpu, (part_X, part_y) in parts.items()}

# %% gradient-source
d2lps.source(train.loss_and_gradient)

# %% gradients
from d2lps.units import show_error, show_number

with train.deterministic():
    gradients = {}
    for gpu, part in parts.items():
        net = new_net().to(places[gpu])
        loss, gradients[gpu] = train.loss_and_gradient(net, *part, count=len(y))
    loss, whole = train.loss_and_gradient(new_net(), X, y, count=len(y))

total = sum(gradient.cpu() for gradient in gradients.values())
dict(difference=show_error(float((total - whole).abs().max()), 1e-6),
     largest=show_number(float(whole.abs().max()), 2))

# %% cpu-plan
aggregate_at(gpus, "cpu")

# %% fraction
from fractions import Fraction

0.1 + 0.2 == 0.3, Fraction(1, 10) + Fraction(2, 10) == Fraction(3, 10)

# %% shards-plan
from d2lps import sharded

sharded(gpus)

# %% three-strategies
from d2lps import table

plans = {
    "GPU 0": aggregate_at(gpus, "gpu0"),
    "CPU": aggregate_at(gpus, "cpu"),
    "shards": sharded(gpus)}
sums = {}
for name, plan in plans.items():
    buffers = train.buffers(plan, gradients, carrier)
    run(plan, buffers, carrier)
    sums[name] = buffers["gpu0"].cpu()

table("strategy", "difference", "other-bits", rows=[
    [name, show_error(float((total - sums["GPU 0"]).abs().max()), 1e-6),
     int((total != sums["GPU 0"]).sum())]
    for name, total in sums.items()])

# %% order
table("strategy", "key", "order", rows=[
    [name, key, plan.order(key)] for name, plan in plans.items() for key in plan.share])

# %% guess
guess = d2lps.predict("race", {"GPU 0": "ms", "CPU": "ms", "shards": "ms"})
guess

# %% predicted
from d2lps import cost, pcie_server

server = pcie_server(gpus=4, bandwidth="16 GB/s")
ideal = {name: cost.ideal(plan, server, "160 MB") for name, plan in plans.items()}
shared = {name: cost.shared(plan, server, "160 MB") for name, plan in plans.items()}
guess.reveal(shared, ideal=ideal)

# %% race
watch(*shared.values(), names=list(shared), name="three")

# %% by-hand-cost
from collections import Counter

def seconds(plan, nbytes, bandwidth):
    total = 0
    for step in plan.steps:
        load = Counter()
        for src, dst, key, op in step:
            load[src, "out"] += plan.share[key] * nbytes
            load[dst, "in"] += plan.share[key] * nbytes
        total += max(load.values()) / bandwidth
    return total

{name: float(seconds(plan, 160_000_000, 16_000_000_000))
 for name, plan in plans.items()}

# %% what-if
d2lps.wires(plans, "160 MB")

# %% bytes
table("strategy", "node", "sent", "received", rows=[
    [name, node, trace.bytes_sent(node) / 1e6, trace.bytes_received(node) / 1e6]
    for name, trace in shared.items()
    for node in ("gpu0", "gpu1", "cpu") if node in trace.plan.nodes])

# %% guess-here
guess_here = d2lps.predict("one-memory", {"shards": "×"})
guess_here

# %% copy
from d2lps import compare, measure, one_memory

with train.deterministic():
    bandwidth = measure.copy_bandwidth("40 MB", places["gpu0"])
print(bandwidth)

# %% measured
memory = one_memory([*gpus, "cpu"], bandwidth)
everyone = Here(dict.fromkeys([*gpus, "cpu"], places["gpu0"]))
with train.deterministic():
    here = compare(plans, "40 MB", everyone, memory)
here

# %% revealed-here
row = {row.name: row for row in here}
guess_here.reveal(
    {"shards": row["GPU 0"].predicted / row["shards"].predicted},
    {"shards": row["GPU 0"].measured / row["shards"].measured})

# %% chunks
counts = [1, 2, 4, 8, 16, 32]
in_chunks = {
    "GPU 0": [aggregate_at(gpus, "gpu0", chunks=c) for c in counts],
    "CPU": [aggregate_at(gpus, "cpu", chunks=c) for c in counts],
    "shards": [sharded(gpus, chunks=c) for c in counts]}
pipelined = {
    name: [cost.shared(plan, server, "160 MB") for plan in plans]
    for name, plans in in_chunks.items()}
table("strategy", *counts, rows=[[name, *traces] for name, traces in pipelined.items()])

# %% chunks-plot
times = [[1e3 * trace.duration for trace in traces] for traces in pipelined.values()]
d2l.plot(counts, times, "chunks (c)", "time (ms)",
         legend=list(pipelined), xscale="log", ylim=[0, 105])

# %% chunks-watch
one, two, four, *more = pipelined["CPU"]
watch(one, four, names=["c = 1", "c = 4"], name="chunks")

# %% guess-faster
guess_faster = d2lps.predict("speed-up", {"GPU 0": "×", "CPU": "×", "shards": "×"})
guess_faster

# %% faster
def speed_up(alone, n, sync):
    return alone / (alone / n + sync)

guess_faster.reveal({
    name: speed_up(0.2, 4, trace.duration) for name, trace in shared.items()})

# %% faster-here
import os
import time
from concurrent.futures import ThreadPoolExecutor

def step(n):
    nets = [new_net() for _ in range(n)]
    parts = train.split(images, labels, ["cpu"] * n)
    with ThreadPoolExecutor(n) as threads:
        begin = time.perf_counter()
        found = list(threads.map(
            train.loss_and_gradient, nets, *zip(*parts), [len(labels)] * n))
        computed = time.perf_counter()
        allreduce([gradient for loss, gradient in found])
        done = time.perf_counter()
    return done - begin, computed - begin, done - computed

runs, rows = {}, []
with train.deterministic():
    for n in (1, 2, 4):
        runs[n] = sorted(step(n) for _ in range(10))
        took, computing, adding = runs[n][4]
        alone = runs[1][4][0]
        spread = runs[n][8][0] / runs[n][1][0]
        expected, found = speed_up(alone, n, adding), alone / took
        rows.append([
            n, round(1e3 * computing, 1), round(1e3 * adding, 2),
            round(expected, 2), round(found, 2),
            f"{'' if spread <= 1.3 else '~ '}{spread:.2f}"])
print(os.cpu_count())
table("workers", "computing", "adding", "formula", "speed-up", "spread",
      rows=rows)

# %% large-batches
rows = []
for V, steps, lr in [(128, 96, 0.03), (512, 24, 0.03), (512, 24, 0.12)]:
    trained = train.one_device(
        new_net(), digits.train, size=V, steps=steps, lr=lr, momentum=0.9)
    accuracy = train.accuracy(new_net(), trained.weights, digits.test)
    rows.append([V, steps, lr, f"{accuracy:.1%}"])
table("batch-size", "steps-in", "learning-rate", "accuracy", rows=rows)

# %% update-plan
rule = ("sgd", {"lr": 0.03, "momentum": 0.9})
sharded(gpus, update=rule)

# %% loop-source
d2lps.source(train.parallel)

# %% training
training = dict(size=128, steps=48)
alone = dict(device=places["gpu0"], **training, **rule[1])
joined = train.one_device(new_net(), digits.train, **alone)

runs, rows = {}, []
for name, plan in {"GPU 0": aggregate_at(gpus, "gpu0", update=rule),
                   "CPU": aggregate_at(gpus, "cpu", update=rule),
                   "shards": sharded(gpus, update=rule)}.items():
    runs[name] = train.parallel(
        new_net(), plan, digits.train, carrier=carrier, **training)
    in_turn = train.one_device(new_net(), digits.train, in_turn=plan, **alone)
    weights = runs[name].weights
    accuracy = train.accuracy(new_net(), weights, digits.test)
    rows.append([name, torch.equal(weights, in_turn.weights),
                 show_error(float((weights - joined.weights).abs().max())),
                 f"{accuracy:.1%}"])
table("strategy", "same-bits", "distance", "accuracy", rows=rows)

# %% losses
losses = {"n = 1": joined.losses}
losses |= {name: each.losses for name, each in runs.items()}
d2l.plot(list(range(1, 49)), list(losses.values()), "step (t)", "loss (ℓ)",
         legend=list(losses), xlim=[1, 48])

# %% training-watch
watch(runs["shards"].traces[0])

# %% concise-source
d2lps.source(train.ddp.main)

# %% concise
ddp = train.ddp.weights(processes=4)
accuracy = train.accuracy(new_net(), ddp, digits.test)
dict(difference=show_error(float((ddp - joined.weights).abs().max())), accuracy=accuracy)

# %% exercise-own-gpu
def own_gpu(gpus):
    shares = {"g": 1}
    collect, give_back = [], []
    # TODO
    return Plan(gpus, shares, [collect, give_back])

d2lps.check_exercise("own-gpu", own_gpu)

# %% exercise-overlap
def overlap(gpus, cpu, chunks):
    shares = {"g": 1}
    steps = []
    # TODO
    return Plan([*gpus, cpu], shares, steps, holds=gpus, wants=gpus)

d2lps.check_exercise("overlap", overlap)

# %% exercise-split
def split(gpus, servers):
    shares = {"g": 1}
    collect, give_back = [], []
    # TODO
    return Plan([*gpus, *servers], shares, [collect, give_back], holds=gpus, wants=gpus)

d2lps.check_exercise("split", split)

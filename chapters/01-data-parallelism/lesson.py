# %% language
import d2lps

d2lps.speak("en")

# %% imports
from fractions import Fraction

import torch

from d2lps import Here, Plan, Send, aggregate_at, cost, d2l, measure, one_memory, pcie_server, run, sharded, table, train, watch

# %% devices
gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
carrier = Here(d2l.try_all_gpus() or ["cpu"])
print(carrier)

# %% digits
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
places = carrier.place(gpus)
parts = dict(zip(gpus, train.split(X, y, [places[gpu] for gpu in gpus])))
{gpu: len(part_y) for gpu, (part_X, part_y) in parts.items()}

# %% gradient-source
d2lps.source(train.loss_and_gradient)

# %% gradients
with train.deterministic():
    gradients = {}
    for gpu, part in parts.items():
        loss, gradients[gpu] = train.loss_and_gradient(new_net().to(places[gpu]), *part, count=len(y))
    loss, whole = train.loss_and_gradient(new_net(), X, y, count=len(y))

total = sum(gradient.cpu() for gradient in gradients.values())
float((total - whole).abs().max()), float(whole.abs().max())

# %% gpu0-plan
at_gpu0 = Plan(
    nodes=gpus,
    share={"g": 1},
    steps=[
        [Send(gpu, "gpu0", "g", "add") for gpu in gpus if gpu != "gpu0"],
        [Send("gpu0", gpu, "g", "copy") for gpu in gpus if gpu != "gpu0"],
    ])
print(at_gpu0)

# %% gpu0-run
buffers = train.buffers(at_gpu0, gradients, carrier)
trace = run(at_gpu0, buffers, carrier)
watch(trace)

# %% gpu0-ready
at_gpu0 == aggregate_at(gpus, "gpu0")

# %% cpu-plan
print(aggregate_at(gpus, "cpu"))

# %% shards-plan
print(sharded(gpus))

# %% three-strategies
plans = {"GPU 0": aggregate_at(gpus, "gpu0"), "CPU": aggregate_at(gpus, "cpu"), "g1…g4": sharded(gpus)}
sums, traces = {}, {}
for name, plan in plans.items():
    buffers = train.buffers(plan, gradients, carrier)
    traces[name] = run(plan, buffers, carrier)
    sums[name] = buffers["gpu0"].cpu()

table("strategy", "difference", "other-bits", rows=[
    [name, float((total - sums["GPU 0"]).abs().max()), int((total != sums["GPU 0"]).sum())]
    for name, total in sums.items()])

# %% order
table("strategy", "order", rows=[
    [f"{name}, {key}", plan.order(key)] for name, plan in plans.items() for key in plan.share])

# %% three-runs
watch(*traces.values(), names=list(traces))

# %% guess
guess = d2lps.predict("race", {"GPU 0": "ms", "CPU": "ms", "g1…g4": "ms"})
guess

# %% predicted
server = pcie_server(gpus=4, bandwidth="16 GB/s")
ideal = {name: cost.ideal(plan, server, "160 MB") for name, plan in plans.items()}
shared = {name: cost.shared(plan, server, "160 MB") for name, plan in plans.items()}
guess.reveal(shared, ideal=ideal)

# %% race
watch(*shared.values(), names=list(shared))

# %% what-if
d2lps.explore()

# %% bytes
table("strategy", "node", "sent", "received", rows=[
    [name, node, shared[name].bytes_sent(node) / 1e6, shared[name].bytes_received(node) / 1e6]
    for name in shared for node in shared[name].plan.nodes if node in ("gpu0", "gpu1", "cpu")])

# %% copy
with train.deterministic():
    bandwidth = measure.copy_bandwidth("40 MB", places["gpu0"])
print(bandwidth)

# %% measured
with train.deterministic():
    rows = []
    for name, plan in plans.items():
        memory = one_memory(plan.nodes, bandwidth)
        here_predicted = cost.shared(plan, memory, "40 MB")
        here_measured = measure.median_run(plan, "40 MB", places["gpu0"], topology=memory)
        error = f"{here_predicted.duration / here_measured.duration - 1:+.0%}"
        rows.append([name, shared[name], here_predicted, here_measured, error])
table("strategy", "server", "here-predicted", "here-measured", "error", rows=rows)

# %% chunks
counts = [1, 2, 4, 8, 16, 32]
pipelined = {
    "GPU 0": [cost.shared(aggregate_at(gpus, "gpu0", chunks=c), server, "160 MB") for c in counts],
    "CPU": [cost.shared(aggregate_at(gpus, "cpu", chunks=c), server, "160 MB") for c in counts],
    "g1…g4": [cost.shared(sharded(gpus, chunks=c), server, "160 MB") for c in counts]}
table("strategy", *counts, rows=[[name, *traces] for name, traces in pipelined.items()])

# %% chunks-plot
d2l.plot(counts, [[1e3 * t.duration for t in traces] for traces in pipelined.values()],
         "c", "ms", legend=list(pipelined), xscale="log", ylim=[0, 85])

# %% chunks-watch
watch(pipelined["CPU"][0], pipelined["CPU"][2], names=["c = 1", "c = 4"])

# %% training
rule = ("sgd", {"lr": 0.03, "momentum": 0.9})
training = dict(size=128, steps=48)
joined = train.one_device(new_net(), digits.train, device=places["gpu0"], **training, **rule[1])

runs, rows = {}, []
for name, plan in {"GPU 0": aggregate_at(gpus, "gpu0", update=rule),
                   "CPU": aggregate_at(gpus, "cpu", update=rule),
                   "g1…g4": sharded(gpus, update=rule)}.items():
    runs[name] = train.parallel(new_net(), plan, digits.train, carrier=carrier, **training)
    in_turn = train.one_device(new_net(), digits.train, in_turn=plan, device=places["gpu0"], **training, **rule[1])
    rows.append([name, torch.equal(runs[name].weights, in_turn.weights),
                 float((runs[name].weights - joined.weights).abs().max()),
                 f"{train.accuracy(new_net(), runs[name].weights, digits.test):.1%}"])
table("strategy", "in-turn", "joined", "accuracy", rows=rows)

# %% losses
d2l.plot(list(range(1, 49)), [joined.losses, *(r.losses for r in runs.values())], legend=["1", *runs], xlim=[1, 48])

# %% training-watch
watch(runs["g1…g4"].traces[0])

# %% concise-source
d2lps.source(train.ddp.main)

# %% concise
ddp = train.ddp.weights(processes=4)
float((ddp - joined.weights).abs().max()), train.accuracy(new_net(), ddp, digits.test)

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

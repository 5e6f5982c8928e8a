# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("00")

# %% gradient
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import train
from d2lps.units import show_error

def gradient(weights, images, labels):
    net = train.small_cnn()
    vector_to_parameters(weights, net.parameters())
    cross_entropy(net(images), labels).backward()
    return parameters_to_vector(weight.grad for weight in net.parameters())

# %% halves
from d2lps import aggregate_at, draw, run

digits = train.digits()
start = parameters_to_vector(train.small_cnn().parameters()).detach()
images, labels = (part[:96] for part in digits.train)
whole = gradient(start, images, labels)
halves = {"gpu0": gradient(start, images[:48], labels[:48]),
          "gpu1": gradient(start, images[48:], labels[48:])}
trace = run(aggregate_at(["gpu0", "gpu1"], "gpu0"), halves)
off = (halves["gpu1"] / 2 - whole).abs().max()
print(len(whole), f"{whole.abs().max():.2g}", show_error(off.item(), 1e-6))
draw(trace)

# %% race
from d2lps import cost, pcie_server, ring, sharded, watch

def three_ways(n):
    gpus = [f"gpu{i}" for i in range(n)]
    place = pcie_server(n, "12.5 GB/s", switches=2)
    plans = {"GPU 0": aggregate_at(gpus, "gpu0"), "shards": sharded(gpus),
             "ring": ring(gpus)}
    return {name: cost.shared(plan, place, "200 MB")
            for name, plan in plans.items()}

four = three_ways(4)
watch(*four.values(), names=list(four), name="race")

# %% guess
guess = d2lps.predict("growth", {"GPU 0": "×", "ring": "×"})
guess

# %% growth
twelve = three_ways(12)
guess.reveal({name: twelve[name].duration / four[name].duration
              for name in ("GPU 0", "ring")})

# %% machines
from d2lps import hierarchical, machines, table

place = machines(hosts=2, gpus_per_host=3, nic="10 Gbit/s", inside="12.5 GB/s")
hosts = [[f"host{h}/gpu{g}" for g in range(3)] for h in range(2)]
leaders = [host[0] for host in hosts]
two_levels = hierarchical(dict(zip(leaders, hosts)), ring(leaders))
direct, levels = (cost.shared(plan, place, "200 MB")
                  for plan in (sharded(sum(hosts, [])), two_levels))
print(table("strategy", "predicted", rows=[
    ["shards", direct], ["hierarchical", levels]]))
draw(levels)

# %% work
def work(store):
    weights = start.clone()
    store.init("weights", weights)
    store.set_optimizer("sgd", lr=0.1)
    for step in range(14):
        first = 32 * (3 * step + store.rank)
        mine = [part[first:first + 32] for part in digits.train]
        store.push("weights", gradient(weights, *mine) / 3)
        store.pull("weights", out=weights)
    store.barrier()
    return weights

# %% store
from d2lps import kvstore
from d2lps.train import by_store

with kvstore.cluster("dist_sync", workers=3, servers=1, record=True) as stores:
    weights = by_store.each(stores, work)
    trace = stores[0].trace(rounds=2)
for found in (start, *weights):
    print(f"{train.accuracy(train.small_cnn(), found, digits.test):.1%}")
draw(trace, at=trace.events[-1].start)

# %% late
from d2lps import simulate

def seconds(random, rank):
    return [0.03, 0.04, 0.15][rank]

waiting = simulate.synchronous(workers=3, steps=4, seconds=seconds)
hurrying = simulate.asynchronous(workers=3, steps=12, seconds=seconds)
print(f"{waiting.idle:.0%}", max(hurrying.staleness))
watch(waiting.lanes(0), hurrying.lanes(0), names=["sync", "async"])

# %% doomed
def doomed(store):
    w, sums = torch.zeros(1000), []
    store.init("w", w)
    try:
        for _ in range(1 if store.rank == 2 else 3):
            store.pushpull("w", torch.ones(1000), out=w)
            sums.append(w[0].item())
    except kvstore.WorkerLost as error:
        sums.append(f"WorkerLost {error.ranks}")
    if store.rank == 2:
        stores.kill_worker(2)
    return sums

# %% dead
for lost in ("fail", "drop"):
    options = {"workers": 3, "record": True, "lost": lost}
    with kvstore.cluster("dist_sync", **options) as stores:
        print(lost, by_store.each(stores, doomed))
        trace = stores[0].trace()
draw(trace, at=trace.duration / 2)

# %% pipeline
from d2lps.schedule import one_f_one_b, pipeline

trace = cost.shared(pipeline(one_f_one_b(3, 5), saved=0))
print(f"{trace.bubble():.0%}")
draw(trace)

# %% memory
from d2lps.units import show_size
ways = {"1 GPU": {}, "t = 8": {"tensor": 8},
        "p = 8": {"pipeline": 8, "batches": 16},
        "ZeRO-3": {"data": 8, "stage": 3}}
rows, kept = [], {}
for name, layout in ways.items():
    used = d2lps.memory("gpt-18.4b", recompute="full", **layout)
    kept[name] = show_size(d2lps.memory("gpt-18.4b", **layout).predicted)
    rows.append([name, show_size(used["weights"].predicted),
                 show_size(used.predicted)])
print(kept)
table("strategy", "weights", "per-rank", rows=rows)

# %% language
import d2lps

d2lps.speak("en")

# %% imports
from fractions import Fraction

import torch
from ipywidgets import interact

from d2lps import (
    Link, Plan, Send, Topology, aggregate_at, all_gather, cost, d2l, dgx1_v100, double_tree, draw, halving_doubling,
    naive_ring, nvswitch, pcie_server, reduce_scatter, ring, rings, run, sharded, table, tree, two_rings, watch)
from d2lps.units import bandwidth, show_seconds

# %% nodes
gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
circle = Topology("circle", dict.fromkeys(gpus, "gpu"), [
    Link(gpu, gpus[(i + 1) % 4], "16 GB/s") for i, gpu in enumerate(gpus)])
draw(circle)

# %% naive-plan
print(naive_ring(gpus))

# %% guess
guess = {"naive": None, "n chunks": None}

# %% naive-cost
naive = cost.shared(naive_ring(gpus), circle, "160 MB")
watch(naive)

# %% ring-plan
print(ring(gpus))

# %% three
devices = ["device1", "device2", "device3"]
gradients = {"device1": torch.tensor([2., 4., 6.]), "device2": torch.tensor([1., 2., 3.]),
             "device3": torch.tensor([4., 8., 12.])}
run(reduce_scatter(devices), gradients)
gradients

# %% three-gather
run(all_gather(devices), gradients)
gradients

# %% ring-cost
chunked = cost.shared(ring(gpus), circle, "160 MB")
table("strategy", "guess", "shared", rows=[
    ["naive", guess["naive"], naive], ["n chunks", guess["n chunks"], chunked]])

# %% ring-race
watch(naive, chunked, names=["naive", "n chunks"])

# %% growth
counts = [2, 4, 8, 16, 64, 256]

def circle_of(n, latency):
    nodes = [f"gpu{i}" for i in range(n)]
    links = [Link(node, nodes[(i + 1) % n], "16 GB/s", latency) for i, node in enumerate(nodes)]
    return nodes, Topology("circle", dict.fromkeys(nodes, "gpu"), links)

def duration(algorithm, n, latency):
    nodes, place = circle_of(n, latency)
    return cost.shared(algorithm(nodes), place, "160 MB").duration

rows = {"reduce-scatter": (reduce_scatter, 0.0), "all-reduce": (ring, 0.0), "all-reduce, 10 µs": (ring, 1e-5)}
times = {name: [duration(algorithm, n, latency) for n in counts] for name, (algorithm, latency) in rows.items()}
table("strategy", *counts, rows=[[name, *map(show_seconds, found)] for name, found in times.items()])

# %% growth-plot
d2l.plot(counts, [[1e3 * t for t in found] for found in times.values()], "n", "ms",
         legend=list(times), xscale="log", ylim=[0, 26])

# %% server-meeting
server = pcie_server(gpus=4, bandwidth="16 GB/s")
table("strategy", "ideal", "shared", rows=[
    [name, cost.ideal(plan, server, "160 MB"), cost.shared(plan, server, "160 MB")]
    for name, plan in {"g1…g4": sharded(gpus), "n chunks": ring(gpus)}.items()])

# %% dgx
dgx = dgx1_v100("18 GB/s")
for gpu in [f"gpu{i}" for i in range(1, 8)]:
    route = dgx.route("gpu0", gpu)
    print("→".join(["gpu0", *(link.dst for link in route)]), f"{min(link.capacity for link in route) / 1e9:g} GB/s")

# %% nvlink-units
both = bandwidth("300 Gbit/s")
one_way, links = both / 2, 6
print(both, bandwidth(f"{one_way} B/s"), bandwidth(f"{links * 25} GB/s"), bandwidth(f"{2 * links * 25} GB/s"), sep="\n")

# %% rings
rings(dgx)

# %% two-rings
plan = two_rings(dgx)
print({r: str(sum(part for key, part in plan.share.items() if key.startswith(r))) for r in ("g1", "g2")})
plan

# %% two-rings-switches
@interact(link=["18 GB/s", "25 GB/s"], both=[False, True], latency=["0 s", "10 us"])
def eight(link="18 GB/s", both=False, latency="0 s"):
    place = dgx1_v100(link, latency)
    print(show_seconds(cost.shared(two_rings(place, both=both), place, "160 MB").duration))

# %% two-rings-table
rows = []
for link in ["18 GB/s", "25 GB/s"]:
    for latency in ["0 s", "10 us"]:
        place = dgx1_v100(link, latency)
        found = [cost.shared(two_rings(place, both=both), place, "160 MB") for both in (False, True)]
        rows.append([link, latency, *found])
table("bandwidth", "latency", "one-way", "both-ways", rows=rows)

# %% two-rings-watch
watch(cost.shared(plan, dgx, "160 MB"))

# %% one-ring
eight_gpus = [f"gpu{i}" for i in range(8)]
over_pcie = pcie_server(gpus=8, bandwidth="16 GB/s")
outer, inner = rings(dgx)
table("strategy", "shared", rows=[
    ["PCIe", cost.shared(ring(eight_gpus), over_pcie, "160 MB")],
    ["0-1-2-3-4-5-6-7", cost.shared(ring(eight_gpus), dgx, "160 MB")],
    ["-".join(node[3:] for node in outer.nodes), cost.shared(ring(outer.nodes), dgx, "160 MB")],
    ["2 rings", cost.shared(plan, dgx, "160 MB")]])

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-ring
# %%px
import torch
from d2lps import Processes, SharedMemory, calibrate, compare, ring, run, sharded, aggregate_at, naive_ring, tree

carrier = Processes(backend="gloo")
plan = ring(carrier.names)
gradient = torch.full((1000003,), float(carrier.rank))
trace = run(plan, gradient, carrier)
print(carrier.rank, gradient[0].item(), gradient[-1].item())

# %% px-watch
watch(ranks[0]["trace"])

# %% bits
values = {gpu: torch.randn(100003, generator=torch.Generator().manual_seed(i)) for i, gpu in enumerate(gpus)}

def summed(plan):
    buffers = {gpu: value.clone() for gpu, value in values.items()}
    run(plan, buffers)
    return buffers["gpu0"]

first = summed(ring(gpus))
arrival = sum(values[gpus[i]] for i in (2, 0, 3, 1))
table("strategy", "difference", "other-bits", rows=[
    [name, float((found - first).abs().max()), int((found != first).sum())]
    for name, found in {"ring": summed(ring(gpus)), "tree": summed(tree(gpus)), "2 0 3 1": arrival}.items()])

# %% orders
table("strategy", "order", rows=[
    *[[f"ring, {key}", ring(gpus).order(key)] for key in ring(gpus).share], ["tree", tree(gpus).order("g")]])

# %% px-bits
# %%px
value = torch.randn(100003, generator=torch.Generator().manual_seed(carrier.rank))
by_gloo, by_memory = value.clone(), value.clone()
memory = SharedMemory()
_ = run(plan, by_gloo, carrier), run(plan, by_memory, memory)

# %% px-same
torch.equal(ranks[0]["by_gloo"], first), torch.equal(ranks[3]["by_memory"], first)

# %% px-concise
# %%px
import torch.distributed as dist

dist.init_process_group("gloo")
by_torch = value.clone()
dist.all_reduce(by_torch)

# %% concise-same
by_torch = ranks[0]["by_torch"]
float((by_torch - first).abs().max()), int((by_torch != first).sum())

# %% px-race
# %%px
race = compare({"ring": plan, "shared memory": (sharded(carrier.names), memory), "all_reduce": dist.all_reduce},
               "40 MB", carrier)

# %% race
ranks[0]["race"]

# %% px-calibrate
# %%px
calibration = calibrate(carrier)

# %% calibration
calibration = ranks[0]["calibration"]
print(calibration)

# %% px-compare
# %%px
plans = {"ring": plan, "sharded": sharded(carrier.names), "rank0": aggregate_at(carrier.names, "rank0"),
         "tree": tree(carrier.names), "naive": naive_ring(carrier.names)}
comparison = compare(plans, "32 MB", carrier, calibration)

# %% comparison
ranks[0]["comparison"]

# %% comparison-plot
comparison = ranks[0]["comparison"]
comparison.plot();

# %% ping-pong
plans, rows = ranks[0]["plans"], []
for row in comparison:
    alone, together = (cost.shared(plans[row.name], place, row.nbytes).duration
                       for place in (calibration.ping_pong(), calibration.topology()))
    rows.append([row.name, show_seconds(row.measured), *(f"{row.measured / t:.2f}" for t in (alone, together))])
table("strategy", "measured", "ping-pong", "all-at-once", rows=rows)

# %% more-ranks
d2lps.explore({"ring": ring, "rank0": lambda ranks: aggregate_at(ranks, "rank0"), "tree": tree},
              calibration.topology, gpus=8, nbytes="32 MB")

# %% bursts
pieces = [1, 10, 100, 1000]
place = dgx1_v100("18 GB/s", "10 us")
table("pieces", *pieces, rows=[
    ["2 rings", *(show_seconds(count * cost.shared(two_rings(place), place, 160_000_000 // count).duration)
                  for count in pieces)]])

# %% px-bursts
# %%px
bursts = [count * compare({"ring": plan}, 8_000_000 // count, carrier).rows[0].measured for count in (1, 10, 100)]

# %% bursts-here
table("pieces", 1, 10, 100, rows=[["ring", *map(show_seconds, ranks[0]["bursts"])]])

# %% tree-plan
print(tree(gpus))

# %% tree-or-ring
def plans_of(n):
    nodes = [f"gpu{i}" for i in range(n)]
    return {"ring": [ring(nodes)], "tree": [tree(nodes)], "halving–doubling": [halving_doubling(nodes)],
            "double tree": [double_tree(nodes, chunks=c) for c in (1, 8, 64)]}

def quickest(plans, size):
    place = nvswitch(len(plans[0].nodes), "16 GB/s", "5 us", links=1)
    return min(cost.shared(plan, place, size).duration for plan in plans)

counts = [2, 4, 8, 16, 32]
plans = {n: plans_of(n) for n in counts}
table("size", "strategy", *counts, rows=[
    [size, name, *(show_seconds(quickest(plans[n][name], size)) for n in counts)]
    for size in ["10 kB", "160 MB"] for name in plans[2]])

# %% tree-or-ring-plot
sizes = [10**k for k in range(3, 10)]
d2l.plot(sizes, [[1e3 * quickest(some, size) for size in sizes] for some in plans[16].values()],
         "bytes", "ms", legend=list(plans[16]), xscale="log", yscale="log")

# %% px-lost
# %%px
import time
from d2lps import RankLost

impatient = Processes(backend="gloo", deadline=2)
try:
    if carrier.rank == 2:
        time.sleep(5)
    run(plan, gradient, impatient)
except RankLost as error:
    print(f"{carrier.rank}: {error}")

# %% px-again
# %%px
fresh = Processes(backend="gloo")
gradient.fill_(1.0)
run(plan, gradient, fresh)
print(carrier.rank, gradient[0].item())

# %% close
ranks.close()

# %% exercise-both-ways
def both_ways(gpus):
    shares = {"g": 1}
    steps = []
    # TODO
    return Plan(gpus, shares, steps)

d2lps.check_exercise("both-ways", both_ways)

# %% exercise-few-steps
def few_steps(gpus):
    shares = {"g": 1}
    steps = []
    # TODO
    return Plan(gpus, shares, steps)

d2lps.check_exercise("few-steps", few_steps)

# %% exercise-labels
def labels(table):
    order = []
    # TODO
    return order

d2lps.check_exercise("labels", labels)

# %% exercise-unequal-links
def unequal_links(gpus, bandwidths, chunks):
    shares = {"g": 1}
    steps = []
    # TODO
    return Plan(gpus, shares, steps)

d2lps.check_exercise("unequal-links", unequal_links)

# %% exercise-beyond-sums
def beyond_sums():
    def combine(own, arrived):
        # TODO
        return own
    return d2lps.Reduction("log-sum-exp", combine, identity=0)

d2lps.check_exercise("beyond-sums", beyond_sums)

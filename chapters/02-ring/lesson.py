# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("02")

# %% imports
from fractions import Fraction

import torch

from d2lps import Link, Plan, Send, Topology, cost, draw, ring, run, table, watch

# %% nodes
gpus = ["gpu0", "gpu1", "gpu2", "gpu3"]
circle = Topology("circle", dict.fromkeys(gpus, "gpu"), [
    Link(gpu, gpus[(i + 1) % 4], "16 GB/s") for i, gpu in enumerate(gpus)])
draw(circle)

# %% naive-plan
steps = []
for t in range(6):
    op = "add" if t < 3 else "copy"
    steps.append([Send(gpus[t % 4], gpus[(t + 1) % 4], "g", op)])
whole = Plan(gpus, {"g": 1}, steps)
print(whole)

# %% guess
guess = d2lps.predict("circle", {"c = 1": "ms"})
guess

# %% naive-cost
naive = cost.shared(whole, circle, "160 MB")
guess.reveal({"c = 1": naive})

# %% naive-watch
watch(naive, name="whole")

# %% ring-loop
def in_chunks(nodes):
    n, steps = len(nodes), []
    for t in range(2 * (n - 1)):
        op = "add" if t < n - 1 else "copy"
        steps.append([Send(nodes[i], nodes[(i + 1) % n], f"g{(i - t) % n + 1}", op)
                      for i in range(n)])
    shares = {f"g{j + 1}": Fraction(1, n) for j in range(n)}
    return Plan(nodes, shares, steps)

print(in_chunks(gpus))

# %% guess-chunks
guess = d2lps.predict("chunks", {"c = 4": "ms"})
guess

# %% ring-cost
chunked = cost.shared(in_chunks(gpus), circle, "160 MB")
guess.reveal({"c = 4": chunked})

# %% ring-story
d2lps.story(chunked)

# %% ring-ready
in_chunks(gpus) == ring(gpus)

# %% three
from d2lps import all_gather, reduce_scatter

devices = ["device1", "device2", "device3"]
gradients = {"device1": torch.tensor([2., 4., 6.]),
             "device2": torch.tensor([1., 2., 3.]),
             "device3": torch.tensor([4., 8., 12.])}
run(reduce_scatter(devices), gradients)
gradients

# %% three-gather
run(all_gather(devices), gradients)
gradients

# %% ring-race
watch(naive, chunked, names=["c = 1", "c = 4"], name="race")

# %% growth
from d2lps import d2l
from d2lps.units import show_error, show_seconds

def circle_of(n, latency):
    nodes = [f"gpu{i}" for i in range(n)]
    links = [Link(node, nodes[(i + 1) % n], "16 GB/s", latency)
             for i, node in enumerate(nodes)]
    return nodes, Topology("circle", dict.fromkeys(nodes, "gpu"), links)

def duration(algorithm, n, latency):
    nodes, place = circle_of(n, latency)
    return cost.shared(algorithm(nodes), place, "160 MB").duration

counts = [2, 4, 8, 16, 64, 256]
rows = {"reduce-scatter": (reduce_scatter, 0.0), "all-reduce": (ring, 0.0),
        "all-reduce, 10 µs": (ring, 1e-5)}
times = {name: [duration(algorithm, n, latency) for n in counts]
         for name, (algorithm, latency) in rows.items()}
table("nodes", *counts, rows=[
    [name, *map(show_seconds, found)] for name, found in times.items()])

# %% growth-plot
d2l.plot(counts, [[1e3 * t for t in found] for found in times.values()], "nodes (n)",
         "time (ms)", legend=list(times), xscale="log", ylim=[0, 40], figsize=(5, 3))

# %% server-meeting
from d2lps import pcie_server, sharded

server = pcie_server(gpus=4, bandwidth="16 GB/s")
table("strategy", "ideal", "shared", rows=[
    [name, cost.ideal(plan, server, "160 MB"), cost.shared(plan, server, "160 MB")]
    for name, plan in {"shards": sharded(gpus), "ring": ring(gpus)}.items()])

# %% dgx
from d2lps import dgx1_v100

dgx = dgx1_v100("18 GB/s")
for gpu in [f"gpu{i}" for i in range(1, 8)]:
    route = dgx.route("gpu0", gpu)
    way = "→".join(["gpu0", *(link.dst for link in route)])
    print(way, f"{min(link.capacity for link in route) / 1e9:g} GB/s")

# %% rings
from d2lps import rings

rings(dgx)

# %% two-rings
from d2lps import two_rings

plan = two_rings(dgx)
print({each: str(sum(part for key, part in plan.share.items() if key.startswith(each)))
       for each in ("g1", "g2")})

# %% guess-order
guess = d2lps.predict("device-order", {"0-1-2-3-4-5-6-7": "ms", "2 rings": "ms"})
guess

# %% device-order
eight = [f"gpu{i}" for i in range(8)]
by_number = cost.shared(ring(eight), dgx, "160 MB")
both = cost.shared(plan, dgx, "160 MB")
guess.reveal({"0-1-2-3-4-5-6-7": by_number, "2 rings": both})

# %% one-ring
double, single = rings(dgx)
over_pcie = pcie_server(gpus=8, bandwidth="16 GB/s")
table("strategy", "shared", rows=[
    ["PCIe", cost.shared(ring(eight), over_pcie, "160 MB")],
    ["0-1-2-3-4-5-6-7", by_number],
    ["-".join(node[3:] for node in double.nodes),
     cost.shared(ring(double.nodes), dgx, "160 MB")],
    ["2 rings", both]])

# %% two-rings-watch
watch(both, name="two")

# %% two-rings-table
rows = []
for link in ["18 GB/s", "25 GB/s"]:
    for latency in [0.0, 1e-5]:
        place = dgx1_v100(link, latency)
        found = [cost.shared(two_rings(place, both=ways), place, "160 MB")
                 for ways in (False, True)]
        rows.append([link, show_seconds(latency), *found])
table("bandwidth", "latency", "one-way", "both-ways", rows=rows)

# %% two-rings-explore
d2lps.explore({"0-1-2-3-4-5-6-7": lambda gpus: ring(eight),
               "2 rings": lambda gpus: two_rings(dgx)},
              lambda gpus, bandwidth: dgx1_v100(bandwidth), gpus=8, bandwidth="18 GB/s")

# %% tournament
from d2lps import tree

rounds = [[(1, 0), (3, 2), (5, 4), (7, 6)], [(2, 0), (6, 4)], [(4, 0)]]
up = [[Send(eight[out], eight[on], "g", "add") for out, on in pairs]
      for pairs in rounds]
down = [[Send(eight[on], eight[out], "g", "copy") for out, on in pairs]
        for pairs in reversed(rounds)]
tournament = Plan(eight, {"g": 1}, up + down)
print(tournament)
tournament == tree(eight)

# %% tournament-run
buffers = {gpu: torch.tensor([float(i)]) for i, gpu in enumerate(eight)}
run(tournament, buffers)
buffers

# %% tournament-watch
from d2lps import nvswitch

switch = nvswitch(8, "16 GB/s", "5 us", links=1)
watch(cost.shared(tournament, switch, "160 MB"), name="tree")

# %% guess-tree
guess = d2lps.predict("tree", {"tree, 160 MB": "ms", "ring, 160 MB": "ms",
                               "tree, 10 kB": "µs", "ring, 10 kB": "µs"})
guess

# %% tree-or-ring
sixteen = [f"gpu{i}" for i in range(16)]
larger = nvswitch(16, "16 GB/s", "5 us", links=1)
guess.reveal({f"{name}, {size}": cost.shared(algorithm(sixteen), larger, size)
              for size in ("160 MB", "10 kB")
              for name, algorithm in {"tree": tree, "ring": ring}.items()})

# %% halving
from d2lps import halving_doubling

def halve_and_double(nodes):
    n, halving, apart = len(nodes), [], len(nodes) // 2
    while apart:
        step = []
        for i in range(n):
            partner = i ^ apart
            first = partner // apart * apart
            step += [Send(nodes[i], nodes[partner], f"g{j + 1}", "add")
                     for j in range(first, first + apart)]
        halving.append(step)
        apart //= 2
    doubling = [sorted(Send(dst, src, key, "copy") for src, dst, key, op in step)
                for step in reversed(halving)]
    shares = {f"g{j + 1}": Fraction(1, n) for j in range(n)}
    return Plan(nodes, shares, halving + doubling)

print(halve_and_double(gpus))
halve_and_double(gpus) == halving_doubling(gpus)

# %% halving-run
buffers = {gpu: torch.full((8,), float(i)) for i, gpu in enumerate(eight)}
run(halve_and_double(eight), buffers)
torch.stack(list(buffers.values()))

# %% halving-watch
watch(cost.shared(ring(eight), switch, "160 MB"),
      cost.shared(halve_and_double(eight), switch, "160 MB"),
      names=["ring", "halving–doubling"], name="halving")

# %% double-tree
from d2lps import double_tree

print(double_tree(gpus, chunks=1))

# %% tree-or-ring-table
def plans_of(n):
    nodes = [f"gpu{i}" for i in range(n)]
    return {"ring": [ring(nodes)], "tree": [tree(nodes)],
            "halving–doubling": [halving_doubling(nodes)],
            "double tree": [double_tree(nodes, chunks=c) for c in (1, 8, 64)]}

def quickest(plans, size):
    place = nvswitch(len(plans[0].nodes), "16 GB/s", "5 us", links=1)
    return min((cost.shared(plan, place, size) for plan in plans),
               key=lambda trace: trace.duration)

counts = [4, 8, 16]
plans = {n: plans_of(n) for n in counts}
table("size", "strategy", *counts, rows=[
    [size, name, *(quickest(plans[n][name], size) for n in counts)]
    for size in ["10 kB", "160 MB"] for name in plans[16]])

# %% tree-or-ring-plot
sizes = [10**k for k in range(3, 10)]
d2l.plot(sizes, [[1e3 * quickest(some, size).duration for size in sizes]
                 for some in plans[16].values()],
         "size (bytes)", "time (ms)", legend=list(plans[16]), xscale="log", yscale="log",
         figsize=(5, 3))

# %% behind-switch
from d2lps import aggregate_at

dgx2 = nvswitch(16, "25 GB/s", "2.5 us", links=6)
rows = []
for size, chunks in [("64 kB", 1), ("160 MB", 64)]:
    plans = {"ring": ring(sixteen), "tree": tree(sixteen),
             "halving–doubling": halving_doubling(sixteen), "shards": sharded(sixteen),
             "switch adds": aggregate_at(sixteen, "switch", chunks=chunks)}
    rows += [[size, name, len(plan.steps), cost.shared(plan, dgx2, size)]
             for name, plan in plans.items()]
table("size", "strategy", "steps-in", "shared", rows=rows)

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-ring
# %%px
import torch
from d2lps import Processes, ring, run

carrier = Processes(backend="gloo")
plan = ring(carrier.names)
gradient = torch.full((1000003,), float(carrier.rank))
trace = run(plan, gradient, carrier)
print(carrier.rank, gradient[0].item(), gradient[-1].item())

# %% px-watch
watch(ranks[0]["trace"])

# %% bits
values = {gpu: torch.randn(100003, generator=torch.Generator().manual_seed(i))
          for i, gpu in enumerate(gpus)}

def summed(plan):
    buffers = {gpu: value.clone() for gpu, value in values.items()}
    run(plan, buffers)
    return buffers["gpu0"]

first = summed(ring(gpus))
arrival = sum(values[gpus[i]] for i in (2, 0, 3, 1))
table("strategy", "difference", "other-bits", rows=[
    [name, show_error(float((found - first).abs().max())), int((found != first).sum())]
    for name, found in {"ring": summed(ring(gpus)), "tree": summed(tree(gpus)),
                        "2 0 3 1": arrival}.items()])

# %% orders
table("strategy", "order", rows=[
    *[[f"ring, {key}", ring(gpus).order(key)] for key in ring(gpus).share],
    ["tree", tree(gpus).order("g")]])

# %% px-bits
# %%px
from d2lps import SharedMemory

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
dict(difference=show_error(float((by_torch - first).abs().max())),
     unequal=int((by_torch != first).sum()))

# %% px-race
# %%px
from d2lps import compare, sharded

shards = sharded(carrier.names)
race = compare({"ring, gloo": plan, "ring, SharedMemory": (plan, memory),
                "shards, gloo": shards, "shards, SharedMemory": (shards, memory),
                "all_reduce": dist.all_reduce}, "40 MB", carrier)

# %% race
ranks[0]["race"]

# %% px-ping-pong
# %%px
import time

message = torch.zeros(2_000_000)
for attempt in range(5):
    dist.barrier()
    start = time.perf_counter()
    if carrier.rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    if carrier.rank == 1:
        dist.recv(message, 0)
        dist.send(message, 0)
    seconds = time.perf_counter() - start
if carrier.rank == 0:
    print(f"{2 * 4 * len(message) / seconds / 1e9:.2f} GB/s")

# %% px-calibrate
# %%px
from d2lps import calibrate

calibration = calibrate(carrier)

# %% calibration
calibration = ranks[0]["calibration"]
calibration.table()

# %% guess-ping-pong
guess = d2lps.predict("ping-pong", {"ring": "", "shards": ""})
guess

# %% px-compare
# %%px
from d2lps import aggregate_at, naive_ring, tree

plans = {"ring": plan, "shards": shards,
         "at rank 0": aggregate_at(carrier.names, "rank0"),
         "tree": tree(carrier.names), "naive": naive_ring(carrier.names)}
comparison = compare(plans, "32 MB", carrier, calibration)

# %% ping-pong
plans, comparison = ranks[0]["plans"], ranks[0]["comparison"]
wires = calibration.ping_pong()
alone = {row.name: cost.shared(plans[row.name], wires, row.nbytes).duration
         for row in comparison}
guess.reveal({row.name: row.predicted / alone[row.name] for row in comparison},
             {row.name: row.measured / alone[row.name] for row in comparison})

# %% comparison
comparison

# %% ping-pong-table
table("strategy", "measured", "ping-pong", "all-at-once", "spread", rows=[
    [row.name, show_seconds(row.measured),
     f"{row.measured / alone[row.name]:.2f}", f"{row.measured / row.predicted:.2f}",
     f"{'' if row.steady else '~ '}{row.spread:.2f}"] for row in comparison])

# %% more-ranks
d2lps.explore({"ring": ring, "at rank 0": lambda ranks: aggregate_at(ranks, "rank0"),
               "tree": tree},
              calibration.topology, gpus=8, nbytes="32 MB")

# %% bursts
pieces = [1, 10, 100, 1000]
place = dgx1_v100("18 GB/s", "10 us")
one = {count: cost.shared(two_rings(place), place, 160_000_000 // count)
       for count in pieces}
table("pieces", *pieces, rows=[
    ["2 rings", *(show_seconds(count * each.duration) for count, each in one.items())]])

# %% px-bursts
# %%px
bursts = {count: compare({"ring": plan}, 8_000_000 // count, carrier).rows[0]
          for count in (1, 10, 100)}

# %% bursts-here
bursts = ranks[0]["bursts"]
table("pieces", *bursts, rows=[
    ["ring", *(f"{'' if row.steady else '~ '}{show_seconds(count * row.measured)}"
               for count, row in bursts.items())]])

# %% px-lost
# %%px
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

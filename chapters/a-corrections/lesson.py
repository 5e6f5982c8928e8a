# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("a")

# %% imports
import math
from dataclasses import replace
from fractions import Fraction

import torch

from d2lps import (Topology, aggregate_at, all_gather, cost, dgx1_v100, double_tree, draw,
                   hierarchical, machines, nvswitch, pcie_server, reduce_scatter,
                   ring, rings, run, sharded, table, together, tree, two_rings)
from d2lps.units import (Bandwidth, UnitError, bandwidth, show_number, show_seconds,
                         show_size)

four, eight, sixteen = ([f"gpu{i}" for i in range(n)] for n in (4, 8, 16))

def at_rate(rate, nbytes=160e6):
    return show_seconds(nbytes / rate)

# %% wires
def pcie(transfers):
    return Bandwidth(transfers * 1e9 * 16 * 128 / 130 / 8)

packet = 1448 / 1538
table("wire", "claimed", "specified", "after-headers", rows=[
    ["NVLink 2, 6 ×", "100 GB/s", str(Bandwidth(6 * bandwidth("25 GB/s"))), None],
    ["PCIe 3.0 ×16", "16 GB/s", str(pcie(8)), None],
    ["PCIe 4.0 ×16", "32 GB/s", str(pcie(16)), None],
    ["100 GbE", "10 GB/s", str(bandwidth("100 Gbit/s")),
     str(Bandwidth(packet * bandwidth("100 Gbit/s")))]])

# %% memory
models = {"BERT": 340_000_000, "GPT-2": 1_500_000_000, "GPT-3": 175_000_000_000}
table("model", "parameters", "adam-memory", "gpus-80", rows=[
    [name, show_number(parameters, 3), show_size(16 * parameters),
     math.ceil(16 * parameters / 80e9)]
    for name, parameters in models.items()])

# %% pcie-times
strategies = {"GPU 0": aggregate_at(four, "gpu0"), "CPU": aggregate_at(four, "cpu"),
              "shards": sharded(four)}
table("bandwidth", "at-gpu0", "at-cpu", "in-shards", rows=[
    [str(rate), *(cost.shared(plan, pcie_server(4, rate), "160 MB")
             for plan in strategies.values())]
    for rate in (bandwidth("16 GB/s"), pcie(8), bandwidth("12 GB/s"))])

# %% assumptions
from d2lps.topology import Resource

server = pcie_server(4, "16 GB/s")
halved = Topology("half", server.kinds, server.links, limits=dict.fromkeys(
    [*four, "cpu"], Resource(port="16 GB/s")))

def strategies_in(chunks):
    return [aggregate_at(four, "gpu0", chunks=chunks),
            aggregate_at(four, "cpu", chunks=chunks), sharded(four, chunks=chunks)]

table("assumption", "at-gpu0", "at-cpu", "in-shards", rows=[
    [name, *(model(plan, place, "160 MB") for plan in strategies_in(chunks))]
    for name, model, place, chunks in [
        ("no contention", cost.ideal, server, 1),
        ("c = 1", cost.shared, server, 1),
        ("c = 32", cost.shared, server, 32),
        ("half duplex, c = 32", cost.shared, halved, 32)]])

# %% nvlink
def both_rings(rate):
    place = dgx1_v100(Bandwidth(rate))
    return [cost.shared(two_rings(place, both=ways), place, "160 MB")
            for ways in (False, True)]

links = {"300 Gbit/s ÷ 2": bandwidth("300 Gbit/s") / 2,
         "100 GB/s ÷ 6": bandwidth("100 GB/s") / 6,
         "18 GB/s": bandwidth("18 GB/s"),
         "300 GB/s ÷ 6 ÷ 2": bandwidth("300 GB/s") / 6 / 2}
table("reading", "bandwidth", "one-way", "both-ways", rows=[
    [name, str(Bandwidth(rate)), *both_rings(rate)] for name, rate in links.items()])

# %% dgx
dgx = dgx1_v100("18 GB/s")
double, single = rings(dgx)
double, single

# %% guess-labels
guess = d2lps.predict("text-labels", {"1-2-3-4-5-6-7-8": "", "1-4-6-3-5-8-2-7": ""})
guess

# %% labels
def hops(order):
    return {frozenset(pair) for pair in zip(order, order[1:] + order[:1])}

nvlinks = hops(double.nodes) | hops(single.nodes)

def without_nvlink(text):
    order = [f"gpu{int(label) - 1}" for label in text.split("-")]
    return len(hops(order) - nvlinks)

guess.reveal({text: without_nvlink(text) for text in guess.asked})

# %% relabelled
fits = []
for around in (double.nodes, double.nodes[::-1]):
    for start in range(8):
        label = dict(zip(around[start:] + around[:start], range(1, 9)))
        if hops([1, 4, 6, 3, 5, 8, 2, 7]) == {
                frozenset(label[gpu] for gpu in hop) for hop in hops(single.nodes)}:
            fits.append(label)
print(len(fits), fits[0])
labels = {gpu: str(number) for gpu, number in fits[0].items()}
draw(Topology("1-2-3-4-5-6-7-8", dict.fromkeys(labels.values(), "gpu"), [
    replace(link, src=labels[link.src], dst=labels[link.dst])
    for link in dgx.links if {link.src, link.dst} <= labels.keys()]))

# %% shares
def split(share):
    return together(ring(double.nodes), ring(single.nodes, key="h"),
                    shares=[share, 1 - share])

table("share-of-double", "shared", rows=[
    [str(share), cost.shared(split(share), dgx, "160 MB")]
    for share in (Fraction(1, 2), Fraction(2, 3), Fraction(3, 4))])

# %% ring-figure
leftward = reduce_scatter(four[::-1])
firsts = {send.key: send.src for send in leftward.steps[0]}
lasts = {key: node for node, key, state in leftward.wants}
table("key", "begins-at", "complete-at", rows=[
    [key, firsts[key], lasts[key]] for key in leftward.share])

# %% growth
def per_gradient(algorithm, n, latency=0.0):
    place = nvswitch(n, "16 GB/s", latency, links=1)
    nodes = [f"gpu{i}" for i in range(n)]
    return cost.shared(algorithm(nodes), place, "160 MB").duration

counts = [2, 4, 8, 64]
table("nodes", *counts, rows=[
    [name, *(f"{per_gradient(algorithm, n, latency) / 10e-3:.4g}" for n in counts)]
    for name, algorithm, latency in [
        ("(n − 1)/n", reduce_scatter, 0.0), ("2(n − 1)/n", ring, 0.0),
        ("2(n − 1)/n, 10 µs", ring, 5e-6)]])

# %% six
over_pcie = cost.shared(ring(eight), pcie_server(8, "16 GB/s"), "160 MB")
table("reading", "takes", rows=[
    ["2 · 160 / (3 · 18)", show_seconds(2 * 160e6 / (3 * 18e9))],
    ["2 · 7/8 · 160 / (3 · 18)", both_rings(18e9)[0]],
    ["7/8 · 160 / (3 · 18)", both_rings(18e9)[1]],
    ["2 · 7/8 · 160 / (3 · 25)", both_rings(25e9)[0]],
    ["PCIe", over_pcie]])

# %% tree
place = nvswitch(16, "16 GB/s", "5 us", links=1)
table("strategy", "steps-in", "10-kb", "160-mb", rows=[
    [name, len(plan.steps), *(cost.shared(plan, place, size)
                              for size in ("10 kB", "160 MB"))]
    for name, plan in {"ring": ring(sixteen), "tree": tree(sixteen),
                       "double tree": double_tree(sixteen, chunks=64)}.items()])

# %% servers
workers = [f"host{i}/cpu" for i in range(8)]
room = machines(8, 0, "10 Gbit/s", servers=16)

def on_servers(k, chunks=1):
    return sharded(workers, [f"server{j}" for j in range(k)], chunks=chunks)

once = 160e6 / bandwidth("10 Gbit/s")
rows = [[k, show_seconds(2 * 8 / k * once), cost.shared(on_servers(k), room, "160 MB"),
         cost.shared(on_servers(k, chunks=16), room, "160 MB")] for k in (1, 2, 4, 8, 16)]
for name, plan in {"k = n": sharded(workers), "ring": ring(workers)}.items():
    rows.append([name, None, cost.shared(plan, room, "160 MB"), None])
table("servers", "text-formula", "step-by-step", "in-16-chunks", rows=rows)

# %% servers-explore
d2lps.explore({"1 server": lambda hosts: aggregate_at(hosts, "server0"),
               "4 servers": lambda hosts: sharded(hosts,
                                                  [f"server{j}" for j in range(4)]),
               "k = n": sharded, "ring": ring},
              lambda hosts, rate: machines(hosts, 0, rate, servers=4),
              gpus=8, bandwidth="1 GB/s")

# %% order
values = {gpu: torch.randn(100003, generator=torch.Generator().manual_seed(i))
          for i, gpu in enumerate(four)}
in_cents = {gpu: (100 * value).round().long() for gpu, value in values.items()}

def summed(plan, values):
    buffers = {gpu: value.clone() for gpu, value in values.items()}
    run(plan, buffers)
    return buffers["gpu0"]

def other_bits(values):
    return int((summed(ring(four), values) != summed(tree(four), values)).sum())

table("numbers", "commutes", "ring-against-tree", rows=[
    [str(kind["gpu0"].dtype).removeprefix("torch."),
     torch.equal(kind["gpu0"] + kind["gpu1"], kind["gpu1"] + kind["gpu0"]),
     other_bits(kind)] for kind in (values, in_cents)])

# %% hosts
dgx2 = nvswitch(16, "25 GB/s", links=6)
dgx1 = dgx1_v100("25 GB/s", pcie="16 GB/s")
table("host", "strategy", "steps-in", "shared", rows=[
    [host, name, len(plan.steps), cost.shared(plan, place, "160 MB")]
    for host, place, some in [
        ("DGX-1", dgx1,
         {"2 rings": two_rings(dgx1, both=True), "shards": sharded(eight)}),
        *((f"DGX-1, {rate}", dgx1_v100("25 GB/s", pcie="16 GB/s", between_cpus=rate),
           {"shards": sharded(eight)}) for rate in ("9.6 GB/s", "38.4 GB/s")),
        ("DGX-2", dgx2, {"ring": ring(sixteen), "shards": sharded(sixteen)})]
    for name, plan in some.items()])

# %% levels
hosts = machines(4, 2, "10 Gbit/s", servers=4)
inside = {f"host{i}/cpu": [f"host{i}/gpu0", f"host{i}/gpu1"] for i in range(4)}
gpus, leaders = [gpu for some in inside.values() for gpu in some], list(inside)

def star(nodes, k):
    return sharded(nodes, [f"server{j}" for j in range(k)])

table("strategy", "levels-1", "levels-2", rows=[
    [name, cost.shared(star(gpus, k), hosts, "160 MB"),
     cost.shared(hierarchical(inside, star(leaders, k)), hosts, "160 MB")]
    for name, k in {"1 server": 1, "4 servers": 4}.items()])

# %% refused
try:
    bandwidth("16 Gb/s")
except UnitError as error:
    print(error)

# %% gigabits
table("claimed", "as-bytes", "as-bits", rows=[
    [number, at_rate(bandwidth(f"{number} GB/s")), at_rate(bandwidth(f"{number} Gbit/s"))]
    for number in (100, 32, 18, 16, 10)])

# %% nontrivial
table("workers", "late-steps", rows=[
    [n, f"{1 - 0.99**n:.1%}"] for n in (1, 10, 100)])

# %% slower
inside_rate = bandwidth("16 GB/s")
table("network-card", "slower-by", rows=[
    [card, f"{inside_rate / bandwidth(card):.3g} ×"]
    for card in ("100 Gbit/s", "10 Gbit/s", "1 Gbit/s")])

# %% push
from d2lps import kvstore

store = kvstore.create("local")
store.init("g", torch.zeros(1))
before, after = torch.empty(1), torch.empty(1)
store.pull("g", out=before)
store.push("g", [torch.tensor([10.0**i]) for i in range(4)])
store.pull("g", out=after)
before, after

# %% training-memory
rows = []
for parameters, activations in [(1, 2), (100, 200)]:
    numbers = 4e9 * (parameters + activations)
    counts = parameters * 1e9, activations * 1e9
    rows.append([*map(show_number, counts), *map(show_size, (
        numbers, 2 * numbers, 2 * numbers + 8e9 * parameters))])
table("parameters", "activations", "without-gradients", "with-gradients", "with-adam",
      rows=rows)

# %% replicas
three = [f"gpu{i}" for i in range(3)]
gradient = 4 * 175_000_000_000
rows = []
for name, plan in {"GPU 0": aggregate_at(three, "gpu0"), "ring": ring(three)}.items():
    trace = cost.shared(plan, pcie_server(3, "25 GB/s"), gradient)
    received = [trace.bytes_received(gpu) for gpu in three]
    rows.append([name, show_size(sum(received)), show_size(max(received)), trace])
table("strategy", "in-all", "busiest", "shared", rows=rows)

# %% guess-terabyte
guess = d2lps.predict("terabyte", {"200 Gbit/s": "s"})
guess

# %% terabyte
guess.reveal({"200 Gbit/s": 1e12 / bandwidth("200 Gbit/s")})

# %% a100
a100 = nvswitch(8, "25 GB/s", links=12)
one_way = a100.route("gpu0", "gpu1")[0].capacity
table("reading", "1-tb", rows=[
    [str(Bandwidth(rate)), at_rate(rate, 1e12)]
    for rate in (2 * one_way, bandwidth("400 GB/s"), one_way)])

# %% mean
examples = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
parts = examples.chunk(2)
means = sum(part.mean() for part in parts)
table("divided", "result", rows=[
    [name, f"{value:.4g}"] for name, value in [
        ("8 ÷ 8", examples.mean()), ("2 ÷ 2", means / 2), ("2 ÷ 8", means / 8)]])

# %% three
devices = ["device1", "device2", "device3"]
gradients = {"device1": torch.tensor([2., 4., 6.]), "device2": torch.tensor([1., 2., 3.]),
             "device3": torch.tensor([4., 8., 12.])}
run(reduce_scatter(devices), gradients)
print(*gradients.items(), sep="\n")
run(all_gather(devices), gradients)
gradients["device1"]

# %% reduce
place = nvswitch(3, "16 GB/s", links=1)
table("strategy", "busiest", "shared", rows=[
    [name, show_size(max(map(trace.bytes_received, trace.plan.nodes))), trace]
    for name, trace in {
        "reduce + broadcast": cost.shared(aggregate_at(three, "gpu0"), place, "160 MB"),
        "reduce + broadcast, c = 32":
            cost.shared(aggregate_at(three, "gpu0", chunks=32), place, "160 MB"),
        "ring": cost.shared(ring(three), place, "160 MB")}.items()])

# %% pipeline
def pipeline(stages, pieces, early):
    tasks = {}
    for i in range(stages):
        ahead = min(stages - i, pieces) if early else pieces
        tasks[i] = [("F", j) for j in range(ahead)]
        for j in range(pieces):
            tasks[i] += [("B", j), ("F", ahead + j)] if ahead + j < pieces else [("B", j)]
    done, slot = {}, 0
    while any(tasks.values()):
        slot += 1
        for i, todo in tasks.items():
            kind, j = todo[0] if todo else (None, None)
            if kind == "F":
                needs = ("F", i - 1, j)
            else:
                needs = ("B", i + 1, j) if i + 1 < stages else ("F", i, j)
            if todo and ((kind, i) == ("F", 0) or done.get(needs, slot) < slot):
                done[todo.pop(0)[0], i, j] = slot
    return done

two = pipeline(4, 2, early=False)
for i in range(4):
    row = {slot: f"{kind}{j}" for (kind, stage, j), slot in two.items() if stage == i}
    print(i + 1, *(row.get(slot, "··") for slot in range(1, max(two.values()) + 1)))

# %% bubbles
from itertools import accumulate

def stored(done):
    first = sorted((slot, kind) for (kind, i, j), slot in done.items() if i == 0)
    return max(accumulate({"F": 1, "B": -1}[kind] for slot, kind in first))

rows = []
for name, early in {"GPipe": False, "1F1B": True}.items():
    for pieces in (1, 2, 4, 8, 16):
        done = pipeline(4, pieces, early)
        last = max(done.values())
        before = min(slot for (kind, i, j), slot in done.items() if kind == "B") - 1
        rows.append([name, pieces, f"{1 - 2 * pieces / last:.1%}", before,
                     f"{before / pieces:.4g}", stored(done)])
table("schedule", "micro-batches", "bubble", "backward-slot", "backward-time", "stored",
      rows=rows)

# %% dense
rows_read, width = 1000, 64
sparse, dense = 4 * rows_read * width, 4 * 1_000_000
table("pulled", "bytes-per-step", rows=[
    ["embedding", show_size(sparse)], ["embedding, MLP", show_size(sparse + dense)]])

# %% hot
popularity = {f"item{i}": 1 / (i + 1) for i in range(10_000)}
placed = kvstore.Placement(8)

def busiest(copied):
    load = [sum(list(popularity.values())[:copied]) / 8] * 8
    for key, reads in list(popularity.items())[copied:]:
        load[placed.owner(key)] += reads
    return max(load) / (sum(load) / 8)

table("copied-keys", "most", rows=[
    [copied, f"{busiest(copied):.3g}"] for copied in (0, 1, 10, 100)])

# %% progress
table("interval", "lost-mean", "lost-most", rows=[
    [f"{hours} h", f"{60 * hours / 2:g} min", f"{60 * hours} min"] for hours in (1, 2)])

# %% ninety
received = [torch.tensor(1.0)] * 9
table("divided-by", "result", rows=[
    [n, f"{float(sum(received) / n):.3g}"] for n in (10, 9)])

# %% both-at-once
table("reading", "bandwidth", "formula-time", rows=[
    [name, str(Bandwidth(rate)), show_seconds(2 * 7/8 * 160e6 / (3 * rate))]
    for name, rate in [("18 GB/s", 18e9), ("18 GB/s ÷ 2", 9e9)]])

# %% traffic
rows = []
for name, plan in strategies.items():
    trace = cost.shared(plan, server, "160 MB")
    sent = [trace.bytes_sent(node) for node in plan.nodes]
    rows.append([name, sum(len(step) for step in plan.steps),
                 show_size(sum(sent)), show_size(max(sent)), trace])
table("strategy", "messages", "in-all", "busiest", "shared", rows=rows)

# %% zero
ranks, weights = 64, 7_500_000_000
nodes = [f"gpu{i}" for i in range(ranks)]
place = nvswitch(ranks, "25 GB/s", links=6)
scatter, gather = (cost.shared(make(nodes), place, 2 * weights).bytes_sent("gpu0")
                   for make in (reduce_scatter, all_gather))
table("zero-stage", "per-rank", "sent-per-step", rows=[
    [stage, show_size(kept * weights), show_size(moved)]
    for stage, kept, moved in [
        (0, 16, scatter + gather), (1, 4 + 12 / ranks, scatter + gather),
        (2, 2 + 14 / ranks, scatter + gather), (3, 16 / ranks, scatter + 2 * gather)]])

# %% tensor
hidden, tokens = 4096, 2048
layer, ends = 12 * hidden**2, pcie_server(8, "16 GB/s")

def sent(nbytes, *collectives):
    return sum(cost.shared(make(eight), ends, nbytes).bytes_sent("gpu0")
               for make in collectives)

table("batch-size", "zero-sent", "tensor-sent", rows=[
    [V, show_size(sent(2 * layer, all_gather, all_gather, reduce_scatter)),
     show_size(sent(2 * V * tokens * hidden, ring, ring, ring, ring))]
    for V in (1, 8, 64)])

# %% modules
from importlib.util import find_spec

def there(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False

print(torch.__version__)
table("module", "here", rows=[[name, there(name)] for name in (
    "torch.distributed.pipeline.sync", "torch.distributed.pipelining",
    "torch.distributed.fsdp", "torch.distributed.rpc")])

# %% whole-ring
rows = []
for n, nodes in {4: four, 8: eight, 16: sixteen}.items():
    place = nvswitch(n, "16 GB/s", links=1)
    tutorial = cost.shared(all_gather(nodes), place, n * 160_000_000)
    chunks = cost.shared(ring(nodes), place, "160 MB")
    rows.append([n, *(show_size(run.bytes_sent("gpu0")) for run in (tutorial, chunks)),
                 tutorial, chunks])
table("gpus", "whole-sent", "chunks-sent", "whole-time", "chunks-time", rows=rows)

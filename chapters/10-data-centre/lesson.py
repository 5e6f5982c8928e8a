# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("10")

# %% imports
import time
from fractions import Fraction
from statistics import mean

import torch

from d2lps import Plan, Send, bandwidth, cluster, cost, d2l, draw, fold, run, table
from d2lps import aggregate_at, all_gather, all_to_all, broadcast, doubling, gather
from d2lps import halving, halving_doubling, in_switch, rail_wise, recursive_doubling
from d2lps import machines, nvswitch, rails, reduce, reduce_scatter, ring, scatter
from d2lps import together, tree, watch
from d2lps.topology import busiest_uplink
from d2lps.units import show_seconds

# %% collectives
def owners(places, count):
    keys = {}
    for node, key, *_ in places:
        keys.setdefault(node, []).append(key.lstrip("g"))
    return "  ".join(f"{node}: {'*' if len(own) == count else ' '.join(own)}"
                     for node, own in keys.items())

abcd = list("abcd")
kinds = {"broadcast": broadcast, "reduce": reduce, "scatter": scatter,
         "gather": gather, "all_gather": doubling, "reduce_scatter": halving,
         "all_reduce": ring, "all_to_all": all_to_all}
rows = []
for name, make in kinds.items():
    plan = make(abcd[:2] if make is all_to_all else abcd)
    count = len(plan.share)
    rows.append([name, owners(plan.holds, count), owners(plan.wants, count)])
table("collective", "before", "after", rows=rows)

# %% by-hand
def handed_down(nodes):
    apart, steps = len(nodes) // 2, []
    while apart:
        steps.append([Send(nodes[i], nodes[i + apart], "g", "copy")
                      for i in range(0, len(nodes), 2 * apart)])
        apart //= 2
    return steps

def backwards(steps, op):
    return [[Send(dst, src, key, op) for src, dst, key, _ in step]
            for step in steps[::-1]]

down = handed_down(abcd)
print(Plan(abcd, {"g": 1}, down, holds=["a"]))
print(Plan(abcd, {"g": 1}, backwards(down, "add"), wants=["a"]))
Plan(abcd, {"g": 1}, down, holds=["a"]) == broadcast(abcd)

# %% halves
gpus = [f"gpu{i}" for i in range(8)]
share = {f"g{j}": Fraction(1, 8) for j in range(1, 9)}
own = [*zip(gpus, share)]
halves, apart = [], 4
while apart:
    halves.append([Send(gpu, gpus[i ^ apart], f"g{j + 1}", "add")
                   for i, gpu in enumerate(gpus)
                   for j in range(8) if j // apart == (i ^ apart) // apart])
    apart //= 2
doubles = backwards(halves, "copy")
plans = {"reduce_scatter": Plan(gpus, share, halves, wants=own),
         "all_gather": Plan(gpus, share, doubles, holds=own),
         "all_reduce": Plan(gpus, share, halves + doubles)}
print({name: len(plan.steps) for name, plan in plans.items()})
[*map(sorted, halves + doubles)] == [*map(sorted, halving_doubling(gpus).steps)]

# %% guess-algbw
guess = d2lps.predict("algbw", {"all_gather": "GB/s", "all_reduce": "GB/s"})
guess

# %% bandwidths
host = nvswitch(8, links=18, latency="1.7 us")
forms = [("broadcast", broadcast(gpus)), ("broadcast", broadcast(gpus, chunks=64)),
         ("reduce", reduce(gpus)), ("reduce", reduce(gpus, chunks=64)),
         ("scatter", scatter(gpus)), ("gather", gather(gpus)),
         ("all_gather", plans["all_gather"]), ("all_gather", all_gather(gpus)),
         ("reduce_scatter", plans["reduce_scatter"]),
         ("reduce_scatter", reduce_scatter(gpus)),
         ("all_reduce", recursive_doubling(gpus)),
         ("all_reduce", plans["all_reduce"]), ("all_reduce", ring(gpus)),
         ("all_to_all", all_to_all(gpus, few_steps=True)),
         ("all_to_all", all_to_all(gpus))]
rows, bands = [], {}
for name, plan in forms:
    trace = cost.shared(plan, host, "8 GB" if name == "all_to_all" else "1 GB")
    bands[name] = band = bandwidth(trace)
    most = max(max(trace.bytes_sent(gpu), trace.bytes_received(gpu)) for gpu in gpus)
    rows.append([name, len(plan.steps), f"{most / band.nbytes:.3g} S", trace,
                 str(band.algbw), str(band.factor), str(band.busbw)])
guess.reveal({name: bands[name].algbw / 1e9 for name in ("all_gather", "all_reduce")})

# %% bandwidths-table
table("collective", "steps-count", "most-bytes", "takes", "algbw", "bus-factor",
      "busbw", rows=rows)

# %% factor
def factor(plan):
    sent, received = dict.fromkeys(plan.nodes, 0), dict.fromkeys(plan.nodes, 0)
    held, wanted, messages = dict(sent), dict(sent), 0
    for key, part in plan.share.items():
        have = {node for node, name in plan.holds if name == key}
        want = {node for node, name, _ in plan.wants if name == key}
        messages += part * (len(have) - 1 + len(want) - (1 if have & want else 0))
        for node in have:
            held[node] += part
            sent[node] += part if want - {node} else 0
        for node in want:
            wanted[node] += part
            received[node] += part if have - {node} else 0
    link = max(*sent.values(), *received.values(), messages / len(plan.nodes))
    return link / max(*held.values(), *wanted.values())

print(*(f"{name}: {factor(plan)}" for name, plan in dict(forms).items()), sep="\n")
all(factor(plan) == bands[name].factor for name, plan in forms)

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-torch
# %%px
import torch
import torch.distributed as dist
from d2lps import Processes, broadcast, doubling, gather, halving, reduce
from d2lps import ring, run, scatter

carrier, nodes = Processes(backend="gloo"), [f"rank{i}" for i in range(4)]
me, own = carrier.rank, f"rank{carrier.rank}"
start = torch.arange(8.0) + 100 * me

def by_torch(name):
    whole, parts = start.clone(), [*start.clone().chunk(4)]
    into = [torch.zeros(2) for _ in range(4)]
    calls = {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_reduce": lambda: dist.all_reduce(whole),
        "scatter": lambda: dist.scatter(into[me], None if me else parts, 0),
        "gather": lambda: dist.gather(parts[me], None if me else into, 0),
        "all_gather": lambda: dist.all_gather(into, parts[me]),
        "reduce_scatter": lambda: dist.reduce_scatter(into[me], parts)}
    calls[name]()
    return whole if name in ("broadcast", "reduce", "all_reduce") else torch.cat(into)

dist.init_process_group("gloo")
makers = {"broadcast": broadcast, "reduce": reduce, "scatter": scatter,
          "gather": gather, "all_gather": doubling, "reduce_scatter": halving,
          "all_reduce": ring}
same = {}
for name, make in makers.items():
    plan, held, theirs = make(nodes), {own: start.clone()}, by_torch(name)
    run(plan, held, carrier)
    cuts = [plan.slices(8)[key] for node, key, _ in plan.wants if node == own]
    same[name] = all(torch.equal(held[own][cut], theirs[cut]) for cut in cuts)
print(all(same.values()), len(same))

# %% guess-crossing
print(recursive_doubling(abcd))
guess = d2lps.predict("crossing", {"S": "MB"})
guess

# %% crossing
def seconds(plan, place=host, size="1 GB"):
    return cost.shared(plan, place, size).duration

alpha, rate, lg = 2 * 1.7e-6, 450e9, 3
crossing = lg * alpha * rate / (lg - 2 * 7 / 8)
print(*(show_seconds(seconds(make(gpus), size=round(crossing)))
        for make in (recursive_doubling, halving_doubling)))
guess.reveal({"S": crossing / 1e6})

# %% sizes
sizes = [1000 * 2**k for k in range(20)]
ways = [recursive_doubling, tree, ring, halving_doubling]
d2l.plot([size / 1e6 for size in sizes],
         [[1e6 * seconds(make(gpus), size=size) for size in sizes] for make in ways],
         "size (MB)", "time (µs)",
         legend=["recursive-doubling", "tree", "ring", "halving"],
         xscale="log", yscale="log", fmts=["-", "--", "-.", ":"], figsize=(5, 3))

# %% racks
def two_racks(uplink, nic="200 Mbit/s"):
    return machines(8, 0, nic=nic, racks=2, uplink=uplink)

draw(two_racks("200 Mbit/s"))

# %% guess-orders
names = [f"host{i}/cpu" for i in range(8)]
orders = ["01234567", "01452367", "04152637"]
rings = {order: ring([names[int(i)] for i in order]) for order in orders}
guess = d2lps.predict("orders", {"01452367": "ms", "04152637": "ms"})
guess

# %% orders
try:
    eight = cluster.emulated(hosts=8, gpus_per_host=0, bandwidth="200 Mbit/s",
                             racks=2, uplink="200 Mbit/s")
except cluster.ClusterError as error:
    eight = None
    print(error)

racks = eight.topology if eight else two_racks(f"{200 * 1448 / 1514} Mbit/s",
                                               f"{200 * 1448 / 1514} Mbit/s")
expected = {order: cost.shared(plan, racks, "4 MB") for order, plan in rings.items()}
seen = {order: eight.measure(plan, "4 MB", rounds=2) if eight else None
        for order, plan in rings.items()}
guess.reveal({order: expected[order] for order in orders[1:]},
             {order: seen[order] for order in orders[1:]} if eight else None)

# %% orders-table
def through_spine(trace):
    hops = trace.topology.route
    return sum(event.nbytes for event in trace.events
               if any(link.src == "network" for link in hops(event.src, event.dst)))

table("order-of-hosts", "through-spine", "predicted", "measured", "off-by", rows=[
    [order, f"{through_spine(trace) / 1e6:g} MB", trace, seen[order],
     f"{seen[order].duration / trace.duration:.2f}" if eight else None]
    for order, trace in expected.items()])

# %% gloo
def by_gloo():
    import time
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor, took = torch.ones(1_000_000), []
    for _ in range(2):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        took.append(time.perf_counter() - start)
    dist.destroy_process_group()
    return took[-1]

def gloo_in(order):
    return max(eight.run(by_gloo, hosts=[f"host{i}" for i in order]))

table("order-of-hosts", "predicted", "measured", rows=[
    [order, expected[order], show_seconds(gloo_in(order)) if eight else None]
    for order in (orders[0], orders[2])])

# %% oversubscription
thin = {r: two_racks(f"{800 / r} Mbit/s") for r in (1, 2, 4)}
table("order-of-hosts", *thin, rows=[
    *([order, *(cost.shared(plan, place, "4 MB") for place in thin.values())]
      for order, plan in rings.items()),
    ["all_to_all", *(cost.shared(all_to_all(names), place, "32 MB")
                     for place in thin.values())]])

# %% hashed
seeds = range(200)
loads = {parts: [float(busiest_uplink(32, 32, parts, seed)) for seed in seeds]
         for parts in (1, 4, 16, 64)}
table("parts-of-flow", "mean-of-worst", "worst-of-all", rows=[
    [parts, f"{mean(some):.2f}", f"{max(some):.2f}"] for parts, some in loads.items()])

# %% rails
few = rails(hosts=4, gpus=8)
hosts = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(4)]
for pair in [("host0/gpu7", "host1/gpu0"), ("host0/gpu7", "host1/gpu7")]:
    print(*(link.dst for link in few.route(*pair)), sep=" → ")
print(rail_wise([["a0", "a1"], ["b0", "b1"]]))

# %% rings-on-rails
def turned(hosts, by=0):
    return [gpu for host in hosts for gpu in host[by:] + host[:by]]

def there_and_back(hosts):
    return [gpu for h, host in enumerate(hosts) for gpu in host[:: -1 if h % 2 else 1]]

def eight_rings(hosts):
    return together(*(ring(turned(hosts, by), key=f"r{by}-") for by in range(8)))

rows = []
ways = {"ring": ring(turned(hosts)), "there_and_back": ring(there_and_back(hosts)),
        "8 rings": eight_rings(hosts), "rail_wise": rail_wise(hosts)}
for name, plan in ways.items():
    traces = [cost.shared(plan, rails(4, oversubscription=r), "1 GB") for r in (1, 4)]
    spine = sum(event.nbytes for event in traces[0].events if "spine" in
                [link.dst for link in few.route(event.src, event.dst)])
    busbw = bandwidth(traces[0]).busbw
    rows.append([name, f"{spine / 1e9:.3g} GB", *traces, str(busbw)])
table("algorithm", "through-spine", 1, 4, "busbw", rows=rows)

# %% guess-race
guess = d2lps.predict("ten-thousand", {"ring": "ms", "rail_wise": "ms"})
guess

# %% race
def race(plan, size="1 GB"):
    raced.append(cost.shared(plan, big, size))
    print(f"{time.perf_counter() - start:.1f} s")

start, raced = time.perf_counter(), []
big = rails(1280, latency="7 us", inside_latency="1.7 us")
many = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(1280)]
race(ring(turned(many)))

# %% race-rails
start = time.perf_counter()
race(rail_wise(many))

# %% race-halving
start = time.perf_counter()
race(rail_wise(many[:1024], halving_doubling))
entrants = ["ring", "rail_wise", "rail-halving"]
guess.reveal(dict(zip(entrants[:2], raced)))

# %% race-all-to-all
start = time.perf_counter()
race(all_to_all(turned(many)), "10240 GB")
race(all_to_all(turned(many), few_steps=True), "10240 GB")
entrants += ["all_to_all", "few-steps"]

# %% race-table
rows = [[name, len(trace.plan.nodes), trace.steps, trace, str(bandwidth(trace).busbw)]
        for name, trace in zip(entrants, raced)]
table("algorithm", "gpus", "steps-count", "takes", "busbw", rows=rows)

# %% zoom
def level(count):
    gpus = turned(many[:count])
    place = rails(count, latency="7 us", inside_latency="1.7 us")
    return fold(cost.shared(ring(gpus), place, "1 GB"), apart=gpus if count == 1 else [])

levels = {8 * count: level(count) for count in (1, 8, 64)} | {10240: fold(raced[0])}
watch(*levels.values(), names=[*map(str, levels)], name="zoom", zoom=True)

# %% published
def inside(rate):
    place = nvswitch(8, f"{rate} GB/s", links=1)
    return bandwidth(cost.shared(ring(gpus), place, "8 GB"))

def between(count, nic, rate):
    hosts = [[f"host{h}/gpu{g}" for g in range(8)] for h in range(count)]
    place = rails(count, nic=f"{nic} GB/s", inside=f"{rate} GB/s")
    return bandwidth(cost.shared(eight_rings(hosts), place, "8 GB"))

rows = []
for name, band, published in [
        ("8 A100", inside(12 * 20), 230), ("8 H100", inside(18 * 20.6), 370),
        ("8 B300", inside(18 * 40.1), 695),
        ("24 A100, 4 × 200 Gbit/s", between(3, 12.5, 240), 96),
        ("n × 8 H100, 8 × 400 Gbit/s", between(4, 50, 371), 8 * 47)]:
    error = band.busbw / 1e9 / published - 1
    rows.append([name, str(band.busbw), f"{published} GB/s", f"{error:+.1%}"])
table("topology", "modelled-busbw", "published", "error-percent", rows=rows)

# %% guess-switch
guess = d2lps.predict("switch", {"n = 2": "GB/s", "n = 8": "GB/s"})
guess

# %% switch
print(in_switch(gpus[:2], chunks=1))
rows, bands = [], {}
for n in (2, 3, 4, 8):
    place = nvswitch(n, links=18)
    around = cost.shared(ring(gpus[:n]), place, "1 GB")
    added = cost.shared(in_switch(gpus[:n], chunks=64), place, "1 GB")
    bands[n] = bandwidth(added)
    rows.append([n, str(bandwidth(around).busbw), str(bands[n].busbw),
                 f"{2 * (n - 1) / (n + 1):.3f}",
                 f"{added.bytes_sent('gpu0') / 1e9:.3f} S"])
guess.reveal({f"n = {n}": bands[n].busbw / 1e9 for n in (2, 8)})

# %% switch-table
table("gpus", "ring-busbw", "switch-busbw", "gain-formula", "on-the-wire", rows=rows)

# %% star
rows = []
for n in (2, 4):
    for name, plan in {"aggregate_at": aggregate_at(names[:n], names[0]),
                       "ring": ring(names[:n])}.items():
        trace = cost.shared(plan, racks, "2 MB")
        adds = max(sum(event.nbytes for event in trace.events
                       if event.op == "add" and event.dst == node)
                   for node in names[:n])
        rows.append([name, n, trace, eight.measure(plan, "2 MB", 1) if eight else None,
                     f"{adds / 4e6:.3g} M"])
table("algorithm", "host-count", "predicted", "measured", "most-adds", rows=rows)

# %% sources
gradient = 175e9 * 4
print(f"{gradient / 1e9:g} GB", f"{2 * gradient / 1e12:g} TB",
      f"{4 * gradient / 1e12:g} TB", f"{4 / 3 * gradient / 1e9:.0f} GB",
      f"{1e12 / 25e9:g} s", f"{12 * 25} GB/s", sep=", ")
for M in (3, 8, 64, 1024):
    star, around = 2 * (M - 1) * gradient / 25e9, 2 * (M - 1) / M * gradient / 25e9
    print(f"{M}: {star:.0f} s", f"{around:.1f} s", sep=", ")

held = {"a": torch.tensor([2.0, 4, 6]), "b": torch.tensor([1.0, 2, 3]),
        "c": torch.tensor([4.0, 8, 12])}
run(ring(held), held)
print(*held.values(), held["a"] / 3, sep="\n")

# %% straggler
slow, rows = host.slowed("gpu3", by=4), []
for name, plan in {"ring": ring(gpus), "halving": halving_doubling(gpus),
                   "adding-switch": in_switch(gpus), "tree": tree(gpus),
                   "aggregate_at": aggregate_at(gpus, "gpu0")}.items():
    healthy, late = (cost.shared(plan, place, "1 GB") for place in (host, slow))
    rows.append([name, healthy, late, f"{late.duration / healthy.duration:.2f}"])
table("algorithm", "no-delay", "slow-card", "times-slower", rows=rows)

# %% close
eight and eight.close()
ranks.close()

# %% exercise-busbw
def busbw(collective, n, nbytes, seconds):
    bandwidth = 0
    # TODO
    return bandwidth

d2lps.check_exercise("busbw", busbw)

# %% exercise-order-the-hosts
def order_the_hosts(rack_of):
    order = []
    # TODO
    return order

d2lps.check_exercise("order-the-hosts", order_the_hosts)

# %% exercise-bruck
def bruck(rank, n, mine, swap):
    blocks = []
    # TODO
    return blocks

d2lps.check_exercise("bruck", bruck)

# %% exercise-rail-ring
def rail_ring(hosts, k):
    order = []
    # TODO
    return order

d2lps.check_exercise("rail-ring", rail_ring)

# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("03")

# %% imports
import tempfile
import time
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import torch

from d2lps import Plan, Processes, Send, Trace, Update, aggregate_at, cluster, cost, d2l
from d2lps import draw, hierarchical, machines, ring, run, sharded, table, watch
from d2lps.units import show_seconds

# %% machines
draw(machines(hosts=2, gpus_per_host=2, nic="10 Gbit/s"))

# %% machines-table
def crossing(pairs, place):
    keys = {f"g{i}": pair for i, pair in enumerate(pairs, 1)}
    plan = Plan(dict.fromkeys(node for pair in pairs for node in pair),
                dict.fromkeys(keys, Fraction(1, len(pairs))),
                [[Send(src, dst, key, "copy") for key, (src, dst) in keys.items()]],
                holds=[(src, key) for key, (src, _) in keys.items()],
                wants=[(dst, key) for key, (_, dst) in keys.items()])
    return cost.shared(plan, place, 160_000_000 * len(pairs))

near = [("host0/gpu0", "host0/gpu1")]
there = [("host0/gpu0", "host1/gpu0"), ("host0/gpu1", "host1/gpu1")]
rows = []
for nic in ["10 Gbit/s", "25 Gbit/s", "100 Gbit/s", "400 Gbit/s"]:
    place = machines(2, 2, nic)
    rows.append([nic, *(crossing(pairs, place) for pairs in (near, there[:1], there))])
table("network-card", "same-host", "other-host", "two-at-once", rows=rows)

# %% by-hand
import subprocess

script = """#!/bin/sh
PATH=$PATH:/usr/sbin:/sbin
unshare --net sleep 9 &
sleep 0.3
ip link add eth0 type veth peer name eth0 netns $!
ip address add 10.0.0.1/24 dev eth0
nsenter --net=/proc/$!/ns/net ip address add 10.0.0.2/24 dev eth0
tc qdisc add dev eth0 root tbf rate 400mbit burst 80k latency 400ms
ip -brief address show dev eth0
nsenter --net=/proc/$!/ns/net ip -brief address show dev eth0
tc qdisc show dev eth0
kill $!
"""
try:
    made = subprocess.run(["unshare", "-Urn", "sh", "-e"], input=script,
                          capture_output=True, text=True, check=True).stdout
except (OSError, subprocess.CalledProcessError) as error:
    made = None
    print(getattr(error, "stderr", error))
print(d2lps.recorded("emulation", made, "by-hand"))

# %% cluster
try:
    four = cluster.emulated(hosts=4, gpus_per_host=2, bandwidth="400 Mbit/s", servers=4)
except cluster.ClusterError as error:
    four = None
    print(error)

def on_four(cell, measure):
    return d2lps.recorded("emulation", measure() if four else None, cell)

four

# %% ping
import torch.distributed as dist

def ping():
    dist.init_process_group("gloo")
    message = torch.zeros(2_500_000)
    for attempt in range(2):
        dist.barrier()
        start = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
    return message.nbytes / (time.perf_counter() - start) / 1e6

arrived = on_four("ping", lambda: four.run(ping, hosts=["host0", "host1"])[1])
print(f"{arrived:.1f} MB/s; {50 * 1448 / 1514:.1f} MB/s")

# %% network
def mbit(rate):
    return f"{rate * 1448 / 1514} Mbit/s"

network = machines(4, 2, mbit(400), servers=4)
print(network.links[-1])
four and four.topology.links[-1]

# %% seven-plan
hosts = [f"host{i}" for i in range(4)]
inside = {f"{host}/cpu": [f"{host}/gpu0", f"{host}/gpu1"] for host in hosts}
leaders, gpus = list(inside), [gpu for some in inside.values() for gpu in some]
pairs = [(gpu, cpu) for cpu, some in inside.items() for gpu in some]
sgd = Update("server0", "g", "sgd", (("lr", 0.1),))

add_inside = [Send(gpu, cpu, "g", "add") for gpu, cpu in pairs]
to_server = [Send(cpu, "server0", "g", "add") for cpu in leaders]
from_server = [Send("server0", cpu, "g", "copy") for cpu in leaders]
hand_out = [Send(cpu, gpu, "g", "copy") for gpu, cpu in pairs]
nodes = [node for cpu, some in inside.items() for node in [*some, cpu]] + ["server0"]
seven = Plan(nodes, {"g": 1}, [add_inside, [*to_server, sgd], from_server, hand_out],
             holds=gpus, wants=gpus)
print(seven)

# %% seven-same
at_server = aggregate_at(leaders, "server0", update=("sgd", {"lr": 0.1}))
seven == hierarchical(inside, at_server)

# %% net
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import train

def wide_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 10))

digits = train.digits().train
nbytes = sum(weight.nbytes for weight in wide_net().parameters())
nbytes

# %% seven-run
def all_seven(plan, place, data):
    net, mine = wide_net(), [node for node in plan.nodes if node in cluster.playing()]
    start = parameters_to_vector(net.parameters()).detach()
    weights, memory, carrier = {"server0": start.clone()}, {}, Processes(mine)
    for X, y in train.batches(data, 128, 2):
        clock = [time.perf_counter()]
        parts = dict(zip(gpus, train.split(X, y, ["cpu"] * len(gpus))))
        clock.append(time.perf_counter())
        held = {node: torch.zeros_like(start) for node in mine}
        for gpu in parts.keys() & held.keys():
            held[gpu] = train.loss_and_gradient(net, *parts[gpu], count=128)[1]
        clock.append(time.perf_counter())
        trace = run(plan, held, carrier, topology=place, weights=weights, memory=memory)
        vector_to_parameters(held[mine[0]], net.parameters())
    return clock[1] - clock[0], clock[2] - clock[1], trace

def on_host0():
    players = [*hosts, "server0"]
    *seconds, trace = four.run(all_seven, seven, place, digits, hosts=players)[0]
    return [*seconds, trace.to_json()]

place = machines(4, 2, mbit(400), servers=1)
predicted = cost.shared(seven, place, nbytes)
reading, computing, trace = on_four("seven-run", on_host0)
trace = Trace.from_json(trace)

# %% seven-watch
watch(trace, name="seven")

# %% seven-table
def lasts(trace):
    kinds = [(1, "send"), (2, "send"), (2, "update"), (3, "send"), (4, "send")]
    phases = [[event for event in trace.events if (event.step, event.kind) == kind]
              for kind in kinds]
    return [max(event.end for event in phase) - min(event.start for event in phase)
            for phase in phases]

table("step", "predicted", "measured", rows=[
    [1, None, show_seconds(reading)], [2, None, show_seconds(computing)],
    *[[i, show_seconds(one), show_seconds(other)]
      for i, one, other in zip(range(3, 8), lasts(predicted), lasts(trace))]])

# %% guess-one
guess = d2lps.predict("one-server", {"m = 1": "ms", "m = 4": "ms"})
guess

# %% one-server
def predicted_ms(plan):
    return 1e3 * cost.shared(plan, larger, "4 MB").duration

def measured_ms(cell, plans, rounds=1):
    return on_four(cell, lambda: [1e3 * four.measure(plan, "4 MB", rounds).duration
                                  for plan in plans])

larger = machines(8, 2, mbit(400), servers=8)
at_one = {m: aggregate_at([f"host{i}/cpu" for i in range(m)], "server0")
          for m in range(1, 9)}
expected = {m: predicted_ms(plan) for m, plan in at_one.items()}
seen = dict(zip(at_one, measured_ms("one-server", [at_one[m] for m in (1, 2, 3, 4)])))
guess.reveal(*({f"m = {m}": times[m] for m in (1, 4)} for times in (expected, seen)))

# %% one-server-plot
d2l.plot([list(expected), list(seen)], [[*expected.values()], [*seen.values()]],
         "host-count (m)", "time (ms)", legend=["predicted", "measured"],
         fmts=["-", "o"], figsize=(5, 3))

# %% guess-servers
guess = d2lps.predict("servers", {"k = 2": "ms", "k = 4": "ms", "k = 8": "ms"})
guess

# %% servers
def on_servers(k):
    return sharded(leaders, [f"server{j}" for j in range(k)])

expected = {k: predicted_ms(on_servers(k)) for k in range(1, 9)}
two, four_servers = measured_ms("servers", [on_servers(2), on_servers(4)])
seen = {1: seen[4], 2: two, 4: four_servers}
guess.reveal({f"k = {k}": expected[k] for k in (2, 4, 8)})

# %% servers-plot
d2l.plot([list(expected), list(seen)], [[*expected.values()], [*seen.values()]],
         "server-count (k)", "time (ms)", legend=["predicted", "measured"],
         fmts=["-", "o"], figsize=(5, 3))

# %% no-servers
def compared(cell, plans, place, rounds=1):
    rows = []
    found = measured_ms(cell, plans.values(), rounds)
    for (name, plan), ms in zip(plans.items(), found, strict=True):
        expected = cost.shared(plan, place, "4 MB")
        ratio = f"{ms / 1e3 / expected.duration:.2f}"
        rows.append([name, expected, show_seconds(ms / 1e3), ratio])
    return table("strategy", "predicted", "measured", "off-by", rows=rows)

compared("no-servers", {"k = m": sharded(leaders), "ring": ring(leaders)}, network, 2)

# %% guess-levels
shuffled = sorted(gpus, key=lambda gpu: gpu[-1])
levels = {"0-1-2-3-4-5-6-7": ring(gpus), "0-2-4-6-1-3-5-7": ring(shuffled),
          "4 × 2, ring": hierarchical(inside, ring(leaders)),
          "8 GPU, shards": sharded(gpus)}
guess = d2lps.predict("levels", {"4 × 2, ring": "ms", "0-2-4-6-1-3-5-7": "ms",
                                 "8 GPU, shards": "ms"})
guess

# %% levels-cost
guess.reveal({name: cost.shared(plan, network, "4 MB") for name, plan in levels.items()})

# %% levels
compared("levels", levels, network)

# %% best-mix
from d2lps import together

def mixed(m, k, chunks=32):
    places = leaders[:m] * (m - k) + [f"server{j}" for j in range(k)] * 2 * (m - 1)
    return together(*(sharded(leaders[:m], [place], chunks, key=f"g{i}-")
                      for i, place in enumerate(places, 1)))

rows = []
for k in range(5):
    factor = Fraction(2 * 4 * (4 - 1), 4**2 + k * 4 - 2 * k)
    seconds = float(factor) * 4e6 / network.links[-1].bandwidth
    rows.append([k, str(factor), show_seconds(seconds),
                 cost.shared(mixed(4, k), network, "4 MB")])
table("servers", "factor", "formula-time", "predicted", rows=rows)

# %% job
def fit(plan, data, steps):
    net, mine = wide_net(), [node for node in plan.nodes if node in cluster.playing()]
    weights = parameters_to_vector(net.parameters()).detach()
    carrier, losses = Processes(mine), []
    workers = list(dict.fromkeys(node for node, _ in plan.holds))
    start = time.perf_counter()
    for X, y in train.batches(data, 128, steps):
        parts = dict(zip(workers, train.split(X, y, ["cpu"] * len(workers))))
        held, loss = {node: torch.zeros_like(weights) for node in mine}, 0.0
        for worker in [node for node in mine if node in parts]:
            part, held[worker] = train.loss_and_gradient(net, *parts[worker], count=128)
            loss += part
        run(plan, held, carrier)
        if loss:
            weights -= 0.03 * held[worker]
            vector_to_parameters(weights, net.parameters())
        losses.append(loss)
    seconds = (time.perf_counter() - start) / steps
    return losses, seconds, sha256(weights.numpy()).hexdigest()

# %% job-run
ways = {"4 × 2, ring": hierarchical(inside, ring(leaders)),
        "1 server": hierarchical(inside, aggregate_at(leaders, "server0")),
        "4 servers": hierarchical(inside, on_servers(4))}

def fitted(plan):
    there = [host for host in four.hosts if {*four.nodes(host)} & {*plan.nodes}]
    return four.run(fit, plan, digits, 3, hosts=there)

def job_table(*names):
    rows = []
    for name in names:
        alone = cost.shared(ways[name], network, nbytes) if name in ways else None
        losses = [sum(step) for step in zip(*(losses for losses, *_ in jobs[name]))]
        _, seconds, bits = jobs[name][0]
        rows.append([name, f"{losses[0]:.4f}", f"{losses[-1]:.4f}",
                     bits == jobs["1 server"][0][2], alone, show_seconds(seconds)])
    return table("strategy", "first-loss", "loss", "same-as-server", "network-alone",
                 "per-step", rows=rows)

jobs = on_four("job-run", lambda: {name: fitted(plan) for name, plan in ways.items()})
job_table(*ways)

# %% ddp
from torch.nn.parallel import DistributedDataParallel

def fit_by_ddp(data, steps):
    dist.init_process_group("gloo")
    net, losses = DistributedDataParallel(wide_net()), []
    start = time.perf_counter()
    for X, y in train.batches(data, 128, steps):
        X, y = train.split(X, y, ["cpu"] * 4)[dist.get_rank()]
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(X), y)
        loss.backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.03 * weight.grad
        losses.append(loss.item() / 4)
    seconds = (time.perf_counter() - start) / steps
    dist.barrier()
    dist.destroy_process_group()
    weights = parameters_to_vector(net.parameters()).detach()
    return losses, seconds, sha256(weights.numpy()).hexdigest()

jobs["DDP"] = on_four("ddp", lambda: four.run(fit_by_ddp, digits, 3, hosts=hosts))
job_table("DDP")

# %% job-table
job_table(*ways, "DDP")

# %% guess-slow
few = {"ring": ring(leaders), "1 server": aggregate_at(leaders, "server0"),
       "4 servers": on_servers(4)}
guess = d2lps.predict("slow-host", {"ring": "ms", "1 server": "ms", "4 servers": "ms"})
guess

# %% slow-host-cost
names = [*hosts, *(f"server{j}" for j in range(4))]

def with_slow(name, rate):
    if four:
        four.reshape(name, f"{rate} Mbit/s")
    rates = [mbit(rate if each == name else 400) for each in names]
    return machines(4, 2, rates, servers=4)

slower = with_slow("host3", 100)
guess.reveal({name: cost.shared(plan, slower, "4 MB") for name, plan in few.items()})

# %% slow-host
compared("slow-host", few, slower)

# %% slow-server
with_slow("host3", 400)
slower = with_slow("server3", 100)
in_proportion = {f"server{j}": Fraction(1 if j == 3 else 4, 13) for j in range(4)}
fitting = sharded(leaders, in_proportion)
compared("slow-server", {"4 servers": on_servers(4), "4 : 4 : 4 : 1": fitting}, slower)

# %% lost
def again_and_again(plan, finished):
    mine = [node for node in plan.nodes if node in cluster.playing()]
    carrier = Processes(mine, deadline=2)
    while True:
        run(plan, {node: torch.zeros(5_000_000) for node in mine}, carrier)
        finished.touch()

def without_host2():
    with_slow("server3", 400)
    finished = Path(tempfile.mkdtemp()) / "finished"
    job = four.start(again_and_again, ring(leaders), finished, hosts=hosts)
    until = time.monotonic() + 60
    while not finished.exists() and time.monotonic() < until:
        time.sleep(0.1)
    four.kill("host2")
    start = time.perf_counter()
    try:
        return job.results()
    except cluster.HostLost as error:
        return [f"{time.perf_counter() - start:.1f} s: {error}",
                *(f"{host}: {type(result).__name__}: {result}"
                  for host, result in zip(hosts, error.results))]

print(*on_four("lost", without_host2), sep="\n")

# %% go-on
left = [leader for leader in leaders if leader != "host2/cpu"]
compared("go-on", {"ring": ring(left)}, network)

# %% close
if four:
    four.close()

# %% exercise-servers
def servers(m, machine, server):
    k = 0
    # TODO
    return k

d2lps.check_exercise("servers", servers)

# %% exercise-seven-steps
def seven_steps(trace):
    seconds = {3: 0.0, 4: 0.0, 5: 0.0, 6: 0.0, 7: 0.0}
    # TODO
    return seconds

d2lps.check_exercise("seven-steps", seven_steps)

# %% exercise-hierarchy
def hierarchy(hosts):
    gpus = [gpu for some in hosts for gpu in some]
    shares = {"g": 1}
    steps = []
    # TODO
    return Plan(gpus, shares, steps)

d2lps.check_exercise("hierarchy", hierarchy)

# %% exercise-best-mix
def best_mix(machines, bandwidth, servers):
    shares = {}
    # TODO
    return shares

d2lps.check_exercise("best-mix", best_mix)

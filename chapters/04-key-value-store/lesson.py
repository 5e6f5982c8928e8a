# %% language
import d2lps

d2lps.speak("en")

# %% imports
import copy
import socket
import time

import torch

from d2lps import d2l, draw, kvstore, table, train, watch
from d2lps.kvstore import Broken, Channel, Entry, Op, Placement, ShardStore, raw
from d2lps.train import by_store

# %% guess
guess = {"pull 1": None, "pull 2": None}

# %% scratch
class Store:
    def __init__(self):
        self.values = {}

    def init(self, key, value):
        self.values[key] = value.clone()

    def push(self, key, values):
        self.values[key] = sum(values)

    def pull(self, key, out):
        out.copy_(self.values[key])

# %% scratch-run
def twice(store):
    seen, found = torch.empty(2), []
    store.init("conv.weight", torch.tensor([7., 7.]))
    for _ in range(2):
        store.push("conv.weight", [torch.full((2,), 10.0**j) for j in range(4)])
        store.pull("conv.weight", out=seen)
        found.append(seen.tolist())
    return found

print(guess)
twice(Store())

# %% local
twice(kvstore.create("local"))

# %% device
store = kvstore.create("device")
print(twice(store))
watch(store.trace())

# %% loop
def fit(store, net, steps):
    names = [name for name, _ in net.named_parameters()]
    weights = [weight.detach() for weight in net.parameters()]
    store.init(names, weights)
    store.set_optimizer("sgd", lr=0.03, momentum=0.9)
    store.pull(names, out=weights)
    for X, y in train.batches(train.digits().train, 128, steps):
        X, y = train.split(X, y, ["cpu"] * store.num_workers)[store.rank]
        train.loss_and_gradient(net, X, y, count=128)
        store.pushpull(names, [weight.grad for weight in net.parameters()], out=weights)
    return net

# %% loop-local
def accuracy(net):
    return f"{train.accuracy(net, torch.nn.utils.parameters_to_vector(net.parameters()), train.digits().test):.1%}"

accuracy(fit(kvstore.create("local"), train.small_cnn(), 48))

# %% loop-cluster
nets = [train.small_cnn() for _ in range(3)]
with kvstore.cluster("dist_sync", workers=3, servers=2) as stores:
    by_store.each(stores, lambda store: fit(store, nets[store.rank], 48))
[accuracy(net) for net in nets]

# %% round-trip
def rounds(store, count=3, pauses=(0.01, 0.01, 0.01)):
    value, gradient = torch.zeros(2_000_000), torch.full((2_000_000,), 4.0**store.rank)
    store.init("w", value)
    store.set_optimizer("sgd", lr=1.0)
    for _ in range(count):
        time.sleep(pauses[store.rank])
        store.push("w", gradient)
        store.pull("w", out=value)
    store.barrier()
    return value[0].item(), value[-1].item()

with kvstore.cluster("dist_sync", workers=3, servers=2, record=True, transport="tcp") as stores:
    print(by_store.each(stores, rounds))
    sync = stores[0].trace("w")
watch(sync)

# %% round-trip-bytes
table("node", "sent", "received", rows=[
    [node, sync.bytes_sent(node) / 1e6, sync.bytes_received(node) / 1e6] for node in sync.plan.nodes])

# %% guess-moved
guess["moved"] = None

# %% modulo
names = [name for name, _ in train.small_cnn().named_parameters()]
keys = [f"layer{i}.{name}" for i in range(500) for name in names]

def modulo(key, servers):
    return sum(key.encode()) % servers

def moved(before, after):
    return sum(before(key) != after(key) for key in keys) / len(keys)

four, five = Placement(4), Placement(5)
table("guess-moved", "modulo", "hash-ring", rows=[[
    guess["moved"], f"{moved(lambda k: modulo(k, 4), lambda k: modulo(k, 5)):.1%}",
    f"{moved(four.owner, five.owner):.1%}"]])

# %% placement
print(five)
draw(Placement(5, virtual=8))

# %% virtual
rows = []
for virtual in [1, 4, 16, 64, 256, 1024]:
    place = Placement(5, virtual=virtual)
    loads = [place.share(server) * 5 for server in range(5)]
    rows.append([virtual, f"{min(loads):.2f}", f"{max(loads):.2f}"])
table("virtual", "least", "most", rows=rows)

# %% large
for part in five.parts("embedding.weight", 10_000 * 64, width=64):
    print(part)

# %% frame
one, other = (Channel(end, seconds=5) for end in socket.socketpair())
gradient = torch.tensor([1., 2., 3.])
one.send(Op.PUSH, number=7, entries=[Entry(part=0, dtype=0, finite=1, elements=3, round=1)], payload=raw(gradient))
wire = other.sock.recv(1000)
for name, start, stop in [("magic", 0, 4), ("version", 4, 5), ("op", 5, 6), ("flags", 6, 8), ("entries", 8, 12),
                          ("table", 12, 16), ("payload", 16, 24), ("number", 24, 32)]:
    print(f"{name:8}  {wire[start:stop].hex(' '):24}", int.from_bytes(wire[start:stop], "little"))

# %% frame-read
one.sock.sendall(wire)
frame, arrived = other.receive(), torch.empty(3)
other.into(frame, raw(arrived))
print(frame, arrived, sep="\n")

# %% frame-flip
def flipped(at):
    one, other = (Channel(end, seconds=5) for end in socket.socketpair())
    one.sock.sendall(wire[:at] + bytes([wire[at] ^ 1]) + wire[at + 1:])
    try:
        other.into(other.receive(), raw(torch.empty(3)))
    except Broken as error:
        return error

print(flipped(16), flipped(40), flipped(len(wire) - 12), sep="\n")

# %% count-messages
class CountsMessages:
    def __init__(self, workers):
        self.workers, self.arrived = workers, []

    def push(self, worker, number, value):
        self.arrived.append(value)
        if len(self.arrived) == self.workers:
            self.value, self.arrived = sum(self.arrived), []

server = CountsMessages(2)
server.push(0, 1, 4.0**0)
server.push(0, 1, 4.0**0)
server.value

# %% count-workers
server = ShardStore("dist_sync", workers=2)
for rank in range(2):
    server.init(rank, "w", 1, torch.float32, torch.zeros(1) if rank == 0 else None)

def push(rank, number):
    if server.admit(rank, 0, 1, torch.float32, number):
        server.push(rank, 0, number, torch.tensor([4.0**rank]))
    shard = server.shards[0]
    return shard.version, shard.value.item()

push(0, 1), push(0, 1), push(1, 1)

# %% optimizer
weight = torch.nn.Parameter(torch.ones(5))
step = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
store, value = kvstore.create("local"), torch.ones(5)
store.init("w", value)
store.set_optimizer("sgd", lr=0.1, momentum=0.9)
for i in range(10):
    weight.grad = torch.linspace(0, 1, 5) * (i + 1)
    step.step()
    store.pushpull("w", weight.grad, out=value)
torch.equal(weight.detach(), value)

# %% optimizer-code
try:
    store.set_optimizer(torch.optim.SGD([weight], lr=0.1))
except kvstore.Refused as error:
    print(error)

# %% in-turn
net, data, update = train.small_cnn(), train.digits().train, ("sgd", {"lr": 0.03, "momentum": 0.9})
rows = []
for workers, servers, devices in [(1, 1, 2), (2, 1, 1), (2, 3, 2), (3, 2, 1)]:
    with kvstore.cluster("dist_sync", workers=workers, servers=servers) as stores:
        done = by_store.each(stores, lambda store: by_store.work(
            store, copy.deepcopy(net), data, 128, 12, update, devices=["cpu"] * devices))
    one = by_store.in_turn(net, data, 128, 12, update, workers=[devices] * workers)
    rows.append([workers, servers, devices, all(torch.equal(worker.weights, one.weights) for worker in done)])
table("workers", "servers", "devices", "in-turn", rows=rows)

# %% curves
curves = by_store.curves(net, data, size=96, steps=32, update=("sgd", {"lr": 0.1}), pauses=[0, 0, 0.02])
table("store", "steps-in", "seconds", "most-behind", "loss", rows=[
    [name, len(curve.losses), f"{curve.seconds[-1]:.2f}", max(curve.staleness), curve.losses[-1]]
    for name, curve in curves.items()])

# %% curves-steps
FMTS = ["-", "m--", "g-.", "r:", "k-"]
d2l.plot(list(range(1, 33)), [curve.losses for curve in curves.values()],
         "c", "loss", legend=list(curves), fmts=FMTS, figsize=(5, 3))

# %% curves-seconds
d2l.plot([curve.seconds for curve in curves.values()], [curve.losses for curve in curves.values()],
         "t / s", "loss", legend=list(curves), fmts=FMTS, figsize=(5, 3))

# %% stale
with kvstore.cluster("dist_ssp", workers=3, servers=1, staleness=1, record=True, transport="tcp") as stores:
    by_store.each(stores, lambda store: rounds(store, count=6, pauses=(0.01, 0.01, 0.05)))
    bounded, pulls = stores[0].trace("w"), stores[0].staleness("w")
watch(bounded)

# %% stale-table
table("worker", "clock", "seen", "behind", rows=[
    [f"worker{pull.rank}", pull.clock, " ".join(map(str, pull.seen)), pull.behind] for pull in pulls[:10]])

# %% sparse
with kvstore.cluster("dist_sync", workers=1, servers=3) as stores:
    embedding = torch.arange(640_000.).reshape(10_000, 64)
    stores[0].init("embedding", embedding)
    rows, wanted = torch.empty(3, 64), torch.tensor([9_999, 5, 5_000])
    stores[0].row_sparse_pull("embedding", out=rows, row_ids=wanted)
print(torch.equal(rows, embedding[wanted]), embedding.nbytes, rows.nbytes)

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-store
# %%px
import time
import torch
from d2lps import kvstore

store = kvstore.create("dist_sync", servers=2, record=True)
gradient, value = torch.full((1_000_003,), 4.0**store.rank), torch.empty(1_000_003)
store.init("w", torch.zeros(1_000_003))
for _ in range(3):
    store.pushpull("w", gradient, out=value)
store.barrier()
trace = store.trace("w")
print(store.rank, value[0].item(), value[-1].item())

# %% px-watch
watch(ranks[0]["trace"])

# %% px-lost
# %%px
impatient = kvstore.create("dist_sync", servers=1, deadline=2)
impatient.init("w", torch.zeros(3))
try:
    if impatient.rank == 2:
        time.sleep(4)
    else:
        impatient.pushpull("w", torch.ones(3), out=torch.empty(3))
except kvstore.KVError as error:
    print(f"{impatient.rank}: {type(error).__name__}: {error}")

# %% px-mxnet
# %%px
try:
    pslite = kvstore.create("dist_sync", engine="mxnet", servers=2)
except kvstore.Refused as error:
    pslite = None
    print(error)

def seconds(store, rounds=10):
    out, times = torch.empty_like(gradient), []
    store.init("race", torch.zeros_like(gradient))
    for _ in range(rounds):
        store.barrier()
        start = time.perf_counter()
        store.pushpull("race", gradient, out=out)
        times.append(time.perf_counter() - start)
    return out[0].item(), sorted(times)[rounds // 2]

race = {name: seconds(engine) for name, engine in {"d2lps": store, "MXNet": pslite}.items() if engine}

# %% mxnet
table("engine", "sum", "milliseconds", rows=[
    [name, f"{found:g}", f"{1e3 * taken:.2f}"] for name, (found, taken) in sorted(ranks[0]["race"].items(), reverse=True)])

# %% close
ranks.close()

# %% exercise-push-pull
def push_pull(workers, servers, send, recv):
    def push(key, value):
        pass

    def pull(key):
        pass

    def serve():
        pass
    # TODO
    return push, pull, serve

d2lps.check_exercise("push-pull", push_pull)

# %% exercise-placement
def placement(keys, servers):
    place = {}
    # TODO
    return place

d2lps.check_exercise("placement", placement)

# %% exercise-count-workers
def count_workers(n):
    def receive(worker, number, value):
        # TODO
        return None
    return receive

d2lps.check_exercise("count-workers", count_workers)

# %% exercise-sparse-pull
def sparse_pull(rows, cuts, ask):
    found = []
    # TODO
    return found

d2lps.check_exercise("sparse-pull", sparse_pull)

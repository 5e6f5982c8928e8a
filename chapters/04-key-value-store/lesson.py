# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("04")

# %% imports
import torch

from d2lps import kvstore, table, watch

# %% guess
pulls = d2lps.predict("twice", {"pull 1": "", "pull 2": ""})
pulls

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
    store.init("conv.weight", torch.tensor([500., 500.]))
    for _ in range(2):
        store.push("conv.weight", [torch.full((2,), 10.0**j) for j in range(4)])
        store.pull("conv.weight", out=seen)
        found.append(seen.tolist())
    return found

first, second = twice(Store())
pulls.reveal({"pull 1": first[0], "pull 2": second[0]})

# %% local
first, second, twice(kvstore.create("local"))

# %% device
store = kvstore.create("device")
print(twice(store))
watch(store.trace(), name="device")

# %% loop
from torch.nn import functional

from d2lps import train

digits = train.digits()

def fit(store, net, steps, before=lambda: None, lr=0.03, momentum=0.9):
    names = [name for name, _ in net.named_parameters()]
    weights = [weight.detach() for weight in net.parameters()]
    store.init(names, weights)
    store.set_optimizer("sgd", lr=lr, momentum=momentum)
    store.pull(names, out=weights)
    for X, y in train.batches(digits.train, 128, steps):
        before()
        X, y = X[store.rank::store.num_workers], y[store.rank::store.num_workers]
        net.zero_grad()
        loss = functional.cross_entropy(net(X), y, reduction="sum") / 128
        loss.backward()
        gradients = [weight.grad for weight in net.parameters()]
        store.pushpull(names, gradients, out=weights)
    return net

# %% loop-local
def accuracy(net):
    X, y = digits.test
    return f"{(net(X).argmax(1) == y).float().mean():.1%}"

accuracy(fit(kvstore.create("local"), train.small_cnn(), 48))

# %% loop-cluster
from d2lps.train import by_store

nets = [train.small_cnn() for _ in range(3)]
with kvstore.cluster("dist_sync", workers=3, servers=2) as stores:
    by_store.each(stores, lambda store: fit(store, nets[store.rank], 48))
[accuracy(net) for net in nets]

# %% all-reduce
from d2lps import Here, ring, run

workers = [f"worker{i}" for i in range(4)]

def total(store):
    value = torch.full((8,), 4.0**store.rank)
    store.init("g", torch.zeros(8))
    store.pushpull("g", value, out=value)
    return value

with kvstore.cluster("dist_sync", workers=4, servers=2) as stores:
    pulled = by_store.each(stores, total)

buffers = {worker: torch.full((8,), 4.0**i) for i, worker in enumerate(workers)}
run(ring(workers), buffers, Here())
[value[0].item() for value in pulled], [value[0].item() for value in buffers.values()]

# %% store-or-ring
from d2lps import Link, Topology, cost, sharded

workers, servers = ([f"{what}{i}" for i in range(8)] for what in ("worker", "server"))
ends = [(node, "switch") for node in workers + servers]
links = [Link(*pair, "1.25 GB/s") for end in ends for pair in (end, end[::-1])]
kinds = dict.fromkeys(workers + servers, "machine") | {"switch": "switch"}
network = Topology("network", kinds, links)

plans = {f"k = {k}": sharded(workers, servers[:k]) for k in [1, 2, 4, 8]}
plans |= {"k = n": sharded(workers), "ring": ring(workers)}
table("strategy", "shared", rows=[
    [name, cost.shared(plan, network, "160 MB")] for name, plan in plans.items()])

# %% federated
from itertools import islice

def average(store, net, rounds, local):
    names = [name for name, _ in net.named_parameters()]
    weights = [weight.detach() for weight in net.parameters()]
    own = slice(*[(0, 768), (768, 1280), (1280, 1536)][store.rank])
    X, y = digits.train[0][own], digits.train[1][own]
    data = train.batches((X, y), 64, rounds * local)
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    store.init(names, weights)
    for _ in range(rounds):
        for X, y in islice(data, local):
            net.zero_grad()
            functional.cross_entropy(net(X), y).backward()
            step.step()
        part = (own.stop - own.start) / len(digits.train[1])
        store.pushpull(names, [weight * part for weight in weights], out=weights)
    return accuracy(net)

for rounds, local in [(48, 1), (6, 8)]:
    nets = [train.small_cnn() for _ in range(3)]
    with kvstore.cluster("dist_sync", workers=3) as stores:
        found = by_store.each(
            stores, lambda store: average(store, nets[store.rank], rounds, local))
    print(rounds, "×", local, found)

# %% guess-moved
moving = d2lps.predict("moved", {"number % k": "%"})
moving

# %% modulo
names = [name for name, _ in train.small_cnn().named_parameters()]
keys = [f"layer{i}.{name}" for i in range(500) for name in names]

def modulo(key, servers):
    return sum(key.encode()) % servers

def moved(before, after):
    return 100 * sum(before(key) != after(key) for key in keys) / len(keys)

remainder = moved(lambda key: modulo(key, 4), lambda key: modulo(key, 5))
moving.reveal({"number % k": remainder})

# %% hash-ring
from bisect import bisect
from hashlib import sha256

def number(text):
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")

def owner(key, servers, places=256):
    circle = sorted((number(f"{server} {i}"), server)
                    for server in range(servers) for i in range(places))
    after = bisect([at for at, _ in circle], number(key))
    return circle[after % len(circle)][1]

[owner(key, 4) for key in keys[:6]], [owner(key, 5) for key in keys[:6]]

# %% placement
from d2lps import draw

four, five = kvstore.Placement(4), kvstore.Placement(5)
print(f"number % k: {remainder:.1f}%")
print(f"Placement: {moved(four.owner, five.owner):.1f}%")
draw(kvstore.Placement(5, virtual=8))

# %% virtual
rows = []
for virtual in [1, 4, 16, 64, 256, 1024]:
    place = kvstore.Placement(5, virtual=virtual)
    loads = [place.share(server) * 5 for server in range(5)]
    rows.append([virtual, f"{min(loads):.2f}", f"{max(loads):.2f}"])
table("virtual", "least", "most", rows=rows)

# %% large
for part in five.parts("embedding.weight", 10_000 * 64, width=64):
    print(part)

# %% round-trip
import time

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

with kvstore.cluster("dist_sync", workers=3, servers=2,
                     record=True, transport="tcp") as stores:
    print(by_store.each(stores, rounds))
    sync = stores[0].trace("w")
watch(sync, name="round-trip")

# %% round-trip-bytes
table("node", "sent", "received", rows=[
    [node, sync.bytes_sent(node) / 1e6, sync.bytes_received(node) / 1e6]
    for node in sync.plan.nodes])

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
class CountsWorkers:
    def __init__(self, workers):
        self.workers, self.version, self.value, self.arrived = workers, 0, 0.0, {}

    def push(self, worker, number, value):
        if number > self.version:
            self.arrived[worker] = value
        if len(self.arrived) == self.workers:
            self.value = sum(self.arrived[rank] for rank in range(self.workers))
            self.version, self.arrived = self.version + 1, {}
        return self.version, self.value

server = CountsWorkers(2)
for worker, number in [(0, 1), (0, 1), (1, 1), (1, 1)]:
    print(worker, number, "→", server.push(worker, number, 4.0**worker))

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

# %% in-turn
def in_turn(net, workers, steps):
    step = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    for X, y in train.batches(digits.train, 128, steps):
        parts = []
        for rank in range(workers):
            net.zero_grad()
            found, right = net(X[rank::workers]), y[rank::workers]
            (functional.cross_entropy(found, right, reduction="sum") / 128).backward()
            parts.append([weight.grad.clone() for weight in net.parameters()])
        for weight, *gradients in zip(net.parameters(), *parts):
            weight.grad = sum(gradients)
        step.step()
    return net

def same(one, other):
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters()))

rows = []
for n, k in [(1, 1), (2, 1), (2, 3), (3, 2)]:
    nets = [train.small_cnn() for _ in range(n)]
    with kvstore.cluster("dist_sync", workers=n, servers=k) as stores:
        by_store.each(stores, lambda store: fit(store, nets[store.rank], 12))
    with train.deterministic():
        one = in_turn(train.small_cnn(), n, 12)
    rows.append([n, k, all(same(net, one) for net in nets)])
table("workers", "servers", "in-turn", rows=rows)

# %% guess-slow
pauses, steps = [0.02, 0.02, 0.08], 24
slow = d2lps.predict("slow", {"sync": "ms", "async": "ms", "staleness 4": "ms"})
slow

# %% curves
import copy
import time

kinds = {"sync": {"kind": "dist_sync"}, "async": {"kind": "dist_async"},
         "staleness 4": {"kind": "dist_ssp", "staleness": 4}}

def watched(options):
    nets, times, kept = [train.small_cnn() for _ in range(3)], [], []

    def note(store):
        if store.rank == 0:
            times.append(time.perf_counter())
            kept.append(copy.deepcopy(nets[0]))

    def work(store):
        def before():
            note(store)
            time.sleep(pauses[store.rank])

        fit(store, nets[store.rank], steps, before, lr=0.1, momentum=0.0)
        note(store)

    with kvstore.cluster(workers=3, servers=1, record=True, **options) as stores:
        by_store.each(stores, work)
        pulls = stores[0].staleness("0.weight")
    behind = max(pull.behind for pull in pulls if pull.rank == 0)
    with train.deterministic(), torch.no_grad():
        X, y = digits.train
        losses = [functional.cross_entropy(net(X), y).item() for net in kept]
    return [at - times[0] for at in times], losses, behind

curves = {name: watched(options) for name, options in kinds.items()}
asleep = {"sync": steps * 80, "async": steps * 20, "staleness 4": (steps - 4) * 80}
slow.reveal(asleep, {name: 1e3 * curves[name][0][-1] for name in asleep})

# %% curves-table
from d2lps import d2l

table("store", "seconds", "most-behind", "loss", rows=[
    [name, f"{seconds[-1]:.2f}", behind, losses[-1]]
    for name, (seconds, losses, behind) in curves.items()])

# %% curves-steps
losses = [losses for _, losses, _ in curves.values()]
style = {"legend": list(curves),
         "fmts": ["-", "m--", "g-."], "figsize": (5, 3)}
d2l.plot(list(range(steps + 1)), losses, "step", "loss", **style)

# %% curves-seconds
seconds = [seconds for seconds, *_ in curves.values()]
d2l.plot(seconds, losses, "time (s)", "loss", **style)

# %% guess-ahead
lead = d2lps.predict("ahead", {"s = 0": "", "s = 1": "", "s = 2": ""})
lead

# %% ahead
def ahead(s):
    done = []
    def work(store):
        store.init("w", torch.zeros(1))
        store.set_optimizer("sgd", lr=1.0)
        time.sleep(0.3 * store.rank)
        before = len(done)
        for _ in range(4):
            store.push("w", torch.ones(1))
            done.append(store.rank)
            store.pull("w", out=torch.empty(1))
        return before

    with kvstore.cluster("dist_ssp", workers=2, staleness=s) as stores:
        return by_store.each(stores, work)[1]

lead.reveal({f"s = {s}": ahead(s) for s in range(3)})

# %% stale
with kvstore.cluster("dist_ssp", workers=3, servers=1, staleness=1,
                     record=True, transport="tcp") as stores:
    by_store.each(
        stores, lambda store: rounds(store, count=6, pauses=(0.01, 0.01, 0.05)))
    bounded, seen = stores[0].trace("w"), stores[0].staleness("w")
watch(bounded, name="stale")

# %% stale-table
table("worker", "clock", "seen", "behind", rows=[
    [f"worker{pull.rank}", pull.clock, " ".join(map(str, pull.seen)), pull.behind]
    for pull in seen[:10]])

# %% sparse
with kvstore.cluster("dist_sync", workers=1, servers=3) as stores:
    embedding = torch.arange(640_000.).reshape(10_000, 64)
    stores[0].init("embedding", embedding)
    rows, wanted = torch.empty(3, 64), torch.tensor([9_999, 5, 5_000])
    stores[0].row_sparse_pull("embedding", out=rows, row_ids=wanted)
print(torch.equal(rows, embedding[wanted]), embedding.nbytes, rows.nbytes)

# %% ratings
users, films, size = 500, 1500, 8
make = torch.Generator().manual_seed(0)
likes = torch.randn(users, size, generator=make) / size**0.5
tells = torch.randn(films, size, generator=make) / size**0.5
who = torch.randint(users, (8192,), generator=make)
popular = 1 / torch.arange(1., films + 1)
what = torch.multinomial(popular, 8192, replacement=True, generator=make)
rating = (likes[who] * tells[what]).sum(1)
what.bincount()[:3].tolist(), len(what.unique())

# %% recommend
def recommend(store, epochs=4, batch=128):
    keys = [f"user {i}" for i in range(users)] + [f"film {i}" for i in range(films)]
    make = torch.Generator().manual_seed(1)
    store.init(keys, list(0.3 * torch.randn(len(keys), size, generator=make)))
    store.set_optimizer("sgd", lr=0.09)
    losses, pushed = [], []
    for _ in range(epochs):
        for at in range(store.rank * batch, len(rating), store.num_workers * batch):
            now = slice(at, at + batch)
            both = torch.cat([who[now], users + what[now]])
            rows, places = both.unique(return_inverse=True)
            wanted, values = [keys[row] for row in rows], torch.empty(len(rows), size)
            store.pull(wanted, out=list(values))
            values.requires_grad_()
            user, film = values[places].chunk(2)
            loss = ((user * film).sum(1) - rating[now]).square().sum()
            loss.backward()
            store.push(wanted, list(values.grad))
            losses.append(loss.item() / batch)
            pushed.append(len(rows))
    return losses, pushed

with kvstore.cluster("dist_async", workers=2, servers=2) as stores:
    (losses, pushed), _ = by_store.each(stores, recommend)
print(f"{sum(losses[:8]) / 8:.3f} → {sum(losses[-8:]) / 8:.3f}")
print(f"{sum(pushed) / len(pushed):.0f} / {users + films}")

# %% ranks
import os
import secrets

os.environ["D2LPS_SECRET"] = secrets.token_hex()
ranks = d2lps.ranks(4)
ranks

# %% px-store
# %%px
import time
import torch
from d2lps import kvstore

store = kvstore.create("dist_sync", servers=2, record=True)
gradient, value = torch.full((1_000_000,), 4.0**store.rank), torch.empty(1_000_000)
store.init("w", torch.zeros(1_000_000))
for _ in range(3):
    store.pushpull("w", gradient, out=value)
store.barrier()
trace = store.trace("w")
print(store.rank, value[0].item(), value[-1].item())

# %% px-watch
watch(ranks[0]["trace"], name="processes")

# %% px-lost
# %%px
impatient = kvstore.create("dist_sync", servers=1, deadline=4, joining=30)
impatient.init("w", torch.zeros(3))
try:
    if impatient.rank == 2:
        time.sleep(8)
    else:
        impatient.pushpull("w", torch.ones(3), out=torch.empty(3))
except kvstore.KVError as error:
    print(f"{impatient.rank}: {type(error).__name__}: {error}")

# %% px-mxnet
# %%px
tcp = kvstore.create("dist_sync", servers=2, transport="tcp")
try:
    mxnet = kvstore.create("dist_sync", engine="mxnet", servers=2)
except kvstore.Refused as error:
    mxnet = None
    print(error)

def seconds(store, rounds=20):
    out, times = torch.empty_like(gradient), []
    store.init("race", torch.zeros_like(gradient))
    for _ in range(rounds):
        store.barrier()
        start = time.perf_counter()
        store.pushpull("race", gradient, out=out)
        times.append(time.perf_counter() - start)
    return out[0].item(), sorted(times)

engines = {"d2lps, TCP": tcp, "MXNet, TCP": mxnet, "d2lps, memory": store}
race = {name: seconds(engine) for name, engine in engines.items() if engine}

# %% mxnet
def compared(race):
    rows = []
    for name in filter(race.get, ["d2lps, TCP", "MXNet, TCP", "d2lps, memory"]):
        found, times = race[name]
        median, spread = times[len(times) // 2], times[-3] / times[2]
        unsteady = "~ " if spread > 1.3 else ""
        rows.append([name, f"{found:g}", f"{1e3 * median:.2f}",
                     f"{unsteady}{spread:.2f}"])
    return table("engine", "sum", "milliseconds", "spread", rows=rows)

race = ranks[0]["race"]
here = "MXNet, TCP" in race
if not here:
    display(compared(race))
compared(d2lps.recorded("mxnet", race if here else None))

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

# %% frame
import socket

from d2lps.kvstore import Broken, Channel, Entry, Op, raw

one, other = (Channel(end, seconds=5) for end in socket.socketpair())
gradient = torch.tensor([1., 2., 3.])
entry = Entry(part=0, dtype=0, in_rows=0, elements=3, round=1)
one.send(Op.PUSH, number=7, entries=[entry], payload=raw(gradient))
wire = other.sock.recv(1000)
for name, start, stop in [
        ("magic", 0, 4), ("version", 4, 5), ("op", 5, 6), ("flags", 6, 8),
        ("entries", 8, 12), ("table", 12, 16), ("payload", 16, 24), ("number", 24, 32)]:
    field = wire[start:stop]
    print(f"{name:8}  {field.hex(' '):24}", int.from_bytes(field, "little"))

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

# %% optimizer-code
store = kvstore.create("local")
try:
    store.set_optimizer(torch.optim.SGD([weight], lr=0.1))
except kvstore.Refused as error:
    print(error)

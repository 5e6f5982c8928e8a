# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("05")

# %% ready
import math

import torch
from matplotlib import pyplot
from torch import nn
from torch.nn import functional

from d2lps import table, train, watch

digits = train.digits()

def tell(name):
    return lambda weight: print(name, tuple(weight.shape))

net = train.small_cnn()
for name, weight in net.named_parameters():
    weight.register_post_accumulate_grad_hook(tell(name))
X, y = digits.train
functional.cross_entropy(net(X[:64]), y[:64]).backward()

# %% guess-overlap
sending = d2lps.predict(
    "overlap", {"sent last": "ms", "sent early": "ms", "layer 1 first": "ms"})
sending

# %% finish
def finish(ready, sizes, latency, rate):
    done = 0.0
    for at, size in zip(ready, sizes):
        done = max(at, done) + latency + size / rate
    return done

ready, sizes = [10, 20, 30, 40], [8, 8, 8, 8]
sending.reveal({"sent last": finish([40], [32], 0, 1),
                "sent early": finish(ready, sizes, 0, 1),
                "layer 1 first": finish(ready[::-1], sizes, 0, 1)})

# %% bucket-size
from d2lps.units import show_error, show_number, show_seconds

def with_buckets(count, layers=120, latency=1e-3, rate=1.25e9, backward=0.12):
    of_each = layers // count
    ready = [backward * of_each * (i + 1) / layers for i in range(count)]
    return finish(ready, [1e6 * of_each] * count, latency, rate)

counts = [1, 2, 4, 8, 12, 24, 40, 60, 120]
table("buckets", *counts, rows=[
    ["all sent", *(show_seconds(with_buckets(count)) for count in counts)]])

# %% buckets
class Buckets:
    def __init__(self, parameters, nbytes, send):
        self.send, self.buckets, room = send, [], 0
        for weight in parameters:
            if not self.buckets or weight.nbytes > room:
                self.buckets.append([])
                room = nbytes
            self.buckets[-1].append(weight)
            room -= weight.nbytes
        self.missing, self.sent = [len(bucket) for bucket in self.buckets], []
        for i, bucket in enumerate(self.buckets):
            for weight in bucket:
                weight.register_post_accumulate_grad_hook(lambda _, i=i: self.ready(i))

    def ready(self, i):
        self.missing[i] -= 1
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            bucket = self.buckets[len(self.sent)]
            flat = torch.cat([weight.grad.flatten() for weight in bucket])
            self.sent.append((flat, self.send(flat)))

    def wait(self):
        for bucket, (flat, handle) in zip(self.buckets, self.sent):
            handle.wait()
            pieces = flat.split([weight.numel() for weight in bucket])
            for weight, piece in zip(bucket, pieces):
                weight.grad.copy_(piece.view_as(weight))
        self.missing, self.sent = [len(bucket) for bucket in self.buckets], []

class Sent:
    def __init__(self, flat):
        print("→", flat.nbytes)

    def wait(self):
        print("✓")

net = train.small_cnn()
for name, weight in net.named_parameters():
    weight.register_post_accumulate_grad_hook(tell(name))
buckets = Buckets([*net.parameters()][::-1], nbytes=20_000, send=Sent)
functional.cross_entropy(net(X[:64]), y[:64]).backward()
buckets.wait()

# %% two-hosts
from d2lps import cluster

try:
    two = cluster.emulated(hosts=2, bandwidth="100 Mbit/s")
except cluster.ClusterError as error:
    two = None
    print(error)

import time
from functools import partial

import torch.distributed as dist

def deep_net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))

def overlapped(steps=5):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    X, ready, sent, now = torch.randn(2048, 256), [], [], time.perf_counter

    def send(flat):
        work = dist.all_reduce(flat, async_op=True)
        sent.append((now(), work.get_future().then(lambda _: now())))
        return work

    total = sum(weight.nbytes for weight in deep_net().parameters())
    ways = {"backward": (-1, 0), "sending": (-1, total), "1 bucket": (-1, total),
            "6 buckets": (-1, total // 6), "layer 1 first": (1, total // 6)}
    nets, times = {way: deep_net() for way in ways}, {way: [] for way in ways}
    buckets = {way: train.Buckets([*nets[way].parameters()][::order], nbytes, send)
               for way, (order, nbytes) in ways.items() if nbytes}
    for net in nets.values():
        for layer in net:
            layer.weight.register_post_accumulate_grad_hook(lambda _: ready.append(now()))
    for way in [*ways] * steps:
        nets[way].zero_grad()
        loss = nets[way](X).square().mean()
        ready.clear(), sent.clear()
        dist.barrier()
        start = now()
        loss.backward()
        if way in buckets:
            buckets[way].wait()
        if way == "sending":
            flat = torch.zeros(total // 4)
            dist.barrier()
            start = now()
            send(flat).wait()
        times[way].append((now() - start, [each - start for each in ready],
                           [(each - start, end.wait() - start) for each, end in sent]))
    return {way: (*min(times[way]), [weight.grad for weight in nets[way].parameters()])
            for way in ways}

found = two.run(overlapped)[0] if two else None

def overlap_rows():
    backward, sending = found["backward"][0], found["sending"][0]
    one = found["1 bucket"][-1]
    ready = [backward * (i + 1) / 6 for i in range(6)]
    formula = {"1 bucket": finish([backward], [1], 0, 1 / sending),
               "6 buckets": finish(ready, [1] * 6, 0, 6 / sending),
               "layer 1 first": finish(ready[::-1], [1] * 6, 0, 6 / sending)}
    for way, (seconds, *_, gradients) in found.items():
        hidden = 1 - (seconds - backward) / sending
        yield [way, show_seconds(seconds),
               show_seconds(formula[way]) if way in formula else "–",
               f"{min(max(hidden, 0), 1):.0%}" if way in formula else "–",
               all(map(torch.equal, gradients, one)) if way in formula else "–"]

table("way", "measured", "formula-time", "hidden", "same-bits",
      rows=overlap_rows() if two else [])

# %% passes
def bars(axes, y, color, ends, starts, layers):
    for end, start, layer in zip(ends, starts, layers):
        axes.barh(y, 1e3 * (end - start), left=1e3 * start, color=color,
                  edgecolor="white")
        axes.text(500 * (start + end), y, layer, color="white",
                  ha="center", va="center")

def passes(layers):
    figure, all_axes = pyplot.subplots(len(layers), figsize=(5, 4), sharex=True)
    for axes, way in zip(all_axes, layers):
        _, ready, sent, _ = found[way]
        ends = [end for _, end in sent]
        bars(axes, 1, "C1", ready, [0, *ready], "654321")
        starts = map(max, [0, *ends], [at for at, _ in sent])
        bars(axes, 0, "C2", ends, starts, layers[way])
        axes.set(title=way, yticks=[0, 1], yticklabels=["→", "∇"])
    axes.set_xlabel("time (ms)")
    figure.tight_layout()
    pyplot.close(figure)
    return figure

shown = {"1 bucket": ["6 – 1"], "6 buckets": "654321", "layer 1 first": "123456"}
passes(shown) if two else "–"

# %% ddp
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net, counted = DistributedDataParallel(deep_net(), bucket_cap_mb=0.5), []

def count(state, bucket):
    counted[-1] += 1
    sent = torch.futures.Future()
    sent.set_result(bucket.buffer())
    return sent

net.register_comm_hook(None, count)
for _ in range(4):
    counted.append(0)
    net.zero_grad()
    net(torch.randn(8, 256)).sum().backward()
dist.destroy_process_group()
counted

# %% accumulate
from functools import cache

def gradients(net):
    return torch.cat([weight.grad.flatten() for weight in net.parameters()])

X, y = digits.train[0][:128], digits.train[1][:128]
net = train.small_cnn()
functional.cross_entropy(net(X), y).backward()
whole = gradients(net)

net.zero_grad()
for i in range(4):
    now = slice(32 * i, 32 * i + 32)
    loss = functional.cross_entropy(net(X[now]), y[now], reduction="sum") / 128
    loss.backward()
print(show_error(float((gradients(net) - whole).abs().max()), 1e-6),
      show_number(float(whole.abs().max()), 2))

def loss_of(weights):
    with train.deterministic():
        return train.by_store.loss(train.small_cnn(), weights, digits.train)

@cache
def accumulated(count, lr):
    net, steps = train.small_cnn(), 96 // count
    return loss_of(train.one_device(net, digits.train, 32 * count, steps, lr).weights)

table("accumulated", "synchronizations", "loss-same-lr", "loss-times-lr", rows=[
    [count, 96 // count, accumulated(count, 0.1), accumulated(count, 0.1 * count)]
    for count in [1, 2, 4, 8, 16]])

# %% slowest
from random import Random

def uneven(random):
    return random.expovariate(1.0)

def steady(random):
    return 1 + 0.1 * random.expovariate(1.0)

def slowest(n, draw, rounds=2000, seed=1):
    random = Random(seed)
    return sum(max(draw(random) for _ in range(n)) for _ in range(rounds)) / rounds

def H(n):
    return sum(1 / i for i in range(1, n + 1))

print([f"{1 - 0.99**n:.1%}" for n in (1, 10, 100)])
rows = []
for n in [1, 2, 10, 50, 100]:
    found = [slowest(n, uneven), slowest(n, steady)]
    idle = [f"{1 - mean / last:.0%}" for mean, last in zip([1, 1.1], found)]
    rows.append([n, f"{H(n):.3f}",
                 f"{found[0]:.3f}", idle[0], f"{found[1]:.3f}", idle[1]])
table("workers", "H", "slowest-uneven", "idle-uneven", "slowest-steady", "idle-steady",
      rows=rows)

# %% guess-stale
old = d2lps.predict("stale", {"n = 8": ""})
old

# %% simulate
from d2lps.simulate import Events

def asynchronous(n, steps, draw, seed):
    world, done = Events(seed), []

    def read(rank):
        world.after(draw(world.random), push, rank, len(done))

    def push(rank, version):
        if len(done) < steps:
            done.append((world.now, rank, version))
            read(rank)

    for rank in range(n):
        read(rank)
    world.run()
    return done

for seconds, rank, version in asynchronous(3, 6, uneven, seed=1):
    print(f"{seconds:.2f} s  w{rank}  {version}")

# %% stale
done = asynchronous(8, 2000, uneven, seed=1)
tau = [step - version for step, (_, _, version) in enumerate(done)]
old.reveal({"n = 8": sum(tau) / len(tau)})

# %% async-real
from d2lps import kvstore
from d2lps.train import by_store

def work(store, pauses=(0.01, 0.01, 0.03)):
    weights = torch.zeros(1000)
    store.init("w", weights)
    store.set_optimizer("sgd", lr=0.1)
    for _ in range(12):
        store.pull("w", out=weights)
        time.sleep(pauses[store.rank])
        store.push("w", weights)
    store.barrier()

with kvstore.cluster("dist_async", workers=3, record=True) as stores:
    by_store.each(stores, work)
    pulls = stores[0].staleness("w")

rows = []
for rank in range(3):
    seen = [sum(pull.seen) for pull in pulls if pull.rank == rank]
    others = [after - before - 1 for before, after in zip(seen, seen[1:])]
    rows.append([rank, f"{sum(others) / len(others):.1f}", max(others)])
table("worker", "mean-tau", "most-tau", rows=rows)

# %% along
from torch.nn.utils import parameters_to_vector, vector_to_parameters

def along(done, lr, data=digits.train, size=32):
    net = train.small_cnn()
    versions = [parameters_to_vector(net.parameters()).detach().clone()]
    for (_, _, version), (X, y) in zip(done, train.batches(data, size, len(done))):
        vector_to_parameters(versions[version], net.parameters())
        _, gradient = train.loss_and_gradient(net, X, y, count=size)
        versions.append(versions[-1] - lr * gradient)
    return versions

with train.deterministic():
    versions = along(asynchronous(8, 96, uneven, seed=1), lr=0.05)
print(loss_of(versions[0]), loss_of(versions[-1]))

from d2lps import simulate
from d2lps.train import by_history

schedule = simulate.asynchronous(8, 96, lambda random, rank: uneven(random), seed=1)
fitted = by_history.fit(train.small_cnn(), digits.train, 32, schedule, lr=0.05)
torch.equal(fitted[-1], versions[-1])

# %% race
def seconds(random, rank):
    return (3 if rank == 7 else 1) * (0.5 + 0.5 * random.expovariate(1.0))

def shuffled(seed):
    X, y = digits.train
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return X[order], y[order]

def trained(schedule, lr, seed, points=10):
    fitted = by_history.fit(train.small_cnn(), shuffled(seed), 32, schedule, lr)
    return [*map(loss_of, fitted[:: len(schedule.steps) // points])]

def when(schedule, points=10):
    every = len(schedule.steps) // points
    return [0.0, *(step.seconds for step in schedule.steps[every - 1::every])]

race = {}
for seed in range(3):
    sync = simulate.synchronous(8, 30, seconds, seed=seed)
    free = simulate.asynchronous(8, 240, seconds, seed=seed)
    for name, schedule, lr in [("sync", sync, 8 * 0.05), ("async", free, 0.05)]:
        race.setdefault(name, []).append((when(schedule), trained(schedule, lr, seed)))

def bands(axes, curves, x):
    for name, runs in curves.items():
        losses = list(zip(*(losses for _, losses in runs)))
        axes.fill_between(x[name], [*map(min, losses)], [*map(max, losses)], alpha=0.2)
        axes.plot(x[name], [sum(some) / len(some) for some in losses], label=name)
    axes.legend()

steps = {"sync": range(0, 31, 3), "async": range(0, 241, 24)}
gradients_so_far = {name: range(0, 241, 24) for name in race}
figure, axes = pyplot.subplots(1, 3, figsize=(10, 3), sharey=True)
in_seconds = {name: [sum(some) / len(some) for some in zip(*(times for times, _ in runs))]
              for name, runs in race.items()}
for one, name, x in zip(axes, ["step", "gradients", "time (s)"],
                        [steps, gradients_so_far, in_seconds]):
    bands(one, race, x)
    one.set_xlabel(name)
axes[0].set_ylabel("loss")
figure.tight_layout()
pyplot.close(figure)
figure

# %% guess-cliff
edge = d2lps.predict("cliff", {"τ = 8": ""})
edge

# %% cliff
def delayed(tau, lr, momentum=0.0, steps=144, size=64):
    net = train.small_cnn()
    weights = [parameters_to_vector(net.parameters()).detach().clone()]
    moved = torch.zeros_like(weights[0])
    for step, (X, y) in enumerate(train.batches(digits.train, size, steps)):
        vector_to_parameters(weights[max(0, step - tau)], net.parameters())
        _, gradient = train.loss_and_gradient(net, X, y, count=size)
        moved = momentum * moved + gradient
        weights.append(weights[-1] - lr * moved)
    return loss_of(weights[-1])

taus = [0, 1, 2, 4, 8, 16]
with train.deterministic():
    plain = [delayed(tau, lr=0.1) for tau in taus]
edge.reveal({"τ = 8": plain[4]})

# %% cliff-table
with train.deterministic():
    rolling = [delayed(tau, lr=0.02, momentum=0.9) for tau in taus]
table("lr-momentum", *taus, rows=[["0.1, 0", *plain], ["0.02, 0.9", *rolling]])

# %% scalar
def path(a, tau, steps):
    w = [1.0] * (tau + 1)
    for _ in range(steps):
        w.append(w[-1] - a * w[-1 - tau])
    return w[tau:]

def dies_away(a, tau):
    return max(map(abs, path(a, tau, 4000)[-100:])) < 1

def edge_of(tau):
    low, high = 0.0, 3.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if dies_away(middle, tau) else (low, middle)
    return low

table("tau", "largest-a", "by-formula", rows=[
    [tau, f"{edge_of(tau):.3f}", f"{2 * math.sin(math.pi / (4 * tau + 2)):.3f}"]
    for tau in taus])

# %% small-lr
with train.deterministic():
    rows = [[lr, delayed(8, lr), delayed(16, lr)] for lr in (0.05, 0.02)]
table("learning-rate", "tau-8", "tau-16", rows=[[0.1, plain[4], plain[5]], *rows])

# %% ssp-rule
class Clocks:
    def __init__(self, n, s):
        self.clock, self.s = [0] * n, s

    def push(self, rank):
        self.clock[rank] += 1

    def may_read(self, rank):
        return self.clock[rank] - min(self.clock) <= self.s

clocks = Clocks(2, s=1)
for _ in range(3):
    clocks.push(0)
    print(clocks.clock, clocks.may_read(0))

# %% bounded
def even(random, rank):
    return 0.5 + 0.5 * random.expovariate(1.0)

def bounded_rows():
    for s in [0, 1, 3, math.inf]:
        runs, slow = ([simulate.asynchronous(8, 144, draw, staleness=s, seed=seed)
                       for seed in range(3)] for draw in (even, seconds))
        tau = [each for run in runs for each in run.staleness]
        losses = [trained(run, 0.05, seed, points=1)[-1] for seed, run in enumerate(runs)]
        yield ["∞" if s == math.inf else s,
               f"{sum(run.idle for run in runs) / 3:.0%}",
               f"{sum(run.idle for run in slow) / 3:.0%}",
               f"{sum(tau) / len(tau):.1f}", max(tau),
               f"{min(losses):.3f} – {max(losses):.3f}"]

table("s", "idle", "idle-slow", "mean-tau", "most-tau", "loss", rows=bounded_rows())

# %% late
def one_slow(random, rank):
    return (0.6 if rank == 2 else 0.2) + 0.1 * random.random()

late = simulate.asynchronous(3, 12, one_slow, staleness=1, travel=0.08, seed=1)
watch(late.trace(), name="late")

# %% collect
class Collector:
    def __init__(self, n, lr):
        self.n, self.lr, self.weights, self.round, self.arrived = n, lr, 0.0, 0, {}

    def push(self, worker, number, gradient):
        if number == self.round:
            self.arrived[worker] = gradient
        if len(self.arrived) == self.n:
            self.weights -= self.lr * sum(self.arrived.values()) / self.n
            self.round, self.arrived = self.round + 1, {}
        return self.round, self.weights

server = Collector(n=2, lr=1.0)
for worker, number, gradient in [(0, 0, 1.0), (2, 0, 3.0), (1, 0, 9.0), (1, 1, 5.0)]:
    print(worker, number, "→", server.push(worker, number, gradient))

# %% guess-backup
gain = d2lps.predict("backup", {"uneven": "×", "steady": "×"})
gain

# %% backup
def first(n, b, draw, rounds=2000, seed=1):
    random = Random(seed)
    times = (sorted(draw(random) for _ in range(n + b)) for _ in range(rounds))
    return sum(each[n - 1] for each in times) / rounds

def gain_of(b, draw, machines=100):
    together, some = first(machines, 0, draw), first(machines - b, b, draw)
    return together / some * (machines - b) / machines

formula = {"uneven": H(100) / (H(100) - H(4)) * 0.96,
           "steady": (1 + 0.1 * H(100)) / (1 + 0.1 * (H(100) - H(4))) * 0.96}
gain.reveal(formula, {"uneven": gain_of(4, uneven), "steady": gain_of(4, steady)})

# %% backup-late
rows = []
for b in [0, 1, 2, 4, 8, 16, 32]:
    run = simulate.synchronous(
        100, 60, lambda random, rank: uneven(random), backup=b, seed=1)
    per_step = run.steps[-1].seconds / 60
    rows.append([b, f"{H(100) - H(b):.2f}", f"{per_step:.2f}",
                 f"{len(run.dropped) / (len(run.dropped) + 60 * (100 - b)):.0%}",
                 f"{(100 - b) / per_step:.1f}"])
table("b", "give-up", "finish-first", "wasted", "gradients-per-second", rows=rows)

# %% guess-bias
missing = d2lps.predict("bias", {"digit 9": "%"})
missing

# %% bias
def late_is_three(random, rank):
    return 2.0 if rank == 3 else 1.0

def split_in(parts, sort):
    X, y = digits.train
    order = y.argsort(stable=True) if sort else torch.arange(len(y))
    return [(X[some], y[some]) for some in order.chunk(parts)]

def right(weights):
    net, (X, y) = train.small_cnn(), digits.test
    vector_to_parameters(weights, net.parameters())
    found = net(X).argmax(1) == y
    return [found.float().mean().item(),
            *(found[y == i].float().mean().item() for i in (8, 9))]

waited = {}
for sort in (False, True):
    for backup in (0, 1):
        schedule = simulate.synchronous(4, 144, late_is_three, backup=backup)
        parts = split_in(4, sort)
        fitted = by_history.fit(train.small_cnn(), parts, 16, schedule, lr=0.1)
        waited[sort, backup] = right(fitted[-1])
missing.reveal({"digit 9": 100 * waited[True, 1][2]})

# %% bias-table
table("sorted", "waited-for", "accuracy", "digit-8", "digit-9", rows=[
    [sort, 4 - backup, *(f"{part:.1%}" for part in found)]
    for (sort, backup), found in waited.items()])

# %% local
def local(parts, h, steps=144, size=16, lr=0.1):
    nets = [train.small_cnn() for _ in parts]
    data = [train.batches(part, size, steps) for part in parts]
    share = [len(y) / sum(len(y) for _, y in parts) for _, y in parts]
    for _ in range(steps // h):
        for net, mine in zip(nets, data):
            for _ in range(h):
                X, y = next(mine)
                train.loss_and_gradient(net, X, y, count=size)
                with torch.no_grad():
                    for weight in net.parameters():
                        weight -= lr * weight.grad
        flat = [parameters_to_vector(net.parameters()).detach() for net in nets]
        mean = sum(part * weights for part, weights in zip(share, flat))
        for net in nets:
            vector_to_parameters(mean.clone(), net.parameters())
    return mean

means = {1: [waited[sort, 0][0] for sort in (False, True)]}
with train.deterministic():
    for h in [12, 72]:
        means[h] = [right(local(split_in(4, sort), h))[0] for sort in (False, True)]
table("h", "averages", "data-alike", "data-sorted", rows=[
    [h, 144 // h, *(f"{part:.1%}" for part in found)] for h, found in means.items()])

# %% guess-less
less = d2lps.predict("less", {"1%": "", "1% + e": ""})
less

# %% largest
class Largest:
    def __init__(self, k, feedback=True):
        self.k, self.feedback, self.left = k, feedback, 0.0

    def choose(self, gradient):
        gradient = gradient + self.left
        indices = gradient.abs().topk(self.k).indices
        values = gradient[indices]
        if self.feedback:
            self.left = gradient.index_fill(0, indices, 0.0)
        return indices, values

one = Largest(k=1)
for gradient in [3.0, 2.0], [0.5, 2.0], [0.5, 0.5]:
    indices, values = one.choose(torch.tensor(gradient))
    print(gradient, "→", indices.tolist(), values.tolist(), one.left.tolist())

def different(n):
    net, chosen = train.small_cnn(), set()
    for X, y in train.batches(digits.train, 16, n):
        _, gradient = train.loss_and_gradient(net, X, y, count=16)
        chosen |= {*Largest(99).choose(gradient)[0].tolist()}
    return len(chosen)

print([different(n) for n in (1, 4, 64)])

# %% fit
from d2lps.train import compress

d2lps.source(compress.fit)

# %% less
def together(workers):
    def send(gradients):
        total = torch.zeros_like(gradients[0])
        for worker, gradient in zip(workers, gradients):
            indices, values = worker.choose(gradient)
            total.index_add_(0, indices, values)
            send.nbytes += (1 - 1 / len(workers)) * (4 * len(indices) + values.nbytes)
        return total / len(workers)
    send.nbytes = 0
    return send

def parts_of(seed):
    X, y = shuffled(seed)
    return [*zip(X.chunk(4), y.chunk(4))]

@cache
def trained_by(new_send, lr, seed, **options):
    parts = parts_of(seed)
    run = compress.fit(train.small_cnn(), parts, 16, 72, lr, new_send(), **options)
    return run.nbytes, loss_of(run.weights)

def losses(new_send, lr, seeds=3, **options):
    runs = [trained_by(new_send, lr, seed, **options) for seed in range(seeds)]
    return runs[0][0], [loss for _, loss in runs]

results = {way: losses(lambda: together([Largest(99, feedback) for _ in range(4)]), 0.1)
           for way, feedback in [("1%", False), ("1% + e", True)]}
less.reveal({way: sum(three) / 3 for way, (_, three) in results.items()})

# %% eight-bits
def lowered(numbers):
    scale = numbers.abs().max() / 448
    return (numbers / scale).to(torch.float8_e4m3fn), scale

X, y = digits.train
_, gradient = train.loss_and_gradient(train.small_cnn(), X[:64], y[:64], count=64)
for small in gradient, gradient / 1000:
    as_it_is, (scaled, _) = small.to(torch.float8_e4m3fn), lowered(small)
    print([f"{(numbers.float() == 0).float().mean():.0%}"
           for numbers in (small, as_it_is, scaled)])

# %% less-table
nesterov = {"outer": 0.7, "momentum": 0.9}
bf16, fp8 = (partial(compress.Lowered, dtype)
             for dtype in (torch.bfloat16, torch.float8_e4m3fn))
sent_by = {"fp32": (compress.Lowered, {}), "bf16": (bf16, {}), "fp8": (fp8, {}),
           "h = 24": (compress.Lowered, {"h": 24}),
           "h = 24 + N": (compress.Lowered, {"h": 24, **nesterov})}
results |= {way: losses(send, 0.1, **options) for way, (send, options) in sent_by.items()}

def predicted(way, n=4, weights=9930):
    meetings = 72 // (24 if "24" in way else 1)
    width = 1 if "fp8" in way else 2 if "bf16" in way else 4
    each = (n - 1) * 99 * 8 if "%" in way else 2 * (n - 1) / n * weights * width
    return meetings * each

shown = table("way", "predicted-kb", "counted-kb", "loss", rows=[
    [way, round(predicted(way) / 1000), round(nbytes / 1000),
     f"{min(three):.3f} – {max(three):.3f}"]
    for way, (nbytes, three) in results.items()])

figure, axes = pyplot.subplots(figsize=(6, 3))
for way, (nbytes, three) in results.items():
    axes.plot([nbytes] * 3, three, "o-", label=way)
axes.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="loss")
axes.legend(ncols=2, fontsize=7)
figure.tight_layout()
shown

# %% rates
def moved(meetings, outer, momentum):
    velocity = 0.0
    for _ in range(meetings):
        velocity = momentum * velocity + 1
        yield round(outer * (1 + momentum * velocity), 2)

print([*moved(3, **nesterov)])

meetings = {"h = 1": {}, "h = 24": {"h": 24}, "h = 24 + N": {"h": 24, **nesterov},
            "h = 24 × 1.9": {"h": 24, "outer": 1.9}}
rates, rows = [0.1, 0.3, 0.5], []
for way, options in meetings.items():
    found = [sum(losses(compress.Lowered, lr, 2, **options)[1]) / 2 for lr in rates]
    rows.append([way, *(f"{loss:.3f}" for loss in found)])
table("way-rate", *rates, rows=rows)

# %% wire
def card():
    with open("/proc/self/net/dev") as file:
        cards = dict(line.split(":") for line in file if ":" in line)
    return sum(int(counts.split()[8]) for name, counts in cards.items()
               if name.strip() != "lo")

def on_the_wire(entries=1_000_000, k=10_000):
    dist.init_process_group("gloo")
    flat = torch.randn(entries)
    def everybody(*parts):
        for part in parts:
            dist.all_gather([torch.empty_like(part) for _ in range(2)], part)
    indices, values = Largest(k).choose(flat)
    numbers, scale = lowered(flat)
    ways = {"fp32": lambda: dist.all_reduce(flat),
            "bf16": lambda: dist.all_reduce(flat.bfloat16()),
            "fp8": lambda: everybody(numbers.view(torch.uint8), scale),
            "1%": lambda: everybody(indices.to(torch.int32), values)}
    counted = {}
    for way, send in ways.items():
        dist.barrier()
        before = card()
        send()
        dist.barrier()
        counted[way] = card() - before
    return counted

rows = []
if two:
    for way, nbytes in two.run(on_the_wire)[0].items():
        kilobytes = {"fp32": 4000, "bf16": 2000, "fp8": 1000, "1%": 80}[way]
        rows.append([way, kilobytes, round(nbytes / 1000)])
    two.close()
table("way", "predicted-kb", "counted-kb", rows=rows)

# %% exercise-buckets
def buckets(sizes, ready, alpha, bandwidth):
    found = []
    # TODO
    return found

d2lps.check_exercise("buckets", buckets)

# %% exercise-staleness
def staleness(n, s):
    def push(worker, key, number):
        pass

    def may_read(worker, key, number):
        pass

    def leave(worker):
        pass
    # TODO
    return push, may_read, leave

d2lps.check_exercise("staleness", staleness)

# %% exercise-backup
def backup(n, b):
    def receive(worker, number, gradient):
        pass
    # TODO
    return receive

d2lps.check_exercise("backup", backup)

# %% exercise-local-sgd
def local_sgd(weights, push, pull, step, h, share):
    # TODO
    return weights

d2lps.check_exercise("local-sgd", local_sgd)

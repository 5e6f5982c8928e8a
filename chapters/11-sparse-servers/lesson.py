# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("11")

# %% imports
import time

import torch
from torch import nn

from d2lps import cluster, d2l, draw, kvstore, machines, table
from d2lps.train import by_store, recommender
from d2lps.units import show_number, show_seconds, show_size

torch.set_num_threads(1)

# %% apart
draw(machines(2, 1, servers=2))

# %% sizes
table("vectors", "row-size", "size", "gpus-80", rows=[
    [show_number(count), show_size(row), show_size(count * row),
     show_number(count * row / 80e9, 3)]
    for count, row in [(1e9, 10**6), (1e9, 512), (1e8, 256), (1e6, 64)]])

# %% bag
def new_table(rows, width):
    empty = torch.zeros(rows, width)
    return nn.EmbeddingBag.from_pretrained(empty, freeze=False, mode="sum", sparse=True)

bag = new_table(10, 2)
bag(torch.tensor([[7, 3], [7, 7]])).sum().backward()
print(bag.weight.grad)
print(bag.weight.grad.coalesce())

# %% push-sparse
rows, width = 1_000_000, 16
big = new_table(rows, width)
big(torch.tensor([[7, 3], [7, 999_999]])).sum().backward()
wanted, pulled = torch.tensor([7, 3, 8]), torch.empty(3, width)
with kvstore.cluster("dist_sync", workers=1, servers=2, record=True) as (store,):
    store.init("table", torch.zeros(rows, width))
    store.push("table", big.weight.grad)
    store.row_sparse_pull("table", out=pulled, row_ids=wanted)
    trace = store.trace("table")
print(pulled[:, 0].tolist())
print(trace.bytes_sent("worker0"), trace.bytes_received("worker0"), big.weight.nbytes)

# %% guess-rows
guess = d2lps.predict("rows", {"different rows": ""})
guess

# %% distinct
popular = recommender.popularity(rows)
draws = 4096
expected = (1 - (1 - popular) ** draws).sum().item()
batch = recommender.zipf(draws, rows)
print([f"{p:.2%}" for p in popular[:3].tolist()])
guess.reveal({"different rows": expected}, {"different rows": len(batch.unique())})

# %% pulls
no_rows = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0, width),
                                  (rows, width), check_invariants=True)

def pulled_bytes(name, wanted):
    out = torch.empty(rows if wanted is None else len(wanted), width)
    store.init(name, torch.zeros(rows, width))
    store.push(name, no_rows)
    if wanted is None:
        store.pull(name, out=out)
    else:
        store.row_sparse_pull(name, out=out, row_ids=wanted)
    store.barrier()
    return [name, len(out), out.nbytes, int(store.trace(name).bytes_received("worker0"))]

with kvstore.cluster("dist_sync", workers=1, servers=4, record=True) as (store,):
    ways = {"whole table": None, "every id": batch, "once": batch.unique()}
    found = [pulled_bytes(*way) for way in ways.items()]
table("way", "vectors", "by-formula", "measured", rows=[
    [name, count, *map(show_size, sizes)] for name, count, *sizes in found])

# %% guess-pulls
waiting = d2lps.predict("pulls", {"whole table": "s", "once": "ms"})
waiting

# %% links
def one_pull(rows, width, draws, batches):
    mixed = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    store = kvstore.create("dist_sync", servers=4)
    store.init("table", torch.zeros(rows, width))
    if store.rank == 4:
        begin = time.perf_counter()
        store.pull("table", out=torch.empty(rows, width))
        whole = time.perf_counter() - begin
        wanted = [mixed[recommender.zipf(draws, rows, seed=seed).unique()]
                  for seed in range(1 + batches)]
        outs = [torch.empty(len(some), width) for some in wanted]
        for i in range(1 + batches):
            begin = time.perf_counter() if i == 1 else begin
            store.row_sparse_pull("table", out=outs[i], row_ids=wanted[i])
        once = (time.perf_counter() - begin) / batches
    store.barrier()
    return (whole, once) if store.rank == 4 else None

try:
    five = cluster.emulated(hosts=1, gpus_per_host=0, servers=4, bandwidth="200 Mbit/s")
    places = [f"server{i}" for i in range(4)] + ["host0"]
    took = five.run(one_pull, rows, width, draws, 40, hosts=places)[4]
    five.close()
except cluster.ClusterError as error:
    took = None
    print(error)

rate = 200e6 / 8 * 1448 / 1514
predicted = [rows * 64 / rate, expected * 64 / rate]
waiting.reveal({"whole table": predicted[0], "once": 1e3 * predicted[1]},
               {"whole table": took[0], "once": 1e3 * took[1]} if took else None)

# %% links-table
table("way", "predicted", "measured", "off-by", rows=[
    [name, show_seconds(model), seen and show_seconds(seen),
     seen and f"{seen / model:.2f}"]
    for name, model, seen in zip(["whole table", "once"], predicted,
                                 took or [None, None])])

# %% step
d2lps.source(recommender.step)

# %% model
print(d2lps.source(recommender.model), d2lps.source(recommender.work), sep="\n\n")

# %% ranks
ranks = d2lps.ranks(2)
ranks

# %% px-job
# %%px
import torch
from d2lps import Processes, kvstore, ring, run
from d2lps.train import recommender

torch.set_num_threads(1)
carrier, nodes = Processes(backend="gloo"), ["rank0", "rank1"]

def add(dense):
    run(ring(nodes), {nodes[carrier.rank]: dense}, carrier)

data = recommender.clicks(16_384, rows=1_000_000, seed=1)
store = kvstore.create("dist_sync", servers=2, record=True)
worked = recommender.work(store, data, 1_000_000, 8192, 60, add)
pushed = store.trace("table", rounds=60).bytes_sent(f"worker{store.rank}")

# %% job
worked = [ranks[i]["worked"] for i in range(2)]
losses = [sum(parts) for parts in zip(*(one.losses for one in worked))]
data = recommender.clicks(16_384, rows=1_000_000, seed=1)
alone = recommender.one_device(data, 1_000_000, 8192, 60)
d2l.plot(list(range(60)), [losses, alone], "step", "loss",
         legend=["2 workers, 2 servers", "one device"], yscale="log",
         fmts=["-", "m--"], figsize=(5, 3))

# %% job-table
vector = 4 * 4
table("worker", "loss", "rows-per-step", "by-formula", "measured", "whole-table", rows=[
    [rank, f"{losses[-1]:.2%}", f"{sum(one.rows) / 60:.0f}",
     show_size((sum(one.rows) * (8 + vector) + 60 * 2 * 8) / 60),
     show_size(ranks[rank]["pushed"] / 60), show_size(1_000_000 * vector)]
    for rank, one in enumerate(worked)])

# %% average
def pushed_by(items, count):
    small = new_table(10, 1)
    (small(items.view(-1, 1)).sum() / count).backward()
    return small.weight.grad.to_dense()[:, 0]

parts = torch.tensor([[0, 5], [0, 6], [0, 7], [0, 8]])
mine = torch.stack([pushed_by(part, 2) for part in parts])
shares = torch.stack([pushed_by(part, 8) for part in parts])
touched = (mine > 0).sum(0).clamp(min=1)
ways = {"one device": pushed_by(parts, 8),
        "Σ g/8": shares.sum(0), "Σ g/2 ÷ 4": mine.sum(0) / 4,
        "Σ g/8 ÷ 4": shares.sum(0) / 4, "Σ g/2 ÷ a": mine.sum(0) / touched}
table("way", "row-0", "row-5", rows=[
    [name, f"{found[0]:.4f}", f"{found[5]:.4f}"] for name, found in ways.items()])

# %% guess-hottest
hottest = d2lps.predict("hottest", {"range": "×", "hash": "×"})
hottest

# %% servers
k, mixed = 16, torch.randperm(rows, generator=torch.Generator().manual_seed(0))
batches = [recommender.zipf(draws, rows, seed=seed) for seed in range(8)]
ways = {"range": lambda ids: ids, "hash": lambda ids: mixed[ids],
        "range, once": lambda ids: ids.unique(),
        "hash, once": lambda ids: mixed[ids.unique()]}
no_rows = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0, 4), (rows, 4),
                                  check_invariants=True)
loads = {}
with kvstore.cluster("dist_sync", workers=1, servers=k, record=True) as (store,):
    for name, chosen in ways.items():
        store.init(name, torch.zeros(rows, 4))
        store.push(name, no_rows)
        for ids in map(chosen, batches):
            store.row_sparse_pull(name, out=torch.empty(len(ids), 4), row_ids=ids)
        seen = store.trace(name)
        loads[name] = torch.tensor([seen.bytes_sent(f"server{i}") / 1.0
                                    for i in range(k)])
worst = {name: (load.max() / load.mean()).item() for name, load in loads.items()}
hottest.reveal({name: worst[name] for name in ("range", "hash")})

# %% loads
d2l.plot(list(range(1, k + 1)),
         [(load / load.mean()).sort(descending=True)[0].tolist()
          for load in loads.values()],
         "server", "load", legend=list(loads), yscale="log",
         fmts=["-", "m--", "g-.", "r:"], figsize=(5, 3))

# %% loads-table
def hottest_share(chances, places):
    load = torch.bincount(places, weights=chances, minlength=k)
    return f"{load.max() / load.mean():.2f}"

in_order = torch.arange(rows) * k // rows
at_random = mixed * k // rows
once = 1 - (1 - popular) ** draws
model = [hottest_share(chances, places) for chances in (popular, once)
         for places in (in_order, at_random)]
table("way", "vectors", "predicted", "measured", rows=[
    [name, round(load.sum().item() / 16), model[i], f"{worst[name]:.2f}"]
    for i, (name, load) in enumerate(loads.items())])

# %% mended
def load_of(ids, copied=0, kept=0):
    ids = ids[ids >= kept]
    place = mixed[ids] * k // rows
    hot = ids < copied
    place[hot] = torch.randint(k, (int(hot.sum()),), generator=draw_server)
    return torch.bincount(place, minlength=k)

draw_server = torch.Generator().manual_seed(0)
ways = {"hash": {}, "100 copied": {"copied": 100}, "1000 kept": {"kept": 1000}}
found = []
for name, how in ways.items():
    for once in (False, True):
        load = sum(load_of(ids.unique() if once else ids, **how) for ids in batches)
        found.append([name, once, int(load.sum()),
                      f"{load.max() / load.float().mean():.2f}"])
table("way", "once", "vectors", "hottest", rows=found)

# %% copies
table("copies", "only-pulls", "push-and-pull", rows=[
    [r, f"{1 / r:.3g}", f"{(1 + 1 / r) / 2:.3g}"] for r in (1, 2, 4, 16)])

# %% cache
def different(draws):
    return (1 - (1 - popular) ** draws).sum().item()

def lru(size):
    low, high = 0.0, 1e9
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if different(middle) < size else (low, middle)
    return (popular * (1 - (1 - popular) ** low)).sum().item()

table("cache-rows", "ideal-cache", "lru", rows=[
    [size, f"{popular[:size].sum():.2f}", f"{lru(size):.2f}"] for size in (1000, 10_000)])

# %% lost
class KeepsOld:
    def __init__(self, store):
        self.store, self.kept = store, {}

    def pull(self, row):
        out = torch.empty(1, width)
        try:
            self.store.row_sparse_pull("table", out=out, row_ids=torch.tensor([row]))
            self.kept[row] = out[0, 0].item()
        except kvstore.KVError as error:
            return type(error).__name__, self.kept[row]
        return self.kept[row]

def losing(replicas):
    last, gradient = rows - 1, torch.ones(1, width)
    step = torch.sparse_coo_tensor([[last]], gradient, (rows, width),
                                   check_invariants=True)
    options = {"replicas": replicas, "deadline": 2.0}
    with kvstore.cluster("dist_async", workers=1, servers=2, **options) as servers:
        store = servers[0]
        store.init("table", torch.zeros(rows, width))
        store.set_optimizer("sgd", lr=-1.0)
        one, other = KeepsOld(store), KeepsOld(store)
        store.push("table", step)
        before = [one.pull(last)]
        store.push("table", step)
        before.append(other.pull(last))
        servers.kill(1)
        begin = time.perf_counter()
        after = [one.pull(last), other.pull(last)]
        return replicas, before, after, show_seconds(time.perf_counter() - begin)

for replicas in (0, 1):
    print(*losing(replicas))

# %% stragglers
small, few = recommender.clicks(4096, rows=20_000), 12

def late(kind, all_reduce):
    with kvstore.cluster(kind, workers=2, servers=2) as stores, \
            kvstore.cluster("dist_sync", workers=2) as dense:
        def work(store):
            dense[store.rank].init("tower", torch.zeros(32))

            def add(tensor):
                if all_reduce:
                    dense[store.rank].pushpull("tower", tensor, out=tensor)

            return recommender.work(store, small, 20_000, 1024, few, add,
                                    pause=0.05 * store.rank).seconds[-1]
        return by_store.each(stores, work)

table("table-by", "tower-by", "fast-worker", "slow-worker", rows=[
    [kind.removeprefix("dist_"), "all_reduce" if all_reduce else None,
     *map(show_seconds, late(kind, all_reduce))]
    for kind, all_reduce in [("dist_sync", True), ("dist_async", True),
                             ("dist_async", False)]])

# %% close
ranks.close()

# %% exercise-sparse-push
def sparse_push(number, rows, gradients, cuts, send):
    # TODO
    pass

d2lps.check_exercise("sparse-push", sparse_push)

# %% exercise-balance
def balance(popularity, servers):
    places = []
    # TODO
    return places

d2lps.check_exercise("balance", balance)

# %% exercise-cache-hit
def cache_hit(ids, size):
    hits = 0
    # TODO
    return hits

d2lps.check_exercise("cache-hit", cache_hit)

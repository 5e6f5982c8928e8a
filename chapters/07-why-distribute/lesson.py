# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("07")

# %% imports
import math
from itertools import combinations

import torch
from torch import nn

from d2lps import d2l, memory, table, train, tradeoff
from d2lps.scaling import CHIPS, GPUS, PRICES, TRAINED, Job, fit
from d2lps.train import large_batch
from d2lps.units import show_error, show_seconds, show_size

# %% guess-growth
guess = d2lps.predict("growth", {"AlexNet → GPT-3": "", "AlexNet → 2026": ""})
guess

# %% growth
from d2lps.units import show_integer, show_number

def spaced(number):
    return show_integer(round(number))

first = TRAINED["AlexNet"]
rows = []
for name, model in TRAINED.items():
    years = model.year - first.year
    times = model.flops / first.flops
    yearly = f"{times ** (1 / years):.2f}" if years else None
    months = f"{times ** (1.5 / years):.1f}" if years else None
    rows.append([name, str(model.day), show_number(model.flops, 2),
                 show_number(times, 2), yearly, months])
guess.reveal({"AlexNet → GPT-3": TRAINED["GPT-3"].flops / first.flops,
              "AlexNet → 2026": TRAINED["GPT-6 Astra"].flops / first.flops})

# %% growth-table
table("model", "as-of-day", "model-flops", "times-alexnet", "per-year", "per-18-months",
      rows=rows)

# %% doubling
def in_18_months(doubling):
    return 2 ** (18 / doubling)

print(*(f"{months}: {in_18_months(months):.1f}" for months in (18, 3.5, 3.4)))
print(f"4.6: {4.6 ** 1.5:.1f}")

# %% chips
old, new = CHIPS["V100"], CHIPS["H100"]
doubling = 12 * (new.year - old.year) / math.log2(new.flops / old.flops)
alone = TRAINED["Llama 3.1 405B"].flops / (0.4 * GPUS["h100"].peak)
print(f"{doubling:.0f}", spaced(alone / 86400 / 365), f"{alone / 16384 / 86400:.0f}")

# %% guess-memory
guess = d2lps.predict("memory-of-billion", {"SGD": "GB", "Adam": "GB"})
guess

# %% memory
def kept(parameters, activations, states, nbytes=4):
    weights = parameters * (1 + 1 + states)
    return nbytes * (weights + 2 * activations)

plain = kept(1e9, 2e9, states=0)
adam = kept(1e9, 2e9, states=2)
guess.reveal({"SGD": plain / 1e9, "Adam": adam / 1e9})

# %% memory-gpt3
print(show_size(kept(1e11, 2e11, 0)), show_size(kept(1e11, 2e11, 2)))
print(show_size(kept(175e9, 350e9, 0)), show_size(kept(175e9, 350e9, 2)))
print(show_size(16 * 175e9), math.ceil(16 * 175e9 / 80e9))

# %% ledger
memory(175e9)

# %% split
def gradient(net, X, y):
    net.zero_grad()
    nn.functional.cross_entropy(net(X), y).backward()
    return torch.cat([w.grad.flatten() for w in net.parameters()])

X, y = (part[:16] for part in train.digits().train)
net = train.small_cnn()
whole = gradient(net, X, y)

def merged(sizes, weighted):
    parts = zip(X.split(sizes), y.split(sizes))
    shares = [size / 16 if weighted else 1 / len(sizes) for size in sizes]
    return sum(share * gradient(net, *part) for share, part in zip(shares, parts))

# %% merge
rows = []
for sizes in ([16], [8, 8], [4, 4, 4, 4], [6, 6, 4], [13, 3]):
    off = [(merged(sizes, weighted) - whole).abs().max() / whole.abs().max()
           for weighted in (False, True)]
    rows.append([" + ".join(map(str, sizes)),
                 *(show_error(float(each)) for each in off)])
table("split-parts", "plain-mean", "weighted-mean", rows=rows)

# %% steps-source
d2lps.source(large_batch.steps_to)

# %% guess-steps
small = [large_batch.steps_to(0.93, batch=2, rate=0.08, seed=seed) for seed in range(8)]
print(small, sum(small) / 8)
guess = d2lps.predict("steps", {"V = 32": "", "V = 256": ""})
guess

# %% steps
batches = [2, 4, 8, 16, 32, 64, 128, 256]
best = large_batch.steps_by_batch(batches)
measured = {batch: steps for batch, (steps, _) in best.items()}
guess.reveal(measured={f"V = {batch}": measured[batch] for batch in (32, 256)})

# %% steps-table
table("batch-size", "learning-rate", "steps-count", "examples-read", "times-fewer", rows=[
    [batch, rate, f"{steps:.1f}", f"{batch * steps:.0f}",
     f"{measured[2] / steps:.1f}"]
    for batch, (steps, rate) in best.items()])

# %% by-hand-fit
def line(measured):
    rows = torch.tensor([[1 / steps, 1 / (batch * steps)]
                         for batch, steps in measured.items()])
    fewest, slope = torch.linalg.lstsq(rows, torch.ones(len(rows), 1)).solution.ravel()
    return float(fewest), float(slope / fewest)

known = {batch: measured[batch] for batch in (4, 32, 256)}
print(*(f"{number:.1f}" for number in (*line(known), *fit(known))))

# %% fitted
digits = Job(*fit(known), rate=1)
fits = [fit({batch: measured[batch] for batch in three})
        for three in combinations(batches, 3) if three[-1] >= 32 * three[0]]
print(*(f"{min(found):.1f}–{max(found):.1f}" for found in zip(*fits)))
table("batch-size", "predicted", "measured", "off-by", rows=[
    [batch, f"{digits.steps_of(batch):.1f}", f"{steps:.1f}",
     f"{steps / digits.steps_of(batch):.2f}"]
    for batch, steps in measured.items() if batch not in known])

# %% guess-slower
guess = d2lps.predict("slower", {"n = 2": "×", "n = 4": "×"})
guess

# %% ranks
ranks = d2lps.ranks(4)
ranks

# %% px-slower
# %%px
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from d2lps import train

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
me = dist.get_rank()
teams = {n: dist.new_group([*range(n)]) for n in (1, 2, 4)}
(X, y), _ = train.digits()
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
step = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(me)

def timed(n, batch, steps=150):
    spent = []
    dist.barrier()
    for _ in range(steps if me < n else 0):
        marks = [time.perf_counter()]
        rows = torch.randint(len(y), (batch // n,))
        x, labels = X[rows], y[rows]
        marks.append(time.perf_counter())
        step.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        marks.append(time.perf_counter())
        if n > 1:
            grads = [w.grad for w in net.parameters()]
            total = parameters_to_vector(grads)
            dist.all_reduce(total, group=teams[n])
            vector_to_parameters(total / n, grads)
        marks.append(time.perf_counter())
        step.step()
        marks.append(time.perf_counter())
        data, backward, exchange, update = (b - a for a, b in zip(marks, marks[1:]))
        spent.append((data, backward + update, exchange))
    dist.barrier()
    return [median(part) for part in zip(*spent)]

timed(4, 64)
runs = {(n, batch): timed(n, batch)
        for n, batch in [(1, 64), (2, 64), (4, 64), (2, 128), (4, 256)]}
dist.destroy_process_group()

# %% slower
runs = ranks[0]["runs"]
one = sum(runs[1, 64])
guess.reveal(measured={f"n = {n}": sum(runs[n, 64]) / one for n in (2, 4)})

# %% slower-table
table("process-count", "batch-size", "data-time", "computing-time", "exchange-time",
      "step-time", "steps-count", "to-accuracy", rows=[
    [n, batch, *map(show_seconds, spent), show_seconds(sum(spent)),
     f"{digits.steps_of(batch):.1f}",
     show_seconds(digits.steps_of(batch) * sum(spent))]
    for (n, batch), spent in runs.items()])

# %% close
ranks.close()

# %% price-list
table("machine-name", "kind-of-gpu", "gpus-of-machine", "dollars-hour", "dollars-each",
      "as-of-day", rows=[
    [price.name, price.gpu, price.count, f"{price.dollars:.2f}", f"{price.each:.2f}",
     str(price.day)] for price in PRICES.values()])

# %% per-flop
def of_1e18(gpu, price):
    return price.each / (GPUS[gpu].peak * 3600) * 1e18

for gpu, name in [("a100", "p4d.24xlarge"), ("h100", "p5.48xlarge")]:
    print(gpu, f"{of_1e18(gpu, PRICES[name]):.2f}")

# %% job
parameters, tokens = 3.6e9, 20 * 3.6e9
critical = 1e6
rate = 0.4 * GPUS["h100"].peak / (6 * parameters)
exchange = 2 * 4 * parameters / (8 * GPUS["h100"].outside)
job = Job(tokens / critical, critical, rate, exchange, least=1024)
print(spaced(job.steps), spaced(job.rate), f"{job.exchange:.3f}")

# %% job-source
d2lps.source(Job.best_batch)

# %% best-batch
tries = [2048 * 64 * k for k in range(1, 40)]
search = min(tries, key=lambda batch: job.seconds(64, batch))
print(spaced(search), spaced(job.best_batch(64)),
      f"{job.seconds(64, search) / job.seconds(64):.4f}")

# %% guess-knee
guess = d2lps.predict("knee", {"n = 1": "h", "n = 758": "h"})
guess

# %% cost
price = PRICES["p5.48xlarge"].each
counts = [1, 8, 64, 758, 2048, 8192, 16384]
guess.reveal({f"n = {n}": job.seconds(n) / 3600 for n in (1, 758)})

# %% cost-table
knee = job.critical / (job.rate * job.exchange)
floor, cheapest = job.steps * job.exchange, job.cost(1, price)
print(f"{knee:.0f}")
table("devices", "batch-size", "hours-taken", "dollars-paid", "times-fastest",
      "times-cheapest", rows=[
          [spaced(n), spaced(job.best_batch(n)), f"{job.seconds(n) / 3600:.1f}",
           spaced(job.cost(n, price)), f"{job.seconds(n) / floor:.1f}",
           f"{job.cost(n, price) / cheapest:.1f}"] for n in counts])

# %% tradeoff
dots = [(steps / digits.steps, batch * steps / (digits.steps * digits.critical))
        for batch, steps in measured.items()]
tradeoff(job, price, dots, devices=(1, 8, 64, 256, 758, 4096),
         prices=[PRICES["p4d.24xlarge"].each])

# %% worth
def total(n, hour):
    return job.cost(n, price) + hour * job.seconds(n) / 3600

rows = []
for hour in (0, 10, 100, 1000, 10000):
    n = min(range(1, 4097), key=lambda n: total(n, hour))
    rows.append([spaced(hour), n, f"{job.seconds(n) / 3600:.1f}",
                 spaced(job.cost(n, price)),
                 f"{total(n + 1, hour) - total(n, hour):.3f}"])
table("hour-worth", "devices", "hours-taken", "dollars-paid", "next-device", rows=rows)

# %% mlperf
seconds = {2560: 18.79 * 60, 5120: 10 * 60}
few, many = seconds
print(f"{seconds[few] / seconds[many] / 2:.1%}",
      *(f"{n * spent / 3600:.0f}" for n, spent in seconds.items()))

# %% failures
life = 54 * 24 * 16384 / 419
rows = []
for n in (1, 8, 758, 2048, 16384):
    between = life / n
    lost = math.sqrt(2 * (1 / 60) / between)
    rows.append([spaced(n), f"{between:.2f}", f"{math.sqrt(2 * (1 / 60) * between):.2f}",
                 f"{lost:.1%}", f"{job.seconds(n) / 3600 / between:.3f}"])
table("devices", "hours-between", "save-every-hours", "time-lost", "failures-in-job",
      rows=rows)

# %% map
d2lps.course_map("07")

# %% exercise-critical-batch
def critical_batch(measured, steps):
    batch = 0
    # TODO
    return batch

d2lps.check_exercise("critical-batch", critical_batch)

# %% exercise-break-even
def break_even(hours, price, worth, life, save, most):
    machines = 0
    # TODO
    return machines

d2lps.check_exercise("break-even", break_even)

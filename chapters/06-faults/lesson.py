# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("06")

# %% imports
import math
from random import Random

import torch

from d2lps import d2l, draw, kvstore, table, train
from d2lps.train import by_store

digits = train.digits()

# %% world
from heapq import heappop, heappush

class World:
    def __init__(self, seed):
        self.now, self.random, self.nodes, self.waiting = 0.0, Random(seed), {}, []

    def after(self, seconds, function, *what):
        heappush(self.waiting, (self.now + seconds, self.random.random(), function, what))

    def send(self, src, dst, message):
        self.after(self.random.uniform(0.0005, 0.005), self.arrive, src, dst, message)

    def arrive(self, src, dst, message):
        if dst in self.nodes:
            self.nodes[dst].receive(src, message, self.now)

    def crash(self, node):
        del self.nodes[node]

    def run(self, until):
        while self.waiting and self.waiting[0][0] <= until:
            self.now, _, function, what = heappop(self.waiting)
            function(*what)

# %% world-run
class Prints:
    def receive(self, src, message, now):
        print(f"{1e3 * now:.1f} ms  {src}: {message}")

world = World(seed=1)
world.nodes["b"] = Prints()
for i in range(3):
    world.send("a", "b", i)
world.after(0.003, world.crash, "b")
world.run(until=1.0)

# %% watcher
from d2lps.simulate import Faults, Network

class Watcher:
    def __init__(self, timeout):
        self.timeout, self.heard = timeout, 0.0

    def receive(self, src, message, now):
        self.heard = now

    def suspects(self, now):
        return now - self.heard > self.timeout

def watched(trouble, timeout):
    net, watcher, changes = Network(seed=1), Watcher(timeout), []
    net.nodes |= {"server": watcher, "watcher": watcher}
    net.record(lambda name, node, now:
               "suspects" * (name == "watcher" and node.suspects(now)))

    def beat():
        if "server" in net.nodes and not net.paused("server"):
            net.send("server", "watcher", "alive")
        net.after(0.1, beat)

    def look():
        if watcher.suspects(net.now) != len(changes) % 2:
            changes.append(net.now - 2.0)
        net.after(0.01, look)

    beat()
    look()
    net.after(2.0, trouble, net)
    net.run(until=10.0)
    return net, " → ".join(f"{seconds:.1f}" for seconds in changes) or "–"

# %% watched
def delay(net):
    net.faults = Faults(slow=1.0, long=0.8, until=2.8)

troubles = {"crash": lambda net: net.crash("server"),
            "pause": lambda net: net.pause("server", 0.8),
            "cut": lambda net: net.cut("server", "watcher", 0.8),
            "delay": delay,
            "wrong": lambda net: None}
table("timeout-of", 0.3, 1, 3, rows=[
    [name, *(watched(trouble, timeout)[1] for timeout in (0.3, 1, 3))]
    for name, trouble in troubles.items()])

# %% silence
paused, _ = watched(troubles["pause"], timeout=0.3)
draw(paused, at=(1.6, 3.2))

# %% guess-alarms
patience = d2lps.predict("alarms", {"false alarms": ""})
patience

# %% alarms
def pauses(nodes=100, minutes=60, mean=0.2, seed=1):
    random = Random(seed)
    return [random.expovariate(1 / mean) for _ in range(nodes * minutes)]

def alarms(timeout):
    return sum(pause > timeout for pause in pauses())

patience.reveal({"false alarms": 6000 * math.exp(-1 / 0.2)},
                {"false alarms": alarms(1.0)})

# %% alarms-table
table("timeout", "false-alarms", "noticed-after", rows=[
    [f"{timeout:g} s", alarms(timeout), f"{timeout:g} s"]
    for timeout in (0.125, 0.25, 0.5, 1, 2)])

# %% guess-often
often = d2lps.predict("often", {"n = 8": "h", "n = 16384": "h"})
often

# %% often
failures, hours, gpus = 419, 54 * 24, 16_384
alone = hours / failures * gpus

def first_failure(n, tries=200, seed=1):
    lives = torch.empty(tries, n)
    lives.exponential_(1 / alone, generator=torch.Generator().manual_seed(seed))
    return lives.min(1).values.mean().item()

often.reveal({f"n = {n}": alone / n for n in (8, gpus)},
             {f"n = {n}": first_failure(n) for n in (8, gpus)})

# %% drop
def sums(store):
    total, seen = torch.zeros(1), []
    store.init("w", total)
    for number in range(1, 5):
        if store.rank == 2 and number == 3:
            store.close()
            break
        try:
            store.pushpull("w", torch.full((1,), 10.0**store.rank), out=total)
        except kvstore.WorkerLost as error:
            return [*seen, f"WorkerLost {error.ranks}"]
        seen.append(int(total))
    return seen

for lost in ("fail", "drop"):
    with kvstore.cluster("dist_sync", workers=3, lost=lost) as stores:
        print(lost, by_store.each(stores, sums))

# %% newcomer
class Counts:
    def __init__(self, workers):
        self.rounds, self.value = [0] * workers, 0

    def push(self, worker, number, gradient):
        if number == self.rounds[worker] + 1:
            self.rounds[worker] = number
            self.value += gradient

def work(worker, servers, dies_after=math.inf):
    done = min(server.rounds[worker] for server in servers.values())
    for number in range(done + 1, 5):
        for server in servers.values():
            if not dies_after:
                return
            server.push(worker, number, 10**worker)
            dies_after -= 1

servers = {key: Counts(2) for key in "ab"}
work(0, servers)
work(1, servers, dies_after=5)
print({key: (server.value, server.rounds) for key, server in servers.items()})
work(1, servers)
print({key: (server.value, server.rounds) for key, server in servers.items()})

# %% state
import io

from torch import nn
from torch.nn import functional

class Run:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(),
                                 nn.Dropout(0.2), nn.Linear(32, 10))
        self.step = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.done = 0

    def train(self, steps):
        for X, y in train.batches(digits.train, 64, self.done + steps, self.done):
            self.step.zero_grad()
            functional.cross_entropy(self.net(X), y).backward()
            self.step.step()
        self.done += steps

    def save(self):
        file = io.BytesIO()
        torch.save({"weights": self.net.state_dict(), "optimizer": self.step.state_dict(),
                    "position": self.done, "random": torch.get_rng_state()}, file)
        return file.getvalue()

    def load(self, data, parts):
        saved = torch.load(io.BytesIO(data), weights_only=True)
        if "weights" in parts:
            self.net.load_state_dict(saved["weights"])
        if "optimizer" in parts:
            self.step.load_state_dict(saved["optimizer"])
        if "position" in parts:
            self.done = saved["position"]
        if "random" in parts:
            torch.set_rng_state(saved["random"])

# %% state-table
def distance(one, other):
    pairs = zip(one.net.parameters(), other.net.parameters())
    return max(float((a - b).detach().abs().max()) for a, b in pairs)

rows, parts = [], ["weights", "optimizer", "position", "random"]
with train.deterministic():
    whole = Run(seed=0)
    whole.train(12)
    half = Run(seed=0)
    half.train(6)
    data = half.save()
    for count in range(1, 5):
        again = Run(seed=1)
        again.load(data, parts[:count])
        again.train(6)
        found = distance(whole, again)
        rows.append([*(part in parts[:count] for part in parts), found, found == 0])
table(*parts, "difference", "same-bits", rows=rows)

# %% in-place
import subprocess
import sys
import tempfile
from pathlib import Path

WRITER = """#!/usr/bin/env python3
import os, signal, sys
with open(sys.argv[1], "wb", buffering=0) as file:
    for i in range(8):
        if i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        file.write(b"2" * 1000)
"""
folder = Path(tempfile.mkdtemp())
path = folder / "weights"
path.write_bytes(b"1" * 8000)
subprocess.run([sys.executable, "-c", WRITER, path])
content = path.read_bytes()
content.count(b"1"), content.count(b"2")

# %% atomic
import os

def save(path, data):
    ahead = path.with_suffix(".new")
    with open(ahead, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(ahead, path)
    parent = os.open(path.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)

save(path, b"3" * 8000)
path.read_bytes().count(b"3"), os.listdir(folder)

# %% cut
versions = {"a": 0, "b": 0, "c": 0}

def step():
    for key in versions:
        versions[key] += 1

saved = {}
for key in versions:
    saved[key] = versions[key]
    step()
saved

# %% checkpoints
import shutil

class Killed(Exception):
    pass

def fit(stores, after=lambda done: None, folder=None):
    nets = [train.small_cnn() for _ in stores]

    def work(store):
        checkpoints = train.Checkpoints(folder, store) if folder else None
        return by_store.work(store, nets[store.rank], digits.train, 64, 12,
                             ("sgd", {"lr": 0.05, "momentum": 0.9}),
                             after=None if store.rank else after,
                             checkpoints=checkpoints, every=4)

    return by_store.each(stores, work)[0]

def kill_all(done):
    if done == 7:
        raise Killed

with kvstore.cluster("dist_sync", workers=2, servers=2) as stores:
    undisturbed = fit(stores)
try:
    with kvstore.cluster("dist_sync", workers=2, servers=2) as stores:
        fit(stores, kill_all, folder / "run")
except Killed:
    print(sorted(os.listdir(folder / "run")))
with kvstore.cluster("dist_sync", workers=2, servers=3) as stores:
    resumed = fit(stores, folder=folder / "run")
print(len(resumed.losses), torch.equal(undisturbed.weights, resumed.weights))

# %% damaged
damaged = folder / "run" / "step-12" / "store"
content = bytearray(damaged.read_bytes())
content[1000] ^= 1
damaged.write_bytes(content)
with kvstore.cluster("dist_sync", workers=2, servers=2) as stores:
    again = fit(stores, folder=folder / "run")
print(len(again.losses), torch.equal(undisturbed.weights, again.weights))
shutil.rmtree(folder)

# %% guess-interval
how_often = d2lps.predict("interval", {"interval": "min"})
how_often

# %% interval
def lost_part(every, save, between, lives=20_000, seed=1):
    random, done, passed = Random(seed), 0.0, 0.0
    for _ in range(lives):
        life = random.expovariate(1 / between)
        done += life // (every + save) * every
        passed += life
    return 1 - done / passed

def best_interval(save, between):
    return math.sqrt(2 * save * between)

between = 60 * hours / failures
minutes = range(1, 181)
by_simulation = [100 * lost_part(each, 1, between, lives=4000) for each in minutes]
best = min(minutes, key=lambda each: by_simulation[each - 1])
how_often.reveal({"interval": best_interval(1, between)}, {"interval": best})

# %% interval-plot
by_formula = [100 * (1 / each + each / (2 * between)) for each in minutes]
d2l.plot([*minutes], [by_simulation, by_formula], "interval (min)", "time-lost (%)",
         legend=["simulated", "δ/I + I/2M"],
         xlim=[1, 180], ylim=[0, 50], figsize=(5, 3))

# %% interval-table
rows = []
cases = [(1, between / 60), (1 / 6, between / 60), (5, 24), (5, 6), (5, 0.25)]
for save_minutes, failure_hours in cases:
    each = best_interval(save_minutes, 60 * failure_hours)
    daly = each * (1 + math.sqrt(save_minutes / (120 * failure_hours)) / 3
                   + save_minutes / (120 * failure_hours) / 9) - save_minutes
    lost = lost_part(daly, save_minutes, 60 * failure_hours)
    rows.append([f"{save_minutes * 60:.0f} s", f"{failure_hours:.2f} h",
                 f"{each:.1f} min", f"{daly:.1f} min", f"{lost:.1%}"])
table("time-to-save", "between-failures", "young", "daly", "lost-part", rows=rows)

# %% sharded
import multiprocessing
import re
import signal
import time

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def process(job, rank, n, folder, pipe):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/{job.__name__}",
                            rank=rank, world_size=n)
    pipe.send((rank, job(folder)))
    os.kill(os.getpid(), signal.SIGKILL)

def in_processes(job, n, folder):
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    for rank in range(n):
        fork.Process(target=process, args=(job, rank, n, folder, there)).start()
    return [answer for _, answer in sorted(here.recv() for _ in range(n))]

def sharded(weight, step):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"weight": distribute_tensor(weight, mesh, [Shard(0)]),
            "step": torch.tensor(step)}

def save_in_two(folder):
    state = sharded(torch.arange(7000.0).view(7, 1000), step=12)
    future = dcp.async_save(state, checkpoint_id=f"{folder}/step-12")
    state["weight"].to_local().zero_()
    future.result()
    return len(state["weight"].to_local())

def load_in_three(folder):
    state = sharded(torch.zeros(7, 1000), step=0)
    dcp.load(state, checkpoint_id=f"{folder}/step-12")
    same = torch.equal(state["weight"].full_tensor(), torch.arange(7000.0).view(7, 1000))
    return len(state["weight"].to_local()), same, int(state["step"])

with tempfile.TemporaryDirectory() as folder:
    print(in_processes(save_in_two, 2, folder))
    print(sorted(os.listdir(f"{folder}/step-12")))
    print(in_processes(load_in_three, 3, folder))

# %% missing
from datetime import timedelta

def meet(folder):
    try:
        if dist.get_rank() != 2:
            dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
        time.sleep(2)
    except RuntimeError as error:
        return re.findall(r"Ranks ([\d, ]+) failed", str(error))

with tempfile.TemporaryDirectory() as folder:
    print(in_processes(meet, 3, folder))

# %% exercise-interval
def interval(n, hours, delta, restart):
    work = 0
    # TODO
    return work

d2lps.check_exercise("interval", interval)

# %% exercise-atomic-save
def atomic_save(fs):
    def save(name, data):
        # TODO
        pass

    def load(name):
        return None

    return save, load

d2lps.check_exercise("atomic-save", atomic_save)

# %% exercise-detect
def detect(nodes, every, lost, delay, now):
    def heard(node, sent, now):
        pass

    def ended(node, now):
        pass

    def suspects(now):
        pass
    # TODO
    return heard, ended, suspects

d2lps.check_exercise("detect", detect)

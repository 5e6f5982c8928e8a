# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("06")

# %% imports
import math
from random import Random

import torch

from d2lps import d2l, kvstore, table, train, watch
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
    return " → ".join(f"{seconds:.1f}" for seconds in changes) or "–"

# %% watched
def delay(net):
    net.faults = Faults(slow=1.0, long=0.8, until=2.8)

troubles = {"crash": lambda net: net.crash("server"),
            "pause": lambda net: net.pause("server", 0.8),
            "cut": lambda net: net.cut("server", "watcher", 0.8),
            "delay": delay,
            "wrong": lambda net: None}
table("timeout-of", 0.3, 1, 3, rows=[
    [name, *(watched(trouble, timeout) for timeout in (0.3, 1, 3))]
    for name, trouble in troubles.items()])

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
    [f"{timeout:g} s", alarms(timeout), f"≤ {timeout + 0.1:g} s"]
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
d2l.plot([*minutes], [by_simulation, by_formula], "min", "%",
         legend=["simulated", "δ/I + I/2M"], xlim=[1, 180], ylim=[0, 50], figsize=(5, 3))

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

# %% server
class Server:
    def __init__(self, net, name, backup=None):
        self.net, self.name, self.backup = net, name, backup
        self.value, self.counted = 0, {}

    def receive(self, src, message, now):
        what, *rest = message
        getattr(self, what)(src, *rest)

    def push(self, worker, number, gradient):
        self.add(worker, number, gradient)
        if self.backup:
            self.net.send(self.name, self.backup, ("copy", worker, number, gradient))
        else:
            self.done(None, worker, number)

    def copy(self, src, worker, number, gradient):
        self.add(worker, number, gradient)
        self.net.send(self.name, src, ("done", worker, number))

    def done(self, src, worker, number):
        self.net.send(self.name, worker, ("counts", number))

    def add(self, worker, number, gradient):
        if number > self.counted.get(worker, 0):
            self.value += gradient
            self.counted[worker] = number

    def view(self, src, primary):
        self.backup = None

# %% worker
class Worker:
    def __init__(self, net, rank, pushes):
        self.net, self.rank, self.pushes = net, rank, pushes
        self.name, self.primary, self.number = f"w{rank}", "a", 1
        self.push()

    def push(self):
        if self.number <= self.pushes:
            message = "push", self.number, 10**self.rank
            self.net.send(self.name, self.primary, message)

    def receive(self, src, message, now):
        what, told = message
        if what == "view":
            self.primary = told
            self.push()
        elif told == self.number:
            self.number += 1
            self.push()

# %% kill
def play(kind, dies_at=None, pushes=3, seed=1):
    net = Network(seed)
    net.record()
    net.nodes |= {"a": kind(net, "a", backup="b"), "b": kind(net, "b")}
    for rank in range(2):
        net.nodes[f"w{rank}"] = Worker(net, rank, pushes)

    def kill():
        net.crash("a")
        for node in ("b", "w0", "w1"):
            net.send("authority", node, ("view", "b"))

    if dies_at is not None:
        net.after(dies_at, kill)
    net.run(until=10.0)
    return net

net = play(Server)
print(len(net.deliveries), net.nodes["a"].value, net.nodes["b"].value)
for start, end, src, dst, message in net.deliveries[:8]:
    print(f"{1e3 * end:5.1f} ms  {src} → {dst}  {message}")

# %% every-moment
from collections import Counter

def ends(kind):
    moments = sorted(end for _, end, *_ in play(kind).deliveries)
    found = Counter()
    for moment in moments:
        for dies_at in (moment - 1e-9, moment + 1e-9):
            found[play(kind, dies_at).nodes["b"].value] += 1
    return dict(found)

ends(Server)

# %% wrong-ways
class AnswersFirst(Server):
    def push(self, worker, number, gradient):
        self.add(worker, number, gradient)
        self.done(None, worker, number)
        if self.backup:
            self.net.after(0.002, self.later, worker, number, gradient)

    def later(self, *what):
        if self.net.nodes.get(self.name) is self:
            self.net.send(self.name, self.backup, ("copy", *what))

    def copy(self, src, worker, number, gradient):
        self.add(worker, number, gradient)

class DoesNotNumber(Server):
    def add(self, worker, number, gradient):
        self.value += gradient

class NumbersAlone(Server):
    def copy(self, src, worker, number, gradient):
        self.value += gradient
        self.net.send(self.name, src, ("done", worker, number))

def told(found):
    return " · ".join(f"{value}: {times}" for value, times in sorted(found.items()))

table("way", "found", rows=[
    [kind.__name__, told(ends(kind))]
    for kind in (AnswersFirst, DoesNotNumber, NumbersAlone, Server)])

# %% guess-cost
price = d2lps.predict("copies", {"each push": "%", "one sum": "%"})
price

# %% cost
def messages(way, n, k):
    part = 1 / k
    for slot in range(k):
        primary, backup = f"s{slot}", f"s{(slot + 1) % k}"
        pushes = [(f"w{rank}", primary, part) for rank in range(n)]
        yield 1, pushes
        if way == "each push":
            yield 2, [(primary, backup, part)] * n
            yield 3, [(backup, primary, 0)] * n
        if way in ("one sum", "chain"):
            yield 2, [(primary, backup, part)]
        if way == "one sum":
            yield 3, [(backup, primary, 0)]
        last = {"no copy": (2, primary), "chain": (3, backup)}.get(way, (4, primary))
        yield last[0], [(last[1], f"w{rank}", part) for rank in range(n)]

def received(way, n=8, k=4):
    steps = list(messages(way, n, k))
    into = sum(size for _, step in steps for _, dst, size in step if dst == "s0")
    out = sum(size for _, step in steps for src, _, size in step if src == "s0")
    return into * k, out * k, max(number for number, _ in steps)

more = {way: 100 * (received(way)[0] / received("no copy")[0] - 1)
        for way in ("each push", "one sum")}
price.reveal(more)

# %% cost-table
table("way", "into-server", "out-of-server", "messages-in-turn", rows=[
    [way, *(f"{each:g}" for each in received(way))]
    for way in ("no copy", "each push", "one sum", "chain")])

# %% rules
from d2lps.kvstore.replication import Schedule
from d2lps.kvstore.replication import World as Slots

Counter(Slots(Schedule.drawn(seed)).run() for seed in range(300))

# %% played
from d2lps.kvstore.replication import story

died = Schedule(seed=1, rounds=6, until=0.15, troubles=((0.03, "crash", 1),))
slot = Slots(died, recorded=True)
slot.run()
print(slot.view)
watch(story.trace(slot), name="slot")

# %% kill-server
with kvstore.cluster("dist_sync", workers=2, servers=3, replicas=1) as stores:
    def kill_one(done):
        if done == 5:
            stores.kill(1)

    print(stores.views)
    killed = fit(stores, kill_one)
    print(stores.views)
len(killed.losses), torch.equal(undisturbed.weights, killed.weights)

# %% ranks
ranks = d2lps.ranks(2)
ranks

# %% px-kill
# %%px
from d2lps import kvstore, train
from d2lps.train import by_store

store = kvstore.create("dist_sync", servers=3, replicas=1)

def kill_one(done):
    if done == 5 and store.rank == 0:
        store.kill_server(0)

with train.deterministic():
    worked = by_store.work(store, train.small_cnn(), train.digits().train, 64, 12,
                           ("sgd", {"lr": 0.05, "momentum": 0.9}), after=kill_one)
print(len(worked.losses), store.views)
store.close()

# %% px-same
[torch.equal(undisturbed.weights, ranks[i]["worked"].weights) for i in range(2)]

# %% close
ranks.close()

# %% kill-both
with kvstore.cluster("dist_sync", workers=2, servers=3, replicas=1, deadline=2) as stores:
    def kill_both(done):
        if done == 5:
            stores.kill(0)
            stores.kill(1)

    try:
        fit(stores, kill_both)
    except kvstore.DataLost as error:
        print(type(error).__name__, error.servers, error.keys)

# %% member
class Member(Server):
    def __init__(self, net, name, other):
        super().__init__(net, name, backup=other if name == "a" else None)
        self.other, self.seen, self.heard = other, (1, "a"), 0.0
        self.tick()

    def tick(self):
        self.net.send(self.name, self.other, ("alive",))
        alone = self.seen[1] == self.name and not self.backup
        if not alone and self.net.now - self.heard > 0.5:
            self.take_over()
        self.net.after(0.1, self.tick)

    def alive(self, src):
        self.heard = self.net.now

    def take_over(self):
        self.view(None, self.seen[0] + 1, self.name)

    def view(self, src, number, primary):
        if number > self.seen[0]:
            self.seen, self.backup = (number, primary), None

    def push(self, worker, number, gradient):
        if self.seen[1] == self.name:
            super().push(worker, number, gradient)

    def copy(self, src, worker, number, gradient):
        if self.seen[1] == self.name:
            self.net.send(self.name, src, ("view", *self.seen))
        else:
            super().copy(src, worker, number, gradient)

# %% register
class ViewRegister:
    def __init__(self, net):
        self.net, self.view = net, (1, "a")

    def receive(self, src, message, now):
        _, number, primary = message
        if number == self.view[0] + 1:
            self.view = number, primary
        self.net.send("register", src, ("view", *self.view))

class Asks(Member):
    def take_over(self):
        self.net.send(self.name, "register", ("set", self.seen[0] + 1, self.name))

# %% split
class Patient(Worker):
    def push(self):
        if self.number <= self.pushes:
            for server in ("a", "b"):
                self.net.send(self.name, server, ("push", self.number, 10**self.rank))
            self.net.after(0.2, self.again, self.number)

    def again(self, number):
        if number == self.number:
            self.push()

    def receive(self, src, message, now):
        if message[1] == self.number:
            self.number += 1
            self.net.after(0.05, self.push)

def split(kind, seconds):
    net = Network(seed=1)
    a, b = kind(net, "a", "b"), kind(net, "b", "a")
    workers = [Patient(net, rank, pushes=9) for rank in range(2)]
    net.nodes |= {"a": a, "b": b, "w0": workers[0], "w1": workers[1],
                  "register": ViewRegister(net)}

    def cut():
        for one in ("a", "w0"):
            for other in ("b", "w1", "register"):
                net.cut(one, other, 3.0)
                net.cut(other, one, 3.0)

    net.after(0.3, cut)
    net.run(until=seconds)
    return [kind.__name__, f"{seconds} s",
            *(f"{s.value} ({s.seen[0]} {s.seen[1]})" for s in (a, b)),
            sum(s.seen[1] == s.name for s in (a, b)), sum(w.number - 1 for w in workers)]

table("way", "time", "server-a", "server-b", "primaries", "told-to-count", rows=[
    split(kind, seconds) for kind in (Member, Asks) for seconds in (3, 6)])

# %% guess-majority
enough = d2lps.predict("majority", {"3": "", "4": "", "5": ""})
enough

# %% majority
enough.reveal({str(nodes): (nodes - 1) // 2 for nodes in (3, 4, 5)})

# %% raft
class Raft:
    def __init__(self, net, name, others, said):
        self.net, self.name, self.others, self.said = net, name, others, said
        self.term, self.voted, self.votes = 0, None, set()
        self.leads, self.waits = False, 0
        self.wait()

    def wait(self):
        self.waits += 1
        self.net.after(self.net.random.uniform(0.15, 0.3), self.stand, self.waits)

    def stand(self, waits):
        if waits == self.waits and not self.leads and self.name in self.net.nodes:
            self.term, self.voted, self.votes = self.term + 1, self.name, {self.name}
            self.tell("vote?")
            self.wait()

    def tell(self, what):
        for other in self.others:
            self.net.send(self.name, other, (self.term, what))

    def receive(self, src, message, now):
        term, what = message
        if term > self.term:
            self.term, self.voted, self.leads = term, None, False
        if term < self.term:
            return
        if what == "vote?" and self.voted in (None, src):
            self.voted = src
            self.net.send(self.name, src, (term, "yes"))
            self.wait()
        elif what == "yes" and not self.leads:
            self.votes.add(src)
            if 2 * len(self.votes) > len(self.others) + 1:
                self.leads = True
                self.said.append((now, self.name, term))
                self.beat(term)
        elif what == "leader":
            self.wait()

    def beat(self, term):
        if self.leads and term == self.term and self.name in self.net.nodes:
            self.tell("leader")
            self.net.after(0.05, self.beat, term)

# %% raft-run
def elect(names, seed=0):
    net, said = Network(seed), []
    for name in names:
        net.nodes[name] = Raft(net, name, [each for each in names if each != name], said)
    net.run(until=1.0)
    net.crash(said[-1][1])
    net.run(until=2.0)
    leader = said[-1][1]
    for other in net.nodes.keys() - {leader}:
        net.cut(leader, other, 1.0)
        net.cut(other, leader, 1.0)
    net.run(until=2.9)
    lead = {name: node.term for name, node in net.nodes.items() if node.leads}
    net.run(until=4.0)
    return said, lead, {name: node.term for name, node in net.nodes.items() if node.leads}

said, during, after = elect("abcde")
for seconds, name, term in said:
    print(f"{seconds:.2f} s  {name}  {term}")
print(during, after)

# %% guess-moving
moving = d2lps.predict("copied", {"number % k": "%", "hash ring": "%"})
moving

# %% owners
from bisect import bisect
from functools import cache
from hashlib import sha256

def number(text):
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")

@cache
def circle(servers):
    return sorted((number(f"{server} {i}"), server)
                  for server in servers for i in range(256))

def by_ring(key, servers, copies=2):
    places, found = circle(servers), []
    at = bisect(places, (number(key),))
    while len(found) < copies:
        server = places[at % len(places)][1]
        found += [server] * (server not in found)
        at += 1
    return found

def by_remainder(key, servers, copies=2):
    at = sum(key.encode())
    return [servers[(at + i) % len(servers)] for i in range(copies)]

by_ring("conv.weight", (0, 1, 2, 3, 4)), by_ring("conv.weight", (0, 1, 3, 4))

# %% moving
names = [name for name, _ in train.small_cnn().named_parameters()]
keys = [f"layer{i}.{name}" for i in range(500) for name in names]

def moved(owners, before, after):
    pairs = [(owners(key, before), owners(key, after)) for key in keys]
    primary = sum(was[0] != now[0] for was, now in pairs)
    missing = sum(now[0] not in was for was, now in pairs)
    copies = sum(server not in was for was, now in pairs for server in now)
    return [100 * count / len(keys) for count in (primary, missing, copies)]

five, without, more = (0, 1, 2, 3, 4), (0, 1, 3, 4), (0, 1, 2, 3, 4, 5)
ways = {"number % k": by_remainder, "hash ring": by_ring}
moving.reveal({name: moved(owners, five, without)[1] for name, owners in ways.items()})

# %% moving-table
table("way", "change", "other-primary", "not-there-yet", "to-copy", rows=[
    [name, change, *(f"{part:.0f}%" for part in moved(owners, five, after))]
    for name, owners in ways.items()
    for change, after in (("5 → 4", without), ("5 → 6", more))])

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

# %% flipped
from hashlib import sha256

def flip(numbers):
    numbers.view(torch.int32)[5000] ^= 1 << 22

def digests(tensors):
    return [sha256(each.numpy().tobytes()).hexdigest()[:8] for each in tensors]

copies = [undisturbed.weights.clone() for _ in range(3)]
flip(copies[1])
print(digests(copies), float((copies[1] - copies[0]).abs().max()))

gradients = [torch.ones_like(undisturbed.weights) for _ in range(3)]
flip(gradients[1])
print(digests([weights - 0.05 * sum(gradients) / 3
               for weights in [undisturbed.weights] * 3]))

# %% exercise-count-once
def count_once(disk, send):
    def on(worker, id, key, number, gradient):
        pass
    # TODO
    return on

d2lps.check_exercise("count-once", count_once)

# %% exercise-fault-tolerance
def fault_tolerance(me, peer, workers, send):
    def on(sender, message):
        pass
    # TODO
    return on

d2lps.check_exercise("fault-tolerance", fault_tolerance)

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

# %% exercise-hashing
def hashing(keys, hosts, replicas):
    copies = {}
    # TODO
    return copies

d2lps.check_exercise("hashing", hashing)

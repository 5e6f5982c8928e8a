# %% language
import d2lps

d2lps.speak("en")

# %% opening
d2lps.opening("06b")

# %% imports
from collections import Counter

import torch

from d2lps import draw, kvstore, table, train, watch
from d2lps.simulate import Network
from d2lps.train import by_store

digits = train.digits()

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

# %% kill-server
def fit(stores, after=None):
    nets = [train.small_cnn() for _ in stores]

    def work(store):
        return by_store.work(store, nets[store.rank], digits.train, 64, 12,
                             ("sgd", {"lr": 0.05, "momentum": 0.9}),
                             after=None if store.rank else after)

    return by_store.each(stores, work)[0]

with kvstore.cluster("dist_sync", workers=2, servers=3) as stores:
    undisturbed = fit(stores)
with kvstore.cluster("dist_sync", workers=2, servers=3, replicas=1) as stores:
    def kill_one(done):
        if done == 5:
            stores.kill(1)

    print(stores.views)
    killed = fit(stores, kill_one)
    print(stores.views)
len(killed.losses), torch.equal(undisturbed.weights, killed.weights)

# %% played
from d2lps.kvstore.replication import FaultPlan, World, story

died = FaultPlan(seed=1, rounds=6, until=0.15, troubles=((0.03, "crash", 1),))
slot = World(died, recorded=True)
slot.run()
print(slot.view)
watch(story.trace(slot), name="slot")

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

def halves(kind, seconds):
    net = Network(seed=1)
    servers = kind(net, "a", "b"), kind(net, "b", "a")
    workers = [Patient(net, rank, pushes=9) for rank in range(2)]
    net.nodes |= {"w0": workers[0], "a": servers[0], "b": servers[1], "w1": workers[1],
                  "register": ViewRegister(net)}
    net.record(lambda name, node, now:
               "primary" * (node in servers and node.seen[1] == name))

    def cut():
        for one in ("a", "w0"):
            for other in ("b", "w1", "register"):
                net.cut(one, other, 3.0)
                net.cut(other, one, 3.0)

    net.after(0.3, cut)
    net.run(until=seconds)
    return net, [kind.__name__, f"{seconds} s",
                 *(f"{s.value} ({s.seen[0]} {s.seen[1]})" for s in servers),
                 sum(s.seen[1] == s.name for s in servers),
                 sum(w.number - 1 for w in workers)]

table("way", "time", "server-a", "server-b", "primaries", "told-to-count", rows=[
    halves(kind, seconds)[1] for kind in (Member, Asks) for seconds in (3, 6)])

# %% split-picture
net, _ = halves(Member, seconds=3)
draw(net, at=(0.2, 1.1))

# %% guess-majority
enough = d2lps.predict("majority", {"3": "", "4": "", "5": ""})
enough

# %% majority
enough.reveal({str(nodes): (nodes - 1) // 2 for nodes in (3, 4, 5)})

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

# %% rings
draw((kvstore.Placement(five, virtual=8), kvstore.Placement(without, virtual=8)))

# %% flipped
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
    view, members = 0, ()
    done, arrived = {}, {}

    def answer(key, who):
        for worker in who:
            send(worker, ("value", view, key, *done[key][:2]))

    def push(worker, key, number, gradient):
        had, weights, velocity = done.get(key, (0, 0.0, 0.0))
        if number == had:
            answer(key, [worker])
        if number == had + 1:
            gradients = arrived.setdefault(key, {})
            gradients[worker] = gradient
            if len(gradients) == len(workers):
                velocity = 0.9 * velocity + sum(gradients[i] for i in workers)
                done[key] = (number, weights - 0.1 * velocity, velocity)
                del arrived[key]
                answer(key, workers)

    def on(sender, message):
        nonlocal view, members
        kind, number, *rest = message
        if kind == "view":
            view, members = number, rest[0]
        if kind == "push":
            push(sender, *rest[1:])
    # TODO
    return on

d2lps.check_exercise("fault-tolerance", fault_tolerance)

# %% exercise-hashing
def hashing(keys, hosts, replicas):
    copies = {}
    # TODO
    return copies

d2lps.check_exercise("hashing", hashing)

# %% raft
class Raft:
    def __init__(self, net, name, others, said):
        self.net, self.name, self.others, self.said = net, name, others, said
        self.term, self.voted, self.votes = 0, None, set()
        self.leads, self.waits = False, 0
        self.wait()

    def role(self):
        stands = self.voted == self.name
        return "leader" if self.leads else "candidate" if stands else "follower"

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
        elif what == "heartbeat":
            self.wait()

    def beat(self, term):
        if self.leads and term == self.term and self.name in self.net.nodes:
            self.tell("heartbeat")
            self.net.after(0.05, self.beat, term)

# %% raft-run
def elect(names, seed=0):
    net, said = Network(seed), []
    for name in names:
        net.nodes[name] = Raft(net, name, [each for each in names if each != name], said)
    net.record(lambda name, node, now: f"{node.role()} {node.term}")
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
    terms = {name: node.term for name, node in net.nodes.items() if node.leads}
    return net, said, lead, terms

election, said, during, after = elect("abcde")
for seconds, name, term in said:
    print(f"{seconds:.2f} s  {name}  {term}")
print(during, after)

# %% raft-picture
draw(election, at=(0.85, 1.35))

# %% raft-election
draw(election, at=(1.152, 1.177))

# %% ranks
ranks = d2lps.ranks(2)
ranks

# %% px-kill
# %%px
from d2lps import kvstore, train
from d2lps.train import by_store

store = kvstore.create("dist_sync", servers=3, replicas=1)

def kill_first(done):
    if done == 5 and store.rank == 0:
        store.kill_server(0)

with train.deterministic():
    worked = by_store.work(store, train.small_cnn(), train.digits().train, 64, 12,
                           ("sgd", {"lr": 0.05, "momentum": 0.9}), after=kill_first)
print(len(worked.losses), store.views)
store.close()

# %% px-same
[torch.equal(undisturbed.weights, ranks[i]["worked"].weights) for i in range(2)]

# %% close
ranks.close()

# %% rules
Counter(World(FaultPlan.drawn(seed)).run() for seed in range(300))

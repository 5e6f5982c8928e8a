"""A simulated slot in virtual time: a seed decides which faults happen, and every promise is checked when it is made.

>>> world = World(FaultPlan.drawn(seed=11))
>>> world.run(), world.crashes
('done', 2)

A schedule has two phases. In the first, messages are lost, doubled, torn and slow; servers crash and start again
without state, are paused, and are cut off from one another, from workers and from the register. In the second phase
there are no faults, and the run has to end within bounded time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from d2lps.kvstore.replication import messages as m
from d2lps.kvstore.replication.commands import PartState
from d2lps.kvstore.replication.messages import Name, Send, View
from d2lps.kvstore.replication.promises import GARBAGE, Loaded, Promises, Step, Violation
from d2lps.kvstore.replication.replica import Replica
from d2lps.kvstore.replication.requests import Requests
from d2lps.simulate import Faults, Network

REGISTER = "register"
LATE = 0.02  # virtual seconds of a late sum
LIMIT = 6.0  # virtual seconds within which every run must end


@dataclass(frozen=True)
class FaultPlan:
    """The faults and the training of one run. Times are virtual seconds.

    ``kind``, ``staleness``, ``workers``, ``parts`` and ``rounds`` describe the training; ``lost``, ``doubled``,
    ``slow`` and ``torn`` are probabilities for a message, and ``long`` is the longest delay of a slow one; ``patience``
    is when a server is suspected; ``skew`` is the largest error of a clock's rate; with ``also``, workers also begin
    parts, choose an optimizer and load values, with barriers between; ``idle`` is the longest computation between two
    requests; if sums are ``late``, each takes a while, and others are served meanwhile; with ``joint``, workers pull
    all parts by one request in odd rounds; ``troubles`` are (time, kind of trouble, its own seed). All faults end at
    ``until``.
    """

    seed: int
    kind: str = "dist_sync"
    staleness: int = 0
    workers: int = 2
    parts: int = 1
    rounds: int = 2
    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    long: float = 0.17
    torn: float = 0.0
    patience: float = 0.03
    skew: float = 0.0
    until: float = 0.1
    also: bool = False
    idle: float = 0.0
    late: bool = False
    joint: bool = False
    troubles: tuple[tuple[float, str, int], ...] = ()

    @classmethod
    def drawn(cls, seed: int, kind: str | None = None) -> "FaultPlan":
        """Draw the schedule of a seed."""
        draw, later = Random(seed), Random(~seed)
        choice = draw.choice
        until, workers = choice([0.1, 0.2, 0.3, 1.0]), choice([1, 2, 3])
        kinds = ["crash", "crash", "pause", "cut", "cut off from the register"]
        count = choice([0, 1, 1, 2, 3, 5]) * (3 if until == 1.0 else 1)
        troubles = [(draw.uniform(0, until), choice(kinds), draw.getrandbits(32)) for _ in range(count)]
        if workers > 1 and draw.random() < 0.3:
            gone = choice(["a worker dies", "a worker is taken for dead"])
            troubles.append((draw.uniform(0, until), gone, draw.getrandbits(32)))
        kind, staleness = kind or choice(["dist_sync", "dist_sync", "dist_async", "dist_ssp"]), choice([0, 1, 2])
        parts, rounds = choice([1, 2]), choice([2, 3, 4])
        lost, doubled, slow = choice([0, 0, 0.02, 0.1]), choice([0, 0.05, 0.2]), choice([0, 0.02, 0.1])
        long, torn = choice([0.17, 0.17, 0.6]), choice([0, 0.1, 0.3])
        patience, skew = choice([0.025, 0.03, 0.06]), choice([0, 0.1])
        also, idle = later.random() < 0.4, later.choice([0.0, 0.0, 0.1])
        numbers = staleness, workers, parts, rounds, lost, doubled, slow, long, torn, patience, skew, until
        return cls(seed, kind, *numbers, also, idle, troubles=tuple(sorted(troubles)))


class Register:
    """The register of the current view, replaced only by a proposal of the view that follows it."""

    def __init__(self, world: "World", view: View):
        self.world, self.view = world, view

    def receive(self, src: Name, message: m.Propose | m.Ask, now: float) -> None:
        """Take the proposed view if it is the next one, and send the current view back."""
        if isinstance(message, m.Propose) and message.number == self.view.number + 1:
            self.view = View(*message)
            self.world.promises.check_members()
        self.world.send(REGISTER, src, self.view)


class Server:
    """A server in the world: a replica with its own clock."""

    def __init__(self, world: "World", name: Name, replica: Replica, rate: float):
        self.world, self.name, self.replica, self.rate = world, name, replica, rate

    def receive(self, src: Name, message, now: float) -> None:
        self.replica.receive(src, message, self.rate * now)
        self.world.carry_out(self.name, self.replica.take())

    def tick(self) -> None:
        world = self.world
        if world.nodes.get(self.name) is self:
            if not world.paused(self.name):
                self.replica.tick(self.rate * world.now)
                world.carry_out(self.name, self.replica.take())
            world.after(world.random.uniform(0.008, 0.012), self.tick)


def added(total: list | None, gradient: object, last: bool) -> list | tuple:
    """Return a sum that can be added to, or the last one. Raises Violation if one is added to the last sum."""
    if isinstance(total, tuple):
        raise Violation(f"I10 {gradient} is added to {total}, which was to be the whole sum")
    entries = [*(total or ()), *([] if gradient is None else [gradient])]
    return tuple(entries) if last else entries


def stepped(value: tuple | None, add: m.Add, optimizer: int | None) -> tuple:
    return (*(value or ()), Step(optimizer, add.total))


class Worker:
    """A worker that pushes all parts in its own order and then pulls them; in even rounds, one part after the other."""

    def __init__(self, world: "World", name: Name, requests: Requests):
        self.world, self.name, self.requests = world, name, requests
        schedule, rank = world.schedule, requests.rank
        parts, acts = range(schedule.parts), ("push", "pull")
        order = [(part + rank) % len(parts) for part in parts]
        self.program = [*(("begin", part) for part in order), ("meet", "begun", 1)] if schedule.also else []
        for round in range(1, schedule.rounds + 1):
            turns = [*product(acts, order)] if round % 2 else [(act, part) for part in parts for act in acts]
            if schedule.joint and round % 2:
                turns = [*(("push", part) for part in order), ("pull", *order)]
            self.program += [(act, round, *these) for act, *these in turns]
            if schedule.also and round <= 2:
                task = [("choose", 1)] if round == 1 else [*(("pull", 2, part) for part in parts), ("load", 1)]
                name = task[-1][0]
                self.program += [("meet", name, 1), *(task if rank == 0 else ()), ("meet", name, 2)]
        self.at = self.request_id = 0
        self.index = {part: part for part in parts}  # a worker's number for a part → its number in the slot
        self.seen: dict[int, int] = {}  # part → the version of the last pull
        self.pulled: dict[int, tuple] = {}
        self.floor: dict[int, dict[int, int]] = {}  # part → rank → pushes acknowledged before the last pull
        self.ended = False

    def begin(self) -> None:
        act, *arguments = self.program[self.at]
        requests, rank = self.requests, self.requests.rank
        if act == "push":
            round, part = arguments
            self.request_id = requests.push(self.index[part], round, (rank, round))
        elif act == "pull":
            round, *parts = arguments
            indices = [self.index[part] for part in parts]
            self.floor = {index: self.world.promises.acknowledged(index) for index in indices}
            self.request_id = requests.pull(*((index, round) for index in indices))
        elif act == "begin":
            self.request_id = requests.do(m.Begin(f"part {arguments[0]}", None, () if rank == 0 else None))
        elif act == "choose":
            self.request_id = requests.do(m.Choose(arguments[0], arguments[0]))
        elif act == "load":
            values = tuple((index, (*value, Loaded(arguments[0]))) for index, value in sorted(self.pulled.items()))
            chosen = 1 if self.world.promises.chosen else None
            self.request_id = requests.do(m.Load(arguments[0], values, chosen))
        else:
            self.world.promises.met.setdefault(tuple(arguments), set()).add(rank)
            self.request_id = requests.meet(*arguments, note=("note", *arguments) if rank == 0 else None)
        self.world.carry_out(self.name, requests.take())

    def receive(self, src: Name, message, now: float) -> None:
        requests = self.requests
        if isinstance(message, tuple) and message[0] is GARBAGE:  # half of an answer has overwritten what was pushed
            request = requests.waiting.get(message[1])
            if isinstance(request, m.Push | m.Pull):
                for torn in [(request.part, request.round)] if isinstance(request, m.Push) else request.wanted:
                    if torn in requests.kept:
                        requests.kept[torn] = GARBAGE
            return
        request = requests.receive(message)
        if request is not None:
            if isinstance(message, m.Values):
                self.world.promises.check_pull(self, request, message)
                self.pulled |= {index: part.value for index, part in message.parts}
            elif isinstance(message, m.Counted) and self.requests.kind != "dist_sync":
                self.world.promises.acknowledge(request.part, request.rank, request.round)
            elif isinstance(message, m.Done) and isinstance(request, m.Do) and isinstance(request.command, m.Begin):
                self.index[int(request.command.name.split()[1])] = message.answer
            if not self.ended and message.id == self.request_id:
                self.at += 1
                self.ended = self.at == len(self.program)
                if not self.ended and self.world.schedule.idle:
                    self.world.after(self.world.random.uniform(0, self.world.schedule.idle), self.begin)
                elif not self.ended:
                    self.begin()
        self.world.carry_out(self.name, requests.take())

    def tick(self) -> None:
        world = self.world
        if world.nodes.get(self.name) is self and not self.done:
            self.requests.tick()
            world.carry_out(self.name, self.requests.take())
            world.after(world.random.uniform(0.025, 0.04), self.tick)

    @property
    def done(self) -> bool:
        """True if nothing has to be sent again: until its pushes are committed, the others may still need them."""
        return self.requests.lost or (self.ended and not self.requests.waiting and not self.requests.kept)


class World(Network):
    """Three servers, of which the first two are members at first, some workers, and a register of views.

    A test replaces the classes ``replica``, ``requests`` or ``register`` by wrong ones. A ``recorded`` world keeps all
    messages, for :mod:`~d2lps.kvstore.replication.story`.
    """

    def __init__(self, schedule: FaultPlan, replica=Replica, requests=Requests, register=Register, recorded=False):
        faults = Faults(schedule.lost, schedule.doubled, schedule.slow, (0.5e-3, 5e-3), schedule.long, schedule.until)
        super().__init__(schedule.seed, faults)
        if recorded:
            self.record()
        self.schedule, self._replica = schedule, replica
        self.crashes, self.gone = 0, set()  # gone: ranks of workers that are dead, or suspected
        self.promises = Promises(self)
        first = View(1, (("server", 0, 0), ("server", 1, 0)))
        self.register = self.nodes[REGISTER] = register(self, first)
        for number in range(3):
            self._start(number, 0)
        for rank in range(schedule.workers):
            name = "worker", rank
            self.nodes[name] = worker = Worker(self, name, requests(rank, schedule.kind, first))
            worker.begin()
            self.after(self.random.uniform(0.005, 0.02), worker.tick)
        for time, kind, seed in schedule.troubles:
            self.after(time, self._trouble, kind, Random(seed))

    @property
    def view(self) -> View:
        """The current view: the register's."""
        return self.register.view

    @property
    def replicas(self) -> dict[Name, Replica]:
        """The replicas that are alive, by name."""
        return {name: node.replica for name, node in self.nodes.items() if isinstance(node, Server)}

    @property
    def workers(self) -> list[Worker]:
        """The workers that are alive."""
        return [node for node in self.nodes.values() if isinstance(node, Worker)]

    def run(self) -> str:
        """Run to the end: ``"done"``, or ``"lost"`` if both members died. Raises Violation."""
        while not all(worker.done for worker in self.workers) or self.now < self.schedule.until:
            if not any(member in self.nodes for member in self.view.members):
                return "lost"
            if self.now > LIMIT:
                waiting = {worker.name: worker.requests.waiting for worker in self.workers if not worker.done}
                raise Violation(f"I9 not done after {LIMIT} s: {waiting}")
            super().run(until=self.now + 0.01)
        self.promises.check_members()
        return "done"

    def carry_out(self, name: Name, effects: list) -> None:
        """Send the messages of a replica or a worker, after checking the promises about them."""
        for effect in effects:
            if isinstance(effect, Send):
                message, promises = effect.message, self.promises
                if isinstance(message, m.Values):
                    promises.check_values(name, message)
                    if self.random.random() < self.schedule.torn:
                        message = GARBAGE, message.id
                elif isinstance(message, m.Counted) and self.schedule.kind != "dist_sync":
                    promises.check_counted(effect.to, message)
                elif isinstance(message, m.Lost):
                    promises.check_lost(name, effect.to)
                elif isinstance(message, m.Done):
                    promises.check_done(effect.to, message)
                self.send(name, effect.to, message)
            elif isinstance(effect, m.AddUp):
                self.after(LATE, self._add_up, name, effect)
            else:
                self.send(name, REGISTER, effect)

    def _add_up(self, name: Name, asked: m.AddUp) -> None:
        if name in self.nodes:
            server, current = self.nodes[name], asked.round
            total = server.replica.add(current.total, asked.gradient, current.complete)
            server.receive(name, m.Summed(asked.part, current, total), self.now)

    # Faults.

    def _start(self, number: int, life: int) -> None:
        name, schedule = ("server", number, life), self.schedule
        view = self.view if life == 0 else View(0, ())
        parts = [] if schedule.also else [PartState(0, (0,) * schedule.workers, ())] * schedule.parts
        options = schedule.workers, schedule.kind, schedule.staleness, schedule.patience
        replica = self._replica(name, view, parts, *options, add=added, publish=stepped)
        replica.defers = lambda gradient: schedule.late
        rate = 1 + self.random.uniform(-schedule.skew, schedule.skew)
        self.nodes[name] = server = Server(self, name, replica, rate)
        self.after(self.random.uniform(0.001, 0.01), server.tick)

    def _trouble(self, kind: str, draw: Random) -> None:
        servers, workers = sorted(self.replicas), sorted(worker.name for worker in self.workers)
        if not servers:
            return
        if kind == "crash":
            name = draw.choice(servers)
            others = [member for member in self.view.members if member in self.nodes and member != name]
            if others or draw.random() < 0.05:
                self.crashes += 1
                self.crash(name)
                self.after(draw.choice([0.001, 0.05, 0.2]), self._start, name[1], name[2] + 1)
        elif kind == "pause":
            self.pause(draw.choice(servers), draw.choice([0.02, 0.1, 0.3]))
        elif kind == "cut":
            one, other, seconds = draw.choice(servers), draw.choice(servers + workers), draw.choice([0.02, 0.1, 0.3])
            self.cut(one, other, seconds)
            if draw.random() < 0.6:
                self.cut(other, one, seconds)
        elif kind == "cut off from the register":
            one, seconds = draw.choice(servers), draw.choice([0.02, 0.1, 0.3])
            side, others = [one], [REGISTER]
            if draw.random() < 0.5:  # with some workers, from all others
                side += [worker for worker in workers if draw.random() < 0.5]
                others += [node for node in servers + workers if node not in side]
            for here, there in product(side, others):
                self.cut(here, there, seconds)
                self.cut(there, here, seconds)
        elif workers:
            name = draw.choice(workers)
            self.gone.add(name[1])
            if kind == "a worker dies":
                self.crash(name)
            self.after(0.02, self._announce_lost)

    def _announce_lost(self) -> None:
        for server, rank in product(sorted(self.replicas), sorted(self.gone)):
            self.send("detector", server, m.Lose(rank))
        self.after(0.03, self._announce_lost)

    def members(self) -> Iterator[tuple[Name, Replica]]:
        """Yield the members of the view that are alive, with their replicas."""
        for member in self.view.members:
            if member in self.nodes:
                yield member, self.nodes[member].replica

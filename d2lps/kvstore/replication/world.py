"""Slots under all that can go wrong, in virtual time: a seed decides what, and every promise is checked as it is made.

>>> world = World(Schedule.drawn(seed=11))
>>> world.run(), world.crashes
('done', 2)

A schedule has two phases. In the first, messages are lost, doubled, torn and slow, servers crash and start again with
nothing, are paused and cut off from one another, from workers and from the register. In the second all heals, and
everything has to end within bounded time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from random import Random

from d2lps.kvstore.replication.commands import Part
from d2lps.kvstore.replication.messages import (
    Ask,
    Begin,
    Choose,
    Counted,
    Do,
    Done,
    Load,
    Lose,
    Lost,
    Name,
    Propose,
    Pull,
    Push,
    Send,
    Value,
    View,
)
from d2lps.kvstore.replication.promises import GARBAGE, Loaded, Promises, Step, Violation
from d2lps.kvstore.replication.replica import Replica
from d2lps.kvstore.replication.requests import Requests
from d2lps.simulate import Faults, Network

REGISTER = "register"
LIMIT = 6.0  # virtual seconds within which all must have ended


@dataclass(frozen=True)
class Schedule:
    """What is to happen. Times are virtual seconds.

    ``kind``, ``staleness``, ``workers``, ``parts`` and ``rounds`` say what is trained; ``lost``, ``doubled``, ``slow``
    and ``long`` what becomes of messages; ``torn`` which part of all answers comes in half; ``patience`` when a server
    is suspected; ``skew`` by how much clocks go wrong; ``also``: whether parts are begun, an optimizer is chosen and
    values are loaded, with barriers between; ``idle``: how long a worker computes at most between two acts;
    ``troubles`` are (time, what, seed of its own). All trouble ends at ``until``.
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
    troubles: tuple[tuple[float, str, int], ...] = ()

    @classmethod
    def drawn(cls, seed: int, kind: str | None = None) -> "Schedule":
        """The schedule of a seed."""
        draw, later = Random(seed), Random(~seed)
        choice = draw.choice
        until, workers = choice([0.1, 0.2, 0.3, 1.0]), choice([1, 2, 3])
        what = ["crash", "crash", "pause", "cut", "cut off from the register"]
        count = choice([0, 1, 1, 2, 3, 5]) * (3 if until == 1.0 else 1)
        troubles = [(draw.uniform(0, until), choice(what), draw.getrandbits(32)) for _ in range(count)]
        if workers > 1 and draw.random() < 0.3:
            gone = choice(["a worker dies", "a worker is taken for dead"])
            troubles.append((draw.uniform(0, until), gone, draw.getrandbits(32)))
        return cls(
            seed,
            kind or choice(["dist_sync", "dist_sync", "dist_async", "dist_ssp"]),
            choice([0, 1, 2]),
            workers,
            choice([1, 2]),
            choice([2, 3, 4]),
            choice([0, 0, 0.02, 0.1]),
            choice([0, 0.05, 0.2]),
            choice([0, 0.02, 0.1]),
            choice([0.17, 0.17, 0.6]),
            choice([0, 0.1, 0.3]),
            choice([0.025, 0.03, 0.06]),
            choice([0, 0.1]),
            until,
            later.random() < 0.4,
            later.choice([0.0, 0.0, 0.1]),
            tuple(sorted(troubles)),
        )

    def simpler(self) -> "Iterator[Schedule]":
        """Schedules with one trouble less, or one number back at its usual value."""
        for i in range(len(self.troubles)):
            yield replace(self, troubles=self.troubles[:i] + self.troubles[i + 1 :])
        for field in fields(self):
            if field.name not in ("seed", "kind", "troubles") and getattr(self, field.name) != field.default:
                yield replace(self, **{field.name: field.default})


def shrunk(schedule: Schedule, **made) -> Schedule:
    """The simplest schedule found, from this one, that still breaks a promise."""
    for simpler in schedule.simpler():
        if broken(simpler, **made):
            return shrunk(simpler, **made)
    return schedule


def broken(schedule: Schedule, **made) -> str | None:
    """Which promise breaks under a schedule, if one does. ``made``: what :class:`World` takes."""
    try:
        World(schedule, **made).run()
    except Violation as violation:
        return str(violation)
    return None


class Register:
    """Holds the view; changes it for who proposes the one that follows."""

    def __init__(self, world: "World", view: View):
        self.world, self.view = world, view

    def receive(self, src: Name, message: Propose | Ask, now: float) -> None:
        """Take the view that is proposed if it is the next one, and tell which one holds now."""
        if isinstance(message, Propose) and message.number == self.view.number + 1:
            self.view = View(*message)
            self.world.promises.check_members()
        self.world.send(REGISTER, src, self.view)


class Server:
    """A server in the world: its replica, and a clock of its own."""

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


def stepped(value: tuple | None, total: tuple, count: int, optimizer: int | None) -> tuple:
    return (*(value or ()), Step(optimizer, total))


class Worker:
    """A worker in the world: it pushes all parts in its own order, then pulls them; in even rounds one by one."""

    def __init__(self, world: "World", name: Name, requests: Requests):
        self.world, self.name, self.requests = world, name, requests
        schedule, rank = world.schedule, requests.rank
        parts, acts = range(schedule.parts), ("push", "pull")
        own = [(part + rank) % len(parts) for part in parts]
        self.program = [*(("begin", part) for part in own), ("meet", "begun", 1)] if schedule.also else []
        for round in range(1, schedule.rounds + 1):
            turns = product(acts, own) if round % 2 else ((act, part) for part in parts for act in acts)
            self.program += [(act, part, round) for act, part in turns]
            if schedule.also and round <= 2:
                mine = [("choose", 1)] if round == 1 else [*(("pull", part, 2) for part in parts), ("load", 1)]
                what = mine[-1][0]
                self.program += [("meet", what, 1), *(mine if rank == 0 else ()), ("meet", what, 2)]
        self.at = self.asked = 0
        self.index = {part: part for part in parts}  # by what a worker calls a part: its number in the slot
        self.seen: dict[int, int] = {}  # part → the version of the last pull
        self.pulled: dict[int, tuple] = {}
        self.floor: dict[int, int] = {}  # by rank: how many pushes had been heard of when its pull came
        self.ended = False

    def begin(self) -> None:
        act, *of = self.program[self.at]
        requests, rank = self.requests, self.requests.rank
        if act == "push":
            part, round = of
            self.asked = requests.push(self.index[part], round, (rank, round))
        elif act == "pull":
            part, round = of
            self.floor = self.world.promises.heard(self.index[part])
            self.asked = requests.pull(self.index[part], round)
        elif act == "begin":
            self.asked = requests.do(Begin(f"part {of[0]}", None, () if rank == 0 else None))
        elif act == "choose":
            self.asked = requests.do(Choose(of[0], of[0]))
        elif act == "load":
            values = tuple((index, (*value, Loaded(of[0]))) for index, value in sorted(self.pulled.items()))
            chosen = 1 if self.world.promises.chosen else None
            self.asked = requests.do(Load(of[0], values, chosen))
        else:
            self.world.promises.met.setdefault(tuple(of), set()).add(rank)
            self.asked = requests.meet(*of, note=("note", *of) if rank == 0 else None)
        self.world.carry_out(self.name, requests.take())

    def receive(self, src: Name, message, now: float) -> None:
        requests = self.requests
        if isinstance(message, tuple) and message[0] is GARBAGE:  # half of an answer came, over what was pushed
            request = requests.waiting.get(message[1])
            if isinstance(request, Push | Pull) and (request.part, request.round) in requests.kept:
                requests.kept[request.part, request.round] = GARBAGE
            return
        request = requests.receive(message)
        if request is not None:
            if isinstance(message, Value):
                self.world.promises.check_pull(self, request, message)
                self.pulled[message.part] = message.value
            elif isinstance(message, Counted) and self.requests.kind != "dist_sync":
                self.world.promises.hear(request.part, request.rank, request.round)
            elif isinstance(message, Done) and isinstance(request, Do) and isinstance(request.command, Begin):
                self.index[int(request.command.name.split()[1])] = message.answer
            if not self.ended and message.id == self.asked:
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
        """What is pushed and not known to be committed is kept, and sent again: so that the others can end, too."""
        return self.requests.lost or (self.ended and not self.requests.waiting and not self.requests.kept)


class World(Network):
    """Three servers, of which two are members at first, some workers, and a register of views.

    ``replica``, ``requests`` and ``register`` are the classes that play; a test puts wrong ones in their place. If it
    is ``recorded``, every message is kept, for :mod:`~d2lps.kvstore.replication.story`.
    """

    def __init__(self, schedule: Schedule, replica=Replica, requests=Requests, register=Register, recorded=False):
        faults = Faults(schedule.lost, schedule.doubled, schedule.slow, (0.5e-3, 5e-3), schedule.long, schedule.until)
        super().__init__(schedule.seed, faults)
        if recorded:
            self.record()
        self.schedule, self._replica = schedule, replica
        self.crashes, self.gone = 0, set()  # ranks of workers that are dead, or taken for dead
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
        for time, what, seed in schedule.troubles:
            self.after(time, self._trouble, what, Random(seed))

    @property
    def view(self) -> View:
        """The one that holds: the register's."""
        return self.register.view

    @property
    def replicas(self) -> dict[Name, Replica]:
        """Those that are alive, by name."""
        return {name: node.replica for name, node in self.nodes.items() if isinstance(node, Server)}

    @property
    def workers(self) -> list[Worker]:
        """Those that are alive."""
        return [node for node in self.nodes.values() if isinstance(node, Worker)]

    def run(self) -> str:
        """``"done"``, or ``"lost"`` where both members died; raises Violation."""
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
        """Send on what a replica or a worker has to say, once the promises about it are checked."""
        for effect in effects:
            if isinstance(effect, Send):
                message = effect.message
                promises = self.promises
                if isinstance(message, Value):
                    promises.check_value(name, message)
                    if self.random.random() < self.schedule.torn:
                        message = GARBAGE, message.id
                elif isinstance(message, Counted) and self.schedule.kind != "dist_sync":
                    promises.check_counted(effect.to, message)
                elif isinstance(message, Lost):
                    promises.check_lost(name, effect.to)
                elif isinstance(message, Done):
                    promises.check_done(effect.to, message)
                self.send(name, effect.to, message)
            else:
                self.send(name, REGISTER, effect)

    # What goes wrong.

    def _start(self, number: int, life: int) -> None:
        name, schedule = ("server", number, life), self.schedule
        view = self.view if life == 0 else View(0, ())
        parts = [] if schedule.also else [Part(0, (0,) * schedule.workers, ())] * schedule.parts
        of = schedule.workers, schedule.kind, schedule.staleness, schedule.patience
        replica = self._replica(name, view, parts, *of, publish=stepped)
        rate = 1 + self.random.uniform(-schedule.skew, schedule.skew)
        self.nodes[name] = server = Server(self, name, replica, rate)
        self.after(self.random.uniform(0.001, 0.01), server.tick)

    def _trouble(self, what: str, draw: Random) -> None:
        servers, workers = sorted(self.replicas), sorted(worker.name for worker in self.workers)
        if not servers:
            return
        if what == "crash":
            name = draw.choice(servers)
            others = [member for member in self.view.members if member in self.nodes and member != name]
            if others or draw.random() < 0.05:
                self.crashes += 1
                self.crash(name)
                self.after(draw.choice([0.001, 0.05, 0.2]), self._start, name[1], name[2] + 1)
        elif what == "pause":
            self.pause(draw.choice(servers), draw.choice([0.02, 0.1, 0.3]))
        elif what == "cut":
            one, other, seconds = draw.choice(servers), draw.choice(servers + workers), draw.choice([0.02, 0.1, 0.3])
            self.cut(one, other, seconds)
            if draw.random() < 0.6:
                self.cut(other, one, seconds)
        elif what == "cut off from the register":
            one, seconds = draw.choice(servers), draw.choice([0.02, 0.1, 0.3])
            side, others = [one], [REGISTER]
            if draw.random() < 0.5:  # with some workers, from all others
                side += [worker for worker in workers if draw.random() < 0.5]
                others += [each for each in servers + workers if each not in side]
            for here, there in product(side, others):
                self.cut(here, there, seconds)
                self.cut(there, here, seconds)
        elif workers:
            name = draw.choice(workers)
            self.gone.add(name[1])
            if what == "a worker dies":
                self.crash(name)
            self.after(0.02, self._tell_of_lost)

    def _tell_of_lost(self) -> None:
        for server, rank in product(sorted(self.replicas), sorted(self.gone)):
            self.send("detector", server, Lose(rank))
        self.after(0.03, self._tell_of_lost)

    def members(self) -> Iterator[tuple[Name, Replica]]:
        """Those of the view that live, with their replicas."""
        for member in self.view.members:
            if member in self.nodes:
                yield member, self.nodes[member].replica

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
from d2lps.kvstore.replication.messages import Ask, Counted, Lose, Lost, Name, Propose, Push, Send, Value, View
from d2lps.kvstore.replication.replica import Replica
from d2lps.kvstore.replication.requests import Requests
from d2lps.simulate import Faults, Network

REGISTER = "register"
GARBAGE = "garbage"  # what a torn answer leaves in memory that was pushed
LIMIT = 6.0  # virtual seconds within which all must have ended


class Violation(AssertionError):
    """A promise that was broken: its number and what was seen."""


@dataclass(frozen=True)
class Schedule:
    """What is to happen. Times are virtual seconds.

    ``kind``, ``staleness``, ``workers``, ``parts`` and ``rounds`` say what is trained; ``lost``, ``doubled``, ``slow``
    and ``long`` what becomes of messages; ``torn`` which part of all answers comes in half; ``patience`` when a server
    is suspected; ``skew`` by how much clocks go wrong; ``troubles`` are (time, what, seed of its own). All trouble ends
    at ``until``.
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
    troubles: tuple[tuple[float, str, int], ...] = ()

    @classmethod
    def drawn(cls, seed: int, kind: str | None = None) -> "Schedule":
        """The schedule of a seed."""
        draw = Random(seed)
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
        if isinstance(message, Propose) and message.number == self.view.number + 1:
            self.view = View(*message)
            self.world.check_members()
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


class Worker:
    """A worker in the world: it pushes all parts in its own order, then pulls them; in even rounds one by one."""

    def __init__(self, world: "World", name: Name, requests: Requests):
        self.world, self.name, self.requests = world, name, requests
        parts, acts = range(world.schedule.parts), ("push", "pull")
        own = [(part + requests.rank) % len(parts) for part in parts]
        self.program = []
        for round in range(1, world.schedule.rounds + 1):
            turns = product(acts, own) if round % 2 else ((act, part) for part in parts for act in acts)
            self.program += [(act, part, round) for act, part in turns]
        self.at = 0
        self.seen: dict[int, int] = {}  # part → the version of the last pull
        self.ended = False

    def begin(self) -> None:
        act, part, round = self.program[self.at]
        if act == "push":
            self.requests.push(part, round, (self.requests.rank, round))
        else:
            self.requests.pull(part, round)
        self.world.carry_out(self.name, self.requests.take())

    def receive(self, src: Name, message, now: float) -> None:
        requests = self.requests
        if isinstance(message, tuple) and message[0] is GARBAGE:  # half of an answer came, over what was pushed
            request = requests.waiting.get(message[1])
            if request and (request.part, request.round) in requests.kept:
                requests.kept[request.part, request.round] = GARBAGE
            return
        request = requests.receive(message)
        if request is not None:
            if isinstance(message, Value):
                self.world.check_pull(self, request, message)
            act = "push" if isinstance(request, Push) else "pull"
            if not self.ended and (act, request.part, request.round) == self.program[self.at]:
                self.at += 1
                self.ended = self.at == len(self.program)
                if not self.ended:
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
        self._told: list[int] = [0] * schedule.parts  # the highest version that anybody was told
        self._counted: set[tuple[int, int, int]] = set()  # (part, rank, round) that a worker was told
        self._values: dict[tuple[int, int], object] = {}  # (part, version) → what it is
        self._left: dict[tuple[int, int], int] = {}  # (part, rank) → how many of its pushes may count
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
        return self.register.view

    @property
    def replicas(self) -> dict[Name, Replica]:
        """Those that are alive, by name."""
        return {name: node.replica for name, node in self.nodes.items() if isinstance(node, Server)}

    @property
    def workers(self) -> list[Worker]:
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
        self.check_members()
        return "done"

    def carry_out(self, name: Name, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                message = effect.message
                if isinstance(message, Value):
                    self.check_value(name, message)
                    if self.random.random() < self.schedule.torn:
                        message = GARBAGE, message.id
                elif isinstance(message, Counted) and self.schedule.kind != "dist_sync":
                    self.check_counted(effect.to, message)
                elif isinstance(message, Lost):
                    self.check_lost(name, effect.to)
                self.send(name, effect.to, message)
            else:
                self.send(name, REGISTER, effect)

    # What goes wrong.

    def _start(self, number: int, life: int) -> None:
        name, schedule = ("server", number, life), self.schedule
        view = self.view if life == 0 else View(0, ())
        parts = [Part(0, (0,) * schedule.workers, ())] * schedule.parts
        of = schedule.workers, schedule.kind, schedule.staleness, schedule.patience
        replica = self._replica(name, view, parts, *of)
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
            self.cut(one, REGISTER, seconds)
            self.cut(REGISTER, one, seconds)
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

    # What is promised: I1 to I11, checked when a message that promises it is sent.

    def check_value(self, src: Name, told: Value) -> None:
        part, flat = told.part, [gradient for one in told.value for gradient in one]
        for member, replica in self._members():
            if replica.parts[part].version < told.version:
                raise Violation(f"I3 {member} of {self.view} lacks version {told.version}, which {src} tells")
        self._told[part] = max(self._told[part], told.version)
        if self._values.setdefault((part, told.version), told.value) != told.value:
            raise Violation(f"I1 two values of version {told.version} of part {part}")
        if GARBAGE in flat:
            raise Violation("I7 garbage was counted")
        if len({*flat}) < len(flat):
            raise Violation(f"I2 a push counts twice: {told.value}")
        everyone = {*range(self.schedule.workers)}
        if self.schedule.kind == "dist_sync":
            for round, one in enumerate(told.value, 1):
                ranks = [rank for rank, _ in one]
                if ranks != sorted(ranks) or any(number != round for _, number in one):
                    raise Violation(f"I10 not in order of the ranks, or of another round: {one} in round {round}")
                if not everyone - self.gone <= {*ranks}:
                    raise Violation(f"I2 a push is missing: {one}")
        else:
            seen = [0] * self.schedule.workers
            for ((rank, number),) in told.value:
                if number != seen[rank] + 1:
                    raise Violation(f"I2 a gap: {told.value}")
                seen[rank] = number
            if tuple(seen) != told.rounds:
                raise Violation(f"I2 {told.rounds} is said to be in {told.value}")
        for rank in everyone:
            if told.rounds[rank] > self._left.get((part, rank), told.rounds[rank]):
                raise Violation(f"I11 worker {rank} was told that it is lost, and counts again")

    def check_counted(self, worker: Name, told: Counted) -> None:
        node = self.nodes.get(worker)
        push = node.requests.waiting.get(told.id) if node else None
        if push is not None:
            for member, replica in self._members():
                if replica.parts[push.part].rounds[push.rank] < push.round:
                    raise Violation(f"I3 {member} of {self.view} lacks {push}, which was told to count")
            self._counted.add((push.part, push.rank, push.round))

    def check_lost(self, src: Name, worker: Name) -> None:
        replica, rank = self.replicas[src], worker[1]
        for index, part in enumerate(replica.parts):
            arrived = rank in replica._arrived[index]  # told to count before
            self._left.setdefault((index, rank), part.rounds[rank] + arrived)

    def check_members(self) -> None:
        """Every member of the view has what anybody was told; where they have done as much, they have the same."""
        done: dict[int, list] = {}
        for member, replica in self._members():
            if not replica.follows:
                raise Violation(f"I3 {member} of {self.view} has forgotten what it had")
            for index, version in enumerate(self._told):
                if replica.parts[index].version < version:
                    raise Violation(f"I3 {member} lacks version {version} of part {index} in {self.view}")
            for index, rank, round in self._counted:
                if replica.parts[index].rounds[rank] < round:
                    raise Violation(f"I3 {member} lacks push {round} of worker {rank} in {self.view}")
            if done.setdefault(replica.seq, replica.parts) != replica.parts:
                raise Violation(f"I6 the members of {self.view} have done {replica.seq} commands, and not the same")
            if len(replica.log) > 2 * self.schedule.parts * self.schedule.rounds * self.schedule.workers + 2:
                raise Violation(f"I8 {member} keeps {len(replica.log)} commands")

    def check_pull(self, worker: Worker, pull, told: Value) -> None:
        live = [rank for rank in range(self.schedule.workers) if rank not in self.gone]
        if self.schedule.kind == "dist_sync":
            if told.version != pull.round:
                raise Violation(f"I5 a pull of round {pull.round} got {told.version}")
        else:
            if told.rounds[pull.rank] < pull.round:
                raise Violation(f"I5 own pushes are missing: {told.rounds} after {pull.round}")
            if told.version < worker.seen.get(pull.part, 0):
                raise Violation(f"I5 a pull went back from {worker.seen[pull.part]} to {told.version}")
            worker.seen[pull.part] = told.version
            late = self.schedule.kind == "dist_ssp" and any(
                told.rounds[rank] < pull.round - self.schedule.staleness for rank in live
            )
            if late:
                raise Violation(f"I5 more than {self.schedule.staleness} behind: {told.rounds} at {pull.round}")
        if len(worker.requests.kept) > 2 * self.schedule.parts:
            raise Violation(f"I8 a worker keeps {len(worker.requests.kept)} pushes")

    def _members(self) -> Iterator[tuple[Name, Replica]]:
        for member in self.view.members:
            if member in self.nodes:
                yield member, self.nodes[member].replica

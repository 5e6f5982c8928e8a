"""What is promised of a slot, I1 to I15, checked in a world when a message that promises it is sent."""

from typing import Any, NamedTuple

from d2lps.kvstore.replication.messages import Begin, Choose, Counted, Done, Load, Meet, Name, Value
from d2lps.kvstore.replication.replica import Replica

GARBAGE = "garbage"  # what a torn answer leaves in memory that was pushed


class Violation(AssertionError):
    """A promise that was broken: its number and what was seen."""


class Step(NamedTuple):
    """What a round adds to a value: by which optimizer it was stepped, and who pushed in it."""

    optimizer: int | None
    pushes: tuple


class Loaded(NamedTuple):
    """What a load adds to a value."""

    number: int


class Promises:
    """What was told in a world, and so has to hold from then on."""

    def __init__(self, world: Any):
        self.world = world
        self._told: list[int] = [0] * world.schedule.parts  # the highest version that anybody was told
        self._counted: set[tuple[int, int, int]] = set()  # (part, rank, round) that a worker was told
        self._values: dict[tuple[int, int, int], object] = {}  # (part, version, load) → what it is
        self._heard: dict[tuple[int, int], int] = {}  # (part, rank) → of how many of its pushes somebody has heard
        self._left: dict[tuple[int, int], int] = {}  # (part, rank) → how many of its pushes may count
        self._names: dict[str, int] = {}  # of parts, with the numbers that were told
        self.chosen = self.loaded = 0  # the last optimizer and the last load that a worker was told are done
        self.met: dict[tuple[str, int], set[int]] = {}  # by barrier: who has come
        self._notes: dict[tuple[str, int], object] = {}  # by barrier that all have passed: what they were told

    def check_value(self, src: Name, told: Value) -> None:
        part, steps = told.part, [one for one in told.value if isinstance(one, Step)]
        flat = [gradient for step in steps for gradient in step.pushes]
        for member, replica in self.world.members():
            if replica.parts[part].version < told.version:
                raise Violation(f"I3 {member} of {self.world.view} lacks version {told.version}, which {src} tells")
        self._told[part] = max(self._told[part], told.version)
        loads = sum(isinstance(one, Loaded) for one in told.value)
        if self._values.setdefault((part, told.version, loads), told.value) != told.value:
            raise Violation(f"I1 two values of version {told.version} of part {part}")
        if GARBAGE in flat:
            raise Violation("I7 garbage was counted")
        if len({*flat}) < len(flat):
            raise Violation(f"I2 a push counts twice: {told.value}")
        everyone = {*range(self.world.schedule.workers)}
        if self.world.schedule.kind == "dist_sync":
            for round, (_, one) in enumerate(steps, 1):
                ranks = [rank for rank, _ in one]
                if ranks != sorted(ranks) or any(number != round for _, number in one):
                    raise Violation(f"I10 not in order of the ranks, or of another round: {one} in round {round}")
                if not everyone - self.world.gone <= {*ranks}:
                    raise Violation(f"I2 a push is missing: {one}")
        else:
            seen = [0] * self.world.schedule.workers
            for _, ((rank, number),) in steps:
                if number != seen[rank] + 1:
                    raise Violation(f"I2 a gap: {told.value}")
                seen[rank] = number
            if tuple(seen) != told.rounds:
                raise Violation(f"I2 {told.rounds} is said to be in {told.value}")
        self._check_what_was_done(told)
        for rank in everyone:
            if told.rounds[rank] > self._left.get((part, rank), told.rounds[rank]):
                raise Violation(f"I11 worker {rank} was told that it is lost, and counts again")

    def check_counted(self, worker: Name, told: Counted) -> None:
        node = self.world.nodes.get(worker)
        push = node.requests.waiting.get(told.id) if node else None
        if push is not None:
            for member, replica in self.world.members():
                if replica.parts[push.part].rounds[push.rank] < push.round:
                    raise Violation(f"I3 {member} of {self.world.view} lacks {push}, which was told to count")
            self._counted.add((push.part, push.rank, push.round))

    def heard(self, part: int) -> dict[int, int]:
        """By rank: of how many of its pushes to a part a worker has heard that they count, or pulled them."""
        return {rank: self._heard.get((part, rank), 0) for rank in range(self.world.schedule.workers)}

    def hear(self, part: int, rank: int, round: int) -> None:
        """Somebody hears of a push."""
        self._heard[part, rank] = max(self._heard.get((part, rank), 0), round)

    def check_lost(self, src: Name, worker: Name) -> None:
        replica, rank = self.world.replicas[src], worker[1]
        for index, part in enumerate(replica.parts):
            arrived = rank in replica.arrived(index)  # told to count before
            self._left.setdefault((index, rank), part.rounds[rank] + arrived)

    def check_members(self) -> None:
        """Every member of the view has what anybody was told; where they have done as much, they have the same."""
        done: dict[int, list] = {}
        for member, replica in self.world.members():
            if not replica.follows:
                raise Violation(f"I3 {member} of {self.world.view} has forgotten what it had")
            for index, version in enumerate(self._told):
                if version and replica.parts[index].version < version:
                    raise Violation(f"I3 {member} lacks version {version} of part {index} in {self.world.view}")
            for index, rank, round in self._counted:
                if replica.parts[index].rounds[rank] < round:
                    raise Violation(f"I3 {member} lacks push {round} of worker {rank} in {self.world.view}")
            same = replica.parts, *replica._given_over()[1]
            if done.setdefault(replica.seq, same) != same:
                raise Violation(
                    f"I6 the members of {self.world.view} have done {replica.seq} commands, and not the same"
                )
            self._check_facts(member, replica)
            if (
                len(replica.log)
                > 2 * self.world.schedule.parts * self.world.schedule.rounds * self.world.schedule.workers + 12
            ):
                raise Violation(f"I8 {member} keeps {len(replica.log)} commands")

    def check_pull(self, worker: Any, pull, told: Value) -> None:
        live = [rank for rank in range(self.world.schedule.workers) if rank not in self.world.gone]
        if self.world.schedule.kind == "dist_sync":
            if told.version != pull.round:
                raise Violation(f"I5 a pull of round {pull.round} got {told.version}")
        else:
            if told.rounds[pull.rank] < pull.round:
                raise Violation(f"I5 own pushes are missing: {told.rounds} after {pull.round}")
            if told.version < worker.seen.get(pull.part, 0):
                raise Violation(f"I5 a pull went back from {worker.seen[pull.part]} to {told.version}")
            worker.seen[pull.part] = told.version
            late = self.world.schedule.kind == "dist_ssp" and any(
                told.rounds[rank] < pull.round - self.world.schedule.staleness for rank in live
            )
            if late:
                raise Violation(f"I5 more than {self.world.schedule.staleness} behind: {told.rounds} at {pull.round}")
        missing = [rank for rank, round in worker.floor.items() if told.rounds[rank] < round]
        if missing:
            raise Violation(f"I15 {told.rounds} to a pull that came when {worker.floor} had been heard of")
        for rank, round in enumerate(told.rounds):
            self.hear(pull.part, rank, round)
        after_load = self.loaded and ("meet", "load", 2) in worker.program[: worker.at]
        if after_load and not any(isinstance(one, Loaded) for one in told.value):
            raise Violation(f"I14 load {self.loaded} was done, and {told} has nothing of it")
        if len(worker.requests.kept) > 2 * self.world.schedule.parts:
            raise Violation(f"I8 a worker keeps {len(worker.requests.kept)} pushes")

    def _check_what_was_done(self, told: Value) -> None:
        steps, loads = [], []
        for one in told.value:
            (loads if isinstance(one, Loaded) else steps).append(one)
        for step in steps:
            late = any(round > 1 for _, round in step.pushes)
            if self.chosen and step.optimizer != (self.chosen if late else None):
                raise Violation(f"I12 optimizer {self.chosen} was chosen after round 1: {step}")
        if len(loads) > 1:
            raise Violation(f"I14 one load was asked for, and there is {loads}")

    def check_done(self, worker: Name, told: Done) -> None:
        node = self.world.nodes.get(worker)
        request = node.requests.waiting.get(told.id) if node else None
        if isinstance(request, Meet):
            barrier = request.name, request.number
            missing = {*range(self.world.schedule.workers)} - self.world.gone - self.met[barrier]
            if missing:
                raise Violation(f"I13 workers {missing} have not come to barrier {barrier}")
            if self._notes.setdefault(barrier, told.answer) != told.answer:
                raise Violation(f"I13 two notes at barrier {barrier}: {told.answer}, {self._notes[barrier]}")
        elif request is not None:
            command = request.command
            if isinstance(command, Begin):
                if self._names.setdefault(command.name, told.answer) != told.answer:
                    raise Violation(f"I1 two numbers of {command.name}: {told.answer}, {self._names[command.name]}")
            elif isinstance(command, Choose):
                self.chosen = max(self.chosen, command.number)
            elif isinstance(command, Load):
                self.loaded = max(self.loaded, command.number)
        for member, replica in self.world.members():
            self._check_facts(member, replica)

    def _check_facts(self, member: Name, replica: Replica) -> None:
        for name, number in self._names.items():
            if replica.names.get(name) != number:
                raise Violation(f"I3 {member} of {self.world.view} has no part {number} of the name {name}")
        if replica.chosen.number < self.chosen:
            raise Violation(f"I12 {member} of {self.world.view} has not heard of optimizer {self.chosen}")
        if replica.loaded < self.loaded:
            raise Violation(f"I14 {member} of {self.world.view} has not heard of load {self.loaded}")
        for name, number in self._notes:
            if number not in replica.passed.get(name, ()):
                raise Violation(f"I13 {member} of {self.world.view} does not know that all passed {name} {number}")

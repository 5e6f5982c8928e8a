"""The promises I1 to I15 about a slot, each checked in a world when a message that promises it is sent."""

from typing import Any, NamedTuple

from d2lps.kvstore.replication.commands import PartState
from d2lps.kvstore.replication.messages import Begin, Choose, Counted, Done, Load, Meet, Name, Pull, Values
from d2lps.kvstore.replication.replica import Replica

GARBAGE = "garbage"  # overwrites a pushed gradient when an answer is torn


class Violation(AssertionError):
    """A broken promise: its number and the evidence."""


class Step(NamedTuple):
    """An entry of a value for one round: the optimizer that stepped it, and the pushes in it."""

    optimizer: int | None
    pushes: tuple


class Loaded(NamedTuple):
    """An entry of a value for one load."""

    number: int


class Promises:
    """The facts that messages of a world have revealed, which have to hold from then on."""

    def __init__(self, world: Any):
        self.world = world
        self._versions: list[int] = [0] * world.schedule.parts  # part → the highest version that was revealed
        self._counted: set[tuple[int, int, int]] = set()  # (part, rank, round) of acknowledged pushes
        self._values: dict[tuple[int, int, int], object] = {}  # (part, version, load) → value
        self._acknowledged: dict[tuple[int, int], int] = {}  # (part, rank) → pushes that a worker knows to count
        self._final: dict[tuple[int, int], int] = {}  # (part, lost rank) → most of its pushes that may count
        self._names: dict[str, int] = {}  # name → number of parts that were begun
        self.chosen = self.loaded = 0  # the last optimizer and load that are known to be done
        self.met: dict[tuple[str, int], set[int]] = {}  # barrier → the ranks that have come
        self._notes: dict[tuple[str, int], object] = {}  # passed barrier → its note

    def check_values(self, src: Name, answer: Values) -> None:
        for part, content in answer.parts:
            self._check_value(src, part, content)

    def _check_value(self, src: Name, part: int, answer: PartState) -> None:
        steps = [entry for entry in answer.value if isinstance(entry, Step)]
        flat = [gradient for step in steps for gradient in step.pushes]
        for member, replica in self.world.members():
            if replica.parts[part].version < answer.version:
                raise Violation(f"I3 {member} of {self.world.view} lacks version {answer.version}, which {src} sends")
        self._versions[part] = max(self._versions[part], answer.version)
        loads = sum(isinstance(entry, Loaded) for entry in answer.value)
        if self._values.setdefault((part, answer.version, loads), answer.value) != answer.value:
            raise Violation(f"I1 two values of version {answer.version} of part {part}")
        if GARBAGE in flat:
            raise Violation("I7 garbage was counted")
        if len({*flat}) < len(flat):
            raise Violation(f"I2 a push counts twice: {answer.value}")
        everyone = {*range(self.world.schedule.workers)}
        if self.world.schedule.kind == "dist_sync":
            for round, (_, pushes) in enumerate(steps, 1):
                ranks = [rank for rank, _ in pushes]
                if ranks != sorted(ranks) or any(number != round for _, number in pushes):
                    raise Violation(f"I10 not in order of the ranks, or of another round: {pushes} in round {round}")
                if not everyone - self.world.gone <= {*ranks}:
                    raise Violation(f"I2 a push is missing: {pushes}")
        else:
            counts = [0] * self.world.schedule.workers
            for _, ((rank, number),) in steps:
                if number != counts[rank] + 1:
                    raise Violation(f"I2 a gap: {answer.value}")
                counts[rank] = number
            if tuple(counts) != answer.rounds:
                raise Violation(f"I2 the pushes {answer.rounds} are not those of {answer.value}")
        self._check_entries(answer)
        for rank in everyone:
            if answer.rounds[rank] > self._final.get((part, rank), answer.rounds[rank]):
                raise Violation(f"I11 worker {rank} was lost, and counts again")

    def check_counted(self, worker: Name, answer: Counted) -> None:
        node = self.world.nodes.get(worker)
        push = node.requests.waiting.get(answer.id) if node else None
        if push is not None:
            for member, replica in self.world.members():
                if replica.parts[push.part].rounds[push.rank] < push.round:
                    raise Violation(f"I3 {member} of {self.world.view} lacks {push}, which was acknowledged")
            self._counted.add((push.part, push.rank, push.round))

    def acknowledged(self, part: int) -> dict[int, int]:
        """Return, by rank, how many of its pushes to a part were acknowledged or pulled."""
        return {rank: self._acknowledged.get((part, rank), 0) for rank in range(self.world.schedule.workers)}

    def acknowledge(self, part: int, rank: int, round: int) -> None:
        """Note that a worker knows that a push counts."""
        self._acknowledged[part, rank] = max(self._acknowledged.get((part, rank), 0), round)

    def check_lost(self, src: Name, worker: Name) -> None:
        replica, rank = self.world.replicas[src], worker[1]
        for index, part in enumerate(replica.parts):
            arrived = rank in replica.arrived(index)  # acknowledged before
            self._final.setdefault((index, rank), part.rounds[rank] + arrived)

    def check_members(self) -> None:
        """Check that members have all that was revealed, and are the same after the same number of commands."""
        states: dict[int, tuple] = {}
        for member, replica in self.world.members():
            if not replica.follows:
                raise Violation(f"I3 {member} of {self.world.view} has lost its state")
            for index, version in enumerate(self._versions):
                if version and replica.parts[index].version < version:
                    raise Violation(f"I3 {member} lacks version {version} of part {index} in {self.world.view}")
            for index, rank, round in self._counted:
                if replica.parts[index].rounds[rank] < round:
                    raise Violation(f"I3 {member} lacks push {round} of worker {rank} in {self.world.view}")
            state = replica.parts, *replica._snapshot()[1]
            if states.setdefault(replica.seq, state) != state:
                raise Violation(f"I6 the members of {self.world.view} differ after {replica.seq} commands")
            self._check_facts(member, replica)
            schedule = self.world.schedule
            if len(replica.log) > 2 * schedule.parts * schedule.rounds * schedule.workers + 12:
                raise Violation(f"I8 {member} keeps {len(replica.log)} commands")

    def check_pull(self, worker: Any, pull: Pull, answer: Values) -> None:
        if [part for part, _ in answer.parts] != [part for part, _ in pull.wanted]:
            raise Violation(f"I5 {answer.parts} answers a pull of {pull.wanted}")
        for (part, round), (_, content) in zip(pull.wanted, answer.parts, strict=True):
            self._check_pulled(worker, pull.rank, part, round, content)
        if len(worker.requests.kept) > 2 * self.world.schedule.parts:
            raise Violation(f"I8 a worker keeps {len(worker.requests.kept)} pushes")

    def _check_pulled(self, worker: Any, rank: int, part: int, pushed: int, answer: PartState) -> None:
        schedule = self.world.schedule
        live = [rank for rank in range(schedule.workers) if rank not in self.world.gone]
        if schedule.kind == "dist_sync":
            if answer.version != pushed:
                raise Violation(f"I5 a pull of round {pushed} got {answer.version}")
        else:
            if answer.rounds[rank] < pushed:
                raise Violation(f"I5 own pushes are missing: {answer.rounds} after {pushed}")
            if answer.version < worker.seen.get(part, 0):
                raise Violation(f"I5 a pull went back from {worker.seen[part]} to {answer.version}")
            worker.seen[part] = answer.version
            oldest = pushed - schedule.staleness
            if schedule.kind == "dist_ssp" and any(answer.rounds[other] < oldest for other in live):
                raise Violation(f"I5 more than {schedule.staleness} behind: {answer.rounds} at {pushed}")
        missing = [other for other, round in worker.floor.get(part, {}).items() if answer.rounds[other] < round]
        if missing:
            raise Violation(f"I15 {answer.rounds} answers a pull from after {worker.floor[part]} were acknowledged")
        for other, round in enumerate(answer.rounds):
            self.acknowledge(part, other, round)
        after_load = self.loaded and ("meet", "load", 2) in worker.program[: worker.at]
        if after_load and not any(isinstance(entry, Loaded) for entry in answer.value):
            raise Violation(f"I14 load {self.loaded} was done, and {answer} lacks it")

    def _check_entries(self, answer: PartState) -> None:
        loads = [entry for entry in answer.value if isinstance(entry, Loaded)]
        steps = [entry for entry in answer.value if not isinstance(entry, Loaded)]
        for step in steps:
            late = any(round > 1 for _, round in step.pushes)
            if self.chosen and step.optimizer != (self.chosen if late else None):
                raise Violation(f"I12 optimizer {self.chosen} was chosen after round 1: {step}")
        if len(loads) > 1:
            raise Violation(f"I14 one load was asked for, and there is {loads}")

    def check_done(self, worker: Name, answer: Done) -> None:
        node = self.world.nodes.get(worker)
        request = node.requests.waiting.get(answer.id) if node else None
        if isinstance(request, Meet):
            barrier = request.name, request.number
            missing = {*range(self.world.schedule.workers)} - self.world.gone - self.met[barrier]
            if missing:
                raise Violation(f"I13 workers {missing} have not come to barrier {barrier}")
            if self._notes.setdefault(barrier, answer.answer) != answer.answer:
                raise Violation(f"I13 two notes at barrier {barrier}: {answer.answer}, {self._notes[barrier]}")
        elif request is not None:
            command = request.command
            if isinstance(command, Begin):
                if self._names.setdefault(command.name, answer.answer) != answer.answer:
                    raise Violation(f"I1 two numbers of {command.name}: {answer.answer}, {self._names[command.name]}")
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
            raise Violation(f"I12 {member} of {self.world.view} lacks optimizer {self.chosen}")
        if replica.loaded < self.loaded:
            raise Violation(f"I14 {member} of {self.world.view} lacks load {self.loaded}")
        for name, number in self._notes:
            if number not in replica.passed.get(name, ()):
                raise Violation(f"I13 {member} of {self.world.view} does not know that all passed {name} {number}")

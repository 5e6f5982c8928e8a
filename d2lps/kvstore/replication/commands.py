"""What a slot holds, and what each command does to it: the same on every server that does the same commands.

A command may still have to be sent when later ones are done: what it brings stays as it is.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from d2lps.kvstore.replication.messages import Add, Begin, Choose, Facts, Keep, Load, Lose, Pass

KEPT = 4  # barriers of a name: who was interrupted may come again


class Part(NamedTuple):
    """A part of a key, never changed: its version, how many pushes of each rank are in it, and what they made of it."""

    version: int
    rounds: tuple[int, ...]
    value: Any


class Kept(NamedTuple):
    """What was kept for a save: all parts as they were then, and the optimizer; nothing where that is over."""

    number: int = 0
    parts: tuple[Part, ...] = ()
    optimizer: Any = None
    here: bool = False


class State:
    """What commands have made of a slot, up to number ``seq``. See :class:`Replica` for what it is made with."""

    def __init__(self, parts: Iterable[Part], workers: int, publish: Callable, copied: Callable):
        self.workers, self.publish, self.copied, self.seq = workers, publish, copied, 0
        self._take_over(parts, Facts())

    def _take_over(self, parts: Iterable[Part], facts: Facts) -> None:
        self.parts = list(parts)
        self.names: dict[str, int] = {name: index for index, (name, _) in enumerate(facts.names)}
        self.likes = [like for _, like in facts.names]
        self.losses = {lose.rank: lose for lose in facts.losses}
        self.lost_at: dict[int, int] = dict.fromkeys(self.losses, self.seq)  # by which command
        self.live = frozenset(range(self.workers)) - self.losses.keys()
        self.chosen, self.loaded = facts.chosen, facts.loaded
        self.kept = Kept()  # who learns what is now has nothing of what was
        self.passed: dict[str, dict[int, Pass]] = {}
        for passed in facts.passed:
            self.passed.setdefault(passed.name, {})[passed.number] = passed

    def _given_over(self) -> tuple[tuple[Part, ...], Facts]:
        names = tuple(zip(self.names, self.likes, strict=True))
        passed = tuple(each for numbers in self.passed.values() for each in numbers.values())
        facts = Facts(names, tuple(self.losses.values()), self.chosen, self.loaded, passed)
        return self._as_they_are(), facts

    def _as_they_are(self) -> tuple[Part, ...]:
        return tuple(part._replace(value=self.copied(part.value)) for part in self.parts)

    @property
    def over(self) -> bool:
        """Whether the workers cannot go on, as one of them is lost."""
        return any(lose.ends for lose in self.losses.values())

    def _passed(self, name: str, number: int) -> Pass | None:
        return self.passed.get(name, {}).get(number)

    def _is_done(self, command: NamedTuple) -> bool:
        """Whether to do it would be to do it again."""
        if isinstance(command, Begin):
            index = self.names.get(command.name)
            return index is not None and (command.value is None or self.parts[index].value is not None)
        if isinstance(command, Choose):
            return command.number <= self.chosen.number
        if isinstance(command, Keep):
            return (command.number, not command.keep) <= (self.kept.number, not self.kept.here)
        return command.number <= self.loaded

    def _outcome(self, command: NamedTuple) -> object:
        """What who asked for it is told: of a part its number."""
        return self.names[command.name] if isinstance(command, Begin) else None

    def _do(self, command: NamedTuple) -> None:
        self._acts[type(command)](self, command)

    def _add(self, add: Add) -> None:
        part, rounds = self.parts[add.part], dict(add.pushes)
        rounds = tuple(rounds.get(rank, had) for rank, had in enumerate(part.rounds))
        value = self.publish(part.value, add.total, len(add.pushes), self.chosen.optimizer)
        self._replace(add.part, Part(part.version + 1, rounds, value))

    def _lose(self, lose: Lose) -> None:
        self.live -= {lose.rank}
        self.losses[lose.rank], self.lost_at[lose.rank] = lose, self.seq
        if lose.rank == 0:
            self.kept = Kept(self.kept.number)  # nobody else reads it

    def _begin(self, begin: Begin) -> None:
        index = self.names.setdefault(begin.name, len(self.parts))
        if index == len(self.parts):
            self.likes.append(begin.like)
            self.parts.append(part := Part(0, (0,) * self.workers, self.copied(begin.value)))
        else:
            part = self.parts[index]._replace(value=self.copied(begin.value))
        self._replace(index, part)

    def _choose(self, choose: Choose) -> None:
        self.chosen = choose

    def _load(self, load: Load) -> None:
        self.loaded, self.chosen = load.number, self.chosen._replace(optimizer=load.optimizer)
        for index, value in load.values:
            self._replace(index, self.parts[index]._replace(value=self.copied(value)))

    def _keep(self, keep: Keep) -> None:
        here = (self._as_they_are(), self.chosen.optimizer, True) if keep.keep else ()
        self.kept = Kept(keep.number, *here)

    def _pass(self, passed: Pass) -> None:
        numbers = self.passed.setdefault(passed.name, {})
        numbers[passed.number] = passed
        for old in [number for number in numbers if number <= passed.number - KEPT]:
            del numbers[old]

    def _replace(self, index: int, part: Part) -> None:
        self.parts[index] = part
        self._changed(index, part)

    def _changed(self, index: int, part: Part) -> None:
        """To be told of each part as a command leaves it."""

    _acts = {Add: _add, Lose: _lose, Begin: _begin, Choose: _choose, Load: _load, Keep: _keep, Pass: _pass}

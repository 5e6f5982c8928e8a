"""The state of a slot, and the effect of each command: the same on every server that executes the same commands.

A command may still have to be sent after later ones were executed, so its contents are never changed.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from d2lps.kvstore.replication.messages import Add, Begin, Choose, Command, Facts, Load, Lose, Pass

KEPT = 4  # barriers that are remembered per name: a worker that was interrupted may come again


class PartState(NamedTuple):
    """An immutable part of a key: its version, how many pushes of each rank are in it, and its value."""

    version: int
    rounds: tuple[int, ...]
    value: Any


class State:
    """The state of a slot after the commands up to number ``seq``. :class:`Replica` documents the arguments."""

    def __init__(self, parts: Iterable[PartState], workers: int, publish: Callable, copied: Callable):
        self.workers, self.publish, self.copied, self.seq = workers, publish, copied, 0
        self._restore(parts, Facts())

    def _restore(self, parts: Iterable[PartState], facts: Facts) -> None:
        self.parts = list(parts)
        self.names: dict[str, int] = {name: index for index, (name, _) in enumerate(facts.names)}
        self.specs = [spec for _, spec in facts.names]
        self.losses = {lose.rank: lose for lose in facts.losses}
        self.lost_at: dict[int, int] = dict.fromkeys(self.losses, self.seq)  # rank → number of the command
        self.live = frozenset(range(self.workers)) - self.losses.keys()
        self.chosen, self.loaded = facts.chosen, facts.loaded
        self.passed: dict[str, dict[int, Pass]] = {}
        for passed in facts.passed:
            self.passed.setdefault(passed.name, {})[passed.number] = passed

    def _snapshot(self) -> tuple[tuple[PartState, ...], Facts]:
        names = tuple(zip(self.names, self.specs, strict=True))
        passed = tuple(barrier for numbers in self.passed.values() for barrier in numbers.values())
        facts = Facts(names, tuple(self.losses.values()), self.chosen, self.loaded, passed)
        return tuple(part._replace(value=self.copied(part.value)) for part in self.parts), facts

    @property
    def over(self) -> bool:
        """True if a worker was lost and the others cannot continue without it."""
        return bool(self.losses) and any(lose.ends for lose in self.losses.values())

    def _is_done(self, command: Begin | Choose | Load) -> bool:
        """Return True if this request was executed before, so that it must not be executed again."""
        if isinstance(command, Begin):
            index = self.names.get(command.name)
            return index is not None and (command.value is None or self.parts[index].value is not None)
        if isinstance(command, Choose):
            return command.number <= self.chosen.number
        return command.number <= self.loaded

    def _execute(self, command: Command) -> None:
        """Apply command number ``seq`` by the method ``_do_…`` that has its name."""
        getattr(self, named("_do_", type(command)))(command)  # type: ignore[arg-type]  # a class is hashable

    def _do_add(self, add: Add) -> None:
        part = self.parts[add.part]
        rounds = [*part.rounds]
        for rank, number in add.pushes:
            rounds[rank] = number
        value = self.publish(part.value, add, self.chosen.optimizer)
        self._replace(add.part, PartState(part.version + 1, tuple(rounds), value))

    def _do_lose(self, lose: Lose) -> None:
        self.live -= {lose.rank}
        self.losses[lose.rank], self.lost_at[lose.rank] = lose, self.seq

    def _do_begin(self, begin: Begin) -> None:
        index = self.names.setdefault(begin.name, len(self.parts))
        if index == len(self.parts):
            self.specs.append(begin.spec)
            self.parts.append(part := PartState(0, (0,) * self.workers, self.copied(begin.value)))
        else:
            part = self.parts[index]._replace(value=self.copied(begin.value))
        self._replace(index, part)

    def _do_choose(self, choose: Choose) -> None:
        self.chosen = choose

    def _do_load(self, load: Load) -> None:
        self.loaded, self.chosen = load.number, self.chosen._replace(optimizer=load.optimizer)
        for index, value in load.values:
            self._replace(index, self.parts[index]._replace(value=self.copied(value)))

    def _do_pass(self, passed: Pass) -> None:
        numbers = self.passed.setdefault(passed.name, {})
        numbers[passed.number] = passed
        for old in [number for number in numbers if number <= passed.number - KEPT]:
            del numbers[old]

    def _replace(self, index: int, part: PartState) -> None:
        self.parts[index] = part
        self._changed(index, part)

    def _changed(self, index: int, part: PartState) -> None:
        """Take note of a part that a command has changed: a primary keeps it until the command is committed."""


@cache
def named(prefix: str, kind: type) -> str:
    """Return the name of the method for messages or commands of a kind."""
    return prefix + kind.__name__.lower()

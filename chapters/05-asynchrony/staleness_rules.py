"""The rule of bounded staleness, and typical wrong rules with their names."""

import math
from collections import Counter
from collections.abc import Callable


class Rule:
    """The rule: all own pushes are there, and no remaining worker is more than s behind."""

    def __init__(self, n: int, s: float):
        self.n, self.s, self.gone = n, s, set()
        self.clock = Counter()  # (worker, key) → the last push that came

    def push(self, worker: int, key: int, number: int) -> None:
        self.clock[worker, key] = max(self.clock[worker, key], number)

    def leave(self, worker: int) -> None:
        self.gone.add(worker)

    def clocks(self, key: int) -> list[int]:
        """How often each worker that is still there has pushed the key."""
        return [self.clock[worker, key] for worker in range(self.n) if worker not in self.gone]

    def own(self, worker: int, key: int, number: int) -> bool:
        return self.clock[worker, key] >= number

    def least(self, key: int) -> float:
        return min(self.clocks(key), default=math.inf)

    def near(self, key: int, number: int) -> bool:
        return self.least(key) >= number - self.s

    def may_read(self, worker: int, key: int, number: int) -> bool:
        return self.own(worker, key, number) and self.near(key, number)


class WhoLeftComesBack(Rule):
    def push(self, worker, key, number):
        super().push(worker, key, number)
        self.gone.discard(worker)


class OneClock(Rule):
    def push(self, worker, key, number):
        super().push(worker, 0, number)

    def may_read(self, worker, key, number):
        return super().may_read(worker, 0, number)


def instead(**methods: Callable) -> type[Rule]:
    """Return a class of rules that differs from the right one in these methods."""
    return type("Instead", (Rule,), methods)


INSTEAD = (
    ("never-waits", instead(may_read=lambda rule, worker, key, number: True)),
    ("never-waits", instead(near=lambda rule, key, number: True)),
    ("off-by-one", instead(near=lambda rule, key, number: rule.least(key) > number - rule.s)),
    ("off-by-one", instead(near=lambda rule, key, number: rule.least(key) >= number - rule.s - 1)),
    ("vs-fastest", instead(near=lambda rule, key, number: max(rule.clocks(key), default=0) - number <= rule.s)),
    ("counts-messages", instead(push=lambda rule, worker, key, number: rule.clock.update([(worker, key)]))),
    ("own-missing", instead(own=lambda rule, worker, key, number: True)),
    ("waits-for-who-left", instead(leave=lambda rule, worker: None)),
    ("waits-for-who-left", WhoLeftComesBack),
    ("one-clock-for-all-keys", OneClock),
)

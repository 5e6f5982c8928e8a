"""The rule of bounded staleness, and typical wrong rules with their names."""

import math
from collections import Counter


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

    def near(self, key: int, number: int) -> bool:
        return min(self.clocks(key), default=math.inf) >= number - self.s

    def may_read(self, worker: int, key: int, number: int) -> bool:
        return self.own(worker, key, number) and self.near(key, number)


class NeverWaits(Rule):
    def may_read(self, worker, key, number):
        return True


class OwnAlone(Rule):
    def near(self, key, number):
        return True


class OneLess(Rule):
    def near(self, key, number):
        return min(self.clocks(key), default=math.inf) > number - self.s


class OneMore(Rule):
    def near(self, key, number):
        return min(self.clocks(key), default=math.inf) >= number - self.s - 1


class Fastest(Rule):
    def near(self, key, number):
        return max(self.clocks(key), default=0) - number <= self.s


class Messages(Rule):
    def push(self, worker, key, number):
        self.clock[worker, key] += 1


class OwnMissing(Rule):
    def own(self, worker, key, number):
        return True


class WhoLeft(Rule):
    def leave(self, worker):
        pass


class WhoLeftComesBack(Rule):
    def push(self, worker, key, number):
        super().push(worker, key, number)
        self.gone.discard(worker)


class OneClock(Rule):
    def push(self, worker, key, number):
        super().push(worker, 0, number)

    def may_read(self, worker, key, number):
        return super().may_read(worker, 0, number)


INSTEAD = (
    ("never-waits", NeverWaits),
    ("never-waits", OwnAlone),
    ("off-by-one", OneLess),
    ("off-by-one", OneMore),
    ("vs-fastest", Fastest),
    ("counts-messages", Messages),
    ("own-missing", OwnMissing),
    ("waits-for-who-left", WhoLeft),
    ("waits-for-who-left", WhoLeftComesBack),
    ("one-clock-for-all-keys", OneClock),
)

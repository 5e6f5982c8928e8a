"""The rule of bounded staleness, and what learners write instead: each is told by its name."""

import math
from collections import Counter


class Rule:
    """The rule: all own pushes are there, and nobody who is still there is more than s behind."""

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


class Lockstep(Rule):
    def near(self, key, number):
        return min(self.clocks(key), default=math.inf) >= number


class Mean(Rule):
    def near(self, key, number):
        clocks = self.clocks(key)
        return not clocks or sum(clocks) / len(clocks) >= number - self.s


class Fastest(Rule):
    def near(self, key, number):
        return max(self.clocks(key), default=0) - number <= self.s


class Messages(Rule):
    def push(self, worker, key, number):
        self.clock[worker, key] += 1


class LastMessage(Rule):
    def push(self, worker, key, number):
        self.clock[worker, key] = number


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


class WhoLeftBeginsAgain(Rule):
    def leave(self, worker):
        self.clock = Counter({at: times for at, times in self.clock.items() if at[0] != worker})


class WhoLeftOnSeenKeys(Rule):
    def leave(self, worker):
        self.clock |= dict.fromkeys([(worker, key) for _, key in self.clock], math.inf)


class WhoLeftOnItsKeys(Rule):
    def leave(self, worker):
        self.clock |= dict.fromkeys([at for at in self.clock if at[0] == worker], math.inf)


class OneClock(Rule):
    def push(self, worker, key, number):
        super().push(worker, 0, number)

    def may_read(self, worker, key, number):
        return super().may_read(worker, 0, number)


class AllPushes(Rule):
    """Counts the different pushes of a worker over all keys."""

    def __init__(self, n, s):
        super().__init__(n, s)
        self.came = set()

    def push(self, worker, key, number):
        self.came.add((worker, key, number))
        self.clock[worker, 0] = sum(each[0] == worker for each in self.came)

    def may_read(self, worker, key, number):
        return super().may_read(worker, 0, number)


class OnlySeen(Rule):
    def clocks(self, key):
        seen = [worker for worker in range(self.n) if (worker, key) in self.clock and worker not in self.gone]
        return [self.clock[worker, key] for worker in seen]


class BlocksPush(Rule):
    def push(self, worker, key, number):
        if number - min(self.clocks(key), default=math.inf) <= self.s:
            super().push(worker, key, number)


class NeverWakes(Rule):
    def __init__(self, n, s):
        super().__init__(n, s)
        self.refused = set()

    def may_read(self, worker, key, number):
        asked = (worker, key, number)
        if asked in self.refused or not super().may_read(*asked):
            self.refused.add(asked)
            return False
        return True


INSTEAD = (
    ("never-waits", NeverWaits),
    ("never-waits", OwnAlone),
    ("off-by-one", OneLess),
    ("off-by-one", OneMore),
    ("too-strict", Lockstep),
    ("vs-mean", Mean),
    ("vs-fastest", Fastest),
    ("counts-messages", Messages),
    ("goes-back", LastMessage),
    ("own-missing", OwnMissing),
    ("waits-for-who-left", WhoLeft),
    ("waits-for-who-left", WhoLeftComesBack),
    ("waits-for-who-left", WhoLeftBeginsAgain),
    ("waits-for-who-left", WhoLeftOnSeenKeys),
    ("waits-for-who-left", WhoLeftOnItsKeys),
    ("one-clock-for-all-keys", OneClock),
    ("one-clock-for-all-keys", AllPushes),
    ("only-seen", OnlySeen),
    ("blocks-push", BlocksPush),
    ("never-wakes", NeverWakes),
)

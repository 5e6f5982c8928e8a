"""Where the processes of a run meet: a store that outlives any of them.

Before a run they agree there on what they mean; after it they gather what they saw; and when one of
them fails it posts whom it waits for, so that all can name the one nobody heard from. A process that only
looks at its own neighbours would blame the neighbour of the dead, or nobody.

    ProcessesError        what goes wrong between processes
    ├── NoRanks           this process is not one of several
    └── RankLost          a process died, stalled or gave up; .ranks, .step
"""

import json
import time
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

POLL = 0.2  # seconds between two looks at the store while a run is under way
GRACE = 2.0  # seconds that the others have to say that they are alive, once somebody has failed


class ProcessesError(RuntimeError):
    """Several processes did not do together what they should."""


class NoRanks(ProcessesError):
    """This process is not one of several: its sentence says how to start them."""


class RankLost(ProcessesError):
    """A run ended because of the processes ``ranks``, which died, stalled or gave up, in ``step`` of the plan (from 1).

    ``step`` is None where no step of a plan was under way. What the tensors hold is then undefined.
    """

    def __init__(self, sentence: str, ranks: tuple[int, ...], step: int | None):
        super().__init__(sentence)
        self.ranks, self.step = ranks, step

    def __reduce__(self):
        return RankLost, (str(self), self.ranks, self.step)


class Meeting:
    """``size`` processes, this one of them as ``rank``, that meet under ``name`` in ``store``.

    Every wait ends after ``deadline`` seconds without a sign of life, with a :class:`RankLost`.
    """

    def __init__(self, store: dist.Store, name: str, rank: int, size: int, deadline: float):
        self.store, self.name, self.rank, self.size, self.deadline = store, name, rank, size, deadline
        self.over: RankLost | None = None
        self._calls = 0
        self._looked = 0.0

    def all(self, what: str, mine: object) -> list:
        """Everyone posts ``mine``; what everyone posted, by rank. All call it in the same order."""
        self.usable()
        self._calls += 1
        key = f"{self._calls}/{what}"
        self._post(f"{key}/{self.rank}", mine)
        missing, begin, pause = set(range(self.size)) - {self.rank}, time.monotonic(), 1e-4
        try:
            while missing := {rank for rank in missing if not self._there(f"{key}/{rank}")}:
                self.watch(None, missing)
                if time.monotonic() - begin > self.deadline:
                    self.fail(None, missing, "late")
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        except KeyboardInterrupt:
            self.interrupted(None)
            raise
        found = [self._read(f"{key}/{rank}") for rank in range(self.size)]
        # Whoever is here has read all of the call before: this rank's part of it can go.
        if self._calls > 1:
            self.store.delete_key(self._key(self._last))
        self._last = f"{key}/{self.rank}"
        return found

    def usable(self) -> None:
        """RankLost if a run of this meeting has already failed."""
        if self.over:
            raise RankLost(f"{self.over} Make a new carrier, in all processes, to go on.", self.over.ranks, self.over.step)

    def watch(self, step: int | None, waiting: Iterable[int]) -> None:
        """Look, now and then, whether another process has failed; if so join it with RankLost."""
        if time.monotonic() - self._looked > POLL:
            self._looked = time.monotonic()
            if self._there("failed"):
                self.fail(step, waiting, "told")

    def interrupted(self, step: int | None) -> None:
        """Tell the others that the user stopped this process; it raises nothing."""
        sentence = f"rank {self.rank} was interrupted{_in(step)}."
        self.over = RankLost(sentence, (self.rank,), step)
        self._say(step, (), "interrupted")

    def refused(self, error: Exception) -> None:
        """Tell the others why this process does not begin; it raises nothing."""
        self._say(None, (), f"refused: {error}")
        self.over = RankLost(f"rank {self.rank} refused: {error}", (self.rank,), None)

    def fail(self, step: int | None, waiting: Iterable[int], why: str) -> None:
        """Post whom this process waits for and why, hear the others, and raise the RankLost that all agree on.

        ``why``: "late" (nothing came within the deadline), "closed" (the connection broke), "told" (another failed).
        """
        self.usable()
        self._say(step, waiting, why)
        heard, until = {}, time.monotonic() + min(GRACE, self.deadline / 2)
        while len(heard) < self.size and time.monotonic() < until and not self._there("verdict"):
            for rank in set(range(self.size)) - set(heard):
                if self._there(f"failed/{rank}"):
                    heard[rank] = self._read(f"failed/{rank}")
            time.sleep(0.02)
        verdict = _verdict(self.size, heard, self.deadline, step)
        mine = json.dumps([str(verdict), verdict.ranks, verdict.step])
        # The first to come to a verdict speaks for all, also to one that was stopped and wakes up later.
        sentence, ranks, step = json.loads(self._asked(lambda: self.store.compare_set(self._key("verdict"), "", mine)))
        self.over = RankLost(sentence, tuple(ranks), step)
        raise self.over

    def _say(self, step: int | None, waiting: Iterable[int], why: str) -> None:
        self._post(f"failed/{self.rank}", {"step": step, "waiting": sorted(waiting), "why": why})
        self._post("failed", self.rank)

    def _key(self, key: str) -> str:
        return f"d2lps/{self.name}/{key}"

    def _there(self, key: str) -> bool:
        return self._asked(lambda: self.store.check([self._key(key)]))

    def _read(self, key: str) -> object:
        return json.loads(self._asked(lambda: self.store.get(self._key(key))))

    def _post(self, key: str, value: object) -> None:
        self._asked(lambda: self.store.set(self._key(key), json.dumps(value)))

    def _asked(self, question):
        try:
            return question()
        except RuntimeError as error:  # the store went with the process that held it
            sentence = (f"the store in which the {self.size} processes meet is gone ({str(error).splitlines()[0][:100]}). "
                        "It should outlive all of them: start them with torchrun or d2lps.ranks.")  # fmt: skip
            self.over = self.over or RankLost(sentence, (), None)
            raise self.over from None


def _in(step: int | None) -> str:
    return "" if step is None else f" in step {step}"


def _verdict(size: int, heard: dict[int, dict], deadline: float, step: int | None) -> RankLost:
    """Who is to blame, from what everyone who is alive has said; the same on all of them."""
    silent = sorted(set(range(size)) - set(heard))
    steps = [said["step"] for said in heard.values() if said["step"] is not None]
    step = min(steps, default=step)
    gave_up = {rank: said["why"] for rank, said in heard.items() if said["why"] not in ("late", "closed", "told")}
    if gave_up:
        rank, why = min(gave_up.items())
        return RankLost(f"rank {rank} ended the run{_in(step)} ({why}).", tuple(sorted(gave_up)), step)
    closed = [rank for said in heard.values() if said["why"] == "closed" for rank in said["waiting"] if rank in silent]
    lost = sorted(set(closed)) or silent
    if lost:
        who = ("rank " if len(lost) == 1 else "ranks ") + ", ".join(map(str, lost))
        what = "died (its connections closed)" if closed else f"gave no sign of life for {deadline:g} s (dead, stopped or busy)"
        return RankLost(f"{who} {what}{_in(step) or ' before the first step'}.", tuple(lost), step)
    # Everyone is alive: somebody waits for one that waits for nobody, or they wait in a circle.
    late = sorted({rank for said in heard.values() if said["why"] != "told" for rank in said["waiting"]})
    who = ", ".join(map(str, late))
    return RankLost(f"all {size} ranks are alive, but nothing came from rank {who} within {deadline:g} s{_in(step)}: "
                    "the link is too slow for this deadline, or broken.", tuple(late), step)  # fmt: skip


def wait(seconds: float) -> timedelta:
    """Seconds as torch.distributed takes them."""
    return timedelta(seconds=seconds)

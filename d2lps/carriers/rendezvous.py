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
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from numbers import Real

import torch.distributed as dist

from d2lps.carriers.background import BackgroundThread
from d2lps.messages import text
from d2lps.messages.raised import Brief

POLL = 0.2  # seconds between two looks at the store while a run is under way
GRACE = 2.0  # seconds that the others have to say that they are alive, once somebody has failed


class ProcessesError(Brief, RuntimeError):
    """Several processes did not do together what they should."""


class NoRanks(ProcessesError):
    """This process is not one of several: its sentence says how to start them."""


class RankLost(ProcessesError):
    """A run ended because of some of its processes, which died, stalled or gave up. What tensors hold is undefined.

    Parameters
    ----------
    sentence
        who is to blame and why; the same on all processes.
    ranks
        theirs.
    step
        of the plan, from 1, that was under way; None where it was none.
    """

    def __init__(self, sentence: str, ranks: tuple[int, ...], step: int | None):
        super().__init__(sentence)
        self.ranks, self.step = ranks, step

    def __reduce__(self):
        return RankLost, (str(self), self.ranks, self.step)


class Rendezvous:
    """``size`` processes, this one of them as ``rank``, that meet in ``store`` for something of one ``kind``.

    Every wait ends after ``deadline`` seconds without a sign of life, with a :class:`RankLost`. ``holder`` is the rank
    that the store goes with, if it is one of theirs.
    """

    def __init__(self, store: dist.Store, kind: str, rank: int, size: int, deadline: float, holder: int | None = None):
        self.store, self.rank, self.size, self.deadline, self.holder = store, rank, size, deadline, holder
        self.over: RankLost | None = None
        self.closed = False
        self._gone = False  # the store, and with it any way to ask
        self._thread = BackgroundThread()
        self._calls, self._last = 0, None
        self._looked, self._step = 0.0, None
        # Which one of its kind this is stands in the store: who missed the last is still in time for the next.
        self._turn = f"d2lps/{kind}/turn"
        self._number = self._asked(lambda: store.add(self._turn, 0))
        self.name = f"{kind}/{self._number}"

    def join(self, mine: object) -> list:
        """The first call of :meth:`all_gather`; whoever comes after it, whether it succeeds or not, is for the next."""
        try:
            return self.all_gather("join", mine)
        finally:
            here, after = str(self._number), str(self._number + 1)
            self._asked(lambda: self.store.compare_set(self._turn, here, after))

    def all_gather(self, what: str, mine: object) -> list:
        """Everyone posts ``mine``; what everyone posted, by rank. All call it in the same order."""
        self.require_open()
        self._calls += 1
        keys = [f"{self._calls}/{what}/{rank}" for rank in range(self.size)]
        self._post(keys[self.rank], mine)

        def missing() -> list[int]:
            return [rank for rank, key in enumerate(keys) if not self._there(key)]

        begin, pause = time.monotonic(), 1e-4
        try:
            while not self._there(*keys):
                self.watch(None, missing)
                if time.monotonic() - begin > self.deadline:
                    self.fail(None, missing(), "late")
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
        except KeyboardInterrupt:
            self.interrupted(None)
            raise
        values = self._read(*keys)
        # Whoever is here has read all of the call before: this rank's part of it can go.
        if self._last is not None:
            self._asked(lambda: self.store.delete_key(self._key(self._last)))
        self._last = keys[self.rank]
        return values

    def close(self) -> None:
        """Nothing more is asked or said here. Who still waits for this process hears that it has left."""
        if not self.closed and not self.over:
            report = json.dumps({"step": None, "waiting": [], "why": "it has left"})
            self._thread.do(lambda: self.store.set(self._key(f"failed/{self.rank}"), report))
        self.closed = True
        self._thread.end()

    def require_open(self) -> None:
        """RankLost if a run of this rendezvous has already failed; ProcessesError if it is closed."""
        if self.closed:
            raise ProcessesError(text("processes.closed"))
        if self.over:
            raise RankLost(text("rank.again", why=self.over), self.over.ranks, self.over.step)

    def watch(self, step: int | None, waiting: Callable[[], Iterable[int]] | None = None) -> None:
        """Look, now and then, whether a process has failed or one of ``waiting`` has left; if so raise RankLost too."""
        if time.monotonic() - self._looked > POLL:
            self._looked, self._step = time.monotonic(), step
            awaited = waiting or tuple
            left = {rank for rank in awaited() if self._there(f"failed/{rank}")}
            if (failed := self._there("failed")) or left:
                # Between the question and its answer they may have come, and one of them then left or failed, as all
                # of them will: ask once more; who has nothing to wait for by now goes on.
                still = {*awaited()}
                if (failed and (waiting is None or still)) or left & still:
                    self.fail(step, (), "told")
            if (ended := self.ended()) and (missed := ended & {*awaited()}):
                self.fail(step, missed, "closed", "its process has ended")

    def ended(self) -> set[int]:
        """The ranks whose processes have ended, as far as that can be seen from here."""
        return set()

    def interrupted(self, step: int | None) -> None:
        """Tell the others that the user stopped this process; it raises nothing."""
        self._end(step, "interrupted", text("rank.was-interrupted", rank=self.rank, where=_in(step)))

    def refused(self, error: Exception, step: int | None = None) -> None:
        """Tell the others why this process does not begin or go on; it raises nothing."""
        sentence = text("rank.refused", rank=self.rank, where=_in(step), why=error)
        self._end(step, f"refused: {error}", sentence)

    def _end(self, step: int | None, why: str, sentence: str) -> None:
        if self.closed:
            return
        with suppress(RankLost):  # where the store is gone the others know it, too
            self._say(step, (), why)
        self.over = self.over or RankLost(sentence, (self.rank,), step)

    def fail(self, step: int | None, waiting: Iterable[int], why: str, detail: str = "") -> None:
        """Post whom this process waits for and why, hear the others, and raise the RankLost that all agree on.

        ``why``: "late" (nothing came within the deadline), "closed" (the connection broke), "told" (another failed).
        """
        self.require_open()
        self._step = step
        self._say(step, waiting, why, detail)
        heard, until = {}, time.monotonic() + min(GRACE, self.deadline / 2)
        while len(heard) < self.size and time.monotonic() < until and not self._there("verdict"):
            for rank in set(range(self.size)) - set(heard):
                if self._there(f"failed/{rank}"):
                    (heard[rank],) = self._read(f"failed/{rank}")
            time.sleep(0.02)
        verdict = _verdict(self.size, heard, self.deadline, step)
        mine = json.dumps([str(verdict), verdict.ranks, verdict.step])
        # The first to come to a verdict speaks for all, also to one that was stopped and wakes up later.
        sentence, ranks, step = json.loads(self._asked(lambda: self.store.compare_set(self._key("verdict"), "", mine)))
        self.over = RankLost(sentence, tuple(ranks), step)
        raise self.over

    def _say(self, step: int | None, waiting: Iterable[int], why: str, detail: str = "") -> None:
        report = {"step": step, "waiting": sorted(waiting), "why": why, "detail": detail}
        self._post(f"failed/{self.rank}", report)
        self._post("failed", self.rank)

    def _key(self, key: str) -> str:
        return f"d2lps/{self.name}/{key}"

    def _there(self, *keys: str) -> bool:
        return self._asked(lambda: self.store.check([self._key(key) for key in keys]))

    def _read(self, *keys: str) -> list:
        texts = self._asked(lambda: self.store.multi_get([self._key(key) for key in keys]))
        return [json.loads(text) for text in texts]

    def _post(self, key: str, value: object) -> None:
        self._asked(lambda: self.store.set(self._key(key), json.dumps(value)))

    def _asked(self, question: Callable):
        """What the store says. It is asked in another thread: if who holds it is stopped, it never answers."""
        if self._gone:
            raise self.over
        asked = self._thread.do(question)
        if asked.wait(self.deadline) and not isinstance(asked.error, RuntimeError):
            if asked.error is not None:
                raise asked.error
            return asked.result
        self._gone = True
        why = str(asked.error).splitlines()[0][:100] if asked.is_set() else f"no answer for {self.deadline:g} s"
        store, lost = f"the store in which the {self.size} processes meet", ()
        if self.holder is not None:
            store, lost = f"rank {self.holder}, and with it {store},", (self.holder,)
        sentence = (
            f"{store} is gone{_in(self._step)} ({why}). "
            "It should outlive all of them: start them with torchrun or d2lps.ranks."
        )
        self.over = self.over or RankLost(sentence, lost, self._step)
        raise self.over from None


def _in(step: int | None) -> str:
    return "" if step is None else text("rank.in-step", step=step)


def _verdict(size: int, heard: dict[int, dict], deadline: float, step: int | None) -> RankLost:
    """Who is to blame, from what everyone who is alive has said; the same on all of them."""
    silent = sorted(set(range(size)) - set(heard))
    steps = [report["step"] for report in heard.values() if report["step"] is not None]
    step = min(steps, default=step)
    gave_up = {rank: report["why"] for rank, report in heard.items() if report["why"] not in ("late", "closed", "told")}
    if gave_up:
        rank, why = min(gave_up.items())
        why = text("rank.interrupted") if why == "interrupted" else why
        sentence = text("rank.ended", rank=rank, where=_in(step), why=why)
        return RankLost(sentence, tuple(sorted(gave_up)), step)
    closed = [
        rank for report in heard.values() if report["why"] == "closed" for rank in report["waiting"] if rank in silent
    ]
    lost = sorted(set(closed)) or silent
    if lost:
        ranks, where = ", ".join(map(str, lost)), _in(step) or text("rank.before")
        who = text("rank.one", ranks=ranks) if len(lost) == 1 else text("rank.many", ranks=ranks)
        sentence = (
            text("rank.died", who=who, where=where)
            if closed
            else text("rank.silent", who=who, where=where, seconds=f"{deadline:g}")
        )
        return RankLost(sentence, tuple(lost), step)
    broken = next((report["detail"] for report in heard.values() if report["why"] == "closed"), None)
    late = sorted({rank for report in heard.values() if report["why"] != "told" for rank in report["waiting"]})
    if broken is not None:
        sentence = text("rank.broke", size=size, where=_in(step), why=broken)
        return RankLost(sentence, tuple(late), step)
    # Everyone is alive: somebody waits for one that waits for nobody, or they wait in a circle.
    what = text("rank.nothing-from", ranks=", ".join(map(str, late))) if late else text("rank.apart")
    sentence = text("rank.late", size=size, what=what, seconds=f"{deadline:g}", where=_in(step))
    return RankLost(sentence, tuple(late), step)


def require_seconds(what: str, value: object, error: type[Exception] = ProcessesError) -> float:
    """``value``, seconds that somebody waits, as a number of Python's. Raises ``error``, which names ``what``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1e6:
        raise error(text("processes.seconds", what=what, value=repr(value)))
    return float(value)


def wait(seconds: float) -> timedelta:
    """Seconds as torch.distributed takes them."""
    return timedelta(seconds=seconds)

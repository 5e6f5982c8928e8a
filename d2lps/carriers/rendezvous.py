"""The meeting place of the processes of a run: a store that outlives any of them.

The processes agree there before a run and gather its times afterwards. A process that fails posts the ranks it was
waiting for, so that all can name the rank that stayed silent. A process that only looked at its own neighbours
would blame the neighbour of the dead one, or none.

    ProcessesError        several processes could not work together
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

from d2lps.carriers.background import BackgroundThread, keep_forever
from d2lps.messages import text
from d2lps.messages.raised import Brief

POLL = 0.2  # seconds between two looks at the store while a run is under way
GRACE = 2.0  # seconds that the others have to report that they are alive, once a process has failed


DEADLINE = 30.0  # seconds within which other ranks, and servers of a store, must come and answer


class ProcessesError(Brief, RuntimeError):
    """Several processes could not work together as they should."""


class NoRanks(ProcessesError):
    """This process is not one of several; the message says how to start them."""


class RankLost(ProcessesError):
    """A run ended because some of its processes died, stalled or gave up. The content of the tensors is undefined.

    Args:
        sentence: the ranks to blame and the reason; the same on all processes.
        ranks: the ranks to blame.
        step: the step of the plan, from 1, that was under way; None outside a plan.
        refusal: the name of the class and the sentence of the error that ended the work of a rank, if it is alive.
    """

    def __init__(self, sentence: str, ranks: tuple[int, ...], step: int | None, refusal: tuple[str, str] | None = None):
        super().__init__(sentence)
        self.ranks, self.step, self.refusal = ranks, step, refusal

    def __reduce__(self):
        return RankLost, (str(self), self.ranks, self.step, self.refusal)


class Rendezvous:
    """A meeting of ``size`` processes in ``store``, for a carrier of one ``kind``; this process is ``rank``.

    A wait ends with :class:`RankLost` after ``deadline`` seconds without a sign of life. ``holder`` is the rank whose
    process has the store, if one of them has it.
    """

    def __init__(self, store: dist.Store, kind: str, rank: int, size: int, deadline: float, holder: int | None = None):
        self.store, self.rank, self.size, self.deadline, self.holder = store, rank, size, deadline, holder
        self.over: RankLost | None = None
        self.closed = self.forked = False
        self._gone = False  # True once the store does not answer
        self._thread = BackgroundThread()
        self._calls = 0
        self._last: str | None = None
        self._looked = 0.0
        self._step: int | None = None
        # The store counts the meetings of this kind: a process that missed the last one is in time for the next.
        self._turn = f"d2lps/{kind}/turn"
        self._number = self._asked(lambda: store.add(self._turn, 0))
        self.name = f"{kind}/{self._number}"

    def join(self, mine: object) -> list:
        """Call :meth:`all_gather` for the first time; processes that come later belong to the next meeting."""
        try:
            return self.all_gather("join", mine)
        finally:
            here, after = str(self._number), str(self._number + 1)
            self._asked(lambda: self.store.compare_set(self._turn, here, after))

    def all_gather(self, topic: str, mine: object) -> list:
        """Post ``mine``, and return the values of all processes, by rank. All make the same calls in the same order."""
        self.require_open()
        self._calls += 1
        keys = [f"{self._calls}/{topic}/{rank}" for rank in range(self.size)]
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
        # All processes that posted here have read the previous call: this rank's value of it can be deleted.
        if (last := self._last) is not None:
            self._asked(lambda: self.store.delete_key(self._key(last)))
        self._last = keys[self.rank]
        return values

    def close(self) -> None:
        """Leave the meeting; processes that still wait for this one learn that it has left."""
        if not self.closed and not self.over:
            report = json.dumps({"step": None, "waiting": [], "why": "it has left"})
            self._thread.do(lambda: self.store.set(self._key(f"failed/{self.rank}"), report))
        self.closed = True
        self._thread.end()

    def disown(self) -> None:
        """Leave the meeting and its store to the parent process: called in a forked child."""
        self.closed = self.forked = True
        keep_forever(self.store)

    def require_open(self) -> None:
        """Raise RankLost if a run of this rendezvous has already failed, ProcessesError if it is closed."""
        if self.closed:
            raise ProcessesError(text("processes.forked") if self.forked else text("processes.closed"))
        if self.over:
            raise RankLost(text("rank.again", why=self.over), self.over.ranks, self.over.step)

    def watch(self, step: int | None, waiting: Callable[[], Iterable[int]] | None = None) -> None:
        """Raise RankLost if a process has failed or one of ``waiting`` has left; look only once every POLL seconds."""
        if time.monotonic() - self._looked > POLL:
            self._looked, self._step = time.monotonic(), step
            awaited = waiting or tuple
            left = {rank for rank in awaited() if self._there(f"failed/{rank}")}
            if (failed := self._there("failed")) or left:
                # A rank may have arrived since ``awaited`` was read, and then left or failed: ask once more, and go on
                # if no rank is awaited any longer.
                still = {*awaited()}
                if (failed and (waiting is None or still)) or left & still:
                    self.fail(step, (), "told")
            if (ended := self.ended()) and (missed := ended & {*awaited()}):
                self.fail(step, missed, "closed", "its process has ended")

    def ended(self) -> set[int]:
        """Return the ranks whose processes are known to have ended."""
        return set()

    def interrupted(self, step: int | None) -> None:
        """Tell the others that the user stopped this process; raise nothing."""
        self._end(step, "interrupted", text("rank.was-interrupted", rank=self.rank, where=_in(step)))

    def refused(self, error: Exception, step: int | None = None) -> None:
        """Tell the others why this process does not begin or go on; raise nothing."""
        sentence = text("rank.refused", rank=self.rank, where=_in(step), why=error)
        self._end(step, f"refused: {error}", sentence, type(error).__name__)

    def _end(self, step: int | None, why: str, sentence: str, kind: str = "") -> None:
        if self.closed:
            return
        with suppress(RankLost):  # if the store is gone, the others notice it themselves
            self._report(step, (), why, kind)
        self.over = self.over or RankLost(sentence, (self.rank,), step)

    def fail(self, step: int | None, waiting: Iterable[int], why: str, detail: str = "") -> None:
        """Post the ranks this process waits for, read the reports of the others, and raise the agreed RankLost.

        ``why``: "late" (nothing came within the deadline), "closed" (the connection broke), "told" (another failed).
        """
        self.require_open()
        self._step = step
        self._report(step, waiting, why, detail)
        reports: dict[int, dict] = {}
        until = time.monotonic() + min(GRACE, self.deadline / 2)
        while len(reports) < self.size and time.monotonic() < until and not self._there("verdict"):
            for rank in set(range(self.size)) - set(reports):
                if self._there(f"failed/{rank}"):
                    (reports[rank],) = self._read(f"failed/{rank}")
            time.sleep(0.02)
        verdict = _verdict(self.size, reports, self.deadline, step)
        mine = json.dumps([str(verdict), verdict.ranks, verdict.step, verdict.refusal])
        # The first verdict counts for all, even for a process that was stopped and wakes up later.
        sentence, ranks, step, refusal = json.loads(
            self._asked(lambda: self.store.compare_set(self._key("verdict"), "", mine))
        )
        self.over = RankLost(sentence, tuple(ranks), step, refusal and tuple(refusal))
        raise self.over

    def _report(self, step: int | None, waiting: Iterable[int], why: str, detail: str = "") -> None:
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
        """Return the store's answer. Another thread asks: a store whose process is stopped never answers."""
        if self._gone and self.over:
            raise self.over
        answer = self._thread.do(question)
        if answer.wait(self.deadline) and not isinstance(answer.error, RuntimeError):
            if answer.error is not None:
                raise answer.error
            return answer.result
        self._gone = True
        why = str(answer.error).splitlines()[0][:100] if answer.is_set() else f"no answer for {self.deadline:g} s"
        store = f"the store in which the {self.size} processes meet"
        lost: tuple[int, ...] = ()
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


def _verdict(size: int, reports: dict[int, dict], deadline: float, step: int | None) -> RankLost:
    """Decide which ranks are to blame, from the reports of all that are alive."""
    silent = sorted(set(range(size)) - set(reports))
    steps = [report["step"] for report in reports.values() if report["step"] is not None]
    step = min(steps, default=step)
    excused = ("late", "closed", "told")
    gave_up = {rank: report["why"] for rank, report in reports.items() if report["why"] not in excused}
    if gave_up:
        rank, why = min(gave_up.items())
        kind = reports[rank].get("detail")
        refusal = (kind, why.removeprefix("refused: ")) if kind else None
        why = text("rank.interrupted") if why == "interrupted" else why
        sentence = text("rank.ended", rank=rank, where=_in(step), why=why)
        return RankLost(sentence, tuple(sorted(gave_up)), step, refusal)
    closed = {rank for report in reports.values() if report["why"] == "closed" for rank in report["waiting"]}
    closed &= set(silent)
    lost = sorted(closed) or silent
    if lost:
        ranks, where = ", ".join(map(str, lost)), _in(step) or text("rank.before")
        who = text("rank.one", ranks=ranks) if len(lost) == 1 else text("rank.many", ranks=ranks)
        sentence = (
            text("rank.died", who=who, where=where)
            if closed
            else text("rank.silent", who=who, where=where, seconds=f"{deadline:g}")
        )
        return RankLost(sentence, tuple(lost), step)
    broken = next((report["detail"] for report in reports.values() if report["why"] == "closed"), None)
    late = sorted({rank for report in reports.values() if report["why"] != "told" for rank in report["waiting"]})
    if broken is not None:
        sentence = text("rank.broke", size=size, where=_in(step), why=broken)
        return RankLost(sentence, tuple(late), step)
    # All are alive: one rank waits for another that does not wait for any, or they wait in a circle.
    cause = text("rank.nothing-from", ranks=", ".join(map(str, late))) if late else text("rank.apart")
    sentence = text("rank.late", size=size, what=cause, seconds=f"{deadline:g}", where=_in(step))
    return RankLost(sentence, tuple(late), step)


def require_seconds(name: str, value: object, error: type[Exception] = ProcessesError) -> float:
    """Return ``value``, a number of seconds to wait, as a float; raise ``error`` with the ``name`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1e6:
        raise error(text("processes.seconds", what=name, value=repr(value)))
    return float(value)


def wait(seconds: float) -> timedelta:
    """Return seconds in the form that torch.distributed takes."""
    return timedelta(seconds=seconds)

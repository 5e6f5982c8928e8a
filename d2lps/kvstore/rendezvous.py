"""The workers that torchrun or ``d2lps.ranks`` started, as they meet to make a store, whatever its engine."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from d2lps.carriers import ranks
from d2lps.carriers.rendezvous import GRACE, NoRanks, ProcessesError, RankLost, Rendezvous
from d2lps.kvstore.errors import KVError, Refused, WorkerLost
from d2lps.messages import text


class Meeting(Rendezvous):
    """Where workers meet. That one on this machine has ended is seen at once; what fails is a KVError."""

    def __init__(self, *arguments):
        self._others: dict[int, int] = {}  # a descriptor of its process → rank
        self._dead: set[int] = set()  # ranks whose process had ended before there was one
        with _in_words_of_the_store():
            super().__init__(*arguments)

    def join(self, mine: dict) -> list[dict]:
        with _in_words_of_the_store():
            members = super().join(mine | {"process": _process()})
        here = members[self.rank]["process"]
        for rank, (*where, pid) in enumerate(member["process"] for member in members):
            if rank != self.rank and where == here[:-1] and hasattr(os, "pidfd_open"):
                try:
                    self._others[os.pidfd_open(pid)] = rank
                except ProcessLookupError:
                    self._dead.add(rank)
                except OSError:
                    pass  # this system does not tell: then silence does
        return members

    def all_gather(self, what: str, mine: object) -> list:
        with _in_words_of_the_store():
            return super().all_gather(what, mine)

    def ended(self) -> set[int]:
        looked = select.poll()
        for descriptor in self._others:
            looked.register(descriptor, select.POLLIN)
        return self._dead | {self._others[descriptor] for descriptor, _ in looked.poll(0)}

    def close(self) -> None:
        super().close()
        while self._others:
            os.close(self._others.popitem()[0])


class Workers(NamedTuple):
    """All of them: this one's ``rank``, and by rank the ``hosts`` they are on; ``run``: what worker 0 calls this run.

    In their ``rendezvous`` they agree on more, until all is done or it is ``until``. Who has it closes it.
    """

    rendezvous: Meeting
    rank: int
    until: float
    hosts: list[str]
    run: str

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def one_host(self) -> bool:
        return len({*self.hosts}) == 1

    @property
    def left(self) -> float:
        """Seconds for what is still to be done."""
        return max(1.0, self.until - time.monotonic())

    def all_or_none(
        self, what: str, task: str, work: Callable[[], object], own: bool = True, seconds: float | None = None
    ) -> list:
        """What ``work()``, which takes up to ``seconds``, gives on each worker; where it raises a KVError, all raise.

        The others raise Refused (worker 1 could not do its ``task``, and why), and so does the one that failed, unless
        it raises its ``own`` error.
        """
        until = time.monotonic() + (self.left if seconds is None else seconds)
        result, failure = None, None
        try:
            result = work()
        except KVError as error:
            failure = error
        # Who fails at the last moment is still to be heard.
        self.rendezvous.deadline = round(max(0.0, until - time.monotonic()) + GRACE, 1)
        outcomes = self.rendezvous.all_gather(what, [result, failure and str(failure)])
        for rank, (_, sentence) in enumerate(outcomes):
            if sentence:
                raise own and failure or Refused(f"worker {rank} could not {task}: {sentence}")
        return [result for result, _ in outcomes]


def meet(kind: str, options: dict, joining: float, run: str = "") -> Workers:
    """All workers, once each has come here with the same ``options`` for its store.

    ``kind``: of the rendezvous; who makes stores of several kinds meets for one after the other. ``joining``: seconds
    for all that has to come together. Raises Refused where the ``options`` differ, WorkerLost where one does not come,
    NoRanks where this process is no worker.
    """
    until = time.monotonic() + joining
    with _in_words_of_the_store():
        store, rank, size, holder = ranks.from_environment(joining)
    rendezvous = Meeting(store, kind, rank, size, joining, holder)
    try:
        members = rendezvous.join({"host": ranks.host(), "options": options, "run": run})
        for other, member in enumerate(members):
            if member["options"] != members[0]["options"]:
                wishes = {"theirs": member["options"], "first": members[0]["options"]}
                raise Refused(text("store.other-store", worker=other, **wishes))
    except BaseException:
        rendezvous.close()
        raise
    return Workers(rendezvous, rank, until, [member["host"] for member in members], members[0]["run"])


@contextmanager
def _in_words_of_the_store() -> Iterator[None]:
    try:
        yield
    except NoRanks:
        raise
    except RankLost as error:
        raise (WorkerLost(str(error), error.ranks) if error.ranks else KVError(str(error))) from None
    except ProcessesError as error:
        raise KVError(str(error)) from None


def _process() -> list:
    """This process, as others on this machine find it: the machine, where its processes are counted, its number."""
    counted = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""
    return [ranks.host(), counted, os.getpid()]

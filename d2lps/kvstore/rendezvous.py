"""The meeting of the workers that torchrun or ``d2lps.ranks`` has started, to make a store of any engine."""

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
    """A rendezvous of workers that notices at once if a process on this machine ends. Its errors are KVErrors."""

    def __init__(self, *arguments):
        self._others: dict[int, int] = {}  # descriptor of a process → rank
        self._dead: set[int] = set()  # ranks whose process had ended before
        with _as_store_errors():
            super().__init__(*arguments)

    def join(self, mine: dict) -> list[dict]:
        namespace = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""  # of process ids
        with _as_store_errors():
            members = super().join(mine | {"process": [ranks.host(), namespace, os.getpid()]})
        here = members[self.rank]["process"]
        for rank, (*place, pid) in enumerate(member["process"] for member in members):
            if rank != self.rank and place == here[:-1] and hasattr(os, "pidfd_open"):
                try:
                    self._others[os.pidfd_open(pid)] = rank
                except ProcessLookupError:
                    self._dead.add(rank)
                except OSError:
                    pass  # the system does not allow it, so the process is lost when it is silent
        return members

    def all_gather(self, what: str, mine: object) -> list:
        with _as_store_errors():
            return super().all_gather(what, mine)

    def ended(self) -> set[int]:
        poll = select.poll()
        for descriptor in self._others:
            poll.register(descriptor, select.POLLIN)
        return self._dead | {self._others[descriptor] for descriptor, _ in poll.poll(0)}

    def close(self) -> None:
        super().close()
        while self._others:
            os.close(self._others.popitem()[0])


class Workers(NamedTuple):
    """The workers of a store: this worker's ``rank``, the ``hosts`` by rank, and worker 0's name for the ``run``.

    They agree on more in ``rendezvous``, which the caller closes, before ``until`` on the monotonic clock.
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
        """The seconds that are left, at least 1."""
        return max(1.0, self.until - time.monotonic())

    def all_or_none(
        self, task: str, work: Callable[[], object], own: bool = True, seconds: float | None = None
    ) -> list:
        """Do ``work()`` on each worker within ``seconds``, and return all results; if one raises a KVError, all raise.

        The others raise Refused, with the ``task`` that a worker could not do; so does the worker that failed, unless
        it raises its ``own`` error.
        """
        until = time.monotonic() + (self.left if seconds is None else seconds)
        result, failure = None, None
        try:
            result = work()
        except KVError as error:
            failure = error
        # A worker that fails at the last moment can still say so.
        self.rendezvous.deadline = round(max(0.0, until - time.monotonic()) + GRACE, 1)
        outcomes = self.rendezvous.all_gather(task, [result, failure and str(failure)])
        for rank, (_, sentence) in enumerate(outcomes):
            if sentence:
                raise own and failure or Refused(text(f"store.could-not.{task}", rank=rank, why=sentence))
        return [result for result, _ in outcomes]


def meet(kind: str, options: dict, joining: float, run: str = "") -> Workers:
    """Wait until all workers have come with the same ``options`` for a store, for at most ``joining`` seconds.

    ``kind`` names the rendezvous: a program that makes stores of several kinds meets for one after the other. Raises
    Refused if the ``options`` differ, WorkerLost if one does not come, NoRanks if this process is no worker.
    """
    until = time.monotonic() + joining
    with _as_store_errors():
        store, rank, size, holder = ranks.from_environment(joining)
    rendezvous = Meeting(store, kind, rank, size, joining, holder)
    try:
        members = rendezvous.join({"host": ranks.host(), "options": options, "run": run})
        for other, member in enumerate(members):
            if member["options"] != members[0]["options"]:
                theirs, first = member["options"], members[0]["options"]
                raise Refused(text("store.other-store", worker=other, theirs=theirs, first=first))
    except BaseException:
        rendezvous.close()
        raise
    return Workers(rendezvous, rank, until, [member["host"] for member in members], members[0]["run"])


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except NoRanks:
        raise
    except RankLost as error:
        raise (WorkerLost(str(error), error.ranks) if error.ranks else KVError(str(error))) from None
    except ProcessesError as error:
        raise KVError(str(error)) from None

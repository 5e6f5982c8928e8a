"""The workers that torchrun or ``d2lps.ranks`` started, as they meet to make a store, whatever its engine."""

from collections.abc import Callable
from typing import NamedTuple

from d2lps.carriers import ranks
from d2lps.carriers.rendezvous import Rendezvous
from d2lps.kvstore.errors import KVError, Refused

STARTING = 60.0  # seconds that what belongs to a store has to start, however short the deadline of a call is


class Workers(NamedTuple):
    """All of them: this one's ``rank``, and by rank the ``hosts`` they are on; ``run``: what worker 0 calls this run.

    In their ``rendezvous`` they agree on more; each wait there ends after ``patience`` seconds. Who has it closes it.
    """

    rendezvous: Rendezvous
    rank: int
    patience: float
    hosts: list[str]
    run: str

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def one_host(self) -> bool:
        return len({*self.hosts}) == 1

    def all_or_none(self, what: str, task: str, work: Callable[[], object], own: bool = True) -> list:
        """What ``work()`` gives on each worker, by rank; where it raises a KVError on one, all raise.

        The others raise Refused (worker 1 could not do its ``task``, and why), and so does the one that failed, unless
        it raises its ``own`` error.
        """
        result, failure = None, None
        try:
            result = work()
        except KVError as error:
            failure = error
        outcomes = self.rendezvous.all_gather(what, [result, failure and str(failure)])
        for rank, (_, sentence) in enumerate(outcomes):
            if sentence:
                raise own and failure or Refused(f"worker {rank} could not {task}: {sentence}")
        return [result for result, _ in outcomes]


def meet(kind: str, options: dict, deadline: float, run: str = "") -> Workers:
    """All workers, once each has come here with the same ``options`` for its store.

    ``kind``: of the rendezvous; who makes stores of several kinds meets for one after the other. ``deadline``: seconds
    that a call of the store may take. Raises Refused where the ``options`` differ, NoRanks where this process is no
    worker.
    """
    patience = max(deadline, STARTING)
    store, rank, size, holder = ranks.from_environment(patience)
    rendezvous = Rendezvous(store, kind, rank, size, patience, holder)
    try:
        members = rendezvous.join({"host": ranks.host(), "options": options, "run": run})
        for other, member in enumerate(members):
            if member["options"] != members[0]["options"]:
                raise Refused(
                    f"worker {other} asks for {member['options']}, worker 0 for {members[0]['options']}: all "
                    "workers ask for the same store"
                )
    except BaseException:
        rendezvous.close()
        raise
    return Workers(rendezvous, rank, patience, [member["host"] for member in members], members[0]["run"])

"""The workers that torchrun or ``d2lps.ranks`` started, as they come together to make a store."""

from typing import TYPE_CHECKING, NamedTuple

from d2lps.kvstore.errors import Refused

if TYPE_CHECKING:
    from d2lps.carriers.rendezvous import Rendezvous

STARTING = 60.0  # seconds that what belongs to a store has to start, however short the deadline of a call is


class Workers(NamedTuple):
    """All of them: this one's ``rank``, and by rank the ``hosts`` they are on and what they ``said``.

    In their ``meeting`` they agree on more; each wait there ends after ``patience`` seconds. Who has it closes it.
    """

    meeting: "Rendezvous"
    rank: int
    patience: float
    hosts: list[str]
    said: list

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def one_host(self) -> bool:
        return len({*self.hosts}) == 1


def gathered(kind: str, options: dict, deadline: float, say: object = None) -> Workers:
    """All workers, once each has come here; ``say``: what this one tells the others.

    kind
        of the meeting: who makes stores of several kinds meets for one after the other.
    options
        of the store, the same for all.
    deadline
        seconds that a call of the store may take.

    Raises Refused where their ``options`` differ, NoRanks where this process is no worker.
    """
    from d2lps.carriers.ranks import from_environment, host
    from d2lps.carriers.rendezvous import Rendezvous

    patience = max(deadline, STARTING)
    store, rank, size, holder = from_environment(patience)
    meeting = Rendezvous(store, kind, rank, size, patience, holder)
    try:
        members = meeting.join({"host": host(), "options": options, "said": say})
        for other, member in enumerate(members):
            if member["options"] != members[0]["options"]:
                raise Refused(
                    f"worker {other} asks for {member['options']}, worker 0 for {members[0]['options']}: all "
                    "workers ask for the same store"
                )
    except BaseException:
        meeting.close()
        raise
    return Workers(
        meeting, rank, patience, [member["host"] for member in members], [member["said"] for member in members]
    )

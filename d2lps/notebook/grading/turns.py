"""Play an answer as all ranks of a group, one after the other, in one process."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from d2lps.notebook.grading.calls import Stopped


class Waits(Stopped):
    """A rank cannot go on before another one has given something."""


def in_turns(ranks: int, act: Callable[[int, Callable], object]) -> tuple[dict[int, object], list[list]]:
    """Play ranks that exchange values in rounds.

    A rank that needs what another one gives is stopped, and played again from its beginning once that is known. So no
    answer can wait for ever.

    Parameters
    ----------
    ranks : int
        Their number.
    act : callable (rank, give) → result
        Plays one rank. It calls ``give(value)`` in each round, which returns the values of all ranks in this round;
        ``give(value, sources)`` returns those of some ranks alone, and waits for no other.

    Returns
    -------
    dict of int to object
        The result of each rank; if they wait for one another, some are missing.
    list of list
        For each rank what it gave, round by round.

    Examples
    --------
    >>> in_turns(2, lambda rank, give: sum(give(rank + 1)))
    ({0: 3, 1: 3}, [[1], [2]])
    >>> in_turns(2, lambda rank, give: rank and give("alone"))
    ({0: 0}, [[], ['alone']])
    """
    known: list[list] = [[] for _ in range(ranks)]
    while True:
        results, grown = {}, False
        for rank in range(ranks):
            mine: list = []

            def give(value: object, sources: Sequence[int] = range(ranks), mine: list = mine) -> list:
                mine.append(value)
                if any(len(known[source]) < len(mine) for source in sources):
                    raise Waits
                return [known[source][len(mine) - 1] for source in sources]

            with suppress(Waits):
                results[rank] = act(rank, give)
            if len(mine) > len(known[rank]):
                known[rank], grown = mine, True
        if len(results) == ranks or not grown:
            return results, known

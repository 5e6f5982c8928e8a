"""With what this chapter opens."""

from d2lps import Trace, cost
from d2lps.schedule import gpipe, one_f_one_b, pipeline, zero_bubble

TOTAL = 6  # the number of micro-batches if there are several; one forward pass of all takes as many seconds


def opening() -> dict[str, Trace]:
    """Return four runs of the same minibatch on four devices; a backward pass takes twice as long as a forward one."""

    def trace(make, micro):
        part = TOTAL / micro
        work = {"F": part, "B": 2 * part, "I": part, "W": part}
        return cost.shared(pipeline(make(4, micro), work, saved=0))  # what is saved is a question of the chapter

    return {
        "m = 1": trace(gpipe, 1),
        "GPipe": trace(gpipe, TOTAL),
        "1F1B": trace(one_f_one_b, TOTAL),
        "ZB-H1": trace(zero_bubble, TOTAL),
    }

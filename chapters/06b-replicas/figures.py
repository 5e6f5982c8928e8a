"""With what this chapter opens, without a word of any language."""

from d2lps import Trace
from d2lps.notebook.grading.course import CHAPTERS, chapter_module

training = chapter_module(CHAPTERS / "06-faults", "figures")
ROUNDS, FATAL, SAVED = 6, 4, 2  # in which round s1 dies, and of which there is a checkpoint


def opening() -> dict[str, Trace]:
    """A server dies: everything goes back to a checkpoint, or the other server has a copy, and takes over."""
    nodes = {"rounds": ROUNDS, "fatal": FATAL}
    return {
        "checkpoint": training.Run("disk", **nodes).back_to_checkpoint(SAVED),
        "replica": _taken_over(training.Run(**nodes)),
    }


def _taken_over(run) -> Trace:
    alone = dict.fromkeys(training.HALVES, "s0")
    for round in range(1, run.fatal):
        run.push(round, training.HALVES)
        run.copy([("s0", "s1", "a"), ("s1", "s0", "b")], [round])
        run.answer(round, training.HALVES)
    run.push(run.fatal, training.HALVES)
    died = run.now
    run.now += training.NOTICED
    run.push(run.fatal, {"b": "s0"}, again=True)
    run.answer(run.fatal, alone)
    for round in range(run.fatal + 1, run.rounds + 1):
        run.push(round, alone)
        run.answer(round, alone)
    run.gone("s1", died, run.now)
    return run.trace()

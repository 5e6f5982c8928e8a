"""Graders: an answer is a function; it is judged in many cases, and the learner reads what is wrong with it.

Start with ``attempts.check_exercise``. A chapter's ``grader.py`` defines ``EXERCISES`` (id → :class:`Exercise`) with
the names of this room; judges of answers that are not plans lie beside it::

    exercise     what an exercise, a case and a failure are; shows the verdict
    attempts     judges all cases of one attempt, within a deadline
    plan_judge   judges answers that return a plan, and names the mistake behind a refused plan
    calls        calls an answer, stops it in time, turns its errors into sentences; plays it as all ranks of a group
    elsewhere    asks an answer in another process, for its gradient, and measures the objects that it keeps
    course       finds the texts, stubs, solutions and judges of the chapters
    mere_calls   finds answers that only call the package
    own          reads exercises of a teacher's own
    edits        makes typical wrong answers out of solutions
"""

from d2lps.notebook.grading.attempts import check_exercise, solution
from d2lps.notebook.grading.calls import Stopped, call, deadline, in_turns, stop_thread, untouched
from d2lps.notebook.grading.course import ExerciseError
from d2lps.notebook.grading.edits import edited
from d2lps.notebook.grading.elsewhere import elsewhere, gradient, shared_names, size_kept
from d2lps.notebook.grading.exercise import (
    Ended,
    Exercise,
    Failure,
    Verdict,
    failure,
    number,
    number_text,
    plain,
    sealed,
    size_text,
    time_text,
    unlike,
    withheld,
)
from d2lps.notebook.grading.plan_judge import NBYTES, Counts, PlanCase, PlanJudge

__all__ = [
    "NBYTES",
    "Counts",
    "Ended",
    "Exercise",
    "ExerciseError",
    "Failure",
    "PlanCase",
    "PlanJudge",
    "Stopped",
    "Verdict",
    "call",
    "check_exercise",
    "deadline",
    "edited",
    "elsewhere",
    "failure",
    "gradient",
    "in_turns",
    "number",
    "number_text",
    "plain",
    "sealed",
    "shared_names",
    "size_kept",
    "size_text",
    "solution",
    "stop_thread",
    "time_text",
    "unlike",
    "untouched",
    "withheld",
]

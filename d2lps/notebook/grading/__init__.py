"""The common part of all graders: an answer is a function, it is judged in many cases, and the learner is told why.

``exercise`` says what an exercise is; a chapter's ``grader.py`` writes its own down in ``EXERCISES`` (id →
:class:`Exercise`), with what this room hands on. ``plan_judge`` judges answers that return a plan and ``diagnosis``
names what is wrong with a refused one; judges of other answers stand beside their chapter. ``calls`` calls an answer
and stops it in time, ``elsewhere`` asks it in another process, ``memory`` measures what it keeps; ``attempts`` judges
all cases of one attempt, ``verdict`` shows the outcome, ``course`` finds what the chapters say.
"""

from d2lps.notebook.grading.attempts import check_exercise, solution
from d2lps.notebook.grading.calls import Stopped, call, stop_thread
from d2lps.notebook.grading.course import ExerciseError
from d2lps.notebook.grading.elsewhere import elsewhere
from d2lps.notebook.grading.exercise import Exercise, Failure, failure, size_text, time_text
from d2lps.notebook.grading.memory import shared_names, size_kept
from d2lps.notebook.grading.plan_judge import NBYTES, Counts, PlanCase, PlanJudge
from d2lps.notebook.grading.verdict import Verdict

__all__ = [
    "NBYTES",
    "Counts",
    "Exercise",
    "ExerciseError",
    "Failure",
    "PlanCase",
    "PlanJudge",
    "Stopped",
    "Verdict",
    "call",
    "check_exercise",
    "elsewhere",
    "failure",
    "shared_names",
    "size_kept",
    "size_text",
    "solution",
    "stop_thread",
    "time_text",
]

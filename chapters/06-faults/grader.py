"""What the exercises of this chapter ask of an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.course.grading import Exercise

from . import judge_count_once, judge_fault_tolerance
from .judge_count_once import OnceCase
from .pair import PairCase

EXERCISES = {
    "fault-tolerance": Exercise(
        ("me", "peer", "workers", "send"), tuple(map(PairCase, (3, 1, 2))), judge_fault_tolerance.judge, fills=dict
    ),
    "count-once": Exercise(("disk", "send"), tuple(map(OnceCase, (3, 1, 2))), judge_count_once.judge, fills=dict),
}

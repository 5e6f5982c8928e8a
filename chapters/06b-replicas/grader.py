"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise

from . import judge_count_once, judge_fault_tolerance, judge_hashing
from .judge_count_once import OnceCase
from .judge_fault_tolerance import PairCase
from .judge_hashing import hashing_case

EXERCISES = {
    "fault-tolerance": Exercise(
        ("me", "peer", "workers", "send"),
        (
            PairCase((2, 5, 0)),
            PairCase((41,), ("server1", "server0"), ("head", "w", "b")),
            PairCase((7, 3), ("south", "north"), ("layer10", "layer1")),
        ),
        judge_fault_tolerance.judge,
        fills=dict,
    ),
    "count-once": Exercise(
        ("disk", "send"),
        (
            OnceCase((0, 1, 2)),
            OnceCase((4100,), ("head", "layer1")),
            OnceCase((1, 11), ("w", "1w", "w1")),  # names that run together: 1 and 1w, 11 and w
        ),
        judge_count_once.judge,
        fills=dict,
    ),
    "hashing": Exercise(
        ("keys", "hosts", "replicas"),
        (
            *(hashing_case(*case) for case in ((6, 1, 1), (3, 2, 1), (5, 1, 2), (3, 1, 0), (4, 2, 2))),
            *(hashing_case(*case) for case in ((4, 1, 3), (5, 2, 4))),  # each host holds a copy
            hashing_case(2, 1, 1, keys=200, more=30),
        ),
        judge_hashing.judge,
        fills=dict,
    ),
}

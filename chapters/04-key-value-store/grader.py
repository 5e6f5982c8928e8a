"""The demands of this chapter's exercises on an answer. Their judges play programs, so no plan is costed.

``network`` plays programs that speak to each other; each exercise has its judge in a module of its own.
"""

from d2lps.notebook.grading import Exercise

from . import judge_count_workers, judge_placement, judge_push_pull, judge_sparse_pull
from .judge_count_workers import rounds_case
from .judge_placement import placement_case
from .judge_push_pull import ServedCase
from .judge_sparse_pull import RowsCase, drawn_case

SIZES = ((3, 2), (1, 1), (2, 1), (2, 2), (3, 1), (5, 3), (1, 2), (1, 3), (2, 3), (3, 3), (5, 1))


EXERCISES = {
    "push-pull": Exercise(
        ("workers", "servers", "send", "recv"),
        (*(ServedCase(n, k) for n, k in SIZES), ServedCase(5, 2, ("host", "store"))),
        judge_push_pull.judge,
        fills=judge_push_pull.traffic,
    ),
    "placement": Exercise(
        ("keys", "servers"),
        (*map(placement_case, (3, 1, 2, 5)), placement_case(8, host="10.0.0.{}:9091")),
        judge_placement.judge,
        fills=dict,
    ),
    "count-workers": Exercise(
        ("n",),
        tuple(map(rounds_case, (3, 2, 1, 5))),
        judge_count_workers.judge,
        fills=lambda messages: {"messages": str(messages)},
    ),
    "sparse-pull": Exercise(
        ("rows", "cuts", "ask"),
        (
            RowsCase((7, 2, 9, 2, 3), (0, 4, 8, 10)),
            RowsCase((5, 0, 5), (0, 6)),
            RowsCase((3, 4), (0, 4, 8, 12, 16)),
            RowsCase((0, 9, 1), (0, 1, 1, 10), more=" (2)"),
            RowsCase((11, 10, 11), (0, 5, 10, 15), width=5, more=" (3)"),
            RowsCase((), (0, 4, 8), more=" (4)"),
            drawn_case(4, (0, 250, 500, 750, 1000), 200),
            drawn_case(5, (0, 3, 100, 101, 480, 777), 60),
        ),
        judge_sparse_pull.judge,
        fills=dict,
    ),
}

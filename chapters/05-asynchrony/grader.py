"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

import math

from d2lps.notebook.grading import Exercise

from . import judge_backup, judge_buckets, judge_local_sgd, judge_staleness
from .judge_backup import backup_case
from .judge_staleness import staleness_case


def waiting_times(n: int, b: int) -> dict[str, str]:
    """Mean waits for n + b workers, and for the first n of them, where each takes 1 on average, exponentially drawn."""
    everybody, last = (sum(1 / i for i in range(1, m + 1)) for m in (n + b, b))
    return {"everybody": f"{everybody:.2f}", "first": f"{everybody - last:.2f}", "wasted": f"{b / (n + b):.0%}"}


EXERCISES = {
    "buckets": Exercise(
        ("sizes", "ready", "alpha", "bandwidth"), judge_buckets.cases(), judge_buckets.judge, fills=dict
    ),
    "staleness": Exercise(
        ("n", "s"),
        tuple(staleness_case(n, s) for n, s in ((3, 3), (3, 1), (3, 0), (2, 7), (3, math.inf), (5, 3), (1, 0), (5, 1))),
        judge_staleness.judge,
        fills=lambda _: judge_staleness.waits(),
    ),
    "backup": Exercise(
        ("n", "b"),
        (backup_case(2, 1), backup_case(3, 2, (2, 3)), backup_case(1, 1))
        + (backup_case(3, 0, (5,)), backup_case(1, 3, (2, 1, 2)), backup_case(5, 1, (8,))),
        judge_backup.judge,
        fills=lambda messages: {"messages": str(messages)} | waiting_times(96, 4),
    ),
    "local-sgd": Exercise(
        ("weights", "push", "pull", "step", "h", "share"), judge_local_sgd.CASES, judge_local_sgd.judge, fills=dict
    ),
}

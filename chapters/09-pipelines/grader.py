"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise

from . import judge_best_cut, judge_pipelines
from .judge_pipelines import TableCase

EXERCISES = {
    "one-f-one-b": Exercise(
        ("stages", "micro"),
        tuple(TableCase(*counts) for counts in ((4, 8), (2, 3), (1, 1), (3, 5), (5, 2), (1, 4), (5, 1), (8, 32))),
        judge_pipelines.judge,
        fills=dict,
    ),
    "interleave": Exercise(
        ("devices", "micro", "chunks"),
        tuple(
            TableCase(*counts)
            for counts in ((2, 4, 2), (4, 8, 2), (1, 3, 2), (3, 6, 3), (4, 8, 1), (5, 5, 2), (2, 10, 3), (1, 1, 1))
        ),
        judge_pipelines.judge,
        fills=dict,
    ),
    "best-cut": Exercise(("costs", "stages"), judge_best_cut.cases(), judge_best_cut.judge, fills=dict),
}

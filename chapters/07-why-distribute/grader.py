"""The demands of this chapter's exercises on an answer: each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_break_even, judge_critical_batch

EXERCISES = {
    "critical-batch": Exercise(
        ("measured", "steps"), judge_critical_batch.CASES, judge_critical_batch.judge, fills=dict
    ),
    "break-even": Exercise(
        ("hours", "price", "worth", "life", "save", "most"), judge_break_even.CASES, judge_break_even.judge, fills=dict
    ),
}

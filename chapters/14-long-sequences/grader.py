"""What the exercises of this chapter ask of an answer. Each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_merge, judge_which_way, judge_zigzag

EXERCISES = {
    "merge": Exercise(("parts",), judge_merge.CASES, judge_merge.judge, fills=dict),
    "zigzag": Exercise(("n", "blocks"), judge_zigzag.CASES, judge_zigzag.judge, fills=dict),
    "which-way": Exercise(
        ("tokens", "n", "heads", "groups", "size", "itemsize"), judge_which_way.CASES, judge_which_way.judge, fills=dict
    ),
}

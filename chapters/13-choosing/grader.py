"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_choose, judge_experts

EXERCISES = {
    "choose": Exercise(
        ("model", "gpus", "memory", "per_node", "batch"), judge_choose.CASES, judge_choose.judge, fills=dict
    ),
    "experts": Exercise(
        ("x", "choice", "gate", "ranks", "capacity", "exchange", "expert"),
        judge_experts.CASES,
        judge_experts.judge,
        fills=dict,
    ),
}

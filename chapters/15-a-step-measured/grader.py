"""What the exercises of this chapter ask of an answer. Each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_global_norm, judge_mfu, judge_who_hangs

EXERCISES = {
    "mfu": Exercise(tuple(judge_mfu.StepCase.__dataclass_fields__), judge_mfu.CASES, judge_mfu.judge, fills=dict),
    "global-norm": Exercise(
        ("gradients", "copies", "sum_tensor", "sum_stages"),
        judge_global_norm.CASES,
        judge_global_norm.judge,
        fills=dict,
    ),
    "who-hangs": Exercise(("logs",), judge_who_hangs.CASES, judge_who_hangs.judge, fills=dict),
}

"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_hybrid, judge_place, judge_tensor_mlp

EXERCISES = {
    "tensor-mlp": Exercise(
        ("x", "A", "B", "b", "rank", "ranks", "all_reduce"), judge_tensor_mlp.CASES, judge_tensor_mlp.judge, fills=dict
    ),
    "place": Exercise(("operators", "devices", "memory"), judge_place.CASES, judge_place.judge, fills=dict),
    "hybrid": Exercise(("devices",), judge_hybrid.CASES, judge_hybrid.judge, fills=dict),
}

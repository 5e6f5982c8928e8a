"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise

from . import judge_balance, judge_cache, judge_push

EXERCISES = {
    "sparse-push": Exercise(
        ("number", "rows", "gradients", "cuts", "send"), judge_push.CASES, judge_push.judge, fills=dict
    ),
    "balance": Exercise(("popularity", "servers"), judge_balance.CASES, judge_balance.judge, fills=dict),
    "cache-hit": Exercise(("ids", "size"), judge_cache.CASES, judge_cache.judge, fills=dict),
}

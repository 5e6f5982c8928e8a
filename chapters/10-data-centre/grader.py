"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise

from . import judge_bruck, judge_busbw, judge_order, judge_rails

EXERCISES = {
    "busbw": Exercise(("collective", "n", "nbytes", "seconds"), judge_busbw.CASES, judge_busbw.judge, fills=dict),
    "order-the-hosts": Exercise(("rack_of",), judge_order.CASES, judge_order.judge, fills=dict),
    "bruck": Exercise(("rank", "n", "mine", "swap"), judge_bruck.CASES, judge_bruck.judge, fills=dict),
    "rail-ring": Exercise(("hosts", "k"), judge_rails.CASES, judge_rails.judge, fills=dict),
}

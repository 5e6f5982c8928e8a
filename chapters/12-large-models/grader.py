"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own."""

from d2lps.notebook.grading import Exercise

from . import judge_fully_sharded, judge_state_bytes

EXERCISES = {
    "state-bytes": Exercise(("params", "ranks", "stage"), judge_state_bytes.CASES, judge_state_bytes.judge, fills=dict),
    "fully-sharded": Exercise(("layers",), judge_fully_sharded.CASES, judge_fully_sharded.judge, fills=dict),
}

"""The exercises of chapter 04: what each asks of an answer. Their judges play programs, so no plan is costed."""

from d2lps.course.grading import counting, placing, pushing, sparse
from d2lps.course.grading.asked import Exercise

_SIZES = ((3, 2), (1, 1), (2, 1), (2, 2), (3, 1), (5, 3), (1, 2), (1, 3), (2, 3), (3, 3), (5, 1), (5, 2))


def _told(found: dict[str, str]) -> dict[str, str]:
    return found


EXERCISES = {
    "push-pull": Exercise(
        ("workers", "servers", "send", "recv"),
        tuple(pushing.Served(n, k) for n, k in _SIZES),
        None,
        (),
        judge=pushing.judge,
        tells=pushing.told,
        keeps=(
            "too-early",
            "old-round",
            "not-added",
            "wrong-sum",
            "counted-twice",
            "own-missing",
            "other-key",
            "keys-wait",
            "push-waits",
            "waits-first",
            "no-answer",
            "overtaken",
            "serve-ended",
            "too-many-messages",
            "whole-store",
            "too-many-bytes",
            "one-server",
            "past-the-wire",
        ),
    ),
    "placement": Exercise(
        ("keys", "servers"),
        (*map(placing.placing, (3, 1, 2, 5)), placing.placing(8, host="10.0.0.{}:9091")),
        None,
        (),
        judge=placing.judge,
        tells=_told,
        keeps=(
            "python-hash",
            "modulo",
            "moves-between",
            "depends-on-others",
            "by-position",
            "uneven",
            "one-server",
            "changes",
        ),
    ),
    "count-workers": Exercise(
        ("n",),
        tuple(map(counting.counting, (3, 2, 1, 5))),
        None,
        (),
        judge=counting.judge,
        tells=lambda messages: {"messages": str(messages)},
        keeps=(
            "counts-messages",
            "too-soon",
            "counted-twice",
            "overwritten",
            "early-lost",
            "repeat-opens",
            "arrival-order",
            "stays-open",
            "wrong-sum",
            "changes-it",
        ),
    ),
    "sparse-pull": Exercise(
        ("rows", "cuts", "ask"),
        (
            sparse.Sparse((7, 2, 9, 2, 3), (0, 4, 8, 10)),
            sparse.Sparse((5, 0, 5), (0, 6)),
            sparse.Sparse((3, 4), (0, 4, 8, 12, 16)),
            sparse.Sparse((0, 9, 1), (0, 1, 1, 10), more=" (2)"),
            sparse.Sparse((11, 10, 11), (0, 5, 10, 15), more=" (3)"),
            sparse.drawn(4, (0, 250, 500, 750, 1000), 200),
            sparse.drawn(5, (0, 3, 100, 101, 480, 777), 60),
        ),
        None,
        (),
        judge=sparse.judge,
        tells=_told,
        keeps=(
            "everything",
            "every-server",
            "twice",
            "row-by-row",
            "wrong-offset",
            "wrong-cut",
            "order-lost",
            "repeats-lost",
            "rows-lost",
        ),
    ),
}

"""The demands of this chapter's exercises on an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise, time_text

from . import judge_atomic_save, judge_detect, judge_interval
from .judge_atomic_save import SaveCase
from .judge_detect import detect_case
from .judge_interval import IntervalCase


def detection_texts(found: dict[str, float]) -> dict[str, str]:
    times = {name: time_text(found[name]) for name in ("silence", "mean", "most")}
    return times | {"asked": str(found["asked"])}


def interval_texts(found: dict[str, float]) -> dict[str, str]:
    longer = {name: f"{found[name]:.1%}" for name in ("longer", "drawn", "twice", "half")}
    return longer | {"interval": time_text(found["interval"])}


EXERCISES = {
    "interval": Exercise(
        ("n", "hours", "delta", "restart"),
        (
            IntervalCase(16384, 50677, 60, 300),  # Llama 3
            IntervalCase(16384, 50677, 10, 60),
            *(IntervalCase(1, hours, 300, 600) for hours in (24, 6)),  # Daly's figures
            IntervalCase(8, 2, 300, 60),
            IntervalCase(1000, 50000, 30, 0),
            IntervalCase(10, 5, 864, 60),
            IntervalCase(4, 1, 1000, 120),
            IntervalCase(1, 100000, 3600, 600),  # the best interval is weeks
            IntervalCase(100, 20, 0.05, 10),  # and here some seconds
            *judge_interval.drawn_cases(),
        ),
        judge_interval.judge,
        fills=interval_texts,
    ),
    "atomic-save": Exercise(
        ("fs",),
        (SaveCase(1), SaveCase(2)),
        judge_atomic_save.judge,
        fills=lambda found: {name: str(count) for name, count in found.items()},
    ),
    "detect": Exercise(
        ("nodes", "every", "lost", "delay", "now"),
        tuple(detect_case(*case) for case in ((3, 0.1, 2, 0.05), (3, 0.1, 0, 0.02), (2, 1, 3, 5), (5, 0.5, 4, 0.1))),
        judge_detect.judge,
        fills=detection_texts,
    ),
}

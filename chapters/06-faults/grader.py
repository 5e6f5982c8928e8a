"""What the exercises of this chapter ask of an answer. Each has its judge in a module of its own, and no plan."""

from d2lps.notebook.grading import Exercise, time_text

from . import judge_atomic_save, judge_count_once, judge_detect, judge_fault_tolerance, judge_hashing, judge_interval
from .judge_atomic_save import SaveCase
from .judge_count_once import OnceCase
from .judge_detect import detect_case
from .judge_hashing import hashing_case
from .judge_interval import IntervalCase
from .pair import PairCase


def detection_texts(found: dict[str, float]) -> dict[str, str]:
    times = {name: time_text(found[name]) for name in ("silence", "mean", "most")}
    return times | {"asked": str(found["asked"])}


def interval_texts(found: dict[str, float]) -> dict[str, str]:
    longer = {name: f"{found[name]:.1%}" for name in ("longer", "drawn", "twice", "half")}
    return longer | {"interval": time_text(found["interval"])}


EXERCISES = {
    "fault-tolerance": Exercise(
        ("me", "peer", "workers", "send"),
        (
            PairCase((2, 5, 0)),
            PairCase((41,), ("server1", "server0"), ("head", "w", "b")),
            PairCase((7, 3), ("south", "north"), ("layer10", "layer1")),
        ),
        judge_fault_tolerance.judge,
        fills=dict,
        keeps=("never-takes-over", "copies-everything"),
    ),
    "count-once": Exercise(
        ("disk", "send"),
        (
            OnceCase((0, 1, 2)),
            OnceCase((4100,), ("head", "layer1"), late=("layer10",)),
            OnceCase((1, 11), ("w", "1w", "w1")),  # names that run together: 1 and 1w, 11 and w
        ),
        judge_count_once.judge,
        fills=dict,
        keeps=("one-count-for-all-keys", "one-count-for-all-workers"),
    ),
    "detect": Exercise(
        ("nodes", "every", "lost", "delay", "now"),
        tuple(detect_case(*case) for case in ((3, 0.1, 2, 0.05), (3, 0.1, 0, 0.02), (2, 1, 1, 3), (5, 0.5, 4, 0.1))),
        judge_detect.judge,
        fills=detection_texts,
        keeps=(
            "too-short",
            "too-long",
            "takes-back",
            "misses-dead",
            "suspects-living",
            "counts-messages",
            "counts-calls",
            "wall-clocks",
            "before-first",
            "never-forgives",
            "ignores-end",
            "waits-for-end",
            "one-timer",
            "own-pause",
            "no-pause",
        ),
    ),
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
        keeps=(
            "one-device",
            "other-unit",
            "without-two",
            "adds-restart",
            "counts-save",
            "delta-twice",
            "young-too-far",
            "too-often",
            "too-seldom",
        ),
    ),
    "atomic-save": Exercise(
        ("fs",),
        (SaveCase(1), SaveCase(2)),
        judge_atomic_save.judge,
        fills=lambda found: {name: str(count) for name, count in found.items()},
        keeps=("same-name",),
    ),
    "hashing": Exercise(
        ("keys", "hosts", "replicas"),
        (
            *(hashing_case(*case) for case in ((6, 1, 1), (3, 2, 1), (5, 1, 2), (3, 1, 0), (4, 2, 2))),
            *(hashing_case(*case) for case in ((4, 1, 3), (5, 2, 4))),  # each host holds a copy
            hashing_case(2, 1, 1, keys=200, more=30),
        ),
        judge_hashing.judge,
        fills=dict,
        keeps=(
            "same-server",
            "same-host",
            "too-few-copies",
            "too-many-copies",
            "modulo",
            "moves-between",
            "turns-around",
            "by-position",
            "uneven",
            "one-heir",
        ),
    ),
}

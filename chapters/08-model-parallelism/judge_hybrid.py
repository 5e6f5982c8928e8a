"""Judge a hybrid schedule: check it against values of the judge's own, and count its bytes."""

from collections.abc import Callable
from dataclasses import dataclass

from d2lps import Send, Update, cost
from d2lps.notebook.grading import call, failure, size_text, unlike
from d2lps.schedule import Collective, Schedule, ScheduleError, Task, hybrid

WEIGHTS, DATA = {"op1": 8_000_000, "op2": 6_000_000}, 200_000
ACTS = Task, Send, Update, Collective
FORWARD = {"op1": 0, "op2": 1}  # operator → which device of a replica


@dataclass(frozen=True)
class HybridCase:
    """The devices: two per replica."""

    devices: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"n = {len(self.devices)}, {' '.join(self.devices)}"


def judge(case: HybridCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    try:
        made = call(case, answer, [*case.devices], refused=ScheduleError)
        acts = made.acts if isinstance(made, Schedule) else made
        if not isinstance(acts, list | tuple) or not all(isinstance(act, ACTS) for act in acts):
            raise failure("wrong-type", "hybrid-type", case, type=type(made).__name__)
        _require_places(case, [act for act in acts if isinstance(act, Task)])
        right = hybrid(WEIGHTS, case.devices, data=DATA)
        rebuilt = Schedule(case.devices, right.values, acts, right.holds, right.wants)
    except ScheduleError as error:
        raise failure(_mistake(case, error), "refused", case, error=error) from None
    _require_reads(case, *([act for act in each if isinstance(act, Task)] for each in (acts, right.acts)))
    sent, enough = ([cost.shared(each).bytes_sent(node) for node in case.devices] for each in (rebuilt, right))
    if sum(sent) > sum(enough) + 1:  # parts of a byte are rounded
        got, least = unlike(sum(sent), sum(enough), size_text)
        raise failure("differs", "hybrid-bytes", case, sent=got, enough=least)
    first, second, *_ = sent
    return {"first": size_text(first), "second": size_text(second)}


def _require_places(case: HybridCase, tasks: list[Task]) -> None:
    """Raise Failure unless every replica does every task on the right device."""
    replicas = range(len(case.devices) // 2)
    if not tasks:
        raise failure("todo", "hybrid-nothing", case)
    for task in tasks:
        number = FORWARD.get(task.of, 1)
        if task.batch not in replicas:
            raise failure("one-replica", "hybrid-batch", case, task=task, replicas=len(replicas))
        home = case.devices[2 * task.batch + number]
        if task.node != home:
            raise failure("one-replica", "hybrid-elsewhere", case, task=task, home=home)
    done = {(task.label, task.node) for task in tasks}
    for r in replicas:
        for label, home in ((f"Fop1.{r}", 0), (f"Fop2.{r}", 1), (f"L.{r}", 1), (f"Bop2.{r}", 1), (f"Bop1.{r}", 0)):
            if (label, case.devices[2 * r + home]) not in done:
                raise failure("one-replica", "hybrid-missing", case, task=f"{case.devices[2 * r + home]} {label}")


def _require_reads(case: HybridCase, tasks: list[Task], right: list[Task]) -> None:
    """Raise Failure unless each task reads all that it computes with."""
    needed = {(task.label, task.node): task.reads for task in right}
    for task in tasks:
        if lacks := [value for value in needed.get((task.label, task.node), ()) if value not in task.reads]:
            raise failure("no-send", "hybrid-reads", case, task=f"{task.node} {task.label}", value=lacks[0])


def _mistake(case: HybridCase, error: ScheduleError) -> str:
    """Return the mistake behind a schedule that is refused."""
    act = error.values.get("what")
    if error.reason == "unfinished":
        return "no-sum"
    if error.reason == "twice":
        return "counted-twice"
    if isinstance(act, Collective):
        return "over-all" if {*act.plan.nodes} == {*case.devices} else "wrong-group"
    return "no-send" if error.reason in ("not-there", "incomplete") else "differs"


CASES = tuple(
    HybridCase(devices)
    for devices in (
        ("gpu1", "gpu2", "gpu3", "gpu4"),
        ("gpu1", "gpu2"),
        ("a", "b", "c", "d", "e", "f"),
        ("d3", "d1", "d9", "d7"),
        tuple(f"n{i}" for i in (7, 3, 9, 1, 8, 2, 6, 4, 5, 0)),
    )
)

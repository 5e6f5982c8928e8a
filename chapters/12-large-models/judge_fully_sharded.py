"""Judge one step of ZeRO-3: make a schedule of the answer's list, check it, and count its bytes and whole layers."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from d2lps import all_gather, cost, reduce_scatter
from d2lps.notebook.grading import call, failure, size_text, unlike
from d2lps.schedule import Collective, Schedule, ScheduleError, Task, zero

KINDS = ("gather", "forward", "free", "backward", "reduce", "update")


@dataclass(frozen=True)
class StepCase:
    """The devices, and the parameters of each layer."""

    devices: tuple[str, ...]
    layers: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"n = {len(self.devices)}, layers = {list(self.layers)}"


def judge(case: StepCase, answer: Callable) -> dict[str, str]:
    """Return what fills the sentence for a right answer; raise Failure."""
    todo = _list(case, call(case, answer, [*case.layers]))
    for k in range(len(case.layers)):
        for kind in ("forward", "backward", "reduce", "update"):
            if (count := todo.count((kind, k))) != 1:
                raise failure("other-count", "fsdp-count", case, what=_show(kind, k), count=count)
    most = _layers_at_once(case, todo)
    right = zero(case.devices, case.layers, 3)
    try:
        made = _schedule(case, todo, right)
    except ScheduleError as error:
        number = _entry(case, todo, error.act)
        mistake = _refused(todo[: number - 1], *todo[number - 1])
        raise failure(mistake, "fsdp-refused", case, number=number, what=_show(*todo[number - 1])) from None
    allowed = min(2, len(case.layers))
    if most["w"] > allowed:
        mistake = "gathers-first" if any(("free", k) in todo for k in range(len(case.layers) - 1)) else "never-frees"
        raise failure(mistake, "fsdp-whole", case, got=most["w"], enough=allowed)
    if most["g"] > allowed:
        raise failure("late-reduce", "fsdp-gradients", case, got=most["g"], enough=allowed)
    sent, enough = (sum(map(cost.shared(each).bytes_sent, case.devices)) for each in (made, right))
    if sent > enough + 2 * len(case.layers):
        got, least = unlike(sent, enough, size_text)
        raise failure("too-many-bytes", "fsdp-bytes", case, got=got, enough=least)
    for k in range(len(case.layers)):
        if todo.count(("free", k)) < todo.count(("gather", k)):
            raise failure("never-frees", "fsdp-end", case, layer=k)
    plain = zero(case.devices, case.layers, 0)
    return {
        "peak": size_text(right.peak[case.devices[0]]),
        "plain": size_text(plain.peak[case.devices[0]]),
        "sent": size_text(enough / len(case.devices)),
    }


def _show(kind: str, k: object) -> str:
    return repr((kind, k))


def _list(case: StepCase, result: object) -> list[tuple[str, int]]:
    if isinstance(result, str) or not isinstance(result, Sequence):
        raise failure("wrong-type", "fsdp-not-a-list", case, type=type(result).__name__)
    if not result:
        raise failure("todo", "fsdp-nothing", case)
    todo = []
    for each in result:
        try:
            kind, k = each
            k = operator.index(k)
            if kind not in KINDS or not 0 <= k < len(case.layers):
                raise ValueError
        except Exception:
            raise failure("differs", "fsdp-strange", case, what=repr(each)[:40], kinds=", ".join(KINDS)) from None
        todo.append((kind, k))
    return todo


def _layers_at_once(case: StepCase, todo: list[tuple[str, int]]) -> dict[str, int]:
    """Return how many layers have whole weights (w), and whole gradients (g), at the same time."""
    whole: dict[str, set[int]] = {"w": set(), "g": set()}
    most = {"w": 0, "g": 0}
    begins, ends = {"gather": "w", "backward": "g"}, {"free": "w", "reduce": "g"}
    for kind, k in todo:
        if kind in begins:
            whole[begins[kind]].add(k)
        elif kind in ends:
            whole[ends[kind]].discard(k)
        most = {value: max(most[value], len(layers)) for value, layers in whole.items()}
    return most


def _schedule(case: StepCase, todo: list[tuple[str, int]], right: Schedule) -> Schedule:
    """Return the list as a schedule in which all devices do the same; raise ScheduleError."""
    given = {(task.node, task.name, task.of): task._replace(frees=()) for task in right.tasks}
    letters = {"forward": "F", "backward": "B", "update": "U"}
    acts = []
    for kind, k in todo:
        if kind == "gather":
            acts.append(Collective(all_gather(case.devices), f"w{k}"))
        elif kind == "reduce":
            acts.append(Collective(reduce_scatter(case.devices), f"g{k}", frees=True))
        elif kind == "free":
            acts += [Task(node, "free", f"{k}", None, (f"w{k}",), (), (f"w{k}",)) for node in case.devices]
        else:
            acts += [given[node, letters[kind], f"{k}"] for node in case.devices]
    return Schedule(case.devices, right.values, acts, right.holds, right.wants)


def _entry(case: StepCase, todo: list[tuple[str, int]], act: int) -> int:
    """Return the number of the entry, from 1, that an act of the schedule comes from."""
    number = 0
    while act > 0:
        act -= 1 if todo[number][0] in ("gather", "reduce") else len(case.devices)
        number += 1
    return number


def _refused(before: list[tuple[str, int]], kind: str, k: int) -> str:
    """Return the mistake behind an entry that comes too early, with those before it."""
    freed = kind == "backward" and before.count(("free", k)) >= before.count(("gather", k)) > 0
    return "no-second-gather" if freed else "order"


CASES = tuple(
    StepCase(devices, layers)
    for devices, layers in (
        (("gpu0", "gpu1", "gpu2", "gpu3"), (1000, 1000, 1000, 1000, 1000, 1000)),
        (("a", "b"), (300, 40, 700)),
        (("x", "y", "z"), (50, 51)),
        (("r7", "r3", "r5", "r1", "r9"), (11, 500, 23, 8, 104, 60, 3)),
        (("p", "q"), (64,)),
    )
)

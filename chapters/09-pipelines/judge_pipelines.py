"""Judge tables of pipelines: complete, without a wait that never ends, in the fewest slots, with little saved."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from d2lps.notebook.grading import call, failure
from d2lps.schedule import Schedule, ScheduleError, pipeline


class Cell(NamedTuple):
    """A task of a table."""

    kind: str
    micro: int
    stage: int


@dataclass(frozen=True)
class TableCase:
    """A pipeline of ``devices`` devices and ``micro`` micro-batches; ``chunks`` is None for one stage per device."""

    devices: int
    micro: int
    chunks: int | None = None

    @property
    def label(self) -> str:
        return f"p = {self.devices}, m = {self.micro}" + (f", v = {self.chunks}" if self.chunks else "")

    @property
    def stages(self) -> int:
        return self.devices * (self.chunks or 1)

    @property
    def slots(self) -> int:
        """The fewest slots: all work of a device, and the ramp before and after it."""
        return 2 * ((self.chunks or 1) * self.micro + self.devices - 1)

    def saved(self, device: int) -> int:
        """Return how many activations a device needs to save at a time."""
        if self.chunks is None:
            return min(self.micro, self.devices - device)
        return min(self.chunks * self.micro, self.devices * (self.chunks + 1) - 1)

    def show(self, cell: Cell) -> str:
        return repr(tuple(cell)[: 2 if self.chunks is None else 3])


def judge(case: TableCase, answer: Callable) -> dict[str, str]:
    """Return the values that fill the sentence for a right answer. Raises Failure."""
    given = (case.devices, case.micro) if case.chunks is None else (case.devices, case.micro, case.chunks)
    table = _table(case, call(case, answer, *given))
    _require_all(case, table)
    for device, row in table.items():
        for at, cell in enumerate(row):
            if cell.kind == "B" and (forward := cell._replace(kind="F")) not in row[:at]:
                values = {"cell": case.show(cell), "other": case.show(forward)}
                raise failure("backward-first", "backward-before", case, device=device, **values)
    try:
        schedule = pipeline(table)
    except ScheduleError as error:
        raise failure(_why_it_waits(case, table), "refused", case, error=str(error)) from None
    for device, row in table.items():
        for stage in {cell.stage for cell in row}:
            order = [cell.micro for cell in row if cell.kind == "B" and cell.stage == stage]
            if order != sorted(order):
                raise failure("differs", "backward-order", case, device=device, order=", ".join(map(str, order)))
    _require_small(case, table, schedule)
    slots = len(schedule.slots())
    bubble, best = (f"{1 - 2 * case.micro * (case.chunks or 1) / number:.1%}" for number in (slots, case.slots))
    if slots > case.slots:
        mistake = _why_it_is_late(case, table)
        raise failure(mistake, "many-slots", case, got=slots, enough=case.slots, bubble=bubble, best=best)
    plain = (case.devices - 1) / (case.micro + case.devices - 1)
    return {
        "slots": str(slots),
        "bubble": bubble,
        "plain": f"{plain:.1%}",
        "peaks": ", ".join(str(schedule.peak[node]) for node in schedule.nodes),
        "all": str(case.micro * (case.chunks or 1)),
    }


def _table(case: TableCase, result: object) -> dict[int, list[Cell]]:
    if not isinstance(result, Mapping):
        raise failure("wrong-type", "not-a-table", case, type=type(result).__name__)
    if all(isinstance(row, Sequence) and not len(row) for row in result.values()):
        raise failure("todo", "no-cells", case)
    if set(result) != {*range(case.devices)}:
        keys = ", ".join(repr(key) for key in list(result)[:8])
        raise failure("differs", "table-keys", case, keys=keys, last=case.devices - 1)
    table: dict[int, list[Cell]] = {}
    for device in range(case.devices):
        row = result[device]
        if not isinstance(row, Sequence) or isinstance(row, str):
            raise failure("wrong-type", "not-a-row", case, device=device, type=type(row).__name__)
        table[device] = [_cell(case, device, cell) for cell in row]
    return table


def _cell(case: TableCase, device: int, cell: object) -> Cell:
    try:
        kind, micro, *stage = cell
        if kind not in ("F", "B") or len(stage) != (case.chunks is not None):
            raise ValueError
        read = Cell(kind, operator.index(micro), operator.index(stage[0]) if stage else device)
    except Exception:
        sample = '("F", 0)' if case.chunks is None else '("F", 0, 0)'
        raise failure("wrong-type", "cell-strange", case, device=device, cell=repr(cell)[:40], sample=sample) from None
    if not 0 <= read.micro < case.micro or not 0 <= read.stage < case.stages:
        values = {"cell": case.show(read), "last": case.micro - 1, "stage": case.stages - 1}
        raise failure("differs", "cell-unknown", case, device=device, **values)
    return read


def _require_all(case: TableCase, table: Mapping[int, list[Cell]]) -> None:
    homes: dict[int, int] = {}
    for device, row in table.items():
        for cell in row:
            other = homes.setdefault(cell.stage, device)
            if other != device:
                raise failure("differs", "stage-twice", case, stage=cell.stage, one=other, other=device)
            if row.count(cell) > 1:
                raise failure("differs", "cell-again", case, device=device, cell=case.show(cell))
    for stage in range(case.stages):
        if stage not in homes:
            raise failure("missing", "stage-missing", case, stage=stage)
        for micro in range(case.micro):
            for kind in "FB":
                if (cell := Cell(kind, micro, stage)) not in table[homes[stage]]:
                    raise failure("missing", "cell-never", case, device=homes[stage], cell=case.show(cell))
    for device, row in table.items():
        own = sorted({cell.stage for cell in row})
        if case.chunks is not None and len(own) != case.chunks:
            values = {"stages": ", ".join(map(str, own)), "chunks": case.chunks}
            raise failure("differs", "stages-of", case, device=device, **values)


def _require_small(case: TableCase, table: Mapping[int, list[Cell]], schedule: Schedule) -> None:
    for device, node in enumerate(schedule.nodes):
        if (peak := schedule.peak[node]) > case.saved(device):
            kinds = ["".join(cell.kind for cell in row) for row in table.values()]
            mistake = "all-forwards" if all("BF" not in row for row in kinds) else "saves-more"
            raise failure(mistake, "saves", case, device=device, got=peak, enough=case.saved(device))


def _why_it_waits(case: TableCase, table: Mapping[int, list[Cell]]) -> str:
    """Return the name of what makes devices wait for each other."""
    if _has_neighbours(case, table):
        return "neighbours"
    for row in table.values():
        first = next(cell for cell in row if cell.kind == "B")
        if first.stage < max(cell.stage for cell in row):
            return "chunks-forward"
    return "waits"


def _why_it_is_late(case: TableCase, table: Mapping[int, list[Cell]]) -> str:
    if case.chunks is not None:
        return "neighbours" if _has_neighbours(case, table) else "late-chunks"
    starts = [next(at for at, cell in enumerate(row) if cell.kind == "B") for row in table.values()]
    return "short-warm-up" if any(start < case.saved(device) for device, start in enumerate(starts)) else "differs"


def _has_neighbours(case: TableCase, table: Mapping[int, list[Cell]]) -> bool:
    """Return whether a device has stages that follow one another, so that it still begins late."""
    owns = [{cell.stage for cell in row} for row in table.values()]
    return case.devices > 1 and any(stage + 1 in own for own in owns for stage in own)

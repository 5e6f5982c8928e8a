"""Read pipeline schedules that other programs print: torch's grid of steps and ranks, and torchtitan's CSV files.

>>> table = from_torch('''
...         Rank 0 Rank 1
... Step 0: 0F0
... Step 1:        1F0
... Step 2:        1B0
... Step 3: 0B0
... ''')
>>> table
{0: [('F', 0, 0), ('B', 0, 0)], 1: [('F', 0, 1), ('B', 0, 1)]}
"""

import csv
import io
import re

from d2lps.schedule.acts import ScheduleError
from d2lps.schedule.pipelines import Table

OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B$")
CELL = re.compile(r"(\d+)([FBIW])(\d+)$")  # stage, kind, micro-batch
# What torch adds to a schedule when it is lowered: messages, and what sharded weights need. Here they follow by rule.
ADDED = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*$")


def from_torch(text: str, timed: bool = False) -> Table:
    """Read the grid that ``torch.distributed.pipelining`` prints: a row per step, a column per rank.

    Args:
        text: What was printed, header included.
        timed: Whether the steps are slots of time: then a task that stands in the same row as the one it waits for, or
            above it, is refused.

    Returns:
        (dict of int to list of (str, int, int)): Rank → kind, micro-batch and stage of its tasks, for
            :func:`~d2lps.schedule.pipeline`.

    Raises:
        ScheduleError: If this is not such a grid, or a step cannot be done at its time.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [match.start() for match in re.finditer(r"Rank \d+", lines[0])] if lines else []
    if not starts or any(not line.lstrip().startswith("Step ") for line in lines[1:]):
        raise ScheduleError("not-a-grid", line=repr(lines[0][:60] if lines else ""))
    grid = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines[1:]]
    return _table([[row[rank] for row in grid] for rank in range(len(starts))], timed)


def from_csv(text: str, timed: bool = False) -> Table:
    """Read a schedule as torchtitan's CSV files have it: a row per rank, a cell per step.

    Args:
        text, timed: The content of the file; as for :func:`from_torch`.

    Returns:
        (dict of int to list of (str, int, int)): Rank → kind, micro-batch and stage of its tasks.

    Raises:
        ScheduleError: If a cell is not a task, or a step cannot be done at its time.
    """
    return _table([[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row], timed)


def _table(ranks: list[list[str]], timed: bool) -> Table:
    table: Table = {}
    slots: dict[tuple[str, int, int], int] = {}
    for rank, cells in enumerate(ranks):
        table[rank] = []
        for slot, cell in enumerate(cells):
            if cell in ("", "None") or ADDED.match(cell):
                continue
            overlap = OVERLAP.match(cell)  # a forward and a backward pass of which one machine does the first first
            for single in overlap[1].split(";") if overlap else [cell]:
                match = CELL.match(single.strip())
                if not match:
                    raise ScheduleError("not-a-cell", rank=rank, slot=slot, cell=repr(cell))
                task = match[2], int(match[3]), int(match[1])
                table[rank].append(task)
                slots[task] = slot
    if not any(table.values()):
        raise ScheduleError("not-a-grid", line="''")
    if timed:
        _require_in_time(slots)
    return table


def _require_in_time(slots: dict[tuple[str, int, int], int]) -> None:
    """Raise ScheduleError at the first task that stands no later than the one whose result it reads."""
    last = max(stage for _, _, stage in slots)
    for (kind, i, stage), slot in sorted(slots.items(), key=lambda item: item[1]):
        if kind == "F":
            before = [("F", i, stage - 1)] if stage else []
        elif kind == "W":
            before = [("I", i, stage)]
        else:
            before = [("F", i, stage)] if stage == last else [("B", i, stage + 1), ("I", i, stage + 1)]
        for other in before:
            if slots.get(other, -1) >= slot:
                waits = f"{kind}{stage}.{i}", f"{other[0]}{other[2]}.{other[1]}"
                raise ScheduleError("too-early", slot=slot, cell=waits[0], other=waits[1], later=slots[other])

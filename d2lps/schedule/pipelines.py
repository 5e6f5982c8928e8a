"""Pipeline schedules: a table of what every device does, micro-batch by micro-batch, and the schedule made of it.

>>> from d2lps.schedule import one_f_one_b, pipeline
>>> print(pipeline(one_f_one_b(stages=2, micro=3)))
slot   0  1  2  3  4  5  6  7
gpu0   F0 F1    B0 F2 B1    B2
gpu1      F0 B0 F1 B1 F2 B2

A cell is (kind, micro-batch), or (kind, micro-batch, stage) if a device has several stages. F is a forward pass, B a
backward pass; zero-bubble schedules cut B into I, the gradient of the input, which the stage before waits for, and W,
the gradient of the weights, which no device waits for.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from d2lps.plan.acts import Send
from d2lps.schedule.acts import Act, ScheduleError, Task, Value
from d2lps.schedule.schedule import Schedule, merge
from d2lps.units import is_count

Cell = tuple  # (kind, micro-batch) or (kind, micro-batch, stage)
Table = dict[int, list[Cell]]
WORK: "dict[str | tuple[str, int], float]" = {"F": 1, "B": 1, "I": 1, "W": 1}  # one slot each
SAVED = 1  # bytes that a stage saves per micro-batch, if sizes do not matter


def gpipe(stages: int, micro: int) -> Table:
    """All forward passes, then all backward passes: each device saves the activations of ``micro`` micro-batches.

    The bubble is (p−1)/(m+p−1) of the total time for any times of F and B, with p stages and m micro-batches.

    Args:
        stages, micro: How many devices in a row, one stage each; how many micro-batches.

    Returns:
        (dict of int to list of (str, int)): Stage → its tasks in order.

    Raises:
        ScheduleError: If one of them is not a whole number of 1 or more.

    Example:
        >>> gpipe(2, 2)
        {0: [('F', 0), ('F', 1), ('B', 0), ('B', 1)], 1: [('F', 0), ('F', 1), ('B', 0), ('B', 1)]}

    Source: Huang et al., "GPipe", NeurIPS 2019. All gradients of a stage are added in the order of the micro-batches.
    """
    _require(stages=stages, micro=micro)
    row = [(kind, i) for kind in "FB" for i in range(micro)]
    return {stage: list(row) for stage in range(stages)}


def one_f_one_b(stages: int, micro: int) -> Table:
    """Forward and backward passes in turn, as soon as the first gradient can be there.

    Stage i begins with min(m, p−i) forward passes, and never saves more micro-batches than these. The bubble is that
    of :func:`gpipe`.

    Args:
        stages, micro: As for :func:`gpipe`.

    Returns:
        (dict of int to list of (str, int)): Stage → its tasks in order.

    Example:
        >>> one_f_one_b(2, 3)[0]
        [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]

    Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training" (PipeDream-Flush), ICML 2021.
    """
    _require(stages=stages, micro=micro)
    table: Table = {}
    for stage in range(stages):
        ahead = min(micro, stages - stage)
        row = [("F", i) for i in range(ahead)]
        for i in range(micro):
            row.append(("B", i))
            if ahead + i < micro:
                row.append(("F", ahead + i))
        table[stage] = row
    return table


def interleaved(devices: int, micro: int, chunks: int) -> Table:
    """1F1B with several stages per device: device i has the stages i, i+p, i+2p, …

    Micro-batches go through the chunks in groups of p, so that a device begins sooner. With v chunks the bubble is
    (p−1)/(vm+p−1) of the total time for m ≥ p. For m < p it is more: the total is vp+m−1 forward and backward passes
    of a stage, of which a device does vm. A device passes on v times as many activations.

    Device i begins with 2(p−i−1) + (v−1)p + 1 forward passes, as in Megatron-LM; so device 0 saves up to p + (p−1)/v
    micro-batches. With p−i−1 in place of 2(p−i−1) it would save p, and the bubble would be the same if messages took no
    time. The longer warm-up gives messages time to travel.

    Args:
        devices, micro, chunks: p, m and v. If m is not a multiple of p, groups are m/⌊m/p⌋ micro-batches, which has to
            be a whole number.

    Returns:
        (dict of int to list of (str, int, int)): Device → its tasks in order: kind, micro-batch, stage.

    Raises:
        ScheduleError: For counts below 1, and for micro-batches that cannot be grouped.

    Example:
        >>> interleaved(2, 2, 2)[0][:5]
        [('F', 0, 0), ('F', 1, 0), ('F', 0, 2), ('F', 1, 2), ('B', 0, 2)]

    Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021, section 2.2.
    """
    _require(devices=devices, micro=micro, chunks=chunks)
    groups = max(1, micro // devices)
    if micro % groups:
        raise ScheduleError("uneven-groups", micro=micro, devices=devices)
    size = micro // groups

    def cell(kind: str, k: int, device: int) -> Cell:
        chunk = k // size % chunks
        chunk = chunks - 1 - chunk if kind == "B" else chunk
        return kind, k // (size * chunks) * size + k % size, chunk * devices + device

    table: Table = {}
    for device in range(devices):
        total = micro * chunks
        ahead = min(total, 2 * (devices - device - 1) + (chunks - 1) * size + 1)
        row = [cell("F", k, device) for k in range(ahead)]
        for k in range(total):
            row.append(cell("B", k, device))
            if ahead + k < total:
                row.append(cell("F", ahead + k, device))
        table[device] = row
    return table


def zero_bubble(stages: int, micro: int) -> Table:
    """ZB-H1: 1F1B whose backward passes are cut in two, so that gradients of weights fill the bubble.

    Stage i puts off i gradients of weights. For m ≥ p a device idles for (p−1)·max(F, I, F+I−W), instead of
    (p−1)(F+I+W): this is (p−1)(F+I−W) if W is at most F and I. For m < p too little is put off, and it idles longer.
    Every device saves p micro-batches at most.

    Args:
        stages, micro: As for :func:`gpipe`.

    Returns:
        (dict of int to list of (str, int)): Stage → its tasks in order.

    Example:
        >>> zero_bubble(2, 2)[1]
        [('F', 0), ('I', 0), ('F', 1), ('I', 1), ('W', 0), ('W', 1)]

    Source: Qi et al., "Zero bubble pipeline parallelism", 2024 (arXiv 2401.10241), section 2.
    """
    _require(stages=stages, micro=micro)
    table: Table = {}
    for stage in range(stages):
        ahead, put_off = min(micro, stages - stage), 0
        row = [("F", i) for i in range(ahead)]
        for i in range(micro):
            row.append(("I", i))
            if i >= stage:
                row.append(("W", put_off))
                put_off += 1
            if ahead + i < micro:
                row.append(("F", ahead + i))
        table[stage] = row + [("W", i) for i in range(put_off, micro)]
    return table


def pipeline(
    table: Mapping[int, Sequence[Cell]],
    work: "Mapping[str | tuple[str, int], float]" = WORK,
    saved: "int | Fraction | Sequence[int | Fraction]" = SAVED,
    boundary: int = 0,
    memory: Mapping[str, int] | None = None,
    weights: int = 0,
) -> Schedule:
    """Make a schedule of a table: forward passes send activations on, backward passes send gradients back.

    Args:
        table: Device → its cells: kind, micro-batch and, if a device has several stages, the stage.
        work: FLOPs (or seconds) of each kind of task; a key (kind, stage) is for one stage alone.
        saved: Bytes that a stage saves between forward and backward pass of a micro-batch; a list has one entry per
            stage.
        boundary: Bytes of an activation between two stages, and of its gradient.
        memory: Limits, as for :class:`Schedule`; devices are called ``gpu0``, ``gpu1``, …
        weights: Bytes of the gradients of a stage, which stay.

    Returns:
        Which is checked: every stage adds up the gradients of all micro-batches, once each.

    Raises:
        ScheduleError: If the table cannot be done: the sentence names who waits for what, or what is there twice or
            never.
    """
    cells = {device: [_cell(cell, device) for cell in row] for device, row in table.items()}
    home = {stage: f"gpu{device}" for device, row in cells.items() for _, _, stage in row}
    batches = sorted({i for row in cells.values() for _, i, _ in row})
    last = max(home, default=-1)
    if sorted(home) != list(range(last + 1)) or not batches:
        raise ScheduleError("stages", stages=" ".join(map(str, sorted(home))))
    _require_once(cells, home, batches)
    sizes = list(saved) if isinstance(saved, Sequence) else [saved] * (last + 1)
    if len(sizes) != last + 1:
        raise ScheduleError("sizes", given=len(sizes), stages=last + 1)
    values = {}
    for stage in home:
        values[f"g{stage}"] = Value(weights, tuple(batches))
        for i in batches:
            values[f"s{stage}.{i}"] = Value(sizes[stage])
            values[f"x{stage}.{i}"] = values[f"d{stage}.{i}"] = Value(boundary)
    values |= {f"x{last + 1}.{i}": Value() for i in batches}
    columns: dict[str, list[Act]] = {f"gpu{device}": [] for device in cells}
    for device, row in cells.items():
        for kind, i, stage in row:
            seconds = work[(kind, stage) if (kind, stage) in work else kind]
            columns[f"gpu{device}"] += _acts(kind, i, stage, home, last, seconds)
    holds = [(home[0], f"x0.{i}") for i in batches]
    wants = [(home[stage], f"g{stage}") for stage in sorted(home)]
    return merge(columns, values, holds, wants, memory)


def _acts(kind: str, i: int, stage: int, home: Mapping[int, str], last: int, work: float) -> list[Act]:
    """Return the task of a cell, and the message that takes its result to another device."""
    node, saved, arrives = home[stage], f"s{stage}.{i}", f"d{stage + 1}.{i}" if stage < last else f"x{last + 1}.{i}"
    if kind == "F":
        read = (f"x{stage}.{i}",)
        task = Task(node, "F", str(stage), i, read, (saved, f"x{stage + 1}.{i}"), read, work)
        sent, other = f"x{stage + 1}.{i}", home.get(stage + 1, node)
    else:
        below = kind == "I" if stage == 0 else kind != "W"  # W of stage 0 reads d0, and so cannot come before I
        makes = (*([f"d{stage}.{i}"] if below else []), *([(f"g{stage}", i)] if kind != "I" else []))
        reads = (saved, arrives, *((f"d0.{i}",) if kind == "W" and stage == 0 else ()))
        task = Task(node, kind, str(stage), i, reads, makes, () if kind == "I" else reads, work)
        sent, other = f"d{stage}.{i}", home.get(stage - 1, node)
    sends = kind != "W" and other != node
    return [task, Send(node, other, sent, "move")] if sends else [task]


def _cell(cell: Cell, device: int) -> tuple[str, int, int]:
    """Return (kind, micro-batch, stage) of a cell."""
    kind, i, stage = cell if len(cell) == 3 else (*cell, device)
    if kind not in WORK or not is_count(i) or not is_count(stage):
        raise ScheduleError("cell", cell=repr(cell))
    return kind, i, stage


def _require_once(cells: Mapping, home: Mapping[int, str], batches: Sequence[int]) -> None:
    """Raise ScheduleError unless each stage has one forward and one backward pass of each micro-batch."""
    count: dict[tuple, int] = {}
    for device, row in cells.items():
        for kind, i, stage in row:
            if home[stage] != f"gpu{device}":
                raise ScheduleError("two-homes", stage=stage, nodes=f"{home[stage]} gpu{device}")
            count[kind, stage, i] = count.get((kind, stage, i), 0) + 1
    for kind, stage, i in count:
        if kind != "F" and ("F", stage, i) not in count:
            raise ScheduleError("backward-alone", node=home[stage], cell=f"{kind}{stage}.{i}", missing=f"F{stage}.{i}")
    for stage in home:
        for i in batches:
            names = "FIW" if ("I", stage, i) in count or ("W", stage, i) in count else "FB"
            for kind in names + ("B" if "B" not in names else ""):
                if (times := count.get((kind, stage, i), 0)) != (kind in names):
                    reason = "cell-missing" if not times else "cell-twice"
                    raise ScheduleError(reason, node=home[stage], cell=f"{kind}{stage}.{i}")


def _require(**counts: object) -> None:
    for name, value in counts.items():
        if not is_count(value, least=1):
            raise ScheduleError("count", name=name, value=repr(value))


# The schedules by the names that d2lps.edit offers. A new one also needs its rows in notebook/schedule_table.js and its
# name under [edit] in messages/; tests/notebook/test_schedule_table.py fails until it has them.
SCHEDULES: dict[str, Callable[..., Table]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
}

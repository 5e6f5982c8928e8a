"""The planner beside published runs: no measurement of this machine, but of its predictions.

P30  published and predicted speed of every run, by source: its error, and whether the interval that the other sources
     give holds it; the place of the layouts that authors ran in the list of ``parallelize``; and how many of these are
     refused with ``--like megatron``. With ``--quick``: a line per source, and a tenth of the list.

A layout is found if its t, p, c, e and d are: v, b, ZeRO stage and recomputation are chosen anew, among those that the
framework of the source had. There are two counts. ``row`` is the row of the list as printed, where the chosen shape
stands first and the others follow by time. ``place`` is one more than the number of shapes that are predicted faster by
more than the model can tell (``spread.near``), so equal ones share a place.

What stands in the way of the others:

* 7.5b, 18.4b, 39.1b (Megatron-LM 2021): the authors chose degrees by a rule (SC 2021, section 5.1): tensor
  parallelism up to 8 first. With interleaved stages, less of it is predicted 7 to 14% faster; they have not tried that.
* llama3-405b on 8192 GPUs: v is not published. The ledger allows v = 1 only, whose bubble is 31%; with the v = 8 that
  the published speed tells, it counts 83 GB, so Meta saved less than separate operators do.
* llama3-70b, h100 (Megatron-Bridge): the seventh of 30 shapes, none of which is more than 7% faster.
* Experts: an all-to-all between nodes is charged for each expert that a token takes, although several may be in one
  node; and on B200, where experts stay in a node, speed is predicted twice too high. So other terms are missing, too.
"""

import math
from itertools import groupby
from operator import attrgetter
from statistics import median

from benchmarks.common import Run
from d2lps import parallelize
from d2lps.scaling import RUNS, Published, kept
from d2lps.scaling.interval import Tried, tried
from d2lps.scaling.layout import check
from d2lps.scaling.prediction import HABITS

CONDITIONS = {"dense, 16 bits": (False, False), "dense, 8 bits": (False, True), "experts": (True, False)}
_shape = attrgetter("tensor", "pipeline", "context", "expert", "data")
TUNED = ("Megatron-LM 2021", "Llama 3", "NeMo", "Megatron-Bridge")  # whose authors chose the layout for its speed
FIRST, FAR = 3, 0.25
MEGATRON = {"like": "megatron"}
# In 2021 Megatron-LM had no distributed optimizer (ZeRO-1), recomputed whole layers, and had neither sequence
# parallelism (Korthikanti et al., 2022) nor messages of stages behind computing.
OFFERED = {"Megatron-LM 2021": {"stage": 0, "recompute": "full", "sequence": False, "room": HABITS["megatron"].room}}


def p30(run: Run) -> None:
    """Print errors and intervals by source and condition, then the places of tuned layouts."""
    for condition, which in CONDITIONS.items():
        found = tried(*which)
        print(f"\n{condition}")
        for source, several in groupby(found, key=lambda each: each.run.source):
            of_source = [*several]
            _line(source, of_source)
            if not run.quick:
                for each in of_source:
                    _run(each)
        figures = _line("in all, out of sample", found)
        run.note(f"P30 {condition}", **figures)
    sharded = [each for each in tried() if each.run.layout.stage > 1]
    near = sum(abs(each.error) <= FAR for each in sharded)
    print(f"\nFSDP (ZeRO-2 and ZeRO-3, 16 bits): {near} of {len(sharded)} within {FAR:.0%}")
    _places(run)
    run.note("P30 FSDP", within=near, runs=len(sharded))


def _line(name: str, found: "list[Tried] | tuple[Tried, ...]") -> dict[str, float]:
    errors = [each.error for each in found]
    off, inside = median(map(abs, errors)), sum(each.inside for each in found)
    ends = f"{min(errors):+.0%} … {max(errors):+.0%}"
    print(f"{name:22} {len(found):4} runs   median error {off:6.1%}   {ends:14}   inside {inside} of {len(found)}")
    return {"runs": len(found), "median error": off, "inside": inside}


def _run(each: Tried) -> None:
    published, predicted = each.run.flops / 1e12, each.run.flops * (1 + each.error) / 1e12
    mark = "inside" if each.inside else "OUTSIDE"
    print(f"  {each.run.name[:70]:70} {published:6.0f} {predicted:6.0f} TFLOP/s {each.error:+7.1%}  {mark}")


def _places(run: Run) -> None:
    """Print the place of each tuned layout among the shapes that ``parallelize`` lists, and those that are refused."""
    habits = HABITS["megatron"]
    several = [each for each in RUNS if each.source in TUNED]
    best: dict[tuple, Published] = {}
    for each in several:
        best.setdefault((each.source, each.name if each.source != TUNED[-1] else each.model, each.gpu), each)
    asked = [*best.values()][:: 10 if run.quick else 1]
    first = equal = shown = refused = 0
    print()
    for each in asked:
        layout = each.layout._replace(fused_swiglu=habits.fused_swiglu, freed=habits.freed)
        check(each.model, layout)
        size, room = sum(kept(each.model, layout, each.precision).values()), habits.room * each.gpu.memory
        batch, precision = layout.sequences, each.precision
        more = {"batch": batch, "gpu": each.gpu, "precision": precision} | OFFERED.get(each.source, MEGATRON)
        choice = parallelize(each.model, layout.gpus, **more)
        own, *shapes = map(_shape, (layout, *(other for other, _, _ in choice.ranked)))
        row, place = shapes.index(own) + 1 if own in shapes else 0, choice.place(layout)
        slower = choice.times.get(own, math.inf) / min(choice.times.values()) - 1
        first, shown, refused = first + (0 < row <= FIRST), shown + (row > 0), refused + (size > room)
        equal += 0 < place <= FIRST
        where = f"row {row or '> 5':3}   place {place or 'none':2}   {slower:+4.0%}"
        print(f"  {each.name[:60]:60} {where}   {size / 1e9:5.1f} of {room / 1e9:.1f} GB")
    counts = f"{first} of {len(asked)} in the first {FIRST} rows, {equal} in the first {FIRST} places"
    print(f"layouts that ran: {counts}, {shown} in the list, {refused} refused")
    run.note("P30 places", first=first, places=equal, shown=shown, refused=refused, layouts=len(asked))

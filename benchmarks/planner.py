"""The planner beside published runs: no measurement of this machine, but of its predictions.

P30  published and predicted speed of every run, by source: its error, and whether the interval that the other sources
     give holds it; the place of the layouts that authors tuned in the list of ``parallelize``; and how many of these
     are refused with ``--like megatron``. With ``--quick``: a line per source, and a tenth of the list.
"""

from itertools import groupby
from statistics import median

from benchmarks.common import Run
from d2lps import parallelize
from d2lps.scaling import RUNS, Published, kept
from d2lps.scaling.interval import Tried, tried
from d2lps.scaling.layout import check
from d2lps.scaling.prediction import HABITS

CONDITIONS = {"dense, 16 bits": (False, False), "dense, 8 bits": (False, True), "experts": (True, False)}
TUNED = ("Megatron-LM 2021", "Llama 3", "NeMo", "Megatron-Bridge")  # whose authors chose the layout for its speed
FIRST, FAR = 3, 0.25


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
    first = shown = refused = 0
    print()
    for each in asked:
        layout = each.layout._replace(fused_swiglu=habits.fused_swiglu, freed=habits.freed)
        check(each.model, layout)
        size, room = sum(kept(each.model, layout, each.precision).values()), habits.room * each.gpu.memory
        batch, precision = layout.sequences, each.precision
        choice = parallelize(each.model, layout.gpus, batch=batch, gpu=each.gpu, precision=precision, like="megatron")
        shapes = [other[:3] + (other.context, other.expert) for other, _, _ in choice.ranked]
        own = layout[:3] + (layout.context, layout.expert)
        place = shapes.index(own) + 1 if own in shapes else 0
        first, shown, refused = first + (0 < place <= FIRST), shown + (place > 0), refused + (size > room)
        print(f"  {each.name[:60]:60} place {place or '> 5'}   {size / 1e9:5.1f} of {room / 1e9:.1f} GB")
    print(f"tuned layouts: {first} of {len(asked)} in the first {FIRST}, {shown} in the list, {refused} refused")
    run.note("P30 places", first=first, shown=shown, refused=refused, layouts=len(asked))

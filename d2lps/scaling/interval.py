"""How far predictions are off: the interval of a prediction, and how often it held for runs of other sources."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from math import exp, log1p
from typing import NamedTuple

from d2lps.scaling.gpu import Gpu
from d2lps.scaling.layout import NARROW
from d2lps.scaling.runs import MLSYS23, RUNS, SC21, Published
from d2lps.scaling.speed import calibrate, error
from d2lps.scaling.transformer import Transformer

MOST = 0.9  # of the published runs, each source counting alike, are predicted within the interval
# Layouts of one model err alike: those whose times differ by less than the third root of the ratio by which predictions
# are off count as equal, and the simplest is chosen. The tests compare the published pairs of runs of one model.
ALIKE = 1 / 3


class Spread(NamedTuple):
    """By what ratio a prediction may be off, and where this comes from. Made by :func:`spread`.

    Args:
        far: The ratio, 1 or more.
        near: The ratio by which predictions of two layouts of one model may differ in error.
        same: Whether some of the runs had such GPUs.
        runs, sources: How many runs and sources were compared.
        held: For how many of these runs the interval held that other sources than their own give.
        least, most: The errors of speed of these runs, as shares.
    """

    far: float
    near: float
    same: bool
    runs: int
    sources: int
    held: int
    least: float
    most: float


class Tried(NamedTuple):
    """A published run beside the prediction and the interval that its own source had no part in.

    Args:
        run: The run.
        error: Predicted ÷ published speed − 1; of several possible layouts, that of the fastest.
        far: The ratio by which predictions may be off, from runs of other sources.
    """

    run: Published
    error: float
    far: float

    @property
    def inside(self) -> bool:
        """Whether the published speed lies in the interval."""
        return 1 / self.far <= 1 + self.error <= self.far


def spread(model: Transformer, gpu: Gpu, precision: str = "mixed") -> Spread:
    """Return by what ratio a prediction may be off.

    Compared are the published runs of dense models in 16 bits, or in 8; or those of models with experts. Where a layout
    is not published, the fastest counts, since authors publish one that they have tuned.

    Args:
        model, gpu, precision: As for :func:`~d2lps.scaling.step`.

    Returns:
        The ratio, and the runs that it comes from.
    """
    return _spread(bool(model.experts), precision in NARROW, gpu.peak)


@cache
def _spread(experts: bool, narrow: bool, peak: float) -> Spread:
    runs = like(experts, narrow)
    errors = [error(run)[1] for run in runs]
    return Spread(
        _width(runs),
        _width(like(False, narrow)) ** ALIKE,
        any(run.gpu.peak == peak for run in runs),
        len(runs),
        len({run.source for run in runs}),
        sum(each.inside for each in tried(experts, narrow)),
        min(errors),
        max(errors),
    )


@cache
def like(experts: bool = False, narrow: bool = False) -> tuple[Published, ...]:
    """Return the published runs of one condition: with experts, or dense ones in 16 bits or ``narrow``, in 8."""
    found = (run for run in RUNS if bool(run.model.experts) == experts)
    return tuple(run for run in found if experts or (run.precision in NARROW) == narrow)


@cache
def tried(experts: bool = False, narrow: bool = False) -> tuple[Tried, ...]:
    """Return each run of one condition with the interval that the other sources give: how good it is out of sample.

    Args:
        experts, narrow: Whether runs with experts, or dense ones in 8 bits, are meant; dense ones in 16 if neither is.

    Returns:
        Source by source.
    """
    return (*_tried(like(experts, narrow)),)


def _tried(runs: tuple[Published, ...]) -> Iterator[Tried]:
    for source in dict.fromkeys(run.source for run in runs):
        # Without the source of the constant, another one calibrates it.
        share = calibrate(run=MLSYS23[0]) if source == SC21[0].source else None
        far = _width(tuple(run for run in runs if run.source != source), share)
        for run in runs:
            if run.source == source:
                yield Tried(run, error(run, share=share)[1], far)


@cache
def _width(runs: tuple[Published, ...], share: float | None = None) -> float:
    """Return the ratio by which predictions of nine tenths of the runs are off at most, each source counting alike."""
    counts = Counter(run.source for run in runs)
    off = sorted((abs(log1p(error(run, share=share)[1])), 1 / counts[run.source]) for run in runs)
    passed = accumulate(weight for _, weight in off)
    return next(
        exp(each) for (each, _), sum_so_far in zip(off, passed, strict=True) if sum_so_far >= MOST * len(counts)
    )

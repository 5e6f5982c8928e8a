"""The predicted step of one layout: its time with an interval, its memory, and what one change would bring."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from d2lps.messages import text
from d2lps.scaling.gpu import GPUS, Gpu
from d2lps.scaling.interval import Spread, spread
from d2lps.scaling.layout import (
    NARROW,
    Layout,
    check,
    flops_per_gpu,
    kept,
    layers_in,
    read,
    require_precision,
    sizes_of,
)
from d2lps.scaling.ledger import Ledger
from d2lps.scaling.ledger import memory as ledger
from d2lps.scaling.models import MODELS, known
from d2lps.scaling.speed import bisect, calibrate, step
from d2lps.scaling.transformer import ScalingError, Transformer, require_count
from d2lps.units import bandwidth, meant_size, show_integer, show_number, show_seconds, show_size
from d2lps.view.tables import Table, table

if TYPE_CHECKING:
    from torch.nn import Module

CAUSES = {
    "matrices": "matrix-work",
    "tensor": "by-matrices",
    "pipeline": "by-stages",
    "data": "by-replicas",
    "bubble": "bubble",
}  # in table
SLOWEST = 0.02  # least share of the fastest product's rate that a measured step may have
STEP_TOKENS = 2**22  # of a step, if no batch is given
SCHEMA = 1  # the version of as_json: it grows when a field is renamed or removed, or has another unit


class Habits(NamedTuple):
    """What a framework does with memory and attention.

    Args:
        room: The share of a GPU's memory that a layout may need; buffers and gaps take the rest.
        fused_swiglu, freed: As for :class:`~d2lps.scaling.Layout`.
        attention: The share of the peak that attention reaches on GPUs with 8-bit products; None for the best kernel.
        overlapped: As for :func:`~d2lps.scaling.step`.
    """

    room: float
    fused_swiglu: bool
    freed: bool
    attention: float | None = None
    overlapped: bool = False

    def speed(self, gpu: Gpu) -> dict[str, Any]:
        """Return the options of :func:`~d2lps.scaling.step` that the framework decides, on such GPUs."""
        return {"attention": self.attention if gpu.fp8 else None, "overlapped": self.overlapped}


# A GPU sold with 80 GB has 80 GiB: 97% of 80 · 10⁹ bytes are 90% of these. Megatron-LM frees results that are sent
# (deallocate_pipeline_outputs) and takes cuDNN's attention; torch.distributed.pipelining keeps results, and torch's
# attention is FlashAttention-2, which reaches 35% of an H100 (Shah et al., arXiv 2407.08608).
HABITS = {"megatron": Habits(0.97, True, True, overlapped=True), "fsdp": Habits(0.97, True, False, 0.35)}
PLAIN = Habits(0.9, False, True)


class Change(NamedTuple):
    """A layout that differs from another in one size: the fields before and after, its seconds and bytes per GPU."""

    name: str
    before: object
    after: object
    layout: Layout
    parts: dict[str, float]
    memory: float

    @property
    def duration(self) -> float:
        """The predicted seconds of a step."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Prediction:
    """The predicted step of a layout. Made by :func:`predict_step`.

    Args:
        model, gpu, layout: The model, the data sheet of the GPUs, and the division of the one over the others.
        parts: The seconds of a step, as :func:`~d2lps.scaling.step` returns them.
        precision, per_node: As for :func:`~d2lps.scaling.step`.
        share: The share of the fastest product's rate that a measured step has; None if none was measured.
        habits: How much of the memory may be used, and what the framework does.
    """

    model: Transformer
    gpu: Gpu
    layout: Layout
    parts: dict[str, float]
    precision: str = "mixed"
    per_node: int = 8
    share: float | None = None
    habits: Habits = PLAIN

    @property
    def duration(self) -> float:
        """The predicted seconds of a step."""
        return sum(self.parts.values())

    @property
    def spread(self) -> Spread:
        """How far published runs were predicted off."""
        return spread(self.model, self.gpu, self.precision)

    @property
    def seconds(self) -> tuple[float, float]:
        """The interval of the seconds of a step: as far off by ratio as published runs, but at most at the peak.

        After a measured step it is as far off as layouts that count as equal.
        """
        far = self.spread.near if self.share else self.spread.far
        peak = self.gpu.fp8 if self.precision in NARROW else self.gpu.peak
        return max(self.duration / far, flops_per_gpu(self.model, self.layout) / peak), self.duration * far

    @property
    def flops(self) -> tuple[float, float]:
        """The interval of FLOP/s per GPU; recomputation does not count."""
        slow, fast = (flops_per_gpu(self.model, self.layout) / seconds for seconds in reversed(self.seconds))
        return slow, fast

    @property
    def memory(self) -> Ledger:
        """The ledger of the fullest GPU."""
        return ledger(self.model, precision=self.precision, **self.layout._asdict())

    @property
    def room(self) -> float:
        """The bytes of a GPU that a layout may need."""
        return self.habits.room * self.gpu.memory

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU needs no more than there is room for."""
        return self.memory.predicted <= self.room

    @property
    def changes(self) -> tuple[Change, ...]:
        """Layouts with one change that fit and are faster, or that fit if this one does not.

        Of each size there is the best value; the fastest comes first.
        """
        found: dict[str, Change] = {}
        for name, before, after, layout in _changed(self):
            nbytes = sum(kept(self.model, layout, self.precision).values())
            if nbytes > self.room:
                continue
            change = Change(name, before, after, layout, self._step(layout), nbytes)
            limit = found[name].duration if name in found else self.duration if self.fits else math.inf
            if change.duration < limit:
                found[name] = change
        return tuple(sorted(found.values(), key=lambda change: change.duration))

    def _step(self, layout: Layout) -> dict[str, float]:
        more: dict[str, Any] = {"per_node": self.per_node, "precision": self.precision}
        return step(self.model, layout, self.gpu, self.share, **more, **self.habits.speed(self.gpu))

    def table(self) -> Table:
        """Return the layout, speed and memory as a table, in the language in force.

        Returns:
            The model, the GPUs and the batch; a line per field of the layout; intervals of the time of a step and of
                the speed; memory kept and there.
        """
        names = "tensor pipeline data context expert chunks micro batches stage recompute".split()
        names = [name for name in names if name != "expert" or self.model.experts]
        fields = self.layout._replace(recompute=text(f"scaling.recompute.{self.layout.recompute}"))
        gpu = gpu_name(self.gpu) or f"{self.gpu.peak / 1e12:.0f} TFLOP/s"
        shown = [
            [text("table.model"), model_name(self.model) or f"{show_number(self.model.parameters / 1e9, 3)} · 10⁹"],
            [text("table.gpus"), f"{show_integer(self.layout.gpus)} × {gpu}"],
            [text("scaling.field.sequences"), f"{self.layout.sequences} × {show_integer(self.model.context)}"],
        ]
        shown += [[text(f"scaling.field.{name}"), str(getattr(fields, name))] for name in names]
        low, high = (show_seconds(seconds) for seconds in self.seconds)
        slow, fast = self.flops
        shown += [
            [text("scaling.seconds"), f"{low} – {high}"],
            [text("scaling.flops"), f"{slow / 1e12:.0f} – {fast / 1e12:.0f} TFLOP/s"],
            [text("scaling.kept"), f"{show_size(self.memory.predicted)} / {show_size(self.gpu.memory)}"],
        ]
        return table("choice", "value", rows=shown)

    def by_cause(self) -> Table:
        """Return the seconds of a step by cause as a table, in the language in force.

        Returns:
            A line per part that takes time, with its share of the step.
        """
        parts = [(text(f"table.{CAUSES.get(name, f'by-{name}')}"), seconds) for name, seconds in self.parts.items()]
        rows = [[name, show_seconds(took), f"{took / self.duration:.0%}"] for name, took in parts if took]
        return table("part-of-step", "per-step", "share-of-step", rows=rows)

    def better(self) -> Table:
        """Return the changes as a table, in the language in force.

        Returns:
            A line per change, with the layout, its predicted time, how much shorter that is, and the memory.
        """
        rows = []
        for change in self.changes:
            what = f"{text(f'scaling.field.{change.name}')}: {change.before} → {change.after}"
            less = f"{change.duration / self.duration - 1:+.0%}"
            rows.append([what, str(change.layout), show_seconds(change.duration), less, show_size(change.memory)])
        return table("one-change", "short-layout", "per-step", "compared", "kept-by-gpu", rows=rows)

    @property
    def doubt(self) -> str:
        """A sentence on the interval: which runs it comes from, and how often it held."""
        far = self.spread
        if self.share:
            peak = self.share * (self.gpu.reached8 if self.precision in NARROW else self.gpu.reached)
            peak /= self.gpu.fp8 if self.precision in NARROW else self.gpu.peak
            return text("scaling.measured", share=f"{peak:.2f}", far=f"{far.near - 1:.1%}")
        kind = "experts" if self.model.experts else "fp8" if self.precision in NARROW else "dense"
        said = far._asdict() | {"least": f"{far.least:+.0%}", "most": f"{far.most:+.0%}", "far": f"{far.far:.2f}"}
        line = text(f"scaling.doubt.{kind}", **said)
        return line if far.same else f"{line} {text('scaling.doubt.other')}"

    @property
    def lines(self) -> list[str]:
        """Whether it fits, what one change would bring, and the doubt."""
        sizes = {"needs": show_size(self.memory.predicted), "room": show_size(self.room)}
        fits = [] if self.fits else [text("scaling.over", **sizes)]
        changes = [] if self.changes else [text("scaling.no-change")]
        near = f"{self.spread.near - 1:.1%}"
        small = [text("scaling.small-change", near=near)] if self.changes else []
        return [*fits, *changes, *small, self.doubt]

    def _tables(self) -> list[Table]:
        return [self.table(), self.by_cause(), *([self.better()] if self.changes else [])]

    def __str__(self) -> str:
        return "\n".join([*(f"{each}\n" for each in self._tables()), *self.lines])

    def _repr_html_(self) -> str:
        tables = "".join(each._repr_html_() for each in self._tables())
        return tables + "".join(f"<p>{escape(line)}</p>" for line in self.lines)

    def as_json(self) -> dict:
        """Return everything that is printed as numbers, for programs; ``parallelize.schema.json`` describes it."""
        low, high = self.seconds
        slow, fast = self.flops
        far = self.spread
        sheet = self.gpu
        reached = (sheet.reached8 / sheet.fp8) if self.precision in NARROW else sheet.reached / sheet.peak
        items = {item.name: item.predicted for item in self.memory.items if item.predicted is not None}
        return {
            "schema": SCHEMA,
            "model": {
                "name": model_name(self.model),
                "parameters": self.model.parameters,
                "tokens_per_sequence": self.model.context,
            },
            "gpu": {
                "name": gpu_name(sheet),
                "peak_flops_per_second": sheet.fp8 if self.precision in NARROW else sheet.peak,
                "memory_bytes": sheet.memory,
                "inside_bytes_per_second": sheet.inside,
                "outside_bytes_per_second": sheet.outside,
            },
            "gpus": self.layout.gpus,
            "gpus_per_node": self.per_node,
            "sequences_per_step": self.layout.sequences,
            "precision": self.precision,
            "share_of_peak": reached * (self.share or calibrate()),
            "measured": self.share is not None,
            "room_bytes": self.room,
            "fits": self.fits,
            "step_seconds": {"predicted": self.duration, "low": low, "high": high},
            "flops_per_second_per_gpu": {"low": slow, "high": fast},
            "memory_bytes": items,
            "interval": far._asdict(),
            "sentences": self.lines,
            "layout": self._row(self.layout, self.parts, self.memory.predicted),
        } | self._more()

    def _more(self) -> dict:
        """Return what is printed of a layout that was asked for."""
        changes = [
            {"field": name, "before": before, "after": after, "layout": self._row(layout, parts, nbytes)}
            for name, before, after, layout, parts, nbytes in self.changes
        ]
        return {"changes": changes}

    def _row(self, layout: Layout, parts: dict[str, float], nbytes: float) -> dict:
        took = {"seconds": sum(parts.values()), "seconds_by_cause": parts, "memory_bytes": nbytes}
        return {"short": str(layout), "sizes": layout._asdict()} | took


def model_name(model: Transformer) -> str | None:
    """Return the name of a known model."""
    return {each: name for name, each in MODELS.items()}.get(model)


def gpu_name(gpu: Gpu) -> str | None:
    """Return the name of a data sheet, of whose GPUs memory and network may differ."""
    memory, outside = gpu.memory, gpu.outside
    return {each._replace(memory=memory, outside=outside): name for name, each in GPUS.items()}.get(gpu)


def asked(
    model: "str | Transformer | Module",
    gpu: "str | Gpu",
    memory: "str | int | None",
    context: int | None,
    network: str | None,
    per_node: int,
    precision: str,
    like: str | None,
    room: float | None,
    fused_swiglu: bool | None,
    freed: bool | None,
) -> tuple[Transformer, Gpu, Habits]:
    """Return the model, the GPUs and the framework that are asked for; raise ScalingError for others."""
    model, sheet = known(model), GPUS.get(gpu, gpu) if isinstance(gpu, str) else gpu
    if not isinstance(sheet, Gpu):
        raise ScalingError(text("scaling.unknown-gpu", gpu=repr(gpu), gpus=", ".join(GPUS)))
    require_count("per_node", per_node)
    if context is not None:
        require_count("context", context)
        model = replace(model, context=context)
    require_precision(precision)
    if precision in NARROW and not sheet.fp8:
        raise ScalingError(text("scaling.no-fp8"))
    if like is not None and like not in HABITS:
        raise ScalingError(text("scaling.like", like=repr(like), known=", ".join(HABITS)))
    if room is not None and not (isinstance(room, int | float) and 0 < room <= 1):
        raise ScalingError(text("scaling.room", room=repr(room)))
    given: dict[str, Any] = {"room": room, "fused_swiglu": fused_swiglu, "freed": freed}
    habits = (HABITS[like] if like else PLAIN)._replace(
        **{name: value for name, value in given.items() if value is not None}
    )
    sheet = sheet._replace(memory=sheet.memory if memory is None else meant_size(memory))
    return model, sheet if network is None else sheet._replace(outside=bandwidth(network)), habits


def whole_batch(model: Transformer, gpus: int, batch: int | None) -> int:
    """Return the sequences of a step, about 4 million tokens if none are given."""
    batch = gpus * max(1, round(STEP_TOKENS / model.context / gpus)) if batch is None else batch
    require_count("batch", batch)
    return batch


def predict_step(
    model: "str | Transformer | Module",
    layout: "str | Layout",
    gpu: "str | Gpu" = "a100",
    batch: int | None = None,
    gpus: int | None = None,
    memory: "str | int | None" = None,
    per_node: int = 8,
    context: int | None = None,
    network: "str | None" = None,
    precision: str = "bf16",
    like: str | None = None,
    room: float | None = None,
    fused_swiglu: bool | None = None,
    freed: bool | None = None,
    measured: float | None = None,
) -> Prediction:
    """Predict a training step of one layout, and what one change of it would bring.

    Args:
        model: A known model such as ``"gpt3"``, a description, or a module that has one, such as our GPT.
        layout: A short form, such as ``"t8.p2.d8.v2.b1.z1.none"``, or a :class:`~d2lps.scaling.Layout`.
        gpu: ``"a100"``, ``"h100"``, another name of ``GPUS``, or another data sheet.
        batch, gpus: Sequences of a step, and GPUs, for a short form: about 4 million tokens if left out, and
            t · p · c · d. A Layout has its own.
        memory, per_node, context, network, precision: As for :func:`~d2lps.parallelize`.
        like: ``"megatron"`` or ``"fsdp"``: what these frameworks do is the default of the next three options.
        room: The share of the memory that may be used; 0.9 if left out, and 0.97 with ``like``.
        fused_swiglu, freed: As for :class:`~d2lps.scaling.Layout`.
        measured: The seconds of a step of this layout, if you have measured it: it calibrates the prediction.

    Returns:
        It has the interval of ``seconds`` and of ``flops``, the ``parts`` of the predicted time, the ledger of
            ``memory``, and ``changes``, the layouts with one change that are faster.

    Raises:
        ScalingError: For an unknown model, GPU or framework, a layout that cannot divide the model or the batch, and a
            measured step that is faster than possible.

    Example:
        >>> ours = predict_step("llama3-70b", "t8.p4.d4.v1.b1.z1.none", "h100", batch=256)
        >>> print(f"{ours.duration:.2f} s", ours.fits, ours.changes[0].layout)
        18.81 s True t8.p2.d8.v1.b1.z1.none
    """
    common = asked(model, gpu, memory, context, network, per_node, precision, like, room, fused_swiglu, freed)
    described, sheet, habits = common
    if isinstance(layout, Layout):
        check(described, layout)
        if layout._asdict().keys() and (gpus or layout.gpus, batch or layout.sequences) != (
            layout.gpus,
            layout.sequences,
        ):
            raise ScalingError(text("scaling.other-size", layout=layout, gpus=gpus or layout.gpus, batch=batch))
        own = layout
    else:
        if gpus is None:
            gpus = sizes_of(layout).gpus
        require_count("gpus", gpus)
        own = read(layout, gpus, whole_batch(described, gpus, batch))
        own = own._replace(fused_swiglu=habits.fused_swiglu, freed=habits.freed)
    more: dict[str, Any] = {"per_node": per_node, "precision": precision} | habits.speed(sheet)
    share = None if measured is None else share_of(described, sheet, own, measured, **more)
    parts = step(described, own, sheet, share, **more)
    return Prediction(described, sheet, own, parts, precision, per_node, share, habits)


def share_of(model: Transformer, gpu: Gpu, layout: Layout, took: float, **more: Any) -> float:
    """Return the share of the fastest product's rate at which a step of a layout takes the measured seconds."""

    def seconds(share: float) -> float:
        return sum(step(model, layout, gpu, share, **more).values())

    check(model, layout)
    share = bisect(lambda share: seconds(share) > took)
    if not SLOWEST < share <= 1:
        least, most = (show_seconds(seconds(share)) for share in (1, SLOWEST))
        raise ScalingError(text("scaling.beyond", layout=layout, took=took, least=least, most=most))
    return share


def _changed(of: Prediction) -> Iterator[tuple[str, object, object, Layout]]:
    """Yield the layouts that differ in one size: its name, its value before and after, and the layout."""
    layout, model = of.layout, of.model
    wished: list[tuple[str, Any]] = []
    for name in ("tensor", "pipeline", "context", "expert", "micro"):
        now = getattr(layout, name)
        wished += [(name, 2 * now), *([(name, now // 2)] if now % 2 == 0 else [])]
    parts = range(1, model.layers + 4) if layout.pipeline > 1 else ()
    wished += [("chunks", v) for v in parts if layers_in(model, layout.pipeline * v)]
    wished += [("stage", stage) for stage in (0, 1, 2, 3)] + [("recompute", kind) for kind in model.recomputable]
    for name, value in wished:
        before = getattr(layout, name)
        changed = layout._replace(**{name: value})
        cut = changed.tensor * changed.pipeline * changed.context
        changed = changed._replace(data=layout.gpus // cut)
        changed = changed._replace(batches=layout.sequences // (changed.data * changed.micro) if changed.data else 0)
        if changed == layout or (changed.gpus, changed.sequences) != (layout.gpus, layout.sequences):
            continue
        if changed.pipeline == 1:
            changed = changed._replace(chunks=1)
        if changed.tensor > of.per_node or (changed.chunks > 1 and changed.batches % changed.pipeline):
            continue
        try:
            check(model, changed)
        except ScalingError:
            continue
        yield name, before, value, changed

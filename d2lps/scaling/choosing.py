"""The fastest layout of a model that fits on given GPUs, with the reason and an interval of speed."""

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from d2lps.messages import text
from d2lps.scaling.layout import Layout, check, kept, layers_in, read, require_precision
from d2lps.scaling.ledger import Ledger
from d2lps.scaling.ledger import memory as ledger
from d2lps.scaling.models import MODELS, known
from d2lps.scaling.speed import GPUS, Gpu, bisect, flops_per_gpu, spread, step
from d2lps.scaling.transformer import ScalingError, Transformer, require_count, require_divides
from d2lps.units import bandwidth, meant_size, show_number, show_seconds, show_size
from d2lps.view.tables import Table, table

if TYPE_CHECKING:
    from torch.nn import Module

FREE = 0.1  # part of the memory that stays for buffers of libraries and for gaps, which the ledger does not include
# Layouts of one model err alike: those whose times differ by less than the third root of the ratio by which predictions
# are off count as equal, and the simplest is chosen. The tests compare the published pairs of runs of one model.
ALIKE = 1 / 3
SAME, SHOWN = 1.01, 5  # of one shape, the simplest layout within 1 % is chosen; the list has five shapes
CAUSES = {"tensor": "by-matrices", "pipeline": "by-stages", "data": "by-replicas", "bubble": "bubble"}  # in table
SLOWEST = 0.02  # least share of the peak that a measured step may have
_shape = attrgetter("tensor", "pipeline", "context", "expert", "data")
STEP_TOKENS = 2**22  # of a step, if no batch is given
PART_TOKENS = 8192  # least tokens of a GPU's part of a sequence


class Choice(NamedTuple):
    """A layout, the reason for it, and its speed. Made by :func:`parallelize`.

    Args:
        model, gpu, layout: The model, the data sheet of the GPUs, and the division of the one over the others.
        reason: One sentence in the language in force.
        parts: The seconds of a step, as :func:`~d2lps.scaling.step` returns them.
        precision: As for :func:`parallelize`.
        ranked: The chosen layout, and after it the fastest ones of other shapes (t, p, d and so on), with their
            ``parts`` and the bytes of their fullest GPU, five in all; and the measured layout, if there is one.
        shapes, alike: The number of shapes that fit, and of those whose times the model cannot tell from the fastest.
        share: The share of the peak that a measured step has; the calibrated one if left out.
    """

    model: Transformer
    gpu: Gpu
    layout: Layout
    reason: str
    parts: dict[str, float]
    precision: str = "mixed"
    ranked: tuple[tuple[Layout, dict[str, float], float], ...] = ()
    shapes: int = 0
    alike: int = 0
    share: float | None = None

    @property
    def duration(self) -> float:
        """The predicted seconds of a step."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> tuple[float, float]:
        """The interval of the seconds of a step: as far off by ratio as :func:`spread` says, but at most at the peak.

        After a measured step it is as far off as layouts that count as equal.
        """
        far = spread(self.model, self.gpu, self.precision)[0] ** (ALIKE if self.share else 1)
        peak = self.gpu.fp8 if self.precision == "fp8" else self.gpu.peak
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

    def table(self) -> Table:
        """Return the layout, speed and memory as a table, in the language in force.

        Returns:
            The model, the GPUs and the batch; a line per field of the layout; intervals of the time of a step and of
                the speed; memory kept and there.
        """
        names = "tensor pipeline data context expert chunks micro batches stage recompute".split()
        names = [name for name in names if name != "expert" or self.model.experts]
        fields = self.layout._replace(recompute=text(f"scaling.recompute.{self.layout.recompute}"))
        models = {each: name for name, each in MODELS.items()}
        memory, outside = self.gpu.memory, self.gpu.outside
        gpus = {each._replace(memory=memory, outside=outside): name for name, each in GPUS.items()}
        chosen = [
            [text("table.model"), models.get(self.model, f"{show_number(self.model.parameters / 1e9, 3)} · 10⁹")],
            [text("table.gpus"), f"{self.layout.gpus} × {gpus.get(self.gpu, f'{self.gpu.peak / 1e12:.0f} TFLOP/s')}"],
            [text("scaling.field.sequences"), f"{self.layout.sequences} × {self.model.context}"],
        ]
        chosen += [[text(f"scaling.field.{name}"), str(getattr(fields, name))] for name in names]
        low, high = (show_seconds(seconds) for seconds in self.seconds)
        slow, fast = self.flops
        chosen += [
            [text("scaling.seconds"), f"{low} – {high}"],
            [text("scaling.flops"), f"{slow / 1e12:.0f} – {fast / 1e12:.0f} TFLOP/s"],
            [text("scaling.kept"), f"{show_size(self.memory.predicted)} / {show_size(self.gpu.memory)}"],
        ]
        return table("choice", "value", rows=chosen)

    def ranking(self) -> Table:
        """Return the ranked list as a table: layout, seconds, memory, and what takes most besides matrices."""
        rows = []
        for layout, parts, nbytes in self.ranked:
            took = sum(parts.values())
            cause = max(parts.keys() - {"matrices"}, key=parts.__getitem__)
            most = text(f"table.{CAUSES.get(cause, f'by-{cause}')}") + f" {parts[cause] / took:.0%}"
            rows.append([str(layout), show_seconds(took), show_size(nbytes), most])
        return table("short-layout", "per-step", "kept-by-gpu", "most-besides", rows=rows)

    @property
    def doubt(self) -> str:
        """A sentence on the interval, with the published run that is predicted worst."""
        far, same, errors = spread(self.model, self.gpu, self.precision)
        if self.share:
            return text("scaling.measured", share=f"{self.share:.2f}", far=f"{far**ALIKE - 1:.1%}")
        return text("scaling.doubt", **errors) if same else text("scaling.doubt-other", **errors)

    @property
    def lines(self) -> list[str]:
        """The reason, how many shapes count as equal, and the doubt."""
        more = f"{spread(self.model, self.gpu, self.precision)[0] ** ALIKE - 1:.1%}"
        return [self.reason, text("scaling.alike", alike=self.alike, shapes=self.shapes, more=more), self.doubt]

    def __str__(self) -> str:
        return "\n".join([str(self.table()), "", str(self.ranking()), "", *self.lines])

    def _repr_html_(self) -> str:
        tables = self.table()._repr_html_() + self.ranking()._repr_html_()
        return tables + "".join(f"<p>{escape(line)}</p>" for line in self.lines)

    def as_json(self) -> dict:
        """Return everything that is printed as numbers, for programs."""
        ranked = [
            {"layout": str(layout), **layout._asdict(), "seconds": parts, "memory": nbytes}
            for layout, parts, nbytes in self.ranked
        ]
        sizes = {"parameters": self.model.parameters, "gpus": self.layout.gpus, "batch": self.layout.sequences}
        ends = {"seconds": self.seconds, "flops": self.flops, "shapes": self.shapes, "alike": self.alike}
        return sizes | {"context": self.model.context, "precision": self.precision} | ends | {"ranked": ranked}


def parallelize(
    model: "str | Transformer | Module",
    gpus: int,
    memory: "str | int | None" = None,
    per_node: int = 8,
    batch: int | None = None,
    gpu: "str | Gpu" = "a100",
    tensor: int | None = None,
    pipeline: int | None = None,
    context: int | None = None,
    network: "str | None" = None,
    precision: str = "bf16",
    fused_swiglu: bool = False,
    measured: "tuple[str | Layout, float] | None" = None,
) -> Choice:
    """Choose how to divide a model and its batch over GPUs, by closed forms.

    Args:
        model: A known model such as ``"gpt3"``, a description, or a module that has one, such as our GPT.
        gpus, per_node: All GPUs, and those of a node, inside of which tensor parallelism stays.
        memory: Bytes of a GPU such as ``"80 GB"``; those of ``gpu`` if left out. A tenth stays free.
        batch: Sequences of a step; about 4 million tokens if left out.
        gpu: ``"a100"``, ``"h100"``, another name of ``GPUS``, or another data sheet.
        tensor, pipeline: Sizes that are not to be chosen.
        context: Tokens of a sequence; those of the model if left out.
        network: A GPU's rate to other nodes, such as ``"400 Gbit/s"``; that of ``gpu`` if left out.
        precision: As for :func:`memory`: ``"bf16"`` keeps gradients in 32 bits, as most trainings do; ``"mixed"``, in
            16.
        fused_swiglu: Whether kernels save two vectors of a gated perceptron instead of four.
        measured: A layout, such as ``"t8.p4.v3"``, and the measured seconds of its step, which calibrate the
            prediction.

    Returns:
        The fastest layout that fits; of those that are predicted alike, the simplest. It has the ``reason``, a
            ``ranking``, an interval of ``seconds`` and of ``flops``, and the ledger of ``memory``.

    Raises:
        ScalingError: For an unknown model or GPU, sizes that do not divide, a model that fits in no way (the sentence
            says by how much), and a measured step that is faster than the peak.

    Example:
        >>> choice = parallelize("llama3-70b", gpus=128, gpu="h100", batch=256)
        >>> print(choice.layout, choice.alike)
        t8.p2.d8.v2.b1.z1.none 4
    """
    model, sheet = known(model), GPUS.get(gpu, gpu) if isinstance(gpu, str) else gpu
    if not isinstance(sheet, Gpu):
        raise ScalingError(text("scaling.unknown-gpu", gpu=repr(gpu), gpus=", ".join(GPUS)))
    require_count("gpus", gpus)
    require_count("per_node", per_node)
    if context is not None:
        require_count("context", context)
        model = replace(model, context=context)
    batch = gpus * max(1, round(STEP_TOKENS / model.context / gpus)) if batch is None else batch
    require_count("batch", batch)
    require_precision(precision)
    _require_fixed(model, gpus, per_node, tensor, pipeline)
    sheet = sheet._replace(memory=sheet.memory if memory is None else meant_size(memory))
    sheet = sheet if network is None else sheet._replace(outside=bandwidth(network))
    share, ran = None, None
    if measured:
        which, took = measured
        ran = which if isinstance(which, Layout) else read(which, gpus, batch)
        share = _share(model, sheet, ran, took, per_node, precision)
    sizes = {
        layout: sum(kept(model, layout, precision).values())
        for layout in _layouts(model, gpus, per_node, batch, fused_swiglu)
        if layout.tensor == (tensor or layout.tensor) and layout.pipeline == (pipeline or layout.pipeline)
    }
    if not sizes:
        raise ScalingError(text("scaling.no-layout", gpus=gpus, batch=batch))
    room, least = (1 - FREE) * sheet.memory, min(sizes, key=sizes.__getitem__)
    if sizes[least] > room:
        over = {"needs": show_size(sizes[least]), "room": show_size(room), "over": show_size(sizes[least] - room)}
        raise ScalingError(text("scaling.too-large", gpus=gpus, **over))
    fit = [layout for layout, size in sizes.items() if size <= room]
    parts = {layout: step(model, layout, sheet, share, per_node=per_node, precision=precision) for layout in fit}
    times = {layout: sum(each.values()) for layout, each in parts.items()}
    alike = min(times.values()) * spread(model, sheet, precision)[0] ** ALIKE
    slow_first = sorted(times, key=times.__getitem__, reverse=True)
    shapes = {_shape(layout): layout for layout in slow_first}  # the fastest of each
    equal = [layout for layout in shapes.values() if times[layout] <= alike]
    best = min(equal, key=_complexity)
    near = [layout for layout in times if _shape(layout) == _shape(best) and times[layout] <= SAME * times[best]]
    chosen = min(near, key=_complexity)
    others = sorted((layout for layout in shapes.values() if layout != best), key=times.__getitem__)
    ranked = [(layout, parts[layout], sizes[layout]) for layout in [chosen, *others][:SHOWN]]
    if ran and ran not in [layout for layout, _, _ in ranked]:
        own = step(model, ran, sheet, share, per_node=per_node, precision=precision)
        ranked.append((ran, own, sum(kept(model, ran, precision).values())))
    reason = _reason(chosen, sizes, times, room)
    return Choice(model, sheet, chosen, reason, parts[chosen], precision, tuple(ranked), len(shapes), len(equal), share)


def _share(model: Transformer, gpu: Gpu, layout: Layout, took: float, per_node: int, precision: str) -> float:
    """Return the share of the peak at which a step of a layout takes the measured seconds."""

    def seconds(share: float) -> float:
        return sum(step(model, layout, gpu, share, per_node=per_node, precision=precision).values())

    check(model, layout)
    share = bisect(lambda share: seconds(share) > took)
    if not SLOWEST < share <= 1:
        least, most = (show_seconds(seconds(share)) for share in (1, SLOWEST))
        raise ScalingError(text("scaling.beyond", layout=layout, took=took, least=least, most=most))
    return share


def _require_fixed(model: Transformer, gpus: int, per_node: int, tensor: int | None, pipeline: int | None) -> None:
    """Raise ScalingError unless sizes that are not to be chosen divide the model and the GPUs."""
    if tensor is not None:
        require_count("tensor", tensor)
        for of, whole in (("heads", model.heads), ("groups", model.groups), ("per_node", per_node), ("gpus", gpus)):
            require_divides("tensor", tensor, of, whole)
    if pipeline is not None:
        require_count("pipeline", pipeline)
        if not layers_in(model, pipeline):
            require_divides("pipeline", pipeline, "layers", model.layers)
        require_divides("pipeline", pipeline, "gpus", gpus)


def _layouts(model: Transformer, gpus: int, per_node: int, batch: int, fused: bool = False) -> Iterator[Layout]:
    """Yield all layouts that divide the model, the batch and the GPUs."""
    # Interleaved stages need groups of p micro-batches.
    places = range(1, model.layers + 4)
    experts = [2**i for i in range(10) if model.experts % 2**i == 0] if model.experts else [1]
    chunkings = {p: [v for v in places if (v == 1 or p > 1) and layers_in(model, p * v)] for p in places}
    for t in _divisors(per_node):
        if model.heads % t or model.groups % t or gpus % t:
            continue
        for p in places:
            if gpus % (t * p) or not layers_in(model, p):
                continue
            for context in (2**i for i in range(10)):
                if context > 1 and (model.context < context * PART_TOKENS or model.context % context):
                    break
                data, rest = divmod(gpus, t * p * context)
                if rest or batch % data:
                    continue
                for micro in (2**i for i in range(7)):
                    batches, rest = divmod(batch // data, micro)
                    if rest or not batches:
                        break
                    for chunks in chunkings[p] if batches % p == 0 else (1,):
                        for recompute in ("none", "full") if model.fused else ("none", "selective", "full"):
                            for stage in (0,) if data * context == 1 else (1,) if p > 1 else (1, 2, 3):
                                sizes = (t, p, data, chunks, micro, batches, stage, recompute, True, context, True)
                                for expert in (each for each in experts if data * context % each == 0):
                                    yield Layout(*sizes, expert, fused)


def _complexity(layout: Layout) -> tuple:
    parts = layout.tensor * layout.pipeline * layout.context
    return parts, layout.expert, layout.stage, layout.chunks, layout.pipeline, layout.recompute != "none", layout.micro


def _reason(chosen: Layout, sizes: dict[Layout, float], times: dict[Layout, float], room: float) -> str:
    """Return in one sentence why the model is cut into so many parts."""
    parts = {layout: layout.tensor * layout.pipeline * layout.context for layout in sizes}
    letters = {"t": chosen.tensor, "p": chosen.pipeline} | ({"c": chosen.context} if chosen.context > 1 else {})
    cut = {"letters": "·".join(letters), "cut": "·".join(map(str, letters.values())), "stage": chosen.stage}
    fewer = [layout for layout in sizes if parts[layout] < parts[chosen]]
    if not fewer:
        return text("scaling.whole", **cut) if parts[chosen] == 1 else text("scaling.only", **cut)
    fitting = [layout for layout in fewer if layout in times]
    if fitting:
        other = min(fitting, key=times.__getitem__)
        more = f"{times[other] / times[chosen] - 1:.0%}"
        return text("scaling.faster", **cut, fewer=parts[other], other=other.stage, more=more)
    other = min(fewer, key=sizes.__getitem__)
    needs = {"needs": show_size(sizes[other]), "room": show_size(room)}
    return text("scaling.smallest", **cut, fewer=parts[other], other=other.stage, **needs)


def _divisors(count: int) -> list[int]:
    return [i for i in range(1, count + 1) if count % i == 0]

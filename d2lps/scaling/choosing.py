"""The fastest layout of a model that fits on given GPUs, with the reason and an interval of speed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from d2lps.messages import text
from d2lps.scaling.gpu import Gpu
from d2lps.scaling.interval import spread
from d2lps.scaling.layout import Layout, check, kept, layers_in, read
from d2lps.scaling.prediction import CAUSES, Habits, Prediction, asked, share_of, whole_batch
from d2lps.scaling.speed import step
from d2lps.scaling.transformer import ScalingError, Transformer, require_count, require_divides
from d2lps.units import show_seconds, show_size
from d2lps.view.tables import Table, table

if TYPE_CHECKING:
    from torch.nn import Module

SAME, SHOWN = 1.01, 5  # of one shape, the simplest layout within 1 % is chosen; the list has five shapes
_shape = attrgetter("tensor", "pipeline", "context", "expert", "data")
PART_TOKENS = 4096  # least tokens of a GPU's part of a sequence
MOST_MICRO = 64  # sequences of a micro-batch


@dataclass(frozen=True)
class Choice(Prediction):
    """A layout, the reason for it, and its speed. Made by :func:`parallelize`.

    Args:
        model, gpu, layout, parts, precision, per_node, share, habits: As for :class:`Prediction`.
        reason: One sentence in the language in force.
        ranked: The chosen layout, and after it the fastest ones of other shapes (t, p, d and so on), with their
            ``parts`` and the bytes of their fullest GPU, five in all. If there is a measured layout, it comes first.
        shapes, alike: The number of shapes that fit, and of those whose times the model cannot tell from the fastest.
        left_out: One sentence on the layouts that were not tried, or none.
        times: The seconds of the fastest layout of each shape.
    """

    reason: str = ""
    ranked: tuple[tuple[Layout, dict[str, float], float], ...] = ()
    shapes: int = 0
    alike: int = 0
    left_out: str = ""
    times: dict[tuple[int, ...], float] = field(default_factory=dict, repr=False)

    def place(self, layout: Layout) -> int:
        """Return the place of a layout's shape: those whose times the model cannot tell apart share one.

        Args:
            layout: Whose shape is meant.

        Returns:
            One more than the number of shapes that are faster by more than ``spread.near``; 0 if the shape does not
                fit.
        """
        own = self.times.get(_shape(layout))
        return 0 if own is None else 1 + sum(other * self.spread.near < own for other in self.times.values())

    def ranking(self) -> Table:
        """Return the ranked list as a table: layout, seconds, memory, and what takes most besides matrices."""
        rows = []
        for layout, parts, nbytes in self.ranked:
            took = sum(parts.values())
            cause = max(parts.keys() - {"matrices"}, key=parts.__getitem__)
            most = text(f"table.{CAUSES.get(cause, f'by-{cause}')}") + f" {parts[cause] / took:.0%}"
            rows.append([str(layout), show_seconds(took), show_size(nbytes), most])
        return table("short-layout", "per-step", "kept-by-gpu", "most-besides", rows=rows)

    def _tables(self) -> list[Table]:
        return [self.table(), self.ranking()]

    @property
    def lines(self) -> list[str]:
        """The reason, how many shapes count as equal, the doubt, and what was not tried."""
        alike = text("scaling.alike", alike=self.alike, shapes=self.shapes, more=f"{self.spread.near - 1:.1%}")
        return [self.reason, alike, self.doubt, *([self.left_out] if self.left_out else [])]

    def _more(self) -> dict:
        """Return what is printed of the list."""
        ranked = [self._row(*each) for each in self.ranked]
        return {"shapes": self.shapes, "alike": self.alike, "ranked": ranked}


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
    fused_swiglu: bool | None = None,
    measured: "tuple[str | Layout, float] | None" = None,
    like: str | None = None,
    room: float | None = None,
    freed: bool | None = None,
    stage: int | None = None,
    recompute: str | None = None,
    sequence: bool = True,
) -> Choice:
    """Choose how to divide a model and its batch over GPUs, by closed forms.

    Args:
        model: A known model such as ``"gpt3"``, a description, or a module that has one, such as our GPT.
        gpus, per_node: All GPUs, and those of a node, inside of which tensor parallelism stays.
        memory: Bytes of a GPU such as ``"80 GB"``; those of ``gpu`` if left out.
        batch: Sequences of a step; about 4 million tokens if left out.
        gpu: ``"a100"``, ``"h100"``, another name of ``GPUS``, or another data sheet.
        tensor, pipeline, stage, recompute: What is not to be chosen, such as the ZeRO stage of your framework.
        context: Tokens of a sequence; those of the model if left out.
        network: A GPU's rate to other nodes, such as ``"400 Gbit/s"``; that of ``gpu`` if left out.
        precision: As for :func:`memory`: ``"bf16"`` keeps gradients in 32 bits, as most trainings do; ``"mixed"``, in
            16.
        fused_swiglu: Whether kernels save two vectors of a gated perceptron instead of four.
        measured: A layout, such as ``"t8.p4.v3"``, and the measured seconds of its step, which calibrate the
            prediction.
        like: ``"megatron"`` or ``"fsdp"``: what these frameworks do is the default of ``room``, ``fused_swiglu`` and
            ``freed``, and attention is theirs.
        room: The share of the memory that may be used; 0.9 if left out, and 0.97 with ``like``.
        freed: Whether a stage of a pipeline frees its result as soon as that is sent.
        sequence: Whether the GPUs that share matrices also divide the activations between these.

    Returns:
        The fastest layout that fits; of those that are predicted alike, the simplest. It has the ``reason``, a
            ``ranking``, an interval of ``seconds`` and of ``flops``, and the ledger of ``memory``. For a layout of
            your own there is :func:`predict_step`.

    Raises:
        ScalingError: For an unknown model or GPU, sizes that do not divide, a model that fits in no way (the sentence
            says by how much), and a measured step that is faster than the peak.

    Example:
        >>> choice = parallelize("llama3-70b", gpus=128, gpu="h100", batch=256)
        >>> print(choice.layout, choice.alike)
        t4.p4.c2.d4.v4.b1.z1.none 1
    """
    require_count("gpus", gpus)
    common = asked(model, gpu, memory, context, network, per_node, precision, like, room, fused_swiglu, freed)
    described, sheet, habits = common
    batch = whole_batch(described, gpus, batch)
    _require_fixed(described, gpus, per_node, tensor, pipeline)
    check(described, Layout(stage=stage or 0, recompute=recompute or "none"))
    more: dict[str, Any] = {"per_node": per_node, "precision": precision} | habits.speed(sheet)
    share, ran = None, None
    if measured:
        which, took = measured
        ran = which if isinstance(which, Layout) else read(which, gpus, batch)
        ran = ran._replace(fused_swiglu=habits.fused_swiglu, freed=habits.freed)
        share = share_of(described, sheet, ran, took, **more)
    sizes = {
        layout: sum(kept(described, layout, precision).values())
        for layout in _layouts(
            described, gpus, per_node, batch, habits.fused_swiglu, habits.freed, stage, recompute, sequence
        )
        if layout.tensor == (tensor or layout.tensor) and layout.pipeline == (pipeline or layout.pipeline)
    }
    if not sizes:
        raise ScalingError(text("scaling.no-layout", gpus=gpus, batch=batch))
    free, least = habits.room * sheet.memory, min(sizes, key=sizes.__getitem__)
    if sizes[least] > free:
        over = {"needs": show_size(sizes[least]), "room": show_size(free), "over": show_size(sizes[least] - free)}
        raise ScalingError(text("scaling.too-large", gpus=gpus, **over))
    fit = [layout for layout, size in sizes.items() if size <= free]
    parts = {layout: step(described, layout, sheet, share, **more) for layout in fit}
    times = {layout: sum(each.values()) for layout, each in parts.items()}
    alike = min(times.values()) * spread(described, sheet, precision).near
    slow_first = sorted(times, key=times.__getitem__, reverse=True)
    shapes = {_shape(layout): layout for layout in slow_first}  # the fastest of each
    equal = [layout for layout in shapes.values() if times[layout] <= alike]
    best = min(equal, key=_complexity)
    near = [layout for layout in times if _shape(layout) == _shape(best) and times[layout] <= SAME * times[best]]
    chosen = min(near, key=_complexity)
    others = sorted((layout for layout in shapes.values() if layout != best), key=times.__getitem__)
    ranked = [(layout, parts[layout], sizes[layout]) for layout in [chosen, *others][:SHOWN]]
    if ran:
        own = (ran, step(described, ran, sheet, share, **more), sum(kept(described, ran, precision).values()))
        ranked = [own, *(each for each in ranked if each[0] != ran)]
    reason = _reason(chosen, sizes, times, free)
    left_out = _left_out(described, gpus, per_node, sizes, habits, free)
    found = Prediction(described, sheet, chosen, parts[chosen], precision, per_node, share, habits)
    return Choice(
        **vars(found),
        reason=reason,
        ranked=tuple(ranked),
        shapes=len(shapes),
        alike=len(equal),
        left_out=left_out,
        times={shape: times[layout] for shape, layout in shapes.items()},
    )


def _left_out(
    model: Transformer, gpus: int, per_node: int, sizes: dict[Layout, float], habits: Habits, free: float
) -> str:
    """Return a sentence on the rules by which layouts were left out, if any were."""
    rules = []
    if (most := max(layout.context for layout in sizes)) * 2 <= gpus and model.context < 2 * most * PART_TOKENS:
        rules.append(text("scaling.left-out.context", tokens=PART_TOKENS))
    if any(layout.pipeline > 1 and layout.sharers > 1 for layout in sizes):
        rules.append(text("scaling.left-out.stage"))
    if gpus > per_node:
        rules.append(text("scaling.left-out.tensor", per_node=per_node))
    over = sum(size > free for size in sizes.values())
    if over:
        room = {"room": show_size(free), "share": f"{habits.room:.0%}"}
        rules.append(text("scaling.left-out.memory", over=over, all=len(sizes), **room))
    return text("scaling.left-out.line", rules=" · ".join(rules)) if rules else ""


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


def _layouts(
    model: Transformer,
    gpus: int,
    per_node: int,
    batch: int,
    fused: bool = False,
    freed: bool = True,
    stage: int | None = None,
    recompute: str | None = None,
    sequence: bool = True,
) -> Iterator[Layout]:
    """Yield all layouts that divide the model, the batch and the GPUs."""
    kinds = (recompute,) if recompute else model.recomputable
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
                for micro in (2**i for i in range(MOST_MICRO.bit_length())):
                    batches, rest = divmod(batch // data, micro)
                    if rest or not batches:
                        break
                    for chunks in chunkings[p] if batches % p == 0 else (1,):
                        stages = (0,) if data * context == 1 else (1,) if p > 1 else (1, 2, 3)
                        for kind in kinds:
                            for zero in stages if stage is None else (stage,):
                                sizes = (t, p, data, chunks, micro, batches, zero, kind, sequence, context, True)
                                for expert in (each for each in experts if t * data * context % each == 0):
                                    yield Layout(*sizes, expert, fused, freed)


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

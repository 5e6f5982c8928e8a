"""The fastest layout of a model that fits on given GPUs, with the reason and an interval of speed."""

from collections.abc import Iterator
from html import escape
from math import exp, log1p
from typing import NamedTuple

from d2lps.messages import text
from d2lps.scaling.layout import Layout, kept, layers_in
from d2lps.scaling.ledger import Ledger
from d2lps.scaling.ledger import memory as ledger
from d2lps.scaling.speed import GPUS, Gpu, step, worst
from d2lps.scaling.transformer import MODELS, ScalingError, Transformer, known, require_count, require_divides
from d2lps.units import meant_size, show_number, show_seconds, show_size
from d2lps.view.tables import Table, table

FREE = 0.1  # part of the memory that stays for buffers of libraries and for gaps, which the ledger does not include
ALIKE = 1.01  # times that differ by less than 1 % count as equal: then the simplest layout is chosen
STEP_TOKENS = 2**22  # of a step, if no batch is given
PART_TOKENS = 8192  # least tokens of a GPU's part of a sequence


class Choice(NamedTuple):
    """A layout, the reason for it, and its speed. Made by :func:`parallelize`.

    Parameters
    ----------
    model, gpu, layout : Transformer, Gpu, Layout
        The model, the data sheet of the GPUs, and the division of the one over the others.
    reason : str
        One sentence in the language in force.
    parts : dict of str to float
        The seconds of a step, as :func:`~d2lps.scaling.step` returns them.
    """

    model: Transformer
    gpu: Gpu
    layout: Layout
    reason: str
    parts: dict[str, float]

    @property
    def duration(self) -> float:
        """The predicted seconds of a step."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> tuple[float, float]:
        """The interval of the seconds of a step: as far off, by ratio, as the worst published run on such GPUs."""
        far = exp(abs(log1p(worst(self.gpu)[1])))
        return self.duration / far, self.duration * far

    @property
    def flops(self) -> tuple[float, float]:
        """The interval of FLOP/s per GPU; recomputation does not count."""
        step_flops = self.layout.sequences * self.model.context * self.model.flops_per_token()
        slow, fast = (step_flops / self.layout.gpus / seconds for seconds in reversed(self.seconds))
        return slow, fast

    @property
    def memory(self) -> Ledger:
        """The ledger of the fullest GPU."""
        return ledger(self.model, **self.layout._asdict())

    def table(self) -> Table:
        """Return the layout, speed and memory as a table, in the language in force.

        Returns
        -------
        Table
            The model, the GPUs and the batch; a line per field of the layout; intervals of the time of a step and of
            the speed; memory kept and there.
        """
        names = "tensor pipeline data context chunks micro batches stage recompute".split()
        fields = self.layout._replace(recompute=text(f"scaling.recompute.{self.layout.recompute}"))
        models = {each: name for name, each in MODELS.items()}
        gpus = {each.peak: name for name, each in GPUS.items()}  # their memory may be another one
        chosen = [
            [text("table.model"), models.get(self.model, f"{show_number(self.model.parameters / 1e9, 3)} · 10⁹")],
            [
                text("table.gpus"),
                f"{self.layout.gpus} × {gpus.get(self.gpu.peak, f'{self.gpu.peak / 1e12:.0f} TFLOP/s')}",
            ],
            [text("scaling.field.sequences"), str(self.layout.sequences)],
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

    @property
    def doubt(self) -> str:
        """A sentence on the interval, with the published run that is predicted worst."""
        run, off = worst(self.gpu)
        return text("scaling.doubt", run=run.name, published=f"{run.flops / 1e12:.0f} TFLOP/s", error=f"{off:+.1%}")

    def __str__(self) -> str:
        return f"{self.table()}\n{self.reason}\n{self.doubt}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + "".join(f"<p>{escape(line)}</p>" for line in (self.reason, self.doubt))


def parallelize(
    model: "str | Transformer",
    gpus: int,
    memory: "str | int | None" = None,
    per_node: int = 8,
    batch: int | None = None,
    gpu: "str | Gpu" = "a100",
    tensor: int | None = None,
    pipeline: int | None = None,
) -> Choice:
    """Choose how to divide a model and its batch over GPUs, by closed forms.

    Parameters
    ----------
    model : str, Transformer or module
        A known model such as ``"gpt3"``, a description, or a module that has one, such as our GPT.
    gpus, per_node : int
        All GPUs, and those of a node, inside of which tensor parallelism stays.
    memory : str or int, optional
        Bytes of a GPU such as ``"80 GB"``; those of ``gpu`` if left out. A tenth stays free.
    batch : int, optional
        Sequences of a step; about 4 million tokens if left out.
    gpu : str or Gpu
        ``"a100"``, ``"h100"``, or another data sheet.
    tensor, pipeline : int, optional
        Sizes that are not to be chosen.

    Returns
    -------
    Choice
        The fastest layout that fits; of those within 1 % of it, the simplest. It has the ``reason``, an interval of
        ``seconds`` and of ``flops``, and the ledger of ``memory``.

    Raises
    ------
    ScalingError
        For an unknown model or GPU, sizes that do not divide, and a model that fits in no way: the sentence says by
        how much.

    Examples
    --------
    >>> choice = parallelize("gpt-7.5b", gpus=64, batch=512)
    >>> choice.layout.tensor, choice.layout.pipeline, choice.layout.data
    (2, 1, 32)
    """
    model, sheet = known(model), GPUS.get(gpu, gpu) if isinstance(gpu, str) else gpu
    if not isinstance(sheet, Gpu):
        raise ScalingError(text("scaling.unknown-gpu", gpu=repr(gpu), gpus=", ".join(GPUS)))
    require_count("gpus", gpus)
    require_count("per_node", per_node)
    batch = gpus * max(1, round(STEP_TOKENS / model.context / gpus)) if batch is None else batch
    require_count("batch", batch)
    _require_fixed(model, gpus, per_node, tensor, pipeline)
    sheet = sheet._replace(memory=sheet.memory if memory is None else meant_size(memory))
    sizes = {
        layout: sum(kept(model, layout).values())
        for layout in _layouts(model, gpus, per_node, batch)
        if layout.tensor == (tensor or layout.tensor) and layout.pipeline == (pipeline or layout.pipeline)
    }
    if not sizes:
        raise ScalingError(text("scaling.no-layout", gpus=gpus, batch=batch))
    room, least = (1 - FREE) * sheet.memory, min(sizes, key=sizes.get)
    if sizes[least] > room:
        over = {"needs": show_size(sizes[least]), "room": show_size(room), "over": show_size(sizes[least] - room)}
        raise ScalingError(text("scaling.too-large", gpus=gpus, **over))
    times = {
        layout: sum(step(model, layout, sheet, per_node=per_node).values())
        for layout, size in sizes.items()
        if size <= room
    }
    best = min(times.values())
    chosen = min((layout for layout, time in times.items() if time <= ALIKE * best), key=_complexity)
    return Choice(
        model, sheet, chosen, _reason(chosen, sizes, times, room), step(model, chosen, sheet, per_node=per_node)
    )


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


def _layouts(model: Transformer, gpus: int, per_node: int, batch: int) -> Iterator[Layout]:
    """Yield all layouts that divide the model, the batch and the GPUs."""
    # Interleaved stages need groups of p micro-batches.
    places = range(1, model.layers + 3)
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
                                yield Layout(t, p, data, chunks, micro, batches, stage, recompute, context=context)


def _complexity(layout: Layout) -> tuple:
    parts = layout.tensor * layout.pipeline * layout.context
    return parts, layout.stage, layout.chunks, layout.pipeline, layout.recompute != "none", layout.micro


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
        other = min(fitting, key=times.get)
        more = f"{times[other] / times[chosen] - 1:.0%}"
        return text("scaling.faster", **cut, fewer=parts[other], other=other.stage, more=more)
    other = min(fewer, key=sizes.get)
    needs = {"needs": show_size(sizes[other]), "room": show_size(room)}
    return text("scaling.smallest", **cut, fewer=parts[other], other=other.stage, **needs)


def _divisors(count: int) -> list[int]:
    return [i for i in range(1, count + 1) if count % i == 0]

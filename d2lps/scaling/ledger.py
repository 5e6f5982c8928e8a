"""The memory of a GPU in training, item by item: predicted, measured, or not included."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from d2lps.messages import text
from d2lps.scaling.layout import Layout, check, kept, require_precision, states
from d2lps.scaling.models import known
from d2lps.scaling.transformer import ScalingError, Transformer
from d2lps.units import show_size
from d2lps.view.tables import Table, table

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class Item(NamedTuple):
    """A line of the ledger: bytes, or None if they are not predicted or not measured."""

    name: str
    predicted: float | None = None
    measured: float | None = None

    @property
    def mark(self) -> str:
        """``"predicted"``, ``"measured"``, ``"both"`` or ``"not included"``."""
        marks = {(True, True): "both", (True, False): "predicted", (False, True): "measured"}
        return marks.get((self.predicted is not None, self.measured is not None), "not included")


@dataclass(frozen=True)
class Ledger:
    """The memory of a GPU, as a table with a line per item. Made by :func:`memory`.

    Args:
        items: ``ledger["weights"]`` is the item of that name.
    """

    items: tuple[Item, ...]

    @property
    def predicted(self) -> float:
        """The sum of all predicted items, in bytes."""
        return sum(item.predicted or 0 for item in self.items)

    @property
    def measured(self) -> float:
        """The sum of all measured items, in bytes."""
        return sum(item.measured or 0 for item in self.items)

    def __getitem__(self, name: str) -> Item:
        return {item.name: item for item in self.items}[name]

    def table(self) -> Table:
        """Return the lines as a table, in the language in force.

        Returns:
            With the measured sizes and predicted ÷ measured, if anything is measured.
        """
        both = any(item.measured is not None for item in self.items)
        lines = [*self.items, Item("total", self.predicted, self.measured if both else None)]
        rows = []
        for name, predicted, measured in lines:
            sizes = [None if size is None else show_size(size) for size in (predicted, measured)]
            ratio = predicted / measured if predicted is not None and measured and name != "total" else None
            if sizes == [None, None]:
                sizes[0] = "not included"
            rows.append([name, *sizes, ratio] if both else [name, sizes[0]])
        return table("item", "predicted", *(["measured", "predicted-by-measured"] if both else []), rows=rows)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def memory(
    model: "str | Transformer | float | Module",
    batch: "tuple[Tensor, Tensor] | None" = None,
    precision: str = "mixed",
    **layout: Any,
) -> Ledger:
    """Return the memory that the fullest GPU needs for training with Adam, item by item.

    Args:
        model: A known model such as ``"gpt3"``; a description; a number of parameters, whose activations are not
            included; or a module, which is measured too, on a copy.
        batch: For a module: inputs of shape (b, s) and labels. Without it nothing is measured.
        precision: ``"mixed"``, ``"bf16"`` or ``"fp8"`` (mixed, with gradients in float32), ``"float32"`` or
            ``"pure-bf16"``; a module has its own.
        **layout: Fields of :class:`~d2lps.scaling.Layout`, such as ``tensor=8, data=64, stage=1``. A module is measured
            on one device, so it takes none.

    Returns:
        A table of weights, gradients, optimizer, activations by kind, gathered layers, and buffers of libraries, which
            are not included. Bytes, of 10⁹ to a GB.

    Raises:
        ScalingError: For an unknown model or option, and a layout that does not divide the model.

    Example:
        >>> print(memory(7.5e9, data=64, stage=2))
        item          predicted
        weights       15 GB
        gradients     234.4 MB
        optimizer     1.406 GB
        activations   not included
        buffers       not included
        total         16.64 GB
        >>> print(show_size(memory("gpt3", tensor=8, pipeline=8, data=16, stage=1, batches=96).predicted))
        47.87 GB

    Source: Rajbhandari et al., "ZeRO", SC 2020, figure 1, has the same four sums for 7.5 billion parameters on 64 GPUs.
    """
    require_precision(precision)
    if hasattr(model, "named_parameters"):
        if layout:
            raise ScalingError(text("scaling.one-device", options=", ".join(layout)))
        return _of_module(model, batch)
    if batch is not None:
        raise ScalingError(text("scaling.batch", given=type(batch).__name__))
    if unknown := set(layout) - set(Layout._fields):
        raise ScalingError(
            text("scaling.field-unknown", names=", ".join(sorted(unknown)), fields=", ".join(Layout._fields))
        )
    division = Layout(**layout)
    items: Mapping[str, float | None]
    if isinstance(model, int | float) and not isinstance(model, bool) and 0 < model < float("inf"):
        check(None, division)
        items = states(model, division, precision) | {"activations": None}
    else:
        model = known(model)
        check(model, division)
        items = kept(model, division, precision)
    return Ledger((*(Item(name, size) for name, size in items.items()), Item("buffers")))


def _of_module(module: "Module", batch: "tuple[Tensor, Tensor] | None") -> Ledger:
    """Return the ledger of a torch module on one device: measured beside predicted bytes."""
    from d2lps.scaling import measured

    described: Transformer | None = getattr(module, "transformer", None)
    if batch is not None and (not isinstance(batch, tuple | list) or len(batch) != 2):
        raise ScalingError(text("scaling.batch", given=type(batch).__name__))
    precision = measured.precision(module)
    taken = {} if batch is None else measured.memory(module, *batch)
    if described and batch is not None:
        micro, tokens = batch[0].shape
        items = kept(described, Layout(micro=micro), precision, tokens, measured.precise(module))
    else:
        items = states(sum(p.numel() for p in module.parameters()), Layout(), precision)
    names = [*items, *(name for name in taken if name not in items)]
    rest = [] if taken else [Item("activations")]
    return Ledger((*(Item(name, items.get(name), taken.get(name)) for name in names), *rest, Item("buffers")))

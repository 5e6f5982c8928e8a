"""D2L's own helpers: ``from d2lps import d2l`` gives ``d2l.Timer``, ``d2l.plot``, ``d2l.try_all_gpus`` …

``d2l.torch`` imports torchvision, although it needs it only for downloads, and PyPI has it only for CUDA builds of
torch. If torchvision is missing or broken, a placeholder stands in for it while d2l is imported; functions of d2l that
need torchvision then fail with a clear message, and everything else works. Without d2l itself, which needs an old NumPy
and so Python 3.11, this module has the helpers that the course uses: the same calls, the same pictures.
"""

import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib_inline import backend_inline

from d2lps.messages import text
from d2lps.messages.raised import Brief

FORMATS = ("-", "m--", "g-.", "r:")


class D2lMissing(Brief, AttributeError):
    """A helper that only the package d2l has, and the package is not installed."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    own = ", ".join(f"d2l.{each}" for each in ("Timer", "plot", "show_images", "try_all_gpus"))
    raise D2lMissing(text("extras.no-d2l", name=f"d2l.{name}", own=own))


class Timer:
    """Record multiple running times."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.start()

    def start(self) -> None:
        """Start the timer."""
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Stop the timer, record the time, and return it in seconds."""
        self.times.append(time.perf_counter() - self._began)
        return self.times[-1]

    def avg(self) -> float:
        """Return the average time."""
        return sum(self.times) / len(self.times)

    def sum(self) -> float:
        """Return the sum of the times."""
        return sum(self.times)


def try_all_gpus() -> list:
    """Return all GPUs that torch can use."""
    return [torch.device(f"cuda:{i}") for i in range(torch.cuda.device_count())]


def plot(
    X: Any,
    Y: Any = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: Sequence[str] = (),
    xlim: Sequence[float] | None = None,
    ylim: Sequence[float] | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    fmts: Sequence[str] = FORMATS,
    figsize: tuple[float, float] = (3.5, 2.5),
    axes: Any = None,
) -> None:
    """Plot one curve, or several with the same or different x."""
    X, Y = (X, Y) if Y is not None else ([], X)
    ys = [Y] if _one(Y) else list(Y)
    xs = [X] * len(ys) if _one(X) else list(X) * (len(ys) if len(X) != len(ys) else 1)
    backend_inline.set_matplotlib_formats("svg")
    pyplot.rcParams["figure.figsize"] = figsize
    axes = axes or pyplot.gca()
    axes.cla()
    for x, y, format in zip(xs, ys, fmts, strict=False):  # with more curves than formats, the rest is not drawn
        axes.plot(*([x, y] if len(x) else [y]), format)
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
    axes.set(xlim=xlim, ylim=ylim)
    if legend:
        axes.legend(legend)
    axes.grid()


def show_images(
    imgs: Any, num_rows: int, num_cols: int, titles: Sequence[str] | None = None, scale: float = 1.5
) -> Any:
    """Show images in rows and columns; return their axes."""
    _, axes = pyplot.subplots(num_rows, num_cols, figsize=(num_cols * scale, num_rows * scale), squeeze=False)
    axes = axes.flatten()
    for i, (place, image) in enumerate(zip(axes, imgs, strict=False)):
        place.imshow(image.detach().cpu().numpy() if hasattr(image, "detach") else image)
        place.get_xaxis().set_visible(False)
        place.get_yaxis().set_visible(False)
        if titles:
            place.set_title(titles[i])
    return axes


def _one(values: Any) -> bool:
    """Return whether these are the values of one curve."""
    return values.ndim == 1 if hasattr(values, "ndim") else not (len(values) and hasattr(values[0], "__len__"))


# ---- the package d2l, if it is installed


class _Missing(ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{self.__name__}.{name} is needed here, and torchvision cannot be imported: {self.__doc__}")


def _import_d2l() -> ModuleType:
    try:
        there = importlib.util.find_spec("d2l")
    except ValueError:  # sys.modules has None for it
        there = None
    if there is None:
        return sys.modules[__name__]
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # a build for another torch fails with errors of every kind
        broken = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torchvision"}
        transforms = _Missing("torchvision.transforms", str(error))
        torchvision = _Missing("torchvision", str(error))
        torchvision.transforms = transforms  # type: ignore[attr-defined]
        for name in broken:
            del sys.modules[name]
        sys.modules |= {"torchvision": torchvision, "torchvision.transforms": transforms}
        try:
            return importlib.import_module("d2l.torch")
        finally:  # other importers of torchvision must not get the placeholder
            del sys.modules["torchvision"], sys.modules["torchvision.transforms"]
    return importlib.import_module("d2l.torch")


d2l = _import_d2l()

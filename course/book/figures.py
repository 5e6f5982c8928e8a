"""The figures of a chapter: ``figures.py`` has a function for each."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from d2lps.trace import Trace


def figures(folder: Path) -> dict[str, Callable[[], str]]:
    """Return figure name → function that returns its SVG, from the ``figures.py`` in ``folder`` if there is one.

    The function ``bw_hierarchy`` draws ``img/bw-hierarchy.svg``. Names with a leading underscore are helpers, and
    ``opening`` returns the traces that the chapter opens with.
    """
    path = folder / "figures.py"
    if not path.is_file():
        return {}
    module = _module(path)
    return {
        name.replace("_", "-"): function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and name != "opening" and not name.startswith("_")
    }


def opening(folder: Path) -> dict[str, Trace]:
    """Return name → trace of the runs that a chapter opens with."""
    return _module(folder / "figures.py").opening()


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"figures_of_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The figures of a chapter: ``figures.py`` has a function for each."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path


def figures(folder: Path) -> dict[str, Callable[[], str]]:
    """Return figure name → function that returns its SVG, from the ``figures.py`` in ``folder`` if there is one.

    The function ``bw_hierarchy`` draws ``img/bw-hierarchy.svg``. Names with a leading underscore are helpers, and
    ``opening`` returns the traces that the chapter opens with.
    """
    path = folder / "figures.py"
    if not path.is_file():
        return {}
    spec = importlib.util.spec_from_file_location(f"figures_of_{folder.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {
        name.replace("_", "-"): function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and name != "opening" and not name.startswith("_")
    }

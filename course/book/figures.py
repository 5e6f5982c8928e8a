"""The figures of a chapter: what its ``figures.py`` draws, a function for each."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path


def figures(folder: Path) -> dict[str, Callable[[], str]]:
    """The name of each figure of the chapter in ``folder`` → the function that gives its SVG; none without figures.py.

    Every function of that file is one unless its name begins with an underscore; ``bw_hierarchy`` draws
    ``img/bw-hierarchy.svg``. ``opening`` gives traces instead: those with which the chapter opens.
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

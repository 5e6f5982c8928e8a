"""The figures of a chapter: ``figures.py`` has a function for each."""

from collections.abc import Callable
from inspect import isfunction
from pathlib import Path

from d2lps.notebook.grading.course import loaded


def figures(folder: Path) -> dict[str, Callable[[], str]]:
    """Return figure name → function that returns its SVG, from the ``figures.py`` in ``folder`` if there is one.

    The function ``bw_hierarchy`` draws ``img/bw-hierarchy.svg``. Names with a leading underscore are helpers, and
    ``opening`` returns the traces that the chapter opens with.
    """
    path, name = folder / "figures.py", f"figures_of_{folder.name}"
    return {
        drawn.replace("_", "-"): function
        for drawn, function in (loaded(name, path) if path.is_file() else {}).items()
        if isfunction(function) and function.__module__ == name and drawn != "opening" and not drawn.startswith("_")
    }

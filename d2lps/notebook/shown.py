"""Values that display themselves in a notebook: topologies, traces and schedules as pictures, plans as tables, plots.

Nothing is imported until one of them is shown.
"""

import sys
from collections.abc import Callable

MOST_NODES, MOST_EVENTS = 64, 2000  # larger ones would take too long: their ``repr`` is shown


class Late:
    """An object to display, made in the language that is set when it is shown.

    Args:
        bundle: Returns its forms: type → text.
    """

    def __init__(self, bundle: Callable[[], dict]):
        self._bundle = bundle

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        return self._bundle()


def register() -> None:
    """Register these functions with the notebook's HTML formatter, if there is one. IPython must have been imported."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return
    for (module, name), form in FORMS.items():
        shell.display_formatter.formatters["text/html"].for_type_by_name(module, name, form)
    # d2l's first plot removes all forms of figures, so this one is registered again before they are shown.
    shell.events.register("post_execute", figures)
    # The ranks of %%px are kernels of ipyparallel: while they run, the notebook waits and shows the progress.
    kernel = type(getattr(shell, "kernel", None)).__module__.partition(".")[0]
    if kernel == "ipykernel" and not hasattr(shell, "d2lps_working"):
        from d2lps.notebook.working import Working

        shell.d2lps_working = Working(shell)


def figures() -> None:
    """Register matplotlib's figures, to be shown in the theme of the page."""
    formatter = sys.modules["IPython"].get_ipython().display_formatter.formatters["text/html"]
    formatter.for_type_by_name("matplotlib.figure", "Figure", plot)


def topology(value) -> str | None:
    """Draw a topology; return None if it has too many nodes."""
    from d2lps.view.drawing import draw

    return draw(value)._repr_html_() if len(value.kinds) <= MOST_NODES else None


def trace(value) -> str | None:
    """Draw a trace as a still; return None if it is too long."""
    from d2lps.view.drawing import draw

    small = len(value.topology.kinds) <= MOST_NODES and len(value.events) <= MOST_EVENTS
    return draw(value)._repr_html_() if small else None


def schedule(value) -> str | None:
    """Draw a schedule by its slots; return None if it is too large."""
    from d2lps.view.drawing import draw

    return draw(value)._repr_html_() if len(value.nodes) <= MOST_NODES and len(value.acts) <= MOST_EVENTS else None


def plan(value) -> str | None:
    """Return the steps of a plan as a table; None if it has too many nodes."""
    from d2lps.view.tables import plan_table

    return plan_table(value) if len(value.nodes) <= MOST_NODES else None


def plot(value) -> str:
    """Return a figure of matplotlib as HTML, in the theme of the page."""
    from d2lps.notebook.plots import as_html

    return as_html(value)


# Module and name of a class → the function that returns a value of it as HTML, or None if it is too large.
FORMS: dict[tuple[str, str], Callable] = {
    ("d2lps.topology.graph", "Topology"): topology,
    ("d2lps.trace", "Trace"): trace,
    ("d2lps.plan.plan", "Plan"): plan,
    ("d2lps.schedule.schedule", "Schedule"): schedule,
}

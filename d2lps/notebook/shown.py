"""Values that show themselves in a notebook: topologies and traces as pictures, plans as tables, plots in its theme.

Nothing is imported until one of them is shown.
"""

import sys
from collections.abc import Callable

MOST_NODES, MOST_EVENTS = 64, 2000  # more than that would be long in coming: their ``repr`` has to do


class Late:
    """What is displayed, made in the language of the moment in which it is shown.

    Parameters
    ----------
    bundle : callable
        Gives its forms: type → text.
    """

    def __init__(self, bundle: Callable[[], dict]):
        self._bundle = bundle

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        return self._bundle()


def register() -> None:
    """Tell the notebook's formatter of HTML, where there is one. IPython has been imported."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is None:
        return
    shown: dict[tuple[str, str], Callable] = {
        ("d2lps.topology.graph", "Topology"): topology,
        ("d2lps.trace", "Trace"): trace,
        ("d2lps.plan.plan", "Plan"): plan,
    }
    for (module, name), form in shown.items():
        shell.display_formatter.formatters["text/html"].for_type_by_name(module, name, form)
    # What d2l does for its first plot takes away all forms of figures, so this one is put back before they are shown.
    shell.events.register("post_execute", figures)
    # The ranks of %%px are kernels, too, but of ipyparallel: while they run, it is the notebook that waits and says so.
    kernel = type(getattr(shell, "kernel", None)).__module__.partition(".")[0]
    if kernel == "ipykernel" and not hasattr(shell, "d2lps_working"):
        from d2lps.notebook.working import Working

        shell.d2lps_working = Working(shell)


def figures() -> None:
    """Let figures of matplotlib be shown in the theme of the page."""
    formatter = sys.modules["IPython"].get_ipython().display_formatter.formatters["text/html"]
    formatter.for_type_by_name("matplotlib.figure", "Figure", plot)


def topology(value) -> str | None:
    """Its drawing; None where it has more nodes than can be seen."""
    from d2lps.view.drawing import draw

    return draw(value)._repr_html_() if len(value.kinds) <= MOST_NODES else None


def trace(value) -> str | None:
    """Its still; None where it is too long."""
    from d2lps.view.drawing import draw

    small = len(value.topology.kinds) <= MOST_NODES and len(value.events) <= MOST_EVENTS
    return draw(value)._repr_html_() if small else None


def plan(value) -> str | None:
    """Its steps as a table; None where it is too large to be read."""
    from d2lps.view.tables import plan_table

    return plan_table(value) if len(value.nodes) <= MOST_NODES else None


def plot(value) -> str:
    """A figure of matplotlib, in the theme of the page."""
    from d2lps.notebook.plots import as_html

    return as_html(value)

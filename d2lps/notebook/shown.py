"""What a notebook shows by itself: values as pictures, and all languages at once.

A value's form is imported when it is shown first.

In a notebook for the readers of all languages, printed text and error messages are marked (see
:mod:`d2lps.messages.marked`). A displayed object is formatted once in each language, since the layout of pictures and
tables depends on the words: the other languages travel in the metadata. Nothing else is done more than once.
``course/site/execute.py`` starts this and separates the languages.
"""

import os
import sys
from collections.abc import Callable

from d2lps.messages import LANGUAGES, choose_all, language, only, unmarked

MOST_NODES, MOST_EVENTS = 64, 2000  # larger ones would take too long: their ``repr`` is shown
KEY = "d2lps"  # in the metadata of an output: language → its forms


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


# ---- a notebook that is executed once for the readers of all languages


def speak_to_all() -> None:
    """Speak all languages from now on, here and in all processes started from here; display the current language."""
    from ipykernel.comm.comm import BaseComm
    from IPython import get_ipython

    choose_all()
    os.environ["D2LPS_PROGRESS"] = "0"  # no reader watches while a cell runs
    shell = get_ipython()
    form, publish, send = shell.display_formatter.format, shell.display_pub.publish, BaseComm.publish_msg

    def form_all(value, include=None, exclude=None):
        if shell.display_formatter.ipython_display_formatter(value):  # it has displayed itself, with ``publish_all``
            return {}, {}

        def bundle(code: str) -> tuple[dict, dict]:
            return unmarked(only(code, lambda: form(value, include, exclude)), code)

        data, metadata = bundle(language())
        return data, metadata | {KEY: {code: bundle(code)[0] for code in LANGUAGES if code != language()}}

    def publish_all(data, metadata=None, **options):
        metadata = metadata or {}
        if KEY not in metadata:
            metadata = metadata | {KEY: {code: unmarked(data, code) for code in LANGUAGES if code != language()}}
        publish(unmarked(data, language()), metadata, **options)

    def send_one(
        comm, type_of_message, data=None, *rest, **options
    ):  # widgets need a kernel, so one language is enough
        send(comm, type_of_message, unmarked(data, language()), *rest, **options)

    shell.display_formatter.format, shell.display_pub.publish = form_all, publish_all
    BaseComm.publish_msg = send_one  # type: ignore[method-assign, assignment]

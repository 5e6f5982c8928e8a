"""The base of widgets: anywidget's, or without it a plain class that shows its ``text/html`` form alone.

A page without a kernel, above all one that runs Python in the browser, needs no more than that form.
"""

try:
    from anywidget import AnyWidget
    from traitlets import Dict, List
except ModuleNotFoundError:

    class AnyWidget:
        """Hold the values of a widget without showing it."""

        def __init__(self, **values: object):
            vars(self).update(values)

        def _repr_mimebundle_(self, **_: object) -> dict:
            return {}

    class Dict:
        """Stand for the trait with this name."""

        def tag(self, **_: object) -> None:
            return None

    List = Dict

__all__ = ["AnyWidget", "Dict", "List"]

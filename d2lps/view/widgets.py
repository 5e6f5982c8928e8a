"""The base of widgets: anywidget's, or without it a plain class that shows its ``text/html`` form alone.

A page without a kernel, above all one that runs Python in the browser, needs no more than that form.
"""


class _Plain:
    """Hold the values of a widget without showing it."""

    def __init__(self, **values: object):
        vars(self).update(values)

    def _repr_mimebundle_(self, **_: object) -> dict:
        return {}


class _Trait:
    """Stand for a trait of any kind."""

    def tag(self, **_: object) -> None:
        return None


try:
    from anywidget import AnyWidget
    from traitlets import Dict, List
except ModuleNotFoundError:
    AnyWidget, Dict, List = _Plain, _Trait, _Trait

__all__ = ["AnyWidget", "Dict", "List"]

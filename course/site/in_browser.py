"""Run cells of a chapter where PyTorch and processes are missing: in a browser.

A name that cannot be imported becomes an :class:`Absent`, so the rest of its cell still runs, and the cell fails with a
clear sentence only if it uses the name.

>>> cells = Cells()
>>> cells.run("import no_such_package\\nprint(6 * 7)\\n[1, 2]")
[{'text': '42\\n'}, {'text': '[1, 2]'}]
>>> cells.run("no_such_package.tensor(1)")[0]["error"].split(" needs ")[0]
'no_such_package'
"""

import ast
import contextlib
import io
import linecache
import re
import traceback

import d2lps
from d2lps.messages import text
from d2lps.messages.raised import Brief

_NOTEBOOK = re.compile(r'href="\.\./([\w-]+)/\w\w\.ipynb"')  # on the site, its page


class AbsentError(Brief, RuntimeError):
    """A cell uses something that a browser does not have."""


class Absent:
    """The stand-in for something that cannot be imported; every use raises :class:`AbsentError`."""

    def __init__(self, name: str):
        object.__setattr__(self, "_name", name)

    def _refuse(self, *_: object, **__: object) -> None:
        raise AbsentError(text("browser.absent", name=object.__getattribute__(self, "_name")))

    __call__ = __getattr__ = __setattr__ = __getitem__ = __setitem__ = __iter__ = __len__ = __enter__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __matmul__ = __eq__ = __lt__ = __gt__ = __bool__ = __str__ = _refuse
    __hash__ = None


class Cells:
    """The cells of one chapter, with the names that they share."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "__main__", "display": self._show}
        self._outputs: list[dict[str, str]] = []
        self._count = 0

    def run(self, source: str) -> list[dict[str, str]]:
        """Run a cell and return its outputs in order.

        Args:
            source: The code; the value of a last expression is shown, as in a notebook.

        Returns:
            Each has one key: ``"text"`` (printed), ``"html"``, or ``"error"`` (a sentence, always the last).
        """
        self._outputs, self._count = [], self._count + 1
        name = f"<cell {self._count}>"
        # inspect.getsource and tracebacks read the cell here.
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        try:
            with contextlib.redirect_stdout(_Printed(self._outputs)):
                self._run(source, name)
        except SyntaxError as error:
            self._outputs.append({"error": text("browser.at", line=error.lineno, error=f"SyntaxError: {error.msg}")})
        except AbsentError as error:
            self._outputs.append({"error": str(error)})
        except BaseException as error:  # exit() in a cell must not end the page's Python
            self._outputs.append({"error": _sentence(error, name)})
        return self._outputs

    def _run(self, source: str, name: str) -> None:
        body = ast.parse(source, name).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        for statement in body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement, name)
            else:
                exec(compile(ast.Module([statement], []), name, "exec"), self.names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), self.names)
            if value is not None and not source.rstrip().endswith(";"):
                self._show(value)

    def _import(self, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        """Import one name after another; those that cannot be imported become Absent."""
        for alias in statement.names:
            fields = {"module": statement.module, "level": statement.level} if hasattr(statement, "module") else {}
            one = ast.copy_location(type(statement)(names=[alias], **fields), statement)
            try:
                exec(compile(ast.Module([one], []), name, "exec"), self.names)
            except ImportError:
                bound = alias.asname or (alias.name if fields else alias.name.partition(".")[0])
                self.names[bound] = Absent(alias.name)

    def _show(self, *values: object) -> None:
        for value in values:
            html = _NOTEBOOK.sub(r'href="\1.html"', form(value))
            self._outputs.append({"html": html} if html else {"text": repr(value)})


class _Printed(io.TextIOBase):
    """A file whose text becomes outputs: what is printed without another output between is one."""

    def __init__(self, outputs: list[dict[str, str]]):
        self.outputs, self.last = outputs, None

    def write(self, piece: str) -> int:
        if not self.outputs or self.outputs[-1] is not self.last:
            self.last = {"text": ""}
            self.outputs.append(self.last)
        self.last["text"] += piece
        return len(piece)


def form(value: object) -> str:
    """Return a value as HTML, as a notebook would show it; empty if it has no such form."""
    from d2lps.notebook.grading import Verdict
    from d2lps.notebook.shown import FORMS
    from d2lps.view.player import watch

    if isinstance(value, Verdict):
        return value._repr_html_() + (watch(value.trace)._repr_html_() if value.trace else "")
    for kind in type(value).__mro__:
        if shown_as := FORMS.get((kind.__module__, kind.__name__)):
            return shown_as(value) or ""
    if hasattr(type(value), "_repr_html_"):
        return value._repr_html_() or ""
    if hasattr(type(value), "_repr_mimebundle_"):
        with contextlib.suppress(ImportError):  # code is highlighted by a package that a browser lacks
            return value._repr_mimebundle_().get("text/html", "")
    return ""


def passed() -> list[str]:
    """Return the exercises that were passed since Python began."""
    return [id for exercises in d2lps.progress().chapters.values() for id, day in exercises.items() if day]


def begin(language: str) -> Cells:
    """Return the first cells of a page in that language; names of d2lps that need torch become Absent."""
    d2lps.speak(language)
    real = d2lps.__getattr__

    def attribute(name: str) -> object:
        try:
            return real(name)
        except ImportError:
            return Absent(f"d2lps.{name}")

    d2lps.__getattr__ = attribute
    cells = Cells()
    cells.names["d2lps"] = d2lps
    return cells


def _sentence(error: BaseException, name: str) -> str:
    line = next((at.lineno for at in reversed(traceback.extract_tb(error.__traceback__)) if at.filename == name), None)
    sentence = str(error)
    sentence = f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
    return text("browser.at", line=line, error=sentence) if line else sentence

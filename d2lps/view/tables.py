"""Text shown in a notebook: the source code of a function, and tables of results."""

import ast
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable

from d2lps.messages import html_language, named, text
from d2lps.plan.acts import show_step
from d2lps.plan.plan import Plan
from d2lps.trace import Trace
from d2lps.units import show_integer, show_number, show_seconds


class Source:
    """The source code of a function, highlighted in a notebook and plain elsewhere. Made by :func:`source`."""

    def __init__(self, code: str):
        self.code = code

    def __repr__(self) -> str:
        return self.code

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.code, "text/markdown": f"```python\n{self.code}\n```"}


def source(thing: Callable, doc: bool = False) -> Source:
    """Return the source code of a function or class as it runs in d2lps.

    Args:
        thing: The function or class to show.
        doc: True to show its docstring too.

    Returns:
        Code highlighted in a notebook and plain when printed; its text is ``.code``.

    Raises:
        OSError, TypeError: If it has no source code, such as a builtin.

    Example:
        >>> from d2lps.view.drawing.svg import (along)
        >>> source(along)
        def along(line: Line, part: float) -> Point:
            (ax, ay), (bx, by) = line
            return ax + (bx - ax) * part, ay + (by - ay) * part
    """
    code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    return Source(re.sub(r"  # (fmt|noqa)\b.*", "", code if doc else _without_docstring(code)))


def _without_docstring(code: str) -> str:
    defined, lines = ast.parse(code).body[0], code.splitlines()
    if not isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not ast.get_docstring(defined):
        return code
    first = defined.body[0]
    before, after = lines[: first.lineno - 1], lines[first.end_lineno :]
    while after and not after[0].strip():
        del after[0]
    return "\n".join(before + after)


# A table wider than its page scrolls by itself. A fixed shadow at an edge shows that there is more; covers of paper
# scroll with the content and hide the shadow at an edge beyond which there is nothing.
PAPER = "var(--jp-layout-color0,var(--pst-color-background,Canvas))"
SHADOW = "rgba(128,128,128,.55),rgba(128,128,128,0)"
SCROLLS = (
    "overflow-x:auto;max-width:100%;background:"
    f"linear-gradient({PAPER},{PAPER}) 0 0/18px 100% no-repeat local,"
    f"linear-gradient({PAPER},{PAPER}) 100% 0/18px 100% no-repeat local,"
    f"linear-gradient(to right,{SHADOW}) 0 0/12px 100% no-repeat scroll,"
    f"linear-gradient(to left,{SHADOW}) 100% 0/12px 100% no-repeat scroll"
)


_NUMBER = re.compile(r"([~<] ?)?[-+−]?\d|[–✓✗]$")  # the beginning of a cell in a column of numbers


class Table:
    """Rows under headings: aligned text, or HTML in a notebook. Made by :func:`table`."""

    def __init__(self, columns: list[str | int], values: list[list[object]]):
        self._columns, self._values = columns, values

    def bars(self, *columns: str, **options):
        """Return the table as a picture: a bar per row, stacked from ``columns``; for options see ``charts.Chart``."""
        from d2lps.view.charts import Chart

        return Chart(self, dict(zip(self._columns, self.heads, strict=True)), True, columns, **options)

    def dots(self, *columns: str, **options):
        """Return the table as a picture: a dot per cell of ``columns``, or a line if it has two numbers, ``3 … 4``."""
        from d2lps.view.charts import Chart

        return Chart(self, dict(zip(self._columns, self.heads, strict=True)), False, columns, **options)

    @property
    def heads(self) -> list[str]:
        """The headings, in the language in force."""
        return [
            text(f"table.{column}") if isinstance(column, str) else show_integer(column) for column in self._columns
        ]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of each row, in the language in force."""
        return [[_cell(value) for value in row] for row in self._values]

    def __repr__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        # Words are aligned left, numbers right. A number and its unit stay on one line on any page; headings may break,
        # so that no column is pushed out of sight.
        heads, rows = self.heads, self.rows
        columns = [[row[i] for row in rows] for i in range(len(heads))]
        sides = ["right" if i and all(map(_NUMBER.match, column)) else "left" for i, column in enumerate(columns)]

        def html_row(tag: str, look: str, cells: list[str]) -> str:
            columns = "".join(
                f'<{tag} style="{look};text-align:{side}">{html.escape(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{columns}</tr>"

        body = "".join(html_row("td", "white-space:nowrap", cells) for cells in rows)
        head = html_row("th", "white-space:normal;vertical-align:bottom;word-break:keep-all", heads)
        return f'<div style="{SCROLLS}" tabindex="0"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


STEPS = 40  # steps of a plan that are shown


def plan_table(plan: Plan) -> str:
    """Return the text of ``print(plan)`` as HTML, since fonts for code lack letters and misplace accents."""
    nodes, shares, *_ = str(plan).splitlines()
    cell = "text-align:left;vertical-align:top;padding:0 1.2em 0 0;white-space:nowrap"
    rows = []
    for number, step in enumerate(plan.steps[:STEPS], 1):
        acts = " &emsp; ".join(f'<span style="white-space:nowrap">{html.escape(act)}</span>' for act in show_step(step))
        label = html.escape(text("plan.step", step=number))
        rows.append(
            f'<tr style="background:none"><th scope="row" style="{cell}">{label}</th>'
            f'<td style="text-align:left;white-space:normal">{acts}</td></tr>'
        )
    rest = "<p>…</p>" if len(plan.steps) > STEPS else ""
    style = "margin:.3em 0;border-spacing:0 .1em;border-collapse:separate"
    return (
        f'<div class="d2lps-plan" lang="{html_language()}"><p style="margin:0">{html.escape(nodes)}<br>'
        f'{html.escape(shares)}</p><table style="{style}"><tbody>{"".join(rows)}</tbody></table>{rest}</div>'
    )


def table(*columns: str | int, rows: Iterable[Iterable[object]]) -> Table:
    """Return a table in the language in force.

    Args:
        *columns (str or int): The headings: names of the sentences ``table.<column>`` of :mod:`d2lps.messages`, or
            numbers.
        rows (iterable of iterables): The cells of each row. A trace is shown by its duration, an order of additions as
            a sum, True and False as ✓ and ✗, None as –, numbers by :mod:`d2lps.units`, a known name in the language in
            force, and other values by ``str``.

    Returns:
        A table that a notebook shows as HTML, and ``print`` as aligned text.

    Example:
        >>> table("strategy", "shared", rows=[["GPU 0", None]])
        strategy   shared links
        GPU 0      –
    """
    return Table([*columns], [[*row] for row in rows])


def _cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "✓" if value else "✗"
        case Trace():
            return show_seconds(value.duration)
        case int():
            return show_integer(value)
        case float():
            return show_number(value)
        case str():
            return named(value)
        case (first, second):
            right = f"({_cell(second)})" if isinstance(second, tuple) else second
            return f"{_cell(first)} + {right}"
        case _:
            return str(value)

"""Things shown in a notebook: the very function that runs, and tables of what came out."""

import ast
import html
import inspect
import re
import textwrap
from collections.abc import Iterable

from d2lps.messages import html_language, named, text
from d2lps.plan.acts import show_step
from d2lps.plan.plan import Plan
from d2lps.trace import Trace
from d2lps.units import show_seconds


class Source:
    """A function's source code, highlighted in a notebook and plain elsewhere. Made by :func:`source`.

    Parameters
    ----------
    code : str
        The lines of Python.
    """

    def __init__(self, code: str):
        self.code = code

    def __repr__(self) -> str:
        return self.code

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.code, "text/markdown": f"```python\n{self.code}\n```"}


def source(thing: object, doc: bool = False) -> Source:
    """The source code of a function or class as it stands in d2lps.

    Parameters
    ----------
    thing : function or class
        What is shown.
    doc : bool
        Whether its docstring is shown too.

    Returns
    -------
    Source
        Highlighted in a notebook, plain when printed; its text is ``.code``.

    Raises
    ------
    OSError, TypeError
        If there is no source code of it, as of a builtin.

    Examples
    --------
    >>> from d2lps.view.drawing.svg import along
    >>> source(along)
    def along(line: Line, part: float) -> Point:
        (ax, ay), (bx, by) = line
        return ax + (bx - ax) * part, ay + (by - ay) * part
    """
    code = textwrap.dedent(inspect.getsource(thing)).rstrip()
    if not doc and inspect.getdoc(thing):
        code = _without_docstring(code)
    return Source(re.sub(r"  # (fmt|noqa)\b.*", "", code))


def _without_docstring(code: str) -> str:
    first, lines = ast.parse(code).body[0].body[0], code.splitlines()
    before, after = lines[: first.lineno - 1], lines[first.end_lineno :]
    while after and not after[0].strip():
        del after[0]
    return "\n".join(before + after)


# A table wider than its page scrolls by itself, and a shadow at an edge tells that there is more: it stays where it is,
# while the covers of paper go along with what is scrolled, and hide it where nothing is left to see.
PAPER = "var(--jp-layout-color0,var(--pst-color-background,Canvas))"
SHADOW = "rgba(128,128,128,.55),rgba(128,128,128,0)"
SCROLLS = (
    "overflow-x:auto;max-width:100%;background:"
    f"linear-gradient({PAPER},{PAPER}) 0 0/18px 100% no-repeat local,"
    f"linear-gradient({PAPER},{PAPER}) 100% 0/18px 100% no-repeat local,"
    f"linear-gradient(to right,{SHADOW}) 0 0/12px 100% no-repeat scroll,"
    f"linear-gradient(to left,{SHADOW}) 100% 0/12px 100% no-repeat scroll"
)


_NUMBER = re.compile(r"(~ ?)?[-+−]?\d|[–✓✗]$")  # how a cell of numbers begins, or one that has none


class Table:
    """Rows under headings: aligned text, or HTML in a notebook. Made by :func:`table`.

    Parameters
    ----------
    heads : list of str
        The headings; also an attribute.
    rows : list of list of str
        The cells of each row, as many as headings; also an attribute.
    """

    def __init__(self, heads: list[str], rows: list[list[str]]):
        self.heads, self.rows = heads, rows

    def __repr__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        # Words begin at the left, numbers end at the right; a number stays with its unit, however narrow the page. A
        # heading is broken into lines rather than that its column lies out of sight.
        columns = [[each[i] for each in self.rows] for i in range(len(self.heads))]
        sides = ["right" if i and all(map(_NUMBER.match, column)) else "left" for i, column in enumerate(columns)]

        def row(tag: str, look: str, cells: list[str]) -> str:
            filled = "".join(
                f'<{tag} style="{look};text-align:{side}">{html.escape(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{filled}</tr>"

        body = "".join(row("td", "white-space:nowrap", cells) for cells in self.rows)
        head = row("th", "white-space:normal;vertical-align:bottom;word-break:keep-all", self.heads)
        inside = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        return f'<div style="{SCROLLS}" tabindex="0">{inside}</div>'


STEPS = 40  # of a plan that are shown


def plan_table(plan: Plan) -> str:
    """The same as ``print(plan)``, as HTML: fonts for code lack letters, and misplace accents."""
    nodes, shares, *_ = str(plan).splitlines()
    cell = "text-align:left;vertical-align:top;padding:0 1.2em 0 0;white-space:nowrap"
    rows = []
    for number, step in enumerate(plan.steps[:STEPS], 1):
        acts = " &emsp; ".join(f'<span style="white-space:nowrap">{html.escape(act)}</span>' for act in show_step(step))
        said = html.escape(text("plan.step", step=number))
        rows.append(
            f'<tr style="background:none"><th scope="row" style="{cell}">{said}</th>'
            f'<td style="text-align:left;white-space:normal">{acts}</td></tr>'
        )
    rest = "<p>…</p>" if len(plan.steps) > STEPS else ""
    style = "margin:.3em 0;border-spacing:0 .1em;border-collapse:separate"
    return (
        f'<div class="d2lps-plan" lang="{html_language()}"><p style="margin:0">{html.escape(nodes)}<br>'
        f'{html.escape(shares)}</p><table style="{style}"><tbody>{"".join(rows)}</tbody></table>{rest}</div>'
    )


def table(*columns: str, rows: Iterable[Iterable[object]]) -> Table:
    """A table in the language in force.

    Parameters
    ----------
    *columns : str or int
        The headings: names of the sentences ``table.<column>`` of :mod:`d2lps.messages`, or numbers.
    rows : iterable of iterables
        The cells of each row. A trace is shown by its duration, an order of additions as a sum, True and False as
        ✓ and ✗, None as –, floats with four digits, a known name in the language in force, anything else as its
        ``str``.

    Returns
    -------
    Table
        A notebook shows it; printed, it is aligned text.

    Examples
    --------
    >>> table("strategy", "shared", rows=[["GPU 0", None]])
    strategy   shared links
    GPU 0      –
    """

    def cell(value: object) -> str:
        match value:
            case None:
                return "–"
            case bool():
                return "✓" if value else "✗"
            case Trace():
                return show_seconds(value.duration)
            case float():
                return f"{value:.4g}"
            case str():
                return named(value)
            case (first, second):
                right = f"({cell(second)})" if isinstance(second, tuple) else second
                return f"{cell(first)} + {right}"
            case _:
                return str(value)

    heads = [text(f"table.{column}") if isinstance(column, str) else str(column) for column in columns]
    return Table(heads, [[cell(value) for value in row] for row in rows])

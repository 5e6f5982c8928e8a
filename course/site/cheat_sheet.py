"""The cheat sheet: the notation of plans, what algorithms cost, and which framework does what.

The texts are ``chapters/cheatsheet/``. A formula is written once, here, as Python: the page shows it as TeX, and a
test computes it and compares it with plans, schedules and runs. ``[[formula:ring]]`` stands for one in a text, and
``[[plan]]`` for :data:`EXAMPLE` and what it prints and draws.
"""

import ast
import html
import re
from collections.abc import Iterator

from course.book.findings import BookError
from course.book.library import Book
from course.site import outputs
from course.site.in_browser import Cells
from course.site.linked import linked
from course.site.prose import Prose, code
from d2lps.messages import only

FOLDER = "cheatsheet"
EXAMPLE = """\
from d2lps import Plan, Send, cost, draw
from d2lps import nvswitch
a, b = "gpu0", "gpu1"
half = {"g1": "1/2", "g2": "1/2"}
plan = Plan([a, b], half, [
    [Send(a, b, "g2"), Send(b, a, "g1")],
    [Send(a, b, "g1", "copy"),
     Send(b, a, "g2", "copy")],
])
print(plan)
place = nvswitch(2, "16 GB/s", links=1)
draw(cost.shared(plan, place, "160 MB"))"""

FORMULAS = {
    "message": "alpha + S/B",
    # an all-reduce of S bytes between n nodes, each with a link of B bytes per second and direction
    "star": "2*(alpha + (n - 1)*S/B)",
    "shards": "2*(alpha + (n - 1)/n*S/B)",
    "ring": "2*(n - 1)*(alpha + S/(n*B))",
    "tree": "2*ceil(lg(n))*(alpha + S/B)",
    "recursive-doubling": "lg(n)*(alpha + S/B)",
    "halving-doubling": "2*(alpha*lg(n) + (n - 1)/n*S/B)",
    # m machines: k servers beside them; n GPUs in each, B_1 inside and B_2 between machines
    "servers": "2*max(1, m/k)*S/B",
    "two-levels": "2*(n - 1)*S/B_1 + 2*(m - 1)/m*S/B_2",
    "rail-wise": "2*(n - 1)/n*S/B_1 + 2*(m - 1)/m*S/(n*B_2)",
    # busbw = factor · S/T
    "factor-all-reduce": "2*(n - 1)/n",
    "factor-parts": "(n - 1)/n",
    "factor-root": "1",
    # a pipeline of p devices and m micro-batches, v stages per device
    "bubble": "(p - 1)/(m + p - 1)",
    "bubble-interleaved": "(p - 1)/(v*m + p - 1)",
    "saved-gpipe": "m",
    "saved-1f1b": "min(m, p - i)",
    # bytes per parameter, mixed precision with Adam; bytes sent per step, S bytes of weights, m micro-batches
    "kept-0": "16",
    "kept-1": "4 + 12/n",
    "kept-2": "2 + 14/n",
    "kept-3": "16/n",
    "sent-0": "2*(n - 1)/n*S",
    "sent-2": "(m + 1)*(n - 1)/n*S",
    "sent-3": "3*m*(n - 1)/n*S",
    # staleness: n workers that never wait, and the largest learning rate times curvature
    "staleness": "n - 1",
    "cliff": "2*sin(pi/(4*tau + 2))",
    # delta to save, a failure every M
    "young": "sqrt(2*delta*M)",
    "daly": "sqrt(2*delta*M)*(1 + sqrt(delta/(2*M))/3 + delta/(18*M)) - delta",
    "loss": "sqrt(2*delta/M)",
}
_NAMES = {name: f"\\{name}" for name in ("alpha", "delta", "tau", "pi")}
_AROUND = {"ceil": (r"\lceil ", r" \rceil"), "sqrt": (r"\sqrt{", "}")}
_PLACE = re.compile(r"\[\[formula:([\w-]+)\]\]")


def tex(expression: str) -> str:
    """Return an expression of :data:`FORMULAS` as TeX.

    >>> print(tex("2*(n - 1)/n*S/B"))
    2 \\frac{n - 1}{n} \\frac{S}{B}
    """
    return _tex(ast.parse(expression, mode="eval").body)


def _tex(node: ast.expr) -> str:
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.Name(name):
            return _NAMES.get(name, name)
        case ast.Call(ast.Name(name), arguments):
            inside = ", ".join(map(_tex, arguments))
            if name in _AROUND:
                return inside.join(_AROUND[name])
            if name == "lg" and isinstance(arguments[0], ast.Name):
                return rf"\log_2 {inside}"
            return rf"\{name}\left({inside}\right)"
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right) if not _is_sum(right):
            return f"{_tex(left)} {'+' if isinstance(sign, ast.Add) else '-'} {_tex(right)}"
        case ast.BinOp(_, ast.Mult() | ast.Div()):
            return " ".join(_product(node))
    raise BookError(f"cheat_sheet.py: {ast.unparse(node)!r} cannot be shown; teach _tex to write it")


def _product(node: ast.expr) -> Iterator[str]:
    """Yield the factors of a product; a fraction has what stands directly before its division above it."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield from _product(left)
            yield from _product(right)
        case ast.BinOp(ast.BinOp(before, ast.Mult(), above), ast.Div(), below):
            yield from _product(before)
            yield rf"\frac{{{_tex(above)}}}{{{_tex(below)}}}"
        case ast.BinOp(above, ast.Div(), below):
            yield rf"\frac{{{_tex(above)}}}{{{_tex(below)}}}"
        case _ if _is_sum(node):
            yield rf"\left({_tex(node)}\right)"
        case _:
            yield _tex(node)


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def sheet(language: str, book: Book) -> str:
    """Return the body of the page.

    Raises BookError if there is no text in that language, or it names a formula that is not there.
    """
    file = book.chapters / FOLDER / f"{language}.md"
    if not file.is_file():
        raise BookError(f"{file} is missing; write the cheat sheet in that language, too")

    def shown(match: re.Match) -> str:
        if match[1] not in FORMULAS:
            raise BookError(f"{file}: there is no formula {match[1]!r}; take one of {', '.join(FORMULAS)}")
        return f"${tex(FORMULAS[match[1]])}$"

    before, _, after = _PLACE.sub(shown, file.read_text("utf-8")).partition("[[plan]]")
    prose = Prose(book, language)
    return f'<div class="sheet">{prose.markdown(before)}{_example(language)}{prose.markdown(after)}</div>'


def _example(language: str) -> str:
    """Return the code of the example, and what it prints and draws when it runs now."""
    printed, drawn = only(language, lambda: Cells().run(EXAMPLE))
    said = html.escape(printed["text"].rstrip())
    listing = f'{code(linked(EXAMPLE, {}))}<pre class="printed">{said}</pre>'
    return f'<div class="example"><div>{listing}</div><div class="shown">{outputs.lean(drawn["html"])}</div></div>'

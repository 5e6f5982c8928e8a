"""A cell's code as HTML: highlighted, and each public name of d2lps leads to where it is described.

What a name means is read from the code: from its imports, those of earlier cells, and what is bound to it since.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from itertools import accumulate

from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES

PLAIN = ("", "n", "p", "o", "w")  # names, signs and space have no colour of their own, and need no marks


def linked(source: str, addresses: Mapping[str, str], before: Iterable[str] = ()) -> str:
    """Python as HTML, as pygments highlights it; it belongs into ``<pre class="code">``.

    Parameters
    ----------
    source : str
        The code of a cell, which may have IPython's magics.
    known : mapping of str to str
        Full name → address: ``{"d2lps.ring": "api.html#ring"}``.
    before : iterable of str
        The cells before it. Those for all ranks (``%%px``) share no names with the others.

    Returns
    -------
    str
        The same text with marks. Where the code cannot be parsed it has no links.
    """
    code, links = _plain(source), {}
    if addresses:
        names = _imported(tuple(cell for cell in before if _on_ranks(cell) == _on_ranks(source)))
        links = _Names(names, addresses).follow(code)
    return "".join(
        f'<a href="{escape(links[at])}">{text}</a>' if at in links else text for at, text in _coloured(source, code)
    )


@cache
def _coloured(source: str, code: str) -> tuple[tuple[int, str], ...]:
    """Where each piece of the source begins, and its HTML: cells are the same in all languages, and on paper."""
    pieces = []
    for at, kind, value in PythonLexer().get_tokens_unprocessed(code):
        text = escape(source[at : at + len(value)], quote=False)
        while kind not in STANDARD_TYPES:
            kind = kind.parent
        if (look := STANDARD_TYPES[kind]) not in PLAIN and not text.isspace():
            text = f'<span class="{look}">{text}</span>'
        pieces.append((at, text))
    return tuple(pieces)


@cache
def _imported(cells: tuple[str, ...]) -> dict[str, str]:
    """What is known to the cell after these, each of which is read once, however many come after it."""
    if not cells:
        return {}
    read = _Names(_imported(cells[:-1]), {})
    read.follow(_plain(cells[-1]))
    return read.names


def _on_ranks(cell: str) -> bool:
    return cell.lstrip().startswith("%%px")


@cache
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _plain(source: str) -> str:
    """The code with its magics as comments of the same length."""
    if _parsed(source):
        return source
    lines = source.splitlines(keepends=True)
    for i, line in enumerate(lines):
        start = len(line) - len(line.lstrip())
        if line[start : start + 1] in ("%", "!"):
            lines[i] = f"{line[:start]}#{line[start + 1 :]}"
    return "".join(lines)


class _Names(ast.NodeVisitor):
    """Follows code in the order in which it runs: which names are d2lps' own, and where they are used.

    ``names``: what has been imported → its full name.
    """

    def __init__(self, names: Mapping[str, str], addresses: Mapping[str, str]):
        self.names, self.known = dict(names), addresses
        self.found: list[tuple[int, int, str]] = []

    def follow(self, source: str) -> dict[int, str]:
        """Where in the source a name begins that is known → its address."""
        tree = _parsed(source)
        if tree is None:
            self.names = {}  # who knows what it binds
            return {}
        self.visit(tree)
        lines = source.split("\n")
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        return {
            starts[line - 1] + len(lines[line - 1].encode()[:column].decode()): address
            for line, column, address in self.found
        }

    def use(self, line: int, column: int, full: str | None) -> None:
        if full in self.known:
            self.found.append((line, column, self.known[full]))

    def full(self, node: ast.expr) -> str | None:
        """The full name of ``d2lps.cost.shared``, wherever it begins."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        before = self.full(node.value) if isinstance(node, ast.Attribute) else None
        return f"{before}.{node.attr}" if before else None

    def bind(self, name: str, full: str = "") -> None:
        self.names.pop(name, None)
        if full.split(".")[0] == "d2lps":
            self.names[name] = full

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            package = alias.name.split(".")[0]
            self.bind(alias.asname or package, alias.name if alias.asname else package)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.use(alias.lineno, alias.col_offset, full)
            self.bind(alias.asname or alias.name, full)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.use(node.lineno, node.col_offset, self.names.get(node.id))
        else:
            self.bind(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        full = self.full(node)
        if full in self.known:  # the room that it is in needs no link of its own
            self.use(node.end_lineno, node.end_col_offset - len(node.attr.encode()), full)
        else:
            self.visit(node.value)

    # What is bound is bound after what is used beside it.

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit_all([node.value, *node.targets])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit_all([node.annotation, node.value, node.target])

    def visit_For(self, node: ast.For) -> None:
        self.visit_all([node.iter, node.target, *node.body, *node.orelse])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.visit_all([node.type])
        self.bind(node.name or "")
        self.visit_all(node.body)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic_visit(node)
        self.bind(node.name or "")

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        self.bind(node.rest or "")

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # Names of their own have functions, classes and comprehensions.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        possible = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        params = [param for param in possible if param is not None]
        self.visit_all(getattr(node, "decorator_list", ()))
        self.visit_all([*arguments.defaults, *arguments.kw_defaults, *(param.annotation for param in params)])
        self.visit_all([getattr(node, "returns", None)])
        self.bind(getattr(node, "name", ""))
        body = node.body if isinstance(node.body, list) else [node.body]
        self.inside(body, {param.arg for param in params} | _stored(body))

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self.bind(node.name)
        self.inside(node.body, set())

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.inside(ast.iter_child_nodes(node), _stored([node]))

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def inside(self, nodes: Iterable[ast.AST], local_names: set[str]) -> None:
        outside, self.names = self.names, {name: full for name, full in self.names.items() if name not in local_names}
        self.visit_all(nodes)
        self.names = outside


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are bound anywhere in there, other than by imports."""
    inner_nodes = [inner for node in nodes for inner in ast.walk(node)]
    names = {inner.id for inner in inner_nodes if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)}
    return names | {inner.name for inner in inner_nodes if isinstance(inner, ast.FunctionDef | ast.ClassDef)}

"""The code of a cell as HTML: highlighted, and each public name of d2lps is a link to its description.

The meaning of a name is read from the imports of its cell and of earlier cells. A name that the code binds in any other
way, even inside a function, gets no link.
"""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from itertools import accumulate

from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES, String

PLAIN = ("", "n", "p", "o", "w")  # names, signs and space have no color of their own


def linked(source: str, addresses: Mapping[str, str], before: Iterable[str] = ()) -> str:
    """Return the code of a cell as HTML for ``<pre class="code">``, highlighted by pygments.

    ``addresses`` maps full names to addresses, ``{"d2lps.ring": "api.html#ring"}``, and ``before`` has the cells before
    this one. Cells for all ranks (``%%px``) share no names with the others. Code that cannot be parsed has no links.
    """
    code, links = _plain(source), {}
    if addresses:
        links = _links(
            code, _imported(tuple(cell for cell in before if _on_ranks(cell) == _on_ranks(source))), addresses
        )
    return "".join(
        f'<a href="{escape(links[at])}">{text}</a>' if at in links else text for at, text in _highlighted(source, code)
    )


@cache  # cells are the same in all languages, and on paper
def _highlighted(source: str, code: str) -> tuple[tuple[int, str], ...]:
    """Return the position and the HTML of each piece of the source."""
    pieces: list[tuple[int, str, str]] = []
    for at, kind, value in PythonLexer().get_tokens_unprocessed(code):
        text = escape(source[at : at + len(value)], quote=False)
        while kind not in STANDARD_TYPES:
            kind = kind.parent
        look = "" if text.isspace() else STANDARD_TYPES[kind]
        if pieces and look == pieces[-1][1] and kind in String:  # the quotes of a string are tokens of their own
            at, _, before = pieces.pop()
            text = before + text
        pieces.append((at, look, text))
    return tuple((at, text if look in PLAIN else f'<span class="{look}">{text}</span>') for at, look, text in pieces)


def _on_ranks(cell: str) -> bool:
    return cell.lstrip().startswith("%%px")


@cache
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _plain(source: str) -> str:
    """Return the code with its magics as comments of the same length."""
    if _parsed(source):
        return source
    lines = source.splitlines(keepends=True)
    for i, line in enumerate(lines):
        start = len(line) - len(line.lstrip())
        if line[start : start + 1] in ("%", "!"):
            lines[i] = f"{line[:start]}#{line[start + 1 :]}"
    return "".join(lines)


@cache
def _imported(cells: tuple[str, ...]) -> dict[str, str]:
    """Return name → full name of what these cells have imported from d2lps."""
    tree = _parsed(_plain(cells[-1])) if cells else None
    return _names(tree, _imported(cells[:-1])) if tree else {}


def _names(tree: ast.Module, names: Mapping[str, str]) -> dict[str, str]:
    """Return ``names`` with the imports of this code, without the names that it binds otherwise."""
    names, bound, methods = dict(names), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                names[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node not in methods:
            bound.add(node.name)
            methods.update(node.body if isinstance(node, ast.ClassDef) else ())
    return {name: full for name, full in names.items() if name not in bound and full.split(".")[0] == "d2lps"}


def _links(source: str, names: Mapping[str, str], addresses: Mapping[str, str]) -> dict[int, str]:
    """Return position in the source → address, for each name that has an address."""
    tree = _parsed(source)
    if tree is None:
        return {}
    names, links, lines = _names(tree, names), {}, source.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))

    def full_name(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        before = full_name(node.value) if isinstance(node, ast.Attribute) else None
        return f"{before}.{node.attr}" if before else None

    def link(name: str | None, line: int, column: int) -> None:
        if name in addresses:
            links[starts[line - 1] + len(lines[line - 1].encode()[:column].decode())] = addresses[name]

    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Attribute) and (name := full_name(node)) in addresses:
            link(name, node.end_lineno, node.end_col_offset - len(node.attr.encode()))
            continue  # the names before the last dot need no links of their own
        if isinstance(node, ast.Name):
            link(full_name(node), node.lineno, node.col_offset)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                link(f"{node.module}.{alias.name}", alias.lineno, alias.col_offset)
        queue += ast.iter_child_nodes(node)
    return links

"""The part of a notebook that an answer needs: the statements that bind the names it uses, and so on.

So nothing else of a chapter runs: no training, no cluster, no check.
"""

import ast
import dis
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType

ASSIGNED = (ast.Assign, ast.AnnAssign, ast.AugAssign)
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAGIC = ("%%time", "%%capture")


@dataclass(eq=False)
class Cell:
    """A code cell: name, source and statements; ``error`` says why it cannot be parsed."""

    name: str
    source: str
    body: list[ast.stmt] = field(default_factory=list)
    error: str = ""
    line: int | None = None


def cell(name: str, source: str) -> Cell:
    """Parse a cell, with ``pass`` in the place of lines that only IPython understands.

    >>> cell("a", "%matplotlib inline\\nx = 1").error, len(cell("a", "!ls\\nx = 1").body)
    ('', 2)
    >>> cell("a", "x = ").error, cell("a", "x = ").line
    ('SyntaxError: invalid syntax', 1)
    """
    plain = _python(source)
    try:
        return Cell(name, plain, ast.parse(plain).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
        return Cell(name, plain, [], message[:200], getattr(error, "lineno", None))


def _python(source: str) -> str:
    lines = source.split("\n")
    if lines[0].startswith("%%"):
        if not lines[0].startswith(MAGIC):  # runs elsewhere, or is in another language
            return ""
        lines[0] = ""
    for at, line in enumerate(lines):
        bare = line.lstrip()
        if bare.startswith(("%", "!", "?")) and not _inside(lines[:at]):
            lines[at] = line[: len(line) - len(bare)] + "pass"
    return "\n".join(lines)


def _inside(lines: Sequence[str]) -> bool:
    """Return whether these lines end inside brackets or a multi-line text, where ``%`` is Python."""
    text = "\n".join(lines)
    try:
        ast.parse(text or "pass")
    except SyntaxError as error:
        return "never closed" in str(error.msg) or "unterminated triple" in str(error.msg)
    except (ValueError, RecursionError, MemoryError):
        return False
    return False


def bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds.

    >>> sorted(bound(ast.parse("from torch import nn as net, optim").body[0]))
    ['net', 'optim']
    """
    if isinstance(statement, DEFINED):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ASSIGNED):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _stored(node)}
    if isinstance(statement, ast.If | ast.Try | ast.With):  # for example around an import that may fail
        return {name for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement
                for name in bound(node)}  # fmt: skip
    return set()


def _stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def used(statement: ast.stmt) -> set[str]:
    """Return the names that a statement, or a function in it, looks up outside of itself.

    >>> sorted(used(ast.parse("def f(n):\\n    return [part(n, i) for i in range(n)]").body[0]))
    ['part', 'range']
    """
    try:
        return _looked_up(compile(ast.Module([statement], []), "cell", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it cannot run either
        return set()


def _looked_up(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_looked_up(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def used_in(expression: str) -> set[str]:
    """Return the names that an expression looks up."""
    return used(ast.parse(expression).body[0])


def needed(
    names: Iterable[str], own: Sequence[Cell], lesson: Sequence[Cell], at: int | None = None
) -> list[tuple[str, str, list[int]]]:
    """Return (name, source, numbers of statements) of each cell that is needed, those of the lesson first.

    A name that the notebook binds is taken from there, with the value it has when cell number ``at`` has run; any other
    name is taken from the lesson.

    >>> own = [cell("a", "x = 1\\nprint(x)"), cell("b", "def f():\\n    return x + y"), cell("c", "f = 3")]
    >>> needed(["f"], own, [cell("l", "y = 2")], at=1)
    [('l', 'y = 2', [0]), ('a', 'x = 1\\nprint(x)', [0]), ('b', 'def f():\\n    return x + y', [0])]
    """
    both = (lesson, own)
    homes = _homes(0, lesson, None) | _homes(1, own, at)
    chosen, ask, looked_up = set(), list(names), set()
    while ask:
        name = ask.pop()
        if name in looked_up:
            continue
        looked_up.add(name)
        for place in homes.get(name, ()):
            if place not in chosen:
                chosen.add(place)
                which, number, line = place
                ask += used(both[which][number].body[line])
    cells: dict[tuple[int, int], list[int]] = {}
    for which, number, line in sorted(chosen):
        cells.setdefault((which, number), []).append(line)
    return [(both[which][number].name, both[which][number].source, run) for (which, number), run in cells.items()]


def _homes(which: int, cells: Sequence[Cell], at: int | None) -> dict[str, list[tuple[int, int, int]]]:
    """Return name → statements that make its value when cell number ``at`` has run, or all if it is bound later."""
    homes: dict[str, list[tuple[int, int, int]]] = {}
    for number, cell in enumerate(cells):
        for line, statement in enumerate(cell.body):
            for name in bound(statement):
                before = homes.get(name, [])
                if at is not None and number > at and any(place[1] <= at for place in before):
                    continue
                anew = isinstance(statement, (*DEFINED, ast.Import, ast.ImportFrom)) or (
                    isinstance(statement, ast.Assign)
                    and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
                )
                homes[name] = [*([] if anew else before), (which, number, line)]
    return homes

"""Answers that a teacher should look at: those that only call the published function, and those that are alike."""

import ast
import hashlib
from collections.abc import Iterable, Sequence

from course.classes import slices
from course.classes.slices import Cell
from d2lps.notebook.grading.course import Texts
from d2lps.notebook.grading.mere_calls import only_calls, said

SMALLEST = 30  # statements and expressions beyond those of the stub; shorter answers are alike by chance


def own(names: Iterable[str], cells: Sequence[Cell], lesson: Sequence[Cell], at: int) -> list[ast.stmt]:
    """Return the statements that an answer in cell number ``at`` needs, without imports and those of the lesson."""
    given = {ast.dump(statement) for cell in lesson for statement in cell.body}
    needed = slices.needed(names, cells, (), at)
    bodies = [(slices.cell(name, source).body, run) for name, source, run in needed]
    chosen = [body[number] for body, run in bodies for number in run]
    return [one for one in chosen if not isinstance(one, ast.Import | ast.ImportFrom) and ast.dump(one) not in given]


def marks(texts: Texts, name: str, cells: Sequence[Cell], lesson: Sequence[Cell], at: int) -> tuple[str, str]:
    """Return the key of a note on an answer, or "", and a text that only equal answers share, or "" for a short one."""
    statements = own(slices.used_in(name), cells, lesson, at)
    bound = set().union(*map(slices.bound, statements))
    if any(only_calls(each, bound) for each in [one for one in statements if name in slices.bound(one)][-1:]):
        return "only-calls", ""
    plain, solutions = _without_names(statements), texts.folder / "solutions.py"
    if _size(statements) - _size(slices.cell("stub", texts.stub).body) < SMALLEST:
        return "", ""
    if solutions.is_file():  # it is not in a copy for learners
        cell = slices.cell("solutions", solutions.read_text("utf-8"))
        if plain == _without_names(own([texts.id.replace("-", "_")], [cell], (), 0)):
            return "as-published", ""
    return "", hashlib.sha256(plain.encode()).hexdigest()


def _size(code: list[ast.stmt]) -> int:
    return sum(isinstance(node, ast.expr | ast.stmt) for one in code for node in ast.walk(one))


def _without_names(statements: list[ast.stmt]) -> str:
    """Number the names that code binds, drop what says nothing, and return its text."""
    tree, numbers = ast.Module(statements, []), {}
    places = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.ClassDef: "name", ast.keyword: "arg"}
    named = [(node, places[type(node)]) for node in ast.walk(tree) if type(node) in places]
    used = [node for node, _ in named if isinstance(node, ast.keyword) or isinstance(getattr(node, "ctx", 0), ast.Load)]
    bound = {getattr(node, place) for node, place in named if node not in used}
    for node, place in named:
        name = getattr(node, place)
        if name in bound:
            setattr(node, place, numbers.setdefault(name, f"n{len(numbers)}"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Nonlocal | ast.Global):
            node.names = [numbers.get(name, name) for name in node.names]
        if isinstance(getattr(node, "body", None), list):
            node.body = said(node.body)
    return ast.dump(tree)

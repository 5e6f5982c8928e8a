"""Find answers that do nothing but call what the package has."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection

import d2lps


def calls_package(answer: Callable) -> bool:
    """Return whether an answer is a function of d2lps, or a function that only calls one; False if it cannot be read.

    >>> calls_package(d2lps.sharded), calls_package(len)
    (True, False)
    """
    if not inspect.isfunction(answer):
        return False
    if (answer.__module__ or "").startswith("d2lps."):
        return answer.__name__ in d2lps.__all__
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(answer))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    names = {*d2lps.__all__} & answer.__globals__.keys()
    return only_calls(definition, {name for name in names if answer.__globals__[name] is not getattr(d2lps, name)})


def only_calls(definition: ast.stmt, bound: Collection[str]) -> bool:
    """Return whether a definition is a function of d2lps, or does nothing but call one with its arguments.

    ``bound`` has the names that are not those of d2lps.
    """
    match definition:
        case ast.FunctionDef(body=[*_, ast.Return(ast.Call() as value)] as body) if len(said(body)) == 1:
            pass
        case ast.Assign(value=ast.Lambda(body=ast.Call() as value)) | ast.Assign(value=value):
            pass
        case _:
            return False
    parts = [*value.args, *(word.value for word in value.keywords)] if isinstance(value, ast.Call) else []
    match value.func if isinstance(value, ast.Call) else value:
        case ast.Name(function) | ast.Attribute(ast.Name(), function) if function not in bound:
            simple = all(isinstance(part, ast.Name | ast.Constant | ast.Starred) for part in parts)
            return simple and function in d2lps.__all__ and inspect.isfunction(getattr(d2lps, function))
    return False


def said(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements without texts that nothing uses, such as docstrings, and without imports."""
    texts = [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    return [one for one in body if one not in texts and not isinstance(one, ast.Import | ast.ImportFrom)]

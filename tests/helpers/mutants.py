"""Functions with a guard taken away: each goes by its name, and the guard by the names that it mentions.

    mutate(monkeypatch, "d2lps.kvstore.wire.channel:Channel.receive", never("crc32", "head"))

So a function may be written anew, with other conditions in another order: as long as it is called so and asks for the
same things, the mutant stays. Where there is nothing to take away any more, it says so.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable

import pytest

Change = Callable[[ast.FunctionDef], int]  # changes a function, and returns in how many places


def mutate(monkeypatch, where: str, *changes: Change) -> None:
    """Put a function that differs by ``changes`` in the place of ``where``: ``module:name``, ``module:Class.name``."""
    module, _, path = where.partition(":")
    *classes, name = path.split(".")
    owner = importlib.import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    function = inspect.unwrap(getattr(owner, name))
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for number, change in enumerate(changes, 1):
        assert change(tree.body[0]), f"change {number} finds nothing to change in {where}: mend this mutant"
    namespace = {}
    exec(compile(ast.fix_missing_locations(tree), inspect.getfile(function), "exec"), function.__globals__, namespace)
    monkeypatch.setattr(owner, name, namespace[name])


def mentions(node: ast.AST, names: tuple) -> bool:
    return all(any(_is(part, name) for part in ast.walk(node)) for name in names)


def _is(node: ast.AST, name: object) -> bool:
    """Return whether this is the name, the attribute or the constant ``name``."""
    return name in (getattr(node, "id", None), getattr(node, "attr", None)) or (
        isinstance(node, ast.Constant) and node.value == name and type(node.value) is type(name)
    )


def never(*names: object, instead: bool = False) -> Change:
    """Make conditions that mention ``names`` false; of several joined by ``and`` and ``or``, only those."""

    def without(condition: ast.expr) -> tuple[ast.expr, int]:
        if isinstance(condition, ast.BoolOp):
            condition.values, counts = zip(*map(without, condition.values), strict=True)
            condition.values = list(condition.values)
            return condition, sum(counts)
        return (ast.Constant(instead), 1) if mentions(condition, names) else (condition, 0)

    def change(function: ast.FunctionDef) -> int:
        total = 0
        for node in ast.walk(function):
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                node.test, count = without(node.test)
                total += count
        return total

    return change


def ever(*names: object) -> Change:
    """Make conditions that mention ``names`` true, as :func:`never` makes them false."""
    return never(*names, instead=True)


def instead(before: object, after: object) -> Change:
    """Replace the name, the attribute or the constant ``before`` by ``after``."""

    def change(function: ast.FunctionDef) -> int:
        nodes = [node for node in ast.walk(function) if _is(node, before)]
        for node in nodes:
            field = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}[type(node)]
            setattr(node, field, after)
        return len(nodes)

    return change


def zero(name: str) -> Change:
    """Assign 0 to the variable ``name``, instead of any other value."""

    def change(function: ast.FunctionDef) -> int:
        found = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and _is(node.targets[0], name)]
        for node in found:
            node.value = ast.Constant(0)
        return len(found)

    return change


def always(parameter: str, value: object) -> Change:
    """Set ``parameter`` to ``value`` whatever the caller gives."""

    def change(function: ast.FunctionDef) -> int:
        arguments = function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        function.body.insert(0, ast.Assign([ast.Name(parameter, ast.Store())], ast.Constant(value)))
        return names.count(parameter)

    return change


# ---------------------------------------------------------------- what fails


def run(test: str, folder) -> list[BaseException]:
    """Run ``test`` (``file::name``) in this process, with what is patched here, and return what it raised."""
    failures = []

    class Watch:
        @staticmethod
        def pytest_runtest_makereport(item, call) -> None:
            if call.excinfo:
                failures.append(call.excinfo.value)

    # The run around this one looks for unraisable exceptions; a search here would collect all garbage twice.
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "unraisableexception", "xdist")]
    pytest.main([test, *without, "-otimeout=0", f"--basetemp={folder}", "-x"], plugins=[Watch()])
    return failures

"""The part of a notebook that an answer needs: the statements that bind the names it uses, and so on.

So nothing else of a chapter runs: no training, no cluster, no check. IPython transforms the cells, and the compiler of
Python says which names a statement binds and uses, so a slice has the names that it would have in Jupyter.
"""

import ast
import dis
import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType

from IPython.core.inputtransformer2 import TransformerManager

RUNNING = ("time", "capture", "prun")  # magics that run their code in the notebook
CHANGING = frozenset(
    "append appendleft extend extendleft insert update add setdefault pop popitem popleft remove discard clear sort "
    "reverse subtract".split()
)  # methods that change an object, besides torch's, whose names end with one underscore
STORES, OUTER_STORES = ("STORE_NAME", "DELETE_NAME"), ("STORE_GLOBAL", "DELETE_GLOBAL")
LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
AT_ONCE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # code that runs where it stands
Place = tuple[int, int, int]  # 0 for the lesson and 1 for the notebook, the cell's number, the statement's number


@dataclass(eq=False)
class Cell:
    """A code cell: name, source and statements; ``error`` says why it cannot be parsed."""

    name: str
    source: str
    body: list[ast.stmt] = field(default_factory=list)
    error: str = ""
    line: int | None = None

    @cached_property
    def parts(self) -> "list[StatementNames]":
        return [StatementNames(statement) for statement in self.body]


def cell(name: str, source: str) -> Cell:
    """Parse a cell as IPython does; see :class:`Plain` for its commands.

    >>> cell("a", "%matplotlib inline\\nx = 1").error, len(cell("a", "!ls\\nx = 1").body)
    ('', 2)
    >>> ast.unparse(cell("a", "%%time\\n%time x = 1\\ny?").body)
    'x = 1\\nNone'
    >>> cell("a", "x = ").error, cell("a", "x = ").line
    ('SyntaxError: invalid syntax', 1)
    """
    try:
        return Cell(name, source, _parsed(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError, RuntimeError) as error:
        message = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
        return Cell(name, source, [], message[:200], getattr(error, "lineno", None))


def _parsed(source: str, line: int = 0) -> list[ast.stmt]:
    """Return the statements of a cell whose first line has the number ``line`` + 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts
        try:
            tree = ast.parse(TransformerManager().transform_cell(source))
        except SyntaxError:
            words = source.split()
            if len(source.strip().splitlines()) != 1 or words[0] not in RUNNING:
                raise
            return _parsed("%" + source.strip(), line)  # a cell of one line needs no %
    return Plain().visit(ast.increment_lineno(tree, line)).body


class Plain(ast.NodeTransformer):
    """Replaces what only IPython can run.

    The code of ``%time`` and its like takes their place. Every other command is None; where its value is used, there is
    a name that nothing binds, such as ``!pwd``.
    """

    def visit_Expr(self, node: ast.Expr) -> object:
        match _command(node.value):
            case None:
                return self.generic_visit(node)
            case "run_line_magic", magic, code if magic in RUNNING:
                body = self._body(node, code)
            case "run_cell_magic", "time", str(), code if not node.value.args[1].value.strip():
                body = self._body(node, code, 1)
            case "run_cell_magic", "capture" | "prun" as magic, options, code:
                kept = [word for word in options.split() if word.isidentifier() and magic == "capture"]
                body = self._body(node, code, 1)
                body += [ast.Assign([ast.Name(name, ast.Store())], ast.Name("%%capture", ast.Load())) for name in kept]
            case _:
                body = []
        body = body or [ast.Expr(ast.Constant(None))]
        return [ast.fix_missing_locations(ast.copy_location(one, node) if not hasattr(one, "lineno") else one)
                for one in body]  # fmt: skip

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match _command(node):
            case None:
                return self.generic_visit(node)
            case "run_line_magic", "time", code:
                match self._body(node, code):
                    case [ast.Expr(value)]:
                        return value
                value = ast.Constant(None)
            case "system", *_:
                value = ast.Constant(None)
            case "getoutput", code, *_:
                value = ast.Name(f"!{code}", ast.Load())
            case _, magic, *_:
                value = ast.Name(f"%{magic}", ast.Load())
        return ast.copy_location(value, node)

    def _body(self, node: ast.AST, code: str, line: int = 0) -> list[ast.stmt]:
        try:
            return _parsed(code, node.lineno - 1 + line)
        except SyntaxError:  # IPython raises it when the command runs, after the statements before it
            return []


def _command(node: ast.expr) -> tuple[str, ...] | None:
    """Return method and arguments of a call of ``get_ipython()`` with texts, else None."""
    match node:
        case ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython"), [], []), method), arguments):
            if arguments and all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in arguments):
                return (method, *(part.value for part in arguments))
    return None


class StatementNames:
    """The names of one statement.

    ``bound`` are bound or changed when it runs, ``anew`` of them regardless of what they were. ``now`` are looked up
    when it runs, ``later`` when a function in it is called, which then binds or changes ``outer``.
    """

    def __init__(self, statement: ast.stmt):
        code = compiled(statement)
        now = [*_at_once(code)] if code else []
        later = [inner for one in now for part in _inner(one) if part not in now for inner in _all(part)]
        self.stored = (_names(code, STORES) if code else set()).union(*(_names(one, OUTER_STORES) for one in now))
        self.bound = self.stored | _changed(_outside_functions(statement))
        self.now = set().union(*(_names(one, LOADS) for one in now))
        self.later = set().union(*(_names(one, LOADS) for one in later))
        self.outer = set().union(*(_names(one, OUTER_STORES) for one in later)) | (
            _changed(ast.walk(statement)) & self.later if later else set()
        )
        self.anew = _bound_anew(statement) & self.stored - self.now
        self.stars = isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        self.future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        self.checks = isinstance(statement, ast.Expr) and "check_exercise" in ast.dump(statement)


def compiled(statement: ast.stmt, flags: int = 0) -> CodeType | None:
    """Return the code of a statement, which may await; None if it cannot run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(ast.Module([statement], []), "cell", "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _inner(code):
        yield from _all(inner)


def _at_once(code: CodeType) -> Iterator[CodeType]:
    """Yield the code and the bodies of classes and comprehensions in it, which run with it."""
    yield code
    for inner in _inner(code):
        if inner.co_name in AT_ONCE or not inner.co_flags & inspect.CO_OPTIMIZED:
            yield from _at_once(inner)


def _names(code: CodeType, operations: Sequence[str]) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in operations}
    return {name for name in names if not (name.startswith("__") and name.endswith("__"))}


def _outside_functions(statement: ast.AST) -> Iterator[ast.AST]:
    yield statement
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(statement):
            yield from _outside_functions(child)


def _changed(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of objects of which an item or attribute is set, or a method called that changes them."""
    names = set()
    for node in nodes:
        match node:
            case ast.Subscript(base, _, ast.Store() | ast.Del()) | ast.Attribute(base, _, ast.Store() | ast.Del()):
                pass
            case ast.Call(ast.Attribute(base, method)) if method in CHANGING or (
                method.endswith("_") and not method.endswith("__")
            ):
                pass
            case _:
                continue
        while isinstance(base, ast.Subscript | ast.Attribute):
            base = base.value
        names |= {base.id} if isinstance(base, ast.Name) else set()
    return names


def _bound_anew(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.Import(aliases) | ast.ImportFrom(_, aliases):  # `import a.b` adds to `a`
            return {alias.asname or alias.name for alias in aliases}
        case ast.Assign(targets):
            return {name for target in targets for name in _targets(target)}
        case ast.AnnAssign(target, _, value) if value:
            return {*_targets(target)}
    return set()


def _targets(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(name):
            yield name
        case ast.Tuple(items) | ast.List(items):
            for item in items:
                yield from _targets(item)
        case ast.Starred(item):
            yield from _targets(item)


def bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds.

    >>> sorted(bound(ast.parse("from torch import nn as net, optim").body[0]))
    ['net', 'optim']
    >>> sorted(bound(ast.parse("for i, *rest in pairs:\\n    last = (best := i)").body[0]))
    ['best', 'i', 'last', 'rest']
    """
    return StatementNames(statement).stored


def used(statement: ast.stmt) -> set[str]:
    """Return the names that a statement, or a function in it, looks up outside of itself.

    >>> sorted(used(ast.parse("def f(n):\\n    return [part(n, i) for i in range(n)]").body[0]))
    ['part', 'range']
    """
    part = StatementNames(statement)
    return part.now | part.later


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
    homes = Homes(both, at)
    chosen: set[Place] = set()
    asked: set[tuple[str, Place | None]] = set()
    ask: list[tuple[str, Place | None]] = [(name, None) for name in names]
    while ask:
        query = ask.pop()
        if query in asked:
            continue
        asked.add(query)
        for place in homes.of(*query):
            if place not in chosen:
                chosen.add(place)
                part = homes.parts[place]
                ask += [(name, place) for name in part.now] + [(name, None) for name in part.later]
    if chosen:
        chosen |= {place for place, part in homes.parts.items() if part.future and place < max(chosen)}
    cells: dict[tuple[int, int], list[int]] = {}
    for which, number, line in sorted(chosen):
        cells.setdefault((which, number), []).append(line)
    return [(both[which][number].name, both[which][number].source, run) for (which, number), run in cells.items()]


class Homes:
    """The statements that give a name its value, at a statement or after cell number ``at``."""

    def __init__(self, both: Sequence[Sequence[Cell]], at: int | None):
        self.end = (1, len(both[1]) if at is None else at + 1, 0)
        self.parts: dict[Place, StatementNames] = {
            (which, number, line): part
            for which, cells in enumerate(both)
            for number, one in enumerate(cells)
            for line, part in enumerate(one.parts)
        }
        self.stars = [place for place, part in self.parts.items() if part.stars]
        self.places: dict[str, list[Place]] = defaultdict(list)
        outer = self._outer()
        for place, part in self.parts.items():
            calls = set() if part.checks else set().union(*(outer.get(name, ()) for name in part.now))
            for name in part.bound | calls:
                self.places[name].append(place)

    def _outer(self) -> dict[str, set[str]]:
        """Return function → names that it, or a function that it calls, binds or changes outside of itself."""
        outer: dict[str, set[str]] = {}
        functions = [part for part in self.parts.values() if part.later or part.outer]
        grew = True
        while grew:
            grew = False
            for part in functions:
                names = part.outer.union(*(outer.get(name, ()) for name in part.later))
                for function in part.stored:
                    if not names <= outer.setdefault(function, set()):
                        outer[function] |= names
                        grew = True
        return outer

    def of(self, name: str, by: Place | None) -> list[Place]:
        """Return the statements before ``by``, or before the end if it is None, that make the value of a name."""
        places = self.places.get(name, [])
        lesson, own = ([place for place in places if place[0] == which] for which in (0, 1))
        if by and not by[0]:
            places = [place for place in lesson if place < by] or own or lesson
        else:
            before = [place for place in own if place < (by or self.end)]
            places = before or (lesson if by else []) or own
            if not any(name in self.parts[place].anew for place in places) and places != lesson:
                places = lesson + places
        anew = [number for number, place in enumerate(places) if name in self.parts[place].anew]
        stars = [] if any(name in self.parts[place].stored for place in places) else self.stars
        return stars + places[anew[-1] if anew else 0 :]


def not_run(cells: Iterable[tuple[str, str, list[int]]]) -> list[str]:
    """Return the commands of IPython whose values these statements need, each with the names that it would bind.

    >>> not_run([("a", "x = !pwd\\ny = %env HOME", [0, 1])])
    ['x = !pwd', 'y = %env']
    """
    commands = []
    for name, source, run in cells:
        body = cell(name, source).body
        for statement in (body[number] for number in run):
            names = [f"{name} = " for name in sorted(_bound_anew(statement)) if isinstance(statement, ast.Assign)]
            commands += ["".join(names) + command for command in sorted(used(statement)) if command[0] in "!%"]
    return list(dict.fromkeys(commands))

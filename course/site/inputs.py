"""Find everything in the repository that the outputs of a chapter depend on.

``Package`` follows imports, from the chapter's code on, also imports inside functions and what ``d2lps`` imports on
first use. If a room's ``__init__`` only imports names, it is a *door*: of these names, only those count that are used
behind it, although Python runs the modules of all. A comment or a docstring counts only in a function that the chapter
shows by ``d2lps.source``. The map in the last cell of each notebook counts for nothing, because no page shows it.
"""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import d2lps
from course.book.findings import BookError
from course.book.library import digest
from course.handout import PLAN
from d2lps.notebook.grading.course import TITLE

DATA = (".toml", ".js", ".css")  # files that modules of the package read, each beside its module
WORDS = (".md", ".ipynb", ".txt", ".pyc")  # files of a chapter that a run does not depend on
# A name or text in the code of a chapter → files outside of the chapter that are then read.
SHARED = {
    "prose": ("chapters/[0-9]*/*.md",),
    "course_map": ("chapters/toc.toml",),
    "progress": ("chapters/toc.toml", "chapters/*/exercises.toml"),
    "gpu-*.json": ("benchmarks/measured/gpu-*.json",),
    "step-*.json": ("benchmarks/measured/step-*.json",),
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def inputs(chapter: Path) -> Iterator[str]:
    """Yield a line for each input of the chapter in this folder: its name, and a digest of what counts of it."""
    package, files = Path(d2lps.__file__).parent, [path for path in sorted(chapter.iterdir()) if path.is_file()]
    files = [path for path in files if path.name != PLAN]
    code = [_read(path) for path in files if path.suffix == ".py"]
    names, shown = (set().union(*map(find, code)) for find in (_names, _shown))
    found = Package(package).used_by(code)
    for name, path in sorted(found.items()):
        yield f"{name} {_code(path.read_text('utf-8'), shown)}"
    beside = {path for module in found.values() for path in module.parent.iterdir() if path.suffix in DATA}
    shared = {path for name in names & {*SHARED} for pattern in SHARED[name] for path in package.parent.glob(pattern)}
    own = {path for path in files if path.suffix not in WORDS}
    for path in sorted(beside | shared | own):
        yield f"{path.parent.name}/{path.name} {digest(path.read_bytes())}"
    for path in files:
        if path.suffix == ".md":  # an exercise is called by its title
            yield f"{path.name} {TITLE.findall(path.read_text('utf-8'))}"
    if names & {"course_map", "progress"} and (choice := os.environ.get("D2LPS_TOC")):
        yield f"choice {digest(Path(choice).read_bytes())}"


def _read(path: Path) -> str:
    """Return the code in a file; raise BookError if it is not Python."""
    text = path.read_text("utf-8")
    try:
        _parsed(text)
    except SyntaxError as error:
        raise BookError(f"{path}, line {error.lineno}: {error.msg}; mend it") from None
    return text


class Package:
    """The modules of d2lps: name → file."""

    def __init__(self, folder: Path):
        self.files = {}
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def used_by(self, code: list[str]) -> dict[str, Path]:
        """Return those of the modules that the code uses, directly or through others."""
        found, todo = set(), [d2lps.__name__, *(name for text in code for name in self._named(text, ""))]
        while todo:
            if (name := todo.pop()) in found:
                continue
            found.add(name)
            room = name if self.files[name].name == "__init__.py" else name.rpartition(".")[0]
            todo += self._named(self._text(name), room)
            todo += [above for above in (room, room.rpartition(".")[0]) if above and not self._door(above)]
            todo += [main for main in (f"{name}.__main__",) if main in self.files and room != d2lps.__name__]
        return {name: self.files[name] for name in found}

    def _named(self, text: str, room: str) -> Iterator[str]:
        """Yield the modules that a file in this room names."""
        for name in _imported(text, room):
            yield from self._behind(name, _names(text))

    def _behind(self, name: str, names: frozenset[str]) -> Iterator[str]:
        """Yield the modules in which is what is called ``d2lps.a.b`` by code that uses these names."""
        root, _, rest = name.partition(".")
        if root != d2lps.__name__:
            return
        first, _, more = rest.partition(".")
        if home := d2lps._HOME.get(first):
            name = ".".join(filter(None, [root, home, first, more]))
        module = name
        while module not in self.files:
            module = module.rpartition(".")[0]
        if not (door := self._door(module)):
            yield module
            return
        asked = name.removeprefix(module).strip(".").partition(".")[0]
        for each in {asked} if asked else names:
            if each in door:
                yield from self._behind(door[each], names)
            elif f"{module}.{each}" in self.files:
                yield from self._behind(f"{module}.{each}", names)

    def _text(self, module: str) -> str:
        return self.files[module].read_text("utf-8")

    def _door(self, module: str) -> dict[str, str]:
        """Return name → what it is called where it comes from, if the module is a door; else nothing."""
        return _door(self._text(module), module) if self.files[module].name == "__init__.py" else {}


@cache
def _door(text: str, room: str) -> dict[str, str]:
    door = {}
    for node in _parsed(text).body:
        match node:
            case ast.ImportFrom():
                door |= {alias.asname or alias.name: name for alias, name in _from(node, room)}
            case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name(id="__all__")]):
                pass
            case _:
                return {}
    return door


@cache
def _imported(text: str, room: str) -> frozenset[str]:
    """Return what a file in this room names by imports, as attributes of d2lps, and in texts: modules of processes."""
    found = set()
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                found |= {name for _, name in _from(node, room)}
            case ast.Attribute(value=ast.Name(id="d2lps")):
                found.add(f"d2lps.{node.attr}")
            case ast.Constant(value=str(value)) if re.fullmatch(r"(d2lps)?(\.\w+)+", value):
                found.add(f"{room * value.startswith('.')}{value}.__init__")  # of a door, nothing is used by its name
    return frozenset(found)


def _from(node: ast.ImportFrom, room: str) -> Iterator[tuple[ast.alias, str]]:
    """Yield each name that is imported, and what it is called where it comes from."""
    rooms = room.split(".")
    base = (
        ".".join([*rooms[: len(rooms) + 1 - node.level], *filter(None, [node.module])]) if node.level else node.module
    )
    yield from ((alias, f"{base}.{alias.name}") for alias in node.names)


@cache
def _names(text: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.Constant(value=str(name)):
                found.add(name)
    return frozenset(found)


@cache
def _shown(text: str) -> frozenset[str]:
    """Return the names of the functions whose source the code shows."""
    found = set()
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="source") | ast.Name(id="source"), args=[ast.Attribute(attr=name)]):
                found.add(name)
            case ast.Call(func=ast.Attribute(attr="source") | ast.Name(id="source"), args=[ast.Name(id=name)]):
                found.add(name)
    return frozenset(found)


def _code(text: str, shown: set[str]) -> str:
    """Return a digest of the code, and of the whole source of the functions that are shown."""
    defined = [source for name, source in _defined(text) if name in shown]
    return digest("\n".join([_bare(text), *defined]))


@cache
def _defined(text: str) -> list[tuple[str, str]]:
    """Return the name and the source of each function and class."""
    nodes = [node for node in ast.walk(_parsed(text)) if isinstance(node, Definition)]
    lines = text.split("\n")
    return [(node.name, "\n".join(lines[node.lineno - 1 : node.end_lineno])) for node in nodes]


@cache
def _bare(text: str) -> str:
    """Return a digest of the code without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return digest(ast.dump(tree))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)

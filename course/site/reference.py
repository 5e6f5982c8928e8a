"""What is public in d2lps, for the API's page: each name once, with its signature and its docstring as HTML.

Public is what ``d2lps`` and its packages hand on in ``__all__``; of a module without it that is handed on, all that
it makes itself. To these come the classes that public functions return or raise, and modules that docstrings point at.
"""

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import EnumMeta
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import d2lps
from course.book.findings import BookError
from course.site import docstrings
from course.site.docstrings import DocstringError

HOME = Path(d2lps.__file__).parent
MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)
LONG = 40  # signs of a default that are still written out


@dataclass(frozen=True)
class Entry:
    """A public name, or a member of one.

    Attributes
    ----------
    id : str
        Where it stands in the page: ``"Plan"``, ``"kvstore.create"``, ``"Plan.to_json"``.
    qualname : str
        ``"d2lps.Plan"``.
    names : tuple of str
        All full names under which it can be imported, ``qualname`` first.
    kind : str
        ``"class"``, ``"exception"``, ``"function"``, ``"module"`` or ``"constant"``; of members ``"method"``,
        ``"class method"``, ``"static method"`` or ``"property"``.
    group : str
        Its room: ``"plan"``; of ``d2lps`` itself ``"d2lps"``.
    signature, html : str
        Both as HTML; ``html`` is the docstring, its sections under ``h4``, or ``h5`` in members.
    summary, text : str
        Plain: its first sentence, and all of its prose, for a search.
    members : tuple of Entry
        Public methods and properties, as they are written.
    """

    id: str
    qualname: str
    names: tuple[str, ...]
    kind: str
    group: str
    signature: str
    html: str
    summary: str
    text: str
    members: "tuple[Entry, ...]" = ()


def entries() -> list[Entry]:
    """All public names: rooms in the order of their names, and in each its module first, then by name.

    Returns
    -------
    list of Entry
        Each object once, by its shortest name.

    Raises
    ------
    BookError
        For a public name without a docstring, and a docstring that cannot be shown.
    """
    public = _Public()
    made = [public.entry(each) for each in public.named.values()]
    return sorted(made, key=lambda each: (each.group != "d2lps", each.group, each.kind != "module", each.qualname))


def addresses(of: list[Entry], page: str = "") -> dict[str, str]:
    """Every full name of every entry and member → where it stands: ``{"d2lps.ring": "api.html#ring", …}``.

    Parameters
    ----------
    of : list of Entry
        What :func:`entries` gave.
    page : str
        The page that they stand on, as ``api.html``.

    Returns
    -------
    dict
        Without ``d2lps`` itself, which every line of code names.
    """
    found = {name: f"{page}#{each.id}" for each in of for name in each.names}
    for each in of:
        for member in each.members:
            found |= {f"{name}.{member.qualname.rpartition('.')[2]}": f"{page}#{member.id}" for name in each.names}
    found.pop("d2lps", None)
    return found


@dataclass
class _Named:
    """An object with its full names; the shortest is its own."""

    value: object
    names: list[str] = field(default_factory=list)

    @property
    def qualname(self) -> str:
        return min(self.names, key=lambda name: (name.count("."), name))

    @property
    def id(self) -> str:
        return self.qualname.removeprefix("d2lps.")


class _Public:
    """The public objects, and what names in docstrings mean.

    ``named`` has them by identity; numbers and strings, which may be the same object by chance, by their names.
    """

    def __init__(self):
        self.modules = _modules()
        self.named: dict[int | str, _Named] = {}
        self.classes: dict[str, list[type]] = {}  # all of d2lps
        for module in self.modules:
            for name, value in vars(module).items():
                if inspect.isclass(value) and (value.__module__, value.__name__) == (module.__name__, name):
                    self.classes.setdefault(name, []).append(value)
        todo = [
            (module.__name__, module)
            for module in self.modules
            if hasattr(module, "__all__") or module.__name__.count(".") < 2  # d2lps itself, and the rooms
        ]
        for name, value in todo:  # what is handed on may be a module that hands on
            if self.add(name, value) and inspect.ismodule(value) and _ours(value):
                todo += _handed_on(value)
        todo = list(self.named.values())
        for each in todo:
            for name, value in self.given(each):
                if self.add(name, value):
                    todo.append(self.named[id(value)])
        self.ids = {key: each.id for key, each in self.named.items()}
        for each in self.named.values():
            self.ids |= {id(value): f"{each.id}.{name}" for name, value in self.members(each.value)}

    def add(self, name: str, value: object) -> bool:
        """Note that an object is public under this name; True where it was not known."""
        key = id(value) if callable(value) or inspect.ismodule(value) else name
        new = key not in self.named
        self.named.setdefault(key, _Named(value)).names.append(name)
        return new

    def given(self, of: _Named) -> Iterator[tuple[str, object]]:
        """The classes of d2lps that a public object, or its members, return or raise, and modules they point at."""
        for name, value in [(of.qualname, of.value), *self.members(of.value)]:
            doc = inspect.getdoc(value) if _ours(value) else None
            try:
                words = docstrings.types(doc or "")
            except DocstringError as error:
                raise _wrong(name, value, str(error), error.line) from error
            for word in sorted(words):
                meant = self.meant(word, value, of.value)
                if inspect.isclass(meant) and _ours(meant) and not meant.__name__.startswith("_"):
                    yield f"{meant.__module__}.{meant.__qualname__}", meant
            for name in re.findall(":mod:`~?(.+?)`", doc or ""):
                if inspect.ismodule(meant := self.meant(name, value, of.value)):
                    yield meant.__name__, meant

    def members(self, of: object) -> list[tuple[str, object]]:
        """Public methods and properties of a class, also those that it has of a base which is not public."""
        found: dict[str, object] = {}
        for base in of.__mro__ if inspect.isclass(of) and _ours(of) else ():
            if _ours(base) and (base is of or id(base) not in self.named):
                fields = getattr(base, "__dataclass_fields__", ())  # whose defaults may be functions
                own = {name: each for name, each in vars(base).items() if name[0] != "_" and name not in fields}
                found = {name: each for name, each in own.items() if _member(name, each)} | found
        return list(found.items())

    def meant(self, text: str, value: object, of: object, near: bool = False) -> object:
        """What a dotted name means in a docstring: in the class, its module, its room, in d2lps, or as a full name.

        Else the only class of that name in the same room, or in all of d2lps; None where there is none. With ``near``
        a single word means nothing beyond its module, unless it is a class.
        """
        module = sys.modules[_where(value) or "d2lps"]
        room = sys.modules[".".join(module.__name__.split(".")[:2])]
        for start in (of, module) if near and "." not in text else (of, module, room, d2lps):
            found = start
            for name in text.split("."):
                found = inspect.getattr_static(found, name, None) or getattr(found, name, None)
            if found is not None:
                return found
        if text.startswith("d2lps."):
            with suppress(ImportError, AttributeError):
                return pkgutil.resolve_name(text)
        name, _, member = text.partition(".")
        found = self.classes.get(name, [])
        beside = [each for each in found if _room(each) == _room(module)]
        known = beside if len(beside) == 1 else found
        if len(known) != 1:
            return None
        return inspect.getattr_static(known[0], member, None) if member else known[0]

    def entry(self, of: _Named) -> Entry:
        value, name = of.value, of.qualname
        return Entry(
            of.id,
            name,
            tuple(dict.fromkeys(sorted(of.names, key=lambda each: (each.count("."), each)))),
            _kind(value),
            self.group(of),
            _signature(name, value),
            *self.shown(name, value, value, member=False),
            tuple(self.member(of, *each) for each in self.members(value)),
        )

    def member(self, of: _Named, name: str, value: object) -> Entry:
        full = f"{of.qualname}.{name}"
        shown = self.shown(full, value, of.value, member=True)
        return Entry(
            f"{of.id}.{name}", full, (full,), _kind(value, True), self.group(of), _signature(name, value, True), *shown
        )

    def group(self, of: _Named) -> str:
        return _room(of.value) if _ours(of.value) else _room(self.home(of))

    def home(self, of: _Named) -> ModuleType:
        """The module of d2lps that hands on a constant, or that borrows what is not made here: D2L's helpers."""
        module, _, name = of.qualname.rpartition(".")
        if module != "d2lps":
            return sys.modules[module]
        return next(each for each in self.modules if each is not d2lps and vars(each).get(name) is of.value)

    def shown(self, name: str, value: object, of: object, member: bool) -> tuple[str, str, str]:
        """HTML, summary and text."""
        if _kind(value, member) == "constant":
            return "", repr(_Default(value)), ""
        documented = value if _ours(value) else self.home(_Named(value, [name]))
        doc = inspect.getdoc(documented)
        if not doc:
            raise _wrong(name, value, "has no docstring", 1)
        given = docstrings.names(doc)

        def link(text: str, role: str) -> str | None:
            if role == "literal" and (text in given or not text.removesuffix("()").replace(".", "").isidentifier()):
                return None
            meant = self.meant(text.removesuffix("()"), documented, of, near=role == "literal")
            if meant is None and role in ("class", "func", "meth", "mod", "data", "exc"):
                raise LookupError(f"points at {text!r}, which is nowhere")
            known = self.ids.get(id(meant))
            return f"#{known}" if known and meant is not value else None

        try:
            read = docstrings.read(doc, link, level=5 if member else 4)
        except DocstringError as error:
            raise _wrong(name, documented, str(error), error.line) from error
        return self.bases(value) + read.html + _values(value), read.summary, read.text

    def bases(self, of: object) -> str:
        found = [each for each in of.__bases__ if id(each) in self.named] if inspect.isclass(of) else []
        linked = ", ".join(f'<a href="#{self.ids[id(each)]}"><code>{each.__name__}</code></a>' for each in found)
        return f'<p class="bases">A kind of {linked}.</p>\n' if found else ""


def _modules() -> list[ModuleType]:
    """All of them are imported: whose class is meant must not depend on what was used before."""
    found = pkgutil.walk_packages(d2lps.__path__, "d2lps.")
    return [d2lps, *(import_module(each.name) for each in found if not each.name.endswith("__main__"))]


def _handed_on(module: ModuleType) -> list[tuple[str, object]]:
    """What a module has in ``__all__``, or without one what it makes itself."""
    if hasattr(module, "__all__"):
        names = module.__all__
    else:
        own = {name: each for name, each in vars(module).items() if callable(each) and not name.startswith("_")}
        names = [name for name, each in own.items() if getattr(each, "__module__", None) == module.__name__]
    return [(f"{module.__name__}.{name}", getattr(module, name)) for name in names]


def _function(value: object) -> object:
    """What a method or a property is made of; anything else as it is."""
    for inner in ("fget", "__func__", "func", "__wrapped__"):
        if not inspect.isclass(value) and getattr(value, inner, None) is not None:
            value = getattr(value, inner)
    return value


def _where(value: object) -> str:
    """The full name of the module that something is made in, or "" for a constant."""
    return value.__name__ if inspect.ismodule(value) else getattr(_function(value), "__module__", None) or ""


def _ours(value: object) -> bool:
    return _where(value).split(".")[0] == "d2lps"


def _member(name: str, value: object) -> bool:
    """A method or property by its own name: an old name for another one stays out."""
    if not isinstance(value, MEMBERS):
        return False
    return getattr(_function(value), "__name__", name) == name


def _room(value: object) -> str:
    return (_where(value).split(".") + ["d2lps"])[1]


def _kind(value: object, member: bool = False) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    if not member:
        return "function" if callable(value) else "constant"
    kinds = {classmethod: "class method", staticmethod: "static method", FunctionType: "method"}
    return kinds.get(type(value), "property")


def _signature(qualname: str, value: object, member: bool = False) -> str:
    """The name as it is called, with parameters and defaults, breakable on a narrow page; types: see the docstring."""
    before, _, name = ("" if member else qualname).rpartition(".")
    name = name or qualname
    shown = f'<span class="module">{before}.</span>'.replace(".", ".<wbr/>") if before else ""
    shown += f'<span class="name">{name}</span>'
    if _kind(value, member) == "constant":
        return f"{shown} = {escape(repr(_Default(value)), quote=False)}"
    # An error that takes its sentence alone says nothing by its parameters.
    plain = inspect.isclass(value) and issubclass(value, BaseException) and not _ours(value.__init__)
    if plain or inspect.ismodule(value) or isinstance(value, property | cached_property | EnumMeta):
        return shown
    taken = list(inspect.signature(value if inspect.isclass(value) else _function(value)).parameters.values())
    if member and not isinstance(value, staticmethod):
        taken = taken[1:]
    short = [each.replace(annotation=each.empty, default=_Default.of(each)) for each in taken if each.name[0] != "_"]
    return f'{shown}<wbr/><span class="parameters">{escape(str(inspect.Signature(short)), quote=False)}</span>'


@dataclass
class _Default:
    """A value as it is written, or "…" where that is long, or only says where something lies in memory."""

    value: object

    def __repr__(self) -> str:
        shown = repr(self.value)
        if isinstance(self.value, str):
            shown = '"' + shown[1:-1] + '"'
        return "…" if len(shown) > LONG or "<" in shown else shown

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> object:
        return parameter.empty if parameter.default is parameter.empty else cls(parameter.default)


def _values(of: object) -> str:
    """What an enumeration consists of."""
    if not isinstance(of, EnumMeta):
        return ""
    return f"<h4>Values</h4>\n<p>{', '.join(f'<code>{each.name} = {each.value!r}</code>' for each in of)}</p>\n"


def _wrong(qualname: str, value: object, said: str, line: int) -> BookError:
    """Names what is wrong with a docstring, by the line of its file."""
    of = _function(value)
    file = Path(inspect.getsourcefile(of))
    lines, start = inspect.getsourcelines(of)
    first = (inspect.getdoc(of) or "").split("\n")[0]
    quoted = next((i for i, each in enumerate(lines) if first and f'"""{first}' in each), 0)
    where = f"{file.relative_to(HOME.parent).as_posix()}:{max(start, 1) + quoted + line - 1}"
    return BookError(f"{where}: {qualname} {said}; mend it there")

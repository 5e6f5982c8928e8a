"""The public names of d2lps for the pages of the package: each once, with its signature and its docstring as HTML.

The names in ``__all__`` of ``d2lps`` and its rooms are public. If one of them is a module without ``__all__``, all
functions and classes that it defines are public too, and so are classes that public functions return or raise, and
modules that docstrings link to.
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
LONGEST = 40  # characters of a default value; longer ones are shown as …


@dataclass(frozen=True)
class Entry:
    """A public name, or a member of one.

    ``id`` is its anchor in the page of its room (``"kvstore.create"``, ``"Plan.to_json"``), ``qualname`` its shortest
    full name (``"d2lps.Plan"``), and ``names`` has all full names. ``kind`` is class, exception, function, module or
    constant, or for a member method, class method, static method or property; ``group`` is the room. ``signature`` and
    ``html`` (the docstring) are HTML; ``summary`` and ``text`` are its first sentence and all of its prose without
    markup.
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
    """Return the public objects, each once, sorted by room and name; the module of a room comes first.

    Raises BookError for a public name without a docstring, and for a docstring that cannot be shown.
    """
    public = _Public()
    unsorted = [public.entry(entry) for entry in public.named.values()]
    return sorted(
        unsorted, key=lambda entry: (entry.group != "d2lps", entry.group, entry.kind != "module", entry.qualname)
    )


def home(group: str) -> str:
    """Return the page of a room."""
    return f"{group}.html"


def addresses(all_entries: list[Entry], folder: str = "") -> dict[str, str]:
    """Return full name → address of every entry and member: ``{"d2lps.ring": "api/algorithms.html#ring", …}``.

    The name ``d2lps`` itself is left out, because nearly every line of code has it.
    """
    result = {name: f"{folder}{home(entry.group)}#{entry.id}" for entry in all_entries for name in entry.names}
    for entry in all_entries:
        page = f"{folder}{home(entry.group)}"
        for member in entry.members:
            result |= {f"{name}.{member.qualname.rpartition('.')[2]}": f"{page}#{member.id}" for name in entry.names}
    result.pop("d2lps", None)
    return result


@dataclass
class _Named:
    """An object with its full names; ``qualname`` is the shortest."""

    value: object
    names: list[str] = field(default_factory=list)

    @property
    def qualname(self) -> str:
        return min(self.names, key=lambda name: (name.count("."), name))

    @property
    def id(self) -> str:
        return self.qualname.removeprefix("d2lps.")


class _Public:
    """The public objects, and the meaning of names in docstrings.

    ``named`` has the objects by identity; numbers and strings by name, because equal ones may be one object.
    """

    def __init__(self):
        self.modules = _modules()
        self.named: dict[int | str, _Named] = {}
        self.classes: dict[str, list[type]] = {}  # all classes of d2lps
        for module in self.modules:
            for name, value in vars(module).items():
                if inspect.isclass(value) and (value.__module__, value.__name__) == (module.__name__, name):
                    self.classes.setdefault(name, []).append(value)
        queue = [
            (module.__name__, module)
            for module in self.modules
            if hasattr(module, "__all__") or module.__name__.count(".") < 2  # d2lps itself, and the rooms
        ]
        for name, value in queue:  # a public module may have public names
            if self.add(name, value) and inspect.ismodule(value) and _ours(value):
                queue += _exported(value)
        queue = list(self.named.values())
        for named_object in queue:
            for name, value in self.given(named_object):
                if self.add(name, value):
                    queue.append(self.named[id(value)])
        self.ids = {key: named_object.id for key, named_object in self.named.items()}
        for named_object in self.named.values():
            self.ids |= {id(value): f"{named_object.id}.{name}" for name, value in self.members(named_object.value)}

    def add(self, name: str, value: object) -> bool:
        """Note that an object is public under this name, and return whether the object is new."""
        key = id(value) if callable(value) or inspect.ismodule(value) else name
        new = key not in self.named
        self.named.setdefault(key, _Named(value)).names.append(name)
        return new

    def given(self, owner: _Named) -> Iterator[tuple[str, object]]:
        """Yield classes of d2lps that a public object or its members return or raise, and modules that they link to."""
        for name, value in [(owner.qualname, owner.value), *self.members(owner.value)]:
            doc = inspect.getdoc(value) if _ours(value) else None
            try:
                words = docstrings.types(doc or "", _annotations(value).get("return", ""))
            except DocstringError as error:
                raise _wrong(name, value, str(error)) from error
            for word in sorted(words):
                meant = self.meant(word, value, owner.value)
                if inspect.isclass(meant) and _ours(meant) and not meant.__name__.startswith("_"):
                    yield f"{meant.__module__}.{meant.__qualname__}", meant
            for name in re.findall(":mod:`~?(.+?)`", doc or ""):
                if inspect.ismodule(meant := self.meant(name, value, owner.value)):
                    yield meant.__name__, meant

    def members(self, owner: object) -> list[tuple[str, object]]:
        """Return the public methods and properties of a class and of its bases that are not public."""
        members: dict[str, object] = {}
        for base in owner.__mro__ if inspect.isclass(owner) and _ours(owner) else ():
            if _ours(base) and (base is owner or id(base) not in self.named):
                fields = getattr(base, "__dataclass_fields__", ())  # whose defaults may be functions
                public = {name: member for name, member in vars(base).items() if name[0] != "_" and name not in fields}
                own = {name: member for name, member in public.items() if not _foreign(base, name, member)}
                members = {name: member for name, member in own.items() if _member(name, member)} | members
        return list(members.items())

    def meant(self, text: str, value: object, owner: object, near: bool = False) -> object:
        """Return the object that a dotted name means in a docstring, or None.

        It is looked up in the class, its module, its room and d2lps, then as a full name, then as the only class with
        that name in the room or in d2lps. With ``near`` a single word is not looked up in the room and in d2lps.
        """
        module = sys.modules[_where(value) or "d2lps"]
        room = sys.modules[".".join(module.__name__.split(".")[:2])]
        for start in (owner, module) if near and "." not in text else (owner, module, room, d2lps):
            target = start
            for name in text.split("."):
                target = inspect.getattr_static(target, name, None) or getattr(target, name, None)
            if target is not None:
                return target
        if text.startswith("d2lps."):
            with suppress(ImportError, AttributeError):
                return pkgutil.resolve_name(text)
        name, _, member = text.partition(".")
        classes_of_name = self.classes.get(name, [])
        beside = [kind for kind in classes_of_name if _room(kind) == _room(module)]
        candidates = beside if len(beside) == 1 else classes_of_name
        if len(candidates) != 1:
            return None
        return inspect.getattr_static(candidates[0], member, None) if member else candidates[0]

    def entry(self, public_object: _Named) -> Entry:
        value, name = public_object.value, public_object.qualname
        return Entry(
            public_object.id,
            name,
            tuple(dict.fromkeys(sorted(public_object.names, key=lambda full_name: (full_name.count("."), full_name)))),
            _kind(value),
            self.group(public_object),
            _signature(name, value),
            *self.shown(name, value, value, member=False),
            tuple(self.member(public_object, *full_name) for full_name in self.members(value)),
        )

    def member(self, owner: _Named, name: str, value: object) -> Entry:
        full = f"{owner.qualname}.{name}"
        docs = self.shown(full, value, owner.value, member=True)
        return Entry(
            f"{owner.id}.{name}",
            full,
            (full,),
            _kind(value, True),
            self.group(owner),
            _signature(name, value, True),
            *docs,
        )

    def group(self, public_object: _Named) -> str:
        return _room(public_object.value) if _ours(public_object.value) else _room(self.home(public_object))

    def home(self, public_object: _Named) -> ModuleType:
        """Return the module of d2lps that exports a constant, or an object of another package, as D2L's helpers."""
        module, _, name = public_object.qualname.rpartition(".")
        if module != "d2lps":
            return sys.modules[module]
        return next(
            place for place in self.modules if place is not d2lps and vars(place).get(name) is public_object.value
        )

    def shown(self, name: str, value: object, owner: object, member: bool) -> tuple[str, str, str]:
        """Return HTML, summary and text."""
        if _kind(value, member) == "constant":
            return "", repr(_Default(value)), ""
        documented = value if _ours(value) else self.home(_Named(value, [name]))
        doc = inspect.getdoc(documented)
        if not doc:
            raise _wrong(name, value, "has no docstring")
        listed = docstrings.names(doc)

        def link(text: str, role: str) -> str | None:
            if role == "literal" and (text in listed or not text.removesuffix("()").replace(".", "").isidentifier()):
                return None
            meant = self.meant(text.removesuffix("()"), documented, owner, near=role == "literal")
            if meant is None and role in ("class", "func", "meth", "mod", "data", "exc"):
                raise LookupError(f"points at {text!r}, which is nowhere")
            id_of_target = self.ids.get(id(meant))
            return f"#{id_of_target}" if id_of_target and meant is not value else None

        try:
            read = docstrings.read(doc, link, 4 if member else 3, _annotations(documented))
        except DocstringError as error:
            raise _wrong(name, documented, str(error)) from error
        return self.bases(value) + read.html + _values(value), read.summary, read.text

    def bases(self, kind: object) -> str:
        base_classes = [base for base in kind.__bases__ if id(base) in self.named] if inspect.isclass(kind) else []
        linked = ", ".join(f'<a href="#{self.ids[id(base)]}"><code>{base.__name__}</code></a>' for base in base_classes)
        return f'<p class="bases">A kind of {linked}.</p>\n' if base_classes else ""


def _modules() -> list[ModuleType]:
    """Import all modules, so that the meaning of a class's name does not depend on earlier imports."""
    infos = pkgutil.walk_packages(d2lps.__path__, "d2lps.")
    return [d2lps, *(import_module(info.name) for info in infos if not info.name.endswith("__main__"))]


def _exported(module: ModuleType) -> list[tuple[str, object]]:
    """Return the names in ``__all__`` of a module, or the functions and classes that it defines."""
    if hasattr(module, "__all__"):
        names = module.__all__
    else:
        public = {name: item for name, item in vars(module).items() if callable(item) and not name.startswith("_")}
        names = [name for name, item in public.items() if getattr(item, "__module__", None) == module.__name__]
    return [(f"{module.__name__}.{name}", getattr(module, name)) for name in names]


def _function(value: object) -> object:
    """Return the function inside a method or a property, and any other object as it is."""
    for inner in ("fget", "__func__", "func", "__wrapped__"):
        if not inspect.isclass(value) and getattr(value, inner, None) is not None:
            value = getattr(value, inner)
    return value


def _where(value: object) -> str:
    """Return the full name of the module that defines an object, or "" for a constant."""
    return value.__name__ if inspect.ismodule(value) else getattr(_function(value), "__module__", None) or ""


def _ours(value: object) -> bool:
    return _where(value).split(".")[0] == "d2lps"


def _member(name: str, value: object) -> bool:
    """Return whether this is a method or property under its own name, and not an alias."""
    if not isinstance(value, MEMBERS):
        return False
    return getattr(_function(value), "__name__", name) == name


def _foreign(kind: type, name: str, value: object) -> bool:
    """Return whether this has no docstring and overrides a method of another package, such as a module's forward."""
    bare = isinstance(value, MEMBERS) and not _function(value).__doc__
    return bare and any(name in vars(base) for base in kind.__mro__ if not _ours(base))


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
    """Return the name with parameters and defaults as HTML that can break on a narrow page."""
    before, _, name = ("" if member else qualname).rpartition(".")
    name = name or qualname
    html = f'<span class="module">{before}.</span>'.replace(".", ".<wbr/>") if before else ""
    html += f'<span class="name">{name}</span>'
    if _kind(value, member) == "constant":
        return f"{html} = {escape(repr(_Default(value)), quote=False)}"
    # The parameters of an error that only takes its sentence say nothing.
    plain = inspect.isclass(value) and issubclass(value, BaseException) and not _ours(value.__init__)
    if plain or inspect.ismodule(value) or isinstance(value, property | cached_property | EnumMeta):
        return html
    params = list(inspect.signature(value if inspect.isclass(value) else _function(value)).parameters.values())
    if member and not isinstance(value, staticmethod):
        params = params[1:]
    short = [
        param.replace(annotation=param.empty, default=_Default.of(param)) for param in params if param.name[0] != "_"
    ]
    return f'{html}<wbr/><span class="parameters">{escape(str(inspect.Signature(short)), quote=False)}</span>'


@dataclass
class _Default:
    """A value whose representation is code, or "…" if that is long or has an address in memory."""

    value: object

    def __repr__(self) -> str:
        text = repr(self.value)
        if isinstance(self.value, str):
            text = '"' + text[1:-1] + '"'
        return "…" if len(text) > LONGEST or "<" in text else text

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> object:
        return parameter.empty if parameter.default is parameter.empty else cls(parameter.default)


def _values(kind: object) -> str:
    """Return the values of an enumeration."""
    if not isinstance(kind, EnumMeta):
        return ""
    return f"<h3>Values</h3>\n<p>{', '.join(f'<code>{member.name} = {member.value!r}</code>' for member in kind)}</p>\n"


def _annotations(value: object) -> dict[str, str]:
    """Return the types of parameters, of attributes of a dataclass, and of what is returned."""
    if inspect.ismodule(value):
        return {}
    found = dict(inspect.get_annotations(value)) if inspect.isclass(value) else {}
    with suppress(ValueError, TypeError):  # an error class takes what Exception takes
        signature = inspect.signature(value if inspect.isclass(value) else _function(value))
        found |= {name: parameter.annotation for name, parameter in signature.parameters.items()}
        found["return"] = signature.return_annotation
    found = {name: kind for name, kind in found.items() if kind is not inspect.Signature.empty}
    texts = {name: kind if isinstance(kind, str) else inspect.formatannotation(kind) for name, kind in found.items()}
    return {name: re.sub(r"['~]|\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", kind) for name, kind in texts.items()}


def _wrong(qualname: str, value: object, problem: str) -> BookError:
    """Return an error that names the object and where it is."""
    source_object = _function(value)
    file = Path(inspect.getsourcefile(source_object)).relative_to(HOME.parent).as_posix()
    return BookError(f"{file}:{max(inspect.getsourcelines(source_object)[1], 1)}: {qualname} {problem}; mend it there")

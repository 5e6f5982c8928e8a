"""Docstrings as HTML: Google's sections, which griffe finds, around reStructuredText, which docutils reads.

A section or an element that this module does not write is an error.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from html import escape

from docutils import nodes
from docutils.core import publish_doctree
from docutils.frontend import Values, get_default_settings
from docutils.parsers.rst import Parser, roles
from docutils.readers.standalone import Reader
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from griffe import Docstring as Source
from griffe import DocstringSection, DocstringSectionKind
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonConsoleLexer

KIND = DocstringSectionKind
PARAMETERS = (KIND.parameters, KIND.attributes)
RESULTS = (KIND.returns, KIND.yields, KIND.raises)
ROLES = ("attr", "class", "data", "exc", "func", "meth", "mod")
SETTINGS = {
    "_disable_config": True,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "raw_enabled": False,
    "report_level": 2,
    "warning_stream": False,
}
TAGS = {
    nodes.paragraph: "p",
    nodes.emphasis: "em",
    nodes.strong: "strong",
    nodes.subscript: "sub",
    nodes.superscript: "sup",
    nodes.bullet_list: "ul",
    nodes.enumerated_list: "ol",
    nodes.list_item: "li",
    nodes.definition_list: "dl",
    nodes.term: "dt",
    nodes.definition: "dd",
    nodes.table: "table",
    nodes.thead: "thead",
    nodes.tbody: "tbody",
    nodes.row: "tr",
}
THROUGH = (nodes.document, nodes.section, nodes.definition_list_item, nodes.tgroup)
LEFT_OUT = (nodes.comment, nodes.colspec)
LITERAL = re.compile(r"``(.+?)``")
SECTIONS = "Args, Attributes, Returns, Yields, Raises and Example"
WORD = re.compile(r"\b[A-Za-z_][\w.]*\b")


class DocstringError(Exception):
    """An error in a docstring."""


@dataclass(frozen=True)
class Docstring:
    """A docstring: ``summary`` is its first sentence and ``text`` all of its prose, both without markup."""

    summary: str
    html: str
    text: str


def _role(name, rawtext, text, lineno, inliner, options=None, content=None):
    return [nodes.literal(rawtext, text, role=name)], []


for _name in ROLES:
    roles.register_local_role(_name, _role)


class _Refusing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise DocstringError(f"cannot be read: {record.getMessage()}")


logging.getLogger("griffe").addHandler(_Refusing(logging.WARNING))  # griffe only warns of lines that it leaves out


def sections(doc: str) -> list[DocstringSection]:
    # griffe takes the least indentation after the first line away, which is part of a clean docstring.
    return Source(f"\n{doc}").parse("google", warn_unknown_params=False, warn_missing_types=False)


def items(section: DocstringSection) -> Iterator[tuple[str, str, str]]:
    """Yield name or "", type or "", and description. Names that share one, ``a, b (int): …``, are one item."""
    for item in section.value:
        name, kind = getattr(item, "name", ""), str(item.annotation or "")
        if name.endswith(","):  # griffe takes the other names for the type
            others, _, kind = kind.partition(" (")
            name = f"{name} {others}"
        kind += ")" * (kind.count("(") - kind.count(")"))  # griffe strips one too many of ``(list of (int, int))``
        yield name, kind, item.description.strip()


def names(doc: str) -> set[str]:
    """Return the names of parameters and attributes."""
    listed = [name for section in sections(doc) if section.kind in PARAMETERS for name, _, _ in items(section)]
    return {name.lstrip("*") for line in listed for name in line.split(", ")}


def types(doc: str, returned: str = "") -> set[str]:
    """Return the words in the types of returned values and errors; ``returned`` is what the signature says."""
    listed = [kind or returned for section in sections(doc) if section.kind in RESULTS for _, kind, _ in items(section)]
    return {word for kind in listed for word in WORD.findall(kind)}


def read(
    doc: str, link: Callable[[str, str], str | None], level: int = 4, annotations: Mapping[str, str] | None = None
) -> Docstring:
    """Return a docstring, as ``inspect.getdoc`` gives it, as HTML whose section headings have this level.

    ``link`` takes a name and a role and returns the address of the object, or None if it has none; it raises
    LookupError if there is no such object. The role is one of ``ROLES``, ``"literal"`` for a name in back quotes, or
    ``"type"`` for a word in a type. ``annotations`` has the types of the signature, by parameter and ``"return"``, for
    what the docstring gives no type.

    Raises DocstringError for an unknown section or element, and for a name without a description.
    """
    writer = _Writer(link, level, annotations or {})
    html, texts = "", []
    for section in sections(doc):
        part, text = writer.section(section)
        html += part
        texts.append(text)
    return Docstring(re.split(r"(?<=[.:])\s", writer.first)[0], html, " ".join(filter(None, texts)))


@cache  # reading the settings takes as long as reading a docstring
def _settings() -> Values:
    defaults = get_default_settings(Parser, Reader)
    vars(defaults).update(SETTINGS)
    return defaults


@dataclass
class _Writer:
    """Writes HTML; ``first`` becomes the first paragraph without markup."""

    link: Callable[[str, str], str | None]
    level: int
    annotations: Mapping[str, str]
    first: str = ""

    def section(self, section: DocstringSection) -> tuple[str, str]:
        """Return HTML, and the text for the search index: paragraphs and names, without code and titles of sections."""
        if section.kind is KIND.text:
            return self.prose(section.value)
        if section.kind is KIND.admonition and section.title == "Example":
            html, text = self.prose(section.value.description)
            return f"<h{self.level}>Example</h{self.level}>\n{html}", text
        if section.kind not in (*PARAMETERS, *RESULTS):
            raise DocstringError(f"has the section {section.title or section.kind.value!r}; known are {SECTIONS}")
        html, texts = "", []
        for name, kind, description in items(section):
            if not description:
                raise DocstringError(f"says nothing of {name or kind!r}: describe it after the colon")
            described, text = self.prose(description)
            if described.count("<p>") == 1 and re.fullmatch("<p>.*</p>\n", described, re.S):
                described = described[3:-5]
            term = self.term(name, kind or self.annotation(name, section.kind))
            html += f"<dt>{term}</dt>" * bool(term) + f"<dd>{described}</dd>\n"
            texts.append(f"{name or kind} {text}".strip())
        title = section.kind.value.capitalize()
        return f"<h{self.level}>{title}</h{self.level}>\n<dl>{html}</dl>\n", " ".join(texts)

    def prose(self, source: str) -> tuple[str, str]:
        """Return a part of the docstring as HTML, and as text without markup and code."""
        document = publish_doctree(source, settings=copy(_settings()))
        for message in document.findall(nodes.system_message):
            if message["level"] >= SETTINGS["report_level"]:
                problem = message.astext().partition(") ")[2].split("\n")[0]
                raise DocstringError(f"cannot be read: {problem.rstrip('.')}")
        paragraphs = document.findall(lambda node: isinstance(node, nodes.paragraph | nodes.term))
        texts = [node.astext().replace("\n", " ") for node in paragraphs]
        self.first = self.first or next(iter(texts), "")
        return self.html(document), " ".join(texts)

    def annotation(self, name: str, section: DocstringSectionKind) -> str:
        """Return the type in the signature; a named value that is returned beside others has none."""
        if section in PARAMETERS:
            return next(filter(None, (self.annotations.get(each.lstrip("*")) for each in name.split(", "))), "")
        return "" if name else self.annotations.get("return", "")

    def term(self, name: str, kind: str) -> str:
        """Return the line above a description: ``a, b int``, or only ``int`` for a returned value or an error."""
        shown = ", ".join(f"<code>{escape(part, quote=False)}</code>" for part in name.split(", ") if part)
        return f"{shown} {self.type(kind)}".strip() if kind else shown

    def html(self, node: nodes.Node) -> str:
        match node:
            case nodes.Text():
                return escape(node.astext(), quote=False)
            case nodes.literal():
                try:
                    return self.literal(node.astext(), node.get("role", "literal"))
                except LookupError as error:
                    raise DocstringError(str(error)) from error
            case nodes.list_item() | nodes.definition() if len(node) == 1 and isinstance(node[0], nodes.paragraph):
                tag = TAGS[type(node)]
                return f"<{tag}>{self.inside(node[0])}</{tag}>\n"
            case nodes.entry():
                tag = "th" if isinstance(node.parent.parent, nodes.thead) else "td"
                return f"<{tag}>{self.inside(node[0]) if len(node) else ''}</{tag}>"
            case nodes.doctest_block():
                code = re.sub(r" *# doctest: .*", "", node.astext())
                return _code(highlight(code, PythonConsoleLexer(), HtmlFormatter(nowrap=True)).rstrip("\n"))
            case nodes.literal_block():
                return _code(escape(node.astext(), quote=False))
            case nodes.math() | nodes.math_block():
                try:
                    return tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block))
                except MathError as error:
                    raise DocstringError(f"has a formula that cannot be read: {error}") from error
            case nodes.reference() if node.get("refuri"):
                return f'<a href="{escape(node["refuri"])}">{self.inside(node)}</a>'
        if isinstance(node, LEFT_OUT):
            return ""
        if isinstance(node, THROUGH):
            return self.inside(node)
        if type(node) not in TAGS:
            raise DocstringError(f"has a {type(node).__name__}, which the reference does not show")
        tag = TAGS[type(node)]
        end = "" if isinstance(node, nodes.Inline) else "\n"
        return f"<{tag}>{self.inside(node)}</{tag}>{end}"

    def inside(self, node: nodes.Node) -> str:
        return "".join(map(self.html, node.children))

    def literal(self, text: str, role: str) -> str:
        label = text.rpartition(".")[2] if text.startswith("~") else text
        return _anchor(self.link(text.lstrip("~"), role), f"<code>{escape(label, quote=False)}</code>")

    def type(self, kind: str) -> str:
        pieces = []
        for i, part in enumerate(LITERAL.split(kind)):
            if i % 2:
                pieces.append(self.literal(part, "literal"))
                continue
            at = 0
            for word in WORD.finditer(part):
                pieces.append(escape(part[at : word.start()], quote=False))
                pieces.append(_anchor(self.link(word[0], "type"), word[0]))
                at = word.end()
            pieces.append(escape(part[at:], quote=False))
        return f'<span class="type">{"".join(pieces)}</span>'


def _anchor(address: str | None, html: str) -> str:
    return f'<a href="{escape(address)}">{html}</a>' if address else html


def _code(html: str) -> str:
    """Return code as on all pages: the keyboard can reach it, to scroll it sideways."""
    return f'<pre class="code" tabindex="0"><code>{html}</code></pre>\n'

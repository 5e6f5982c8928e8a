"""Docstrings as HTML: reStructuredText with NumPy's sections, in the few elements that docstrings here use.

Docutils reads them. An element that it cannot read, or that this module does not write, is an error.
"""

import re
from collections.abc import Callable
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
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonConsoleLexer

# In these sections each line at the margin is a name, a type or both, with an indented description below.
LISTS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns")
SECTIONS = (*LISTS, "Examples", "Notes", "References", "See Also")
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
WORD = re.compile(r"\b[A-Za-z_][\w.]*\b")
TERM = "term-{}-of-the-list"  # a placeholder for the line while docutils reads the rest


class DocstringError(Exception):
    """An error in a docstring, and its line, counted from 1."""

    def __init__(self, sentence: str, line: int):
        super().__init__(sentence)
        self.line = line


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


def sections(doc: str) -> dict[str, list[tuple[int, str]]]:
    """Return title → numbered lines at the margin of that section; "" has those before the first section."""
    parts: dict[str, list[tuple[int, str]]] = {"": []}
    lines = doc.split("\n")
    title = ""
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        if re.fullmatch(r"-{3,}", line) and number > 1 and lines[number - 2] == title:
            continue
        if line[:1].strip() and re.fullmatch(r"-{3,}", below):
            if line not in SECTIONS:
                raise DocstringError(f"has the section {line!r}; known are {', '.join(SECTIONS)}", number)
            if len(line) != len(below):
                raise DocstringError(f"has the section {line!r} with a line below that is not as long", number)
            if line in parts:
                raise DocstringError(f"has the section {line!r} twice", number)
            title = line
            parts[title] = []
        elif line[:1].strip():
            parts[title].append((number, line))
    return parts


def names(doc: str) -> set[str]:
    """Return the names of parameters and attributes."""
    parts = sections(doc)
    lines = [line for title in ("Parameters", "Attributes") for _, line in parts.get(title, ())]
    return {name.lstrip("*") for line in lines for name in line.partition(" : ")[0].split(", ")}


def types(doc: str) -> set[str]:
    """Return the words in the types of returned values and errors."""
    parts = sections(doc)
    lines = [line for title in ("Returns", "Yields", "Raises") for _, line in parts.get(title, ())]
    return {word for line in lines for word in WORD.findall(line.partition(" : ")[2] or line)}


def read(doc: str, link: Callable[[str, str], str | None], level: int = 4) -> Docstring:
    """Return a docstring, as ``inspect.getdoc`` gives it, as HTML whose section headings have this level.

    ``link`` takes a name and a role and returns the address of the object, or None if it has none; it raises
    LookupError if there is no such object. The role is one of ``ROLES``, ``"literal"`` for a name in back quotes, or
    ``"type"`` for a word in a type.

    Raises DocstringError for an unknown section or element, and for a name without a description.
    """
    lines = doc.split("\n")
    parts = sections(doc)
    terms = [term for title in LISTS for term in parts.get(title, ())]
    for number, line in terms:
        if not lines[number : number + 1] or not lines[number].startswith(" "):
            raise DocstringError(f"says nothing of {line!r}: indent it below", number)
    replaced = {number: TERM.format(i) for i, (number, _) in enumerate(terms)}
    source = "\n".join(replaced.get(number, line) for number, line in enumerate(lines, 1))
    document = publish_doctree(source, settings=copy(_settings()))
    for message in document.findall(nodes.system_message):
        if message["level"] >= SETTINGS["report_level"]:
            message_text = message.astext().partition(") ")[2].split("\n")[0]
            raise DocstringError(f"cannot be read: {message_text.rstrip('.')}", message.get("line", 1))
    titles = {TERM.format(i): title for title in LISTS for i, term in enumerate(terms) if term in parts.get(title, ())}
    named = {TERM.format(i): line for i, (_, line) in enumerate(terms)}
    writer = _Writer(link, level, {term: (line, titles[term]) for term, line in named.items()})
    first = next((paragraph.astext() for paragraph in document.findall(nodes.paragraph)), "").replace("\n", " ")
    return Docstring(re.split(r"(?<=[.:])\s", first)[0], writer.html(document), writer.text(document))


@cache  # reading the settings takes as long as reading a docstring
def _settings() -> Values:
    defaults = get_default_settings(Parser, Reader)
    vars(defaults).update(SETTINGS)
    return defaults


@dataclass
class _Writer:
    """Writes HTML; ``terms`` maps the placeholder of a line of a list to the line and its section."""

    link: Callable[[str, str], str | None]
    level: int
    terms: dict[str, tuple[str, str]]

    def html(self, node: nodes.Node) -> str:
        match node:
            case nodes.Text():
                return escape(node.astext(), quote=False)
            case nodes.title():
                return f"<h{self.level}>{self.inside(node)}</h{self.level}>\n"
            case nodes.literal():
                try:
                    return self.literal(node.astext(), node.get("role", "literal"))
                except LookupError as error:
                    raise DocstringError(str(error), _line(node)) from error
            case nodes.term() if node.astext() in self.terms:
                return f"<dt>{self.named(*self.terms[node.astext()])}</dt>"
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
                    raise DocstringError(f"has a formula that cannot be read: {error}", _line(node)) from error
            case nodes.reference() if node.get("refuri"):
                return f'<a href="{escape(node["refuri"])}">{self.inside(node)}</a>'
        if isinstance(node, LEFT_OUT):
            return ""
        if isinstance(node, THROUGH):
            return self.inside(node)
        if type(node) not in TAGS:
            raise DocstringError(f"has a {type(node).__name__}, which the reference does not show", _line(node))
        tag = TAGS[type(node)]
        end = "" if isinstance(node, nodes.Inline) else "\n"
        return f"<{tag}>{self.inside(node)}</{tag}>{end}"

    def inside(self, node: nodes.Node) -> str:
        return "".join(map(self.html, node.children))

    def literal(self, text: str, role: str) -> str:
        label = text.rpartition(".")[2] if text.startswith("~") else text
        return _anchor(self.link(text.lstrip("~"), role), f"<code>{escape(label, quote=False)}</code>")

    def named(self, line: str, title: str) -> str:
        """Return a line of a list: ``a, b : int``, or only ``int`` for a returned value or an error."""
        name, colon, kind = line.partition(" : ")
        if not colon and title not in ("Parameters", "Attributes"):
            name, kind = "", line
        names = ", ".join(f"<code>{escape(part, quote=False)}</code>" for part in name.split(", ") if part)
        return f"{names} {self.type(kind)}".strip() if kind else names

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

    def text(self, node: nodes.Node) -> str:
        """Return the text for the search index: paragraphs and names, without code and titles of sections."""
        texts = []
        for paragraph in node.findall(lambda n: isinstance(n, nodes.paragraph | nodes.term)):
            content = paragraph.astext()
            texts.append(self.terms[content][0] if content in self.terms else content.replace("\n", " "))
        return " ".join(texts)


def _anchor(address: str | None, html: str) -> str:
    return f'<a href="{escape(address)}">{html}</a>' if address else html


def _code(html: str) -> str:
    """Return code as on all pages: the keyboard can reach it, to scroll it sideways."""
    return f'<pre class="code" tabindex="0"><code>{html}</code></pre>\n'


def _line(node: nodes.Node) -> int:
    while node.line is None and node.parent is not None:
        node = node.parent
    return node.line or 1

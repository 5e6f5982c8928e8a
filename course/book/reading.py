"""Read a text into its prose, and the code, formulas, links and placeholders taken out of it.

>>> reading = read("Each of the $n$ workers calls `push`; see [the manual](https://a.b/c).\\n")
>>> reading.units[0].text == f"Each of the {MATH} workers calls {CODE}; see the manual."
True
>>> reading.math, reading.code, reading.links
(['$n$'], ['push'], ['https://a.b/c'])
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partialmethod

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from course.book.findings import BookError, Finding, edit
from course.book.lesson import CITE, OPAQUE, Section, outside
from course.book.library import Book, Chapter
from d2lps.messages import LANGUAGES

MATH, CODE, CITED, HOLE = "\ue000", "\ue001", "\ue002", "\ue003"
MARKS = MATH + CODE + CITED + HOLE

_MARKDOWN = MarkdownIt("commonmark").enable("table")
# Formulas are taken out before markdown is read, as in JupyterLab, so that stars beside them mean the same.
_STASHED = re.compile(r"@@([MCH])@@")
# The fields of str.format: {name}, {time:.1f}, {!r}.
PLACEHOLDER = re.compile(r"\{[A-Za-z_0-9.]*(?:![rsa])?(?::[^{}]*)?\}")
# In a plain sentence: {{escaped}}, [a list], 'a name', a.call(…).
_QUOTED = re.compile(r"\{\{.*?\}\}|\[[^\[\]\n]*\]|(?<!\w)'[^'\n]*'(?!\w)|[A-Za-z_][A-Za-z_0-9.]*\([^()\n]*\)")


@dataclass(frozen=True)
class Unit:
    """A heading, paragraph, item, table cell, quote or caption, as one string."""

    text: str
    heading: bool = False


@dataclass
class Reading:
    """The units of a text, and the parts taken out of it; a table is its numbers of rows and columns."""

    units: list[Unit] = field(default_factory=list)
    math: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    cites: list[str] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    headings: tuple[int, ...] = ()
    tables: tuple[tuple[int, int], ...] = ()
    items: int = 0
    quotes: int = 0

    @property
    def text(self) -> str:
        """All units, one per line."""
        return "\n".join(unit.text for unit in self.units)


def read(source: str, *, holes: bool = False, into: Reading | None = None) -> Reading:
    """Read CommonMark with ``$…$``; with ``holes``, ``{placeholders}`` are taken out too."""
    reading = into or Reading()

    def prose(text: str) -> str:
        text = CITE.sub(lambda match: _take(match[1], reading.cites, "@@C@@"), text)
        return PLACEHOLDER.sub(lambda match: _take(match[0], reading.holes, "@@H@@"), text) if holes else text

    def formula(match: re.Match) -> str:
        return _take(match[0], reading.math, "@@M@@") if match["math"] or match["display"] else match[0]

    tree = SyntaxTreeNode(_MARKDOWN.parse(OPAQUE.sub(formula, outside(source, prose))))
    for node in tree.walk():
        if node.type == "inline":
            reading.units.append(Unit(_STASHED.sub(_mark, _words(node)), node.parent.type == "heading"))
        elif node.type in ("fence", "code_block"):
            reading.fences.append(node.content)
        elif node.type == "code_inline":
            reading.code.append(node.content)
        elif node.type == "link":
            reading.links.append(str(node.attrs.get("href", "")))
        elif node.type == "image":
            reading.images.append(str(node.attrs.get("src", "")))
        elif node.type == "heading":
            reading.headings += (int(node.tag[1:]),)
        elif node.type == "table":
            rows = [part for part in node.walk() if part.type == "tr"]
            reading.tables += ((len(rows), sum(len(row.children) for row in rows) // len(rows)),)
        reading.items += node.type == "list_item"
        reading.quotes += node.type == "blockquote"
    return reading


def _take(text: str, into: list[str], mark: str) -> str:
    into.append(text)
    return mark


def _mark(match: re.Match) -> str:
    return {"M": MATH, "C": CITED, "H": HOLE}[match[1]]


def _words(inline: SyntaxTreeNode) -> str:
    replacements = {"code_inline": CODE, "softbreak": "\n", "hardbreak": "\n"}
    return "".join(node.content if node.type == "text" else replacements.get(node.type, "") for node in inline.walk())


def head(text: str, width: int = 50) -> str:
    """Return the beginning of a text, on one line."""
    text = " ".join(re.sub(f"[{MARKS}]", "…", text.replace(CODE, "`…`")).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def read_plain(source: str) -> Reading:
    """Read one plain sentence with ``{placeholders}``; quoted text is code, and nothing is markdown."""
    reading = Reading()
    text = _QUOTED.sub(lambda match: _take(match[0], reading.code, CODE), source)
    text = PLACEHOLDER.sub(lambda match: _take(match[0], reading.holes, HOLE), text)
    reading.holes += PLACEHOLDER.findall("\n".join(reading.code))
    reading.units = [Unit(line) for line in text.split("\n") if line.strip()]
    return reading


def read_section(section: Section) -> Reading:
    """Read the prose and the captions of a section, in order."""
    reading = Reading()
    for block in section.blocks:
        if block.kind == "prose":
            prose = outside(block.text, lambda text: re.sub(r"[ \t]+\{#[^}\n]*\}[ \t]*$", "", text, flags=re.M))
            read(prose, into=reading)
        elif block.kind == "figure":
            read(block.caption, into=reading).images.append(block.name)
    return reading


@dataclass(frozen=True)
class Passage:
    """A section, a message or a text of an exercise or prediction, read in every language that has it."""

    kind: str
    name: str
    files: dict[str, str]
    readings: dict[str, Reading]

    def finding(self, level: str, check: str, message: str, *languages: str) -> Finding:
        files = (self.files[language] for language in languages or self.files)
        return Finding(level, check, self.name, languages, message, edit(files))

    fail = partialmethod(finding, "fail")
    warn = partialmethod(finding, "warn")


def passages(chapter: Chapter) -> Iterator[Passage]:
    """Yield the sections of a chapter, then the texts of its exercises and predictions."""
    folder = f"chapters/{chapter.slug}"
    for id in chapter.sections:
        readings = {language: read_section(section) for language, section in chapter.section(id).items()}
        yield Passage("section", id, {language: f"{folder}/{language}.md" for language in readings}, readings)
    for kind, table in {"exercise": chapter.exercises, "prediction": chapter.predictions}.items():
        files = dict.fromkeys(LANGUAGES, f"{folder}/{kind}s.toml")
        for name, texts in triples(table):
            yield Passage(kind, name, files, {key: read(text, holes=True) for key, text in texts.items()})


def triples(table: object, name: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Yield name and texts of every table below with the keys en, vi, zh; a list yields one entry per item."""
    if isinstance(table, list):
        for index, entry in enumerate(table, 1):
            yield from triples(entry, f"{name}[{index}]")
    elif isinstance(table, dict) and set(LANGUAGES) & set(table):
        texts = [table.get(language) for language in LANGUAGES]
        if all(isinstance(text, str) for text in texts):
            yield name, dict(zip(LANGUAGES, texts, strict=True))
        elif all(isinstance(text, list) for text in texts) and len({len(text) for text in texts}) == 1:
            for index, entry_texts in enumerate(zip(*texts, strict=True), 1):
                yield from triples(dict(zip(LANGUAGES, entry_texts, strict=True)), f"{name}[{index}]")
        elif all(isinstance(text, dict) for text in texts) and len({tuple(text) for text in texts}) == 1:
            for key in texts[0]:
                yield from triples({language: table[language][key] for language in LANGUAGES}, f"{name}.{key}")
        else:
            raise BookError(
                f"exercises.toml: {name} is not the same in {', '.join(LANGUAGES)}; "
                "give every language the same keys and as many entries"
            )
    elif isinstance(table, dict):
        for key, entry in table.items():
            yield from triples(entry, f"{name}.{key}" if name else key)


def message_passages(book: Book) -> Iterator[Passage]:
    """Yield the messages of d2lps, one passage per key that all languages have."""
    messages = book.messages
    files = {language: f"d2lps/messages/{language}.toml" for language in LANGUAGES}
    for key in messages[LANGUAGES[0]]:
        if all(key in sentences for sentences in messages.values()):
            readings = {language: read_plain(sentences[key]) for language, sentences in messages.items()}
            yield Passage("message", key, files, readings)


def meaning_passages(book: Book) -> Iterator[Passage]:
    """Yield the meanings in the glossary, one passage per term that has one."""
    files = dict.fromkeys(LANGUAGES, "chapters/terms.toml")
    for term in book.terms.get("term", []):
        if meaning := term.get("means"):
            yield Passage("term", term["en"], files, {language: read(meaning[language]) for language in LANGUAGES})

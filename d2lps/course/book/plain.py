"""What a reader reads: a text without its code, math, addresses and placeholders, piece by piece.

>>> reading = read("Each of the $n$ workers calls `push`; see [the manual](https://a.b/c).\\n")
>>> reading.units[0].text == f"Each of the {MATH} workers calls {CODE}; see the manual."
True
>>> reading.math, reading.code, reading.links
(('$n$',), ('push',), ('https://a.b/c',))
"""

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

from d2lps.course.book.lesson import CITE, Section, opaque, outside

MATH, CODE, CITED, HOLE = "\ue000", "\ue001", "\ue002", "\ue003"
MARKS = MATH + CODE + CITED + HOLE

_MARKDOWN = MarkdownIt("commonmark").enable("table")
_STASHED = re.compile(r"@@([MCH])\d+@@")
# {name}, {time:.1f}, {!r}: what str.format fills in.
PLACEHOLDER = re.compile(r"\{[A-Za-z_0-9.]*(?:![rsa])?(?::[^{}]*)?\}")
# In a plain sentence: {{escaped}}, [a list], 'a name', a.call(…).
_QUOTED = re.compile(r"\{\{.*?\}\}|\[[^\[\]\n]*\]|(?<!\w)'[^'\n]*'(?!\w)|[A-Za-z_][A-Za-z_0-9.]*\([^()\n]*\)")


@dataclass(frozen=True)
class Unit:
    """A heading, paragraph, item, cell (of a table), quote or caption, as one string."""

    kind: str
    text: str


@dataclass(frozen=True)
class Reading:
    """A text as it is read, and what was taken out of it."""

    units: tuple[Unit, ...]
    math: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    cites: tuple[str, ...] = ()
    holes: tuple[str, ...] = ()
    headings: tuple[int, ...] = ()
    items: int = 0
    quotes: int = 0
    tables: tuple[tuple[int, int], ...] = ()
    fences: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it, a line per unit."""
        return "\n".join(unit.text for unit in self.units)


def read(source: str, *, holes: bool = False) -> Reading:
    """Read CommonMark with ``$…$``; with ``holes``, ``{placeholders}`` are taken out too."""
    math: list[str] = []
    cites: list[str] = []
    found: list[str] = []

    def stash(text: str) -> str:
        def cite(match: re.Match) -> str:
            cites.append(match[1])
            return f"@@C{len(cites)}@@"

        def hole(match: re.Match) -> str:
            found.append(match[0])
            return f"@@H{len(found)}@@"

        text = CITE.sub(cite, text)
        return PLACEHOLDER.sub(hole, text) if holes else text

    parts, at = [], 0
    for match in opaque(source):
        parts.append(stash(source[at : match.start()]))
        if match["math"] or match["display"]:
            math.append(match.group())
            parts.append(f"@@M{len(math)}@@")
        else:
            parts.append(match.group())
        at = match.end()
    parts.append(stash(source[at:]))
    walk = _Walk()
    for token in _MARKDOWN.parse("".join(parts)):
        walk.take(token)
    return Reading(
        tuple(walk.units),
        tuple(math),
        tuple(walk.code),
        tuple(walk.links),
        tuple(walk.images),
        tuple(cites),
        tuple(found),
        tuple(walk.headings),
        walk.items,
        walk.quotes,
        tuple(walk.tables),
        tuple(walk.fences),
    )


def read_plain(source: str) -> Reading:
    """Read one plain sentence with ``{placeholders}``; nothing in it is markdown, what stands in quotes is code."""
    holes: list[str] = []
    code: list[str] = []

    def take(into: list[str], mark: str):
        return lambda match: into.append(match.group()) or mark

    text = _QUOTED.sub(take(code, CODE), source)
    text = PLACEHOLDER.sub(take(holes, HOLE), text)
    units = tuple(Unit("paragraph", line) for line in text.split("\n") if line.strip())
    return Reading(units, code=tuple(code), holes=tuple(holes + PLACEHOLDER.findall("\n".join(code))))


def read_section(section: Section) -> Reading:
    """Read the prose and the captions of a section, in order."""
    total = Reading(())
    for block in section.blocks:
        if block.kind == "prose":
            source = outside(block.text, lambda text: re.sub(r"[ \t]+\{#[^}\n]*\}[ \t]*$", "", text, flags=re.M))
            total = _joined(total, read(source))
        elif block.kind == "figure":
            caption = read(block.caption)
            units = tuple(Unit("caption", unit.text) for unit in caption.units)
            total = _joined(total, Reading(units, caption.math, caption.code, caption.links, (block.name,)))
    return total


def _joined(a: Reading, b: Reading) -> Reading:
    return Reading(*(getattr(a, name) + getattr(b, name) for name in Reading.__dataclass_fields__))


class _Walk:
    """Gathers units and shapes from markdown-it's flat list of tokens."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.code: list[str] = []
        self.links: list[str] = []
        self.images: list[str] = []
        self.headings: list[int] = []
        self.tables: list[tuple[int, int]] = []
        self.fences: list[str] = []
        self.items = self.quotes = 0
        self._within: list[str] = []
        self._rows = self._cells = 0

    def take(self, token: Token) -> None:
        kinds = {"heading": "heading", "list_item": "item", "blockquote": "quote", "th": "cell", "td": "cell"}
        name, _, side = token.type.rpartition("_")
        if token.type == "inline":
            kind = self._within[-1] if self._within else "paragraph"
            self.units.append(Unit(kind, _STASHED.sub(_mark, self._inline(token.children or []))))
        elif token.type in ("fence", "code_block"):
            self.fences.append(token.content)
        elif side == "open" and name in kinds:
            self._within.append(kinds[name])
        elif side == "close" and name in kinds:
            self._within.pop()
        if token.type == "heading_open":
            self.headings.append(int(token.tag[1:]))
        self.items += token.type == "list_item_open"
        self.quotes += token.type == "blockquote_open"
        self._rows += token.type == "tr_open"
        self._cells += token.type in ("th_open", "td_open")
        if token.type == "table_close":
            self.tables.append((self._rows, self._cells // max(1, self._rows)))
            self._rows = self._cells = 0

    def _inline(self, children: list[Token]) -> str:
        text = ""
        for child in children:
            if child.type == "text":
                text += child.content
            elif child.type == "code_inline":
                self.code.append(child.content)
                text += CODE
            elif child.type in ("softbreak", "hardbreak"):
                text += "\n"
            elif child.type == "image":
                self.images.append(str(child.attrs.get("src", "")))
                text += self._inline(child.children or [])
            elif child.type == "link_open":
                self.links.append(str(child.attrs.get("href", "")))
        return text


def _mark(match: re.Match) -> str:
    return {"M": MATH, "C": CITED, "H": HOLE}[match[1]]

"""The source files of a chapter: code cells in ``lesson.py``, prose in ``en.md``, ``vi.md`` and ``zh.md``.

``lesson.py`` is a py:percent script; the id of a cell follows ``# %%``, and magics are comments
(``# %%px`` in the cell's first line is ``%%px`` in the notebook). A text is CommonMark with
``$…$``: one ``# Title``, then sections ``## Title {#section-id}``. Alone on a line, ``[[cell-id]]`` places a
code cell and ``[[figure:name|caption]]`` a figure; ``[[cite:key]]`` and ``[[chapter:01]]`` stand inside a sentence.

>>> text = read_text("# T\\n\\n[[language]]\\n\\n## A {#a}\\n\\nProse.\\n", "en.md")
>>> [(section.id, [block.kind for block in section.blocks]) for section in text.sections]
[('top', ['prose', 'cell']), ('a', ['prose'])]

The blocks hold the whole text: ``"".join(block.text …)`` is the text again.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import jupytext

from course.book.findings import BookError

ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,58}[a-z0-9])?")
HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)(?:[ \t]+\{#([^}]*)\})?[ \t]*")
PLACED = re.compile(r"\[\[([^\[\]]+)\]\][ \t]*")
# A citation of a source by its key, or of another chapter as chapter:01, inside a sentence.
CITE = re.compile(r"\[\[(?:cite:(?!chapter:))?((?<=cite:)[^\[\]|]*|chapter:[^\[\]|]*)\]\]")
HOW = "how"  # the id of the cell before the first code, which says how to run cells
NEXT, MAP = "what-next", "what-next-map"  # the ids of the last two cells: what comes next, and the map of the course
RESERVED = (HOW, NEXT, MAP)
SPEAK = re.compile(r"(d2lps\.speak\()([\"'])(en|vi|zh)\2(\))")
# Text without placeholders: fenced code, code spans, displayed and inline math.
OPAQUE = re.compile(
    r"(?P<fence>^[ \t]*(?P<f>`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*(?P=f)[`~]*[ \t]*$|\Z))"
    r"|(?P<code>(?<!`)(?P<t>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=t)(?!`))"
    r"|(?P<display>(?<!\\)\$\$(?:(?!\n[ \t]*\n).)+?\$\$)"
    r"|(?P<math>(?<![\\$])\$(?![\s$])[^$\n]*?(?<![\s\\])\$(?!\$))",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Cell:
    """A code cell of ``lesson.py``."""

    id: str
    source: str

    @property
    def exercise(self) -> str | None:
        """The exercise's id in ``exercises.toml``, or None for a cell that is not an exercise."""
        return self.id.removeprefix("exercise-") if self.id.startswith("exercise-") else None


@dataclass(frozen=True)
class Block:
    """A run of prose, a placed cell or a placed figure, with the blank lines after it."""

    kind: str
    text: str
    name: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a text, from its ``##`` heading to the next; ``top`` is the part before the first heading."""

    id: str
    title: str
    blocks: tuple[Block, ...]

    @property
    def source(self) -> str:
        return "".join(block.text for block in self.blocks)

    def names(self, kind: str) -> list[str]:
        """Return the cells or figures placed here, in order."""
        return [block.name for block in self.blocks if block.kind == kind]

    def cited(self) -> list[str]:
        """Return the sources and chapters cited here, in order."""
        prose = (OPAQUE.sub(" ", block.text) for block in self.blocks if block.kind == "prose")
        return [key for text in prose for key in CITE.findall(text)]


@dataclass(frozen=True)
class Text:
    """The prose of a chapter in one language."""

    title: str
    sections: tuple[Section, ...]

    @property
    def source(self) -> str:
        return "".join(section.source for section in self.sections)

    def section(self, id: str) -> Section | None:
        return next((section for section in self.sections if section.id == id), None)

    def home(self, cell: str) -> str | None:
        """Return the id of the section in which a cell is placed."""
        return next((section.id for section in self.sections if cell in section.names("cell")), None)


def literal(text: str) -> Callable[[int], bool]:
    """Return a function: whether a position of the text is inside fenced code or displayed math."""
    spans = [match.span() for match in OPAQUE.finditer(text) if match["fence"] or match["display"]]
    return lambda at: any(begin <= at < end for begin, end in spans)


def headed(text: str, write: Callable[[re.Match], str]) -> str:
    """Return a text in which ``write`` has written the headings anew, given their signs, words and id."""
    hidden, lines, at = literal(text), [], 0
    for line in text.split("\n"):
        heading = None if hidden(at) else HEADING.fullmatch(line)
        lines.append(write(heading) if heading else line)
        at += len(line) + 1
    return "\n".join(lines)


def outside(text: str, replace: Callable[[str], str]) -> str:
    """Apply ``replace`` to the parts of a text that are neither code nor math."""
    parts, at = [], 0
    for match in OPAQUE.finditer(text):
        parts += [replace(text[at : match.start()]), match.group()]
        at = match.end()
    return "".join([*parts, replace(text[at:])])


def read_cells(source: str, where: str = "lesson.py") -> tuple[Cell, ...]:
    """Return the cells of a lesson; raise BookError if one has a wrong id or none, or is not code."""
    if bare := re.search(r"^%%\w+", source, re.MULTILINE):
        raise BookError(f"{where}: {bare.group()} is not Python; write `# {bare.group()}`")
    cells: dict[str, Cell] = {}
    for number, cell in enumerate(jupytext.reads(source, fmt="py:percent").cells, 1):
        id = cell.metadata.get("title", "")
        if cell.cell_type != "code":
            raise BookError(
                f"{where}: cell {number} is {cell.cell_type}; a lesson holds code, prose stands in "
                "en.md, vi.md and zh.md"
            )
        if not ID.fullmatch(id):
            raise BookError(
                f"{where}: cell {number} is called {id!r}; write its id after `# %%`, in small letters, "
                "digits and hyphens, at most 60 of them"
            )
        if id in cells:
            raise BookError(f"{where}: the cell id {id!r} is given twice; rename one of the two")
        cells[id] = Cell(id, cell.source.strip("\n"))
    return tuple(cells.values())


def speaking(source: str, language: str) -> str:
    """Return the source of the first cell with another language."""
    return SPEAK.sub(rf"\g<1>\g<2>{language}\g<2>\g<4>", source)


def read_text(source: str, where: str) -> Text:
    """Return the prose of one language; raise BookError for a wrong heading or placeholder."""
    if not source.endswith("\n"):
        source += "\n"
    hidden = literal(source)
    title, ids, titles, blocks = "", ["top"], [""], [[]]
    at = 0
    for line in source.splitlines(keepends=True):
        visible = "" if hidden(at) else line.rstrip("\n")
        at += len(line)
        heading, placed = HEADING.fullmatch(visible), PLACED.fullmatch(visible)
        level = len(heading[1]) if heading else 9
        if heading and level > 2 and heading[3] is not None:
            raise BookError(f"{where}: the heading {heading[2]!r} has an id; only `##` headings have one")
        if level == 1:
            if title:
                raise BookError(
                    f"{where}: {heading[2]!r} is a second `#` title; a chapter has one, sections begin with `##`"
                )
            title = titles[0] = heading[2]
        elif level == 2:
            ids.append(_section_id(heading, ids if title else [], where))
            titles.append(heading[2])
            blocks.append([])
        elif line.strip() and not title:
            raise BookError(f"{where}: the text begins with {line.strip()[:40]!r}; begin with `# Title`")
        section_blocks = blocks[-1]
        if placed and not placed[1].startswith(("cite:", "chapter:")):
            section_blocks.append(_placed(placed[1], line, f"{where}, section {ids[-1]!r}"))
        elif section_blocks and (not line.strip() or section_blocks[-1].kind == "prose"):
            section_blocks[-1] = replace(section_blocks[-1], text=section_blocks[-1].text + line)
        else:
            section_blocks.append(Block("prose", line))
    if not title:
        raise BookError(f"{where}: there is no title; begin with `# Title`")
    sections = tuple(map(Section, ids, titles, map(tuple, blocks)))
    for section in sections:
        for block in section.blocks:
            rest = OPAQUE.sub(" ", CITE.sub(" ", block.text)) if block.kind == "prose" else ""
            if stray := re.search(r"\[\[[A-Za-z][^\[\]\n]*\]\]", rest):
                raise BookError(
                    f"{where}, section {section.id!r}: {stray.group()} stands inside a paragraph; "
                    "put it alone on a line"
                )
    return Text(title, sections)


def _section_id(heading: re.Match, ids: list[str], where: str) -> str:
    """Return the id of a ``##`` heading; ``ids`` are those before it, empty before the title."""
    title, id = heading[2], heading[3]
    if not ids:
        raise BookError(f"{where}: the section {title!r} stands before the title; begin with `# Title`")
    if id is None:
        raise BookError(
            f"{where}: the heading {title!r} has no id; write `## {title} {{#its-id}}`, "
            "the same id in en.md, vi.md and zh.md"
        )
    if not ID.fullmatch(id) or id == "top":
        raise BookError(
            f"{where}: the heading {title!r} has the id {id!r}; an id is at most 60 small letters, digits "
            "and hyphens, and not `top`"
        )
    if id in ids:
        raise BookError(f"{where}: the section id {id!r} is given twice; rename one of the two")
    return id


def _placed(inside: str, line: str, where: str) -> Block:
    kind, colon, rest = inside.partition(":")
    if not colon:
        return Block("cell", line, inside)
    name, _, caption = rest.partition("|")
    if kind != "figure" or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise BookError(
            f"{where}: [[{inside}]] is not understood; write [[cell-id]], [[figure:name|caption]], "
            "[[cite:key]] or [[chapter:01]]"
        )
    if "*" in caption or "|" in caption:
        raise BookError(f"{where}: the caption of the figure {name!r} holds `*` or `|`; leave it out")
    return Block("figure", line, name, caption.strip())

"""The notebook of a chapter in one language, the same bytes every time.

A code cell has its id of ``lesson.py``. A markdown cell has the id of its section; if code cells split a section, the
later parts are called ``section-id-2``, ``section-id-3``, … and if a code cell has the section's id, the first part is
called ``section-id-1``. The last two cells say what comes next, and show the map of the course.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import nbformat

from course.book.lesson import CITE, HOW, MAP, NEXT, Block, headed, outside, speaking
from course.book.library import Chapter
from d2lps.messages import text_in
from d2lps.notebook.grading.course import OwnTexts

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True)
class CellSource:
    """The source of one cell: a code cell, or the prose and figures between two of them."""

    id: str
    blocks: tuple[Block, ...]
    code: bool = False


def parts(chapter: Chapter, language: str) -> Iterator[CellSource]:
    """Yield the sources of the cells of one language's notebook, in order."""
    codes = {cell.id for cell in chapter.cells}
    for section in chapter.texts[language].sections:
        prose: list[Block] = []
        count = 0
        for block in [*section.blocks, None]:
            if block and block.kind != "cell":
                prose.append(block)
                continue
            if prose:
                count += 1
                alone = count == 1 and section.id not in codes
                yield CellSource(section.id if alone else f"{section.id}-{count}", tuple(prose))
                prose = []
            if block:
                yield CellSource(block.name, (block,), code=True)


def alternative(name: str, caption: str) -> str:
    """Return the alternative text of a figure: its caption without markdown."""
    return re.sub(r"[\[\]$\\]", "", caption.replace(r"\cdot", "·")) or name


def captions(chapter: Chapter, language: str) -> dict[str, str]:
    """Return figure name → caption with number, as "Figure 1.2. …", or "Figure A.2. …" in an appendix."""
    blocks = [block for section in chapter.texts[language].sections for block in section.blocks]
    figures = {block.name: block.caption for block in reversed(blocks) if block.kind == "figure"}
    numbered = {}
    for count, (name, caption) in enumerate(reversed(figures.items()), 1):
        number = f"{chapter.number}.{count}" if chapter.number else str(count)
        numbered[name] = text_in(language, "book.figure", number=number, caption=caption) if caption else ""
    return numbered


def rendered(blocks: tuple[Block, ...], cites: dict[str, str], numbered: dict[str, str]) -> str:
    """Return the markdown of a cell: headings without ids, figures as images, citations as links.

    ``numbered`` is the result of :func:`captions`.
    """
    pieces = []
    for block in blocks:
        if block.kind == "figure":
            image = f"![{alternative(block.name, block.caption)}](../../img/{block.name}.svg)"
            pieces.append(f"{image}\n\n*{numbered[block.name]}*" if block.caption else image)
        elif block.text.strip():
            pieces.append(outside(block.text, lambda text: CITE.sub(lambda match: cites[match[1]], text)).strip("\n"))
    return headed("\n\n".join(pieces), lambda heading: f"{heading[1]} {heading[2]}")


def own(texts: Iterable[OwnTexts], language: str) -> nbformat.NotebookNode:
    """Make the notebook of a teacher's own exercises."""
    speak = {"cell_type": "code", "id": "language", "source": f'import d2lps\n\nd2lps.speak("{language}")'}
    cells = [{"cell_type": "markdown", "id": "top", "source": f"# {text_in(language, 'book.own')}"}, speak]
    for each in texts:
        cells.append({"cell_type": "markdown", "id": f"text-{each.id}"[:64], "source": each.text(language)})
        cells.append({"cell_type": "code", "id": f"exercise-{each.id}", "source": each.stub})
    more = {"code": {"metadata": {}, "execution_count": None, "outputs": []}, "markdown": {"metadata": {}}}
    cells = [cell | more[cell["cell_type"]] for cell in cells]
    return nbformat.from_dict({"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5})


def notebook(chapter: Chapter, language: str, cites: dict[str, str], end: str = "") -> nbformat.NotebookNode:
    """Make the notebook of one language, without outputs.

    ``cites`` are the links of :meth:`Book.links`, ``end`` is the markdown of :func:`course.book.navigation.end`; if it
    is empty, the last two cells are missing.
    """
    cells, numbered = [], captions(chapter, language)

    def markdown(id: str, source: str) -> None:
        cells.append({"cell_type": "markdown", "id": id, "metadata": {}, "source": source})

    def code(id: str, source: str, metadata: dict) -> None:
        cell = {"cell_type": "code", "id": id, "metadata": metadata, "source": source}
        cells.append(cell | {"execution_count": None, "outputs": []})

    for part in parts(chapter, language):
        if part.code:
            cell = chapter.cell(part.id)
            if cell.id == "language":
                markdown(HOW, f"> {text_in(language, 'book.how')}")
            source = speaking(cell.source, language) if cell.id == "language" else cell.source
            code(cell.id, source, {} if cell.exercise is None else {"tags": ["exercise"], "nbgrader": graded(cell.id)})
        else:
            markdown(part.id, rendered(part.blocks, cites, numbered))
    if end:
        markdown(NEXT, end)
        code(MAP, f'd2lps.progress("{chapter.slug.partition("-")[0]}")', {})
    book = nbformat.from_dict({"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5})
    nbformat.validate(book)  # all at once, which takes less time than cell by cell
    return book


def graded(id: str) -> dict:
    """Return the metadata by which nbgrader (schema 3) takes a cell as an answer that is worth one point."""
    about = {"grade": True, "solution": True, "locked": False, "task": False}
    return about | {"schema_version": 3, "grade_id": id, "points": 1}


def dumps(book: nbformat.NotebookNode) -> str:
    """Return the text of a notebook's file, with sorted keys, an indent of one space, and a newline at the end."""
    return nbformat.writes(book, indent=1, sort_keys=True) + "\n"

"""Bring edits made in JupyterLab home: base, notebook and chapter are merged, or nothing is written.

*Base* is what the notebook was made from, *theirs* what the notebook says now, *ours* what the chapter says now.
Prose comes home always, code only when asked for, exercises and outputs never.
"""

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from course.book.agree import digests
from course.book.findings import COMMAND, BookError
from course.book.lesson import literal, outside, replace_cells, speaking
from course.book.library import Book, Chapter, chapter_of, write
from course.book.notebook import Part, alternative, captions, parts, rendered, without_number
from course.book.workspace import KEY, Origin, edition, load, origin_of
from d2lps.messages import LANGUAGES

_IMAGE = re.compile(r"!\[([^\]\n]*)\]\(\.\./\.\./img/([A-Za-z0-9_-]+)\.svg\)(?:[ \t]*\n+\*([^*\n]+)\*[ \t]*(?=\n|\Z))?")


@dataclass
class Pulled:
    """What came home: the files written, the sections to read again, and what stayed in the notebook."""

    chapter: str
    language: str
    written: list[Path] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def pull(book: Book, path: Path, code: bool = False) -> Pulled:
    """Merge a reader's notebook into its chapter; raises BookError, having written nothing, on a conflict."""
    edited = load(path)
    base = origin_of(edited, path)
    chapter = book.chapter(book.slug(base.chapter))
    report = Pulled(chapter.slug, base.language)
    prose = _prose(base, edited.cells, report.left)
    codes = _code(base, edited.cells, report.left, code)
    name = f"{base.language}.md"
    before = {"lesson.py": chapter.lesson} | {f"{each}.md": text.source for each, text in chapter.texts.items()}
    after = before | {
        name: merged(before[name], base.prose, prose, f"{chapter.slug}/{name}"),
        "lesson.py": _lesson(chapter, base, codes),
    }
    home = book.ensure_sound(chapter_of(chapter.slug, after, chapter.exercises, chapter.predictions))
    old, new = digests(book, chapter), digests(book, home)
    report.sections = [id for id in new if old.get(id) != new[id]]
    changed = {book.folder(chapter.slug) / file: text for file, text in after.items() if text != before[file]}
    report.written = write(changed)
    # From here on the notebook is made from what was brought home, so that it can be pulled again.
    lesson = replace_cells(base.lesson, codes) if codes else base.lesson
    now = edition(
        base.chapter, base.language, lesson, prose, {**book.links(base.language, workspace=True), **base.cites}
    )
    if now != base:
        content = json.loads(path.read_text("utf-8"))
        content["metadata"][KEY].update(now.metadata())
        write({path.resolve(): json.dumps(content, indent=1, ensure_ascii=False) + "\n"})
    return report


def merged(ours: str, base: str, theirs: str, where: str) -> str:
    """The three-way merge of a file, line by line; raises BookError with the first conflict."""
    if theirs == base or ours == theirs:
        return ours
    if ours == base:
        return theirs
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for file, text in zip(files, (ours, base, theirs), strict=True):
            file.write_text(text, "utf-8", newline="")
        command = ["git", "merge-file", "-p", "-L", "chapter", "-L", "base", "-L", "notebook", *map(str, files)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            raise BookError("git is needed to merge and is not installed; install git") from None
    text = done.stdout.decode("utf-8")
    if done.returncode >= 128:
        raise BookError(f"{where}: git could not merge: {done.stderr.decode('utf-8', 'replace').strip()}")
    if done.returncode:
        section, conflict = _conflict(text)
        place = f"{where}, section {section!r}" if where.endswith(".md") else where
        raise BookError(
            f"{place}: the chapter and the notebook changed the same lines; "
            "write in the notebook what is to stand, or change the chapter by hand. Nothing was written."
            f"\n{conflict}"
        )
    return text


def _conflict(text: str) -> tuple[str, str]:
    """Where the first conflict stands, and what both sides say."""
    conflict = re.search(r"^<<<<<<< chapter$.*?^>>>>>>> notebook$", text, re.M | re.S)
    heading = re.compile(r"^## .*\{#([a-z0-9-]+)\}[ \t]*$", re.M)
    inside = heading.findall(conflict[0])[:1]
    return (inside or ["top", *heading.findall(text[: conflict.start()])])[-1], conflict[0]


def _prose(base: Origin, cells: list, left: list[str]) -> str:
    """The prose as it would be written if the notebook were all there is."""
    chapter = base.read()
    every = list(parts(chapter, base.language))
    known, numbered = {part.id: part for part in every}, captions(chapter, base.language)
    pieces: list[tuple[str, str, bool]] = []  # the cell's id, what is written, and whether it is new
    for cell in cells:
        id, part = cell.get("id", ""), known.get(cell.get("id"))
        same = part and not part.code and cell.source.strip("\n") == rendered(part.blocks, base.cites, numbered)
        if part and (same if cell.cell_type == "markdown" else part.code):
            pieces.append((id, part.source, False))
        elif cell.source.strip() and cell.cell_type == "markdown":
            pieces.append((id, _written(cell.source, part, chapter, base), True))
        elif cell.source.strip():
            first = cell.source.strip().split("\n")[0][:40]
            left.append(f"the new cell {id!r} ({first}): write it in lesson.py and place it in every language")
    for before, part in zip([None, *every], every, strict=False):
        ids = [id for id, _, _ in pieces]
        if part.code and part.id not in ids:
            pieces.insert(ids.index(before.id) + 1 if before and before.id in ids else 0, (part.id, part.source, False))
            left.append(f"the cell {part.id!r} was deleted: take it out of lesson.py and of every language")
    text = ""
    for _, piece, new in pieces:
        if new and text and not text.endswith("\n\n"):
            text += "\n"
        text += piece
    return text.rstrip("\n") + "\n"


def _written(source: str, part: Part | None, chapter: Chapter, base: Origin) -> str:
    """A cell's markdown as it is written in a chapter: figures, citations and the ids of headings are back."""
    text = source.strip("\n")
    sections = chapter.texts[base.language].sections
    blocks = [block for section in sections for block in section.blocks if block.kind == "figure"]
    written = {block.name: block.caption for block in blocks}

    def image(match: re.Match) -> str:
        if literal(text)(match.start()):
            return match[0]
        alt, name, caption = match.groups()
        known, caption = written.get(name), caption and without_number(caption, base.language)
        if caption is None or (caption == known and alt != alternative(name, known)):
            caption = alt
        return f"[[figure:{name}|{caption}]]" if caption and caption != name else f"[[figure:{name}]]"

    def placeholders(plain: str) -> str:
        for key, link in base.cites.items():
            plain = plain.replace(link, f"[[{key}]]" if key.startswith("chapter:") else f"[[cite:{key}]]")
        return plain

    text = outside(_IMAGE.sub(image, text), placeholders)
    titles = {section.title: section.id for section in sections[1:]}
    first = part.section if part and part.first and part.section != "top" else None
    hidden = literal(text)

    def heading(match: re.Match) -> str:
        nonlocal first
        if hidden(match.start()):
            return match[0]
        id, first = first or titles.get(match[1]), None
        return f"## {match[1]} {{#{id}}}" if id else match[0]

    return re.sub(r"^##[ \t]+((?:(?!\{#).)+?)[ \t]*$", heading, text, flags=re.M) + "\n\n"


def _code(base: Origin, cells: list, left: list[str], wanted: bool) -> dict[str, str]:
    """The code cells that were edited and shall come home, in the lesson's own language."""
    known = {cell.id: cell for cell in base.read().cells}
    edited = {}
    for cell in cells:
        old = known.get(cell.get("id"))
        if cell.cell_type != "code" or old is None:
            continue
        now = (speaking(cell.source, LANGUAGES[0]) if old.id == "language" else cell.source).strip("\n")
        if now == old.source:
            continue
        if old.exercise is not None:
            left.append(f"the answer to {old.id!r}: exercises are never brought home")
        elif not wanted:
            left.append(f"the code of {old.id!r}: bring it home with --code")
        else:
            edited[old.id] = now
    return edited


def _lesson(chapter: Chapter, base: Origin, codes: dict[str, str]) -> str:
    """The lesson with the edited cells merged into it."""
    base_cells, cells = ({cell.id: cell.source for cell in each.cells} for each in (base.read(), chapter))
    changed = {}
    for id, theirs in codes.items():
        if id not in cells:
            raise BookError(
                f"{chapter.slug}/lesson.py has no cell {id!r} any more, and the notebook changed it; "
                "undo the change there or write the cell again. Nothing was written."
            )
        texts = (f"{text}\n" for text in (cells[id], base_cells[id], theirs))
        changed[id] = merged(*texts, f"{chapter.slug}/lesson.py, cell {id!r}").strip("\n")
    return replace_cells(chapter.lesson, changed) if changed else chapter.lesson


def advice(book: Book, report: Pulled) -> list[str]:
    """What the author is told after a pull."""
    lines = [f"wrote {path.relative_to(book.root).as_posix()}" for path in report.written]
    lines += [f"left in the notebook: {what}" for what in report.left]
    if report.written:
        agree = f"{COMMAND} agree {report.chapter} {' '.join(report.sections)}"
        lines += [
            f"changed in {report.language}, to follow in the other languages: {', '.join(report.sections)}",
            f"then: {COMMAND} build; read the three texts side by side; {agree}",
            "the notebook now counts as brought home: reload it in JupyterLab (File, Reload Notebook from Disk)",
        ]
    return lines or ["there is nothing to bring home"]

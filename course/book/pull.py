"""Bring prose that was edited in JupyterLab back into its chapter with a three-way merge, or write nothing.

The base of the merge is the text that the notebook was made from. Only the text of markdown cells is brought back; code
is edited in ``lesson.py``, and cells are added and deleted there and in the texts.
"""

import json
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from course.book.agree import digests
from course.book.findings import COMMAND, BookError
from course.book.lesson import RESERVED, Cell, literal, outside, read_text, speaking
from course.book.library import Book, write
from course.book.notebook import Part, captions, parts, rendered, without_number
from course.book.workspace import KEY, Origin, edition, load, origin_of
from d2lps.messages import LANGUAGES

_IMAGE = re.compile(r"!\[([^\]\n]*)\]\(\.\./\.\./img/([A-Za-z0-9_-]+)\.svg\)(?:[ \t]*\n+\*([^*\n]+)\*[ \t]*(?=\n|\Z))?")


def pull(book: Book, path: Path) -> list[str]:
    """Merge the prose of a workspace notebook into its chapter and return sentences for the author.

    Raises BookError, having written nothing, if both sides changed the same lines or the chapter would be broken.
    """
    edited = load(path)
    base = origin_of(edited, path)
    chapter = book.chapter(book.slug(base.chapter))
    file = f"{base.language}.md"
    prose, text = _prose(base, edited.cells), chapter.texts[base.language]
    new_text = read_text(_merged(text.source, base.prose, prose, f"{chapter.slug}/{file}"), file)
    merged = book.ensure_sound(replace(chapter, texts=chapter.texts | {base.language: new_text}))
    old, new = digests(book, chapter), digests(book, merged)
    sections = [id for id in new if old.get(id) != new[id]]
    written = write({book.folder(chapter.slug) / file: new_text.source}) if new_text.source != text.source else []
    # The notebook's base is now the prose that was brought back, so that the notebook can be pulled again.
    links = book.links(base.language, workspace=True) | base.cites
    origin = edition(base.chapter, base.language, base.lesson, prose, links, base.end)
    if origin != base:
        content = json.loads(path.read_text("utf-8"))
        content["metadata"][KEY].update(origin.metadata())
        write({path.resolve(): json.dumps(content, indent=1, ensure_ascii=False) + "\n"})
    return _advice(book, chapter.slug, base.language, written, sections, _left(base, edited.cells))


def _advice(book: Book, slug: str, language: str, written: list[Path], sections: list[str], left: list[str]):
    lines = [f"wrote {path.relative_to(book.root).as_posix()}" for path in written]
    if left:
        remedy = f"edit code in chapters/{slug}/lesson.py, and add or delete cells there and in the texts"
        lines.append(f"only edited prose was pulled, not {', '.join(left)}; {remedy}")
    if written:
        lines += [
            f"changed in {language}, to follow in the other languages: {', '.join(sections)}",
            f"then: {COMMAND} build; read the three texts side by side; {COMMAND} agree {slug} {' '.join(sections)}",
            "the notebook now has a new base: reload it in JupyterLab (File, Reload Notebook from Disk)",
        ]
    return lines or ["the notebook has no edited prose"]


def _merged(ours: str, base: str, theirs: str, where: str) -> str:
    """Return the three-way merge of a text, line by line; raise BookError with the first conflict."""
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
            process = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            raise BookError("git is needed to merge and is not installed; install git") from None
    text = process.stdout.decode("utf-8")
    if process.returncode >= 128:
        raise BookError(f"{where}: git could not merge: {process.stderr.decode('utf-8', 'replace').strip()}")
    if process.returncode:
        section, conflict = _conflict(text)
        raise BookError(
            f"{where}, section {section!r}: the chapter and the notebook changed the same lines; "
            f"make the notebook say what is right, or edit the chapter by hand. Nothing was written.\n{conflict}"
        )
    return text


def _conflict(text: str) -> tuple[str, str]:
    """Return the section of the first conflict, and both sides of it."""
    conflict = re.search(r"^<<<<<<< chapter$.*?^>>>>>>> notebook$", text, re.M | re.S)
    heading = re.compile(r"^## .*\{#([a-z0-9-]+)\}[ \t]*$", re.M)
    inside = heading.findall(conflict[0])[:1]
    return (inside or ["top", *heading.findall(text[: conflict.start()])])[-1], conflict[0]


def _prose(base: Origin, cells: list) -> str:
    """Return the prose of the base with the edited markdown cells."""
    chapter = base.read()
    sources = {cell.get("id"): cell.source.strip("\n") for cell in cells if cell.cell_type == "markdown"}
    text, numbered = "", captions(chapter, base.language)
    for part in parts(chapter, base.language):
        source = sources.get(part.id)
        if part.code or source is None or source == rendered(part.blocks, base.cites, numbered):
            text += part.source
        elif source.strip():
            text += "" if not text or text.endswith("\n\n") else "\n"
            text += _written(source, part, base)
    return text.rstrip("\n") + "\n"


def _written(text: str, part: Part, base: Origin) -> str:
    """Return a cell's markdown as a chapter writes it, with placeholders for figures and citations, and heading ids."""
    is_literal = literal(text)

    def image(match: re.Match) -> str:
        if is_literal(match.start()):
            return match[0]
        alt, name, caption = match.groups()
        caption = without_number(caption, base.language) if caption else alt
        return f"[[figure:{name}|{caption}]]" if caption and caption != name else f"[[figure:{name}]]"

    def placeholders(plain: str) -> str:
        for key, link in base.cites.items():
            plain = plain.replace(link, f"[[{key}]]" if key.startswith("chapter:") else f"[[cite:{key}]]")
        return plain

    text = outside(_IMAGE.sub(image, text), placeholders)
    if part.first and part.section != "top":  # the section begins with its heading
        text = re.sub(r"\A##[ \t]+((?:(?!\{#).)+?)[ \t]*$", rf"## \1 {{#{part.section}}}", text, flags=re.M)
    return text + "\n\n"


def _left(base: Origin, cells: list) -> list[str]:
    """Return the ids of code cells that were edited, and of cells that were added or deleted; not of answers."""
    chapter, by_id = base.read(), {cell.get("id", ""): cell for cell in cells}
    ids = [part.id for part in parts(chapter, base.language)]
    for id in RESERVED:
        by_id.pop(id, None)

    def is_edited(cell: Cell) -> bool:
        old, new = (speaking(source, LANGUAGES[0]) for source in (cell.source, by_id[cell.id].source.strip("\n")))
        return old != new and not cell.exercise

    edited = [cell.id for cell in chapter.cells if cell.id in by_id and is_edited(cell)]
    added = [id for id, cell in by_id.items() if id not in ids and cell.source.strip()]
    return edited + added + [id for id in ids if id not in by_id]

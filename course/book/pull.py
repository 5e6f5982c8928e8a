"""Bring prose that was edited in JupyterLab back into its chapter with a three-way merge, or write nothing.

The base of the merge is the text that the notebook was made from. Code cells are never brought back: they are edited in
``lesson.py``.
"""

import json
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from course.book.agree import digests
from course.book.findings import COMMAND, BookError
from course.book.lesson import literal, outside, read_text, speaking
from course.book.library import Book, Chapter, write
from course.book.notebook import Part, alternative, captions, parts, rendered, without_number
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
    origin = edition(base.chapter, base.language, base.lesson, prose, links)
    if origin != base:
        content = json.loads(path.read_text("utf-8"))
        content["metadata"][KEY].update(origin.metadata())
        write({path.resolve(): json.dumps(content, indent=1, ensure_ascii=False) + "\n"})
    return _advice(book, chapter.slug, base.language, written, sections, _changed_code(base, edited.cells))


def _advice(book: Book, slug: str, language: str, written: list[Path], sections: list[str], code: list[str]):
    lines = [f"wrote {path.relative_to(book.root).as_posix()}" for path in written]
    if code:
        lines.append(f"code stays in the notebook: to change {', '.join(code)}, edit chapters/{slug}/lesson.py")
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
    """Return the prose of the notebook as it is written in a chapter, with every code cell of the chapter placed."""
    chapter = base.read()
    base_parts = list(parts(chapter, base.language))
    by_id, numbered = {part.id: part for part in base_parts}, captions(chapter, base.language)
    pieces: list[tuple[str, str, bool]] = []  # the cell's id, its text in the chapter, and if the text is new
    for cell in cells:
        id, part = cell.get("id", ""), by_id.get(cell.get("id"))
        if cell.cell_type == "code":
            pieces += [(id, part.source, False)] if part and part.code else []
        elif part and not part.code and cell.source.strip("\n") == rendered(part.blocks, base.cites, numbered):
            pieces.append((id, part.source, False))
        elif cell.source.strip():
            pieces.append((id, _written(cell.source, part, chapter, base), True))
    for before, part in zip([None, *base_parts], base_parts, strict=False):
        ids = [id for id, _, _ in pieces]
        if part.code and part.id not in ids:
            pieces.insert(ids.index(before.id) + 1 if before and before.id in ids else 0, (part.id, part.source, False))
    text = ""
    for _, piece, is_new in pieces:
        if is_new and text and not text.endswith("\n\n"):
            text += "\n"
        text += piece
    return text.rstrip("\n") + "\n"


def _written(source: str, part: Part | None, chapter: Chapter, base: Origin) -> str:
    """Return a cell's markdown as a chapter writes it, with placeholders for figures and citations, and heading ids."""
    text = source.strip("\n")
    sections = chapter.texts[base.language].sections
    blocks = [block for section in sections for block in section.blocks if block.kind == "figure"]
    caption_of = {block.name: block.caption for block in blocks}

    def image(match: re.Match) -> str:
        if literal(text)(match.start()):
            return match[0]
        alt, name, caption = match.groups()
        old, caption = caption_of.get(name), caption and without_number(caption, base.language)
        if caption is None or (caption == old and alt != alternative(name, old)):
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


def _changed_code(base: Origin, cells: list) -> list[str]:
    """Return the ids of code cells that were edited, added or deleted; answers to exercises do not count."""
    lesson = {cell.id: cell for cell in base.read().cells}
    sources = {cell.get("id"): cell.source.strip("\n") for cell in cells if cell.cell_type == "code"}
    added = [id for id, source in sources.items() if id not in lesson and source]
    deleted = [id for id in lesson if id not in sources]

    def is_edited(id: str) -> bool:
        old, new = (speaking(source, LANGUAGES[0]) for source in (lesson[id].source, sources[id]))
        return old != new and not lesson[id].exercise

    return [id for id in sources if id in lesson and is_edited(id)] + added + deleted

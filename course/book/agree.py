"""``agreed.txt``: a digest of each section as it was when its three texts were last read side by side.

The digest covers the texts, the cells placed there, the figures without their colors, the messages that those cells
name, and the texts of the exercises and predictions. No language is the source of the others: if one changes, all three
are read again.
"""

import json
import re
from collections.abc import Iterator

from course.book.findings import COMMAND, Finding
from course.book.library import Book, Chapter, digest, write
from course.book.reading import head, read_section
from d2lps.messages import LANGUAGES

FILE = "agreed.txt"
NAMED = ("table", "names")  # the sections of messages of which cells name the last part alone


def digests(book: Book, chapter: Chapter) -> dict[str, str]:
    """Return section → digest of its content as readers see it."""
    messages = book.messages
    by_section = {}
    for id in chapter.sections:
        sections = chapter.section(id)
        cells = [chapter.cell(name) for name in sections[LANGUAGES[0]].names("cell")]
        code = "\n".join(cell.source for cell in cells)
        figures = dict.fromkeys(name for section in sections.values() for name in section.names("figure"))
        parts = {
            "texts": {language: section.source.strip() for language, section in sections.items()},
            "cells": [[cell.id, cell.source] for cell in cells],
            "figures": {name: digest(_drawn(book.figure(name).read_text("utf-8"))) for name in figures},
            "messages": {language: _named(code, messages[language]) for language in LANGUAGES},
            "exercises": [chapter.exercises.get(cell.exercise) for cell in cells if cell.exercise is not None],
        }
        if predictions := {name: chapter.predictions[name] for name in _quoted(code) & set(chapter.predictions)}:
            parts["predictions"] = predictions
        by_section[id] = digest(json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str))
    return by_section


def _drawn(svg: str) -> str:
    """Return a figure without its style sheet, which has the colors."""
    return re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)


def _named(code: str, sentences: dict[str, str]) -> dict[str, str]:
    """Return the messages whose key stands in quotes in the code; columns and names without their section."""
    named = _quoted(code) | {f"{section}.{word}" for section in NAMED for word in _quoted(code)}
    return {key: sentence for key, sentence in sentences.items() if key in named}


def _quoted(code: str) -> set[str]:
    return set(re.findall(r"[\"']([A-Za-z0-9_.-]+)[\"']", code))


def agreed(book: Book, slug: str) -> dict[str, str]:
    """Return section → digest as recorded in ``agreed.txt``."""
    path = book.folder(slug) / FILE
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return dict(line.split(maxsplit=1) for line in lines if len(line.split()) == 2)


def stale(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """Find sections that changed since their three texts were read side by side."""
    recorded, now = agreed(book, chapter.slug), digests(book, chapter)
    command = f"{COMMAND} agree {chapter.slug}"
    for id, new in now.items():
        if recorded.get(id) != new:
            if id in recorded:
                message = "the section has changed since its three texts were read side by side"
            else:
                message = "the three texts were never read side by side"
            yield Finding("fail", "agreed", id, LANGUAGES, message, f"read them, then {command} {id}")
    for id in (id for id in recorded if id not in now):
        yield Finding("fail", "agreed", id, (), f"{FILE} names a section that no text has", f"{command} --all")


def side_by_side(chapter: Chapter, id: str) -> str:
    """Return the beginnings of a section's three texts, one below the other."""
    sections = chapter.section(id).items()
    texts = [f"{language}  {head(read_section(section).text, width=300)}" for language, section in sections]
    return "\n".join([f"── {chapter.slug} {id}", *texts])


def renew(book: Book, chapter: Chapter, sections: list[str]) -> None:
    """Record the named sections as read side by side, and remove deleted sections from the file."""
    now = digests(book, chapter)
    recorded = agreed(book, chapter.slug) | {id: now[id] for id in sections}
    write({book.folder(chapter.slug) / FILE: "".join(f"{id} {recorded[id]}\n" for id in now if id in recorded)})

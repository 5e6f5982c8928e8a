"""What a check finds, and what a check is given: one passage in three languages."""

from collections.abc import Iterator
from dataclasses import dataclass

from d2lps.course.book.lesson import BookError
from d2lps.course.book.library import Book, Chapter, toml
from d2lps.course.book.plain import Reading, read, read_plain, read_section
from d2lps.messages import LANGUAGES, flat

COMMAND = "python -m d2lps.course.book"


@dataclass(frozen=True)
class Finding:
    """One thing to mend (``fail``) or to look at (``warn``), and the command or file that mends it."""

    level: str
    check: str
    section: str
    languages: tuple[str, ...]
    message: str
    remedy: str

    def __str__(self) -> str:
        languages = f" [{' '.join(self.languages)}]" if self.languages else ""
        return f"{self.level}  {self.section}{languages}  {self.check}: {self.message}\n      → {self.remedy}"


@dataclass(frozen=True)
class Passage:
    """A section, a message or a text of an exercise, read in every language that has it."""

    kind: str
    name: str
    files: dict[str, str]
    readings: dict[str, Reading]
    sources: dict[str, str]

    def fail(self, check: str, message: str, *languages: str) -> Finding:
        return self._finding("fail", check, message, languages)

    def warn(self, check: str, message: str, *languages: str) -> Finding:
        return self._finding("warn", check, message, languages)

    def _finding(self, level: str, check: str, message: str, languages: tuple[str, ...]) -> Finding:
        files = dict.fromkeys(self.files[language] for language in languages or self.files)
        return Finding(level, check, self.name, languages, message, f"edit {', '.join(files)}")


def passages(chapter: Chapter) -> Iterator[Passage]:
    """The sections of a chapter, then the texts of its exercises."""
    folder = f"chapters/{chapter.slug}"
    for id in chapter.sections:
        sections = chapter.section(id)
        yield Passage(
            "section",
            id,
            {language: f"{folder}/{language}.md" for language in sections},
            {language: read_section(section) for language, section in sections.items()},
            {language: section.source for language, section in sections.items()},
        )
    files = dict.fromkeys(LANGUAGES, f"{folder}/exercises.toml")
    for name, texts in triples(chapter.exercises):
        yield Passage("exercise", name, files, {key: read(text, holes=True) for key, text in texts.items()}, texts)


def triples(table: object, name: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Every table with the keys en, vi, zh anywhere below, as name and texts; lists give one text per place."""
    if isinstance(table, list):
        for index, entry in enumerate(table, 1):
            yield from triples(entry, f"{name}[{index}]")
    elif isinstance(table, dict) and set(LANGUAGES) & set(table):
        texts = [table.get(language) for language in LANGUAGES]
        if all(isinstance(text, str) for text in texts):
            yield name, dict(zip(LANGUAGES, texts, strict=True))
        elif all(isinstance(text, list) for text in texts) and len({len(text) for text in texts}) == 1:
            for index, each in enumerate(zip(*texts, strict=True), 1):
                yield from triples(dict(zip(LANGUAGES, each, strict=True)), f"{name}[{index}]")
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
    """What d2lps says at run time, one passage per key that all languages have."""
    said = messages(book)
    files = {language: f"d2lps/messages/{language}.toml" for language in LANGUAGES}
    for key in said[LANGUAGES[0]]:
        texts = {language: said[language][key] for language in LANGUAGES if key in said[language]}
        if len(texts) == len(LANGUAGES):
            yield Passage("message", key, files, {each: read_plain(text) for each, text in texts.items()}, texts)


def messages(book: Book) -> dict[str, dict[str, str]]:
    """The sentences of ``d2lps/messages``, flat, by language; empty where a book has none."""
    paths = {language: book.root / "d2lps" / "messages" / f"{language}.toml" for language in LANGUAGES}
    return {language: flat(toml(path)) if path.is_file() else {} for language, path in paths.items()}

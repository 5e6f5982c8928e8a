"""The book on disk: chapters, figures, references and glossary, and the faults that keep a chapter from being built."""

import hashlib
import io
import os
import re
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from course.book.findings import COMMAND, BookError, Finding, edit
from course.book.lesson import RESERVED, Cell, Section, Text, read_cells, read_text
from d2lps.messages import LANGUAGES, flat
from d2lps.notebook.grading.course import choice, chosen

FIRST = LANGUAGES[0]  # faults compare the other languages with it; no language is the source of the others
GENERATED = {"__pycache__", ".d2lps", ".ipynb_checkpoints"}  # written by Python, exercises, JupyterLab
WHEN = (1980, 1, 1, 0, 0, 0)  # of all files in a zip

OFFERED = re.compile(
    r"""[.;。；] ?[^.;。；\n]*`d2lps\.solution\("[\w-]+"\)`([.。])"""
)  # the end of a sentence offers a solution


@dataclass(frozen=True)
class Chapter:
    """The cells of a chapter and its three texts."""

    slug: str
    lesson: str
    cells: tuple[Cell, ...]
    texts: dict[str, Text]
    exercises: dict[str, dict] = field(default_factory=dict)
    predictions: dict[str, dict] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """The number before those of its figures, as :func:`number_of` writes it."""
        return number_of(self.slug)

    @property
    def sections(self) -> list[str]:
        """The ids of the sections in the order of the first language."""
        return [section.id for section in self.texts[FIRST].sections]

    def section(self, id: str) -> dict[str, Section]:
        """Return language → section, for the languages that have it."""
        sections = {language: text.section(id) for language, text in self.texts.items()}
        return {language: section for language, section in sections.items() if section}

    def cell(self, id: str) -> Cell:
        return next(cell for cell in self.cells if cell.id == id)

    def home(self, cell: str) -> str:
        """Return the section in which the first language that has the cell places it."""
        return next(filter(None, (text.home(cell) for text in self.texts.values())), "top")


def number_of(slug: str) -> str:
    """Return the number of a chapter as readers see it, or an empty string.

    >>> [number_of(slug) for slug in ("01-first", "06b-between", "a-appendix", "unnumbered")]
    ['1', '6b', 'A', '']
    """
    match = re.match(r"(?:0*(\d+[a-z]?)|([a-z]))-", slug)
    return (match[1] or match[2].upper()) if match else ""


class Book:
    """The folders under one root: ``chapters/``, ``img/``, ``d2lps/messages/``, ``workspace/``.

    Its chapters and exercises are those that ``D2LPS_TOC`` chooses. Without ``solutions`` it has neither these, nor
    sentences that offer them, nor the last hint of each exercise.
    """

    def __init__(self, root: Path | str | None = None, solutions: bool = True):
        self.root, self.solutions = Path(root) if root else _root(), solutions
        self.chapters = self.root / "chapters"
        if not self.chapters.is_dir():
            raise BookError(f"{self.root} has no chapters/; run this in the course's folder or name it with --root")

    @cached_property
    def contents(self) -> dict[str, dict[str, str]]:
        """Slug → title by language, in the order of the book."""
        return {entry["slug"]: entry["title"] for entry in self.entries}

    @cached_property
    def abouts(self) -> dict[str, dict[str, str]]:
        """Slug → a sentence about the chapter by language."""
        return {entry["slug"]: entry["about"] for entry in self._entries("about")}

    @cached_property
    def minutes(self) -> dict[str, int]:
        """Slug → the minutes that a chapter takes, for those that say so."""
        return {entry["slug"]: entry["minutes"] for entry in self.entries if "minutes" in entry}

    @cached_property
    def entries(self) -> list[dict]:
        """The chapters of ``toc.toml``, in the order of the book."""
        return self._entries("title")

    def _entries(self, part: str) -> list[dict]:
        """Return the chapters of ``toc.toml``; raise BookError if one lacks that part in a language."""
        entries = toml(self.chapters / "toc.toml").get("chapter", [])
        for number, entry in enumerate(entries, 1):
            _require(entry, ("slug", part), f"toc.toml: chapter {number}")
            _require(entry[part], LANGUAGES, f"toc.toml: the {part} of chapter {number}")
        return chosen(entries)

    @cached_property
    def references(self) -> dict[str, dict]:
        """Key → authors, year, title, venue, url."""
        return toml(self.chapters / "references.toml")

    @cached_property
    def cites(self) -> dict[str, str]:
        """Key → the link that readers see."""
        links: dict[str, str] = {}
        for key, entry in self.references.items():
            _require(entry, ("authors", "year", "title", "url"), f"references.toml: {key!r}")
            link = f"[{entry['authors']}, {entry['year']}]({entry['url']})"
            if link in links.values():
                raise BookError(
                    f"references.toml: {key!r} looks the same as another source; tell them apart in `year`, as in 2014a"
                )
            links[key] = link
        return links

    @cached_property
    def left_out(self) -> dict[str, dict[str, str]]:
        """Number → title by language, for chapters that exist but are not in ``toc.toml``."""
        texts = sorted(self.chapters.glob(f"*-*/{FIRST}.md"))
        folders = [path.parent for path in texts if path.parent.name not in self.contents]
        return {folder.name.partition("-")[0]: _titles(folder) for folder in folders}

    def links(self, language: str, workspace: bool = False) -> dict[str, str]:
        """Return placeholder → markdown: :attr:`cites`, and links to chapters from a notebook of another chapter.

        A chapter that is left out of ``toc.toml`` has only its title.
        """
        links = dict(self.cites) | {f"chapter:{number}": titles[language] for number, titles in self.left_out.items()}
        for number, slug in self.numbers.items():
            path = notebook_of(slug, language, workspace)
            links[f"chapter:{number}"] = f"[{self.contents[slug][language]}]({path})"
        return links

    @cached_property
    def terms(self) -> dict:
        """The content of ``terms.toml``: ``names`` and one table ``term`` per concept."""
        glossary = toml(self.chapters / "terms.toml")
        for number, term in enumerate(glossary.get("term", []), 1):
            _require(term, LANGUAGES, f"terms.toml: term {number}")
            name = f"terms.toml: {term['en']!r}"
            if "means" in term:
                _require(term["means"], LANGUAGES, f"{name}: means")
            if term.get("chapter") not in (None, *self.numbers, *self.left_out):
                raise BookError(
                    f"{name}: there is no chapter {term['chapter']!r}; take one of {', '.join(self.numbers)}"
                )
        return glossary

    @property
    def numbers(self) -> dict[str, str]:
        """Number → slug of the chapters; ``[[chapter:01]]`` and terms use the numbers."""
        return {slug.partition("-")[0]: slug for slug in self.contents}

    @cached_property
    def messages(self) -> dict[str, dict[str, str]]:
        """Language → key → message of ``d2lps/messages``; empty if the book has none."""
        paths = {language: self.root / "d2lps" / "messages" / f"{language}.toml" for language in LANGUAGES}
        return {language: flat(toml(path)) if path.is_file() else {} for language, path in paths.items()}

    def figure(self, name: str) -> Path:
        return self.root / "img" / f"{name}.svg"

    def folder(self, slug: str) -> Path:
        return self.chapters / slug

    def slugs(self, names: Iterable[str] = ()) -> list[str]:
        """Return the slugs of the named chapters, or of all; ``"01"`` and ``"data-parallelism"`` are names too."""
        return [self.slug(name) for name in names] or list(self.contents)

    def slug(self, name: str) -> str:
        """Return the slug of the chapter of that name or number; raise BookError if there is none."""
        name = Path(name).name
        slugs = [slug for slug in self.contents if name in (slug, *slug.split("-", 1))]
        if len(slugs) != 1:
            raise BookError(f"there is no chapter {name!r}; chapters/toc.toml has {', '.join(self.contents)}")
        return slugs[0]

    def load(self, slug: str) -> Chapter:
        """Read a chapter, which may still have :func:`faults`."""
        folder = self.folder(slug)
        sources = {}
        for name in ("lesson.py", *(f"{language}.md" for language in LANGUAGES)):
            if not (folder / name).is_file():
                raise BookError(f"{slug}/{name} is missing; write it or take {slug} out of chapters/toc.toml")
            sources[name] = (folder / name).read_text("utf-8")
        tables = [folder / f"{name}.toml" for name in ("exercises", "predictions")]
        exercises, predictions = (toml(file) if file.is_file() else {} for file in tables)
        if (ids := self.chosen_exercises) is not None:
            sources = {name: without_exercises(source, ids) for name, source in sources.items()}
            exercises = {id: table for id, table in exercises.items() if id in ids}
        if not self.solutions:
            exercises = {id: table | {"hints": table["hints"][:-1]} for id, table in exercises.items()}
            sources = {name: OFFERED.sub(r"\1", source) for name, source in sources.items()}
        lesson = sources.pop("lesson.py")
        texts = {name.removesuffix(".md"): read_text(source, name) for name, source in sources.items()}
        return Chapter(slug, lesson, read_cells(lesson), texts, exercises, predictions)

    @cached_property
    def chosen_exercises(self) -> list[str] | None:
        """The ids of the exercises that are chosen; None if all are."""
        return choice()[1]

    @cached_property
    def is_chosen(self) -> bool:
        """Whether this is a choice of chapters or exercises."""
        return choice() != (None, None)

    def chapter(self, slug: str) -> Chapter:
        """Return a chapter that can be built; raise BookError with its first fault."""
        return self.ensure_sound(self.load(slug))

    def ensure_sound(self, chapter: Chapter) -> Chapter:
        """Return the chapter; raise BookError with its first fault."""
        for fault in faults(self, chapter):
            raise BookError(fault.message)
        return chapter


def without_exercises(source: str, ids: Iterable[str]) -> str:
    """Return a lesson, or a text, that has of its exercises only those with these ids.

    >>> text = "A.\\n\\n1. **One** (5).\\n\\n[[exercise-one]]\\n\\n2. **Two** (5).\\n\\n[[exercise-two]]"
    >>> print(without_exercises(text, ["two"]))
    A.
    <BLANKLINE>
    2. **Two** (5).
    <BLANKLINE>
    [[exercise-two]]
    """

    def kept(match: re.Match) -> str:
        return match[0] if match[1] in ids else ""

    source = re.sub(r"(?ms)^# %% exercise-(\S+)\n.*?(?=^# %% |\Z)", kept, source)
    return re.sub(r"(?ms)^\d+\. \*\*(?:(?!^\d+\. |^\[\[exercise-).)*^\[\[exercise-([\w-]+)\]\][ \t]*\n+", kept, source)


def notebook_of(slug: str, language: str, workspace: bool = False) -> str:
    """Return the address of a chapter's notebook, from the notebook of another chapter."""
    return f"{slug}.ipynb" if workspace else f"../{slug}/{language}.ipynb"


def _titles(folder: Path) -> dict[str, str]:
    """Return language → title of a chapter, from its texts."""
    files = [(language, folder / f"{language}.md") for language in LANGUAGES]
    return {language: read_text(file.read_text("utf-8"), file.name).title for language, file in files if file.is_file()}


def toml(path: Path) -> dict:
    """Read a TOML file; raise BookError if it is missing or is not TOML."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BookError(f"{path} is missing; write it") from None
    except tomllib.TOMLDecodeError as error:
        raise BookError(f"{path} is not TOML: {error}; mend it") from None


def write(texts: dict[Path, str | bytes]) -> list[Path]:
    """Write the files whose text differs and return their paths.

    All temporary files are written before the first one is put in place, so that a reader, or a failure, finds an old
    file or a new one, never a part.
    """
    ready: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            content = text if isinstance(text, bytes) else text.encode("utf-8")
            if path.is_file() and path.read_bytes() == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            ready.append((temporary, path))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.umask(mask := os.umask(0))
            os.chmod(temporary, path.stat().st_mode if path.exists() else 0o666 & ~mask)
        for temporary, path in ready:
            os.replace(temporary, path)
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)
    return [path for _, path in ready]


def zipped(files: Iterable[tuple[str, str | bytes]], level: int = 6) -> bytes:
    """Return a zip of files, given by name and content; equal contents are equal zips."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, WHEN), content, zipfile.ZIP_DEFLATED, level)
    return whole.getvalue()


def source_files(folder: Path) -> list[Path]:
    """Return the files in a folder and below it, in order, without those that running the course leaves there."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    return [path for path in files if not GENERATED & {*path.relative_to(folder).parts}]


def digest(content: str | bytes) -> str:
    """Return 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def _require(table: dict, keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if not isinstance(table, dict) or not table.get(key):
            raise BookError(f"{where} has no {key!r}; write it")


def faults(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """Find the faults that keep the chapter from being built."""

    def fault(section: str, languages: tuple[str, ...], sentence: str, remedy: str = "") -> Finding:
        files = [f"{language}.md" for language in languages] or ["lesson.py"]
        remedy = remedy or edit(f"chapters/{chapter.slug}/{file}" for file in files)
        return Finding("fail", "structure", section, languages, sentence, remedy)

    cells = chapter.cells
    if not cells or cells[0].id != "language" or 'd2lps.speak("en")' not in cells[0].source:
        yield fault("top", (), 'lesson.py: the first cell must be called `language` and hold d2lps.speak("en")')
    yield from _sections(chapter, fault)
    for language, text in chapter.texts.items():
        fault_here = partial(fault, languages=(language,))
        yield from _placements(chapter, language, text, fault_here)
        for section in text.sections:
            yield from _names(book, chapter, section, f"{language}.md, section {section.id!r}", fault_here)


def _sections(chapter: Chapter, fault) -> Iterator[Finding]:
    """Check that all languages have the same sections in one order, and that no id is that of a later part."""
    ids = chapter.sections
    for language in LANGUAGES[1:]:
        theirs = [section.id for section in chapter.texts[language].sections]
        for lacking, having, missing in (
            (language, FIRST, [id for id in ids if id not in theirs]),
            (FIRST, language, [id for id in theirs if id not in ids]),
        ):
            for id in missing:
                sentence = f"{lacking}.md: the section {id!r} of {having}.md is missing"
                yield fault(id, (language,), f"{sentence}; write `## … {{#{id}}}` or take it out of the others")
        if pair := _out_of_order(theirs, ids):
            sentence = f"{language}.md: the section {pair[0]!r} stands where {FIRST}.md has {pair[1]!r}"
            yield fault(pair[0], (language,), f"{sentence}; put the sections in one order")
    for id in [*ids, *(cell.id for cell in chapter.cells)]:
        owner = re.sub(r"-\d+$", "", id)
        if owner != id and owner in ids:
            sentence = f"the id {id!r} is kept for the parts of the section {owner!r}; choose another"
            yield fault(id if id in ids else owner, (), sentence)
        if id in RESERVED:
            sentence = f"the id {id!r} is kept for a cell that every notebook has; choose another"
            yield fault(id if id in ids else "top", (), sentence)


def _placements(chapter: Chapter, language: str, text: Text, fault) -> Iterator[Finding]:
    """Check that each cell is placed once, in the order of the lesson, in the same section of all languages."""
    placed = [(name, section.id) for section in text.sections for name in section.names("cell")]
    names = [cell.id for cell in chapter.cells]
    for id in names:
        sections = [section for name, section in placed if name == id]
        if not sections:
            sentence = f"{language}.md: the cell {id!r} is not placed"
            yield fault(chapter.home(id), sentence=f"{sentence}; put [[{id}]] alone on a line where it belongs")
        if len(sections) > 1:
            where = " and ".join(dict.fromkeys(sections))
            sentence = f"{language}.md: the cell {id!r} is placed {len(sections)} times, in {where}; keep one of them"
            yield fault(sections[1], sentence=sentence)
    if pair := _out_of_order([name for name, _ in placed if name in names], names):
        sentence = f"{language}.md: the cell {pair[0]!r} stands where lesson.py has {pair[1]!r}"
        yield fault(dict(placed)[pair[0]], sentence=f"{sentence}; put the cells in the order of lesson.py")
    first = chapter.texts[FIRST]
    for name, section in placed:
        home = first.home(name) or section
        if home != section and first.section(section):
            sentence = f"{language}.md: the cell {name!r} stands in the section {section!r}, in {FIRST}.md"
            sentence += f" it stands in {home!r}; put it into one section"
            yield fault(section, languages=(FIRST, language), sentence=sentence)


def _out_of_order(ids: list[str], order: list[str]) -> tuple[str, str] | None:
    """Return the first of ``ids`` that differs from ``order``, and the one that should be there."""
    if sorted(ids) != sorted(order):
        return None
    return next(((id, expected) for id, expected in zip(ids, order, strict=True) if id != expected), None)


def _names(book: Book, chapter: Chapter, section: Section, where: str, fault) -> Iterator[Finding]:
    """Check that the cells, figures, sources and chapters that a section names exist."""
    cells = {cell.id for cell in chapter.cells}
    for name in section.names("cell"):
        if name not in cells:
            sentence = f"{where}: lesson.py has no cell {name!r}; write it there or mend the placeholder"
            yield fault(section.id, sentence=sentence)
    for name in section.names("figure"):
        if not book.figure(name).is_file():
            remedy = f"{COMMAND} figures"
            sentence = f"{where}: there is no figure img/{name}.svg; draw it with `{remedy}` or mend the placeholder"
            yield fault(section.id, sentence=sentence, remedy=remedy)
    chapters = [key for key in book.links(LANGUAGES[0]) if key.startswith("chapter:")]
    for key in section.cited():
        if key.startswith("chapter:") and key not in chapters:
            sentence = f"{where}: there is no [[{key}]]; chapters/toc.toml has {', '.join(chapters)}"
            yield fault(section.id, sentence=sentence)
        elif not key.startswith("chapter:") and key not in book.references:
            sentence = f"{where}: references.toml has no source {key!r}; add it there or mend [[cite:…]]"
            yield fault(section.id, sentence=sentence, remedy="edit chapters/references.toml")


def _root() -> Path:
    """Return the current folder if it has chapters, else the folder that contains this package."""
    folder = Path.cwd()
    return folder if (folder / "chapters").is_dir() else Path(__file__).resolve().parents[2]

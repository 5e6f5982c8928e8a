"""The book on disk: chapters, figures, references, glossary, and what holds a chapter together."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import d2lps
from d2lps.course.book.lesson import CITE, BookError, Cell, Section, Text, outside, read_cells, read_text
from d2lps.messages import LANGUAGES


@dataclass(frozen=True)
class Chapter:
    """The cells of a chapter and its three texts."""

    slug: str
    lesson: str
    cells: tuple[Cell, ...]
    texts: dict[str, Text]
    exercises: dict[str, dict] = field(default_factory=dict)

    @property
    def sections(self) -> list[str]:
        """The ids of the sections, in the order of the first language."""
        return [section.id for section in self.texts[LANGUAGES[0]].sections]

    def section(self, id: str) -> dict[str, Section]:
        """One section by language, for the languages that have it."""
        found = {language: text.section(id) for language, text in self.texts.items()}
        return {language: section for language, section in found.items() if section}

    def cell(self, id: str) -> Cell:
        return next(cell for cell in self.cells if cell.id == id)


@dataclass(frozen=True)
class Fault:
    """What keeps a chapter from being built: where, in which languages, and what to do about it."""

    section: str
    languages: tuple[str, ...]
    sentence: str
    remedy: str = ""


class Book:
    """All that lies under one root: ``chapters/``, ``img/``, ``d2lps/messages/``, ``workspace/``."""

    def __init__(self, root: Path | str | None = None):
        self.root = Path(root) if root else _root()
        self.chapters = self.root / "chapters"
        if not self.chapters.is_dir():
            raise BookError(f"{self.root} holds no chapters/; run this in the course's folder or name it with --root")

    @cached_property
    def contents(self) -> dict[str, dict[str, str]]:
        """Slug → title by language, in the order of the book."""
        entries = toml(self.chapters / "toc.toml").get("chapter", [])
        for number, entry in enumerate(entries, 1):
            _with(
                _with(entry, ("slug", "title"), f"toc.toml: chapter {number}")["title"],
                LANGUAGES,
                f"toc.toml: the title of chapter {number}",
            )
        return {entry["slug"]: entry["title"] for entry in entries}

    @cached_property
    def references(self) -> dict[str, dict]:
        """Key → authors, year, title, venue, url."""
        return toml(self.chapters / "references.toml")

    @cached_property
    def cites(self) -> dict[str, str]:
        """Key → the link that a reader sees."""
        rendered: dict[str, str] = {}
        for key, entry in self.references.items():
            _with(entry, ("authors", "year", "title", "url"), f"references.toml: {key!r}")
            link = f"[{entry['authors']}, {entry['year']}]({entry['url']})"
            if link in rendered.values():
                raise BookError(
                    f"references.toml: {key!r} looks the same as another source; tell them apart in `year`, as in 2014a"
                )
            rendered[key] = link
        return rendered

    @cached_property
    def terms(self) -> dict:
        """The glossary as it is written: ``names`` and one table ``term`` per concept."""
        written = toml(self.chapters / "terms.toml")
        for number, term in enumerate(written.get("term", []), 1):
            _with(term, LANGUAGES, f"terms.toml: term {number}")
        return written

    def figure(self, name: str) -> Path:
        return self.root / "img" / f"{name}.svg"

    def folder(self, slug: str) -> Path:
        return self.chapters / slug

    def slugs(self, wanted: list[str] | tuple[str, ...] = ()) -> list[str]:
        """The chapters wanted (all if none is named); ``"01"`` and ``"data-parallelism"`` are names enough."""
        if not wanted:
            return list(self.contents)
        return [self.slug(name) for name in wanted]

    def slug(self, name: str) -> str:
        """The one chapter of that name or number; raises BookError where there is none."""
        name = Path(name).name
        found = [slug for slug in self.contents if name in (slug, *slug.split("-", 1))]
        if len(found) != 1:
            raise BookError(f"there is no chapter {name!r}; chapters/toc.toml has {', '.join(self.contents)}")
        return found[0]

    def load(self, slug: str) -> Chapter:
        """Read a chapter whose parts may still not fit together; see :func:`faults`."""
        folder = self.folder(slug)
        sources = {}
        for name in ("lesson.py", *(f"{language}.md" for language in LANGUAGES)):
            if not (folder / name).is_file():
                raise BookError(f"{slug}/{name} is missing; write it or take {slug} out of chapters/toc.toml")
            sources[name] = (folder / name).read_text("utf-8")
        exercises = toml(folder / "exercises.toml") if (folder / "exercises.toml").is_file() else {}
        return chapter_of(slug, sources, exercises)

    def chapter(self, slug: str) -> Chapter:
        """A chapter that can be built; raises BookError with its first fault."""
        return self.sound(self.load(slug))

    def sound(self, chapter: Chapter) -> Chapter:
        """The chapter, if it has no faults; raises BookError with its first one."""
        for fault in faults(self, chapter):
            raise BookError(fault.sentence)
        return chapter


def toml(path: Path) -> dict:
    """A TOML file; raises BookError where it is missing or cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BookError(f"{path} is missing; write it") from None
    except tomllib.TOMLDecodeError as error:
        raise BookError(f"{path} is not TOML: {error}; mend it") from None


def _with(table: dict, keys: tuple[str, ...], where: str) -> dict:
    """The table, if it has all the keys."""
    for key in keys:
        if not isinstance(table, dict) or not table.get(key):
            raise BookError(f"{where} has no {key!r}; write it")
    return table


def chapter_of(slug: str, sources: dict[str, str], exercises: dict | None = None) -> Chapter:
    """A chapter from the text of its files, by file name."""
    texts = {language: read_text(sources[f"{language}.md"], f"{language}.md") for language in LANGUAGES}
    return Chapter(slug, sources["lesson.py"], read_cells(sources["lesson.py"]), texts, exercises or {})


def faults(book: Book, chapter: Chapter) -> Iterator[Fault]:
    """Everything that keeps the chapter from being built, a sentence each."""
    cells = chapter.cells
    if not cells or cells[0].id != "language" or 'd2lps.speak("en")' not in cells[0].source:
        yield Fault("top", (), 'lesson.py: the first cell must be called `language` and hold d2lps.speak("en")')
    yield from _sections(chapter)
    for language, text in chapter.texts.items():
        yield from _placements(chapter, language, text)
        for section in text.sections:
            yield from _known(book, chapter, language, section)


def _sections(chapter: Chapter) -> Iterator[Fault]:
    first, *others = LANGUAGES
    ids = chapter.sections
    for language in others:
        theirs = [section.id for section in chapter.texts[language].sections]
        for id in ids:
            if id not in theirs:
                yield Fault(
                    id,
                    (language,),
                    f"{language}.md: the section {id!r} of {first}.md is missing; "
                    f"write `## … {{#{id}}}` or take it out of the others",
                )
        for id in theirs:
            if id not in ids:
                yield Fault(
                    id,
                    (language,),
                    f"{first}.md: the section {id!r} of {language}.md is missing; "
                    f"write `## … {{#{id}}}` or take it out of the others",
                )
        if sorted(theirs) == sorted(ids) and theirs != ids:
            at = next(index for index, id in enumerate(ids) if theirs[index] != id)
            yield Fault(
                theirs[at],
                (language,),
                f"{language}.md: the section {theirs[at]!r} stands where {first}.md "
                f"has {ids[at]!r}; put the sections in one order",
            )
    for id in [*ids, *(cell.id for cell in chapter.cells)]:
        owner = re.sub(r"-\d+$", "", id)
        if owner != id and owner in ids:
            yield Fault(
                id if id in ids else owner,
                (),
                f"the id {id!r} is kept for the parts of the section {owner!r}; choose another",
            )


def _placements(chapter: Chapter, language: str, text: Text) -> Iterator[Fault]:
    placed = [(name, section.id) for section in text.sections for name in section.names("cell")]
    names = [cell.id for cell in chapter.cells]
    for id in names:
        where = [section for name, section in placed if name == id]
        if not where:
            home = next(
                (
                    section.id
                    for other in chapter.texts.values()
                    for section in other.sections
                    if id in section.names("cell")
                ),
                "top",
            )
            yield Fault(
                home,
                (language,),
                f"{language}.md: the cell {id!r} is not placed; put [[{id}]] alone on a line where it belongs",
            )
        if len(where) > 1:
            yield Fault(
                where[1],
                (language,),
                f"{language}.md: the cell {id!r} is placed {len(where)} times, in "
                f"{' and '.join(dict.fromkeys(where))}; keep one of them",
            )
    order = [name for name, _ in placed if name in names]
    if sorted(order) == sorted(names) and order != names:
        at = next(index for index, id in enumerate(names) if order[index] != id)
        section = dict(placed)[order[at]]
        yield Fault(
            section,
            (language,),
            f"{language}.md: the cell {order[at]!r} stands where lesson.py has "
            f"{names[at]!r}; put the cells in the order of lesson.py",
        )
    first = chapter.texts[LANGUAGES[0]]
    for name, section in placed:
        home = next((other.id for other in first.sections if name in other.names("cell")), section)
        if home != section and first.section(section):
            yield Fault(
                section,
                (LANGUAGES[0], language),
                f"{language}.md: the cell {name!r} stands in the section "
                f"{section!r}, in {LANGUAGES[0]}.md it stands in {home!r}; put it into one section",
            )


def _known(book: Book, chapter: Chapter, language: str, section: Section) -> Iterator[Fault]:
    where = f"{language}.md, section {section.id!r}"
    names = {cell.id for cell in chapter.cells}
    for name in section.names("cell"):
        if name not in names:
            yield Fault(
                section.id,
                (language,),
                f"{where}: lesson.py has no cell {name!r}; write it there or mend the placeholder",
            )
    for name in section.names("figure"):
        if not book.figure(name).is_file():
            yield Fault(
                section.id,
                (language,),
                f"{where}: there is no figure img/{name}.svg; "
                "draw it with `python -m d2lps.course.book figures` or mend the placeholder",
                "python -m d2lps.course.book figures",
            )
    for key in cited(section):
        if key not in book.references:
            yield Fault(
                section.id,
                (language,),
                f"{where}: references.toml has no source {key!r}; add it there or mend [[cite:…]]",
                "edit chapters/references.toml",
            )


def cited(section: Section) -> list[str]:
    """The sources cited in a section, in order."""
    keys: list[str] = []
    for block in section.blocks:
        if block.kind == "prose":
            outside(block.text, lambda part: keys.extend(CITE.findall(part)) or part)
    return keys


def _root() -> Path:
    """The current folder if it holds chapters, else the folder that holds the package."""
    here = Path.cwd()
    return here if (here / "chapters").is_dir() else Path(d2lps.__file__).resolve().parents[1]

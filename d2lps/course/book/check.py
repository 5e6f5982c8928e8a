"""All that a program can say about a chapter before somebody reads it."""

from collections import Counter
from collections.abc import Iterator

from d2lps.course.book import agree, chinese, glossary, language, numbers, structure
from d2lps.course.book.figures import figures
from d2lps.course.book.findings import COMMAND, Finding, Passage, message_passages, messages, passages
from d2lps.course.book.lesson import BookError
from d2lps.course.book.library import Book, Chapter, faults
from d2lps.course.book.notebook import dumps, notebook
from d2lps.messages import LANGUAGES

# The checks of one passage, in the order in which they are read.
OF_TEXT = (
    structure.same_shape,
    structure.same_pieces,
    structure.math_letters,
    numbers.same_numbers,
    numbers.one_notation,
    chinese.chinese,
    language.vietnamese,
    language.markup,
    language.length,
    language.fingerprints,
)


def check_chapter(book: Book, slug: str) -> list[Finding]:
    """Everything found in one chapter; of a chapter that cannot be built, what keeps it from being built."""
    try:
        chapter = book.load(slug)
        broken = [
            Finding(
                "fail",
                "structure",
                fault.section,
                fault.languages,
                fault.sentence,
                fault.remedy or _files(slug, fault.languages),
            )
            for fault in faults(book, chapter)
        ]
        if broken:
            return broken
        every = list(passages(chapter))
    except BookError as error:
        return [Finding("fail", "structure", "(chapter)", (), str(error), f"edit chapters/{slug}")]
    found = [*title(book, chapter), *structure.lesson(chapter), *structure.exercises(chapter), *_texts(book, every)]
    for passage in every:
        if passage.kind == "section":
            found += [*structure.links(book, chapter, passage), *structure.captions(chapter, passage)]
    words = glossary.terms(book.terms.get("term", []))
    found += [
        *glossary.coverage(every, words, slug),
        *glossary.first_use(every, words),
        *glossary.one_word(every, words, slug),
    ]
    return [*found, *agree.stale(book, chapter), *notebooks(book, chapter)]


def check_messages(book: Book) -> list[Finding]:
    """What d2lps says at run time: the same keys and placeholders in every language, and the same care."""
    said = messages(book)
    found = []
    for key in dict.fromkeys(key for sentences in said.values() for key in sentences):
        lacking = tuple(each for each in LANGUAGES if key not in said[each])
        files = ", ".join(f"d2lps/messages/{each}.toml" for each in lacking)
        if lacking:
            found.append(Finding("fail", "messages", key, lacking, "the key is missing", f"edit {files}"))
    return found + _texts(book, list(message_passages(book)))


def _texts(book: Book, every: list[Passage]) -> list[Finding]:
    words = glossary.terms(book.terms.get("term", []))
    kept = glossary.names(book.terms.get("names", []), words)
    found = []
    for passage in every:
        for check in OF_TEXT:
            found += check(passage)
        found += [*language.own_language(passage, kept), *glossary.wrong_words(passage, words)]
    return found


def title(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """A chapter bears the titles that the table of contents gives it."""
    for each, name in book.contents.get(chapter.slug, {}).items():
        if each in chapter.texts and chapter.texts[each].title != name:
            yield Finding(
                "fail",
                "title",
                "top",
                (each,),
                f"{chapter.texts[each].title!r} is {name!r} in toc.toml",
                f"edit chapters/{chapter.slug}/{each}.md or chapters/toc.toml",
            )


def notebooks(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """The notebooks are what the sources give."""
    for each in LANGUAGES:
        path = book.folder(chapter.slug) / f"{each}.ipynb"
        if not path.is_file() or path.read_text("utf-8") != dumps(notebook(chapter, each, book.cites)):
            yield Finding(
                "fail",
                "notebooks",
                "(chapter)",
                (each,),
                f"{each}.ipynb is not what the sources give",
                f"{COMMAND} build {chapter.slug}",
            )


def check_figures(book: Book) -> Iterator[Finding]:
    """The figures of the book are what d2lps draws."""
    for name, picture in drawn(book).items():
        path = book.figure(name)
        if path.is_file() and path.read_text("utf-8") != picture:
            yield Finding(
                "fail", "figures", f"img/{name}.svg", (), "the figure is not what d2lps draws", f"{COMMAND} figures"
            )


def drawn(book: Book) -> dict[str, str]:
    """Name → SVG of every figure that the chapters draw, as it stands in ``img/``."""
    folders = (book.folder(slug) for slug in book.contents)
    return {name: draw() + "\n" for folder in folders for name, draw in figures(folder).items()}


def _files(slug: str, languages: tuple[str, ...]) -> str:
    return "edit " + (", ".join(f"chapters/{slug}/{each}.md" for each in languages) or f"chapters/{slug}/lesson.py")


def report(findings: list[Finding]) -> str:
    """All findings for a reader: failures first, then warnings, then how many of each."""
    count = Counter(finding.level for finding in findings)
    ordered = [finding for level in ("fail", "warn") for finding in findings if finding.level == level]
    summary = f"{count['fail']} to mend, {count['warn']} to look at"
    return "\n".join([*map(str, dict.fromkeys(ordered)), summary])

"""All checks of a chapter that a program can do."""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from course.book import agree, glossary, language
from course.book.figures import figures
from course.book.findings import COMMAND, BookError, Finding
from course.book.lesson import Cell
from course.book.library import Book, Chapter, faults
from course.book.reading import Passage, meaning_passages, message_passages, passages
from course.book.stills import texts
from d2lps.messages import LANGUAGES

FOREIGN = language.regex("(?i)[{han}{vietnamese}]")
# The parts of a text that must be equal in all languages → the name of the check.
PIECES = {
    "math": "formulas",
    "code": "code",
    "fences": "code",
    "cites": "sources",
    "links": "links",
    "holes": "placeholders",
}


LONGEST_LINE = 90  # characters of code, which fit into a notebook and a page


def check_chapter(book: Book, slug: str) -> list[Finding]:
    """Return the findings for one chapter; for a chapter that cannot be built, only the faults that prevent it."""
    try:
        chapter = book.load(slug)
        if broken := list(faults(book, chapter)):
            return broken
        chapter_passages = list(passages(chapter))
    except BookError as error:
        return [Finding("fail", "structure", "(chapter)", (), str(error), f"edit chapters/{slug}")]
    words = glossary.Glossary(book.terms)
    findings = [*title(book, chapter), *lesson(chapter), *exercises(chapter), *_texts(chapter_passages, words)]
    for passage in chapter_passages:
        if passage.kind == "section":
            findings += [*links(book, slug, passage), *captions(chapter, passage)]
    findings += [*glossary.of_chapter(chapter_passages, words, slug), *glossary.symbols(chapter_passages, words, slug)]
    return [*findings, *agree.stale(book, chapter), *notebooks(book, chapter)]


def check_messages(book: Book) -> list[Finding]:
    """Check the messages of d2lps: every language has every key, and they pass the checks of prose."""
    messages = book.messages
    findings = []
    for key in dict.fromkeys(key for sentences in messages.values() for key in sentences):
        if lacking := tuple(language_name for language_name in LANGUAGES if key not in messages[language_name]):
            files = ", ".join(f"d2lps/messages/{language_name}.toml" for language_name in lacking)
            findings.append(Finding("fail", "messages", key, lacking, "the key is missing", f"edit {files}"))
    return findings + _texts(list(message_passages(book)), glossary.Glossary(book.terms))


def check_meanings(book: Book) -> list[Finding]:
    """Check the meanings in the glossary: each is one sentence and passes the checks of prose."""
    meanings = list(meaning_passages(book))
    findings = _texts(meanings, glossary.Glossary(book.terms))
    return findings + [finding for passage in meanings for finding in language.one_sentence(passage)]


def _texts(all_passages: list[Passage], words: glossary.Glossary) -> list[Finding]:
    """Run the checks of single passages."""
    findings = []
    for passage in all_passages:
        findings += [
            *same_pieces(passage),
            *math_letters(passage),
            *language.same_numbers(passage),
            *language.broken_rules(passage),
            *language.letters(passage),
            *language.markup(passage),
            *language.length(passage),
            *language.long_sentences(passage),
            *language.too_often(passage),
            *language.own_language(passage, words.names),
            *glossary.wrong_words(passage, words),
            *glossary.second_words(passage, words),
        ]
    return findings


def same_pieces(passage: Passage) -> Iterator[Finding]:
    """Find differences in structure, figures, formulas, code, sources, links and placeholders.

    Each language is compared with the first one.
    """
    (a, first), *others = passage.readings.items()
    for b, other in others:
        if first.headings != other.headings:
            yield passage.fail("shape", f"the heading levels are {first.headings} and {other.headings}", a, b)
        for piece in ("items", "tables", "quotes"):
            ours, theirs = getattr(first, piece), getattr(other, piece)
            if ours != theirs:
                yield passage.warn("shape", f"{piece} are {ours} and {theirs}", a, b)
        if first.images != other.images:
            figures = [", ".join(reading.images) or "none" for reading in (first, other)]
            yield passage.fail("figures", " and ".join(figures), a, b)
        for piece, name in PIECES.items():
            ours, theirs = Counter(getattr(first, piece)), Counter(getattr(other, piece))
            if ours != theirs:
                message = f"only {a}: {_list(ours - theirs)}; only {b}: {_list(theirs - ours)}"
                yield passage.fail(name, message, a, b)


def _list(counter: Counter) -> str:
    return ", ".join(item.strip() for item in counter.elements()) or "none"


def math_letters(passage: Passage) -> Iterator[Finding]:
    """Find Chinese and Vietnamese letters inside formulas."""
    for name, reading in passage.readings.items():
        for formula in filter(FOREIGN.search, reading.math):
            message = f"{formula} holds letters that TeX fonts lack; explain it in the prose"
            yield passage.fail("formulas", message, name)


def links(book: Book, slug: str, passage: Passage) -> Iterator[Finding]:
    """Find relative links that lead nowhere from the chapter's folder or from a reader's copy."""
    sources = {entry.get("url") for entry in book.references.values()}
    for name, reading in passage.readings.items():
        for link in reading.links:
            if link in sources:
                yield passage.fail("links", f"{link} is in references.toml; write [[cite:…]]", name)
            if re.match(r"[a-z][a-z0-9+.-]*:|#", link):
                continue
            path = link.split("#")[0]
            if not (book.folder(slug) / path).exists():
                yield passage.fail("links", f"{link} leads nowhere", name)
            elif not path.startswith("../../"):
                yield passage.warn("links", f"{link} is lost in a reader's copy; begin it with ../../", name)


def captions(chapter: Chapter, passage: Passage) -> Iterator[Finding]:
    """Find figures without a caption."""
    for name, section in chapter.section(passage.name).items():
        for block in section.blocks:
            if block.kind == "figure" and not block.caption:
                placed = f"[[figure:{block.name}"
                message = f"{placed}]] has no caption; write {placed}|what it shows]]"
                yield passage.fail("figures", message, name)


def title(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """Find titles that differ from the table of contents."""
    for name_of_language, name in book.contents.get(chapter.slug, {}).items():
        if name_of_language in chapter.texts and chapter.texts[name_of_language].title != name:
            message = f"{chapter.texts[name_of_language].title!r} is {name!r} in toc.toml"
            remedy = f"edit chapters/{chapter.slug}/{name_of_language}.md or chapters/toc.toml"
            yield Finding("fail", "title", "top", (name_of_language,), message, remedy)


def lesson(chapter: Chapter) -> Iterator[Finding]:
    """Find comments but an exercise's ``# TODO``, sentences, long lines, and magics below a cell's first line."""
    remedy = f"edit chapters/{chapter.slug}/lesson.py"
    for cell in chapter.cells:
        for message in _impurities(cell):
            yield Finding("fail", "lesson", chapter.home(cell.id), (), f"the cell {cell.id!r} {message}", remedy)


def _impurities(cell: Cell) -> Iterator[str]:
    for line in cell.source.split("\n"):
        if len(line) > LONGEST_LINE:
            start = line.strip()[:30]
            yield f"has a line of {len(line)} characters, {start!r}…; break it, {LONGEST_LINE} fit beside a menu"
    for magic in re.findall(r"(?<=\n)%%\w+", cell.source):
        yield f"holds {magic}, which is for a cell's first line; put `# %% cell-id` above it"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(cell.source).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    if cell.exercise is not None:
        if comments.count("# TODO") != 1:
            yield "is an exercise and needs one `# TODO`"
        comments = [comment for comment in comments if comment != "# TODO"]
    for comment in comments:
        yield f"holds the comment {comment!r}; say it in the prose"
    for token in tokens:
        if token.type == tokenize.STRING or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            if token.string.startswith('"""#!'):  # a shell script
                continue
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", "", token.string))
            if len(words) >= 3 and " " in token.string.strip() or FOREIGN.search(token.string):
                yield f"says {token.string}; move the sentence to d2lps/messages"


def exercises(chapter: Chapter) -> Iterator[Finding]:
    """Find exercises without texts or without a cell."""

    def finding(section: str, message: str) -> Finding:
        return Finding("fail", "exercises", section, (), message, f"edit chapters/{chapter.slug}/exercises.toml")

    cells = {cell.exercise: cell for cell in chapter.cells if cell.exercise is not None}
    for id, cell in cells.items():
        texts = chapter.exercises.get(id)
        if not isinstance(texts, dict):
            yield finding(chapter.home(cell.id), f"the exercise {id!r} has no texts")
    for id in chapter.exercises:
        if id not in cells:
            yield finding("(chapter)", f"no cell of lesson.py asks the exercise {id!r}")


def notebooks(book: Book, chapter: Chapter) -> Iterator[Finding]:
    """Find notebooks that differ from a new build, and those with an old still."""
    for path, expected in texts(book, chapter).items():
        if not path.is_file() or path.read_text("utf-8") != expected:
            name = path.stem
            message, remedy = f"{name}.ipynb is not what the sources give", f"{COMMAND} build {chapter.slug}"
            yield Finding("fail", "notebooks", "(chapter)", (name,), message, remedy)


def check_figures(book: Book) -> Iterator[Finding]:
    """Find figures in ``img/`` that differ from a new drawing."""
    for name, picture in drawn(book).items():
        path = book.figure(name)
        if path.is_file() and path.read_text("utf-8") != picture:
            yield Finding(
                "fail", "figures", f"img/{name}.svg", (), "the figure is not what d2lps draws", f"{COMMAND} figures"
            )


def drawn(book: Book) -> dict[str, str]:
    """Draw the figures of all chapters: name → SVG."""
    folders = (book.folder(slug) for slug in book.contents)
    return {name: draw() + "\n" for folder in folders for name, draw in figures(folder).items()}

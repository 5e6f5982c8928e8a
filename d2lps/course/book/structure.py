"""Checks of form: the same pieces, formulas, figures, sources and links in the three languages."""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from d2lps.course.book.findings import Finding, Passage
from d2lps.course.book.lesson import Cell
from d2lps.course.book.library import Book, Chapter

HAN = r"\u3400-\u9fff\uf900-\ufaff"
VIETNAMESE = "àáảãạăằắẳẵặâầấẩẫậđèéẻẽẹêềếểễệìíỉĩịòóỏõọôồốổỗộơờớởỡợùúủũụưừứửữựỳýỷỹỵ"
_FOREIGN = re.compile(rf"[{HAN}{VIETNAMESE}{VIETNAMESE.upper()}]")


def same_shape(passage: Passage) -> Iterator[Finding]:
    """Heading levels are equal (fail); items, tables and quotes are as many (warn)."""
    for a, b in _pairs(passage):
        left, right = passage.readings[a], passage.readings[b]
        if left.headings != right.headings:
            yield passage.fail("shape", f"the heading levels are {left.headings} and {right.headings}", a, b)
        for what in ("items", "tables", "quotes"):
            if getattr(left, what) != getattr(right, what):
                yield passage.warn("shape", f"{what} are {getattr(left, what)} and {getattr(right, what)}", a, b)


def same_pieces(passage: Passage) -> Iterator[Finding]:
    """Figures in the same order; formulas, code spans, sources, links and placeholders the same ones."""
    for a, b in _pairs(passage):
        left, right = passage.readings[a], passage.readings[b]
        if left.images != right.images:
            yield passage.fail(
                "figures", f"{', '.join(left.images) or 'none'} and {', '.join(right.images) or 'none'}", a, b
            )
        for what, name in (
            ("math", "formulas"),
            ("code", "code"),
            ("fences", "code"),
            ("cites", "sources"),
            ("links", "links"),
            ("holes", "placeholders"),
        ):
            ours, theirs = Counter(getattr(left, what)), Counter(getattr(right, what))
            if ours != theirs:
                yield passage.fail(name, f"only {a}: {_list(ours - theirs)}; only {b}: {_list(theirs - ours)}", a, b)


def math_letters(passage: Passage) -> Iterator[Finding]:
    """No Han and no Vietnamese letters inside formulas."""
    for language, reading in passage.readings.items():
        for formula in reading.math:
            if _FOREIGN.search(formula):
                yield passage.fail(
                    "formulas", f"{formula} holds letters that TeX fonts lack; explain it in the prose", language
                )


def links(book: Book, chapter: Chapter, passage: Passage) -> Iterator[Finding]:
    """A relative link leads somewhere, from the chapter's folder and from the reader's copy alike."""
    rendered = {entry.get("url") for entry in book.references.values()}
    for language, reading in passage.readings.items():
        for link in reading.links:
            if link in rendered:
                yield passage.fail("links", f"{link} is in references.toml; write [[cite:…]]", language)
            if re.match(r"[a-z][a-z0-9+.-]*:|#", link):
                continue
            path = link.split("#")[0]
            if not (book.folder(chapter.slug) / path).exists():
                yield passage.fail("links", f"{link} leads nowhere", language)
            elif not path.startswith("../../"):
                yield passage.warn("links", f"{link} is lost in a reader's copy; begin it with ../../", language)


def captions(chapter: Chapter, passage: Passage) -> Iterator[Finding]:
    """Every figure says in words what it shows."""
    for language, section in chapter.section(passage.name).items():
        for block in section.blocks:
            if block.kind == "figure" and not block.caption:
                yield passage.fail(
                    "figures",
                    f"[[figure:{block.name}]] has no caption; write [[figure:{block.name}|what it shows]]",
                    language,
                )


def lesson(chapter: Chapter) -> Iterator[Finding]:
    """Cells hold no comments but an exercise's ``# TODO``, no sentences, and a cell magic in the first line only."""
    for cell in chapter.cells:
        for message in _impurities(cell):
            yield Finding(
                "fail",
                "lesson",
                _home(chapter, cell),
                (),
                f"the cell {cell.id!r} {message}",
                f"edit chapters/{chapter.slug}/lesson.py",
            )


def exercises(chapter: Chapter) -> Iterator[Finding]:
    """Every exercise has its texts, and its cell is the stub that they name."""
    file = f"edit chapters/{chapter.slug}/exercises.toml"
    asked = {cell.exercise: cell for cell in chapter.cells if cell.exercise is not None}
    for id, cell in asked.items():
        texts = chapter.exercises.get(id)
        if not isinstance(texts, dict):
            yield Finding("fail", "exercises", _home(chapter, cell), (), f"the exercise {id!r} has no texts", file)
        elif "stub" in texts and texts["stub"].strip("\n") != cell.source:
            yield Finding(
                "fail",
                "exercises",
                _home(chapter, cell),
                (),
                f"the cell {cell.id!r} is not the stub of exercises.toml",
                file,
            )
    for id in chapter.exercises:
        if id not in asked:
            yield Finding("fail", "exercises", "(chapter)", (), f"no cell of lesson.py asks the exercise {id!r}", file)


def _impurities(cell: Cell) -> Iterator[str]:
    for magic in re.findall(r"(?<=\n)%%\w+", cell.source):
        yield f"holds {magic}, which is for a cell's first line; put `# %% cell-id` above it"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(cell.source).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    wanted = cell.exercise is not None
    if wanted and comments.count("# TODO") != 1:
        yield "is an exercise and needs one `# TODO`"
    for comment in comments:
        if not (wanted and comment == "# TODO"):
            yield f"holds the comment {comment!r}; say it in the prose"
    for token in tokens:
        if token.type == tokenize.STRING or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", "", token.string))
            if len(words) >= 3 and " " in token.string.strip() or _FOREIGN.search(token.string):
                yield f"says {token.string}; move the sentence to d2lps/messages"


def _home(chapter: Chapter, cell: Cell) -> str:
    for text in chapter.texts.values():
        for section in text.sections:
            if cell.id in section.names("cell"):
                return section.id
    return "top"


def _pairs(passage: Passage) -> list[tuple[str, str]]:
    """The first language with each other; the other two follow from it."""
    languages = list(passage.readings)
    return [pair for pair in combinations(languages, 2) if pair[0] == languages[0]]


def _list(counter: Counter) -> str:
    return ", ".join(item.strip() for item in counter.elements()) or "none"

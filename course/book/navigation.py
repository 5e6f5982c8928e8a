"""The way through the book: what a chapter needs, and what comes after it, for its page and for its notebooks.

All of it comes from ``toc.toml``. The sentences are markdown; ``address`` turns a slug into the address of a chapter.
"""

from collections.abc import Callable, Mapping

from course.book.library import Book, notebook_of
from d2lps.messages import text_in
from d2lps.view.drawing.course_map import Stop, opened_by, stops_of, written


def stops(book: Book, language: str, addresses: Mapping[str, str] | None = None) -> list[Stop]:
    """Return the stops of the map of the book."""

    def takes(minutes: int) -> str:
        return text_in(language, "site.minutes", minutes=minutes)

    return stops_of(book.entries, addresses or {}, language, takes)


def numbered(language: str, slug: str, title: str) -> str:
    """Return the title of a chapter after its number.

    >>> numbered("en", "06b-replicas", "Replicas"), numbered("en", "00-first", "First")
    ('6b. Replicas', '0. First')
    """
    number = written(slug.partition("-")[0]).lstrip("0") or "0"
    return text_in(language, "site.chapter-title", number=number, title=title)


def before(book: Book, slug: str, language: str, address: Callable[[str], str]) -> str:
    """Return a line with the chapters that a chapter needs, and its time; empty if ``toc.toml`` has neither."""
    by_number = {stop.number: stop for stop in stops(book, language)}
    own = by_number[slug.partition("-")[0]]
    needs = [_link(by_number[number], language, address) for number in own.needs if number in by_number]
    said = [text_in(language, "book.needs", chapters=text_in(language, "list.between").join(needs))] if needs else []
    return " · ".join([*said, *filter(None, [own.takes])])


def after(book: Book, slug: str, language: str, address: Callable[[str], str]) -> str:
    """Return what comes after a chapter: the next one of the book, then the others that need it directly.

    Each has its sentence and its time.
    """
    ways = opened_by(stops(book, language), slug.partition("-")[0])
    if not ways:
        return text_in(language, "book.last")

    def told(stop: Stop) -> str:
        return f"{' · '.join(filter(None, [_link(stop, language, address), stop.takes]))}  \n{stop.about}".rstrip()

    lines = [f"**{text_in(language, 'book.next')}** {told(ways[0])}"]
    if ways[1:]:
        listed = [f"* {told(stop)}".replace("\n", "\n  ") for stop in ways[1:]]
        lines += [f"**{text_in(language, 'book.opens')}**", "\n".join(listed)]
    return "\n\n".join(lines)


def end(book: Book, slug: str, language: str, workspace: bool = False) -> str:
    """Return the markdown with which a notebook ends; it links to notebooks in the same language."""
    ways = after(book, slug, language, lambda other: notebook_of(other, language, workspace))
    return f"{ways}\n\n{text_in(language, 'book.map')}"


def _link(stop: Stop, language: str, address: Callable[[str], str]) -> str:
    return f"[{numbered(language, stop.slug, stop.title)}]({address(stop.slug)})"

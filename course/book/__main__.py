"""The commands of ``python -m course.book``: build, check, agree, lab, figures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from course.book import workspace
from course.book.agree import renew, side_by_side
from course.book.check import check_chapter, check_figures, check_meanings, check_messages, drawn
from course.book.findings import COMMAND, BookError, report
from course.book.library import Book, write
from course.book.stills import texts
from d2lps.messages import LANGUAGES, allow_any_letter
from d2lps.notebook.grading.course import ExerciseError


def build(book: Book, arguments: argparse.Namespace) -> int:
    """Write the notebooks of the chapters, one per language."""
    notebooks = {}
    if book.is_chosen:
        raise BookError("the notebooks in chapters/ are those of the whole course; leave out TOC")
    for slug in book.slugs(arguments.chapters):
        notebooks |= texts(book, book.chapter(slug), draw=True)
    return _write(book, notebooks)


def check(book: Book, arguments: argparse.Namespace) -> int:
    """Run every check and print the findings with their remedies; the exit status is 1 if one of them is a failure."""
    findings = [finding for slug in book.slugs(arguments.chapters) for finding in check_chapter(book, slug)]
    if not arguments.chapters:
        findings += [*check_messages(book), *check_meanings(book), *check_figures(book)]
    print(report(findings))
    return int(any(finding.level == "fail" for finding in findings))


def agree(book: Book, arguments: argparse.Namespace) -> int:
    """Record that the three texts of a section were read side by side and say the same."""
    slug, sections = _sections(book, arguments.names)
    chapter = book.chapter(slug)
    listed = ", ".join(chapter.sections)
    if not sections and not arguments.all:
        raise BookError(f"name the sections that were read, or --all; {slug} has {listed}")
    for id in sections:
        if id not in chapter.sections:
            raise BookError(f"{slug} has no section {id!r}; it has {listed}")
    sections = sections or chapter.sections
    findings = [finding for finding in check_chapter(book, slug) if finding.section in sections]
    findings = [finding for finding in findings if finding.level == "fail" and finding.check != "agreed"]
    for id in sections:
        print(side_by_side(chapter, id))
    if findings:
        print(report(findings), "nothing is agreed while these are open", sep="\n")
        return 1
    renew(book, chapter, sections)
    print(f"agreed: {', '.join(sections)}")
    return 0


def _sections(book: Book, names: list[str]) -> tuple[str, list[str]]:
    """Return the chapter and its sections named on the command line; a chapter that is clear may be left out."""
    try:
        return book.slug(names[0]), names[1:]
    except (BookError, IndexError):
        slugs = list(book.contents)
        owners = [slug for slug in slugs if names and set(names) <= set(book.load(slug).sections)]
        if len(owners) == 1 or len(slugs) == 1:
            return (owners or slugs)[0], names
        raise BookError(f"name the chapter first; chapters/toc.toml has {', '.join(slugs)}") from None


def figures(book: Book, arguments: argparse.Namespace) -> int:
    """Draw the figures of the chapters again."""
    pictures = drawn(book)
    if not pictures:
        raise BookError("no chapter has a figures.py, so there is nothing to draw; write one")
    return _write(book, {book.figure(name): picture for name, picture in pictures.items()})


def _write(book: Book, files: dict[Path, str]) -> int:
    for path in write(files):
        print(f"wrote {path.relative_to(book.root)}")
    return 0


def lab(book: Book, arguments: argparse.Namespace) -> int:
    """Copy the chapters into workspace/, without overwriting edited copies, and open JupyterLab."""
    chosen, hint = workspace.language(book, arguments.language)
    for line in [*workspace.lay_out(book), *hint]:
        print(line, flush=True)
    if not arguments.no_start:
        workspace.start(book, chosen, browser=not arguments.no_browser)
    return 0


CHAPTERS = (["chapters"], {"nargs": "*", "metavar": "chapter", "help": "as 01 or 01-data-parallelism (default: all)"})
# Each command with its arguments.
COMMANDS = {
    build: [CHAPTERS],
    check: [CHAPTERS],
    agree: [
        (["names"], {"nargs": "*", "metavar": "section", "help": "chapter and ids of its sections"}),
        (["--all"], {"action": "store_true", "help": "every section of the chapter"}),
    ],
    lab: [
        (["--language"], {"choices": LANGUAGES, "help": "the language to open, also the next time"}),
        (["--no-browser"], {"action": "store_true", "help": "print the address and open no browser"}),
        (["--no-start"], {"action": "store_true", "help": "only copy the chapters into workspace/"}),
    ],
    figures: [],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; print an error in the sources as one sentence on stderr and return exit status 1."""
    allow_any_letter()
    parser = argparse.ArgumentParser(prog=COMMAND, description="Build, check and open the course.")
    parser.add_argument("--root", help="the folder of the course (default: the current one)")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command, takes in COMMANDS.items():
        added = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        added.set_defaults(command=command)
        for names, options in takes:
            added.add_argument(*names, **options)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.command(Book(chosen.root), chosen)
    except (BookError, ExerciseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

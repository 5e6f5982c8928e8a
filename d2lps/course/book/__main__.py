"""``python -m d2lps.course.book``: build, check, agree, pull, lab, figures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from d2lps.course.book import pull as home
from d2lps.course.book import workspace
from d2lps.course.book.agree import renew, side_by_side
from d2lps.course.book.check import check_chapter, check_figures, check_messages, drawn
from d2lps.course.book.findings import BookError, report
from d2lps.course.book.library import Book, write
from d2lps.course.book.notebook import dumps, notebook
from d2lps.messages import LANGUAGES


def build(book: Book, arguments: argparse.Namespace) -> int:
    """Write the notebooks of the chapters, three each."""
    made = {}
    for slug in book.slugs(arguments.chapters):
        chapter = book.chapter(slug)
        for language in LANGUAGES:
            made[book.folder(slug) / f"{language}.ipynb"] = dumps(notebook(chapter, language, book.cites))
    for path in write(made):
        print(f"wrote {path.relative_to(book.root)}")
    return 0


def check(book: Book, arguments: argparse.Namespace) -> int:
    """Run every check and print what each finding asks for; exit 1 if something is to be mended."""
    findings = []
    for slug in book.slugs(arguments.chapters):
        findings += check_chapter(book, slug)
    if not arguments.chapters:
        findings += [*check_messages(book), *check_figures(book)]
    print(report(findings))
    return int(any(finding.level == "fail" for finding in findings))


def agree(book: Book, arguments: argparse.Namespace) -> int:
    """Record that the three texts of sections were read side by side and say the same."""
    slug, wanted = _sections(book, arguments.names)
    chapter = book.chapter(slug)
    if not wanted and not arguments.all:
        raise BookError(f"name the sections that were read, or --all; {slug} has {', '.join(chapter.sections)}")
    for id in wanted:
        if id not in chapter.sections:
            raise BookError(f"{slug} has no section {id!r}; it has {', '.join(chapter.sections)}")
    wanted = wanted or chapter.sections
    open_ones = [
        finding
        for finding in check_chapter(book, slug)
        if finding.level == "fail" and finding.section in wanted and finding.check != "agreed"
    ]
    for id in wanted:
        print(side_by_side(chapter, id))
    if open_ones:
        print(report(open_ones))
        print("nothing is agreed while these are open")
        return 1
    renew(book, chapter, wanted)
    print(f"agreed: {', '.join(wanted)}")
    return 0


def figures(book: Book, arguments: argparse.Namespace) -> int:
    """Draw the figures of the course again."""
    pictures = drawn()
    if not pictures:
        raise BookError("there is nothing to draw: d2lps.view.drawing has no figures(); write it")
    for path in write({book.figure(name): picture for name, picture in pictures.items()}):
        print(f"wrote {path.relative_to(book.root)}")
    return 0


def pull(book: Book, arguments: argparse.Namespace) -> int:
    """Bring edits made in a workspace notebook home: prose, code only with --code, never exercises or outputs."""
    for line in home.advice(book, home.pull(book, Path(arguments.notebook), arguments.code)):
        print(line)
    return 0


def lab(book: Book, arguments: argparse.Namespace) -> int:
    """Put the chapters into workspace/, never over anybody's work, and open JupyterLab."""
    chosen, said = workspace.language(book, arguments.language)
    for line in [*workspace.lay_out(book), *said]:
        print(line, flush=True)
    if not arguments.no_start:
        workspace.start(book, chosen, browser=not arguments.no_browser)
    return 0


def _sections(book: Book, names: list[str]) -> tuple[str, list[str]]:
    """The chapter and the sections that ``agree`` is to renew; the chapter may be left out if there is one."""
    try:
        return book.slug(names[0]), names[1:]
    except (BookError, IndexError):
        slugs = list(book.contents)
        owners = [slug for slug in slugs if names and set(names) <= set(book.load(slug).sections)]
        if len(owners) == 1 or len(slugs) == 1:
            return (owners or slugs)[0], names
        raise BookError(f"name the chapter first; chapters/toc.toml has {', '.join(slugs)}") from None


def parser() -> argparse.ArgumentParser:
    """The commands and what they take."""
    main = argparse.ArgumentParser(prog="python -m d2lps.course.book", description="Write the course and try it out.")
    main.add_argument("--root", help="the course's folder, if it is not the current one")
    commands = main.add_subparsers(required=True, metavar="command")

    def command(function, name: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        added.set_defaults(command=function)
        return added

    for function in (build, check):
        command(function, function.__name__).add_argument(
            "chapters", nargs="*", metavar="chapter", help="as in 01 or 01-data-parallelism; all if none is named"
        )
    added = command(agree, "agree")
    added.add_argument(
        "names", nargs="*", metavar="section", help="sections, after the chapter where there are several"
    )
    added.add_argument("--all", action="store_true", help="every section of the chapter")
    added = command(pull, "pull")
    added.add_argument("notebook", help="as in workspace/vi/01-data-parallelism.ipynb")
    added.add_argument("--code", action="store_true", help="bring edited code home too")
    added = command(lab, "lab")
    added.add_argument("--language", choices=LANGUAGES, help="the language to open; it is remembered")
    added.add_argument("--no-browser", action="store_true", help="print the address, open no browser")
    added.add_argument("--no-start", action="store_true", help="only put the chapters into workspace/")
    command(figures, "figures")
    return main


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a BookError is one sentence on stderr and exit status 1."""
    chosen = parser().parse_args(arguments)
    try:
        return chosen.command(Book(chosen.root), chosen)
    except BookError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""The commands of ``python -m course.site``: build the site, serve it, or record results."""

import argparse
import http.server
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from course.book.findings import BookError
from course.book.library import Book
from course.site.build import OUT, build
from course.site.current import is_current, made_of, note
from course.site.runs import record
from course.site.server import Handler
from d2lps.messages import allow_any_letter
from d2lps.notebook.grading.course import ExerciseError

COMMAND = "python -m course.site"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; print an error in the sources as one sentence on stderr and return exit status 1."""
    allow_any_letter()
    parser = argparse.ArgumentParser(prog=COMMAND, description="Build or serve the book as a site in all languages.")
    parser.add_argument("--root", help="the folder of the course (default: the current one)")
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")
    build_command = commands.add_parser("build", help="execute the chapters that have changed, and write the site")
    build_command.add_argument("--out", type=Path, help=f"the folder of the site (default: {OUT}/)")
    build_command.add_argument("--no-pdf", action="store_true", help="make no PDFs; they need a Chromium")
    build_command.add_argument("--no-solutions", action="store_true", help="leave out solutions and last hints")
    serve_command = commands.add_parser("serve", help="serve the built site on this machine")
    serve_command.add_argument("--port", type=int, default=8000, help="the port (default: 8000)")
    record_command = commands.add_parser("record", help="run a chapter and keep what not every machine can run")
    record_command.add_argument("chapter", help="as 04 or 04-key-value-store")
    chosen = parser.parse_args(arguments)
    try:
        book = Book(chosen.root, solutions=not getattr(chosen, "no_solutions", False))
        if chosen.command == "build":
            where, pdf = chosen.out or book.root / OUT, not chosen.no_pdf
            name = made_of(book, pdf)
            if is_current(book, where, name):
                print("nothing has changed")
            else:
                build(book, where, pdf=pdf)
                note(book, where, name)
            print(f"open {where / 'index.html'}, or run make serve, so that “Try it” can load Python")
            return 0
        if chosen.command == "record":
            print(f"wrote {record(book, book.slug(chosen.chapter)).relative_to(book.root)}")
            return 0
        return serve(book.root / OUT, chosen.port)
    except (BookError, ExerciseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def serve(site: Path, port: int) -> int:
    """Serve the site to this machine alone, until Ctrl-C."""
    if not (site / "index.html").is_file():
        raise BookError(f"there is no site in {site} yet; run {COMMAND} build")
    handler = partial(Handler, directory=site)
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise BookError(f"port {port} cannot be used: {error}; choose another one with --port") from None
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ (stop with Ctrl-C)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())

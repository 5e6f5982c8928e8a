"""Handouts: for each language a zip with the notebooks, the package and the judges, but no solutions.

A learner unpacks it and runs ``make lab``, or installs the package and opens ``chapters/…/en.ipynb``. It has no
``solutions.py``, no last hints, and only the chapters and exercises that ``D2LPS_TOC`` chooses.

``python -m course.handout variants FOLDER`` compares a teacher's own cases with the solutions.
"""

import argparse
import ast
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import d2lps
from course.book.findings import BookError
from course.book.lesson import ID
from course.book.library import Book, source_files, zipped
from course.book.library import write as write_texts
from course.book.notebook import dumps, own
from course.book.stills import texts
from d2lps.messages import LANGUAGES, allow_any_letter
from d2lps.notebook.grading.attempts import judged
from d2lps.notebook.grading.course import (
    CARRIED,
    OWN,
    ExerciseError,
    all_texts,
    chapter_module,
    counted_variants,
    every_text,
    own_texts,
    variants,
)
from d2lps.notebook.grading.exercise import SEALED, Failure

OUT = "dist"
TEMPLATE = "examples/exercise.toml"
ABOUT = "docs/handout"  # README.md in each language, and AGENTS.md
FILES = ("LICENSE", "Makefile", "pyproject.toml", "requirements.lock", "environment.yml", "CITATION.cff", ".ci/setup")
FOLDERS = ("d2lps", "course/book", "img", "benchmarks/measured")
PLAN = "lesson_plan.toml"  # for teachers
ABSENT = {PLAN, "solutions.py"}
DEADLINE = 300  # seconds for a solution in all cases, on a busy machine


def pieces(source: str, keep: Callable[[str, bool], bool]) -> str:
    """Return a TOML file that has only the tables that ``keep`` wants, given (header, last of its name in a row)."""
    parts = re.split(r"(?m)^(?=\[\[?[\w-]+[\w.-]*\]\]?$)", source)
    heads = [part.partition("\n")[0] for part in [*parts, ""]]
    return "".join(
        part for part, head, after in zip(parts, heads, heads[1:], strict=False) if keep(head, head != after)
    )


def exercises(book: Book, slug: str) -> str:
    """Return ``exercises.toml`` of a chapter as its readers get it; raise BookError if a part cannot be taken out."""
    source = (book.folder(slug) / "exercises.toml").read_text("utf-8")
    wanted = {id: {"hints": [], **table} for id, table in book.load(slug).exercises.items()}

    def keep(head: str, last: bool) -> bool:
        id = re.match(r"\[*([\w-]*)", head)[1]
        return id in ("", *wanted) and (book.solutions or head != f"[[{id}.hints]]" or not last)

    handed = pieces(source, keep)
    if {id: {"hints": [], **table} for id, table in tomllib.loads(handed).items()} != wanted:
        raise BookError(f"{slug}/exercises.toml: write each hint as a table [[id.hints]], so that it can be left out")
    return handed


def unsealed(source: str) -> str:
    """Return a judge without the functions that only compute what is right, and sealed ones without their code.

    >>> print(unsealed("@sealed\\ndef right(case):\\n    return case.a + 1"), end="")
    @sealed
    def right(case):
        raise LookupError(case)
    """
    rows = source.splitlines()
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: -getattr(node, "lineno", 0)):
        marks = {each.id for each in getattr(node, "decorator_list", ()) if isinstance(each, ast.Name)}
        if "withheld" in marks:
            rows[node.decorator_list[0].lineno - 1 : node.end_lineno] = []
        elif "sealed" in marks:
            body = node.body[bool(ast.get_docstring(node)) :]
            rows[body[0].lineno - 1 : node.end_lineno] = [
                f"{' ' * body[0].col_offset}raise LookupError({node.args.args[0].arg})"
            ]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(rows).rstrip()) + "\n"


def carried(folder: Path) -> dict[str, list[dict[str, object]]]:
    """Return exercise → what the sealed functions of its judge return for each case."""
    found = {}
    if not (folder / "grader.py").is_file():
        return found
    for id, exercise in chapter_module(folder, "grader").EXERCISES.items():
        theirs = [each for each in SEALED if each.__module__ == getattr(exercise.judge, "__module__", "")]
        if theirs:
            found[id] = [{each.__qualname__: each(case) for each in theirs} for case in exercise.cases]
    return found


def contents(book: Book) -> str:
    """Return ``toc.toml`` with the chosen chapters."""
    source = (book.chapters / "toc.toml").read_text("utf-8")
    begin, *chapters = re.split(r"(?m)^(?=\[\[chapter\]\]$)", source)
    by_slug = {tomllib.loads(chapter)["chapter"][0]["slug"]: chapter for chapter in chapters}
    return "".join([begin, *(by_slug[slug].rstrip("\n") + "\n\n" for slug in book.contents)])


def code_of(book: Book, slug: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files of a chapter that Python reads, as its readers get them."""
    for path in sorted(book.folder(slug).iterdir()):
        if path.name == "lesson.py":
            yield path.name, book.load(slug).lesson
        elif path.name == "exercises.toml":
            yield path.name, exercises(book, slug)
        elif path.suffix in (".py", ".toml", ".json") and path.name not in ({PLAN} if book.solutions else ABSENT):
            source = path.read_text("utf-8")
            yield path.name, source if book.solutions or not path.name.startswith("judge_") else unsealed(source)
    if not book.solutions and (values := carried(book.folder(slug))):
        yield CARRIED, json.dumps(values)


def files(book: Book, language: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a handout."""
    for name in FILES:
        yield name, (book.root / name).read_bytes()
    yield "README.md", (book.root / ABOUT / f"{language}.md").read_bytes()
    yield "AGENTS.md", (book.root / ABOUT / "AGENTS.md").read_bytes()
    yield "course/__init__.py", (book.root / "course/__init__.py").read_bytes()
    for folder in FOLDERS:
        for path in source_files(book.root / folder):
            yield path.relative_to(book.root).as_posix(), path.read_bytes()
    yield "chapters/toc.toml", contents(book).encode()
    for name in ("references.toml", "terms.toml"):
        yield f"chapters/{name}", (book.chapters / name).read_bytes()
    for folder in sorted(path.parent for path in book.chapters.glob(f"*-*/{language}.md")):
        if folder.name not in book.contents:  # other chapters mention its title
            for each in LANGUAGES:
                yield f"chapters/{folder.name}/{each}.md", (folder / f"{each}.md").read_bytes()
            continue
        chapter = book.chapter(folder.name)
        for each in LANGUAGES:
            yield f"chapters/{folder.name}/{each}.md", chapter.texts[each].source.encode()
        for name, text in code_of(book, folder.name):
            yield f"chapters/{folder.name}/{name}", text.encode()
        path = folder / f"{language}.ipynb"
        yield f"chapters/{folder.name}/{path.name}", texts(book, chapter, draw=None)[path].encode()
    yield from own_files(language)


def own_files(language: str) -> Iterator[tuple[str, bytes]]:
    """Yield the exercises of a teacher's own, without solutions; raise BookError if one is not right or stays."""
    for each in own_texts():
        if not (verdict := judged(each, each.solution(), DEADLINE)).passed:
            raise BookError(f"{each.file}: its solution is not right: {verdict.sentence}")
        handed = re.sub(r"(?ms)^solution = (\'{3}|\"{3}).*?\1\n", "", each.file.read_text("utf-8"))
        if "solution" in tomllib.loads(handed):
            raise BookError(f"{each.file}: write the solution between two lines with three quotes, to be left out")
        yield f"chapters/{OWN}/{each.file.name}", handed.encode()
    if own_texts():
        yield f"chapters/{OWN}/{language}.ipynb", dumps(own(own_texts(), language)).encode()


def copy_exercise(root: Path, id: str, folder: Path) -> Path:
    """Copy the exercise to start from into a teacher's folder, and return its path. Raises BookError."""
    path = folder / f"{id}.toml"
    if not ID.fullmatch(id) or id[0].isdigit() or id in every_text() or path.exists():
        raise BookError(f"{path}: take another name, of small letters, digits and -, that no exercise has")
    write_texts({path: (root / TEMPLATE).read_text("utf-8").replace("NAME", id.replace("-", "_"))})
    return path


def write(book: Book, out: Path) -> list[Path]:
    """Write a zip for each language into a folder, and return their paths."""
    names = {language: f"d2lps-{d2lps.__version__}-{language}" for language in LANGUAGES}
    zips = {
        out / f"{name}.zip": zipped((f"{name}/{path}", content) for path, content in files(book, language))
        for language, name in names.items()
    }
    write_texts(zips)
    return [*zips]


def compare(folder: Path) -> list[str]:
    """Judge the solutions in a teacher's own cases; return a line for each that does not pass. Raises ExerciseError."""
    os.environ["D2LPS_VARIANTS"] = str(folder)
    refused, own = [], variants()
    for id, exercise_texts in all_texts().items():
        if id not in own:
            continue
        try:
            verdict = judged(exercise_texts, exercise_texts.solution(), DEADLINE)
        except Failure as failure:
            verdict = failure
        if not getattr(verdict, "passed", False):
            refused.append(f"{exercise_texts.folder.name}.py, {id}: {verdict.sentence}")
    return refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the handouts, or compare variants with the solutions; return the exit status."""
    allow_any_letter()
    parser = argparse.ArgumentParser(prog="python -m course.handout", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command", metavar="command")
    write_command = commands.add_parser("write", help="write a zip for each language")
    write_command.add_argument("--out", type=Path, help=f"the folder of the zips (default: {OUT}/)")
    variants_command = commands.add_parser("variants", help="compare a teacher's own cases with the solutions")
    variants_command.add_argument("folder", type=Path, help="has a file for each chapter, as 01-data-parallelism.py")
    exercise_command = commands.add_parser("exercise", help="copy an exercise to start from into a folder of your own")
    exercise_command.add_argument("name", help="such as ring-bytes; the function is then called ring_bytes")
    exercise_command.add_argument("--folder", type=Path, default=Path(OWN), help=f"(default: {OWN}/)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "exercise":
            print(f"wrote {copy_exercise(Book().root, chosen.name, chosen.folder)}")
            return 0
        if chosen.command == "variants":
            refused = compare(chosen.folder)
            print(counted_variants(), *(refused or ["The solutions pass in all cases."]), sep="\n")
            return int(bool(refused))
        book = Book(solutions=False)
        print(*(f"wrote {path}" for path in write(book, chosen.out or book.root / OUT)), sep="\n")
    except (BookError, ExerciseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

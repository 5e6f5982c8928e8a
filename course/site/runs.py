"""The outputs of a chapter's cells in each language, from a new run or from a kept one.

The name of a kept run has a digest of everything that it depends on: the chapter's code, what it uses of ``d2lps``
(``inputs.py`` finds it), the versions of the packages, and Python.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from course.book.findings import BookError
from course.book.library import Book, digest, write
from course.site.inputs import inputs
from d2lps.messages import LANGUAGES, unmarked
from d2lps.notebook.recorded import FILE

SECONDS = 300  # limit for one cell
DURATIONS = "tests/durations.json"
# By chapter:
RUNS = "tests/course/test_chapters.py::test_cells_run_from_top_to_bottom_and_show_their_last_value"
EXECUTE = Path(__file__).with_name("execute.py")  # decides how a chapter runs


@dataclass(frozen=True)
class ChapterRun:
    """The result of executing a chapter.

    ``outputs`` maps language and cell id to outputs, as a notebook has them; ``day`` is a date, as 2026-01-31;
    ``machine`` names number and kind of processors, and Python.
    """

    outputs: dict[str, dict[str, list[dict]]]
    day: str
    machine: str


def name(book: Book, slug: str) -> str:
    """Return the name of a run of the chapter as it is now."""
    shared = [path for path in (EXECUTE, book.root / "requirements.lock") if path.is_file()]
    contents = [*inputs(book.folder(slug)), *(digest(path.read_bytes()) for path in shared)]
    made_of = "\n".join([sys.version, *contents])
    return f"{slug}-{digest(made_of)}"


def run(book: Book, slug: str, folder: Path, say: Callable[[str], None] = print) -> ChapterRun:
    """Return the chapter's run: the one kept in ``folder`` if nothing has changed since, else a new one.

    The notebooks of the chapter must be up to date. ``say`` is called with a sentence before each long step. Raises
    BookError if a cell raises or takes too long.
    """
    path = folder / f"{name(book, slug)}.json"
    try:
        data = json.loads(path.read_text("utf-8"))
        return ChapterRun(data["outputs"], data["day"], data["machine"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        say(f"{path.name} is damaged; {slug} runs again")
    return keep(book, slug, folder, _executed(book, slug, say))


def is_kept(book: Book, slug: str, folder: Path) -> bool:
    """Return whether ``folder`` has a run of the chapter as it is now."""
    return (folder / f"{name(book, slug)}.json").is_file()


def seconds(book: Book) -> dict[str, float]:
    """Return slug → about how many seconds a run takes, as the tests have recorded it; empty without tests."""
    try:
        recorded = json.loads((book.root / DURATIONS).read_text("utf-8"))["slow"]
    except (OSError, ValueError, KeyError):
        return {}
    return {slug: recorded[test] for slug in book.contents if (test := f"{RUNS}[{slug}]") in recorded}


def keep(book: Book, slug: str, folder: Path, result: ChapterRun) -> ChapterRun:
    """Keep the chapter's run in ``folder`` instead of earlier ones, and return it."""
    path = folder / f"{name(book, slug)}.json"
    write({path: json.dumps(result.__dict__, ensure_ascii=False)})
    for old in folder.glob(f"{slug}-*.json"):
        if old != path:
            old.unlink(missing_ok=True)
    return result


def new(books: dict) -> ChapterRun:
    """Return the run, made now and on this machine, of which these are the executed notebooks."""
    machine = f"{os.cpu_count()} × {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    return ChapterRun(outputs_of(books), date.today().isoformat(), machine)


def record(book: Book, slug: str, say: Callable[[str], None] = print) -> Path:
    """Run a chapter and write the results of ``d2lps.recorded`` into its folder; raise BookError if there are none."""
    folder = book.folder(slug)
    before = (folder / FILE).read_text("utf-8") if (folder / FILE).is_file() else ""
    _executed(book, slug, say, f"from d2lps.notebook import recorded as _recorded\n_recorded.write({str(folder)!r})")
    if not (folder / FILE).is_file() or (folder / FILE).read_text("utf-8") == before:
        raise BookError(f"{slug} has nothing to record, or this machine lacks what it needs: mxnet, or emulated hosts")
    return folder / FILE


def _executed(book: Book, slug: str, say: Callable[[str], None], last: str = "") -> ChapterRun:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from course.site.execute import execute

    if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
        say(f"the machine is busy (load {load:.1f}): measured times in {slug} will be longer than they need to be")
    start = time.monotonic()
    try:
        books = execute(book.folder(slug), seconds=SECONDS, last=last)
    except CellExecutionError as error:
        problem = f"{error.ename}: {unmarked(error.evalue, LANGUAGES[0])}"
        where = f"chapters/{slug}/lesson.py"
        raise BookError(f"{slug}, cell {error.cell_id!r}, raises {problem}; mend it in {where}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise BookError(f"{slug}: {error}") from None
    say(f"{slug} ran in {time.monotonic() - start:.0f} s")
    return new(books)


def outputs_of(books: dict) -> dict[str, dict[str, list[dict]]]:
    """Return language → cell id → outputs, from executed notebooks."""
    return {
        language: {
            cell.id: [dict(output) for output in cell.outputs] for cell in books[language].cells if "outputs" in cell
        }
        for language in LANGUAGES
    }

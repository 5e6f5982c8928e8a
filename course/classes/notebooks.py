"""The notebooks of a class: their learners, chapters and answers. They are read, never changed."""

import ast
import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from course.book.lesson import SPEAK, read_cells
from course.classes import sandbox, slices
from course.classes.handed_in import LARGEST, Note, Task, within
from course.classes.slices import Cell
from d2lps.notebook.grading.course import Texts, all_texts, every_text, number
from d2lps.notebook.kept import NAME

PREFIX = "exercise-"
LARGE = 64 << 20  # bytes of a notebook that is graded without its outputs
HARMLESS = (
    "beside",
    "empty",
    "other-chapter",
    "unknown-exercise",
    "no-times",
    "by-hand",
    "large",
)  # no work is left ungraded


@dataclass
class Attempt:
    """An exercise as a learner's notebook has it.

    ``answers`` has the cells that differ from the stub, the last one first, each with the expression that is checked;
    the last stub if there is none; and nothing if the exercise is missing. ``cells`` has all cells of the exercise,
    ``hints`` the number of hints given, and ``hints_from`` where that was found, ``"kept"`` or ``"notebook"``.
    """

    id: str
    answers: list[tuple[Cell, str]] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    hints: int | None = None
    hints_from: str = ""
    notes: list[Note] = field(default_factory=list)


@dataclass
class Notebook:
    """A learner's notebook, as far as it could be read."""

    learner: str
    path: Path
    chapter: str = ""
    language: str = ""  # that the notebook speaks
    cells: list[Cell] = field(default_factory=list)
    answers: list[Attempt] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


class NoNotebook(Exception):
    """The file is JSON, but no notebook."""


def read(task: Task) -> Notebook:
    """Read a notebook; its faults are in its notes."""
    book, path = Notebook(task.learner, task.path), task.path
    if task.note:
        book.notes.append(task.note)
        return book
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise MemoryError
        if not path.is_file():
            raise OSError("no file")
        with sandbox.at_most(8 * size + (1 << 28)):
            cells = _code_cells(path.read_bytes())
    except MemoryError:
        book.notes.append(Note("huge", {"size": f"{size >> 20} MiB"}))
        return book
    except OSError as error:
        book.notes.append(Note("unreadable", {"why": error.strerror or str(error)}))
        return book
    except NoNotebook:
        book.notes.append(Note("no-notebook"))
        return book
    except (ValueError, RecursionError):
        book.notes.append(Note("no-json"))
        return book
    if size > LARGE:
        book.notes.append(Note("large", {"size": f"{size >> 20} MiB"}))
    texts = all_texts()
    book.cells = [slices.cell(_name(cell, number), cell["source"]) for number, cell in enumerate(cells, 1)]
    checks = [_checked(cell.body) for cell in book.cells]
    book.chapter, book.language = _chapter(cells, checks, every_text()), _language(cells)
    unknown = {id for check in checks for id in check} - texts.keys()
    unknown |= {cell["id"].removeprefix(PREFIX) for cell in cells if cell["id"].startswith(PREFIX)} - texts.keys()
    unknown -= every_text().keys()  # the teacher has not chosen these
    book.notes += [Note("unknown-exercise", {"id": id}) for id in sorted(unknown)[:9]]
    if not book.chapter:
        book.notes.append(Note("no-chapter"))
        return book
    if book.chapter not in {entry.folder.name for entry in texts.values()}:
        book.notes.append(Note("other-chapter", {"chapter": number(book.chapter)}))
        return book
    chapter_texts = {id: entry for id, entry in texts.items() if entry.folder.name == book.chapter}
    book.answers = [_attempt(id, chapter_texts[id], cells, book.cells, checks, places(task)) for id in chapter_texts]
    return book


def places(task: Task) -> list[Path]:
    """Return the folders in which hints of a notebook may be counted: the learner's own, the inner ones first."""
    return [parent for parent in task.path.parents if task.home and parent.is_relative_to(task.home)]


def _code_cells(data: bytes) -> list[dict]:
    """Return the code cells, each with id, source and outputs. Raises ValueError if this is no JSON, and NoNotebook."""
    book = json.loads(data)  # in UTF-8, 16 or 32, with a byte order mark or without
    if not isinstance(book, dict):
        raise NoNotebook
    cells = book.get("cells")
    if cells is None and isinstance(book.get("worksheets"), list):  # of nbformat 3
        cells = [cell for sheet in book["worksheets"] if isinstance(sheet, dict) for cell in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise NoNotebook
    code_cells = []
    for cell in cells:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source, outputs = cell.get("source", cell.get("input", "")), cell.get("outputs")
            source = "".join(map(str, source)) if isinstance(source, list) else str(source)
            outputs = outputs if isinstance(outputs, list) and len(data) <= LARGE else []
            code_cells.append({"id": str(cell.get("id", "")), "source": source, "outputs": outputs})
    return code_cells


def _language(cells: list[dict]) -> str:
    """Return the language that the notebook chooses for d2lps; ``""`` if it chooses none."""
    chosen = [match[3] for cell in cells for match in SPEAK.finditer(cell["source"])]
    return chosen[-1] if chosen else ""


def _name(cell: dict, number: int) -> str:
    return cell["id"] if cell["id"].startswith(PREFIX) else f"cell {number}"


def _checked(body: list[ast.stmt]) -> dict[str, str]:
    """Return exercise → the expression that these statements check."""
    expressions = {}
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "check_exercise":
            parts = [*node.args, *(word.value for word in node.keywords if word.arg in ("id", "answer"))]
            if len(parts) > 1 and isinstance(parts[0], ast.Constant) and isinstance(parts[0].value, str):
                expressions[parts[0].value] = ast.unparse(parts[1])
    return expressions


def _chapter(cells: list[dict], checks: list[dict[str, str]], texts: dict[str, Texts]) -> str:
    """Return the chapter of most exercises in the notebook, or, if there are none, of most cells."""
    ids = [cell["id"] for cell in cells]
    asked = {id.removeprefix(PREFIX) for id in ids if id.startswith(PREFIX)} | {id for check in checks for id in check}
    count = Counter(texts[id].folder.name for id in asked if id in texts)
    if not count:
        for folder in {entry.folder for entry in texts.values()}:
            same_ids = len({cell.name for cell in lesson(folder)} & {*ids})
            defined = sum(
                any(f"def {id.replace('-', '_')}(" in cell["source"] for cell in cells)
                for id, entry in texts.items()
                if entry.folder == folder
            )
            count[folder.name] = (same_ids if same_ids > 3 else 0) + 4 * defined
    (chapter, highest), *_ = sorted(count.items(), key=lambda item: (-item[1], item[0]))
    return chapter if highest else ""


@cache
def lesson(folder: Path) -> tuple[Cell, ...]:
    """Return the code cells of the current chapter without exercises, for names that a notebook does not bind."""
    file = folder / "lesson.py"  # exercises of a teacher's own have none
    code = read_cells(file.read_text("utf-8")) if file.is_file() else ()
    return tuple(slices.cell(cell.id, cell.source) for cell in code if cell.exercise is None)


def _attempt(
    id: str, texts: Texts, cells: list[dict], parsed: list[Cell], checks: list[dict[str, str]], places: list[Path]
) -> Attempt:
    function, stub = id.replace("-", "_"), texts.stub
    indices = [at for at, cell in enumerate(cells) if cell["id"] == PREFIX + id]
    indices += [at for at, check in enumerate(checks) if id in check and at not in indices]
    if not indices:  # without ids and checks, find it by the name that the stub defines
        indices = [at for at, cell in enumerate(parsed) if any(function in slices.bound(node) for node in cell.body)]
    indices += [
        at for at, cell in enumerate(parsed) if cell.error and at not in indices and f"def {function}(" in cell.source
    ]
    indices, answer = sorted(indices), Attempt(id)
    if not indices:
        answer.notes.append(Note("missing"))
        return answer
    tried = [at for at in indices if _plain(cells[at]["source"]) != _plain(stub)] or indices[-1:]
    if len(indices) > 1:
        answer.notes.append(Note("doubled", {"count": len(indices)}))
    answer.cells = [parsed[at] for at in indices]
    answer.answers = [(parsed[at], checks[at].get(id, function)) for at in reversed(tried)]
    answer.hints, answer.hints_from = hints(id, places, [cells[at]["outputs"] for at in indices])
    return answer


def _plain(source: str) -> str:
    """Return a source without its check, commands, spaces and comments."""
    cell = slices.cell("", source)
    if cell.error:
        return source.strip()
    needless = (node for node in cell.body if isinstance(node, ast.Expr))
    needless = {node for node in needless if isinstance(node.value, ast.Constant) or _checked([node])}
    return "\n".join(ast.dump(node) for node in cell.body if node not in needless)


def untouched(texts: Texts, cell: Cell) -> bool:
    """Return whether a cell is the unchanged stub."""
    return _plain(cell.source) == _plain(texts.stub)


def hints(id: str, places: list[Path], outputs: list[list]) -> tuple[int | None, str]:
    """Return the number of hints for mistakes and its source; hints for the untouched stub do not count.

    ``places`` are folders in which hints may be kept, the last of which contains the others; links lead nowhere else.
    """
    for folder in places:
        try:
            file = folder / NAME / f"hints-{id}.json"
            if not within(file, places[-1]):
                continue
            counts = json.loads(file.read_text("utf-8"))
            return sum(count for name, count in counts.items() if name != "todo" and type(count) is int), "kept"
        except (OSError, ValueError, AttributeError):
            continue
    shown_hints = 0
    for cell_outputs in outputs:
        for output in cell_outputs:
            data = output.get("data") if isinstance(output, dict) else None
            html = data.get("text/html", "") if isinstance(data, dict) else ""
            html = "".join(map(str, html)) if isinstance(html, list) else str(html)
            shown_hints += "d2lps-verdict" in html and "<details>" in html
    return shown_hints, "notebook"

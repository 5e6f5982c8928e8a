"""The report for the teacher, per learner and for the class, as CSV, JSON and HTML."""

import csv
import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course.classes.judging import SOLVED, STATES, UNTOUCHED
from course.classes.page import page
from d2lps.messages import said, text
from d2lps.notebook.grading.course import CHAPTERS, all_texts, edition, tables

COLUMNS = (
    "learner", "notebook", "chapter", "exercise", "optional", "state", "mistake", "sentence", "hint", "hints",
    "hints_from", "seconds", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The results of all notebooks.

    ``language`` is that of all texts, ``folder`` the name of the class, and ``rows`` has one row for each exercise of
    each notebook. ``books`` has learner, notebook, chapter, notes, and whether it was graded, of each notebook; notes
    on a folder have no notebook, and on the folder of the class no learner. ``missing`` has what this machine cannot
    refuse to answers.
    """

    language: str
    folder: str
    books: list[dict]
    rows: list[dict]
    missing: list[str]
    day: str

    @property
    def exercises(self) -> list[str]:
        """The exercises of all chapters with a notebook in the class, in the order of the course."""
        chapters = {row["chapter"] for row in self.rows}
        return [id for id, texts in all_texts().items() if texts.folder.name in chapters]

    def best(self) -> dict[str, dict[str, dict]]:
        """Return learner → exercise → the best row, and the last of equally good ones."""
        best_rows: dict[str, dict[str, dict]] = {book["learner"]: {} for book in self.books if book["learner"]}
        for row in self.rows:
            learner_rows = best_rows[row["learner"]]
            before = learner_rows.get(row["exercise"])
            if before is None or STATES.index(row["state"]) <= STATES.index(before["state"]):
                learner_rows[row["exercise"]] = row
        return best_rows

    def learners(self) -> dict[str, dict]:
        """Return learner → numbers of solved exercises and hints, mistakes, and notes."""
        summaries = {}
        for learner, rows in self.best().items():
            mistakes = Counter(row["mistake"] for row in rows.values() if row["mistake"] and row["state"] != UNTOUCHED)
            summaries[learner] = {
                **_counted(row for row in rows.values() if not row["optional"]),
                "optional": _counted(row for row in rows.values() if row["optional"]),
                "hints": sum(row["hints"] or 0 for row in rows.values()),
                "mistakes": dict(mistakes.most_common()),
                "notebooks": [
                    book["notebook"] for book in self.books if book["learner"] == learner and book["notebook"]
                ],
                "notes": self.notes(learner),
            }
        return summaries

    def notes(self, learner: str) -> list[dict[str, str]]:
        """Return the notes on a learner's notebooks and folder, or for ``""`` on the folder of the class."""
        books = [book for book in self.books if book["learner"] == learner]
        return [{"notebook": book["notebook"], "note": note} for book in books for note in book["notes"]]

    def classwide(self) -> dict[str, dict]:
        """Return exercise → number of learners per state, and how often each mistake was made."""
        summaries = {}
        for id in self.exercises:
            rows = [rows[id] for rows in self.best().values() if id in rows]
            mistakes = Counter(row["mistake"] for row in rows if row["mistake"] and row["state"] != UNTOUCHED)
            states = Counter(row["state"] for row in rows)
            summaries[id] = {
                "chapter": all_texts()[id].folder.name,
                "title": all_texts()[id].title,
                "optional": all_texts()[id].optional,
                "states": {state: states[state] for state in STATES},
                "mistakes": {
                    name: {"count": count, "hint": next(row["hint"] for row in rows if row["mistake"] == name)}
                    for name, count in mistakes.most_common()
                },
                "hints": sum(row["hints"] or 0 for row in rows),
            }
        return summaries

    def as_json(self) -> str:
        data = {
            "d2lps": "class",
            "language": self.language,
            "folder": self.folder,
            "day": self.day,
            "edition": edition(),
            "not-shut-out": self.missing,
            "class": self.classwide(),
            "learners": self.learners(),
            "notebooks": self.books,
            "answers": self.rows,
        }
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n"

    def as_csv(self) -> str:
        """Return a line for each exercise of each notebook, and one for each notebook without exercises."""
        file = io.StringIO()
        lines = csv.writer(file, lineterminator="\r\n")
        lines.writerow(COLUMNS)
        for row in self.rows:
            lines.writerow([_cell(row[name]) for name in COLUMNS])
        listed = {row["notebook"] for row in self.rows}
        for book in self.books:
            if book["notebook"] not in listed and book["learner"]:
                row = dict.fromkeys(COLUMNS, "") | book
                lines.writerow([_cell(row[name]) for name in COLUMNS])
        return "\ufeff" + file.getvalue()  # shows spreadsheets that this is UTF-8

    def as_page(self) -> str:
        titles = {entry["slug"]: said(entry["title"].__getitem__) for entry in tables(CHAPTERS / "toc.toml")["chapter"]}
        return page(self, titles)

    def write(self, out: Path) -> list[Path]:
        """Write the three files into a folder, each completely or not at all. Raises OSError."""
        out.mkdir(parents=True, exist_ok=True)
        files = {"class.csv": self.as_csv(), "class.json": self.as_json(), "class.html": self.as_page()}
        for name, content in files.items():
            handle, temporary = tempfile.mkstemp(prefix=".", dir=out)
            try:
                with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                    file.write(content)
                os.chmod(temporary, 0o644)
                os.replace(temporary, out / name)
            finally:
                Path(temporary).unlink(missing_ok=True)
        return [out / name for name in files]


def report(language: str, folder: str, results: list[dict]) -> Report:
    """Make the report from the results of the notebooks."""
    exercises = all_texts()
    rows = [row | {"optional": exercises[row["exercise"]].optional} for result in results for row in result["rows"]]
    missing = sorted({name for result in results for name in result["missing"]})
    day = datetime.now().isoformat(" ", "minutes")
    return Report(language, folder, [result["book"] for result in results], rows, missing, day)


def _counted(rows: Iterable[dict]) -> dict[str, int]:
    states = [row["state"] for row in rows]
    return {"solved": states.count(SOLVED), "exercises": len(states)}


def summary(class_report: Report) -> str:
    """Return a line for each learner, and the notes."""
    lines = []
    for learner, learner_summary in class_report.learners().items():
        values = {name: learner_summary[name] for name in ("solved", "exercises", "hints")}
        more = learner_summary["optional"]
        lines.append(text("grade.line", learner=learner, **values, more=more["solved"], of=more["exercises"]))
        lines += [f"    {note['notebook'] or learner}: {note['note']}" for note in learner_summary["notes"]]
    lines += [note["note"] for note in class_report.notes("")]
    lines += [text(f"grade.open.{name}") for name in class_report.missing]
    return "\n".join(lines)


def _cell(value: object) -> object:
    """Return a value that a spreadsheet shows and does not compute: learners choose the names of their files."""
    if isinstance(value, list):
        value = "; ".join(value)
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value

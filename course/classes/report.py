"""What a teacher gets: per learner and for the class, as CSV, JSON and a page."""

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
from d2lps.notebook.grading.course import CHAPTERS, all_texts, tables

COLUMNS = (
    "learner", "notebook", "chapter", "exercise", "optional", "state", "mistake", "sentence", "hint", "hints",
    "hints_from", "seconds", "notes",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What was found in all notebooks.

    Parameters
    ----------
    language : str
        Of all that is said in it.
    folder : str
        What the class is called.
    books : list of dict
        Learner, notebook, chapter and notes of each notebook, and whether it was graded. What is said of a folder
        has no notebook; of that of the class, no learner.
    rows : list of dict
        One for each exercise of each notebook.
    missing : list of str
        What this machine could not shut out.
    day : str
    """

    language: str
    folder: str
    books: list[dict]
    rows: list[dict]
    missing: list[str]
    day: str

    @property
    def exercises(self) -> list[str]:
        """The exercises of all chapters of which somebody has handed in a notebook, in the course's order."""
        chapters = {row["chapter"] for row in self.rows}
        return [id for id, texts in all_texts().items() if texts.folder.name in chapters]

    def best(self) -> dict[str, dict[str, dict]]:
        """Learner → exercise → the best of their rows; where several are as good, the last."""
        best_rows: dict[str, dict[str, dict]] = {book["learner"]: {} for book in self.books if book["learner"]}
        for row in self.rows:
            learner_rows = best_rows[row["learner"]]
            before = learner_rows.get(row["exercise"])
            if before is None or STATES.index(row["state"]) <= STATES.index(before["state"]):
                learner_rows[row["exercise"]] = row
        return best_rows

    def learners(self) -> dict[str, dict]:
        """Learner → how many exercises are solved, which mistakes, how many hints, and what has to be said."""
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
        """What has to be said about a learner's notebooks and folder; about the class's own folder for ``""``."""
        books = [book for book in self.books if book["learner"] == learner]
        return [{"notebook": book["notebook"], "note": note} for book in books for note in book["notes"]]

    def classwide(self) -> dict[str, dict]:
        """Exercise → how many learners are in which state, and which mistakes are made how often."""
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
            "not-shut-out": self.missing,
            "class": self.classwide(),
            "learners": self.learners(),
            "notebooks": self.books,
            "answers": self.rows,
        }
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n"

    def as_csv(self) -> str:
        """A line for each exercise of each notebook, and one for each notebook in which there is none."""
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
        return "\ufeff" + file.getvalue()  # by which spreadsheets know that it is UTF-8

    def as_page(self) -> str:
        titles = {entry["slug"]: said(entry["title"].__getitem__) for entry in tables(CHAPTERS / "toc.toml")["chapter"]}
        return page(self, titles)

    def write(self, out: Path) -> list[Path]:
        """Put the three files into a folder, each whole. Raises OSError."""
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
    """The report on what was found in each notebook."""
    exercises = all_texts()
    rows = [row | {"optional": exercises[row["exercise"]].optional} for result in results for row in result["rows"]]
    missing = sorted({name for result in results for name in result["missing"]})
    day = datetime.now().isoformat(" ", "minutes")
    return Report(language, folder, [result["book"] for result in results], rows, missing, day)


def _counted(rows: Iterable[dict]) -> dict[str, int]:
    states = [row["state"] for row in rows]
    return {"solved": states.count(SOLVED), "exercises": len(states)}


def summary(class_report: Report) -> str:
    """A line for each learner, and what has to be said."""
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
    """What a spreadsheet shows, and never computes: whoever hands in a notebook has chosen its name."""
    if isinstance(value, list):
        value = "; ".join(value)
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value

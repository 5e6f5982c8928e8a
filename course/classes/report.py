"""The report: for the teacher as CSV, JSON and HTML, for each learner as HTML, and the gradebook."""

import csv
import io
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial

from course.book.library import zipped
from course.classes.gradebook import Marking, Roster, plain, required
from course.classes.handed_in import printable
from course.classes.judging import MISSING, SOLVED, STATES, UNTOUCHED
from course.classes.page import feedback, page
from d2lps.messages import only, said, text, unmarked
from d2lps.notebook.grading.course import CHAPTERS, OWN, all_texts, choice, edition, number, tables

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
    refuse to answers, ``points`` the exercises that count, also those on paper, ``remarks`` sentences on the whole
    class, and ``marking`` how answers become points.
    """

    language: str
    folder: str
    books: list[dict]
    rows: list[dict]
    missing: list[str]
    day: str
    points: dict[str, float]
    remarks: list[str] = field(default_factory=list)
    marking: Marking = field(default_factory=Marking)

    @property
    def exercises(self) -> list[str]:
        """The exercises of all chapters with a notebook in the class, in the order of the course."""
        chapters = {row["chapter"] for row in self.rows}
        return [id for id, texts in all_texts().items() if texts.folder.name in chapters]

    @cached_property
    def best(self) -> dict[str, dict[str, dict]]:
        """Return learner → exercise → the best row; of equally good ones the least late, and the last of these."""
        best_rows: dict[str, dict[str, dict]] = {book["learner"]: {} for book in self.books if book["learner"]}
        for row in self.rows:
            rows, id = best_rows[row["learner"]], row["exercise"]
            rows[id] = min(row, rows.get(id, row), key=self._rank)
        return best_rows

    def _rank(self, row: dict) -> tuple[float, int, int]:
        return -self.marking.part(row), STATES.index(row["state"]), self._late[row["notebook"]] or 0

    @cached_property
    def _late(self) -> dict[str, int | None]:
        return {book["notebook"]: book["late"] for book in self.books}

    @cached_property
    def learners(self) -> dict[str, dict]:
        """Return learner → numbers of solved exercises and hints, scores, days late, mistakes, and notes.

        ``scores`` lacks the exercises of chapters that were not handed in; ``given`` has points entered by hand.
        """
        summaries = {}
        for learner, rows in self.best.items():
            books = [book for book in self.books if book["learner"] == learner]
            tried = [self._late[row["notebook"]] for row in rows.values() if row["state"] not in (UNTOUCHED, MISSING)]
            mistakes = Counter(row["mistake"] for row in rows.values() if row["mistake"] and row["state"] != UNTOUCHED)
            given = {id: entered for (name, id), entered in self.marking.given.items() if name == learner}
            scores = {id: points * self.marking.part(rows[id]) for id, points in self.points.items() if id in rows}
            summaries[learner] = {
                **_counted(row for row in rows.values() if not row["optional"]),
                "optional": _counted(row for row in rows.values() if row["optional"]),
                "hints": sum(row["hints"] or 0 for row in rows.values()),
                "id": books[0]["id"],
                "scores": scores | {id: value for id, (value, _) in given.items() if id in self.points},
                "given": given,
                "late": max(
                    (days for days in tried or [book["late"] for book in books] if days is not None), default=None
                ),
                "mistakes": dict(mistakes.most_common()),
                "notebooks": [book["notebook"] for book in books if book["notebook"]],
                "notes": self.notes(learner),
            }
        return summaries

    def notes(self, learner: str) -> list[dict[str, str]]:
        """Return the notes on a learner's notebooks and folder, or for ``""`` on the folder of the class."""
        books = [book for book in self.books if book["learner"] == learner]
        return [{"notebook": book["notebook"], "note": note} for book in books for note in book["notes"]]

    @cached_property
    def classwide(self) -> dict[str, dict]:
        """Return exercise → number of learners per state, and how often each mistake was made."""
        summaries = {}
        for id in self.exercises:
            rows = [rows[id] for rows in self.best.values() if id in rows]
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
            "class": self.classwide,
            "remarks": self.remarks,
            "learners": self.learners,
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
            lines.writerow([_cell(row[name]) for name in COLUMNS[:-1]] + [_cell(row["notes"] + row["look"])])
        listed = {row["notebook"] for row in self.rows}
        for book in self.books:
            if book["notebook"] not in listed and book["learner"]:
                row = dict.fromkeys(COLUMNS, "") | book
                lines.writerow([_cell(row[name]) for name in COLUMNS])
        return "\ufeff" + file.getvalue()  # shows spreadsheets that this is UTF-8

    def as_page(self) -> str:
        titles = {entry["slug"]: said(entry["title"].__getitem__) for entry in tables(CHAPTERS / "toc.toml")["chapter"]}
        return page(self, titles | {OWN: text("book.own")})


def report(
    language: str, folder: str, results: list[dict], marking: Marking | None = None, roster: Roster | None = None
) -> Report:
    """Make the report from the results of the notebooks.

    By default the required exercises of the :func:`chapters_of_most` have one point each.
    """
    marking = marking or Marking()
    exercises, results = all_texts(), unmarked(results, language)
    rows = [row | {"optional": exercises[row["exercise"]].optional} for result in results for row in result["rows"]]
    equal = defaultdict(set)
    for row in rows:
        equal[row["exercise"], row["same"]].add(row["learner"])
    for row in rows:
        others = equal[row["exercise"], row["same"]] - {row["learner"]} if row["same"] else ()
        row["copies"] = sorted(others)
        if row["only_calls"] and row["state"] == SOLVED and marking.only_calls < 1:
            row["notes"] = [*row["notes"], text("grade.note.counts-less", share=f"{marking.only_calls:.0%}")]
        row["look"] += [text("grade.note.alike", learners=", ".join(sorted(others)))] if others else []
    missing = sorted({name for result in results for name in result["missing"]})
    day, books = datetime.now().isoformat(" ", "minutes"), [result["book"] for result in results]
    points, chosen, remarks = marking.points, marking.points is not None, []
    chapters = {exercises[id].folder.name for id in points} if chosen else chapters_of_most(rows)
    for number_of_book, book in enumerate(books):
        notes = [text("grade.note.late", days=book["late"])] * bool(book["late"]) + book["notes"]
        if book["chapter"] and book["chapter"] not in chapters and book["graded"]:
            notes.append(text("grade.note.stray", chapter=number(book["chapter"])))
        books[number_of_book] = book | {"notes": notes}
    if not chosen:
        points = required(chapters)
        others = {row["chapter"] for row in rows} - chapters
        remarks += [text("grade.counts", chapters=", ".join(sorted(map(number, chapters))))] if others else []
    if unused := sorted({id for _, id in marking.given} - points.keys() - marking.paper.keys()):
        remarks.append(text("grade.override-unused", ids=", ".join(unused)))
    found = Report(language, folder, books, rows, missing, day, points | marking.paper, remarks, marking)
    if roster and (absent := roster.absent(found)):
        remarks.append(text("grade.absent", learners="; ".join(absent)))
    return found


def chapters_of_most(rows: list[dict]) -> set[str]:
    """Return the chapters that at least half of the learners have handed in, or else most of them.

    If a teacher has chosen chapters with ``D2LPS_TOC``, those of them that somebody has handed in.
    """
    learners = defaultdict(set)
    for row in rows:
        learners[row["chapter"]].add(row["learner"])
    if choice()[0] is not None:
        return {*learners}
    half = len({row["learner"] for row in rows}) / 2
    enough = min(half, max(map(len, learners.values()), default=0))
    return {chapter for chapter, those in learners.items() if len(those) >= enough}


def feedbacks(language: str, folder: str, results: list[dict], marking: Marking | None = None) -> dict[str, str]:
    """Return the files for learners: each has the language of the learner's last notebook, or else the one given."""
    files, reports = {}, {}
    spoken = {result["book"]["learner"]: result["book"]["language"] for result in results if result["book"]["language"]}
    for learner in dict.fromkeys(result["book"]["learner"] for result in results if result["book"]["learner"]):
        own = spoken.get(learner, language)
        if own not in reports:
            reports[own] = only(own, partial(report, own, folder, results, marking))
        plain_name = re.sub(r'[\x00-\x1f<>:"/\\|?*]|^\.', "_", learner)[:60]
        names = (f"learners/{plain_name}{f' ({number})' if number > 1 else ''}.html" for number in itertools.count(1))
        name = next(name for name in names if name.casefold() not in map(str.casefold, files))
        files[name] = only(own, partial(feedback, reports[own], learner))
    return files


def packed(results: list[dict], pages: Iterable[str]) -> bytes:
    """Return a zip with the pages of the learners, in the order of the results, named as Canvas or Moodle reads them.

    A page is named after the learner's first notebook or, without one, after the learner's first file.
    """
    places: dict[str, str] = {}
    for book in sorted((result["book"] for result in results), key=lambda book: not book["notebook"]):
        places.setdefault(book["learner"], book["back"])
    learners = filter(None, dict.fromkeys(result["book"]["learner"] for result in results))
    names = (printable(places[learner] or f"{learner}/feedback.html") for learner in learners)
    return zipped(zip(names, pages, strict=True))


def _counted(rows: Iterable[dict]) -> dict[str, int]:
    states = [row["state"] for row in rows]
    return {"solved": states.count(SOLVED), "exercises": len(states)}


def summary(class_report: Report) -> str:
    """Return a line for each learner, and the notes."""
    lines = []
    for learner, learner_summary in class_report.learners.items():
        values = {name: learner_summary[name] for name in ("solved", "exercises", "hints")}
        more = learner_summary["optional"]
        lines.append(text("grade.line", learner=learner, **values, more=more["solved"], of=more["exercises"]))
        lines += [f"    {note['notebook'] or learner}: {note['note']}" for note in learner_summary["notes"]]
    lines += [*class_report.remarks, *(note["note"] for note in class_report.notes(""))]
    lines += [text(f"grade.open.{name}") for name in class_report.missing]
    return "\n".join(lines)


def _cell(value: object) -> object:
    if isinstance(value, list):
        value = "; ".join(value)
    return plain(int(value) if isinstance(value, bool) else value)

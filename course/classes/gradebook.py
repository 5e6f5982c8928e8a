"""Points: which exercises count, the learners of a roster, and the files that Canvas, Moodle and Gradescope read."""

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from course.classes.handed_in import Note, Task
from course.classes.judging import SOLVED
from d2lps.messages import text, text_in
from d2lps.messages.raised import Brief
from d2lps.notebook.grading.course import ExerciseError, all_texts, every_text, number, texts_of

CANVAS = ("Student", "ID", "Section")  # what Canvas asks for; other columns of its export are between ID and Section
TIMES = ("time", "last modified (submission)")  # columns with the time of a hand-in; the second is Moodle's
FORMATS = ("%A, %d %B %Y, %I:%M %p", "%A, %B %d, %Y, %I:%M %p")  # of Moodle's grading worksheet in English
MOODLE_ID = "Identifier"  # a column of Moodle's grading worksheet, with "Participant 4711"
NOBODY = ("points possible", "student, test")  # rows of Canvas's export that are no learners, in small letters


class GradebookError(Brief, ValueError):
    """Points or a roster that cannot be read; ``reason`` is the sentence's key under ``grade`` in the messages."""

    def __init__(self, reason: str, **values: object):
        self.reason = reason
        super().__init__(text(f"grade.{reason}", **values))


@dataclass(frozen=True)
class Marking:
    """How answers become points.

    ``points`` has the points of the exercises that count, None for the required ones of the chapters that most have
    handed in; ``paper`` those of exercises on paper. ``only_calls`` is the part of the points of an answer that only
    calls a function of the package. With ``partial``, an answer has the part of the cases in which it is right.
    ``given`` maps (learner, exercise) to the points that a teacher has entered, and a comment.
    """

    points: dict[str, float] | None = None
    paper: dict[str, float] = field(default_factory=dict)
    only_calls: float = 1.0
    partial: bool = False
    given: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)

    def part(self, row: dict) -> float:
        """Return the part of its points that an answer has."""
        right = 1.0 if row["state"] == SOLVED else 0.0
        if self.partial and row["cases"] and not right:
            right = sum(row["cases"].values()) / len(row["cases"])
        return right * (self.only_calls if row["only_calls"] else 1)


def points(argument: str, paper: bool = False) -> dict[str, float]:
    """Return exercise → points for ``"own-gpu=2,overlap"``; the second has 1. Raises GradebookError, ExerciseError.

    Exercises on ``paper`` are those that the course does not have.
    """
    chosen = {}
    for part in filter(None, map(str.strip, argument.split(","))):
        id, _, number = map(str.strip, part.partition("="))
        if paper and id in every_text():
            raise GradebookError("not-on-paper", id=id)
        chosen[id if paper else texts_of(id).id] = value = _points(number or "1")
        if value is None:
            raise GradebookError("no-points", part=part)
    return chosen


def _points(number: str) -> float | None:
    try:
        return value if 0 <= (value := float(number)) < math.inf else None
    except ValueError:
        return None


def required(chapters: Iterable[str]) -> dict[str, float]:
    """Return exercise → 1 point for the required exercises of chapters, given as numbers. Raises ExerciseError."""
    wanted, there = {number(chapter.strip()) for chapter in chapters}, {}
    for id, texts in all_texts().items():
        there.setdefault(number(texts.folder.name), []).extend([] if texts.optional else [id])
    if unknown := sorted(wanted - there.keys()):
        raise ExerciseError("no-chapter", chapter=repr(unknown[0]), chapters=", ".join(there))
    return {id: 1.0 for chapter in there if chapter in wanted for id in there[chapter]}


@dataclass
class Roster:
    """The people of a course, as Canvas or Moodle exports them, or as a teacher writes them.

    A learner is the person of a row if the learner's number or name is in one cell of that row, or in the first two
    together. The order of words does not matter, nor do signs other than letters and digits, and what follows ``@``.
    """

    columns: list[str] = field(default_factory=lambda: [*CANVAS])
    rows: list[list[str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Roster":
        """Read a CSV file with a row of column names. Raises GradebookError."""
        try:
            lines = path.read_text("utf-8-sig").splitlines(keepends=True)
            rows = [*csv.reader(lines, csv.Sniffer().sniff(lines[0], ",;\t"), strict=True)]
        except (OSError, ValueError, IndexError, csv.Error) as error:
            raise GradebookError("no-roster", file=path, why=getattr(error, "strerror", None) or error) from None
        columns, *people = rows
        width = columns.index("Section") + 1 if "Section" in columns else len(columns)  # grades come after it
        people = [row + [""] * (width - len(row)) for row in people if any(row)]
        people = [row[:width] for row in people if row[0].strip().casefold() not in NOBODY]
        return cls(columns[:width], people)

    def of(self, learner: str, id: str) -> int | None:
        """Return the number of a learner's row; None if there is none, or more than one."""
        for wanted in filter(None, map(_forms, (id, learner))):
            found = [number for number, row in enumerate(self.rows) if wanted & _keys(row)]
            if len(found) == 1:
                return found[0]
        return None

    def absent(self, report) -> list[str]:
        """Return the names of those who are no learner of a report."""
        there = {self.of(learner, summary["id"]) for learner, summary in report.learners.items()}
        return [name for at, name in enumerate(self.names()) if at not in there]

    def names(self) -> list[str]:
        """Return the name of the person of each row."""
        parts = 2 if all("name" in column.casefold() for column in self.columns[:2]) else 1  # first and last name
        start = next((at for at, column in enumerate(self.columns) if "name" in column.casefold()), 0)
        return [" ".join(row[start : start + parts]) for row in self.rows]


class HandInTimes(Roster):
    """When each learner handed in: a CSV file with a column ``time``, or the grading worksheet of Moodle.

    Learners are found as in a :class:`Roster`. Those without a time handed nothing in.
    """

    @classmethod
    def read(cls, path: Path) -> "HandInTimes":
        """Read the file. Raises GradebookError, also for a time that it cannot read."""
        table = super().read(path)
        names = [column.strip().casefold() for column in table.columns]
        if not (found := [names.index(name) for name in TIMES if name in names]):
            raise GradebookError("no-time-column", file=path, columns=", ".join(table.columns))
        table.times = [_time(row[found[0]].strip(), path, row) for row in table.rows]
        return table

    def of_learner(self, learner: str, id: str) -> datetime | None:
        """Return when the learner handed in, or None if the file does not say."""
        number = self.of(learner, id)
        return None if number is None else self.times[number]


def _time(cell: str, path: Path, row: list[str]) -> datetime | None:
    if cell in ("", "-"):
        return None
    for read in (datetime.fromisoformat, *(lambda text, form=form: datetime.strptime(text, form) for form in FORMATS)):
        try:
            return read(cell)
        except ValueError:
            continue
    raise GradebookError("no-time", file=path, learner=row[0], time=cell)


def _keys(row: list[str]) -> set[str]:
    cells = [" ".join(row[:2]), *row, *(cell.removeprefix("Participant ").partition("@")[0] for cell in row)]
    return set().union(*map(_forms, cells))


def _forms(name: str) -> set[str]:
    """Return the letters and digits of a name, with its words in the order in which they are, and sorted."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", name).casefold())
    return {"".join(order) for order in (words, sorted(words)) if words}


OVERRIDES = ("learner", "exercise", "points", "comment")  # the columns of overrides.csv


def overrides(
    path: Path, tasks: list[Task], paper: Iterable[str] = (), roster: Roster | None = None
) -> tuple[dict[tuple[str, str], tuple[float, str]], list[Task]]:
    """Return (learner, exercise) → points and comment, from a CSV file, and tasks for people without work.

    A learner is given as in the report, by the number in Canvas or Moodle, or as in the roster. Raises GradebookError.
    """
    table, given, without = Roster.read(path), {}, []
    columns = [column.strip().casefold() for column in table.columns]
    if missing := [name for name in OVERRIDES[:3] if name not in columns]:
        raise GradebookError("override-columns", file=path, missing=", ".join(missing))
    names = {known: task.learner for task in tasks if task.learner for known in (task.id, task.learner) if known}
    known, roster = {*every_text(), *paper}, roster or Roster()
    people = {number: name for number, name in enumerate(roster.names())}
    people |= {number: task.learner for task in tasks if (number := roster.of(task.learner, task.id)) is not None}
    for row in table.rows:
        learner, id, points, said = (row[columns.index(name)].strip() if name in columns else "" for name in OVERRIDES)
        who = names.get(learner) or people.get(roster.of(learner, learner))
        if who is None:
            raise GradebookError("override-learner", file=path, learner=learner)
        if id not in known:
            raise GradebookError("override-exercise", file=path, id=id)
        if (value := _points(points)) is None:
            raise GradebookError("override-points", file=path, points=points, learner=learner, id=id)
        given[who, id] = value, said
        if who not in names.values():
            names[who] = who
            without.append(Task(who, path, note=Note("by-hand")))
    return given, without


def as_csv(report, roster: Roster | None = None) -> str:
    """Return a line for each learner: the roster's columns, the points for each exercise, their sum, and days late.

    An exercise is empty if its chapter was not handed in, and the days if they are unknown. Learners
    who are not in the roster follow those who are.
    """
    roster = roster or Roster()
    columns, rows, people = [*roster.columns], [*roster.rows], [[] for _ in roster.rows]
    unlisted = [one["id"] for learner, one in report.learners.items() if roster.of(learner, one["id"]) is None]
    if any(unlisted) and not {"ID", MOODLE_ID} & {*columns}:
        columns, rows = [*columns, MOODLE_ID], [[*row, ""] for row in rows]
    for learner, summary in report.learners.items():
        number = roster.of(learner, summary["id"])
        if number is None:
            id = summary["id"]
            name = next((column for column in columns if "name" in column.casefold()), columns[0])
            known = {name: learner, "ID": id, MOODLE_ID: f"Participant {id}" if id else ""}
            rows.append([known.get(column, "") for column in columns])
            people.append([])
        people[len(rows) - 1 if number is None else number].append(summary)
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\r\n")
    given = report.marking.given
    titles = [text_in(report.language, f"grade.column-{name}") for name in ("total", "late", "by-hand")]
    lines.writerow([*columns, *report.points, *titles[: 2 + bool(given)]])
    for row, theirs in zip(rows, people, strict=True):
        scores = {id: [one["scores"][id] for one in theirs if id in one["scores"]] for id in report.points}
        hands = [f"{id}: {said}".rstrip(": ") for one in theirs for id, (_, said) in one["given"].items()]
        best = {id: max(found) for id, found in scores.items() if found}
        late = max((one["late"] for one in theirs if one["late"] is not None), default="")
        cells = [*(written(best.get(id)) for id in report.points), written(sum(best.values()) if best else None), late]
        lines.writerow([*map(plain, row), *cells, *[plain("; ".join(hands))] * bool(given)])
    return "\ufeff" + file.getvalue()  # shows spreadsheets that this is UTF-8


def written(value: float | None) -> str:
    """Return points as a person writes them; nothing if there are none."""
    return "" if value is None else f"{value:.10g}"


def plain(value: object) -> object:
    """Return a value that a spreadsheet shows and does not compute: learners choose the names of their files."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return "" if value is None else value


def as_results(report) -> str:
    """Return the results of one learner as Gradescope reads them: results.json, with notes that only teachers see."""
    tests, notes, hidden = [], [], [text(f"grade.open.{name}") for name in report.missing]
    for learner, rows in report.best.items():
        summary = report.learners[learner]
        notes += [note["note"] for note in summary["notes"]]
        for id, points in report.points.items():
            row, score = rows.get(id), summary["scores"].get(id, 0)
            state = text(f"grade.state.{row['state'] if row else 'missing'}")
            title = every_text()[id].title if id in every_text() else id
            said = [row["sentence"], row["hint"], *row["notes"]] if row and score < points else []
            hidden += [f"{id}: {note}" for note in (row["look"] if row else [])]
            test = {"name": title, "number": id, "score": score, "max_score": points}
            tests.append(test | {"output": "\n".join(filter(None, [state, *said]))})
    if hidden:
        tests.append({"name": text("grade.look"), "visibility": "hidden", "output": "\n".join(hidden)})
    total = sum(test.get("score", 0) for test in tests)
    results = {"score": total, "output": "\n".join(notes), "tests": tests}
    return json.dumps(results, ensure_ascii=False, indent=1) + "\n"

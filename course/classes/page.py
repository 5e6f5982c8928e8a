"""The report as one HTML file, for narrow and wide screens, light and dark, and paper: ``page.html`` has its form."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from course.classes.gradebook import written
from d2lps.messages import html_language, text
from d2lps.notebook.grading.course import counted_variants, edition

MARKS = {"solved": "✓", "tried": "✗", "stopped": "■", "untouched": "○", "missing": "–"}
HAND = "✎"


def page(report, titles: dict[str, str]) -> str:
    """Return the page of a :class:`~course.classes.report.Report`; ``titles`` maps chapters to titles."""
    notebooks = sum(bool(book["notebook"]) for book in report.books)
    count = text("grade.count", learners=len(report.learners), notebooks=notebooks, day=report.day)
    values = {
        "count": f"{count} · {text('site.edition', edition=edition())}",
        "own_cases": counted_variants(),
        "looks": _looks(report),
        "numbers": {learner: number for number, learner in enumerate(report.learners, 1)},
        "ids": [*report.exercises, *report.marking.paper],
        "titles": titles,
    }
    return _html(report, text("grade.title", folder=report.folder), **values)


def feedback(report, learner: str) -> str:
    """Return the page for one learner, which tells nothing about others."""
    return _html(report, text("grade.feedback", learner=learner), learner=learner)


def _html(report, title: str, **values: object) -> str:
    return PAGE.render(report=report, title=title, language=html_language(), **values)


def _looks(report) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return sentences with places, each a learner and more words: equal answers come first, who is late comes last."""
    copies, noted, late = {}, {}, {}
    late_by = {text("grade.note.late", days=book["late"]) for book in report.books if book["late"]}
    for learner, rows in report.best.items():
        for note in report.learners[learner]["notes"]:
            where = learner, f", {note['notebook']}" if note["notebook"] else ""
            (late if note["note"] in late_by else noted).setdefault(note["note"], []).append(where)
        for id, row in rows.items():
            if row["copies"] and row["state"] != "missing":
                copies.setdefault((id, *sorted([learner, *row["copies"]])), []).append((learner, ""))
            alike = text("grade.note.alike", learners=", ".join(row["copies"]))
            for note in _odd(row):
                if note != alike:
                    noted.setdefault(note, []).append((learner, f", {id}"))
    remarks = [(remark, []) for remark in (*report.remarks, *(note["note"] for note in report.notes("")))]
    named = [(text("grade.copies", exercise=group[0]), places) for group, places in copies.items()]
    return [*remarks, *named, *noted.items(), *sorted(late.items())]


def _odd(row: dict | None) -> list[str]:
    """Return the notes on an answer; that of a missing answer repeats its mark."""
    return row["notes"] + row["look"] if row and row["state"] != "missing" else []


def _score(report, learner: str, id: str) -> list[str]:
    """Return the points for an exercise that counts, and what was entered by hand."""
    parts, entry = [], report.learners[learner]
    if id in report.points:
        score = written(entry["scores"].get(id)) or "–"
        parts.append(f"{text('grade.column.points')}: {score} / {written(report.points[id])}")
    if id in entry["given"]:
        parts.append(f"{HAND} {text('grade.by-hand', comment=entry['given'][id][1]).rstrip(' :：')}")
    return parts


def _cases(row: dict) -> list[str]:
    """Return for an answer that is not right a sentence with the cases in which it is, and those in which it is not."""
    if row["state"] == "solved" or not row["cases"]:
        return []
    cases = "; ".join(f"{MARKS['solved' if met else 'tried']} {label}" for label, met in row["cases"].items())
    return [text("grade.cases", met=sum(row["cases"].values()), count=len(row["cases"]), cases=cases)]


def _code(sentence: str) -> Markup:
    """Return a sentence as HTML, with its line breaks, and with text in backticks as code."""
    parts = str(escape(sentence)).split("`")
    code = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    return Markup(code.replace("\n", "<br>"))


_loader = FileSystemLoader(Path(__file__).parent)
_environment = Environment(loader=_loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
_environment.filters |= {"code": _code, "written": written}
_environment.globals |= {"marks": MARKS, "text": text, "score": _score, "cases": _cases, "odd": _odd}
PAGE = _environment.get_template("page.html")

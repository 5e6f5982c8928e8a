"""The report as one HTML file, for narrow and wide screens, light and dark, and paper."""

from html import escape

from course.classes.gradebook import written
from d2lps.messages import html_language, text
from d2lps.notebook.grading.course import counted_variants, edition

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#c9d1d9;--soft:#57606a;--good:#1a7f4b;--bad:#a6470a}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#3d444d;--soft:#9da7b3;--good:#4cc38a;
--bad:#f0a36b}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:1rem auto;padding:0 1rem;
max-width:72rem;overflow-wrap:anywhere}a{color:inherit}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0}
th,td{border:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top;overflow-wrap:normal}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.solved{color:var(--good)}.tried,.stopped{color:var(--bad)}
.untouched,.missing,small{color:var(--soft)}details{border:1px solid var(--line);border-radius:.4rem;margin:.5rem 0;
padding:.3rem .8rem}summary{cursor:pointer}dt{font-weight:600;margin-top:.6rem}dd{margin:0 0 0 1rem}
.note,.look{border-left:.3rem solid var(--bad);padding-left:.7rem}
@media print{:root{--ink:#000;--paper:#fff;--line:#999;--soft:#333;--good:#000;--bad:#000}body{font-size:10pt;margin:0}
details{break-inside:avoid;border:0}details::details-content{content-visibility:visible;block-size:auto}
.wide{overflow:visible}thead{display:table-header-group}}
"""
MARKS = {"solved": "✓", "tried": "✗", "stopped": "■", "untouched": "○", "missing": "–"}
LOOK, HAND = "⚠", "✎"


def page(report, titles: dict[str, str]) -> str:
    """Return the page of a :class:`~course.classes.report.Report`; ``titles`` maps chapters to titles."""
    title = escape(text("grade.title", folder=report.folder))
    learners = report.learners
    notebooks = sum(bool(book["notebook"]) for book in report.books)
    count = text("grade.count", learners=len(learners), notebooks=notebooks, day=report.day)
    count = f"{count} · {text('site.edition', edition=edition())}"
    parts = [f"<h1>{title}</h1><p>{escape(count)}</p>"]
    parts += [f"<p>{escape(own)}</p>" for own in filter(None, [counted_variants()])]
    parts += [f'<p class="note">{escape(text(f"grade.open.{name}"))}</p>' for name in report.missing]
    parts += [_look(report, learners)]
    parts += [f"<h2>{escape(text('grade.learners'))}</h2>", _learners(report, learners)]
    parts += [f"<h2>{escape(text('grade.exercises'))}</h2>", _exercises(report, titles)]
    parts += [f"<h2>{escape(text('grade.answers'))}</h2>"]
    parts += [  # a link to the inner element unfolds it
        f"<details><summary>{escape(learner)}: {_counts(entry)}</summary>"
        f'<div id="learner-{number}">{_answers(report, learner, "notes", "look")}</div></details>'
        for number, (learner, entry) in enumerate(learners.items(), 1)
    ]
    return _html(title, parts)


def feedback(report, learner: str) -> str:
    """Return the page for one learner, which tells nothing about others."""
    entry, title = report.learners[learner], escape(text("grade.feedback", learner=learner))
    counts = {"points": _sums(report, entry), "solved": _counts(entry)}
    said = "".join(f"{escape(text(f'grade.column.{name}'))}: {count}<br>" for name, count in counts.items())
    answers = _answers(report, learner, "notes")
    return _html(title, [f"<h1>{title}</h1><p>{said}{report.day}</p>", answers])


def _html(title: str, parts: list[str]) -> str:
    language = html_language()
    return (
        f'<!DOCTYPE html><html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _state(state: str) -> str:
    mark = f'<span aria-hidden="true">{MARKS[state]}</span>'
    return f'<span class="{state}">{mark} {escape(text(f"grade.state.{state}"))}</span>'


def _look(report, learners: dict[str, dict]) -> str:
    """Return a box with all notes: equal answers first, then each note with its learners, and who is late last."""
    links = {name: f'<a href="#learner-{number}">{escape(name)}</a>' for number, name in enumerate(learners, 1)}
    items = [escape(remark) for remark in (*report.remarks, *(note["note"] for note in report.notes("")))]
    copies, noted, late = {}, {}, {}
    late_by = {text("grade.note.late", days=book["late"]) for book in report.books if book["late"]}
    for learner, rows in report.best.items():
        for note in learners[learner]["notes"]:
            where = f"{links[learner]}{', ' if note['notebook'] else ''}{escape(note['notebook'])}"
            (late if note["note"] in late_by else noted).setdefault(note["note"], []).append(where)
        for id, row in rows.items():
            if row["copies"] and row["state"] != "missing":
                copies.setdefault((id, *sorted([learner, *row["copies"]])), []).append(links[learner])
            alike = text("grade.note.alike", learners=", ".join(row["copies"]))
            for note in _odd(row):
                if note != alike:
                    noted.setdefault(note, []).append(f"{links[learner]}, {escape(id)}")
    named = [(text("grade.copies", exercise=group[0]), places) for group, places in copies.items()]
    named += [*noted.items(), *sorted(late.items())]
    items += [f"{escape(sentence)} {'; '.join(places)}" for sentence, places in named]
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f'<div class="look"><b>{LOOK} {escape(text("grade.look"))}</b><ul>{listed}</ul></div>' if items else ""


def _odd(row: dict | None) -> list[str]:
    """Return the notes on an answer; that of a missing answer repeats its mark."""
    return row["notes"] + row["look"] if row and row["state"] != "missing" else []


def _marked(notes: list) -> str:
    label = escape(text("grade.look"), quote=True)
    return f' <span class="tried" role="img" aria-label="{label}">{LOOK}</span>' if notes else ""


def _learners(report, learners: dict[str, dict]) -> str:
    ids, best, exercises = [*report.exercises, *report.marking.paper], report.best, report.classwide
    heads = [escape(text(f"grade.column.{name}")) for name in ("learner", "points", "solved", "optional", "hints")]
    for id in ids:
        optional = f" <small>{escape(text('grade.optional'))}</small>" if exercises.get(id, {}).get("optional") else ""
        heads.append(f"{escape(id)}{optional}")
    head = "".join(f'<th scope="col">{heading}</th>' for heading in heads)
    rows = ""
    for number, (learner, entry) in enumerate(learners.items(), 1):
        cells = "".join(
            f"<td>{_short(row)}{_entered(entry, id)}{_marked(_odd(row))}</td>"
            for id, row in ((id, best[learner].get(id)) for id in ids)
        )
        counts = (_sums(report, entry), _of(entry), _of(entry["optional"]))
        counts = "".join(f'<td class="n">{count}</td>' for count in counts)
        rows += (
            f'<tr><th scope="row"><a href="#learner-{number}">{escape(learner)}</a>{_marked(entry["notes"])}</th>'
            f'{counts}<td class="n">{entry["hints"]}</td>{cells}</tr>'
        )
    look = f'<span class="tried">{LOOK} {escape(text("grade.look"))}</span>'
    legend = " &nbsp; ".join([*(_state(state) for state in MARKS), look])
    return (
        f'<p><small>{legend}</small></p><div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _sums(report, entry: dict) -> str:
    return " / ".join(written(sum(scores.values())) for scores in (entry["scores"], report.points))


def _counts(entry: dict) -> str:
    optional = f", {escape(text('grade.optional'))} {_of(entry['optional'])}" if entry["optional"]["exercises"] else ""
    return f"{_of(entry)}{optional}"


def _of(counts: dict) -> str:
    return f"{counts['solved']} / {counts['exercises']}"


def _heading(id: str, exercise: dict) -> str:
    """Return the title of an exercise and its id."""
    optional = f" · {escape(text('grade.optional'))}" if exercise["optional"] else ""
    return f"{escape(exercise['title'])} <small><code>{escape(id)}</code>{optional}</small>"


def _short(row: dict | None) -> str:
    if row is None:
        return ""
    label = escape(text(f"grade.state.{row['state']}"), quote=True)
    mark = f'<span class="{row["state"]}" role="img" aria-label="{label}">{MARKS[row["state"]]}</span>'
    named = row["mistake"] if row["state"] in ("tried", "stopped") else ""
    return f"{mark} <small>{escape(named)}</small>" if named else mark


def _entered(entry: dict, id: str) -> str:
    return f" {HAND} {written(entry['given'][id][0])}" if id in entry["given"] else ""


def _exercises(report, titles: dict[str, str]) -> str:
    parts, before = [], None
    for id, exercise in report.classwide.items():
        if exercise["chapter"] != before:
            before = exercise["chapter"]
            parts.append(f"<h3>{escape(before.partition('-')[0])} {escape(titles.get(before, ''))}</h3>")
        states = " &nbsp; ".join(f"{_state(state)} {count}" for state, count in exercise["states"].items() if count)
        mistakes = "".join(
            f"<li><code>{escape(name)}</code> × {mistake['count']}<br><small>{_code(mistake['hint'])}</small></li>"
            for name, mistake in exercise["mistakes"].items()
        )
        parts.append(f"<h4>{_heading(id, exercise)}</h4><p>{states}</p>" + (f"<ul>{mistakes}</ul>" if mistakes else ""))
    return "".join(parts)


def _answers(report, learner: str, *odd: str) -> str:
    """Return a learner's answers, with these kinds of notes."""
    items, exercises, entry = "", report.classwide, report.learners[learner]
    for id, row in report.best[learner].items():
        sentence = f"<br>{_code(row['sentence'])}" if row["sentence"] and row["state"] != "solved" else ""
        hint = f"<br><small>{_code(row['hint'])}</small>" if row["hint"] and row["state"] != "solved" else ""
        name = f" <code>{escape(row['mistake'])}</code>" if row["state"] in ("tried", "stopped") else ""
        hints = f" · {escape(text('grade.hints', count=row['hints']))}" if row["hints"] else ""
        notes = [note for kind in odd for note in row[kind]]
        notes = "".join(f"<br><small>{escape(note)}</small>" for note in [*_cases(row), *notes])
        where = f" <small>{escape(row['notebook'])}</small>"
        items += f"<dt>{_heading(id, exercises[id])}{where}</dt>"
        items += f"<dd>{_state(row['state'])}{name}{_score(report, entry, id)}{hints}{sentence}{hint}{notes}</dd>"
    for id in [*entry["given"], *(id for id in report.marking.paper if id not in entry["given"])]:
        if id not in report.best[learner]:
            items += f"<dt><code>{escape(id)}</code></dt><dd>{_score(report, entry, id).removeprefix(' · ')}</dd>"
    notes = "".join(
        f'<p class="note">{escape(note["notebook"] or learner)}: {escape(note["note"])}</p>' for note in entry["notes"]
    )
    return f"{notes}<dl>{items}</dl>"


def _score(report, entry: dict, id: str) -> str:
    """Return the points for an exercise that counts, and what was entered by hand."""
    parts = []
    if id in report.points:
        score = written(entry["scores"].get(id)) or "–"
        parts.append(f"{escape(text('grade.column.points'))}: {score} / {written(report.points[id])}")
    if id in entry["given"]:
        parts.append(f"{HAND} {escape(text('grade.by-hand', comment=entry['given'][id][1]).rstrip(' :：'))}")
    return "".join(f" · {part}" for part in parts)


def _cases(row: dict) -> list[str]:
    """Return for an answer that is not right a sentence with the cases in which it is, and those in which it is not."""
    if row["state"] == "solved" or not row["cases"]:
        return []
    cases = "; ".join(f"{MARKS['solved' if met else 'tried']} {label}" for label, met in row["cases"].items())
    return [text("grade.cases", met=sum(row["cases"].values()), count=len(row["cases"]), cases=cases)]


def _code(sentence: str) -> str:
    """Return a sentence as HTML, with its line breaks, and with text in backticks as code."""
    parts = escape(sentence, quote=False).split("`")
    code = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    return code.replace("\n", "<br>")

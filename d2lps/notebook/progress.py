"""The exercises that the reader has passed, chapter by chapter, as stored in the workspace."""

from html import escape

from d2lps.messages import html_language, said, text
from d2lps.notebook import kept
from d2lps.notebook.grading.course import CHAPTERS, all_texts, tables


class Progress:
    """The result of :func:`progress`; a notebook shows it as a small page.

    Attributes
    ----------
    chapters : dict of str to dict
        Chapter → exercise → the day on which it was first passed, or None.
    titles : dict of str to str
        Chapter → its number and title.
    """

    def __init__(self, chapters: dict[str, dict[str, str | None]], titles: dict[str, str]):
        self.chapters, self.titles = chapters, titles

    def __repr__(self) -> str:
        return "\n".join([self._sum(), *(self._line(chapter) for chapter in self.chapters)])

    def _sum(self) -> str:
        days = [day for exercises in self.chapters.values() for day in exercises.values()]
        return text("progress.all", passed=sum(day is not None for day in days), exercises=len(days))

    def _line(self, chapter: str) -> str:
        exercises = "   ".join(f"{_mark(day)} {id}" for id, day in self.chapters[chapter].items())
        return f"{self.titles[chapter]}{text('predict.colon')}{exercises}"

    def _repr_html_(self) -> str:
        rows = "".join(self._row(chapter) for chapter in self.chapters)
        style = "text-align:left;border-spacing:0 .3em;border-collapse:separate"
        return (
            f'<div class="d2lps-progress" lang="{html_language()}"><p><strong>{escape(self._sum())}</strong></p>'
            f'<table style="{style}"><tbody>{rows}</tbody></table></div>'
        )

    def _row(self, chapter: str) -> str:
        cell = "text-align:left;vertical-align:top;padding:0 1.2em 0 0"
        exercises = self.chapters[chapter]
        passed = sum(day is not None for day in exercises.values())
        days = "<br>".join(
            f'<span aria-hidden="true">{_mark(day)}</span> {escape(id)} '
            f"<small>{escape(text('progress.passed', day=day) if day else text('progress.open'))}</small>"
            for id, day in exercises.items()
        )
        return (
            f'<tr><th scope="row" style="{cell}">{escape(self.titles[chapter])}</th>'
            f'<td style="{cell};white-space:nowrap">{passed} / {len(exercises)}</td><td style="{cell}">{days}</td></tr>'
        )


def progress() -> Progress:
    """Return the exercises that are passed and open, for each chapter that has exercises.

    An exercise is passed once :func:`check_exercise` has accepted an answer, in any language; the workspace stores it.

    Returns
    -------
    Progress
        A notebook shows it; printed, it has a line for each chapter.

    Raises
    ------
    ExerciseError
        If there is no course beside the package.

    Examples
    --------
    >>> import d2lps
    >>> list(d2lps.progress().chapters["01-data-parallelism"])
    ['own-gpu', 'overlap', 'split']
    """
    exercises = all_texts()
    titles, chapters = {}, {}
    for number, entry in enumerate(tables(CHAPTERS / "toc.toml")["chapter"], 1):
        slug = entry["slug"]
        days = {id: _day(id) for id, texts in exercises.items() if texts.folder.name == slug}
        if days:  # an appendix has no exercises
            titles[slug] = f"{slug.partition('-')[0] or number} {said(entry['title'].__getitem__)}"
            chapters[slug] = days
    return Progress(chapters, titles)


def _day(id: str) -> str | None:
    """Return the day on which an exercise was first passed, or None; "?" if the entry has no day."""
    entry = kept.kept("passed", id)
    return None if entry is None else str(entry.get("day", "?"))


def _mark(day: str | None) -> str:
    return "✓" if day else "–"

"""Which exercises of the course are passed, chapter by chapter, as the workspace remembers it."""

from html import escape

from d2lps.messages import html_language, said, text
from d2lps.notebook import kept
from d2lps.notebook.grading.course import CHAPTERS, all_texts, tables


class Progress:
    """What :func:`progress` gives; a notebook shows it as a small page.

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
        each = "   ".join(f"{_mark(day)} {id}" for id, day in self.chapters[chapter].items())
        return f"{self.titles[chapter]}{text('predict.colon')}{each}"

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
        each = "<br>".join(
            f'<span aria-hidden="true">{_mark(day)}</span> {escape(id)} '
            f"<small>{escape(text('progress.passed', day=day) if day else text('progress.open'))}</small>"
            for id, day in exercises.items()
        )
        return (
            f'<tr><th scope="row" style="{cell}">{escape(self.titles[chapter])}</th>'
            f'<td style="{cell};white-space:nowrap">{passed} / {len(exercises)}</td><td style="{cell}">{each}</td></tr>'
        )


def progress() -> Progress:
    """The exercises that are passed, per chapter that has some.

    An exercise is passed when :func:`check_exercise` has said so, in any language; the workspace remembers it.

    Returns
    -------
    Progress
        A notebook shows it; printed, it is a line for each chapter.

    Raises
    ------
    ExerciseError
        Where there is no course beside the package.

    Examples
    --------
    >>> import d2lps
    >>> list(d2lps.progress().chapters["01-data-parallelism"])
    ['own-gpu', 'overlap', 'split']
    """
    every = all_texts()
    titles, chapters = {}, {}
    for number, entry in enumerate(tables(CHAPTERS / "toc.toml")["chapter"], 1):
        slug = entry["slug"]
        own = {id: _day(id) for id, texts in every.items() if texts.folder.name == slug}
        if own:  # an appendix has no exercises
            titles[slug] = f"{slug.partition('-')[0] or number} {said(entry['title'].__getitem__)}"
            chapters[slug] = own
    return Progress(chapters, titles)


def _day(id: str) -> str | None:
    """When an exercise was first passed; a file without a day still says that it was."""
    told = kept.kept("passed", id)
    return None if told is None else str(told.get("day", "?"))


def _mark(day: str | None) -> str:
    return "✓" if day else "–"

"""The course in a notebook: the map of its chapters, what the reader has run and passed, and the openings of chapters.

The workspace stores what was run and passed; each chapter on the map is a link to its notebook.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2lps.messages import html_language, language, said, text
from d2lps.notebook import kept
from d2lps.notebook.grading.course import (
    CHAPTERS,
    OWN,
    ExerciseError,
    all_texts,
    chapter_module,
    chosen,
    number,
    tables,
)
from d2lps.view.drawing.course_map import Mark, Stop, stops_of
from d2lps.view.drawing.course_map import course_map as drawn
from d2lps.view.player import Player, watch

if TYPE_CHECKING:
    from d2lps.notebook.explore import FirstRace


def course_map(here: str = "") -> "CourseMap":
    """Show all chapters of the course, each below those that it needs.

    Args:
        here: The number of the chapter in which the map stands; it gets a frame.

    Returns:
        A notebook shows it; each chapter links to its notebook.

    Raises:
        ExerciseError: If there is no course beside the package.

    Example:
        >>> print(course_map().chapters[1])
        01-data-parallelism
    """
    return CourseMap(here)


class CourseMap:
    """The result of :func:`course_map`.

    Attributes:
        chapters (list of str): The folders of the chapters, in the order of the book.
    """

    def __init__(self, here: str = ""):
        path = CHAPTERS / "toc.toml"
        if not path.is_file():
            raise ExerciseError("no-course", folder=CHAPTERS)
        entries: Any = tables(path)["chapter"]
        self._entries, self._here = chosen(entries), here
        self.chapters = [entry["slug"] for entry in self._entries]

    def __repr__(self) -> str:
        return "\n".join(map(line, self.stops()))

    def stops(self) -> list[Stop]:
        """Return the stops of the map, in the language in force."""

        def takes(minutes: int) -> str:
            return text("site.minutes", minutes=minutes)

        return stops_of(self._entries, {slug: self._address(slug) for slug in self.chapters}, language(), takes)

    def _address(self, slug: str) -> str:
        """Return the link to a chapter's notebook: beside this one in a workspace, else in the chapter's folder."""
        beside = f"{slug}.ipynb"
        return beside if Path(beside).is_file() else f"../{slug}/{language()}.ipynb"

    def picture(self, marks: Mapping[str, Mark] | None = None) -> str:
        """Return the picture and its links as HTML, in the language in force; ``marks`` has those of chapters."""
        return drawn(self.stops(), text("map.title"), self._here, marks)

    def _repr_html_(self) -> str:
        return f'<div lang="{html_language()}">{self.picture()}</div>'


def line(stop: Stop) -> str:
    """Return a chapter as a line of text: number, title, and the numbers of the chapters that it needs."""
    return f"{stop.number}  {stop.title}" + f"  ← {' '.join(stop.needs)}" * bool(stop.needs)


class Progress:
    """The result of :func:`progress`; a notebook shows the map of the course, and the exercises below it.

    Attributes:
        chapters: Chapter → exercise → the day on which it was first passed, or None; only chapters with exercises.
        titles: Chapter → its number and title; only chapters with exercises.
        ended: Chapter → the day on which its notebook was first run to the end; only chapters that were.
    """

    def __init__(
        self,
        chapters: dict[str, dict[str, str | None]],
        titles: dict[str, str],
        ended: dict[str, str] | None = None,
        here: str = "",
    ):
        self.chapters, self.titles, self.ended, self._here = chapters, titles, ended or {}, here

    def __repr__(self) -> str:
        own = [self.titles[OWN] + self._days(OWN)] if OWN in self.titles else []
        return "\n".join([self._sum(), *map(self._line, CourseMap().stops()), *own])

    def _sum(self) -> str:
        passed, exercises = _count([day for exercises in self.chapters.values() for day in exercises.values()])
        return text("progress.all", passed=passed, exercises=exercises)

    def _line(self, stop: Stop) -> str:
        return line(stop) + self._days(stop.slug)

    def _days(self, slug: str) -> str:
        marks = [text("map.ended")] * (slug in self.ended)
        marks += [f"{_mark(day)} {id}" for id, day in self.chapters.get(slug, {}).items()]
        return text("predict.colon") + "   ".join(marks) if marks else ""

    def _marks(self) -> dict[str, Mark]:
        marks = {}
        for slug in {*self.ended, *self.chapters} - {OWN}:
            passed, exercises = _count(self.chapters.get(slug, {}).values())
            words = [text("map.ended")] * (slug in self.ended)
            words += [text("map.solved", passed=passed, exercises=exercises)] * bool(passed)
            marks[slug] = Mark(" · ".join(words), slug in self.ended)
        return marks

    def _repr_html_(self) -> str:
        rows = "".join(map(self._row, self.chapters))
        style = "text-align:left;border-spacing:0 .3em;border-collapse:separate"
        return (
            f'<div class="d2lps-progress" lang="{html_language()}">{CourseMap(self._here).picture(self._marks())}'
            f'<details style="margin-top:1em"><summary><strong>{escape(self._sum())}</strong></summary>'
            f'<table style="{style}"><tbody>{rows}</tbody></table></details></div>'
        )

    def _row(self, chapter: str) -> str:
        cell = "text-align:left;vertical-align:top;padding:0 1.2em 0 0"
        exercises = self.chapters[chapter]
        passed, count = _count(exercises.values())
        days = "<br>".join(
            f'<span aria-hidden="true">{_mark(day)}</span> {escape(id)} '
            f"<small>{escape(text('progress.passed', day=day) if day else text('progress.open'))}</small>"
            for id, day in exercises.items()
        )
        return (
            f'<tr><th scope="row" style="{cell}">{escape(self.titles[chapter])}</th>'
            f'<td style="{cell};white-space:nowrap">{passed} / {count}</td><td style="{cell}">{days}</td></tr>'
        )


def progress(here: str = "") -> Progress:
    """Return what the reader has done: notebooks that were run to their end, and exercises that are passed.

    An exercise is passed once :func:`check_exercise` has accepted an answer, in any language. The workspace stores
    both, and nothing is sent anywhere.

    Args:
        here: The number of a chapter, as ``"02"``, in the last cell of its notebook: it is stored that this cell has
            been run, and the chapter gets a frame on the map.

    Returns:
        A notebook shows the map of the course; printed, it has a line for each chapter.

    Raises:
        ExerciseError: If there is no course beside the package, or no chapter of that number.

    Example:
        >>> import d2lps
        >>> list(d2lps.progress().chapters["01-data-parallelism"])
        ['own-gpu', 'overlap', 'split']
    """
    exercises, slugs = all_texts(), {stop.number: stop.slug for stop in CourseMap().stops()}
    if here and here not in slugs:
        raise ExerciseError("no-chapter", chapter=repr(here), chapters=", ".join(slugs.values()))
    if here and _day("ended", slugs[here]) is None:
        kept.keep("ended", slugs[here], {"day": date.today().isoformat()})
    entries: Any = tables(CHAPTERS / "toc.toml")["chapter"]
    titles = {entry["slug"]: f"{number(entry['slug'])} {said(entry['title'].__getitem__)}" for entry in chosen(entries)}
    titles |= {OWN: text("book.own")}
    chapters: dict[str, dict[str, str | None]] = {}
    for slug in titles:
        days = {id: _day("passed", id) for id, texts in exercises.items() if texts.folder.name == slug}
        chapters |= {slug: days} if days else {}  # an appendix has no exercises
    ended = {slug: day for slug in slugs.values() if (day := _day("ended", slug))}
    return Progress(chapters, {slug: titles[slug] for slug in chapters}, ended, here)


def _count(days: Iterable[str | None]) -> tuple[int, int]:
    """Return how many exercises are passed, and how many there are."""
    days = [*days]
    return sum(day is not None for day in days), len(days)


def _day(kind: str, name: str) -> str | None:
    """Return the day on which something was first done, or None; "?" if the entry has no day."""
    entry = kept.kept(kind, name)
    return None if entry is None else str(entry.get("day", "?"))


def _mark(day: str | None) -> str:
    return "✓" if day else "–"


def opening(chapter: str) -> "Player | FirstRace":
    """Play the runs that the reader of a chapter will make and explain.

    Args:
        chapter: Its number, such as ``"01"``, or the letter of an appendix, such as ``"a"``.

    Returns:
        A notebook shows it. A player has the name ``opening``, for links in the text. Chapter 00 has sliders.

    Raises:
        ExerciseError: If there is no course beside the package, or no such chapter in it.

    Example:
        >>> import d2lps
        >>> d2lps.opening("01")
        <Player: GPU 0 37.5 ms, CPU 50 ms, shards 9.375 ms>
    """
    folders = {path.parent.name.partition("-")[0]: path.parent for path in sorted(CHAPTERS.glob("*/lesson.py"))}
    if not folders:
        raise ExerciseError("no-course", folder=CHAPTERS)
    if chapter not in folders:
        raise ExerciseError("no-chapter", chapter=repr(chapter), chapters=", ".join(folders))
    if chapter == "00":
        from d2lps.notebook.explore import FirstRace  # needs widgets, which a browser without a kernel has not

        return FirstRace()
    traces = chapter_module(folders[chapter], "figures").opening()
    return watch(*traces.values(), names=list(traces), name="opening")

"""The map of the course in a notebook: a picture in which every chapter is a link to its notebook."""

from collections.abc import Mapping
from pathlib import Path

from d2lps.messages import html_language, language, text
from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, chosen, tables
from d2lps.view.drawing.course_map import Mark, Stop, stops_of
from d2lps.view.drawing.course_map import course_map as drawn


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
        self._entries, self._here = chosen(tables(path)["chapter"]), here
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

"""The opening of a chapter: the finished race that the chapter will explain."""

from typing import TYPE_CHECKING

from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, chapter_module
from d2lps.view.player import Player, watch

if TYPE_CHECKING:
    from d2lps.notebook.first_race import FirstRace


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
        from d2lps.notebook.first_race import FirstRace  # needs widgets, which a browser without a kernel has not

        return FirstRace()
    traces = chapter_module(folders[chapter], "figures").opening()
    return watch(*traces.values(), names=list(traces), name="opening")

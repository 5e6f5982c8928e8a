"""How a chapter opens: the finished race that it will explain, before a line of it has been read."""

from d2lps.notebook.grading.course import CHAPTERS, ExerciseError, chapter_module
from d2lps.view.player import Player, watch


def opening(chapter: str) -> Player:
    """Play what a chapter is about: runs that its reader will make, and explain, later on.

    Parameters
    ----------
    chapter : str
        Its number, as ``"01"``, or the letter of an appendix, as ``"a"``.

    Returns
    -------
    Player
        A notebook shows it. It is called ``opening``, for links in the text.

    Raises
    ------
    ExerciseError
        Where there is no course beside the package, or no such chapter in it.

    Examples
    --------
    >>> import d2lps
    >>> d2lps.opening("01")
    <Player: GPU 0 140 ms, CPU 160 ms, shards 17.5 ms>
    """
    folders = {path.parent.name.partition("-")[0]: path.parent for path in sorted(CHAPTERS.glob("*/lesson.py"))}
    if not folders:
        raise ExerciseError("no-course", folder=CHAPTERS)
    if chapter not in folders:
        raise ExerciseError("no-chapter", chapter=repr(chapter), chapters=", ".join(folders))
    traces = chapter_module(folders[chapter], "figures").opening()
    return watch(*traces.values(), names=list(traces), name="opening")

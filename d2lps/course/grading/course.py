"""What the chapters say about their exercises: hints, mistakes, stubs and solutions, by the exercise's id.

They are found in ``chapters/`` beside the package, where an installation from the repository has them.
"""

import importlib.util
import tomllib
from collections.abc import Callable
from pathlib import Path

import d2lps
from d2lps.messages import language, sentences, text

CHAPTERS = Path(d2lps.__file__).resolve().parents[1] / "chapters"


class ExerciseError(ValueError):
    """An exercise that is not there, or a course that is not. ``reason`` is the sentence's key under ``checks``."""

    def __init__(self, reason: str, **values: object):
        self.reason = reason
        super().__init__(text(f"checks.{reason}", **values))


class Texts:
    """The texts of one exercise, in the language in force when they are asked for."""

    def __init__(self, folder: Path, table: dict):
        self.folder, self._table = folder, table

    @property
    def stub(self) -> str:
        """The code from which the learner starts."""
        return self._table["stub"].strip("\n")

    @property
    def ladder(self) -> tuple[str, ...]:
        """The general hints, from vague to nearly the answer."""
        return tuple(rung[language()] for rung in self._table["hints"])

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes for which this exercise has hints of its own."""
        return tuple(self._table["mistakes"])

    def hint(self, mistake: str) -> str:
        """The hint for a mistake: this exercise's own, or the one for all exercises."""
        own = self._table["mistakes"].get(mistake)
        return own[language()] if own else sentences(language())[f"checks.mistake.{mistake}"]

    def passed(self, **values: str) -> str:
        """What is said of a right answer: what was measured against the bound, and a thought that leads further."""
        return self._table["passed"][language()].strip("\n").format(**values)

    def solutions(self) -> dict[str, object]:
        """The names in the chapter's solutions.py."""
        path = self.folder / "solutions.py"
        spec = importlib.util.spec_from_file_location(f"solutions_of_{self.folder.name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return vars(module)

    def solution(self, id: str) -> Callable:
        """The function that solves the exercise ``id``."""
        return self.solutions()[id.replace("-", "_")]


def exercises() -> dict[str, Texts]:
    """Id → texts of all exercises of the course. Raises ExerciseError where there is no course."""
    files = sorted(CHAPTERS.glob("*/exercises.toml"))
    if not files:
        raise ExerciseError("no-course", folder=CHAPTERS)
    return {
        id: Texts(file.parent, table) for file in files for id, table in tomllib.loads(file.read_text("utf-8")).items()
    }


def exercise(id: str) -> Texts:
    """The texts of one exercise. Raises ExerciseError."""
    found = exercises()
    if id not in found:
        raise ExerciseError("unknown", id=repr(id), ids=", ".join(found))
    return found[id]

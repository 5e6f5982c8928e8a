"""The chapters' material on exercises: hints, mistakes, stubs, solutions and judges, by the exercise's id.

It is read from ``chapters/`` beside the package, which exists if the package is installed from the repository.

Two environment variables change it: ``D2LPS_TOC`` names a file with the ``chapters`` and ``exercises`` of one's own
course, and ``D2LPS_VARIANTS`` a folder with further cases for its judges, one file per chapter.
"""

import importlib
import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import d2lps
from d2lps.messages import LANGUAGES, said, sentences, text
from d2lps.messages.raised import Brief
from d2lps.notebook.grading import own
from d2lps.notebook.grading.exercise import Exercise, carry

TITLE = re.compile(r"^\d+\. \*\*(.+?)\*\* ?[(（](.+?)[)）]", re.M)  # the title of an exercise, and its time
OWN = "own"  # the chapter of a teacher's own exercises; a choice names their folder with this word
CARRIED = "carried.json"  # in the chapters of a handout: the values of the sealed functions for each case
CHAPTERS = Path(d2lps.__file__).resolve().parents[1] / "chapters"


class ExerciseError(Brief, ValueError):
    """An exercise, its judge, or the course is missing.

    Attributes:
        reason: The sentence's key under ``checks`` in the messages: ``"unknown"``, ``"no-course"``, ``"no-chapter"``,
            ``"no-grader"``, ``"broken-grader"``, ``"ungraded"``, ``"no-solution"``, ``"no-choice"`` or
            ``"no-variants"``.
    """

    def __init__(self, reason: str, **values: object):
        self.reason = reason
        super().__init__(text(f"checks.{reason}", **values))


class Texts:
    """The texts of one exercise, in the language that is set when they are read, and the code beside them."""

    def __init__(self, id: str, folder: Path, table: dict):
        self.id, self.folder, self.table = id, folder, table

    @property
    def title(self) -> str:
        """The title in the chapter: the bold words before its cell in the text, without the signs of formulas."""
        return said(self._title).replace("$", "")

    def _title(self, language: str) -> str:
        written = (self.folder / f"{language}.md").read_text("utf-8")
        before, _, _ = written.partition(f"[[exercise-{self.id}]]")
        return (TITLE.findall(before) or [(self.id, "")])[-1][0]

    @property
    def stub(self) -> str:
        """The code from which the learner starts: the exercise's cell in lesson.py."""
        lesson = (self.folder / "lesson.py").read_text("utf-8")
        return re.search(rf"(?ms)^# %% exercise-{self.id}\n(.*?)(?=^# %% |\Z)", lesson)[1].strip()

    @property
    def optional(self) -> bool:
        """True if the exercise may be skipped."""
        return self.table.get("optional", False)

    @property
    def ladder(self) -> tuple[str, ...]:
        """The general hints, from vague to nearly the answer."""
        return tuple(self._said("hints", rung) for rung in self.table.get("hints", ()))

    def hint(self, mistake: str) -> str:
        """Return the hint for a mistake: this exercise's own, or the one for all exercises."""
        hint = self.table.get("mistakes", {}).get(mistake)
        general = {language: sentences(language).get(f"checks.mistake.{mistake}") for language in LANGUAGES}
        return self._said(f"mistakes.{mistake}", hint or {code: each for code, each in general.items() if each})

    def keeps(self, mistake: str) -> bool:
        """Return True if the mistake keeps its hint after cases that were right; otherwise it becomes not-general."""
        own = self.table.get("mistakes", {}).get(mistake)
        return not own.get("first") if own else mistake == "inexact"

    def passed(self, **values: str) -> str:
        """Return the sentence for a right answer: the measurement against the bound, and a further thought."""
        return self._said(
            "passed", self.table.get("passed", {}), lambda sentence: sentence.strip("\n").format(**values)
        )

    def _said(self, name: str, texts: dict[str, str], filled: Callable[[str], str] = str) -> str:
        """Return a text of exercises.toml; raise ExerciseError if a language or a placeholder's value is missing."""
        try:
            return said(lambda code: filled(texts[code]))
        except (LookupError, ValueError) as error:
            file, missing = self.folder / "exercises.toml", str(error)
            raise ExerciseError("broken-text", file=file, name=f"{self.id}.{name}", missing=missing) from None

    def exercise(self) -> Exercise:
        """Return the exercise from the chapter's grader.py, or raise ExerciseError with the name of the file."""
        file = self.folder / "grader.py"
        if not file.is_file():
            raise ExerciseError("no-grader", id=repr(self.id), file=file)
        try:
            exercises = dict(chapter_module(self.folder, "grader").EXERCISES)
        except Exception as error:
            sentence = f"{type(error).__name__}: {error}"
            raise ExerciseError("broken-grader", id=repr(self.id), file=file, error=sentence) from error
        if self.id not in exercises:
            raise ExerciseError("ungraded", id=repr(self.id), file=file)
        exercise, more = exercises[self.id], variants().get(self.id)
        if (carried := self.folder / CARRIED).is_file():
            carry(exercise.cases, json.loads(carried.read_text("utf-8")).get(self.id, [{}] * len(exercise.cases)))
        return replace(exercise, cases=(*exercise.cases, *more)) if more else exercise

    def solutions(self) -> dict[str, object]:
        """Load the chapter's solutions.py anew, since wrong answers may keep state between calls; return its names.

        Raises ExerciseError in a handout, which has none.
        """
        file = self.folder / "solutions.py"
        if not file.is_file():
            raise ExerciseError("no-solution", id=repr(self.id))
        return loaded(f"solutions_of_{self.folder.name}", file)

    def solution(self) -> Callable:
        """Return the function that solves the exercise."""
        return self.solutions()[self.id.replace("-", "_")]


class _Given(InspectLoader):
    """Loads a module from a text."""

    def __init__(self, code: str):
        self.code = code

    def get_source(self, name: str) -> str:
        return self.code


class OwnTexts(Texts):
    """The texts of an exercise of a teacher's own, whose chapter is called ``own``."""

    def __init__(self, file: Path, source: dict):
        super().__init__(file.stem, CHAPTERS / OWN, {})
        self.file, self.source = file, source
        self.exercise()  # refuses a table with a fault
        self.table = own.as_chapters_have_it(source)

    def _title(self, language: str) -> str:
        return own.everywhere(self.source["title"])[language]

    @property
    def stub(self) -> str:
        return f'{self.source["stub"].strip()}\n\nd2lps.check_exercise("{self.id}", {self.id.replace("-", "_")})'

    def text(self, language: str) -> str:
        """Return the exercise as a notebook shows it above its cell."""
        title, about = self._title(language), own.everywhere(self.source["text"])[language].strip()
        return f"**{title}** ({self.source['minutes']} min)\n\n{about}"

    def exercise(self) -> Exercise:
        try:
            return own.exercise(self.id, self.source)
        except own.OwnError as error:
            raise ExerciseError("broken-own", file=self.file, error=error) from None

    def solutions(self) -> dict[str, object]:
        if "solution" not in self.source:
            raise ExerciseError("no-solution", id=repr(self.id))
        loader = _Given(self.source["solution"])
        module = importlib.util.module_from_spec(ModuleSpec(f"solution_of_{self.id}", loader))
        loader.exec_module(module)
        return vars(module)


def own_texts() -> list[OwnTexts]:
    """Return the exercises of a teacher's own that are chosen; raise ExerciseError as :func:`all_texts`."""
    return [texts for texts in all_texts().values() if isinstance(texts, OwnTexts)]


def _own_texts() -> dict[str, OwnTexts]:
    """Return id → texts of the exercises of a teacher's own, from ``chapters/own`` or the folder that the choice names.

    Raises ExerciseError for the first file that is none.
    """
    choice, found = os.environ.get("D2LPS_TOC", ""), {}
    named = _choice().get(OWN)
    folder = Path(choice).absolute().parent / named if named else CHAPTERS / OWN
    for path in sorted(folder.glob("*.toml")):
        try:
            found[path.stem] = OwnTexts(path, tables(path))
        except tomllib.TOMLDecodeError as error:
            raise ExerciseError("broken-own", file=path, error=error) from None
    if named and not found:
        raise ExerciseError("no-choice", file=choice, error=folder / "*.toml")
    return found


def loaded(name: str, file: Path) -> dict[str, object]:
    """Run a file as a module of its own, and return its names."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@lru_cache
def _cases(file: Path, changed: int) -> dict[str, Sequence]:
    """Return exercise → further cases, from a file of a teacher, which may import the chapter's own grader."""
    return dict(loaded(f"variants_of_{file.stem}", file)["CASES"])


def variants() -> dict[str, Sequence]:
    """Return exercise → the further cases of a teacher's own, from the files in the folder ``D2LPS_VARIANTS``.

    Raises ExerciseError if there are none, a file cannot be read, or a chapter or exercise does not exist.
    """
    if not (folder := os.environ.get("D2LPS_VARIANTS")):
        return {}
    if not (files := sorted(Path(folder).glob("*.py"))):
        raise ExerciseError("no-variants", folder=folder)
    of_chapters: dict[str, list[str]] = {}
    for id, texts in every_text().items():
        of_chapters.setdefault(texts.folder.name, []).append(id)
    found: dict[str, Sequence] = {}
    for file in files:
        if file.stem not in of_chapters:
            raise ExerciseError("variants-chapter", file=file, files=", ".join(f"{slug}.py" for slug in of_chapters))
        try:
            chapter_module(CHAPTERS / file.stem, "grader")  # whose functions make the cases
            cases = _cases(file, file.stat().st_mtime_ns)
        except Exception as error:
            raise ExerciseError("broken-variants", file=file, error=f"{type(error).__name__}: {error}") from error
        for id in cases:
            if id not in of_chapters[file.stem]:
                ids = ", ".join(of_chapters[file.stem])
                raise ExerciseError("variants-exercise", file=file, id=repr(id), ids=ids)
        found |= cases
    return found


def counted_variants() -> str:
    """Return how many cases of a teacher's own each exercise has, as a sentence; an empty one without a folder."""
    if not (cases := variants()):
        return ""
    return text("checks.variants", cases=", ".join(f"{id}: {len(each)}" for id, each in cases.items()))


def every_text() -> dict[str, Texts]:
    """Return id → texts of all exercises beside the package; raise ExerciseError if there is no course."""
    files = sorted(CHAPTERS.glob("*/exercises.toml"))
    if not files:
        raise ExerciseError("no-course", folder=CHAPTERS)
    return {id: Texts(id, file.parent, table) for file in files for id, table in tables(file).items()} | _own_texts()


def all_texts() -> dict[str, Texts]:
    """Return id → texts of the exercises of the course, or of those that the reader's teacher has chosen.

    Raises ExerciseError if there is no course, or the choice names something that it does not have.
    """
    every, (numbers, ids) = every_text(), choice()
    for id in ids or ():
        if id not in every:
            raise ExerciseError("unknown", id=repr(id), ids=", ".join(every))
    if numbers is not None:
        every = {id: texts for id, texts in every.items() if number(texts.folder.name) in (*numbers, OWN)}
    return {id: texts for id, texts in every.items() if ids is None or id in ids or isinstance(texts, OwnTexts)}


def choice() -> tuple[list[str] | None, list[str] | None]:
    """Return the numbers of the chapters and the ids of the exercises in the file ``D2LPS_TOC``; None means all."""
    table = _choice()
    chapters = table.get("chapters")
    return (None if chapters is None else [*map(number, chapters)]), table.get("exercises")


def _choice() -> dict[str, object]:
    """Return the table in the file ``D2LPS_TOC``; an empty one without the file. Raises ExerciseError."""
    if not (path := os.environ.get("D2LPS_TOC")):
        return {}
    try:
        table = tables(Path(path))
        kinds = {"chapters": _texts, "exercises": _texts, OWN: lambda value: isinstance(value, str)}
        wrong = [name for name, value in table.items() if name not in kinds or not kinds[name](value)]
    except (OSError, ValueError) as error:
        wrong = [getattr(error, "strerror", None) or str(error)]
    if wrong:
        raise ExerciseError("no-choice", file=path, error=", ".join(wrong))
    return table


def chosen(entries: Sequence[dict]) -> list[dict]:
    """Return the entries of ``toc.toml`` that are chosen, in the order of the choice; raise ExerciseError if unknown.

    >>> chosen([{"slug": "01-first"}, {"slug": "02-second"}])
    [{'slug': '01-first'}, {'slug': '02-second'}]
    """
    by_number, (numbers, _) = {number(entry["slug"]): entry for entry in entries}, choice()
    for each in numbers or ():
        if each not in by_number:
            raise ExerciseError("no-chapter", chapter=repr(each), chapters=", ".join(by_number))
    return [*entries] if numbers is None else [by_number[each] for each in dict.fromkeys(numbers)]


def edition() -> str:
    """Return the edition of the course: its version, and the name of the choice if there is one."""
    return " · ".join(filter(None, [d2lps.__version__, Path(os.environ.get("D2LPS_TOC", "")).stem]))


def number(slug: str) -> str:
    """Return the number of a chapter, given as ``"01"`` or ``"01-data-parallelism"``."""
    return slug.partition("-")[0]


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def texts_of(id: str) -> Texts:
    """Return the texts of one exercise; raise ExerciseError if there is no such exercise."""
    exercises = all_texts()
    if id not in exercises:
        raise ExerciseError("unknown", id=repr(id), ids=", ".join(exercises))
    return exercises[id]


def tables(file: Path) -> dict[str, dict]:
    """Return the tables of a chapter's TOML file, read again when it has changed."""
    return _tables(file, file.stat().st_mtime_ns)


@lru_cache
def _tables(file: Path, changed: int) -> dict[str, dict]:
    return tomllib.loads(file.read_text("utf-8"))


def chapter_module(folder: Path, name: str) -> ModuleType:
    """Import ``name``.py of a chapter, once, as a module of a package made of the folder: ``chapter_02_ring.grader``.

    Thus modules of a chapter can import one another (``from .network import Network``), and tracebacks and pickles name
    them, although Python could not import a package with the folder's name.
    """
    package = "chapter_" + re.sub(r"\W", "_", folder.name)
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules.setdefault(package, importlib.util.module_from_spec(spec))
    return importlib.import_module(f"{package}.{name}")

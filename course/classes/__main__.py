"""Grade a class of notebooks, and write a report for its teacher.

Each subfolder of FOLDER is a learner, and so is each notebook or zip directly in FOLDER; files that Canvas, Moodle or
Brightspace has named are sorted by learner, and FOLDER may be the zip of the whole class. Nothing in FOLDER is changed.
The report goes into the folder ``report`` beside FOLDER, or into that of ``--out``: class.html to read, class.csv for a
spreadsheet, class.json for programs, gradebook.csv for Canvas or Moodle, in ``learners`` a page for each learner, and
all pages in feedback.zip, with the names of the download.

``python -m course.classes gradescope`` grades the notebooks of one learner in a container of Gradescope, and writes
results.json.

The exit status is 0 if all work was graded; 1 if a notebook could not be read or graded to the end, or a learner has
handed in other files only (the report names them); and 2 if nothing could be graded, because FOLDER does not exist or
has no notebook, the course is not beside the package, or the report cannot be written.
"""

import argparse
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from d2lps.messages import LANGUAGES, allow_any_letter, language, only, speak, text

PLACES = ("/autograder/submission", "--out", "/autograder/results")  # of Gradescope


def main(arguments: list[str]) -> int:
    """Grade the notebooks of a folder and return the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads of torch cannot be forked
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    allow_any_letter()
    alone = arguments[:1] == ["gradescope"]
    options = _parser().parse_args([*PLACES, *arguments[1:]] if alone else arguments)
    speak(options.language or language())
    from course.book.library import write
    from course.classes import gradebook, handed_in, report, running
    from course.classes.judging import Limits
    from d2lps.notebook.grading.course import ExerciseError, counted_variants, variants

    out = options.out or options.folder.absolute().parent / "report"
    try:
        variants()  # refused before anything is graded
        points = None if options.chapters is None else gradebook.required(options.chapters.split(","))
        paper = gradebook.points(options.paper, paper=True)
        if options.exercises is not None:
            points = (points or {}) | gradebook.points(options.exercises)
        roster = options.roster and gradebook.Roster.read(options.roster)
        times = options.handed_in and gradebook.HandInTimes.read(options.handed_in)
        with tempfile.TemporaryDirectory() as unpacked:
            sorter = handed_in.Sorter(Path(unpacked), options.names, options.due, times and times.of_learner)
            tasks = handed_in.find(options.folder, out, sorter, alone)
            if not any(task.name for task in tasks) and not alone:
                return _refused(text("grade.empty", folder=options.folder))
            overrides, given = options.overrides or out / "overrides.csv", {}
            if options.overrides or overrides.is_file():
                given, without = gradebook.overrides(overrides, tasks, paper, roster)
                tasks += without
            marking = gradebook.Marking(points, paper, options.only_calls, options.partial, given)
            out.mkdir(parents=True, exist_ok=True)
            limits = Limits(options.seconds, options.memory << 20)
            progress = _progress(sum(bool(task.name) for task in tasks))
            results = running.run(tasks, options.folder, out, language(), limits, options.jobs, progress)
        folder = handed_in.printable(options.folder.resolve().name)
        spoken = next((result["book"]["language"] for result in results if result["book"]["language"]), language())
        own = (options.language or spoken) if alone else language()
        class_report = only(own, lambda: report.report(own, folder, results, marking, roster))
        if alone:
            files = {"results.json": only(own, lambda: gradebook.as_results(class_report))}
        else:
            files = {"class.csv": class_report.as_csv(), "class.json": class_report.as_json()}
            files |= {"class.html": class_report.as_page(), "gradebook.csv": gradebook.as_csv(class_report, roster)}
            pages = report.feedbacks(language(), folder, results, marking)
            files |= pages | {"feedback.zip": report.packed(results, pages.values())}
        write({out / name: content for name, content in files.items()})
    except (ExerciseError, gradebook.GradebookError) as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(text("grade.no-folder", folder=error.filename or options.folder, why=error.strerror or error))
    print(*filter(None, [counted_variants()]), report.summary(class_report), sep="\n")
    shown = [out / name for name in files if "/" not in name] + [out / "learners"] * (not alone)
    print(handed_in.printable(text("grade.written", files=", ".join(map(str, shown)))))
    return int(not all(book["graded"] for book in class_report.books))


def _parser() -> argparse.ArgumentParser:
    first, _, more = __doc__.replace("``", "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m course.classes", description=first, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the class")
    parser.add_argument("--out", type=Path, help="the folder of the report")
    parser.add_argument("--language", choices=LANGUAGES, help="the language of the report")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="notebooks graded at a time")
    parser.add_argument("--seconds", type=_positive, default=10, help="processor seconds for an answer (default: 10)")
    parser.add_argument("--memory", type=_positive, default=1024, help="MiB for an answer (default: 1024)")
    parser.add_argument("--chapters", metavar="01,own", help="those that count (default: what most have handed in)")
    parser.add_argument("--exercises", metavar="A=2,B=3", help="points (default: 1 for each required exercise)")
    parser.add_argument("--only-calls", type=_part, default=1.0, metavar="0.5", help="what calls of the package count")
    parser.add_argument(
        "--partial", action="store_true", help="count the part of the cases in which an answer is right"
    )
    parser.add_argument("--paper", default="", metavar="A=4", help="exercises on paper, and their points")
    parser.add_argument("--overrides", type=Path, metavar="CSV", help="learner,exercise,points,comment (in --out)")
    parser.add_argument("--names", type=_names, metavar="REGEX", help="finds (?P<name>…) and (?P<id>…) in a path")
    parser.add_argument("--roster", type=Path, metavar="CSV", help="the learners of the gradebook, with its columns")
    parser.add_argument("--due", type=datetime.fromisoformat, metavar="TIME", help="such as 2026-12-01T23:59")
    parser.add_argument("--handed-in", type=Path, metavar="CSV", help="learner,time, or Moodle's grading worksheet")
    return parser


def _names(argument: str) -> re.Pattern:
    try:
        pattern = re.compile(argument, re.DOTALL)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{argument!r} is no regular expression: {error}") from None
    if not {"name", "id"} & pattern.groupindex.keys():
        raise argparse.ArgumentTypeError(f"{argument!r} has neither (?P<name>…) nor (?P<id>…)")
    return pattern


def _part(argument: str) -> float:
    try:
        part = float(argument)
    except ValueError:
        part = -1
    if not 0 <= part <= 1:
        raise argparse.ArgumentTypeError(f"{argument!r} is not a number from 0 to 1")
    return part


def _positive(argument: str) -> int:
    if not argument.isdecimal() or int(argument) < 1:
        raise argparse.ArgumentTypeError(f"{argument!r} is not a whole number above 0")
    return int(argument)


def _progress(count: int) -> Callable[[dict], None]:
    """Return a function that prints which of the notebooks was graded."""
    done = itertools.count(1)

    def show(result: dict) -> None:
        if notebook := result["book"]["notebook"]:
            print(
                text("grade.progress", number=next(done), count=count, notebook=notebook), file=sys.stderr, flush=True
            )

    return show


def _refused(sentence: str) -> int:
    from course.classes.handed_in import printable

    print(printable(sentence), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

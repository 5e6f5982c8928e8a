"""Grade a class of notebooks, and write a report for its teacher.

Each subfolder of FOLDER is a learner, and so is each notebook directly in FOLDER. Nothing in FOLDER is changed. The
report goes into the folder ``report`` beside FOLDER, or into that of ``--out``: class.html to read, class.csv for a
spreadsheet, class.json for programs.

The exit status is 0 if every notebook was graded; 1 if a notebook could not be read or graded to the end, or a learner
has none (the report names it); and 2 if nothing could be graded, because FOLDER does not exist or has no notebook, the
course is not beside the package, or the report cannot be written.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from d2lps.messages import LANGUAGES, allow_any_letter, language, speak, text


def main(arguments: list[str]) -> int:
    """Grade the notebooks of a folder and return the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads of torch cannot be forked
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    allow_any_letter()
    options = _parser().parse_args(arguments)
    speak(options.language or language())
    from course.classes import notebooks, report, running
    from course.classes.judging import Limits
    from d2lps.notebook.grading.course import ExerciseError

    out = options.out or options.folder.absolute().parent / "report"
    try:
        tasks = notebooks.find(options.folder, out)
        if all(path.is_dir() for _, path, _ in tasks):
            return _refused(text("grade.empty", folder=options.folder))
        out.mkdir(parents=True, exist_ok=True)
        limits = Limits(options.seconds, options.memory << 20)
        count = sum(not path.is_dir() for _, path, _ in tasks)
        results = running.run(tasks, options.folder, out, language(), limits, options.jobs, _progress(count))
        class_report = report.report(language(), notebooks.printable(options.folder.resolve().name), results)
        files = class_report.write(out)
    except ExerciseError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(text("grade.no-folder", folder=error.filename or options.folder, why=error.strerror or error))
    print(report.summary(class_report))
    print(notebooks.printable(text("grade.written", files=", ".join(map(str, files)))))
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
    return parser


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
    from course.classes.notebooks import printable

    print(printable(sentence), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

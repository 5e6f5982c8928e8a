"""Grade a class of notebooks, and write a report for its teacher.

Below FOLDER each subfolder is a learner, and so is each notebook that lies beside them. Nothing in it is changed. The
report goes into the folder ``report`` beside FOLDER, or where ``--out`` says: class.html to read, class.csv for a
spreadsheet, class.json for programs.

The exit status is 0 when every notebook was graded, 1 when something could not be read or judged to its end or a
learner has none (the report says what), 2 when nothing could be graded: no such folder, no notebook in it, no course
beside the package, no place for the report.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from d2lps.messages import LANGUAGES, language, speak, text


def main(arguments: list[str]) -> int:
    """Grade what the arguments name; the exit status."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process that has threads of torch's is no good to be forked
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
        results = running.run(tasks, options.folder, out, language(), limits, options.jobs, _teller(count))
        class_report = report.report(language(), options.folder.resolve().name, results)
        files = class_report.write(out)
    except ExerciseError as error:
        return _refused(str(error))
    except OSError as error:
        return _refused(text("grade.no-folder", folder=error.filename or options.folder, why=error.strerror or error))
    print(report.summary(class_report))
    print(text("grade.written", files=", ".join(map(str, files))))
    return int(not all(book["graded"] for book in class_report.books))


def _parser() -> argparse.ArgumentParser:
    first, _, more = __doc__.replace("``", "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m course.classes", description=first, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, help="a folder for the report")
    parser.add_argument("--language", choices=LANGUAGES, help="of the report")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="notebooks at a time")
    parser.add_argument("--seconds", type=_positive, default=10, help="of a processor that an answer may take")
    parser.add_argument("--memory", type=_positive, default=1024, help="MiB that an answer may take")
    return parser


def _positive(argument: str) -> int:
    number = int(argument)
    if number < 1:
        raise ValueError(argument)
    return number


def _teller(count: int) -> Callable[[dict], None]:
    """What says of each notebook that it is graded, and how many there are."""
    done = itertools.count(1)

    def tell(result: dict) -> None:
        if notebook := result["book"]["notebook"]:
            print(
                text("grade.progress", number=next(done), count=count, notebook=notebook), file=sys.stderr, flush=True
            )

    return tell


def _refused(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

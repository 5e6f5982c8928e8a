"""Judge several notebooks at a time, each in a process of its own, so that none can end the others."""

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from course.book.library import digest, source_files, write
from course.classes import handed_in, notebooks, sandbox
from course.classes.handed_in import Task
from course.classes.judging import ForkServers, Limits, judge
from d2lps.messages import LANGUAGES, choose_all, text, text_in
from d2lps.messages.marked import marked
from d2lps.notebook.grading.course import CHAPTERS, all_texts
from d2lps.notebook.kept import NAME

KEPT = "verdicts.json"
SLOW_EXERCISES = 12  # exercises of a notebook that may use up their time limit


class Judging:
    """A process that judges one notebook."""

    def __init__(self, task: Task, forkservers: ForkServers, limits: Limits):
        self.task, self.data = task, bytearray()
        self.until = time.monotonic() + SLOW_EXERCISES * limits.in_all
        self.end, write = os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                os.close(self.end)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that has started this one ends it
                choose_all()  # the teacher and the learner may read different languages
                data = json.dumps(_judged(task, forkservers, limits)).encode()
                with os.fdopen(write, "wb") as file:
                    file.write(data)
            finally:
                os._exit(0)
        os.close(write)

    def stop(self) -> None:
        """Kill the process; its answers end with it."""
        os.kill(self.process, signal.SIGKILL)

    def result(self) -> dict:
        """Return its result, or a note that there is none."""
        os.close(self.end)
        os.waitpid(self.process, 0)
        try:
            result = json.loads(self.data)  # a cell may have any text, and so may an answer's error
            return json.loads(handed_in.printable(json.dumps(result, ensure_ascii=False)))
        except ValueError:
            note = marked([text_in(language, "grade.note.no-verdict") for language in LANGUAGES])
            return {"book": _about(self.task, [note]), "rows": [], "missing": []}


def _judged(task: Task, forkservers: ForkServers, limits: Limits) -> dict:
    book = notebooks.read(task)
    forkservers.language = book.language or forkservers.language
    sandbox.limit_judge(limits.judge_memory)
    rows, missing = judge(book, forkservers, limits, task.name)
    notes = [text(f"grade.note.{note.key}", **note.values) for note in book.notes]
    graded = all(note.key in notebooks.HARMLESS for note in book.notes)
    about = _about(task, notes) | {"chapter": book.chapter, "language": book.language, "graded": graded}
    return {"book": about, "rows": [asdict(row) for row in rows], "missing": sorted(missing)}


def _about(task: Task, notes: list[str]) -> dict:
    about = {"learner": task.learner, "id": task.id, "notebook": task.name, "late": task.late, "notes": notes}
    return about | {"back": task.back, "chapter": "", "language": "", "graded": False}


def run(
    tasks: Sequence[Task],
    folder: Path,
    out: Path,
    language: str,
    limits: Limits,
    jobs: int,
    report_result: Callable[[dict], None],
) -> list[dict]:
    """Judge notebooks and return the results in all languages, in this order; ``report_result`` gets each at once.

    Verdicts on notebooks are kept in ``out``; a notebook is judged again if it, the course or a teacher's cases differ.
    """
    kept, common = _kept(out), _common(limits)
    digests = [_digest(task, common) for task in tasks]
    results = {number: kept[digest] for number, digest in enumerate(digests) if digest in kept}
    for number, result in results.items():
        task = tasks[number]
        result["book"] |= {"id": task.id, "late": task.late, "back": task.back}
        report_result(result)
    waiting = [(number, task) for number, task in enumerate(tasks) if number not in results]
    torch.set_num_threads(1)
    for texts in all_texts().values() if waiting else ():  # import the judges once for all processes
        texts.exercise()
    forkservers = ForkServers(language, limits, [folder, out]) if waiting else None
    busy: dict[int, tuple[int, Judging]] = {}
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    number, task = waiting.pop(0)
                    judging = Judging(task, forkservers, limits)
                    busy[judging.end] = number, judging
                    selector.register(judging.end, selectors.EVENT_READ)
                for key, _ in selector.select(1):
                    number, judging = busy[key.fd]
                    data = os.read(key.fd, 1 << 20)
                    judging.data += data
                    if not data:
                        selector.unregister(key.fd)
                        del busy[key.fd]
                        results[number] = judging.result()
                        report_result(results[number])
                for _, judging in busy.values():
                    if time.monotonic() > judging.until:
                        judging.stop()
    finally:
        for _, judging in busy.values():
            judging.stop()
            os.waitpid(judging.process, 0)
        if forkservers:
            forkservers.end()
    graded = {digests[number]: result for number, result in sorted(results.items()) if result["book"]["graded"]}
    write({out / KEPT: json.dumps({digest: result for digest, result in graded.items() if digest})})
    return [results[number] for number in range(len(tasks))]


def _kept(out: Path) -> dict[str, dict]:
    """Return digest → result of the notebooks that were judged before."""
    try:
        return dict(json.loads((out / KEPT).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _common(limits: Limits) -> str:
    """Return a digest of what all verdicts depend on beside the notebook."""
    chosen = [path for name in ("D2LPS_TOC", "D2LPS_VARIANTS") if (path := os.environ.get(name))]
    places = [Path(each) for each in (CHAPTERS, CHAPTERS.parent / "d2lps", Path(__file__).parent, *chosen)]
    files = [file for place in places for file in (source_files(place) if place.is_dir() else [place])]
    code = [digest(file.read_bytes()) for file in files if file.suffix in (".py", ".toml", ".json") and file.is_file()]
    return digest(json.dumps([code, asdict(limits), sys.version, torch.__version__]))


def _digest(task: Task, common: str) -> str:
    """Return a digest of a notebook and of the hints counted beside it; nothing for other files."""
    if not task.name or task.note or not task.path.is_file() or task.path.stat().st_size > handed_in.LARGEST:
        return ""
    places = notebooks.places(task)
    hints = [file for place in places for file in sorted(place.glob(f"{NAME}/hints-*.json"))]
    hints = [digest(file.read_bytes()) for file in hints if file.is_file() and handed_in.within(file, places[-1])]
    return digest(json.dumps([common, task.learner, task.name, digest(task.path.read_bytes()), hints]))

"""Judge one notebook: each answer runs in a process of its own, and its results are judged here."""

import builtins
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from course.classes import alike, notebooks, sandbox, slices
from course.classes.answers import AnswerFunction, Answers
from course.classes.line import Gone, Line
from course.classes.notebooks import Notebook
from course.classes.watch import MOST
from d2lps.messages import text
from d2lps.notebook.grading import attempts
from d2lps.notebook.grading.course import CHAPTERS, Texts, all_texts
from d2lps.notebook.grading.exercise import Failure, time_text

STATES = SOLVED, TRIED, STOPPED, UNTOUCHED, MISSING = "solved", "tried", "stopped", "untouched", "missing"  # best first
START = 300  # seconds for importing Python and torch; on an idle machine it takes a few


@dataclass(frozen=True)
class Limits:
    """Limits of an answer: processor seconds for all cases, and bytes beyond those of an empty process."""

    seconds: float = 10.0
    memory: int = 1 << 30

    @property
    def quiet(self) -> float:
        """Seconds that an answer may be silent; it may sleep, or wait for a processor."""
        return max(3 * self.seconds, 30)

    @property
    def in_all(self) -> float:
        """Seconds for all cases of an exercise, with the work of its judge."""
        return 10 * self.quiet

    @property
    def judge_memory(self) -> int:
        """Bytes that a judge may use beyond those of an empty process: what an answer sends becomes larger there."""
        return max(4 * self.memory, 2 << 30)


@dataclass
class Row:
    """The verdict on one answer."""

    learner: str
    notebook: str
    chapter: str
    exercise: str
    state: str
    mistake: str = ""
    sentence: str = ""
    hint: str = ""
    hints: int | None = None
    hints_from: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    look: list[str] = field(default_factory=list)  # notes for the teacher alone
    only_calls: bool = False  # whether it does nothing but call a function of the package
    cases: dict[str, bool] = field(default_factory=dict)  # label of a case → whether the answer is right there
    same: str = ""  # that of equal answers is equal


class ForkServers:
    """Two processes that start the processes of answers, with different seeds of ``hash``."""

    def __init__(self, language: str, limits: Limits, secret: list[Path]):
        secret = [path.resolve() for path in (CHAPTERS, *secret)]
        paths = [str(path) for path in sandbox.readable(secret)]
        self.language = language  # of the next answer's process
        settings = {"paths": paths, "memory": limits.memory, "seconds": limits.seconds}
        path = os.pathsep.join([*(str(package.parent) for package in sandbox.PACKAGES), *filter(None, sys.path)])
        self._both = []
        for seed in random.SystemRandom().sample(range(1, 1 << 32), 2):
            end, far_end = socket.socketpair()
            environment = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            environment |= {
                name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ
            }
            command = [sys.executable, "-m", "course.classes.forkserver", json.dumps(settings)]
            process = subprocess.Popen(command, stdin=far_end, env=environment, cwd="/")
            far_end.close()
            self._both.append((process, end))
        for _, end in self._both:
            end.settimeout(START)
            if not end.recv(1):
                raise OSError("no process for answers starts")

    def line(self, which: int, quiet: float) -> tuple[Line, socket.socket]:
        """Return a line to a new process, and a socket that ends the process when it is closed. Raises OSError."""
        end, far_end = socket.socketpair()
        life, watched = socket.socketpair()
        socket.send_fds(self._both[which][1], [self.language.encode()], [far_end.fileno(), watched.fileno()])
        far_end.close(), watched.close()
        return Line(end, quiet), life

    def end(self) -> None:
        """End both processes."""
        for process, requests in self._both:
            requests.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Running:
    """An answer in processes of its own, which end with the ``with`` block."""

    def __init__(self, forkservers: ForkServers, cells: list, answer: str, limits: Limits):
        self.forkservers, self.cells, self.expression, self.limits = forkservers, cells, answer, limits
        self.missing: list[str] = []
        self.refused: list[tuple[str, str]] = []  # kind and detail of what the sandbox refused
        self.attempts: list[tuple[str, str]] = []
        self.seconds, self.overtime = 0.0, False  # processor seconds; known after the end
        self._open: list[tuple[Line, socket.socket]] = []

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        for line, life in self._open:
            by_itself = line.gone == "ended"
            line.end.close()
            self._end(life, by_itself)

    def _end(self, life: socket.socket, by_itself: bool) -> None:
        """End a process unless it has ended ``by_itself``, and read how long it has run and what has ended it."""
        try:
            life.shutdown(socket.SHUT_WR)
            life.settimeout(60)
            seconds, ended_by = json.loads(life.recv(1000))
            self.seconds += seconds
            # The kernel counts whole ticks for its limit, so that it kills a process of a busy machine early; a process
            # that is killed much earlier was killed for its memory.
            killed = ended_by in (signal.SIGXCPU, signal.SIGKILL) and seconds > self.limits.seconds / 4
            self.overtime |= by_itself and killed
        except (OSError, ValueError):
            pass
        finally:
            life.close()

    def start(self, which: int = 0) -> Answers:
        """Load the answer in a new process. Raises the errors of its cells, or Gone."""
        line, life = self.forkservers.line(which, self.limits.quiet)
        self._open.append((line, life))
        line.open(0)
        _, _, missing, _ = line.wait(0)
        self.missing = [str(name) for name in missing]
        answers = Answers(line, lambda: self.start(1))
        answers.refused, answers.attempts = self.refused, self.attempts
        answers.answer = answers.ask("load", self.cells, self.expression)
        return answers


def judge(book: Notebook, forkservers: ForkServers, limits: Limits, name: str) -> tuple[list[Row], set[str]]:
    """Return a row for each exercise of the notebook's chapter, and what this machine cannot refuse to answers.

    An answer that makes it compute for :attr:`Limits.quiet` seconds is stopped, or ends this process.
    """
    exercises, missing, rows = all_texts(), set(), []
    for attempt in book.answers:
        start = time.process_time()
        row = Row(
            book.learner, name, book.chapter, attempt.id, MISSING, hints=attempt.hints, hints_from=attempt.hints_from
        )
        row.notes = [text(f"grade.note.{note.key}", **note.values) for note in attempt.notes]
        for cell, answer in attempt.answers:  # the best one counts, and the last of equally good ones
            sandbox.limit_exercise(limits.quiet, _took_too_long)
            trial = replace(row, notes=[*row.notes], look=[], seconds=0.0, cases={})
            cells = [other for other in book.cells if other is cell or other not in attempt.cells]
            _judge_one(trial, cells, cell, answer, exercises[attempt.id], forkservers, limits, missing)
            trial.seconds += row.seconds
            row = trial if _rank(trial) < _rank(row) else replace(row, seconds=trial.seconds)
            if row.state == SOLVED and not row.only_calls:
                break
        row.seconds = round(row.seconds + time.process_time() - start, 2)
        rows.append(row)
    return rows, missing


def _rank(row: Row) -> tuple[int, bool, int]:
    return STATES.index(row.state), row.only_calls, -sum(row.cases.values())


def _took_too_long() -> None:
    raise Gone("judge")


def _judge_one(
    row: Row,
    notebook_cells: list[slices.Cell],
    cell: slices.Cell,
    answer: str,
    texts: Texts,
    forkservers: ForkServers,
    limits: Limits,
    missing: set[str],
) -> None:
    """Judge one answer; ``notebook_cells`` leaves out other cells for the same exercise."""
    if notebooks.untouched(texts, cell):
        row.state, row.mistake = UNTOUCHED, "todo"
        return
    row.state = TRIED
    if cell.error:
        row.mistake, row.sentence = "syntax", text("grade.syntax", line=cell.line or 1, error=cell.error)
        row.hint = text("grade.mistake.syntax")
        return
    lesson = notebooks.lesson(texts.folder)
    cells = slices.needed(slices.used_in(answer), notebook_cells, lesson, notebook_cells.index(cell))
    if not cells and answer.isidentifier() and not hasattr(builtins, answer):
        row.mistake, row.sentence = "no-function", text("grade.no-function", name=answer)
        row.hint = text("grade.mistake.no-function")
        return
    with suppress(RecursionError):
        key, row.same = alike.marks(texts, answer, notebook_cells, lesson, notebook_cells.index(cell))
        row.look, row.only_calls = [text(f"grade.note.{key}")] if key else [], key == "only-calls"
    row.notes += [text("grade.note.command", command=command) for command in slices.not_run(cells)]
    running, gone = Running(forkservers, cells, answer, limits), None
    try:
        with running:
            verdict = attempts.judged(texts, _loaded(running, cell), limits.in_all, time.monotonic, row.cases)
    except Failure as failure:
        row.mistake, row.sentence, row.hint = failure.mistake, failure.sentence, texts.hint(failure.mistake)
    except Gone as error:
        gone = "overtime" if running.overtime else error.reason
    else:
        row.state = SOLVED if verdict.passed else STOPPED if verdict.mistake == "endless" else TRIED
        row.mistake, row.sentence, row.hint = verdict.mistake or "", verdict.sentence, verdict.hint
    if row.state != SOLVED and running.refused:
        gone = _refused(row, running.refused[-1], gone)
    tried = [text(f"grade.note.refused-{kind}", name=name) for kind, name in dict.fromkeys(running.attempts[:MOST])]
    row.notes += [note for note in tried if note not in row.notes]
    if gone:
        row.state, row.mistake, row.hint = STOPPED, gone, text("grade.mistake.stopped")
        values = {"allowed": time_text(limits.seconds), "quiet": time_text(limits.quiet), "memory": limits.memory >> 20}
        row.sentence = text(f"grade.gone.{gone}", **values)
    row.seconds += running.seconds
    missing |= {*running.missing}


def _refused(row: Row, refused: tuple[str, str], gone: str | None) -> str | None:
    """Note in the row what the sandbox refused; return the reason why the answer was stopped, or None."""
    kind, name = refused
    if kind == "out-of-memory":
        return gone or kind
    row.notes.append(text(f"grade.note.refused-{kind}", name=name))
    row.hint = text("grade.mistake.refused")
    return gone


def _loaded(running: Running, cell: slices.Cell) -> AnswerFunction:
    """Load the answer. Raises Failure if the cells that it needs raise."""
    try:
        return running.start().answer
    except Gone:
        raise
    except BaseException as error:
        raise _not_loaded(cell.name, error) from None


def _not_loaded(cell: str, error: BaseException) -> Failure:
    """Return the failure of an answer whose cells have raised."""
    message = (type(error).__name__ + (f": {error}" if str(error) else "")).splitlines()[0][:200]
    line = getattr(error, "answer_line", None)
    return Failure("raised", text("grade.not-loaded", where=f"{cell}:{line}" if line else cell, error=message))

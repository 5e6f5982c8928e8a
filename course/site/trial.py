"""Find the cells of a chapter that a browser can run: those that run here without what a browser lacks.

``runnable`` starts this module as a program of its own, because the lack is made before anything is imported.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from course.book.findings import BookError

ROOT = Path(__file__).resolve().parents[2]  # has the package course
LIMIT = 3.0  # seconds of processor time for one cell here; a browser takes two to four times as long
ALL = 300  # seconds for all cells of a chapter
JUDGED = re.compile(r"d2lps\.check_exercise\(.*?\)")
PACKED = {".venv", "chapters", "course", "d2lps"}  # the folders of the course whose files a cell may read
THERE = {"d2lps", "networkx"}  # what a browser has beside Python's own modules and those of chapters


def runnable(
    cells: Sequence[tuple[str, str]], solutions: Mapping[str, str], limit: float = LIMIT
) -> dict[str, list[str]]:
    """Return each cell that runs without PyTorch and processes, with the earlier cells that it needs.

    Args:
        cells (sequence of (id, source)): The cells of a chapter in their order.
        solutions: The id of each exercise's cell → the code of its solution: the cell counts if its judge accepts it.
        limit: The processor seconds that a cell may take.

    Raises:
        BookError: If the trial itself ends with an error, or takes longer than 5 minutes.
    """
    cells = [(id, source) for id, source in cells if id != "language"]  # the page has its language already
    command, given = [sys.executable, "-m", "course.site.trial"], json.dumps([cells, dict(solutions), limit])
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=ALL, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise BookError(f"the cells without PyTorch ran longer than {ALL} s; shorten the slowest") from None
    if done.returncode:
        raise BookError(f"the trial of cells without PyTorch failed:\n{done.stderr[-2000:]}")
    ran = set(json.loads(done.stdout))
    needed = needs(cells)
    return {id: needed[id] for id, _ in cells if id in ran}


def needs(cells: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return for each cell the ids of the earlier cells whose names it uses, directly or through others, in order.

    >>> needs([("a", "x = 1"), ("b", "y = 2"), ("c", "def f(): return x"), ("d", "f()")])["d"]
    ['a', 'c']
    """
    from course.classes import slices  # imports IPython, which cells must not find in a trial

    result: dict[str, list[str]] = {}
    binds: dict[str, set[str]] = {}
    uses: dict[str, set[str]] = {}
    for id, source in cells:
        parts, now, own = slices.cell(id, source).parts, set(), set()
        for part in parts:
            now |= part.now - own
            own |= part.anew
        uses[id] = now.union(*(part.later - own for part in parts))
        binds[id] = set().union(*(part.bound for part in parts))
        wanted, direct = uses[id], []
        for earlier in reversed([*result]):
            if binds[earlier] & wanted:
                direct.append(earlier)
                wanted = wanted - (binds[earlier] - uses[earlier])
        closure = {one for earlier in direct for one in [*result[earlier], earlier]}
        result[id] = [earlier for earlier in result if earlier in closure]
    return result


class _Lacking:
    """An import finder that refuses what a browser does not have."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        top = name.partition(".")[0]
        if top not in THERE and top not in sys.stdlib_module_names and not top.startswith(("chapter_", "_")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _packed(event: str, given: tuple) -> None:
    """Refuse to open files of the course that a browser does not have; a hook of ``sys.addaudithook``."""
    if event == "open" and isinstance(given[0], str | Path):
        path = Path(given[0]).absolute()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in PACKED:
            raise FileNotFoundError(f"a browser does not have {path}")


def _refuse(*_: object, **__: object) -> None:
    raise OSError("a browser has no processes, threads and sockets")


def _trial() -> None:
    """Read cells from stdin, run them, and print the ids of those that ran."""
    import multiprocessing
    import os
    import socket
    import threading
    import time

    from course.site import in_browser

    cells, solutions, limit = json.load(sys.stdin)
    sys.meta_path.insert(0, _Lacking())
    sys.addaudithook(_packed)
    from d2lps.notebook.grading import calls

    calls.THREADS = False
    threading.Thread.start = subprocess.Popen.__init__ = socket.socket.__init__ = _refuse
    multiprocessing.Process.start = os.fork = _refuse

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, late)
    page, ran = in_browser.begin("en"), []
    for id, source in cells:
        if source.startswith("# %%px"):
            continue
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 4 * limit)
        outputs = page.run(source)
        if id in solutions:
            outputs += page.run(f"{solutions[id]}\n\nassert {JUDGED.search(source)[0]}.passed")
        signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() - begin < limit and not any("error" in output for output in outputs):
            ran.append(id)
    json.dump(ran, sys.stdout)


if __name__ == "__main__":
    _trial()

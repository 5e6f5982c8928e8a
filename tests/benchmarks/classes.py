"""How long a class takes: 200 notebooks of all chapters, on two processors.

    python tests/benchmarks/classes.py [--save] [--quick] [COUNT]

A third of the learners solve everything; the others have wrong answers, unfinished stubs, loops without end, crashes,
syntax errors. Prints the time by the clock, and the processor's time of all answers and judges.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the folder tests/course must not hide course/

import subprocess  # noqa: E402

import saved  # noqa: E402
from helpers import classes  # noqa: E402

from d2lps.notebook.grading.course import all_texts, tables  # noqa: E402

JOBS = 2
ENDLESS = "while True:\n        pass"
CRASH = "import os\n    os._exit(1)"


def make(folder: Path, count: int) -> Counter:
    """So many notebooks, the chapters in turn; how many answers there are of each kind."""
    draw, made, every = random.Random(0), Counter(), all_texts()
    chapters = sorted({texts.folder for texts in every.values()})
    for number, chapter in zip(range(count), cycle(chapters), strict=False):
        solves, answers = draw.random() < 1 / 3, {}
        for id in tables(chapter / "exercises.toml"):
            kind = "solution" if solves else draw.choice(["solution", *["wrong"] * 4, "stub", "stub"])
            if not solves and draw.random() < 0.08:
                kind = draw.choice(["endless", "crash", "syntax"])
            answers[id] = code(id, kind, draw, every[id])
            made[kind] += 1
        answers = {id: each for id, each in answers.items() if each}
        language = draw.choice(["en", "vi", "zh"])
        classes.hand_in(folder, f"learner{number:03}", classes.notebook(chapter.name, answers, language))
    return made


def code(id: str, kind: str, draw: random.Random, texts) -> str | None:
    """The code of an answer; None for the stub."""
    name, parameters = id.replace("-", "_"), ", ".join(texts.exercise().parameters)
    if kind == "solution":
        return classes.solving(id)
    if kind == "wrong":
        mistakes = [*texts.solutions()["WRONG"][id]]
        return classes.wrong(id, draw.choice(mistakes))
    body = {"endless": ENDLESS, "crash": CRASH, "syntax": "return ("}
    return f"def {name}({parameters}):\n    {body[kind]}" if kind in body else None


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("count", nargs="?", type=int, default=200, help="how many notebooks (200)")
    options.add_argument("--save", action="store_true", help="write the figures to tests/benchmarks/measured/")
    options.add_argument("--quick", action="store_true", help="one notebook, to see that it works")
    options = options.parse_args()
    count = 1 if options.quick else options.count
    with tempfile.TemporaryDirectory() as top:
        folder, out = Path(top, "class"), Path(top, "report")
        made = make(folder, count)
        start, (used, whole) = time.monotonic(), saved.processor_time()
        command = [sys.executable, "-m", "course.classes", str(folder), "--out", str(out), "--jobs", str(JOBS)]
        subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        busy = [now - before for now, before in zip(saved.processor_time(), (used, whole), strict=True)]
        rows = classes.told(out)["answers"]
    took = sum(row["seconds"] for row in rows)
    figures = {
        "notebooks": count,
        "answers": dict(made),
        "states": dict(Counter(row["state"] for row in rows)),
        "seconds": round(seconds, 1),
        "processor seconds": round(took, 1),
        "processor seconds of the whole machine": round(busy[0] / 100, 1),
        "jobs": JOBS,
        "most": sorted(((row["seconds"], row["exercise"], row["state"]) for row in rows), reverse=True)[:5],
    }
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.save:
        saved.save("classes", [figures])


if __name__ == "__main__":
    main()

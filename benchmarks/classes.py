"""How long a class takes: 200 notebooks of all chapters, on two processors.

A third of the learners solve everything; the others have wrong answers, unfinished stubs, loops without end, crashes,
syntax errors. Prints the time by the clock, and the processor's time of all answers and judges.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

from helpers import classes

from benchmarks.common import Run, processor_time
from d2lps.notebook.grading.course import all_texts, tables

JOBS = 2
ENDLESS = "while True:\n        pass"
CRASH = "import os\n    os._exit(1)"
NOTEBOOKS = 200


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


def grading(run: Run) -> None:
    count = 1 if run.quick else NOTEBOOKS
    with tempfile.TemporaryDirectory() as top:
        folder, out = Path(top, "class"), Path(top, "report")
        made = make(folder, count)
        start, (used, _) = time.monotonic(), processor_time()
        command = [sys.executable, "-m", "course.classes", str(folder), "--out", str(out), "--jobs", str(JOBS)]
        subprocess.run(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        seconds, spent = time.monotonic() - start, processor_time()[0] - used
        rows = classes.told(out)["answers"]
    figures = {
        "notebooks": count,
        "answers": dict(made),
        "states": dict(Counter(row["state"] for row in rows)),
        "seconds": round(seconds, 1),
        "processor seconds": round(sum(row["seconds"] for row in rows), 1),
        "processor seconds of the whole machine": round(spent / 100, 1),
        "jobs": JOBS,
        "most": sorted(((row["seconds"], row["exercise"], row["state"]) for row in rows), reverse=True)[:5],
    }
    for name, value in figures.items():
        print(f"{name}: {value}")
    run.figures.append(figures)

"""Each benchmark still runs, with small sizes; its figures then mean nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "tests/benchmarks").glob("*.py") if path.stem != "saved")
TABLES = {  # what each prints, at least
    "carriers": ["P1 ", "P2 ", "P3 ", "P8h"],
    "classes": ["notebooks: 1", "seconds: "],
    "cluster": ["hosts up in", "P7 ", "P8 "],
    "gpu": ["P22 "],
    "hosts": ["alone, between hosts", "P29 "],
    "kvstore": ["P4 ", "small ", "P5 ", "P14 ", "memory server"],
    "model": ["P9 ", "P10 ", "P19 ", "P20 "],
    "pipeline": ["P15 ", "P16 "],
    "player": ["first painted after", "script per frame"],
    "replicas": ["replicas=1 ÷ 0", "a new primary", "a newcomer"],
    "saving": ["stall ÷ blocking"],
    "sharded": ["P17 ", "P18 "],
    "site": ["search|not measured"],
    "step": ["P26 ", "P27 ", "P28 "],
}
DEADLINE = 600.0  # seconds; on an idle machine each takes less than 30


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_prints_its_table(name):
    command = [sys.executable, f"tests/benchmarks/{name}.py", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [what for what in TABLES[name] if not re.search(what, run.stdout)] == [], run.stdout


def test_make_bench_runs_all_of_them():
    recipe = re.search(r"^bench:.*?\n\n", (ROOT / "Makefile").read_text("utf-8"), re.M | re.S)[0]
    assert sorted(re.search(r"for name in ([a-z ]+);", recipe)[1].split()) == NAMES

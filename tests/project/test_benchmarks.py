"""Each benchmark still runs, with small sizes; its figures then mean nothing."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import FILES, row_of

ROOT = Path(__file__).parents[2]
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
@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_runs_and_prints_its_table(name):
    command = [sys.executable, "-m", "tests.benchmarks", name, "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [what for what in TABLES[name] if not re.search(what, run.stdout)] == [], run.stdout


@pytest.mark.slow(5)  # it imports all that is measured
def test_the_command_knows_every_file_and_the_function_of_every_row():
    there = {path.stem for path in (ROOT / "tests/benchmarks").glob("*.py")} - {"__main__", "common"}
    assert {*FILES} == {*TABLES} == there
    for name, rows in FILES.items():
        module = import_module(f"tests.benchmarks.{name}")
        assert all(callable(row_of(module, row)) for row in rows.split()), name


@pytest.mark.slow(3)
def test_an_unknown_row_is_refused_by_name():
    command = [sys.executable, "-m", "tests.benchmarks", "P99"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert run.returncode == 2 and "there is no P99: --list prints" in run.stderr

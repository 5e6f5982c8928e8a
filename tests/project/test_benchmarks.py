"""The benchmarks can be listed and imported; `make bench-check` runs them."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import check
from benchmarks.__main__ import FILES, row_of

ROOT = Path(__file__).parents[2]


def benchmarks(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_the_command_knows_every_file_and_the_function_of_every_row():
    there = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")} - {"check", "common"}
    assert {*FILES} == {*check.PRINTED} == there
    for name, rows in FILES.items():
        module = import_module(f"benchmarks.{name}")
        assert all(callable(row_of(module, row)) for row in rows.split()), name


def test_every_file_and_row_is_listed():
    run = benchmarks("--list")
    assert run.returncode == 0 and run.stdout.splitlines() == [f"{file}: {rows}" for file, rows in FILES.items()]


def test_an_unknown_row_is_refused_by_name():
    run = benchmarks("P99")
    assert run.returncode == 2 and "there is no P99: --list prints" in run.stderr


def test_the_check_goes_on_after_a_failure_and_names_what_failed(monkeypatch, capsys):
    monkeypatch.setattr(check, "fault", {"model": "", "gpu": "status 3", "site": ""}.get)
    monkeypatch.setattr(sys, "argv", ["check", "model", "gpu", "site"])
    assert check.main() == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["model", "gpu", "status", "site", "failed:"] and lines[-1][1:] == ["gpu"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('P22 ')", ""),
        ("print('P22 '); sys.exit(3)", "P22 \nstatus 3"),
        ("print('nothing')", "nothing\nnot printed: P22 "),
    ],
)
def test_a_benchmark_that_ends_badly_or_prints_no_table_has_failed(code, why, monkeypatch, tmp_path):
    (tmp_path / "benchmarks.py").write_text(f"import sys\n{code}\n")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.fault("gpu") == why


def test_a_benchmark_that_never_ends_is_stopped(monkeypatch, tmp_path):
    (tmp_path / "benchmarks.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "DEADLINE", 0.5)
    assert check.fault("gpu").endswith("no end within 0.5 s")

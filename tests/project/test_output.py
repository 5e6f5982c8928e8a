"""Commands print ``?`` for the letters that the output lacks, and go on."""

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.small_book import FILES

import course
import d2lps

HOMES = [Path(package.__file__).parent for package in (d2lps, course)]
# Other programs start these, and ignore their output or read JSON of ASCII letters.
STARTED_BY_PROGRAMS = """d2lps/kvstore/pslite/__main__.py d2lps/kvstore/server/__main__.py
d2lps/notebook/ranks/__main__.py d2lps/train/ddp.py course/classes/forkserver.py course/site/trial.py""".split()


def run(*arguments, files=None, cwd=None, **variables):
    """Run a command whose output has the letters of Latin-1 only, and return its exit status and what it prints."""
    given = {"PYTHONPATH": str(HOMES[0].parent), "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    limit = files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    options = {"env": os.environ | given | variables, "cwd": cwd, "preexec_fn": limit, "timeout": 120}
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, encoding="latin-1", **options)
    assert "UnicodeEncodeError" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_advice_of_the_doctor_is_printed():
    status, printed = run("d2lps", "doctor", files=200)
    assert status == 1 and "? ulimit -n 4096" in printed


@pytest.mark.parametrize("language", ["vi", "zh"])
def test_a_layout_is_printed_in_every_language(language):
    status, printed = run("d2lps", "parallelize", "--model", "gpt3", "--gpus", "1024", "--language", language)
    assert status == 0 and "?" in printed and "247" in printed


def test_texts_of_the_book_are_printed(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    _, printed = run("course.book", "--root", str(tmp_path), "agree", "--all")
    assert "agreed" in printed and "?" in printed


@pytest.mark.parametrize("module", ["course.site", "course.classes"])
def test_a_command_prints_its_help(module):
    status, printed = run(module, "--help", PYTHONIOENCODING="ascii:strict")
    assert status == 0 and "usage: python -m" in printed


def calls(node):
    return {getattr(each.func, "id", "") for each in ast.walk(node) if isinstance(each, ast.Call)}


def test_every_program_allows_any_letter_before_it_prints():
    programs = {}
    for path in (path for home in HOMES for path in home.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        if any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body):
            programs[path.relative_to(HOMES[0].parent).as_posix()] = "allow_any_letter" in calls(tree)
    assert "d2lps/__main__.py" in programs and len(programs) > len(STARTED_BY_PROGRAMS)
    assert sorted(name for name, allows in programs.items() if not allows) == sorted(STARTED_BY_PROGRAMS)

"""The page for engineers: its commands print what it shows, on recorded files and without a GPU."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from d2lps.__main__ import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/your-cluster.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
SHOWN = [code.removeprefix("$ ").partition("\n") for kind, code in BLOCKS if kind == "console"]


@pytest.mark.parametrize("command, printed", [(command, printed) for command, _, printed in SHOWN])
def test_a_command_prints_what_the_page_shows(command, printed, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    python, _, package, name, *options = shlex.split(command)
    assert (python, package) == ("python", "d2lps")
    if name not in COMMANDS:
        pytest.skip(f"there is no command {name}")
    assert main([name, *options]) == (name == "hang")  # where something differs
    lines, gap, at = [line for line in capsys.readouterr().out.splitlines() if line], False, 0
    for line in printed.splitlines():
        if line == "…":
            gap = True
            continue
        found = lines.index(line, at)
        assert gap or found == at, f"the page leaves out what stands before {line!r}"
        gap, at = False, found + 1
    assert gap or at == len(lines)


@pytest.mark.parametrize("script", [code for kind, code in BLOCKS if kind == "sh"])
def test_programs_for_hosts_have_no_syntax_error(script):
    subprocess.run(["bash", "-n"], input=script.replace("…", "x"), text=True, check=True)


def test_the_page_is_short_and_shows_each_step():
    assert len(PAGE.split()) <= 1740
    assert re.findall(r"^## (\d)\.", PAGE, re.M) == [*"1234567"] and len(SHOWN) == 7

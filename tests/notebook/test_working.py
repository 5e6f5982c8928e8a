"""The progress of a long cell, which disappears when the cell has ended."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from d2lps.messages import counted, speak
from d2lps.notebook.shown import progress_line

LONG = """
import time
from d2lps.notebook import shown
from d2lps.messages.counted import counted
shown.AFTER = shown.EVERY = 0.2
"""
TELL = """
from d2lps.notebook import shown
told = []
say = shown.progress_line
shown.progress_line = lambda seconds: told.append(say(seconds)["text/plain"]) or say(seconds)
until = time.monotonic() + 60
for each in counted(range(3), of=3):
    time.sleep(0.3)
    while each == 2 and os.environ["D2LPS_PROGRESS"] == "1" and "2 of 3" not in told[-1] and time.monotonic() < until:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("off", [False, True])
def test_a_long_cell_says_how_far_it_is_and_a_short_one_nothing(off):
    sources = ["import d2lps", LONG, f"import os; os.environ['D2LPS_PROGRESS'] = '{int(not off)}'", TELL]
    sources.append("told")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    *short, long, told = book.cells
    assert all(output.output_type == "execute_result" for cell in short for output in cell.outputs)
    assert [output.data["text/plain"] for output in long.outputs] == ([] if off else [""])
    words = told.outputs[0].data["text/plain"]
    assert ("2 of 3" in words and "running for" in words) is not off


def test_an_endless_loop_shows_a_moving_sign_after_two_seconds():
    endless = "def own_gpu(gpus):\n    while True:\n        pass\n"
    watch = "import os, time\nfrom d2lps.notebook import shown\nos.environ['D2LPS_PROGRESS'] = '1'\n"
    watch += "say, told, shown.EVERY = shown.progress_line, [], 0.1\n"
    watch += "shown.progress_line = lambda seconds: told.append((seconds, say(seconds)['text/html'])) or say(seconds)"
    check = endless + "d2lps.check_exercise('own-gpu', own_gpu, deadline='4 s')"
    sources = ["import d2lps", watch, check, "told[0][0] >= 2, '<progress' in told[0][1], len(told) > 1"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    assert book.cells[-1].outputs[0].data["text/plain"] == "(True, True, True)"


RANKS = """%%px
import time
from d2lps.messages.counted import counted
for each in counted(range(3), of=3):
    time.sleep(1)
"""


def test_of_ranks_too_it_says_how_far_they_are():
    follow = "from d2lps.notebook import shown\nshown.AFTER = shown.EVERY = 0.2\ntold, say = [], shown.progress_line\n"
    follow += "shown.progress_line = lambda seconds: told.append(say(seconds)['text/plain']) or say(seconds)"
    follow += "\nimport os\nos.environ['D2LPS_PROGRESS'] = '1'"
    sources = ["import d2lps", "ranks = d2lps.ranks(2)", follow, RANKS, "ranks.close()\ntold"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    words = book.cells[-1].outputs[-1].data["text/plain"]  # before it, what the last cell said while it took long
    assert len({*re.findall(r"\d of 3", words)}) >= 2
    assert [output.data["text/plain"] for output in book.cells[3].outputs] == [""]


def test_the_message_is_in_the_readers_language(monkeypatch):
    monkeypatch.setattr(counted, "reached", counted.Reached(3, 21))
    told = {}
    for spoken in ("en", "vi", "zh"):
        speak(spoken)
        told[spoken] = progress_line(4.6)
    assert told["en"]["text/plain"] == "running for 5 s: 3 of 21"
    assert 'value="3" max="21"' in told["vi"]["text/html"] and "đã chạy 5 s" in told["vi"]["text/html"]
    assert "已运行 5 s" in told["zh"]["text/plain"]
    monkeypatch.setattr(counted, "reached", None)
    assert "value" not in progress_line(4.6)["text/html"]


def test_of_loops_within_each_other_the_outermost_counts():
    seen = []
    for _ in counted.counted(range(2), of=2):
        for _ in counted.counted(range(5), of=5):
            seen.append(counted.reached)
    assert seen == [(0, 2)] * 5 + [(1, 2)] * 5 and counted.reached is None
    with pytest.raises(ZeroDivisionError):
        for _ in counted.counted(range(2), of=2):
            1 / 0  # noqa: B018

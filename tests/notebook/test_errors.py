"""An error in a notebook shows the line of the cell and its sentence, and the whole traceback on request."""

import json
import subprocess
import sys

import pytest
from helpers.notebooks import ByCell

from d2lps.units import UnitError

WRONG = """import d2lps
d2lps.speak("vi")

def place(rate):
    return d2lps.pcie_server(4, rate)

place("16 Gb/s")"""
SENTENCE = (
    "UnitError: băng thông (bandwidth) '16 Gb/s' có hai cách hiểu: 'b' được đọc là bit, nên đây là 16 Gbit/s = 2 GB/s; "
    "hãy viết '16 GB/s' nếu ý bạn là byte, hoặc '16 Gbit/s' nếu ý bạn là bit"
)
TOLD = "%tb cho xem toàn bộ vết lỗi (traceback)"


@pytest.fixture(scope="module")
def notebook():
    made = ByCell()
    with made.client.setup_kernel():
        yield made


def test_a_reader_sees_the_lines_of_their_cell_and_the_sentence(notebook):
    shown = notebook.says(WRONG)
    assert "----> 7 place(" in shown and "----> 5     return d2lps.pcie_server(4, rate)" in shown
    assert "hosts.py" not in shown and "units.py" not in shown
    assert shown.count("Cell In") == 2
    *_, sentence, told = filter(None, shown.split("\n"))
    assert (sentence, told) == (SENTENCE, TOLD)


def test_tb_shows_the_whole_traceback_and_the_next_error_is_brief(notebook):
    notebook.says(WRONG)
    whole = notebook.says("%tb")
    assert "hosts.py" in whole and "units.py" in whole and "----> 7 place(" in whole and SENTENCE in whole
    assert "units.py" in notebook.says("%tb"), "as often as they ask"
    assert "units.py" not in notebook.says(WRONG)
    kept = "try:\n    place('16')\nexcept d2lps.units.UnitError as error:\n    kept = error\nraise kept"
    assert "units.py" not in notebook.says(kept)
    again = notebook.says("raise kept")
    assert "units.py" not in again and TOLD in again


@pytest.mark.parametrize("cell", ["1 / 0", "import torch\ntorch.ones(2) @ torch.ones(3)", "d2lps.nothing"])
def test_errors_of_others_stay_as_they_are(notebook, cell):
    shown = notebook.says(f"import d2lps\n{cell}")
    assert "Traceback (most recent call last)" in shown and TOLD not in shown
    if "nothing" in cell:
        assert "d2lps/__init__.py" in shown


def test_an_error_of_a_plan_names_its_step_under_the_readers_line(notebook):
    shown = notebook.says('d2lps.Plan(["a", "b"], {"g": 1}, [[d2lps.Send("a", "a", "g")]])')
    assert "----> 1 d2lps.Plan(" in shown and "checking.py" not in shown
    assert "PlanError: bước 1: a gửi khóa g cho chính mình" in shown


def test_elsewhere_an_error_is_pythons_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import d2lps\nd2lps.Link("a", "b", 16)\n', "utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8")
    assert done.returncode == 1 and "units.py" in done.stderr and "%tb" not in done.stderr


EVERY_CLASS = """
import contextlib, importlib, io, json, pkgutil
from concurrent.futures import ThreadPoolExecutor
from IPython.core.interactiveshell import InteractiveShell
import course, d2lps
from d2lps.messages.raised import Brief

for package in (d2lps, course):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

def classes(base):
    return {base}.union(*map(classes, base.__subclasses__()))

def begin():
    raise error

WAYS = {
    "alone": "raise error",
    "with a cause": "raise error from OSError('the cause')",
    "with a context": "try:\\n    1 / 0\\nexcept ZeroDivisionError:\\n    raise error",
    "out of a thread": "ThreadPoolExecutor(1).submit(begin).result()",
    "with more attributes": "error.counted, error.more = ('w',), object()\\nerror.add_note('noted')\\nraise error",
}
shell, shown = InteractiveShell.instance(colors="NoColor"), {}
for kind in classes(Brief) - {Brief}:
    for way, cell in WAYS.items():
        if way != "alone" and kind.__name__ not in ("RanksFailed", "Timeout", "UnitError"):
            continue
        try:
            error = kind({0: ("the sentence", "")} if kind.__name__ == "RanksFailed" else "the sentence")
        except (KeyError, TypeError):  # its constructor takes something else
            error = kind.__new__(kind, "the sentence")
        shell.user_ns |= {"error": error, "begin": begin, "ThreadPoolExecutor": ThreadPoolExecutor}
        texts = []
        for source in (cell, "%tb"):
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                shell.run_cell(source)
            texts.append(out.getvalue())
        causes = [type(one).__name__ for one in (error.__cause__, error.__context__) if one]
        shown[f"{kind.__name__} {way}"] = [*texts, causes]
print("shown:" + json.dumps(shown))
"""


def test_every_class_of_errors_is_shown_briefly_and_whole_on_request():
    done = subprocess.run([sys.executable, "-c", EVERY_CLASS], capture_output=True, encoding="utf-8", timeout=200)
    assert "shown:" in done.stdout, done.stderr
    shown = json.loads(done.stdout.rpartition("shown:")[2])
    assert {"Timeout alone", "Late alone", "UnitError alone", "AbsentError alone"} <= {*shown} and len(shown) > 40
    for name, (brief, whole, causes) in shown.items():
        kind, _, way = name.partition(" ")
        assert "Unexpected exception" not in brief + whole, name
        assert "the sentence" in brief and "the sentence" in whole, name
        assert causes == {"with a cause": ["OSError"], "with a context": ["ZeroDivisionError"]}.get(way, []), name
        if kind == "RanksFailed":  # which shows the lines of each rank instead
            continue
        assert f"{kind}: the sentence" in brief and "%tb shows the whole traceback" in brief, name
        assert ("----> 1 ThreadPoolExecutor" if way == "out of a thread" else "raise error") in brief, name
        assert all(hidden not in brief for hidden in ("thread.py", "_base.py", "OSError: ", "ZeroDivisionError: ")), (
            name
        )
        assert "noted" in brief if way == "with more attributes" else "noted" not in brief, name
        assert all(f"{cause}: " in whole for cause in causes) and ("_base.py" in whole) == (way == "out of a thread"), (
            name
        )


class Faulty:
    """A shell that cannot draw a traceback."""

    @property
    def InteractiveTB(self):
        raise RuntimeError("the fault")


@pytest.mark.parametrize("shell", [None, Faulty()], ids=["no shell", "a shell that fails"])
def test_a_fault_while_an_error_is_shown_leaves_pythons_own_traceback(monkeypatch, shell):
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    with pytest.raises(UnitError) as caught:
        raise UnitError("the sentence") from OSError("the cause")
    shown = "".join(caught.value._render_traceback_())
    assert shown.startswith("OSError: the cause") and shown.endswith("UnitError: the sentence\n")
    assert "the fault" not in shown


def test_without_ranks_px_says_how_to_start_them(notebook):
    for cell in ("%%px\n1 + 1", "%px 1 + 1"):
        shown = notebook.says(cell)
        assert shown.startswith("NoRanks: ") and "ranks = d2lps.ranks(4)" in shown and len(shown.split("\n")) == 1


def test_after_a_restart_px_still_says_it(monkeypatch):
    from d2lps.notebook.ranks import startup

    monkeypatch.setenv("PYTHONSTARTUP", startup.__file__)  # as `make lab` does
    made = ByCell()
    with made.client.setup_kernel():
        assert "ranks = d2lps.ranks(4)" in made.says("%%px\n1 + 1")
        assert "NameError" in made.says("d2lps"), "nothing of it stands among the reader's names"

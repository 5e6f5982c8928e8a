"""Cells that run without PyTorch, as in a browser: their outputs, their errors, and the names that are absent."""

import pytest

import d2lps
from course.site.in_browser import Cells, begin


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.setattr(d2lps, "__getattr__", d2lps.__getattr__)
    return begin("en")


def test_outputs_come_in_their_order():
    outputs = Cells().run("print(1)\nprint(2)\ndisplay([3])\nprint(4)\n{5}")
    assert outputs == [{"text": "1\n2\n"}, {"text": "[3]"}, {"text": "4\n"}, {"text": "{5}"}]


def test_cells_share_names_and_a_semicolon_hides_a_value():
    cells = Cells()
    assert cells.run("def f(x):\n    return x + y\ny = 1;") == []
    assert cells.run("f(2)") == [{"text": "3"}] and cells.run("f(2);") == []


def test_a_run_is_shown_as_in_a_notebook(cells):
    cells.run("gpus = ['gpu0', 'gpu1', 'gpu2', 'gpu3']\nplan = d2lps.sharded(gpus)")
    (plan,), (trace,) = cells.run("plan"), cells.run("d2lps.cost.shared(plan, d2lps.pcie_server(), '1 MB')")
    (player,) = cells.run("d2lps.watch(d2lps.cost.shared(plan, d2lps.pcie_server(), '1 MB'))")
    assert "<table" in plan["html"] and "<svg" in trace["html"] and 'type="module"' in player["html"]


def test_a_verdict_shows_the_attempt_below(cells):
    (verdict,) = cells.run("d2lps.check_exercise('own-gpu', lambda gpus: d2lps.aggregate_at(gpus, gpus[0]))")
    assert "d2lps-verdict" in verdict["html"] and "d2-still" in verdict["html"]


@pytest.mark.parametrize(
    "source, sentence",
    [
        ("x = 1\n1 / 0", "Line 2: ZeroDivisionError: division by zero"),
        ("def f():\n    return nothing\n\nf()", "Line 2: NameError: name 'nothing' is not defined"),
        ("x = (", "Line 1: SyntaxError: '(' was never closed"),
        ("exit()", "Line 1: SystemExit"),
        ("raise KeyboardInterrupt", "Line 1: KeyboardInterrupt"),
        ("%%px\nx = 1", "Line 1: SyntaxError: invalid syntax"),
    ],
)
def test_an_error_names_its_line(source, sentence):
    assert Cells().run(source)[-1]["error"].startswith(sentence)


@pytest.mark.parametrize(
    "use", ["lacking.ones(3)", "lacking.a.b = 1", "Net()", "[*Net]", "Net + 1", "if Net: pass", "print(Net)"]
)
def test_a_name_that_cannot_be_imported_is_named_where_it_is_used(use):
    cells = Cells()
    assert cells.run("import lacking\nfrom lacking.nn import Module as Net\nimport math\nprint(math.pi > 3)") == [
        {"text": "True\n"}
    ]
    (output,) = cells.run(use)
    assert output["error"].endswith("which a browser does not have: run this cell in JupyterLab.")

"""Values show themselves in a notebook as pictures and tables, and have a short ``repr``."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from d2lps import aggregate_at, cost, dgx1_v100, draw, nvswitch, pcie_server, ring, sharded, speak
from d2lps.notebook import shown
from d2lps.view.drawing import Drawing

GPUS = [f"gpu{i}" for i in range(4)]


@pytest.fixture(scope="module")
def notebook():
    shell = InteractiveShell.instance()
    shown.register()
    yield lambda value: shell.display_formatter.format(value)[0]
    InteractiveShell.clear_instance()


def test_a_topology_shows_itself_as_its_drawing(notebook):
    for place in (pcie_server(4), dgx1_v100(), nvswitch(8)):
        bundle = notebook(place)
        assert bundle["text/html"] == draw(place)._repr_html_()
        assert bundle["text/plain"] == repr(place)
    assert repr(pcie_server(4)) == "<Topology: pcie_server, 4 gpu, 1 switch, 1 cpu, 10 links>"


def test_a_trace_shows_itself_as_its_still(notebook):
    trace = cost.shared(sharded(GPUS), pcie_server(4), "160 MB")
    bundle = notebook(trace)
    assert bundle["text/html"] == draw(trace)._repr_html_() and "<svg" in bundle["text/html"]
    assert bundle["text/plain"] == "<Trace: shared, 24 events, 2 steps, 15 ms>"


def test_a_drawing_stands_within_the_page(notebook):
    bundle = notebook(draw(pcie_server(4)))
    assert bundle["image/svg+xml"] in bundle["text/html"]
    assert isinstance(draw(pcie_server(4)), Drawing)


@pytest.mark.parametrize("spoken, step", [("en", "step 1"), ("vi", "bước 1"), ("zh", "第 1 步")])
def test_a_plan_shows_its_steps_in_the_language_of_the_reader(notebook, spoken, step):
    speak(spoken)
    plan = aggregate_at(GPUS, "gpu0")
    bundle = notebook(plan)
    assert f">{step}</th>" in bundle["text/html"] and f'lang="{spoken}' in bundle["text/html"]
    for line in str(plan).splitlines()[2:]:
        assert line.split("   ")[-1] in bundle["text/html"]
    assert bundle["text/plain"] == "<Plan: 4 nodes, 1 keys, 2 steps, 6 sends>"


def test_a_plan_of_many_steps_is_cut(notebook):
    bundle = notebook(ring([f"gpu{i}" for i in range(40)]))
    assert bundle["text/html"].count("<tr") == 40 and "…" in bundle["text/html"]


def test_what_is_too_large_has_to_do_with_its_repr(notebook):
    many = [f"gpu{i}" for i in range(200)]
    plan, place = ring(many), nvswitch(200)
    for value in (plan, place, cost.shared(plan, place, "160 MB")):
        assert notebook(value) == {"text/plain": repr(value)} and len(repr(value)) < 100

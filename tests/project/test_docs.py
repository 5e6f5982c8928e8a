"""Every example in a docstring runs and prints the given output."""

import doctest
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import course
import d2lps
from d2lps import algorithms

ROOT = Path(__file__).parents[2]
MODULES = [
    "d2lps",
    *sorted(
        module.name
        for package in (d2lps, course)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_their_outputs(name):
    failed, _ = doctest.testmod(import_module(name))
    assert failed == 0


@pytest.mark.parametrize("name", ["README.md", "README.vi.md", "README.zh.md", "docs/package.md"])
def test_page_prints_the_outputs_of_its_examples(name):
    failed, tried = doctest.testfile(f"../../{name}", encoding="utf-8")
    assert tried >= 3 and failed == 0


def test_readme_has_at_most_700_words():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 700


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_a_page_leads_somewhere(path):
    text = path.read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    lost = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert lost == []


ROOMS_OF_THE_CORE = "messages plan topology algorithms schedule simulate view scaling trace.py units.py".split()


def test_package_page_states_the_size_of_the_package():
    home = ROOT / "d2lps"

    def lines(*rooms: str) -> int:
        files = [
            file for room in rooms for file in ((home / room).rglob("*.py") if ".py" not in room else [home / room])
        ]
        return sum(len(file.read_text("utf-8").splitlines()) for file in files)

    (size,) = re.findall(r"With docstrings it has about .*", (ROOT / "docs/package.md").read_text("utf-8"))
    stated = [int(number.replace("\xa0", "")) for number in re.findall(r"\d+\xa0\d+", size)]
    assert stated == pytest.approx([lines("."), lines(*ROOMS_OF_THE_CORE), lines("kvstore")], rel=0.1)


def test_package_page_names_the_chapters_that_use_the_store():
    (named,) = re.findall(r"lines, which only chapters (.*) use\.", (ROOT / "docs/package.md").read_text("utf-8"))
    lessons = sorted(ROOT.glob("chapters/*/lesson.py"))
    users = [lesson.parent.name.partition("-")[0] for lesson in lessons if "kvstore" in lesson.read_text("utf-8")]
    assert re.split(", | and ", named.lower()) == users


def test_the_page_for_teachers_is_short():
    assert len((ROOT / "docs/teaching.md").read_text("utf-8").split()) <= 900


@pytest.mark.parametrize("name", MODULES)
def test_each_module_has_a_docstring(name):
    assert (import_module(name).__doc__ or "").strip()


CORE = ["d2lps", "d2lps.messages"] + [
    f"d2lps.{name}"
    for name in "units plan.share plan.acts plan.plan algorithms topology.graph trace simulate.cost carriers.execute "
    "carriers.here".split()
]


@pytest.mark.parametrize("name", CORE)
def test_every_room_of_the_core_has_an_example(name):
    tests = doctest.DocTestFinder().find(import_module(name))
    assert sum(len(test.examples) for test in tests) > 0


ALGORITHMS = sorted({*algorithms.__all__} - {"together"})  # which combines the plans of others


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_states_its_steps_and_shows_a_step_table(name):
    doc = getattr(d2lps, name).__doc__
    assert "Steps: " in doc and ">>> print(" in doc and "step 1 " in doc

"""What the outputs of a chapter depend on: a change of it makes another run, and a change of anything else does not."""

import json
import shutil
import subprocess
import sys

import pytest
from helpers import notebooks

from course.book.findings import BookError
from course.site import inputs

ROOT = notebooks.ROOT
RING, REPLICAS, SCALING, MODEL = "02-ring", "06b-replicas", "07-why-distribute", "08-model-parallelism"
MEASURED = "15-a-step-measured"
ALL = {RING, REPLICAS, SCALING, MODEL, MEASURED}
CODE = "\nFURTHER = 1\n"
COMMENT = "\n# A further comment.\n"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and the chapters."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("d2lps", "chapters", "benchmarks/measured"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    return root


@pytest.fixture(scope="module")
def changes(copy):
    """``changes(file, text)``: those of the five chapters whose inputs are others with the text at the file's end."""

    def all_inputs():
        return {slug: [*inputs.inputs(copy / "chapters" / slug)] for slug in ALL}

    def changed(files, text, replace=None):
        kept = {path: path.read_text("utf-8") for path in (copy / file for file in files.split())}
        try:
            for path, before in kept.items():
                path.write_text(before.replace(replace, text) if replace else before + text, "utf-8")
                assert path.read_text("utf-8") != before
            return {slug for slug, found in all_inputs().items() if found != unchanged[slug]}
        finally:
            for path, before in kept.items():
                path.write_text(before, "utf-8")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs.d2lps, "__file__", str(copy / "d2lps/__init__.py"))
        unchanged = all_inputs()
        yield changed
        assert all_inputs() == unchanged


MODULES = [
    ("d2lps/units.py", ALL),
    ("d2lps/algorithms/rings.py", ALL),
    ("d2lps/view/player/data.py", ALL),
    ("d2lps/notebook/ranks/__main__.py", ALL),  # the program of a process
    ("d2lps/carriers/segments.py", ALL),  # through carriers/shared_memory.py
    ("d2lps/train/by_store.py", {REPLICAS}),  # Python imports it for SCALING and MODEL, too
    ("d2lps/kvstore/wire/shared_buffer.py", {REPLICAS}),
    ("d2lps/kvstore/server/__main__.py", {REPLICAS}),
    ("d2lps/kvstore/replication/world.py", {REPLICAS}),  # imported on first use
    ("d2lps/train/experts.py d2lps/cluster/agent.py d2lps/cluster/doctor.py", set()),
    ("d2lps/scaling/job.py", {SCALING}),
]


@pytest.mark.parametrize(("files", "chapters"), MODULES)
def test_a_change_of_a_module_counts_in_chapters_that_use_it(changes, files, chapters):
    assert changes(files, CODE) == chapters


def test_a_comment_in_a_module_counts_in_no_chapter(changes):
    assert changes(" ".join(files for files, _ in MODULES), COMMENT) == set()


@pytest.mark.parametrize(
    ("file", "chapters"),
    [
        ("d2lps/messages/vi.toml", ALL),
        ("d2lps/view/player/player.js", ALL),
        ("d2lps/view/drawing/drawing.css", ALL),
        ("d2lps/scaling/gpus.toml", {SCALING, MODEL, MEASURED}),
        ("benchmarks/measured/step-2026-11-28-16-processors.json", {MEASURED}),
        ("chapters/toc.toml", {SCALING}),  # its map
        ("chapters/01-data-parallelism/en.md", {MODEL, MEASURED}),  # they train on the texts of all chapters
        (f"chapters/{RING}/exercises.toml", {RING}),
        (f"chapters/{RING}/judge_labels.py", {RING}),
        (f"chapters/{RING}/lesson.py", {RING}),
        (f"chapters/{SCALING}/zh.md", {MODEL, MEASURED}),
    ],
)
def test_a_change_of_another_file_counts_in_chapters_that_read_it(changes, file, chapters):
    assert changes(file, "\n") == chapters


def test_a_comment_counts_only_in_a_function_whose_source_is_shown(changes):
    file, first = "d2lps/train/large_batch.py", "    return X.reshape("
    assert changes(file, f"    # A comment.\n{first}", first) == set()
    assert changes(file, "    # A comment.\n    X, y, X_test", "    X, y, X_test") == {SCALING}
    assert changes(file, '"""Another sentence.', '"""How many steps') == set()


def test_the_title_of_an_exercise_counts(changes):
    text = (ROOT / f"chapters/{RING}/vi.md").read_text("utf-8")
    title = inputs.TITLE.search(text)[1]
    assert RING in changes(f"chapters/{RING}/vi.md", f"**{title}.**", f"**{title}**")


def test_a_choice_of_chapters_counts_where_there_is_a_map(monkeypatch, tmp_path):
    def found(slug):
        return [*inputs.inputs(ROOT / "chapters" / slug)]

    before = found(RING), found(SCALING)
    choice = tmp_path / "choice.toml"
    choice.write_text('chapters = ["01"]\n', "utf-8")
    monkeypatch.setenv("D2LPS_TOC", str(choice))
    assert found(RING) == before[0] and found(SCALING) != before[1]


def test_code_that_is_not_python_is_named(copy):
    (copy / "chapters/99-wrong").mkdir()
    (copy / "chapters/99-wrong/lesson.py").write_text("x = 1\ny = = 2\n", "utf-8")
    with pytest.raises(BookError, match=r"99-wrong/lesson\.py, line 2: invalid syntax; mend it"):
        [*inputs.inputs(copy / "chapters/99-wrong")]


@pytest.mark.parametrize("slug", [RING, REPLICAS, SCALING])
def test_every_module_of_which_a_function_runs_for_an_opening_is_found(slug):
    code = f"""
import inspect, json, sys
import d2lps
ran = set()
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a module
        ran.add(frame.f_globals.get("__name__"))
number = {slug.partition("-")[0]!r}
d2lps.opening(number)
sys.setprofile(called)
d2lps.opening(number)._repr_mimebundle_()
sys.setprofile(None)
print(json.dumps([name for name in ran if name and name.startswith("d2lps")]))
"""
    ran = {*json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)}
    texts = [path.read_text("utf-8") for path in (ROOT / "chapters" / slug).glob("*.py")]
    assert len(ran) > 10 and ran <= {*inputs.Package(ROOT / "d2lps").used_by(texts)}

"""Answers that only call what the package has, and answers that are copies, are found; other right answers are not."""

import ast
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.classes import solving

import d2lps
from course.classes import alike, judging, notebooks, report, running, slices
from course.classes.handed_in import Task
from d2lps.messages import text
from d2lps.notebook.grading.course import all_texts, texts_of

# Two people write these alike.
SHORT = {"labels", "servers", "local-sgd", "break-even", "order-the-hosts", "global-norm"}


def marks(id: str, code: str, answer: str | None = None) -> tuple[str, str]:
    """Return what is found in an answer that stands in the chapter's notebook."""
    lesson = notebooks.lesson(texts_of(id).folder)
    cells = [*lesson, slices.cell("answer", code)]
    return alike.marks(texts_of(id), answer or id.replace("-", "_"), cells, lesson, len(lesson))


def renamed(code: str) -> str:
    """Return code with other names for all that it binds, another layout and a docstring."""
    tree = ast.parse(code)
    places = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name"}
    nodes = [node for node in ast.walk(tree) if type(node) in places]
    bound = {getattr(node, places[type(node)]) for node in nodes if not isinstance(getattr(node, "ctx", 0), ast.Load)}
    bound -= {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
    for node in nodes:
        if (name := getattr(node, places[type(node)])) in bound:
            setattr(node, places[type(node)], f"my_{name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Nonlocal):
            node.names = [f"my_{name}" for name in node.names]
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.Expr(ast.Constant("Mine.")))
    return ast.unparse(tree)


@pytest.mark.parametrize("id", all_texts())
def test_the_published_solution_is_found_under_other_names(id):
    expected = ("", "") if id in SHORT else ("as-published", "")
    assert marks(id, solving(id)) == expected
    assert marks(id, renamed(solving(id)), f"my_{id.replace('-', '_')}") == expected


OWN = """def own_gpu(gpus):
    share = {f"part {i}": Fraction(1, len(gpus)) for i in range(len(gpus))}
    to = [Send(a, b, f"part {i}", "add") for i, b in enumerate(gpus) for a in gpus if a != b]
    back = [Send(b, a, f"part {i}", "copy") for i, b in enumerate(gpus) for a in gpus if a != b]
    return Plan(gpus, share, [to, back])"""


def test_equal_answers_are_equal_whatever_their_names():
    key, same = marks("own-gpu", OWN)
    assert key == "" and same and marks("own-gpu", renamed(OWN), "my_own_gpu") == ("", same)
    assert marks("own-gpu", "import os\n\n# note\n" + OWN.replace("    share", "    'Mine.'\n    share"))[1] == same
    for one, another in {"a != b": "b != a", "to, back": "back, to", "1, len": "2, len"}.items():
        assert marks("own-gpu", OWN.replace(one, another, 1))[1] not in ("", same)


CALLS = (
    "def own_gpu(gpus):\n    return d2lps.sharded(gpus)",
    "def own_gpu(gpus):\n    'Mine.'\n    from d2lps import sharded\n    return sharded(gpus)",
    "own_gpu = d2lps.sharded",
    "own_gpu = lambda gpus: d2lps.sharded(gpus)",
    "from d2lps import *\ndef own_gpu(them):\n    return sharded(nodes=them)",
)


@pytest.mark.parametrize("code", CALLS)
def test_an_answer_that_only_calls_the_package_is_found(code):
    assert marks("own-gpu", code) == ("only-calls", "")


@pytest.mark.parametrize(
    "code",
    [
        "def sharded(gpus):\n    return Plan(gpus, {}, [])\ndef own_gpu(gpus):\n    return sharded(gpus)",
        "def own_gpu(gpus):\n    return d2lps.sharded([gpu for gpu in gpus])",
        "def own_gpu(gpus):\n    return Plan(gpus, {}, [])",
        "def own_gpu(gpus):\n    print(gpus)\n    return d2lps.sharded(gpus)",
        "own_gpu = 3",
    ],
)
def test_an_answer_that_does_more_is_not_called_a_mere_call(code):
    assert marks("own-gpu", code) == ("", "")


def test_learners_with_equal_answers_are_named_to_the_teacher_and_alone_ones_are_not():
    places = {"anh/1": "x", "mei/1": "x", "minh/1": "y", "anh/2": "x", "lan/1": "", "hoa/1": ""}
    results = []
    for place, same in places.items():
        learner = place.partition("/")[0]
        row = asdict(judging.Row(learner, place, "01-data-parallelism", "own-gpu", "solved", same=same))
        results.append({"book": running._about(Task(learner, Path(), name=place), []), "rows": [row], "missing": []})
    made = report.report("en", "class", results)
    said = {row["notebook"]: row["look"] for row in made.rows}
    equal = {"anh/1": "mei", "mei/1": "anh", "anh/2": "mei"}
    notes = {place: [text("grade.note.alike", learners=other)] for place, other in equal.items()}
    assert said == dict.fromkeys(places, []) | notes


# ---- at home


def mere_call(gpus):
    """My plan."""
    return d2lps.sharded(gpus)


def own_work(gpus):
    names = list(gpus)
    return d2lps.sharded(names)


@pytest.mark.parametrize("answer, told", [(d2lps.sharded, True), (mere_call, True), (own_work, False)])
def test_check_says_that_a_right_answer_only_calls_the_package(answer, told):
    verdict = d2lps.check_exercise("own-gpu", answer)
    assert verdict.passed and (text("checks.only-calls") in verdict.sentence) == told


def test_wrong_answer_is_not_told_that_it_only_calls():
    verdict = d2lps.check_exercise("overlap", d2lps.aggregate_at)
    assert verdict.passed and text("checks.only-calls") in verdict.sentence
    verdict = d2lps.check_exercise("overlap", lambda gpus, cpu, chunks: d2lps.aggregate_at(gpus, cpu))
    assert not verdict.passed and text("checks.only-calls") not in verdict.sentence

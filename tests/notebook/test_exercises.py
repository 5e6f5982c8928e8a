"""The texts of every exercise, and what all judges do with an answer: nothing hangs, and nothing leaks."""

import doctest
import inspect
import math
import pickle
import re
import sys
import threading
import time as clock
from contextlib import suppress
from fractions import Fraction
from types import SimpleNamespace

import numpy
import pytest
from helpers.exercises import EXERCISES, with_parameters, wrong_answers
from helpers.waits import LIVE

import d2lps
from d2lps import Plan, Send, aggregate_at, check_exercise, sharded, solution
from d2lps.messages import LANGUAGES
from d2lps.notebook.grading import (
    Failure,
    call,
    calls,
    course,
    edited,
    failure,
    number,
    number_text,
    plain,
    size_text,
    time_text,
    unlike,
)
from d2lps.notebook.grading.calls import Overtime, within
from d2lps.notebook.grading.course import ExerciseError, all_texts, texts_of

IDS = tuple(EXERCISES)

# ---- what holds of every exercise


def test_the_graders_and_the_texts_know_the_same_exercises():
    for texts in all_texts().values():
        assert texts.id in EXERCISES
        ids = [each.id for each in all_texts().values() if each.folder == texts.folder]
        assert sorted(course.chapter_module(texts.folder, "grader").EXERCISES) == sorted(ids)
    assert d2lps.check_exercise is check_exercise and d2lps.solution is solution


@pytest.mark.parametrize("id", IDS)
def test_each_case_has_a_label_of_its_own(id):
    labels = [case.label for case in EXERCISES[id].cases]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("id", IDS)
def test_the_stub_has_one_place_to_begin_and_the_parameters_of_the_solution(id):
    name, parameters, code = id.replace("-", "_"), EXERCISES[id].parameters, texts_of(id).stub
    assert code.count("# TODO") == 1 and code.count("#") == 1
    assert code.endswith(f'd2lps.check_exercise("{id}", {name})')
    assert tuple(inspect.signature(texts_of(id).solution()).parameters) == parameters
    assert f"def {name}({', '.join(parameters)}):" in code


@pytest.mark.parametrize("id", IDS)
def test_every_text_stands_in_three_languages(id):
    texts = texts_of(id)
    rungs = {}
    for language in LANGUAGES:
        d2lps.speak(language)
        rungs[language] = texts.ladder
        assert len(texts.ladder) >= 3 and all(rung.strip() for rung in texts.ladder)
        assert all(texts.hint(mistake).strip() for mistake in texts.table["mistakes"])
    assert len({len(each) for each in rungs.values()}) == 1
    assert len({rung for each in rungs.values() for rung in each}) == 3 * len(rungs["en"])


# ---- what holds of all judges, shown on one exercise


@pytest.mark.parametrize(
    "language, labels",
    [
        ("en", [f"Show hint {i} of 4" for i in (1, 2, 3, 4)]),
        ("vi", [f"Xem gợi ý {i} trên 4" for i in (1, 2, 3, 4)]),
        ("zh", [f"显示提示 {i}（共 4 条）" for i in (1, 2, 3, 4)]),
    ],
)
def test_hints_are_shown_on_request_only(language, labels):
    d2lps.speak(language)
    rungs = texts_of("own-gpu").ladder
    seen = [check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0")) for _ in range(5)]
    assert all(verdict == seen[0] and verdict.ladder == rungs for verdict in seen)
    assert not any(rung in str(verdict) for rung in rungs for verdict in seen)
    # Each stands folded, and within the one before.
    html = seen[-1]._repr_html_()
    assert re.findall("<summary>(.*?)</summary>", html) == labels
    assert "<details open" not in html
    assert re.fullmatch(r".*(<details>.*?){4}(</details>){4}</div>", html, re.DOTALL)
    assert check_exercise("own-gpu", sharded).ladder == ()


def test_an_unknown_exercise_is_refused_with_the_list():
    for ask in (lambda: check_exercise("own-gpus", sharded), lambda: solution("own-gpus")):
        with pytest.raises(ExerciseError, match=", ".join(IDS)) as refused:
            ask()
        assert refused.value.reason == "unknown" and isinstance(refused.value, ValueError)


def test_an_installation_without_the_course_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "CHAPTERS", tmp_path / "chapters")
    for ask in (lambda: check_exercise("own-gpu", sharded), lambda: solution("own-gpu")):
        with pytest.raises(ExerciseError, match="without the course") as refused:
            ask()
        assert refused.value.reason == "no-course"


GRADED = """
from d2lps.notebook.grading import Exercise, PlanCase, PlanJudge

from . import neighbour

EXERCISES = {"new-one": Exercise(("gpus",), (neighbour.case,), PlanJudge(neighbour.mistake))}
"""
NEIGHBOUR = """
from fractions import Fraction

from d2lps import pcie_server
from d2lps.notebook.grading import PlanCase

case = PlanCase("n = 2", (["gpu0", "gpu1"],), ("gpu0", "gpu1"), pcie_server(2, "16 GB/s"), 2, Fraction(1, 100))


def mistake(counts):
    return "slow"
"""
NEW_ONE = """
[new-one]
hints = []
mistakes.slow = { en = "Slow.", vi = "Chậm.", zh = "慢。" }
passed = { en = "{time}", vi = "{time}", zh = "{time}" }
"""


def chapter(monkeypatch, tmp_path, name: str, **files: str):
    """A course of one chapter, whose only exercise is ``new-one``."""
    folder = tmp_path / "chapters" / name
    folder.mkdir(parents=True)
    for file, content in {"exercises": NEW_ONE, **files}.items():
        (folder / (f"{file}.toml" if file == "exercises" else f"{file}.py")).write_text(content, "utf-8")
    monkeypatch.setattr(course, "CHAPTERS", folder.parent)
    return folder


def test_a_new_chapter_brings_its_grader_along(monkeypatch, tmp_path):
    folder = chapter(monkeypatch, tmp_path, "90-new", grader=GRADED, neighbour=NEIGHBOUR)
    assert check_exercise("new-one", sharded).sentence.splitlines()[0] == "10\u00a0ms"
    slow = check_exercise("new-one", lambda gpus: d2lps.naive_ring(gpus))
    assert (slow.mistake, slow.hint) == ("slow", "Slow.")
    mistake = texts_of("new-one").exercise().judge.diagnose
    assert (mistake.__module__, mistake.__code__.co_filename) == (
        "chapter_90_new.neighbour",
        str(folder / "neighbour.py"),
    )
    assert pickle.loads(pickle.dumps(mistake)) is mistake
    assert texts_of("new-one").exercise() is texts_of("new-one").exercise()  # loaded once


@pytest.mark.parametrize(
    "reason, files, part",
    [
        ("no-grader", {}, "there is no"),
        ("broken-grader", {"grader": "EXERCISES = {"}, "SyntaxError"),
        ("broken-grader", {"grader": "import no_such_module"}, "No module named 'no_such_module'"),
        ("broken-grader", {"grader": "from . import nobody"}, "nobody"),
        ("broken-grader", {"grader": "1 / 0"}, "ZeroDivisionError: division by zero"),
        ("broken-grader", {"grader": ""}, "EXERCISES"),
        ("broken-grader", {"grader": "EXERCISES = 3"}, "TypeError"),
        ("ungraded", {"grader": "EXERCISES = {}"}, "not in EXERCISES"),
    ],
)
def test_a_grader_that_is_missing_or_broken_is_named(monkeypatch, tmp_path, reason, files, part):
    folder = chapter(monkeypatch, tmp_path, f"91-{tmp_path.name}", **files)
    for language in reversed(LANGUAGES):
        d2lps.speak(language)
        with pytest.raises(ExerciseError) as refused:
            check_exercise("new-one", sharded)
        sentence = str(refused.value)
        assert refused.value.reason == reason and "'new-one'" in sentence and str(folder / "grader.py") in sentence
    assert part in sentence
    assert (refused.value.__cause__ is not None) == (reason == "broken-grader")


def test_a_grader_is_read_again_when_it_has_been_mended(monkeypatch, tmp_path):
    folder = chapter(monkeypatch, tmp_path, "92-mended", grader="1 / 0", neighbour=NEIGHBOUR)
    with pytest.raises(ExerciseError):
        check_exercise("new-one", sharded)
    (folder / "grader.py").write_text(GRADED, "utf-8")
    assert check_exercise("new-one", sharded).passed
    (folder / "exercises.toml").write_text(NEW_ONE.replace("{time}", "Well done: {time}"), "utf-8")
    assert check_exercise("new-one", sharded).sentence.splitlines()[0] == "Well done: 10\u00a0ms"


OTHERS = ("lesson", "solutions", "figures", "film")
GRADERS = [path for path in course.CHAPTERS.glob("*/*.py") if path.stem not in OTHERS]


@pytest.mark.parametrize("path", GRADERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_examples_in_graders_run(path):
    examples = doctest.testmod(course.chapter_module(path.parent, path.stem))
    assert not examples.failed


def deep(gpus):
    return deep(gpus)


def leave(gpus):
    sys.exit("enough")


def fails_at_three(gpus):
    if len(gpus) == 3:
        raise KeyError("g3")
    return sharded(gpus)


@pytest.mark.parametrize(
    "answer, mistake, part",
    [
        (sharded(["a", "b"]), "not-callable", "Plan"),
        (None, "not-callable", "NoneType"),
        (lambda: None, "signature", "too many positional arguments"),
        (lambda gpus, cpu: None, "signature", "'cpu'"),
        (lambda gpus: None, "nothing-returned", "n = 4"),
        (lambda gpus: ..., "not-a-plan", "ellipsis"),
        (lambda gpus: [[Send("gpu0", "gpu1", "g")]], "not-a-plan", "list"),
        (lambda gpus: gpus[9], "raised", "IndexError: list index out of range"),
        (lambda gpus: Plan(gpus, {"g": 1}), "raised", "missing 1 required positional argument: 'steps'"),
        (deep, "raised", "RecursionError"),
        (leave, "raised", "SystemExit: enough"),
        (fails_at_three, "not-general", "KeyError: 'g3'"),
        (set, "not-a-plan", "set"),
        (lambda gpus: Plan("gpu0", {"g": 1}, []), "broken-plan", "list of names"),
        (lambda gpus: Plan(gpus, {"g": 1}, [["x"]]), "broken-plan", "step 1"),
        (lambda gpus: Plan(gpus, {"g": 1}, [], wants=()), "todo", "nothing is sent"),
        (
            lambda gpus: Plan(["x", "y"], {"g": 1}, [[Send("x", "y", "g")], [Send("y", "x", "g", "copy")]]),
            "other-nodes",
            "x",
        ),
        (lambda gpus: sharded(gpus[:2]), "other-nodes", "gpu2"),
        (lambda gpus: sharded(gpus, update=("sgd", {"lr": 0.1})), "updates", "weights"),
        (lambda gpus: Plan(gpus, {"g": 1}, sharded(gpus).steps), "unknown-name", "g1"),
    ],
)
def test_each_behavior_of_an_answer_becomes_a_sentence(answer, mistake, part):
    verdict = check_exercise("own-gpu", answer)
    assert (verdict.passed, verdict.mistake) == (False, mistake), verdict.sentence
    assert part in verdict.sentence and verdict.hint
    assert "Traceback" not in str(verdict) and "\n" not in verdict.sentence
    assert "n = " in verdict.sentence or mistake in ("not-callable", "signature")


def test_the_line_that_raised_is_named():
    names = {}
    exec(compile("def answer(gpus):\n    x = 1\n    return gpus[9]\n", "cell", "exec"), names)
    assert "line 3 raised IndexError" in check_exercise("own-gpu", names["answer"]).sentence


def test_an_endless_answer_is_stopped():
    beats = []

    def endless(gpus):
        if len(gpus) == 4:
            return sharded(gpus)
        while True:
            beats.append(len(gpus))
            clock.sleep(0)

    check_exercise("own-gpu", sharded)  # its imports take longer than the answer for n = 4
    verdict = check_exercise("own-gpu", endless, deadline=1.0)
    assert verdict.mistake == "endless"
    assert re.match("n = 2: no plan after 10?\u00a0s", verdict.sentence)  # ten times as long if the machine is busy
    stopped = len(beats)
    clock.sleep(0.1)
    assert len(beats) == stopped


def test_an_answer_on_a_busy_machine_has_its_time_of_the_processor(monkeypatch):
    asked, done = [], threading.Event()

    def used():
        asked.append(None)
        if len(asked) > 3:  # long after the deadline
            done.set()
        return 0.0

    monkeypatch.setattr(calls, "WAITING", 1e6)
    assert within(0.001, lambda: done.wait(LIVE), used)
    monkeypatch.setattr(calls, "WAITING", 2)
    with pytest.raises(Overtime) as late:
        within(0.01, threading.Event().wait, used)
    assert late.value.seconds == 0.02


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_what_was_refused_stays_refused(caught):
    """A failure that the answer catches ends the judgement, whether the answer goes on for ever or returns."""
    failed = lambda: failure("differs", "todo", SimpleNamespace(label="n = 1"))  # noqa: E731

    def refuse():
        raise failed()

    def ends():
        try:
            refuse()
        except caught:
            raise ValueError from None

    def returns():
        with suppress(caught):
            refuse()
        return 1

    def goes_on():
        while True:
            with suppress(caught):
                refuse()

    for answer in (ends, returns, goes_on):
        with pytest.raises(Failure) as first:
            within(LIVE, lambda answer=answer: call(None, answer))
        assert first.value.mistake == "differs"


def test_an_answer_that_hangs_outside_python_does_not_hang_the_notebook():
    release = threading.Event()
    verdict = check_exercise("own-gpu", lambda gpus: release.wait(), deadline="200 ms")
    assert verdict.mistake == "endless"
    release.set()


def test_an_answer_that_catches_everything_is_stopped_too():
    def stubborn(gpus):
        for _ in range(2):
            try:
                while True:
                    pass
            except BaseException:
                continue

    verdict = check_exercise("own-gpu", stubborn, deadline=0.2)
    assert verdict.mistake == "endless"


def test_the_deadline_works_in_any_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check_exercise("own-gpu", sharded)))
    thread.start()
    thread.join(LIVE)
    assert verdicts[0].passed
    with pytest.raises(Overtime):
        within(0.05, lambda: clock.sleep(1))
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)


def test_the_verdict_shows_itself():
    check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    verdict = check_exercise("own-gpu", lambda gpus: owned_by_float(gpus))
    assert str(verdict) == repr(verdict) and str(verdict).startswith("✗ Not yet.\n")
    html = verdict._repr_html_()
    assert "✗ Not yet." in html and "<code>" in html and "`" not in html and 'lang="en"' in html
    assert re.search(r"<details><summary>.+</summary><p>.+</p>", html)
    assert "color:" not in html.replace("border-left", "")
    right = check_exercise("own-gpu", sharded)
    assert right._repr_html_().count("<p>") == 4 and "✓ Right." in right._repr_html_()
    d2lps.speak("zh")
    assert "提示：求和" in str(check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0")))
    with pytest.raises(AttributeError):
        right.passed = False


def owned_by_float(gpus):
    return Plan(gpus, {f"<{j}>": 1 / len(gpus) for j in range(len(gpus))}, [])


def test_text_of_an_answer_is_not_html():
    def nasty(gpus):
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in check_exercise("own-gpu", nasty)._repr_html_()


@pytest.mark.parametrize("value", [2, 2.5, Fraction(5, 2), numpy.float32(2.5), numpy.int64(2), numpy.array(2.5)])
def test_numbers_of_every_kind_are_numbers(value):
    assert number(value) == value and not hasattr(number(value), "dtype")


def in_torch_64(value):
    import torch

    return torch.tensor(value)


def test_a_tensor_of_one_element_is_a_number():
    import torch

    assert [number(torch.tensor(each)) for each in (2, 2.5, [2.5])] == [2, 2.5, 2.5]
    no_numbers = True, numpy.bool_(True), torch.tensor(True), torch.tensor([2, 2]), torch.empty((), device="meta"), "2"
    for other in no_numbers:
        with pytest.raises(TypeError):
            number(other)


@pytest.mark.parametrize("kind", [numpy.int64, in_torch_64])
def test_what_a_server_stores_or_says_may_be_a_number_of_every_kind(kind):
    counted = edited(texts_of("count-once").solution(), ("total += gradient", "total = kind(total + gradient)"))
    counted.__globals__["kind"] = kind
    assert check_exercise("count-once", counted, "100 s").passed
    read = edited(texts_of("staleness").solution(), ("return own >=", "return kind(own) >="))
    read.__globals__["kind"] = kind
    assert check_exercise("staleness", read, "100 s").passed


def test_plain_values_are_copied_and_others_are_named():
    kept = {"w": (1.5, [True, None, {2}])}
    assert plain(kept) == kept and plain(kept)["w"][1] is not kept["w"][1]
    with pytest.raises(TypeError, match="object is no number"):
        plain([object()])


@pytest.mark.parametrize("got, right", [(1.0303, 1.0301), (1875000016, 1875000017), (20.05, 20.0499999), (0.1, 10**18)])
def test_two_numbers_in_a_sentence_differ_in_every_unit(got, right):
    for write in (number_text, time_text, size_text):
        one, other = unlike(got, right, write)
        assert one != other and unlike(right, got, write) == (other, one)


def test_an_edit_changes_one_place_of_an_answer_and_has_to_fit_there():
    wrong = edited(fails_at_three, ("== 3", "== 2"))
    assert wrong(["a", "b", "c"]) == sharded(["a", "b", "c"])
    with pytest.raises(KeyError):
        wrong(["a", "b"])
    for absent_or_twice in ("no such words", "gpus"):
        with pytest.raises(ValueError):
            edited(fails_at_three, (absent_or_twice, ""))


NUMBERS = [
    "servers",
    "interval",
    "critical-batch",
    "break-even",
    "busbw",
    "state-bytes",
    "cache-hit",
    "mfu",
    "global-norm",
]


def in_numpy(value):
    return numpy.asarray(value)[()]


def in_torch(value):
    import torch

    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


@pytest.mark.parametrize("kind", [in_numpy, in_torch])
@pytest.mark.parametrize("id", [*NUMBERS, "seven-steps", "mfu", "which-way"])
def test_numbers_of_numpy_and_torch_are_answers(id, kind):
    solution = texts_of(id).solution()

    def each(value):
        if isinstance(value, dict):
            return {key: each(inner) for key, inner in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(map(each, value))
        return value if value is None else kind(value)

    verdict = check_exercise(id, with_parameters(id, lambda *arguments: each(solution(*arguments))), "100 s")
    assert verdict.passed, verdict


def off(result):
    return [each * (1 + 1e-5) for each in result] if isinstance(result, tuple) else result * (1 + 3e-6)


@pytest.mark.parametrize(
    "id, near", [("busbw", off), ("mfu", off), ("state-bytes", lambda result: math.nextafter(result, math.inf))]
)
def test_a_number_differs_from_the_right_one_beside_it(id, near):
    solution = texts_of(id).solution()
    verdict = check_exercise(id, with_parameters(id, lambda *arguments: near(solution(*arguments))))
    got, right = re.search(r" is (.+), but (.+?)(?: bytes)? would be right", verdict.sentence).groups()
    assert got != right and verdict.mistake == "differs", verdict


def test_a_batch_that_is_not_the_least_takes_fewer_steps_than_wanted():
    judging = course.chapter_module(texts_of("critical-batch").folder, "judge_critical_batch")
    case = judging.BatchCase(20, 246, (1, 2), 20.05)
    with pytest.raises(Failure, match="batches of 4921 take 20.04999 steps") as refused:
        judging.judge(case, lambda *_: 4921)
    assert "q = 20.05" in str(refused.value)


def test_a_reduction_that_rounds_is_shown_with_the_digits_that_it_lacks():
    import torch

    def rounded(own, arrived):
        return torch.logaddexp(own, arrived).round(decimals=2)

    sentence = check_exercise("beyond-sums", lambda: d2lps.Reduction("x", rounded, -math.inf), "100 s").sentence
    got, right = re.search(r" has (.+) in key .+, but (.+) would be right", sentence).groups()
    assert got != right


WORLDS = (*("push-pull", "local-sgd", "fault-tolerance", "break-even", "tensor-mlp", "bruck"),)


def trying_for_ever(function):
    """Return the function, called again whatever error it raises."""

    def stubborn(*arguments):
        while True:
            with suppress(Exception):
                return function(*arguments)

    return stubborn


@pytest.mark.parametrize("id", WORLDS)
def test_a_mistake_keeps_its_name_if_the_answer_tries_for_ever(id):
    for mistake, answers in wrong_answers(id).items():
        for answer in answers:

            def stubborn(*arguments, answer=answer):
                return answer(*(trying_for_ever(each) if callable(each) else each for each in arguments))

            assert check_exercise(id, with_parameters(id, stubborn), LIVE).mistake == mistake

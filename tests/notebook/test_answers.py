"""Answers to every exercise: right ones pass, and each wrong one gets the hint for its mistake, in three languages.

Each is judged once; the verdict is then shown in all languages. The answers of a chapter stand in its own file.
"""

import re
from importlib import import_module
from pathlib import Path

import pytest
from helpers.exercises import (
    EXERCISES,
    HOSTILE,
    LONG,
    PLANNED,
    TRACED,
    all_languages,
    be_impatient,
    called_in,
    cell,
    endless,
    greedy,
    ids_of,
    in_each_language,
    judged,
    with_parameters,
    wrong_answers,
)

import d2lps
from d2lps import check_exercise, solution
from d2lps.messages import sentences
from d2lps.notebook.grading import plan_judge
from d2lps.notebook.grading.course import texts_of

TABLES = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("test_exercises_*.py"))]
IDS = tuple(EXERCISES)
RIGHT = {id: answers for table in TABLES for id, answers in table.RIGHT.items()}
MEASURED = {id: parts for table in TABLES for id, parts in getattr(table, "MEASURED", {}).items()}
PLAYED = [id for id in IDS if id not in (*TRACED, *LONG)]  # whose judges play the answer, or compare its result
CASE = r"([kmnp]|len\((sizes|costs|ids)\)) = \d"  # how a sentence begins
# The mistakes whose hints are those of all exercises.
COMMON = {"differs", "endless", "not-general", "nothing-returned", "raised", "wrong-type"}

# The mistakes in which nothing can be played, and those in which it depends on the answer.
NOT_PLAYED = set(
    """inexact share-sum unknown-name to-itself overwritten nothing-returned raised wrong-identity wrong-type
    negative""".split()
)
MAYBE_PLAYED = {"counted-twice", "differs", "too-early", "not-general", "no-link", "other-nodes"}


def test_every_exercise_has_a_table():
    assert {id for table in TABLES for id in table.IDS} == set(IDS)
    assert all(set(table.RIGHT) == set(table.IDS) <= set(ids_of(table.CHAPTER)) for table in TABLES)


@pytest.mark.parametrize("id", IDS)
def test_the_stub_gets_the_advice_to_begin(id):
    with all_languages():
        first, again = cell(texts_of(id).stub), cell(texts_of(id).stub)
    assert first == again
    for language, verdict in in_each_language(first).items():
        d2lps.speak(language)
        assert (verdict.passed, verdict.mistake, verdict.ladder, verdict.trace) == (False, "todo", (), None)
        assert verdict.hint == texts_of(id).hint("todo")
        assert str(verdict).startswith(f"– {d2lps.messages.text('checks.not-begun')}\n")


@pytest.mark.parametrize("id", IDS)
def test_the_solution_is_shown_and_gives_nothing_away_in_the_stub(id):
    shown = solution(id)
    assert isinstance(shown, d2lps.view.tables.Source) and shown.code.startswith(f"def {id.replace('-', '_')}(")
    secret = {line.strip() for line in shown.code.splitlines()[1:] if "return" not in line and "def " not in line}
    in_stub = {line.strip() for line in texts_of(id).stub.splitlines()}
    assert secret - {""} - in_stub
    called, solutions = called_in(shown.code), texts_of(id).solutions()
    helpers = {name for name, value in solutions.items() if getattr(value, "__module__", "").startswith("solutions_of")}
    assert not called & helpers
    part = {"ring"} if id == "hybrid" else set()  # the algorithm is a part of the answer, not the answer
    assert not called & set(d2lps.__all__) - {"Plan", "Send", "Reduction"} - part, "an algorithm of the library"
    if id in (*ids_of("01-data-parallelism"), *ids_of("02-ring")):
        assert ({"Plan", "Send"} <= called) == (id in PLANNED) and not secret & in_stub


def assert_right(id, answer, verdicts):
    for language, verdict in verdicts.items():
        d2lps.speak(language)
        assert verdict.passed, verdict
        assert (verdict.hint, verdict.ladder, verdict.mistake) == ("", (), None)
        assert verdict.sentence.strip() and "{" not in verdict.sentence and "✓" in verdict._repr_html_()
        assert (verdict.trace is not None) == (id in TRACED)
        assert id in TRACED or re.match(CASE, verdict.sentence)
        if id in PLANNED:
            assert verdict.trace.plan == answer(*EXERCISES[id].cases[0].arguments)


@pytest.mark.parametrize("id", IDS)
def test_the_solution_passes_even_if_it_empties_its_arguments(id):
    answer = texts_of(id).solution()
    verdicts = judged(id, answer if id in LONG else greedy(id))
    assert_right(id, answer, verdicts)
    said = verdicts["en"].sentence.replace("\u00a0", " ")
    assert [part for part in MEASURED.get(id, ()) if part not in said] == [], said
    if id not in LONG:
        assert judged(id, answer) == verdicts, "the first attempt has changed the cases"


@pytest.mark.parametrize("id, answer", [pytest.param(id, each) for id, answers in RIGHT.items() for each in answers])
def test_a_right_answer_unlike_the_solution_passes(id, answer):
    assert_right(id, answer, judged(id, answer))


def every_wrong() -> list:
    return [
        pytest.param(id, mistake, answer, id=f"{id} {mistake} {i}")
        for id in IDS
        for mistake, answers in wrong_answers(id).items()
        for i, answer in enumerate(answers, 1)
    ]


@pytest.mark.parametrize("id, mistake, answer", every_wrong())
def test_a_wrong_answer_gets_the_hint_for_its_mistake(id, mistake, answer, monkeypatch):
    if mistake == "endless":
        be_impatient(monkeypatch)
    for language, verdict in judged(id, answer, "1 s" if mistake == "endless" else "100 s").items():
        d2lps.speak(language)
        assert (verdict.passed, verdict.mistake) == (False, mistake), verdict.sentence
        assert verdict.hint == texts_of(id).hint(mistake) and verdict.hint
        assert re.match(CASE, verdict.sentence) and "{" not in verdict.sentence
        assert "Traceback" not in str(verdict) and "<p>✗" not in verdict._repr_html_()
    played = verdict.trace
    if mistake in NOT_PLAYED or id not in TRACED:
        assert played is None
    elif mistake not in MAYBE_PLAYED:
        assert played is not None
    if played:
        assert played.origin == "shared" and played.events
        assert d2lps.Trace.from_json(played.to_json()) == played
        assert "text/html" in d2lps.watch(played)._repr_mimebundle_()[0]


def test_there_are_enough_wrong_answers():
    made = {id: set(wrong_answers(id)) for id in IDS}
    for id in IDS:
        hinted = set(texts_of(id).table["mistakes"]) - {"todo"}
        assert len(made[id]) >= 6 and hinted <= made[id] and len(hinted) <= 8, id
        if id in ids_of("04-key-value-store"):
            assert hinted == made[id] - COMMON
    named = {key.removeprefix("checks.mistake.") for key in sentences("en") if key.startswith("checks.mistake.")}
    assert {*plan_judge.MISTAKES.values(), "broken-plan", "not-collected"} <= named
    assert set(plan_judge.MISTAKES.values()) - {"updates"} <= set.union(*made.values())


@pytest.mark.parametrize("id", PLAYED)
def test_a_hostile_answer_gets_a_sentence(id, monkeypatch):
    be_impatient(monkeypatch)
    for hostile in HOSTILE:
        verdict = check_exercise(id, with_parameters(id, hostile), "1 s")
        assert not verdict.passed and verdict.hint and "Traceback" not in str(verdict)


ENDLESS = {texts_of(id).folder: id for id in PLAYED if "endless" not in wrong_answers(id)}  # one of each chapter


@pytest.mark.parametrize("id", ENDLESS.values())
def test_endless_answer_is_stopped(id):
    verdict = check_exercise(id, endless, "100 ms")
    assert verdict.mistake == "endless" and "plan" not in verdict.sentence and verdict.hint

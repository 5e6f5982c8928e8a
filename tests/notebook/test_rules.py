"""Each rule that an exercise states: a solution without it is refused, and the verdict names what is wrong."""

import pytest
from helpers.exercises import EXERCISES, rules, without, wrong_answers

from d2lps.notebook.grading import check_exercise

# Verdicts that name no rule: the answer has crashed, runs for ever, or was not begun.
NAMELESS = ("raised", "endless", "nothing-returned", "todo", "signature", "not-callable")
WAYS = [(id, rule, way) for id in EXERCISES for rule, way in rules(id).items()]
NAMED = [each for each in WAYS if isinstance(each[2], str)]
MUTANTS = [pytest.param(*each, id=": ".join(each[:2])) for each in WAYS if each not in NAMED]


@pytest.mark.parametrize("id", EXERCISES)
def test_every_exercise_lists_its_rules(id):
    assert len(rules(id)) >= 3


def test_a_rule_whose_mutant_is_a_typical_wrong_answer_names_it():
    """test_answers.py judges these."""
    assert [each for each in NAMED if each[2] not in wrong_answers(each[0])] == []


@pytest.mark.parametrize("id, rule, way", MUTANTS)
def test_a_solution_without_a_rule_is_refused_by_name(id, rule, way):
    verdict = check_exercise(id, without(id, way), "100 s")
    assert not verdict.passed and verdict.mistake not in NAMELESS, verdict
    assert verdict.mistake != "not-general" or " raised " not in verdict.sentence, verdict  # which it would hide

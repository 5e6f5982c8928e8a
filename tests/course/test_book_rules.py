"""The rules of each language: every one finds the place that its file gives as an example."""

import pytest

from course.book.language import FILES, RULES
from d2lps.messages import LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_rule_finds_its_example(language):
    for rule in RULES[language]:
        assert list(rule.places(rule.example)), f"{language}.toml: {rule.pattern} is not in {rule.example!r}"


def test_every_language_spells_zero_to_twelve():
    assert {len(FILES[language]["numbers"]["spelled"]) for language in LANGUAGES} == {13}

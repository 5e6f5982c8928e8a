"""The glossary held against the texts: one concept, one word, and never a wrong one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from d2lps.course.book.findings import Finding, Passage
from d2lps.messages import LANGUAGES

COVERAGE = 0.95


@dataclass(frozen=True)
class Term:
    """One concept: its English words, its translations, and the words that are wrong for it."""

    en: tuple[str, ...]
    words: dict[str, tuple[str, ...]]
    never: dict[str, tuple[str, ...]]
    suspect: dict[str, tuple[str, ...]]
    first: tuple[str, ...] = ()
    common: bool = False


def terms(tables: list[dict]) -> list[Term]:
    """The glossary as written in ``terms.toml``."""
    made = []
    for table in tables:
        each = {language: (table[language], *table.get(f"allow_{language}", ())) for language in ("vi", "zh")}
        made.append(
            Term(
                (table["en"], *table.get("also", ())),
                each,
                {language: tuple(table.get(f"no_{language}", ())) for language in each},
                {language: tuple(table.get(f"warn_{language}", ())) for language in each},
                tuple(table.get("first", ())),
                table.get("common", False),
            )
        )
    return made


def names(listed: list[str], glossary: list[Term]) -> dict[str, set[str]]:
    """The words that each language leaves in English: the listed names, and terms that it does not translate."""
    kept = {language: {name.lower() for name in listed} for language in LANGUAGES}
    for term in glossary:
        for language, words in term.words.items():
            for english in term.en:
                if any(english.lower() in word.lower() for word in words):
                    kept[language].update(english.lower().split())
    return kept


def wrong_words(passage: Passage, glossary: list[Term]) -> Iterator[Finding]:
    """No word that the glossary forbids; a suspect word only where the English speaks of its concept."""
    english = passage.readings["en"].text if "en" in passage.readings else ""
    present = _present(english, glossary) if english else set()
    for language in ("vi", "zh"):
        if language not in passage.readings:
            continue
        text = passage.readings[language].text
        rest = _without_terms(text, language, tuple(glossary_words(glossary, language)))
        for index, term in enumerate(glossary):
            right = term.words[language][0]
            for word in term.never[language]:
                if _pattern(word, language).search(text):
                    yield passage.fail("glossary", f"{word!r} is not {term.en[0]!r}; write {right!r}", language)
            for word in term.suspect[language]:
                if index in present and _pattern(word, language).search(rest):
                    yield passage.warn("glossary", f"{word!r}: {term.en[0]!r} is {right!r}", language)


def coverage(passages: list[Passage], glossary: list[Term], chapter: str) -> Iterator[Finding]:
    """Where the English has a term, the others have its translation: nearly always in a chapter."""
    for language in ("vi", "zh"):
        seen = missed = 0
        for passage in passages:
            if passage.kind != "section" or language not in passage.readings:
                continue
            text = passage.readings[language].text
            for index in sorted(_present(passage.readings["en"].text, glossary)):
                term = glossary[index]
                if term.common:
                    continue
                seen += 1
                if not any(_pattern(word, language).search(text) for word in term.words[language]):
                    missed += 1
                    yield passage.warn("glossary", f"{term.en[0]!r} without {term.words[language][0]!r}", language)
        if seen and 1 - missed / seen < COVERAGE:
            yield Finding(
                "fail",
                "glossary",
                "(chapter)",
                (language,),
                f"{seen - missed} of {seen} terms are translated as the glossary says; {COVERAGE:.0%} are needed",
                f"edit chapters/{chapter}/{language}.md or chapters/terms.toml",
            )


def first_use(passages: list[Passage], glossary: list[Term]) -> Iterator[Finding]:
    """The first use of a marked term carries the English in parentheses; later uses do not."""
    sections = [passage for passage in passages if passage.kind == "section"]
    for language in ("vi", "zh"):
        uses = [
            (passage, unit.text)
            for passage in sections
            if language in passage.readings
            for unit in passage.readings[language].units
            if unit.kind != "heading"
        ]
        words = tuple(glossary_words(glossary, language))
        for term in glossary:
            if term.words[language][0].lower() == term.en[0].lower():
                continue
            glossed = _glossed(term, language)
            found = [(passage, match) for passage, text in uses for match in glossed.finditer(text)]
            for passage, match in found[1:]:
                yield passage.warn(
                    "first use", f"{match.group()!r}: the English stands at the first use only", language
                )
            if language not in term.first:
                continue
            at = next((place for place in uses if _stands(place[1], term, language, words)), None)
            if at and not found:
                yield at[0].fail("first use", f"{term.words[language][0]!r} never carries ({term.en[0]})", language)
            elif at and at[0] is not found[0][0]:
                yield at[0].warn(
                    "first use",
                    f"{term.words[language][0]!r} carries ({term.en[0]}) only later, in {found[0][0].name!r}",
                    language,
                )


def one_word(passages: list[Passage], glossary: list[Term], chapter: str) -> Iterator[Finding]:
    """One concept has one word throughout a chapter, even where the glossary allows two."""
    for language in ("vi", "zh"):
        text = "\n".join(each.readings[language].text for each in passages if language in each.readings)
        for term in glossary:
            used = [word for word in term.words[language] if _pattern(word, language).search(text)]
            if len(used) > 1 and not any(a != b and a.lower() in b.lower() for a in used for b in used):
                yield Finding(
                    "fail",
                    "glossary",
                    "(chapter)",
                    (language,),
                    f"{term.en[0]!r} is called {' and '.join(map(repr, used))}; choose one",
                    f"edit chapters/{chapter}/{language}.md",
                )


def glossary_words(glossary: list[Term], language: str) -> list[str]:
    """All translations, longest first."""
    return sorted({word for term in glossary for word in term.words[language]}, key=len, reverse=True)


def _present(english: str, glossary: list[Term]) -> set[int]:
    """Which terms the English uses; a longer term hides the shorter ones inside it."""
    pattern, owners = _english(tuple(term.en for term in glossary))
    return {owners[match.lastgroup] for match in pattern.finditer(english)}


@cache
def _english(words: tuple[tuple[str, ...], ...]) -> tuple[re.Pattern, dict[str, int]]:
    every = sorted(
        ((word, index) for index, each in enumerate(words) for word in each),
        key=lambda pair: len(pair[0]),
        reverse=True,
    )
    owners = {f"t{number}": index for number, (_, index) in enumerate(every)}
    choices = "|".join(f"(?P<t{number}>{_inflected(word)})" for number, (word, _) in enumerate(every))
    return re.compile(rf"(?<![\w-])(?:{choices})(?![\w-])", re.I), owners


def _inflected(word: str) -> str:
    stem = re.sub(r"[\s-]+", r"[\\s-]+", re.escape(word).replace(r"\ ", " ").replace(r"\-", "-"))
    return f"{stem[:-1]}(?:y|ies)" if re.search("[^aeiou]y$", word) else f"{stem}(?:e?s)?"


@cache
def _pattern(word: str, language: str) -> re.Pattern:
    if language == "zh":
        return re.compile(re.escape(word), re.I)
    spaced = re.escape(word).replace("\\ ", r"\s+")
    return re.compile(rf"(?<!\w){spaced}(?!\w)", re.I)


@cache
def _glossed_pattern(words: tuple[str, ...], english: tuple[str, ...], language: str) -> re.Pattern:
    own = "|".join(_pattern(word, language).pattern for word in words)
    other = "|".join(_inflected(word) for word in english)
    return re.compile(rf"(?:{own}) ?[(（](?:{other})(?![\w-])[^()（）]{{0,20}}[)）]", re.I)


def _glossed(term: Term, language: str) -> re.Pattern:
    return _glossed_pattern(term.words[language], term.en, language)


def _stands(text: str, term: Term, language: str, words: tuple[str, ...]) -> bool:
    """The text uses the term itself, not only a longer term that contains it."""
    own = {word.lower() for word in term.words[language]}
    longer = tuple(word for word in words if any(each in word.lower() and each != word.lower() for each in own))
    rest = _without_terms(text, language, longer)
    return any(_pattern(word, language).search(rest) for word in term.words[language])


def _without_terms(text: str, language: str, words: tuple[str, ...]) -> str:
    for word in words:
        text = _pattern(word, language).sub("\n", text)
    return text

"""Checks of the texts against the glossary: a concept has one word, a word one concept; wrong words are never used."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property

from course.book.findings import BookError, Finding
from course.book.language import FILES, regex
from course.book.reading import Passage
from d2lps.messages import LANGUAGES

COVERAGE = 0.95
# Words in a formula explain themselves; commands and single letters of TeX are symbols.
_TEX = re.compile(r"\\(?:text|mathrm|operatorname)\{[^{}]*\}|\\(?P<command>[A-Za-z]+)|(?P<letter>[A-Za-z])")
# English in brackets behind a word, as in “máy thợ (worker)”; neither a call, push(key), nor a tuple, (worker, number).
_ASIDE = re.compile(r"(?:\s\(|（)([A-Za-z][A-Za-z–’' -]*)(?:[)），]|,(?![A-Za-z ]*\)))")
GREEK = set(
    "alpha beta gamma delta epsilon varepsilon eta theta lambda mu nu rho sigma tau phi omega Gamma Delta Theta".split()
)
FIRST, *OTHERS = LANGUAGES
# The texts whose words `[elsewhere]` of terms.toml lists, in its order → the language of each.
ELSEWHERE = {"d2l": "en", "d2l-vi": "vi", "d2l-vi-mt": "vi", "d2l-zh": "zh", "openmlsys": "zh"}


@dataclass(frozen=True)
class Term:
    """A concept: its English words, its translation per language, words that are wrong for it, and its meaning."""

    en: tuple[str, ...]
    words: dict[str, str]
    never: dict[str, tuple[str, ...]]
    suspect: dict[str, tuple[str, ...]]
    first: tuple[str, ...] = ()
    common: bool = False
    means: dict[str, str] = field(default_factory=dict)
    chapter: str = ""
    other: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)
    bears: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name in addresses: ``"Zipf's law"`` is ``zipfs-law``."""
        return _plain(self.en[0])

    def called(self, language: str) -> tuple[str, ...]:
        """Return its words in a language, the usual one first."""
        return self.en if language == FIRST else (self.words[language],)

    def used(self, text: str, language: str) -> bool:
        """Return whether the text uses its translation."""
        word = self.words[language]
        return word.split()[0].lower() in text.lower() and bool(_pattern(word, language).search(text))


class Glossary:
    """The terms of ``terms.toml``, and the names that are never translated."""

    def __init__(self, written: dict):
        self.terms = [
            Term(
                (table["en"], *table.get("also", ())),
                {language: _translation(table, language) for language in OTHERS},
                {language: tuple(table.get(f"no_{language}", ())) for language in OTHERS},
                {language: tuple(table.get(f"warn_{language}", ())) for language in OTHERS},
                tuple(table.get("first", ())),
                table.get("common", False),
                table.get("means", {}),
                table.get("chapter", ""),
                {language: tuple(table.get(f"other_{language}", ())) for language in LANGUAGES},
                {language: table[f"shares_{language}"] for language in OTHERS if f"shares_{language}" in table},
                {language: tuple(table.get(f"bears_{language}", ())) for language in OTHERS},
            )
            for table in written.get("term", [])
        ]
        _ensure_told_apart(self.terms)
        for term in self.terms:
            _ensure_short(term)
        self.symbols = dict(written.get("symbols", {}))
        self.elsewhere = _elsewhere(written.get("elsewhere", {}), self.terms)
        # Words that each language leaves in English: the listed names, and terms that it does not translate.
        self.names = {language: {name.lower() for name in written.get("names", [])} for language in LANGUAGES}
        for term in self.terms:
            for language, word in term.words.items():
                for english in term.en:
                    if english.lower() in word.lower():
                        self.names[language].update(english.lower().split())

    @cached_property
    def words(self) -> dict[str, list[str]]:
        """Language → all translations, longest first."""
        return {
            language: sorted({term.words[language] for term in self.terms}, key=len, reverse=True)
            for language in OTHERS
        }

    @cached_property
    def _english(self) -> tuple[re.Pattern, dict[str, Term]]:
        pairs = sorted(((word, term) for term in self.terms for word in term.en), key=lambda pair: -len(pair[0]))
        # A choice that begins with a letter is quickly passed over; so its group is empty, and behind it.
        choices = "|".join(f"{inflected(word.lower())}(?P<t{number}>)" for number, (word, _) in enumerate(pairs))
        owners = {f"t{number}": term for number, (_, term) in enumerate(pairs)}
        return re.compile(rf"(?<![\w-])(?:{choices})(?![\w-])"), owners

    def present(self, english: str) -> list[Term]:
        """Return the terms that an English text uses; a longer term hides the shorter ones inside it."""
        if not self.terms:
            return []
        pattern, owners = self._english
        used = {id(owners[match.lastgroup]) for match in pattern.finditer(english.lower())}
        return [term for term in self.terms if id(term) in used]

    def named(self, english: str) -> Term | None:
        """Return the term that an English word, or its plural, names."""
        pattern, owners = self._english
        match = pattern.fullmatch(english.lower()) if self.terms else None
        return match and owners[match.lastgroup]

    def stands(self, text: str, term: Term, language: str) -> bool:
        """Return whether the text uses the term itself, and not only a longer term that contains it."""
        if not term.used(text, language):
            return False
        own = term.words[language].lower()
        longer = [word for word in self.words[language] if own in word.lower() and word.lower() != own]
        return term.used(_without(text, language, longer), language)


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub("['’]", "", word.lower())).strip("-")


def _translation(table: dict, language: str) -> str:
    """Return the one translation of a term; raise BookError if it has two."""
    words = [table[language]] if isinstance(table[language], str) else list(table[language])
    words += table.get(f"allow_{language}", ())
    if len(words) > 1:
        listed = " and ".join(map(repr, words))
        raise BookError(f"terms.toml: {table['en']!r} has two translations in {language}, {listed}; keep one")
    return words[0]


def _ensure_told_apart(terms: list[Term]) -> None:
    """Raise BookError if a word belongs to two terms; in English capitals, spaces and hyphens make no difference."""
    translated: dict[tuple[str, str], Term] = {}
    for term in terms:
        for language, word in term.words.items():
            owner = translated.setdefault((language, word.lower()), term)
            if owner is not term and term.shares.get(language) != owner.en[0]:
                message = f"terms.toml: {word!r} translates both {owner.en[0]!r} and {term.en[0]!r} into {language}"
                raise BookError(f"{message}; give each its own word")
    owners: dict[str, Term] = {}
    for term in terms:
        for word in term.en:
            if (owner := owners.setdefault(_plain(word), term)) is not term:
                message = f"terms.toml: {word!r} of {term.en[0]!r} looks the same as a word of {owner.en[0]!r}"
                raise BookError(f"{message}; keep one of them")


def _ensure_short(term: Term) -> None:
    """Raise BookError if a meaning is too long to be read at a glance."""
    for language, meaning in term.means.items():
        limit, maximum = FILES[language]["sentence"], FILES[language]["meaning"]["most"]
        size = len(regex(limit["counted"]).findall(meaning))
        if size > maximum:
            message = f"terms.toml: what {term.en[0]!r} means takes {size} {limit['unit']} in {language}"
            raise BookError(f"{message}; say it in {maximum}")


def _elsewhere(written: dict[str, list[str]], terms: list[Term]) -> dict[str, dict[str, str]]:
    """Return id of a term → text → its word there; raise BookError if a line is not of a term, or lacks a text."""
    known = {term.en[0]: term for term in terms if term.means}
    for name, words in written.items():
        if name not in known:
            raise BookError(f"terms.toml: {name!r} in [elsewhere] is no term with a meaning; write the `en` of one")
        if len(words) != len(ELSEWHERE) or not any(words):
            raise BookError(
                f'terms.toml: {name!r} in [elsewhere] needs a word or "" for each of {", ".join(ELSEWHERE)}'
            )
    return {known[name].id: dict(zip(ELSEWHERE, words, strict=True)) for name, words in written.items()}


def _without(text: str, language: str, words: list[str]) -> str:
    for word in words:
        text = _pattern(word, language).sub("\n", text)
    return text


def inflected(word: str) -> str:
    """Return a pattern for an English word or its plural, with spaces or hyphens between its parts."""
    stem = re.sub(r"[\s–-]+", r"[\\s–-]+", re.escape(word).replace(r"\ ", " ").replace(r"\-", "-"))
    return f"{stem[:-1]}(?:y|ies)" if re.search("[^aeiou]y$", word) else f"{stem}(?:e?s)?"


@cache
def _pattern(word: str, language: str) -> re.Pattern:
    if not FILES[language].get("spaced", True):
        return re.compile(re.escape(word), re.I)
    spaced = re.escape(word).replace("\\ ", r"\s+")
    return re.compile(rf"(?<!\w){spaced}(?!\w)", re.I)


@cache
def _with_english(word: str, english: tuple[str, ...], language: str) -> re.Pattern:
    """Return a pattern for a term with its English in parentheses behind it."""
    translation = _pattern(word, language).pattern
    originals = "|".join(map(inflected, english))
    return re.compile(rf"{translation} ?[(（](?:{originals})(?![\w-])[^()（）]{{0,20}}[)）]", re.I)


def wrong_words(passage: Passage, glossary: Glossary) -> Iterator[Finding]:
    """Find words that the glossary forbids, and suspect words if the English text uses the concept."""
    present = glossary.present(passage.readings["en"].text) if "en" in passage.readings else []
    for language in OTHERS:
        if language not in passage.readings:
            continue
        text = passage.readings[language].text
        for term in glossary.terms:
            for word in term.never[language]:
                if _pattern(word, language).search(text):
                    message = f"{word!r} is not {term.en[0]!r}; write {term.words[language]!r}"
                    yield passage.fail("glossary", message, language)
        suspects = [(word, term) for term in present for word in term.suspect[language]]
        if any(_pattern(word, language).search(text) for word, _ in suspects):
            rest = _without(text, language, glossary.words[language])
            for word, term in suspects:
                if _pattern(word, language).search(rest):
                    message = f"{word!r}: {term.en[0]!r} is {term.words[language]!r}"
                    yield passage.warn("glossary", message, language)


def second_words(passage: Passage, glossary: Glossary) -> Iterator[Finding]:
    """Find words with the English of a term in brackets behind them that are not its translation."""
    for language in OTHERS:
        units = passage.readings[language].units if language in passage.readings else ()
        for unit in units:
            for match in _ASIDE.finditer(unit.text):
                term = None if match[1].isupper() else glossary.named(match[1])
                if term is None or match[1].lower() in term.words[language].lower():
                    continue
                before = unit.text[: match.start()]
                if not before.lower().endswith((term.words[language].lower(), *term.bears[language])):
                    message = f"{before[-16:].lstrip() + match.group()!r}: {term.en[0]!r} is {term.words[language]!r}"
                    yield passage.fail("glossary", message, language)


def of_chapter(passages: list[Passage], glossary: Glossary, slug: str) -> Iterator[Finding]:
    """Check the terms of a whole chapter: their translations and first uses."""
    for language in OTHERS:
        sections = [passage for passage in passages if passage.kind == "section" and language in passage.readings]
        yield from _coverage(sections, glossary, slug, language)
        yield from _first_use(sections, glossary, language)


def _coverage(sections: list[Passage], glossary: Glossary, slug: str, language: str) -> Iterator[Finding]:
    """Find terms of the English text without a translation; too many of them in a chapter are a failure."""
    wanted = missed = 0
    for passage in sections:
        for term in glossary.present(passage.readings["en"].text):
            if term.common:
                continue
            wanted += 1
            if not term.used(passage.readings[language].text, language):
                missed += 1
                yield passage.warn("glossary", f"{term.en[0]!r} without {term.words[language]!r}", language)
    if wanted and 1 - missed / wanted < COVERAGE:
        message = f"{wanted - missed} of {wanted} terms are translated as the glossary says; {COVERAGE:.0%} are needed"
        yield _chapter_finding(message, slug, language, " or chapters/terms.toml")


def _first_use(sections: list[Passage], glossary: Glossary, language: str) -> Iterator[Finding]:
    """Check that a marked term has the English in parentheses at its first use, and only there."""
    units = [(passage, unit) for passage in sections for unit in passage.readings[language].units]
    uses = [(passage, unit.text) for passage, unit in units if not unit.heading]
    asides = [(passage, text) for passage, text in uses if "(" in text or "（" in text]
    for term in glossary.terms:
        word, english = term.words[language], term.en[0]
        if word.lower() == english.lower():
            continue
        pattern = _with_english(word, term.en, language)
        marked = [(passage, match) for passage, text in asides for match in pattern.finditer(text)]
        for passage, match in marked[1:]:
            message = f"{match.group()!r}: the English stands at the first use only"
            yield passage.warn("first use", message, language)
        if language not in term.first:
            continue
        first = next((passage for passage, text in uses if glossary.stands(text, term, language)), None)
        if first and not marked:
            yield first.fail("first use", f"{word!r} never carries ({english})", language)
        elif first and first is not marked[0][0]:
            message = f"{word!r} carries ({english}) only later, in {marked[0][0].name!r}"
            yield first.warn("first use", message, language)


def _chapter_finding(message: str, slug: str, language: str, extra: str = "") -> Finding:
    return Finding("fail", "glossary", "(chapter)", (language,), message, f"edit chapters/{slug}/{language}.md{extra}")


def symbols(chapter_passages: list[Passage], glossary: Glossary, slug: str) -> Iterator[Finding]:
    """Find letters in formulas that are not among the symbols of the course."""
    for passage in chapter_passages:
        for language, reading in passage.readings.items():
            used = {match["letter"] or match["command"] for formula in reading.math for match in _TEX.finditer(formula)}
            letters = {name for name in used - {None} if len(name) == 1 or name in GREEK}
            for letter in sorted(letters - set(glossary.symbols)) if glossary.symbols else ():
                message = f"{letter} is none of the symbols; take one of {', '.join(glossary.symbols)}, or add it"
                remedy = f"edit chapters/{slug}/{language}.md or [symbols] in chapters/terms.toml"
                yield Finding("fail", "symbols", passage.name, (language,), message, remedy)

"""Checks of each language: right letters and style, no foreign words, the same numbers, about the same length.

The rules are data in ``rules/``: ``every.toml`` for all languages, and a file for each one.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from course.book.findings import Finding
from course.book.library import toml
from course.book.reading import CITED, CODE, HOLE, MARKS, MATH, Passage, Reading, head
from d2lps.messages import LANGUAGES

FILES = {name: toml(Path(__file__).with_name("rules") / f"{name}.toml") for name in ("every", *LANGUAGES)}
SIGNS = str.maketrans({MATH: "$…$", CODE: "`…`", HOLE: "{…}", CITED: "[…]"})


@cache
def regex(pattern: str) -> re.Pattern:
    """Compile a pattern of the rules, with ``{han}`` and other names of sets replaced by their letters."""
    sets = FILES["every"]["sets"]
    return re.compile(re.sub(r"\{([a-z]+)\}", lambda match: sets[match[1]], pattern))


@dataclass(frozen=True)
class Rule:
    """A pattern that is wrong wherever it matches."""

    check: str
    level: str
    around: tuple[int, int]
    pattern: str
    message: str
    example: str

    def places(self, text: str) -> Iterator[str]:
        """Yield a message for each place where the text breaks the rule."""
        for match in regex(self.pattern).finditer(text):
            before = text[max(0, match.start() - self.around[0]) : match.start()].lstrip(" ")
            after = text[match.end() : match.end() + self.around[1]].rstrip(" ")
            place = repr((before + match.group() + after).translate(SIGNS))
            yield self.message.replace("%r", place) if "%r" in self.message else f"{place}: {self.message}"


def _rules(file: dict) -> list[Rule]:
    return [
        Rule(kind["check"], kind.get("level", "fail"), tuple(kind.get("around", (0, 0))), **rule)
        for kind in file.get("rules", ())
        for rule in kind["list"]
    ]


RULES = {language: _rules(FILES["every"]) + _rules(FILES[language]) for language in LANGUAGES}

_WORD = re.compile(r"[^\W\d_]+(?:[-’'–][^\W\d_]+)*")
_MEASURED = regex(r"\d[ \u00a0]?(?:{unit})(?![{letter}/])")
_ASIDE = re.compile(r"\([^()]*\)|（[^（）]*）|“[^“”]*”|\"[^\"]*\"|《[^《》]*》")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_CLAUSE = re.compile(r"(?<=[.!?:;])\s+|(?<=[。！？；：])")


def broken_rules(passage: Passage) -> Iterator[Finding]:
    """Find places that break the rules of all languages or of the language itself."""
    for language, reading in passage.readings.items():
        for rule in RULES[language]:
            for unit in reading.units:
                for message in rule.places(unit.text):
                    yield passage.finding(rule.level, rule.check, message, language)


def letters(passage: Passage) -> Iterator[Finding]:
    """Find text that is not in NFC, and letters of another alphabet."""
    for language, reading in passage.readings.items():
        if not (alphabet := FILES[language].get("letters")):
            continue
        if not unicodedata.is_normalized("NFC", reading.text):
            yield passage.fail(alphabet["check"], "the text is not in NFC; save it with composed letters", language)
        for letter in sorted(set(reading.text) - set(MARKS + alphabet["also"])):
            if letter.isalpha() and not unicodedata.name(letter, "").startswith(alphabet["script"]):
                yield passage.fail(alphabet["check"], f"{letter!r} is of another alphabet", language)


def own_language(passage: Passage, names: dict[str, set[str]]) -> Iterator[Finding]:
    """Find English in the other languages, and the other languages in English."""
    for language, reading in passage.readings.items():
        for unit in reading.units:
            for level, message in _foreign(unit.text, FILES[language]["own"], names[language]):
                yield passage.finding(level, "language", message, language)
    first, *others = passage.readings
    for language in others:
        units = [{unit.text for unit in passage.readings[name].units} for name in (first, language)]
        for text in sorted(units[0] & units[1]):
            if len([word for word in _words(text, names[language]) if re.match("[A-Za-z]{2}", word)]) >= 2:
                yield passage.fail("language", f"{head(text)!r} is the English text", language)


def _foreign(whole: str, settings: dict, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield signs that a text is not in its own language, each as level and sentence."""
    if "other" in settings:
        if regex(settings["other"]).search(whole):
            yield "fail", f"{head(whole)!r} is not {settings['name']}"
        return
    text = _ASIDE.sub(" ", whole)
    plain, counted = regex(settings.get("plain", "(?!)")), settings["counted"]
    words = _words(text if counted == "words" else whole, names)
    parts = words if counted == "words" else regex("[{han}A-Za-z]").findall(whole)
    share = _share(parts, settings)
    foreign = [word for word in words if not _is_own(word, settings, plain)]
    if len(parts) >= settings["long"] and share < settings["warn"]:
        level = "fail" if share < settings["fail"] else "warn"
        yield level, f"{head(whole)!r}: only {share:.0%} of the {counted} are {settings['name']}"
    elif share == 0 and len(foreign) >= 2:
        yield "fail", f"{head(whole)!r} is not {settings['name']}"
    elif "sentence" in settings:
        for sentence in _CLAUSE.split(text):
            inside = _words(sentence, names)
            if len(inside) >= settings["sentence"] and _share(inside, settings) < settings["share"]:
                yield "fail", f"{head(sentence)!r} is not {settings['name']}"
    for run in regex(settings["run"]).findall(text):
        if len([word for word in _words(run, names) if not plain.fullmatch(word)]) >= settings["strays"]:
            yield "fail", f"{head(run)!r}: a run of {settings['stray']}"


def _is_own(word: str, settings: dict, plain: re.Pattern) -> bool:
    return bool(regex(settings["letters"]).search(word) or plain.fullmatch(word))


def _share(parts: list[str], settings: dict) -> float:
    return sum(bool(regex(settings["letters"]).search(part)) for part in parts) / max(1, len(parts))


def _words(text: str, names: set[str]) -> list[str]:
    """Return the words of a text without units, listed names, and words with a capital inside, as PyTorch or GPU."""
    words = _WORD.findall(_MEASURED.sub(" ", text))
    return [word for word in words if word.lower() not in names and not any(map(str.isupper, word[1:]))]


def markup(passage: Passage) -> Iterator[Finding]:
    """Find asterisks, dollars and backticks that are left over in the rendered text."""
    for language, reading in passage.readings.items() if passage.kind != "message" else ():
        for unit in reading.units:
            if left := re.search(r"[*$`]", unit.text):
                yield passage.fail("markup", f"{head(unit.text)!r}: a {left.group()} is left over", language)


def length(passage: Passage) -> Iterator[Finding]:
    """Find texts that are much shorter or longer than the English, or have another number of sentences."""
    first = passage.readings[LANGUAGES[0]]
    if passage.kind != "section" or len(first.text) < 200:
        return
    for language, reading in passage.readings.items():
        if not (usual := FILES[language].get("length")):
            continue
        ratio = len(reading.text) / len(first.text)
        if not usual["low"] <= ratio <= usual["high"]:
            message = f"{ratio:.2f} times the English; {usual['low']} to {usual['high']} is usual"
            yield passage.warn("length", message, language)
        counts = [_sentences(first), _sentences(reading)]
        if not 0.6 <= counts[1] / counts[0] <= 1.4:
            yield passage.warn("length", f"{counts[1]} sentences, {counts[0]} in English", language)


def _sentences(reading: Reading) -> int:
    return sum(bool(part.strip()) for unit in reading.units for part in _SENTENCE.split(unit.text))


def long_sentences(passage: Passage) -> Iterator[Finding]:
    """Find long sentences, counted in words, or in characters if the language puts no spaces between words."""
    for language, reading in passage.readings.items() if passage.kind != "message" else ():
        limits = FILES[language]["sentence"]
        for unit in reading.units:
            for sentence in _SENTENCE.split(unit.text):
                size = len(regex(limits["counted"]).findall(sentence))
                if size > limits["most"]:
                    level = "fail" if size > limits["never"] else "warn"
                    message = f"{head(sentence)!r}: {size} {limits['unit']} in one sentence; at most {limits['most']}"
                    yield passage.finding(level, "sentence", message, language)


def one_sentence(passage: Passage) -> Iterator[Finding]:
    """Find texts that are not exactly one sentence."""
    for language, reading in passage.readings.items():
        if (count := _sentences(reading)) != 1:
            yield passage.fail("sentence", f"{count} sentences where one is wanted", language)


def too_often(passage: Passage) -> Iterator[Finding]:
    """Find phrases that occur more often than in texts written by people."""
    for language, reading in passage.readings.items():
        for rule in FILES[language].get("often", ()):
            count = len(regex(rule["word"]).findall(reading.text))
            size = len(reading.text.split()) if rule["of"] == "words" else len(reading.text)
            if size > rule.get("least", 0) and count > rule.get("base", 0) + rule["share"] * size:
                yield passage.warn("style", rule["message"].format(count=count, share=count / size), language)


# ---- numbers

LARGE = {word: power for language in LANGUAGES for word, power in FILES[language]["numbers"]["large"].items()}
_LARGE_WORDS = "|".join(sorted(LARGE, key=len, reverse=True))
_NUMBER = r"(?<![A-Za-z0-9_.])(?<![A-Za-z]-)(?P<number>[−-]?\d+(?:[\u00a0\u202f]\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)"
TOKEN = regex(
    rf"{_NUMBER}(?:[\u00a0\u202f ]?(?P<unit>{{unit}})(?![{{letter}}/])|(?P<sign>[%×])"
    rf"|[\u00a0 ]?(?P<large>{_LARGE_WORDS})(?![{{letter}}]))?"
)


def same_numbers(passage: Passage) -> Iterator[Finding]:
    """Find numbers that do not appear as often in each language, with their unit; 0 to 12 may be spelled out."""
    numbers = {language: _tokens(reading.text) for language, reading in passage.readings.items()}
    spelled = {language: _spelled(reading.text, language) for language, reading in passage.readings.items()}
    first, *others = numbers
    for other in others:
        for ours, theirs in ((first, other), (other, first)):
            lost: Counter = Counter()
            for token, count in (numbers[ours] - numbers[theirs]).items():
                lost[token] = count - (spelled[theirs][int(token)] if token.isdigit() else 0)
            if lost := +lost:
                yield passage.fail("numbers", f"{', '.join(lost.elements())} in {ours}, not in {theirs}", ours, theirs)
    for value in range(2, 13):
        having = [language for language in sorted(numbers) if numbers[language][str(value)] or spelled[language][value]]
        lacking = sorted(set(numbers) - set(having))
        if having and lacking:
            yield passage.warn("numbers", f"{value} in {' '.join(having)}, not in {' '.join(lacking)}", *lacking)


def _tokens(text: str) -> Counter:
    """Count the numbers with their units; thousands are joined, and 6 万 counts as 60000."""
    tokens: Counter = Counter()
    for match in TOKEN.finditer(text):
        number = re.sub("[\u00a0\u202f]", "", match["number"])
        if match["large"]:
            number = f"{Decimal(number.replace('−', '-')).scaleb(LARGE[match['large'].lower()]):f}"
        number = number.replace("-", "−")
        unit = (match["unit"] or match["sign"] or "").replace("μ", "µ")
        tokens[f"{number}{'' if unit in '%×' else ' '}{unit}"] += 1
    return tokens


def _spelled(text: str, language: str) -> Counter:
    """Count the numbers that are spelled out."""
    pattern, values = _speller(language)
    return Counter(values[word.lower()] for word in pattern.findall(text))


@cache
def _speller(language: str) -> tuple[re.Pattern, dict[str, int]]:
    """Return a pattern for spelled-out numbers, mười hai before hai, and word → value."""
    numbers = FILES[language]["numbers"]
    values = {word: value for value, words in enumerate(numbers["spelled"]) for word in words.split("|")}
    words = "|".join(sorted(values, key=len, reverse=True))
    return re.compile("(?i)" + numbers["word"].replace("…", words)), values

"""Is each text in its own language, written properly, and about as long as the others?

Thresholds were measured on human Vietnamese and Chinese prose about the same subject.
"""

import re
import unicodedata
from collections.abc import Iterator

from d2lps.course.book.findings import Finding, Passage
from d2lps.course.book.numbers import UNIT
from d2lps.course.book.plain import CODE, MARKS, Unit
from d2lps.course.book.structure import HAN, VIETNAMESE

_MARKED = re.compile(f"[{VIETNAMESE}]", re.I)
_WORD = re.compile(r"[^\W\d_]+(?:[-’'–][^\W\d_]+)*")
_MEASURED = re.compile(rf"\d[ \u00a0]?(?:{UNIT})(?![A-Za-zÀ-ỹ/])")
_ASIDE = re.compile(r"\([^()]*\)|（[^（）]*）|“[^“”]*”|\"[^\"]*\"|《[^《》]*》")
# An ASCII word that could be a Vietnamese syllable without accents, as "song" or "hai".
_SYLLABLE = re.compile(
    r"(?:ngh?|nh|ch|gh|gi|kh|ph|qu|th|tr|[bcdghklmnprstvx])?"
    r"(?:oai|oay|uay|uya|ai|ao|au|ay|eo|ia|iu|oa|oe|oi|ua|ui|uy|uo|[aeiouy])"
    r"(?:ng|nh|ch|[cmnpt])?",
    re.I,
)
_SENTENCE = re.compile(r"(?<=[.!?:;])[\s]+|(?<=[。！？；：])")

_LEFT = (
    ("TODO", "an unfinished place"),
    ("dịch đoạn phía trên", "an unfinished place"),
    ("Ã|áº|\\\\xe2|\ufffd|’s(?=[\u4e00-\u9fff])", "letters broken by a wrong encoding"),
)

_SPELLING = (
    (r"o[àáảãạèéẻẽẹ](?![A-Za-zÀ-ỹ])", "the tone stands on the first vowel, as in hóa, khỏe"),
    (r"(?<!q)u[ỳýỷỹỵ](?![A-Za-zÀ-ỹ])", "the tone stands on the first vowel, as in tùy"),
    (r"(?<![A-Za-zÀ-ỹ])(?:kĩ|kỉ|lí|mĩ|quí|quĩ)(?![A-Za-zÀ-ỹ])", "write y: kỹ, lý, mỹ, quý"),
    (r"(?<![A-Za-zÀ-ỹ])tỉ (?:lệ|số|trọng)", "write tỷ lệ"),
    (r"(?<![A-Za-zÀ-ỹ])(?:nơ ron|nơron|mô đun|môđun|véc ?-?tơ|vectơ)(?![A-Za-zÀ-ỹ])", "write nơ-ron, mô-đun, vector"),
    (r"[ \u00a0][,.;:?!)](?=\s|$)", "no space stands before a mark"),
    (r"[\u0300-\u036f]", "a combining mark; write the letter in one piece (NFC)"),
    (r"[Ððƀ]", "a look-alike of đ (U+0111)"),
)
_FINGERPRINTS = {
    "vi": r"sau khi tất cả|(?<!\w)nó là(?!\w)|của chúng tôi|theo ý của chúng tôi|điều này có nghĩa là nó|làm ơn",
    "zh": r"进行|对于[^，。]{1,20}来说|它们|您|在下面|笔者",
}


def own_language(passage: Passage, names: dict[str, set[str]]) -> Iterator[Finding]:
    """No English left in vi and zh, nothing of theirs in en, no unfinished place anywhere."""
    for language, reading in passage.readings.items():
        for pattern, what in _LEFT:
            for match in re.finditer(pattern, reading.text):
                yield passage.fail("language", f"{match.group()!r}: {what}", language)
        for unit in reading.units:
            yield from {"vi": _vietnamese, "zh": _chinese, "en": _english}[language](passage, unit, names[language])
    english = passage.readings.get("en")
    for language in ("vi", "zh"):
        if not english or language not in passage.readings:
            continue
        same = {unit.text for unit in english.units} & {unit.text for unit in passage.readings[language].units}
        for text in sorted(same):
            if len(_foreign_words(text, names[language])) >= 2:
                yield passage.fail("language", f"{_head(text)!r} is the English text", language)


def _vietnamese(passage: Passage, unit: Unit, names: set[str]) -> Iterator[Finding]:
    text = _ASIDE.sub(" ", unit.text)
    words = [word for word in _words(text) if not _name(word, names)]
    foreign = [word for word in words if not _MARKED.search(word) and not _SYLLABLE.fullmatch(word)]
    share = _share(words)
    if len(words) >= 12 and share < 0.45:
        yield passage.fail("language", f"{_head(text)!r}: only {share:.0%} of the words are Vietnamese", "vi")
    elif len(words) >= 12 and share < 0.6:
        yield passage.warn("language", f"{_head(text)!r}: only {share:.0%} of the words are Vietnamese", "vi")
    else:
        for sentence in _SENTENCE.split(text):
            inside = [word for word in _words(sentence) if not _name(word, names)]
            if len(inside) >= 8 and _share(inside) < 0.35:
                yield passage.fail("language", f"{_head(sentence)!r} is not Vietnamese", "vi")
    if len(words) < 12 and share == 0 and len(foreign) >= 2:
        yield passage.fail("language", f"{_head(text)!r} is not Vietnamese", "vi")
    for run in re.findall(r"(?:[A-Za-z]+ ){4,}[A-Za-z]+", text):
        stray = [word for word in run.split() if not _name(word, names) and not _SYLLABLE.fullmatch(word)]
        if len(stray) >= 3:
            yield passage.fail("language", f"{_head(run)!r}: a run of words without Vietnamese letters", "vi")


def _chinese(passage: Passage, unit: Unit, names: set[str]) -> Iterator[Finding]:
    han = len(re.findall(f"[{HAN}]", unit.text))
    latin = len(re.findall("[A-Za-z]", unit.text))
    words = [word for word in _words(unit.text) if not _name(word, names) and re.match("[A-Za-z]", word)]
    share = han / max(1, han + latin)
    if han + latin >= 40 and share < 0.35:
        yield passage.fail("language", f"{_head(unit.text)!r}: only {share:.0%} of the letters are Chinese", "zh")
    elif han + latin >= 40 and share < 0.5:
        yield passage.warn("language", f"{_head(unit.text)!r}: only {share:.0%} of the letters are Chinese", "zh")
    elif not han and len(words) >= 2:
        yield passage.fail("language", f"{_head(unit.text)!r} is not Chinese", "zh")
    for run in re.findall(r"(?:[A-Za-z’'-]+[ ,]+){5,}[A-Za-z’'-]+", _ASIDE.sub(" ", unit.text)):
        if any(not _name(word, names) for word in _words(run)):
            yield passage.fail("language", f"{_head(run)!r}: a run of English words", "zh")


def _english(passage: Passage, unit: Unit, names: set[str]) -> Iterator[Finding]:
    if re.search(f"[{HAN}]", unit.text) or len([w for w in _words(unit.text) if _MARKED.search(w)]) >= 2:
        yield passage.fail("language", f"{_head(unit.text)!r} is not English", "en")


def vietnamese(passage: Passage) -> Iterator[Finding]:
    """Vietnamese letters: composed, of one alphabet, spelt one way."""
    if "vi" not in passage.readings:
        return
    text = passage.readings["vi"].text
    if text != unicodedata.normalize("NFC", text):
        yield passage.fail("vietnamese", "the text is not in NFC; save it with composed letters", "vi")
    for unit in passage.readings["vi"].units:
        for pattern, rule in _SPELLING:
            for match in re.finditer(pattern, unit.text, re.I):
                around = unit.text[max(0, match.start() - 6) : match.end() + 4]
                yield passage.fail("vietnamese", f"{around.strip()!r}: {rule}", "vi")
    for letter in sorted(set(text)):
        name = unicodedata.name(letter, "")
        if letter.isalpha() and letter not in MARKS + "µΩ" and not name.startswith("LATIN"):
            yield passage.fail("vietnamese", f"{letter!r} is of another alphabet", "vi")


def markup(passage: Passage) -> Iterator[Finding]:
    """No asterisk, dollar or backtick is left over when the text is rendered."""
    for language, reading in passage.readings.items():
        if passage.kind == "message":
            continue
        for unit in reading.units:
            if left := re.search(r"[*$`]", unit.text):
                yield passage.fail("markup", f"{_head(unit.text)!r}: a {left.group()} is left over", language)


def length(passage: Passage) -> Iterator[Finding]:
    """A text much shorter or longer than the English has lost or gained sentences."""
    if passage.kind != "section" or len(english := passage.readings["en"].text) < 200:
        return
    for language, low, high in (("vi", 0.8, 1.4), ("zh", 0.3, 0.6)):
        if language not in passage.readings:
            continue
        ratio = len(passage.readings[language].text) / len(english)
        if not low <= ratio <= high:
            yield passage.warn("length", f"{ratio:.2f} times the English; {low} to {high} is usual", language)
        counts = [sum(len(_sentences(unit)) for unit in passage.readings[each].units) for each in ("en", language)]
        if not 0.6 <= counts[1] / counts[0] <= 1.4:
            yield passage.warn("length", f"{counts[1]} sentences, {counts[0]} in English", language)


def fingerprints(passage: Passage) -> Iterator[Finding]:
    """Turns of phrase that machines leave behind."""
    for language, pattern in _FINGERPRINTS.items():
        text = passage.readings[language].text if language in passage.readings else ""
        for match in re.finditer(pattern, text, re.I):
            yield passage.warn("style", f"{match.group()!r} reads like a machine's translation", language)
        if language == "vi" and (often := text.lower().count("một cách")) > 1 + len(text.split()) / 150:
            yield passage.warn("style", f"“một cách” {often} times", language)
        if language == "zh" and len(text) > 200 and text.count("的") > 0.06 * len(text):
            yield passage.warn("style", f"{text.count('的') / len(text):.1%} of the characters are 的", language)


def _name(word: str, names: set[str]) -> bool:
    """A word that no language changes: a listed name, or one with a capital inside, as PyTorch or GPU."""
    return word.lower() in names or any(letter.isupper() for letter in word[1:])


def _words(text: str) -> list[str]:
    return _WORD.findall(_MEASURED.sub(" ", text))


def _foreign_words(text: str, names: set[str]) -> list[str]:
    return [word for word in _words(text) if not _name(word, names) and re.match("[A-Za-z]{2}", word)]


def _share(words: list[str]) -> float:
    return sum(bool(_MARKED.search(word)) for word in words) / max(1, len(words))


def _sentences(unit: Unit) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+|(?<=[。！？])", unit.text) if part.strip()]


def _head(text: str) -> str:
    text = " ".join(re.sub(f"[{MARKS}]", "…", text.replace(CODE, "`…`")).split())
    return text if len(text) <= 50 else text[:49] + "…"

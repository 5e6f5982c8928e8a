"""The same numbers with the same units in the three languages, written one way."""

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

from d2lps.course.book.findings import Finding, Passage

UNIT = r"(?:(?:[kKMGTP]i?)?B|[kKMGTP]?bit|[GTP]?FLOP)(?:/s)?|[mµμn]?s|[num]?m|GbE|[kMGT]?Hz|[kM]?W|°C"
NBSP = "\u00a0"
# A count may be written with the word that each language has for it: 175 billion, 175 tỷ, 1750 亿.
MAGNITUDE = {
    "thousand": 3,
    "million": 6,
    "billion": 9,
    "trillion": 12,
    "nghìn tỷ": 12,
    "nghìn": 3,
    "ngàn": 3,
    "triệu": 6,
    "tỷ": 9,
    "百万": 6,
    "十亿": 9,
    "万亿": 12,
    "千": 3,
    "万": 4,
    "亿": 8,
}
_NUMBER = r"(?<![A-Za-z0-9_.])(?<![A-Za-z]-)(?P<number>[−-]?\d+(?:[\u00a0\u202f]\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)"
TOKEN = re.compile(
    rf"{_NUMBER}(?:[\u00a0\u202f ]?(?P<unit>{UNIT})(?![A-Za-zÀ-ỹ/])|(?P<sign>[%×])"
    rf"|[\u00a0 ]?(?P<big>{'|'.join(MAGNITUDE)})(?![A-Za-zÀ-ỹ]))?"
)

_WORDS = {
    "en": {
        2: "two both twice second pair double half",
        3: "three third thrice",
        4: "four fourth quarter",
        5: "five fifth",
        6: "six sixth",
        7: "seven seventh",
        8: "eight eighth",
        9: "nine ninth",
        10: "ten tenth",
        11: "eleven",
        12: "twelve dozen",
        1: "one once first single",
        0: "zero",
    },
    "vi": {
        2: "hai đôi cả|hai nửa",
        3: "ba",
        4: "bốn tư",
        5: "năm lăm",
        6: "sáu",
        7: "bảy",
        8: "tám",
        9: "chín",
        10: "mười",
        11: "mười|một",
        12: "mười|hai",
        1: "một duy|nhất đầu|tiên",
        0: "không",
    },
    "zh": {
        2: "两 二 双 半",
        3: "三",
        4: "四",
        5: "五",
        6: "六",
        7: "七",
        8: "八",
        9: "九",
        10: "十",
        11: "十一",
        12: "十二",
        1: "一 单",
        0: "零",
    },
}


def _speller(language: str) -> tuple[re.Pattern, dict[str, int]]:
    """What finds a spelled-out number, mười hai before hai, and the value of what it finds."""
    values = {word.replace("|", " "): value for value, words in _WORDS[language].items() for word in words.split()}
    every = "|".join(sorted(values, key=len, reverse=True))
    pattern = rf"(?<![几数])(?:{every})(?!分(?!之))" if language == "zh" else rf"\b(?:{every})\b"
    return re.compile(pattern, re.I), values


_SPELLED = {language: _speller(language) for language in _WORDS}

_WRONG = (
    (re.compile(r"\b[KMGT]b/s|\b[KMGT]?bps\b|\b[KMGTkmgt]ib/s"), "bits are Gbit/s, bytes are GB/s"),
    (re.compile(r"(?<![\d.])\d[\d.]*[\u00a0 ]?G(?![A-Za-z])"), "G is no unit; write GB or Gbit"),
    (re.compile(r"\b[KMGT]?B/(?:giây|秒)"), "units are copied, never translated: write /s"),
    (re.compile(r"\bG[Bb][eE]\b(?<!GbE)"), "the name is GbE"),
    (
        re.compile(r"(?<![\d.])\d[\d.]*[\u00a0 ]?(?:毫秒|微秒|秒|(?:mili|micro)?[ -]?giây|(?:milli|micro)?seconds?\b)"),
        "units are copied, never translated: write s or ms",
    ),
    (re.compile(r"(?<!\d)\d+,\d+"), "the decimal mark is a point, and no comma parts thousands"),
    (re.compile(r"(?<![\d.])\d{1,3} \d{3}(?![\d.])"), "thousands are parted by a no-break space (U+00A0)"),
    (
        re.compile(rf"(?<![\d.])\d[\d.]* (?:{UNIT})(?![A-Za-zÀ-ỹ/])"),
        "a no-break space (U+00A0) stands between number and unit",
    ),
    (
        re.compile(r"(?<![A-Za-z_.])\b\d+(?:\.\d+)?(?:(?:[kKMGTP]i?)?B(?:/s)?|[kKMGTP]bit(?:/s)?|[mµμn]s|GbE)\b"),
        "a no-break space (U+00A0) stands between number and unit",
    ),
    (re.compile(r"(?<![\d.])\d[\d.]*[\u00a0 ]%"), "no space stands before %"),
    (re.compile(r"(?<![A-Za-z0-9-])-\d"), "a minus in prose is − (U+2212)"),
    (re.compile(r"\d ?[x*] ?\d|\d[xX](?![A-Za-z])"), "times is × (U+00D7)"),
)


def same_numbers(passage: Passage) -> Iterator[Finding]:
    """Every number with its unit appears as often in each language; 0 to 12 may be spelled out."""
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
        have = {language for language in numbers if numbers[language][str(value)] or spelled[language][value]}
        if have and (lacking := set(numbers) - have):
            yield passage.warn(
                "numbers", f"{value} in {' '.join(sorted(have))}, not in {' '.join(sorted(lacking))}", *sorted(lacking)
            )


def one_notation(passage: Passage) -> Iterator[Finding]:
    """Decimal points, parted thousands, no-break spaces before units, bits that are not bytes."""
    for language, reading in passage.readings.items():
        for pattern, rule in _WRONG:
            for match in pattern.finditer(reading.text):
                yield passage.fail("notation", f"{match.group()!r}: {rule}", language)
        for match in re.finditer(r"(?<![\dA-Za-z.])\d{5,}(?![\dA-Za-z])", reading.text):
            yield passage.warn("notation", f"{match.group()!r}: part thousands by a no-break space (U+00A0)", language)


def _tokens(text: str) -> Counter:
    found: Counter = Counter()
    for match in TOKEN.finditer(text):
        number = re.sub("[\u00a0\u202f]", "", match["number"])
        unit = (match["unit"] or match["sign"] or "").replace("μ", "µ")
        if match["big"]:
            number = f"{Decimal(number.replace('−', '-')).scaleb(MAGNITUDE[match['big'].lower()]):f}"
        number = number.replace("-", "−")
        found[f"{number}{'' if unit in '%×' else ' '}{unit}" if unit else number] += 1
    return found


def _spelled(text: str, language: str) -> Counter:
    pattern, values = _SPELLED[language]
    return Counter(values[word.lower()] for word in pattern.findall(text))

"""Chinese typography: full-width marks, one half-width space beside Latin letters, simplified characters."""

import re
from collections.abc import Iterator

from d2lps.course.book.findings import Finding, Passage
from d2lps.course.book.plain import CODE, HOLE, MATH

_HAN = r"[\u3400-\u4dbf\u4e00-\u9fff]"
_FULL = "，。；：？！（）《》“”、…—"
_RULES = (
    (rf"{_HAN}[,;:?!]|[,;:?!]{_HAN}", "a half-width mark beside Chinese"),
    (rf"{_HAN}\(|\){_HAN}", "half-width parentheses beside Chinese"),
    (rf"{_HAN}\.(?:\s|$)", "a half-width full stop after Chinese"),
    (r"[，。；：、]{2,}", "two marks in a row"),
    (r"[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]", "full-width letters or digits"),
    (r"[ \u00a0][，。；：？！（）《》、]|[，。；：？！（）《》、][ \u00a0]", "a space beside a full-width mark"),
    (rf"{_HAN}[\"']|[\"']{_HAN}", "straight quotes beside Chinese; write “…”"),
    (
        rf"[{_FULL}\u4e00-\u9fff]\n.|.\n[{_FULL}\u4e00-\u9fff]",
        "a line break inside a paragraph shows as a space; keep the paragraph on one line",
    ),
    (rf"{_HAN}[A-Za-z0-9]|[A-Za-z0-9%]{_HAN}", "no space between Chinese and Latin letters or digits"),
    (rf"{_HAN}[ \u00a0]{{2,}}[A-Za-z0-9]|[A-Za-z0-9][ \u00a0]{{2,}}{_HAN}", "more than one space"),
    (rf"{_HAN}[ ]+{_HAN}", "a space between Chinese characters"),
    (r"[數據網絡參總經過時間後線計]", "a traditional character"),
    (r"\.\.\.|。。。", "an ellipsis is ……"),
)
_COMPILED = [(re.compile(pattern), rule) for pattern, rule in _RULES]
_BESIDE = re.compile(rf"{_HAN}[{MATH}{CODE}]|[{MATH}{CODE}]{_HAN}")


def chinese(passage: Passage) -> Iterator[Finding]:
    """The Chinese text follows the rules above."""
    if "zh" not in passage.readings:
        return
    for unit in passage.readings["zh"].units:
        for pattern, rule in _COMPILED:
            for match in pattern.finditer(unit.text):
                yield passage.fail("chinese", f"{_around(unit.text, match)!r}: {rule}", "zh")
        for match in _BESIDE.finditer(unit.text):
            yield passage.warn("chinese", f"{_around(unit.text, match)!r}: no space beside a formula or code", "zh")


def _around(text: str, match: re.Match) -> str:
    around = text[max(0, match.start() - 6) : match.end() + 6]
    return around.replace(MATH, "$…$").replace(CODE, "`…`").replace(HOLE, "{…}")

"""The index of the search page: the words of every section of every page."""

import html
import json
import re
from functools import cache
from typing import NamedTuple
from xml.etree import ElementTree

# Not searched: scripts, folded parts, and the fixed words of predictions, players and explorers.
_UNSAID = re.compile(
    r"<(script|style)\b.*?</\1>|<details.*?</details>"
    r'|<div [^<>]*class="d2lps-asked".*?</div>|<div [^<>]*class="d2lps-revealed"[^<>]*><p>.*?</p>'
    r'|<div [^<>]*class="d2lps-explored[^"]*".*?(?=<div class="d2-chosen">)|<div class="d2-where">.*?</div>'
    r'|<div class="d2-legend">.*?</ul></div>',
    re.S,
)
_PICTURE = re.compile(r"<svg\b[^<]*(?:<(?!/?svg\b)[^<]*)*</svg>")  # without another one inside
_FORMULA = re.compile(r"<math\b.*?</math>", re.S)
_NAMED = re.compile(r"&(?!(?:lt|gt|amp|quot);)\w+;")  # entities that XML does not know
_SPACED = re.compile(r"[=<>≤≥≈≠≪≫+−·×∈→≔]")
# These tags do not separate words.
_INSIDE = re.compile(r"</?(?:a|b|em|strong|code|span|small|dfn|sub|sup)\b[^<>]*>")
_TAG = re.compile(r"<[^<>]+>")


class Entry(NamedTuple):
    """A section: its page, its title, its address, its words, and the words that it defines, each between bars."""

    page: str
    title: str
    url: str
    text: str
    defines: str = ""


def words(piece: str) -> str:
    """Return the words of a piece of HTML on one line."""
    replaced = 1
    while replaced:
        piece, replaced = _PICTURE.subn(" ", piece)
    readable = _FORMULA.sub(lambda match: html.escape(_formula(match[0])), _UNSAID.sub(" ", piece))
    return " ".join(html.unescape(_TAG.sub(" ", _INSIDE.sub("", readable))).split())


def defined(piece: str) -> str:
    """Return the words that a piece of HTML defines: those in bold, each between bars."""
    found = re.findall(r"<strong>(.*?)</strong>", _UNSAID.sub(" ", piece), re.S)
    return "".join(f"|{words(each).lower()}|" for each in found)


@cache
def _formula(mathml: str) -> str:
    line = _line(ElementTree.fromstring(_NAMED.sub(lambda match: html.unescape(match[0]), mathml)))
    return re.sub(r" (?=[,.;:)])", "", " ".join(line.split()))


def _line(element: ElementTree.Element) -> str:
    """Return a formula on one line: δ/τ, √(2δM), g_1."""
    parts = [_line(child) for child in element]
    match element.tag.rpartition("}")[2], parts:
        case "mfrac", [above, below]:
            return f" {_one(above)}/{_one(below)} "
        case "msqrt", _:
            return "√" + _one("".join(parts))
        case "msub" | "munder", [base, under]:
            return f"{base}_{_one(under)}"
        case "msup", [base, over]:
            return f"{base}^{_one(over)}"
        case "munderover" | "msubsup", [base, under, over]:
            return f"{base}_{_one(under)}^{_one(over)} "
        case "mspace", _:
            return " "
        case "mo", _ if _SPACED.fullmatch(element.text or ""):
            return f" {element.text} "
    return (element.text or "").replace("\u2061", " ") + "".join(parts)  # invisible sign after a function


def _one(part: str) -> str:
    part = part.strip()
    return part if part.isdecimal() or len(part) == 1 else f"({part})"


def script(entries: list[Entry]) -> str:
    """Return the index as a plain script, because a page opened from a file can read no other file."""
    rows = json.dumps([entry._asdict() for entry in entries], ensure_ascii=False, separators=(",", ":"))
    return f"window.D2_SECTIONS={rows};\n"

"""The index that the search page reads: every section of every page, in words."""

import html
import json
import re
from typing import NamedTuple

# Pictures, formulas and what is folded are not said; what stands inside a sentence parts no words.
_UNSAID = re.compile(r"<(script|style|svg|math)\b.*?</\1>|<details.*?</details>", re.S)
_INSIDE = re.compile(r"</?(?:a|b|em|strong|code|span|small|dfn|sub|sup)\b[^<>]*>")
_TAG = re.compile(r"<[^<>]+>")


class Entry(NamedTuple):
    """A section: of which page, its title, where it is, its words."""

    page: str
    title: str
    url: str
    text: str


def words(piece: str) -> str:
    """What a piece of HTML says, on one line."""
    return " ".join(html.unescape(_TAG.sub(" ", _INSIDE.sub("", _UNSAID.sub(" ", piece)))).split())


def script(entries: list[Entry]) -> str:
    """The index as a plain script: a page that was opened from a file can read no other file."""
    rows = json.dumps([entry._asdict() for entry in entries], ensure_ascii=False, separators=(",", ":"))
    return f"window.D2_SECTIONS={rows};\n"

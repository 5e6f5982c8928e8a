"""Faults of a built site: dead links, double ids, pictures without text, mixed languages, and foreign addresses."""

import posixpath
import re
from collections import Counter
from collections.abc import Container
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from d2lps.messages.marked import CLOSE, OPEN

VOID = {"img", "br", "hr", "input", "link", "meta", "source", "wbr", "col", "area", "base", "embed", "track"}
# The attributes whose addresses a browser loads by itself.
LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
# Letters that only one language of the course has; names of people are marked with their language.
OWN = {
    "vi": re.compile("[ăđơưạảấầậẩẫắằặẳẵẹẻẽếềệểễịỉĩọỏốồộổỗớờợởỡụủũứừựửữỵỷỹ]", re.I),
    "zh": re.compile("[\\u4e00-\\u9fff]"),
}
OWN["zh-Hans"] = OWN["zh"]


class Reading(HTMLParser):
    """The ids, links and players of a page, and its own faults."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.players: set[str] = set()
        self._open: list[tuple[str, str]] = []  # open tags, each with its language
        self._script = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        language = values.get("lang") or (self._open[-1][1] if self._open else "")
        if "id" in values:
            self.ids[values["id"]] += 1
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img" and not values.get("alt"):
            self.faults.append(f"a picture without words: {values.get('src', '')[:60]}")
        self.players |= {values["data-name"]} if "data-later" in values and "data-name" in values else set()
        for name, value in values.items():
            if (tag, name) in LOADS and not value.startswith("data:"):
                if re.match(r"\w+:|//", value):
                    self.faults.append(f"<{tag}> asks {value[:80]}")
                else:
                    self.links.append(value)
            if name in ("aria-label", "title", "alt", "placeholder"):
                self._said(value, language)
        if tag not in VOID:
            self._open.append((tag, language))
            self._script = values.get("type", "text/javascript") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        self._script = ""

    def handle_data(self, data: str) -> None:
        tag, language = self._open[-1] if self._open else ("", "")
        if tag == "script":
            if self._script == "application/json":
                self.players.update(re.findall(r'^\{"name":"([\w-]+)"', data))
            return
        if tag != "style":
            self._said(data, language)

    def _said(self, text: str, language: str) -> None:
        if OPEN in text or CLOSE in text:
            self.faults.append(f"all languages at once: {text.strip()[:60]}")
        for other_language, letters in OWN.items():
            if language and other_language != language and OWN.get(language) is not letters and letters.search(text):
                self.faults.append(f"{other_language} in a part that is {language}: {text.strip()[:60]}")
                return


def faults(root: Path) -> list[str]:
    """Return the faults of the site in ``root``, each a sentence after the name of its page."""
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
    pages = {name: _read(path) for name, path in files.items() if path.suffix == ".html"}
    sentences = []
    for name, page in pages.items():
        page_faults = [*page.faults, *(f"the id {id!r} {count} times" for id, count in page.ids.items() if count > 1)]
        page_faults += [fault for link in dict.fromkeys(page.links) if (fault := _leads(link, name, files, pages))]
        sentences += [f"{name}: {fault_text}" for fault_text in dict.fromkeys(page_faults)]
    return sentences


def _read(path: Path) -> Reading:
    page = Reading()
    page.feed(path.read_text("utf-8"))
    page.close()
    return page


def _leads(link: str, page: str, files: Container[str], pages: dict[str, Reading]) -> str:
    """Return the fault of a link; empty if it leads somewhere, or out of the site."""
    if link.startswith("#player:"):
        name = re.match(r"#player:([\w-]+)", link)
        return "" if name and name[1] in pages[page].players else f"there is no player for {link}"
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))) if parts.path else page
    if target not in files:
        return f"the link {link} leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        return f"the link {link} leads to no part of that page"
    return ""

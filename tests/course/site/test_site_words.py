"""On all pages of the site: numbers are written as prose writes them, and no picture or table names a variable."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

POWER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?e[-+]?\d+\b")
VARIABLE = re.compile(r"\b[a-z]+[a-z0-9]*(?:_[a-z0-9]+)+\b")
CODE, HIDDEN, ALONE = {"code", "pre"}, {"script", "style"}, {"br", "col", "hr", "img", "input", "link", "meta", "wbr"}
SAID = ("alt", "aria-label", "title")
PICTURED = {"th", "td", "caption", "svg", "header", "h1", "h2", "h3", "h4"}


class Words(HTMLParser):
    """Collect (names of the tags around it, what a reader sees or hears)."""

    def __init__(self):
        super().__init__()
        self.inside, self.found = [], []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in ALONE:
            self.inside.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found += [({*self.inside, tag}, value) for name, value in attrs if name in SAID and value]

    def handle_endtag(self, tag):
        while tag in self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not HIDDEN.intersection(self.inside):
            self.found.append(({*self.inside}, data))


def pages(site: Path) -> Iterator[tuple[str, list[tuple[set[str], str]]]]:
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.svg")]):
        words = Words()
        words.feed(path.read_text("utf-8"))
        yield path.relative_to(site).as_posix(), words.found


@pytest.fixture(scope="module")
def seen(site):
    """Return page → its words; the site has pages with tables, pictures and answers."""
    found = dict(pages(site))
    assert len(found) > 60 and any("svg" in tags for tags, _ in found["en/13-choosing.html"])
    return found


def test_the_words_around_which_a_number_stands_are_known():
    words = Words()
    words.feed('<p>1<br>2 <b>3</p><pre>4</pre><svg aria-label="5"><text>6</text></svg><script>7</script>8')
    assert [(sorted(tags), word) for tags, word in words.found] == [
        (["p"], "1"),
        (["p"], "2 "),
        (["b", "p"], "3"),
        (["pre"], "4"),
        (["svg"], "5"),
        (["svg", "text"], "6"),
        ([], "8"),
    ]
    assert POWER.findall("1e+03, 2.5e-7 and 3e5, but not a1e5, 10⁵, g1e or ab-3e4f") == ["1e+03", "2.5e-7", "3e5"]
    assert VARIABLE.findall("two_switches, all-reduce, x86, _a") == ["two_switches"]


def test_no_number_is_written_as_programs_write_it(seen):
    """What Python itself prints below a cell may be 2e-08, but no large number is."""
    wrong = [
        (page, number)
        for page, words in seen.items()
        for tags, text in words
        for number in POWER.findall(text)
        if not CODE & tags or ("pre" in tags and "code" not in tags and "e+" in number)
    ]
    assert wrong == []


def test_no_picture_and_no_table_names_a_variable(seen):
    wrong = [
        (page, name)
        for page, words in seen.items()
        if not page.startswith("api/")
        for tags, text in words
        if PICTURED & tags and not CODE & tags
        for name in VARIABLE.findall(text)
    ]
    assert wrong == []

"""Tables that are drawn as bars or as dots on one axis."""

import re

import pytest
from helpers import browser as browsers

from d2lps import source, table
from d2lps.messages import speak

chromium, new_page = browsers.chromium, browsers.new_page

PARTS = table(
    "way", "matrix-work", "bubble", "in-all", rows=[["a", "1 s", "500 ms", "1.5 s"], ["b", "3 s", None, "3 s"]]
)
SIZES = table("way", "bytes-sent", rows=[["a", "1 GB"], ["b", "10 GB"], ["c", "900 GB"], ["d", "not included"]])
SPEEDS = table("model", "published-speed", "predicted", rows=[["a", "100", "110"], ["b", "150", "120 … 140"]])


def lengths(chart, rows):
    """Return left and width in percent of the marks of each row."""
    tracks = re.findall(r'class="d2-track"(.*?)</div><span>', chart._repr_html_())
    assert len(tracks) == rows
    return [
        [
            tuple(map(float, re.findall(r"(?:left|width):([\d.]+)%", mark)))
            for mark in re.findall('style="(.*?)"', track)[1:]
        ]
        for track in tracks
    ]


def test_stacked_parts_are_as_long_as_their_numbers():
    # The axis ends at 3 s, so 1 s is a third of it.
    assert lengths(PARTS.bars("matrix-work", "bubble", end="in-all"), 2) == [[(0, 33.33), (33.33, 16.67)], [(0, 100)]]


def test_on_a_log_axis_each_power_of_ten_takes_the_same_room():
    chart = SIZES.bars("bytes-sent", log=True)
    (a,), (b,), (c,), d = lengths(chart, 4)
    assert (a, b, d) == ((0, 0), (0, 33.33), []) and c[1] == pytest.approx(
        100 * 2.9542 / 3, abs=0.01
    )  # lg 900 = 2.9542
    ticks = re.findall(r'left:[\d.]+%">([^<]*)</span>', chart._repr_html_())
    assert ticks == ["1 GB", "10 GB", "100 GB", "1 TB"]


def test_dots_and_ranges_stand_at_their_numbers():
    # The axis goes from 100 to 150: 110 is at a fifth, and 120 to 140 are two fifths.
    (predicted, published), (spread, other) = lengths(SPEEDS.dots("published-speed", "predicted"), 2)
    assert (predicted, published, spread, other) == ((20,), (0,), (40, 40), (100,))


def test_errors_on_both_sides_have_a_line_at_zero():
    chart = table("model", "error-percent", rows=[["a", "-10.0%"], ["b", "+10.0%"]]).dots("error-percent")
    assert chart._repr_html_().count('class="d2-zero" style="left:50%"') == 2 and "-10%</span>" in chart._repr_html_()


def test_equal_numbers_and_none_at_all_have_an_axis_too():
    for value in ("0 s", "1 s", "7 s"):
        assert lengths(table("way", "takes", rows=[["a", value]]).dots("takes"), 1) in ([[(0,)]], [[(100,)]])


def test_the_numbers_are_the_text_and_are_folded_below_the_picture():
    chart = PARTS.bars("matrix-work", "bubble", end="in-all")
    assert repr(chart) == repr(PARTS)
    picture, _, folded = chart._repr_html_().partition("<details>")
    assert "<table" not in picture and PARTS._repr_html_() in folded
    assert 'aria-label="a: computing 1 s, bubble 500 ms; b: computing 3 s, bubble –"' in picture


@pytest.mark.parametrize("language, names", [("vi", ("tính toán", "bong bóng")), ("zh", ("计算", "气泡"))])
def test_series_are_named_in_the_readers_language(language, names):
    speak(language)
    assert all(name in PARTS.bars("matrix-work", "bubble")._repr_html_() for name in names)


@pytest.mark.parametrize("width, theme", [(1280, "light"), (700, "dark"), (390, "light")])
def test_every_letter_can_be_read_on_any_page(new_page, width, theme):
    page = new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    charts = [
        PARTS.bars("matrix-work", "bubble", end="in-all"),
        SIZES.bars("bytes-sent", log=True),
        SPEEDS.dots("predicted"),
    ]
    page.set_content("<body>" + "".join(chart._repr_html_() for chart in charts))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        "[...document.querySelectorAll('.d2-chart :is(span, b, summary)')]"
        ".map(each => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(sizes) >= 9
    parts = page.locator(".d2-chart").first.locator(".d2-part").all()
    one, idle, three = (part.bounding_box()["width"] for part in parts)
    assert [three / one, one / idle] == pytest.approx([3, 2], rel=0.02)
    assert page.locator(".d2-part b").first.is_visible() and not page.locator("table").first.is_visible()


class Speaking:
    def act(self):
        """Say what it does."""


class Silent(Speaking):
    def act(self):
        first = 1
        return first


def test_a_docstring_that_is_inherited_takes_no_line_of_the_code():
    assert source(Silent.act).code == "def act(self):\n    first = 1\n    return first"

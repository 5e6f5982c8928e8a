"""Plots in a notebook: in the theme of the page, in colours of their own, said in words."""

import re

import pytest
from matplotlib.figure import Figure

from d2lps.messages import speak
from d2lps.notebook.plots import LINES, as_html, words
from d2lps.view.drawing.theme import THEME, WORKERS, contrast


def figure(scale: str = "linear") -> Figure:
    plot = Figure(figsize=(3.5, 2.5))
    axes = plot.subplots()
    for fmt, factor in (("-", 3), ("m--", 2), ("g-.", 1), ("r:", 0.5)):  # as d2l.plot has them
        axes.plot([1, 2, 4, 8], [factor * y for y in (4, 3, 2, 1)], fmt, label=f"× {factor}")
    axes.set_xlabel("c")
    axes.set_ylabel("ms")
    axes.set_xscale(scale)
    axes.legend()
    axes.grid()
    return plot


def own(html: str) -> str:
    """Without what the theme says for all pictures."""
    return re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)


def test_every_colour_is_one_of_the_theme():
    html = own(as_html(figure()))
    assert {int(number) for number in re.findall(r"var\(--d2-line(\d)\)", html)} == {0, 1, 2, 3}
    declared = {colour for pair in LINES for colour in pair}
    assert {*re.findall(r"#[0-9a-f]{6}\b", html)} == declared
    assert "fill:var(--d2-ink)" in html and "background:var(--d2-paper)" in html


def test_lines_have_colours_that_no_node_has_and_stand_out():
    nodes = {colour for pair in WORKERS for colour in pair} | {*THEME["warm"]}
    for pair in LINES:
        for theme, colour in enumerate(pair):
            assert colour not in nodes
            assert contrast(colour, THEME["paper"][theme]) >= 4.5


def test_a_plot_has_the_same_description_each_time():
    assert words(figure()) == "ms · c · × 3, × 2, × 1, × 0.5"
    assert f'aria-label="{words(figure())}"' in as_html(figure())
    assert as_html(figure()) == as_html(figure())
    assert words(Figure()) == ""


def test_words_are_text_in_the_language_and_the_letters_of_the_page(recwarn):
    plot = figure()
    plot.axes[0].legend(["shards", "<4 servers>", "4 servers", "自己的"])
    speak("zh")
    html = as_html(plot)
    written = re.findall(r">([^<>]+)</text>", html)
    assert written[-4:] == ["分片", "&lt;4 servers&gt;", "4 台服务器", "自己的"] and "ms" in written
    assert "font-family:inherit!important" in html
    assert words(plot) == "ms · c · 分片, <4 servers>, 4 台服务器, 自己的"
    assert len(recwarn) == 0  # such as those of letters that matplotlib has not


@pytest.mark.parametrize("language, words", [("en", "async"), ("vi", "bất đồng bộ"), ("zh", "WW")])
def test_a_legend_has_room_for_the_words_of_each_reader(language, words):
    def width(name):
        plot = figure()
        plot.axes[0].legend([name])
        frame = re.search(r'id="legend_1".*?<path d="([^"]+)"', as_html(plot), re.DOTALL)[1]
        across = [float(x) for x, _ in re.findall(r"([\d.]+) ([\d.]+)", frame)]
        return max(across) - min(across)

    speak(language)
    assert width("async") == pytest.approx(width(words), abs=8)
    assert width("async") > width("W") + 8


@pytest.mark.parametrize("scale, labels", [("log", ["1", "2", "4", "8"]), ("linear", None)])
def test_few_whole_numbers_are_the_labels_of_a_logarithmic_axis(scale, labels):
    plot = figure(scale)
    as_html(plot)
    ticks = [tick.get_text() for tick in plot.axes[0].get_xticklabels()]
    assert ticks == labels if labels else len(ticks) > 4


@pytest.mark.parametrize(("inches", "moves"), [(4, False), (10, True)])
def test_letters_of_a_wide_plot_are_read_on_a_phone(inches, moves):
    figure = Figure(figsize=(inches, 3))
    figure.subplots()
    html = as_html(figure)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', html)[1])
    least = int(re.search(r"min-width:(\d+)px", html)[1])
    assert least >= 0.69 * width and ("overflow-x:auto" in html) == moves == (least > 300)

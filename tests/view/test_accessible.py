"""Accessibility of everything shown, in light and dark: axe-core, contrast, and the order of keyboard focus."""

import itertools

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave
from helpers.networks import troubled
from helpers.traces import names, predicted

from d2lps import (
    aggregate_at,
    cost,
    draw,
    explore,
    fold,
    pcie_server,
    predict,
    progress,
    rails,
    ring,
    sharded,
    speak,
    table,
    watch,
)
from d2lps.messages import LANGUAGES
from d2lps.view.drawing.theme import RIMS, THEME, WORKERS, contrast

chromium, new_page = browsers.chromium, browsers.new_page

PAGE = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>page</title>'
    "<style>:root{color-scheme:light dark}</style><main>%s</main>"
)


@pytest.fixture
def opened(new_page, tmp_path):
    """Open a saved page, or a page around a piece of HTML, in both themes."""
    numbers = itertools.count()

    def open_it(shown, scheme: str, **options):
        path = tmp_path / f"{next(numbers)}.html"
        if hasattr(shown, "save"):
            shown.save(path)
        else:
            path.write_text(PAGE % shown, "utf-8")
        page = new_page(color_scheme=scheme, reduced_motion="reduce", **options)
        page.goto(path.as_uri())
        browsers.draw(page)
        return page

    return open_it


def race():
    plans = [aggregate_at(names(4), "gpu0"), aggregate_at(names(4), "cpu"), sharded(names(4))]
    return watch(*(cost.shared(plan, pcie_server(4), "160 MB") for plan in plans), names=["GPU 0", "CPU", "g1…g4"])


def prediction(guess: dict | None) -> str:
    asked = predict("race", {"GPU 0": "ms", "CPU": "ms"}, guess)
    truth = asked.reveal({"GPU 0": 60, "CPU": 80}, {"GPU 0": 61, "CPU": 85})
    return asked._repr_html_() + truth._repr_html_()


def zoom():
    gpus = [f"host{h}/gpu{g}" for h in range(4) for g in range(8)]
    trace = cost.shared(ring(gpus), rails(4, latency="7 us"), "1 GB")
    return watch(fold(trace), fold(trace, apart=gpus[:8]), names=["32", "8 + 24"], zoom=True)


SHOWN = {
    "race": race,
    "zoom": zoom,
    "still": lambda: str(draw(predicted("pcie, sharded", 4))),
    "network": lambda: str(draw(troubled(), at=(0, "40 ms"))),
    "topology": lambda: str(draw(pcie_server(4))),
    "explore": lambda: explore()._repr_mimebundle_()["text/html"],
    "before": lambda: prediction(None),
    "after": lambda: prediction({"GPU 0": 20, "CPU": 80}),
    "progress": lambda: progress()._repr_html_(),
    "table": lambda: table("strategy", "shared", rows=[["GPU 0", 60.0]])._repr_html_(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_axe_finds_nothing_grave(opened, name):
    shown = SHOWN[name]()
    for scheme in ("light", "dark"):
        page = opened(shown, scheme)
        for folded in page.locator("details").all():
            folded.evaluate("e => e.open = true")
        assert grave(page, rules=CONTRAST if scheme == "dark" else ()) == []


@pytest.mark.parametrize("spoken", LANGUAGES)
def test_a_saved_page_says_its_language(opened, spoken):
    speak(spoken)
    page = opened(race(), "light")
    assert page.locator("html").get_attribute("lang").startswith(spoken)
    assert page.locator(".d2-player").get_attribute("lang").startswith(spoken)


def test_axe_would_find_something(opened):
    page = opened('<img src="data:,"><p style="color:#999;background:#fff">pale</p>', "light")
    assert [each.split(":")[0] for each in grave(page)] == ["color-contrast", "image-alt"]
    assert [each.split(":")[0] for each in grave(page, rules=CONTRAST)] == ["color-contrast"]


@pytest.mark.parametrize("theme", [0, 1])
def test_words_and_marks_contrast_with_their_background(theme):
    color = {name: pair[theme] for name, pair in THEME.items()}
    for name, below in itertools.product(("ink", "soft", "accent"), ("paper", "box", "well", "band")):
        assert contrast(color[name], color[below]) >= 4.5, (name, below)
    for name, below in itertools.product(("lane", "busy", "flow", "warm"), ("paper", "box")):
        assert contrast(color[name], color[below]) >= 3, (name, below)
    for (own, rim), below in itertools.product(zip(WORKERS, RIMS, strict=True), ("paper", "box", "well")):
        assert max(contrast(own[theme], color[below]), contrast(rim[theme], color[below])) >= 3, (own, below)


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_light_color_has_its_rim_in_the_player_and_in_the_still(opened):
    page = opened(race(), "light")
    looks = page.locator(".d2-fill .d2-w1").evaluate_all(
        "all => all.map(e => [getComputedStyle(e).fill, getComputedStyle(e).stroke])"
    )
    as_rgb = [f"rgb({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))})" for c in (WORKERS[1][0], RIMS[1][0])]
    assert as_rgb[0] != as_rgb[1] and {tuple(look) for look in looks} == {tuple(as_rgb)}


def test_everything_is_reached_with_the_keyboard_in_the_order_in_which_it_is_read(opened):
    page = opened(race(), "light", viewport={"width": 1200, "height": 900})
    page.evaluate("document.body.focus()")
    names_read = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate(
            """() => { const e = document.activeElement; return e === document.body ? null
              : e.getAttribute('aria-label') || e.textContent; }"""
        )
        if name is None:
            break
        names_read.append(name.split(" ·")[0])
    controls = ["From the beginning", "Previous step", "Play", "Next step"]
    assert names_read[1:5] == controls and names_read[7] == "Legend"
    nodes = [f"gpu{i}" for i in range(4)]
    assert names_read[8:] == [*nodes, *nodes, "cpu", *nodes]


def test_no_accessible_name_repeats(opened):
    page = opened(race(), "light")
    tree = page.locator(".d2-player").aria_snapshot()
    lines = [line.strip(" -") for line in tree.splitlines()]
    assert len([line for line in lines if line.startswith("button")]) == 4
    assert all(lines.count(f'region "{name}":') == 1 for name in ("GPU 0", "CPU", "g1…g4")), tree
    assert sum('img "gpu0"' in line for line in lines) == 3, tree
    assert "msstep" not in tree

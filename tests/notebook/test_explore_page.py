"""``explore`` where there is no kernel: a few positions of the sliders, worked out in advance, on a small page."""

import re
from functools import cache

import pytest
from helpers import browser as browsers
from helpers.axe import grave

from d2lps import aggregate_at, explore, one_memory, ring, sharded, speak
from d2lps.messages import LANGUAGES
from d2lps.notebook.explore_page import LARGEST

chromium, new_page, quiet_page, opened = browsers.chromium, browsers.new_page, browsers.quiet_page, browsers.opened


def form(lab) -> str:
    return lab._repr_mimebundle_()["text/html"]


@cache
def usual(language: str) -> str:
    """Return the form of ``explore()``, which takes half a second to make."""
    speak(language)
    return form(explore())


def bars(page) -> list[str]:
    return re.findall(r"[\d.]+ ms", page.locator(".d2lps-explore > table").inner_text())


def pressed(page) -> list[str]:
    return page.locator("[data-shows][aria-pressed=true]").all_inner_texts()


def test_each_slider_can_be_moved_alone_and_shows_everything_anew(opened):
    page = opened(usual("en"), 1200)
    assert bars(page) == ["60 ms", "80 ms", "15 ms"]
    assert pressed(page) == ["4", "none", "1", "16 GB/s", "160 MB"]
    rows = page.locator(".d2lps-explored [role=group][aria-label]:has(> [data-shows])")
    assert rows.count() == 5 and page.locator("[data-shows]").count() >= 10
    seen = set()
    for button in page.locator("[data-shows]:not([data-shows='0'])").all():
        row = button.locator("..").get_attribute("aria-label")
        button.click()
        page.wait_for_function("e => e.getAttribute('aria-pressed') === 'true'", arg=button.element_handle())
        assert len(pressed(page)) == 5
        again = explore()
        name = next(name for name, control in again.controls.items() if control.description == row)
        options = {"gpus": {str(n): n for n in range(2, 17)}}.get(name) or {
            f"{label} ÷ 2" if name == "slow" else label: value for label, value in again.controls[name].options
        }
        again.set(**{name: options[button.inner_text()]})
        assert bars(page) == re.findall(r"</span>([\d.]+ ms)", again._report.value)
        assert page.locator(".d2-player").count() == 1
        ends = [each.replace("\u00a0", " ").split(" of ")[1] for each in page.locator(".d2-clock").all_inner_texts()]
        assert ends == bars(page)
        seen.add(name)
    assert seen == {"gpus", "slow", "chunks", "bandwidth", "nbytes"}
    page.locator("[data-shows='0']").first.click()
    page.wait_for_function("document.querySelectorAll('[data-shows=\"0\"][aria-pressed=true]').length === 5")
    assert bars(page) == ["60 ms", "80 ms", "15 ms"]
    page.get_by_role("button", name="Next step").first.click()
    assert page.locator(".d2-clock").first.inner_text().startswith("7.5")


def test_the_page_stays_small():
    for shown in (usual("en"), form(explore(gpus=16)), form(explore({"ring": ring, "shards": sharded}, gpus=8))):
        assert len(shown.encode()) <= LARGEST and shown.count("data-shows=") >= 4
    assert usual("en").count("data-shows=") >= 10


@pytest.mark.parametrize("spoken", LANGUAGES)
def test_it_says_what_can_be_had_in_the_language_of_the_reader(spoken):
    words = {"en": "worked out in advance", "vi": "đã tính sẵn", "zh": "预先算好"}[spoken]
    assert words in usual(spoken).partition("<div role")[0]


def test_a_place_of_ones_own_offers_what_its_sliders_have(opened):
    def memory(count):
        return one_memory([f"rank{i}" for i in range(count)], "10 GB/s")

    strategies = {"ring": ring, "rank0": lambda ranks: aggregate_at(ranks, "rank0")}
    page = opened(form(explore(strategies, memory, gpus=4, nbytes="40 MB")), 1200)
    assert pressed(page) == ["4", "40 MB"]  # no strategy takes chunks, and the memory is slower than any link
    page.get_by_role("button", name="8", exact=True).click()
    page.wait_for_function("document.querySelector('.d2-clock').textContent.includes('56')")
    assert bars(page) == ["56 ms", "56 ms"]


def test_axe_finds_nothing_grave(opened):
    assert grave(opened(usual("en"), 1200)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_not_broader_than_a_phone_and_calls_everything_by_one_name(opened, language):
    page = opened(usual(language), 1200)
    page.set_viewport_size({"width": 480, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 480
    plans = page.locator(".d2lps-explore summary").all_inner_texts()
    names = page.locator(".d2-standings b").all_inner_texts()
    assert len(plans) == 3 and all(plan.endswith(name) for plan, name in zip(plans, names, strict=True))

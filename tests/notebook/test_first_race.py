"""The race with sliders with which the course begins: its times, its words, and its page without a kernel."""

import re

import pytest
from helpers import browser as browsers
from helpers.axe import grave

import d2lps
from d2lps import speak
from d2lps.messages import named, text
from d2lps.notebook import explore as first_race
from d2lps.topology import TopologyError, pcie_server

chromium, new_page = browsers.chromium, browsers.new_page
PAGE = '<!DOCTYPE html><html lang="{0}"><meta charset="utf-8"><title>page</title><main>{1}</main>'
LINK = 12.5e9  # bytes per second


@pytest.mark.parametrize("gpus", [2, 4, 6, 8])
def test_its_times_are_those_of_the_formulas(gpus):
    race = d2lps.opening("00")
    race.set(gpus=gpus)
    one = race.controls["nbytes"].value / LINK
    expected = {"GPU 0": 2 * (gpus - 1) * one, "ring": 2 * (gpus - 1) / gpus * one}
    expected["shards"] = max(2 * (gpus - 1) / gpus, gpus / 2) * one  # half of all shards cross between the switches
    for name, seconds in expected.items():
        assert race.traces[name].duration == pytest.approx(seconds, abs=20e-6)  # a step takes 0.8 µs more at most


def test_small_gradients_and_nvlinks_have_another_winner():
    race = d2lps.opening("00")
    race.set(gpus=8)
    said = race._report.value
    assert "Fastest: ring, 28.01 ms" in said and "GPU 0, 224 ms: everything waits for switch0→gpu0" in said
    race.set(nbytes=40_000)
    assert "Fastest: shards" in race._report.value
    race.set(nbytes=200_000_000, links="one-switch")
    assert "Fastest: shards, ring, 28 ms" in race._report.value
    race.set(links="nvlink-ring")
    assert "Fastest: ring, 7.003 ms" in race._report.value


def test_several_switches_share_the_gpus_and_nvlinks_join_neighbors_in_a_ring():
    server = pcie_server(5, "16 GB/s", switches=2, nvlink="50 GB/s")
    assert [link.dst for link in server.route("gpu0", "gpu4")] == ["gpu4"]
    assert [link.dst for link in server.route("gpu0", "gpu3")] == ["switch0", "cpu", "switch1", "gpu3"]
    assert sum(link.src.startswith("gpu") and link.dst.startswith("gpu") for link in server.links) == 10
    assert len(pcie_server(2, nvlink="50 GB/s").links) == 8  # two GPUs have one NVLink, each way
    with pytest.raises(TopologyError):
        pcie_server(4, switches=0)


def test_each_position_works_from_a_file_with_keys_alone(new_page, tmp_path):
    speak("vi")
    race = d2lps.opening("00")
    form, scripts = race.page("race")
    assert len(form.encode()) <= 160_000 and max(len(script.encode()) for script in scripts.values()) <= 300_000
    (tmp_path / "page.html").write_text(PAGE.format("vi", form), "utf-8")
    for name, script in scripts.items():
        (tmp_path / name).write_text(script, "utf-8")
    page, asked, wrong = new_page(viewport={"width": 1200, "height": 900}, reduced_motion="reduce"), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    answers = page.locator(".d2-dials, .d2-verdict, .d2-chosen")
    assert not any(each.is_visible() for each in answers.all())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # bets on the first one
    page.wait_for_selector(".d2-player")
    page.wait_for_selector("[data-state=raced]")
    assert page.locator(".d2-cards output").all_inner_texts() == ["⚑ 96 ms", "⚑ 32 ms", "⚑ 24 ms"]
    assert page.locator(".d2-outcome").inner_text() == text("explore.bet-wrong", name=named("ring"))
    assert [script for script in asked if script.endswith(".js")] == []  # the first position came with the page
    verdict = page.locator(".d2-verdict [role=status]")
    assert verdict.inner_text().replace("\n", "") == re.sub("<[^>]+>", "", race._report.value)
    dials = page.locator(".d2-dials input")
    for at, (key, value) in enumerate({"gpus": 8, "nbytes": 1_000_000_000, "links": "nvlink-ring"}.items()):
        dials.nth(at).focus()
        page.keyboard.press("End")
        race.set(**{key: value})
        expected = re.sub("<[^>]+>", "", race._report.value)
        page.wait_for_function(
            "said => document.querySelector('.d2-verdict').innerText.replaceAll('\\n', '') === said", arg=expected
        )
        label = race.controls[key].label
        assert dials.nth(at).get_attribute("aria-valuetext") == label
        assert page.locator(".d2-dials output").nth(at).inner_text() == label
    tops = {round(run.bounding_box()["y"]) for run in page.locator(".d2-run").all()}
    assert len(tops) == 2 and page.locator(".d2-over").count() == 3  # eight GPUs have room; at once at their end
    assert wrong == [] and all(url.startswith("file:") for url in asked)
    assert grave(page) == []


def test_a_bet_is_answered_when_the_first_run_ends(new_page, tmp_path):
    (tmp_path / "page.html").write_text(PAGE.format("en", d2lps.opening("00").page("race")[0]), "utf-8")
    page = new_page(viewport={"width": 1200, "height": 900})
    page.clock.install(time=0)
    page.clock.pause_at(3600)  # from here on, time passes only as the test lets it
    page.goto((tmp_path / "page.html").as_uri())
    page.locator(".d2-ask").click()
    page.locator(".d2-cards button").last.click()
    page.wait_for_selector(".d2-player")
    outcome, ended = page.locator(".d2-outcome"), page.locator(".d2-cards output")
    for _ in range(100):
        if outcome.inner_text():
            break
        page.clock.run_for(200)
    assert (outcome.inner_text(), ended.all_inner_texts()) == (
        text("explore.bet-right", name="ring"),
        ["", "", "⚑ 24 ms"],
    )


def test_in_a_notebook_a_bet_comes_before_the_race_and_its_sliders():
    race = d2lps.opening("00")
    asked, buttons = race.children
    assert [button.description for button in buttons.children] == ["GPU 0", "shards", "ring"]
    assert not re.search(r"\d ms", asked.value)
    buttons.children[2].click()
    assert race.player in race._stage.children and race._stage in race.children
    assert "Right: ring is the fastest." in race._report.value and race._report in race.children
    assert race.player.data["begins"]


def test_a_notebook_without_a_kernel_has_a_few_positions():
    speak("en")
    shown = d2lps.opening("00")._repr_mimebundle_()["text/html"]
    assert shown.count("data-shows=") >= 5 and "NVLink ring" in shown and len(first_race.LINKS) == 3

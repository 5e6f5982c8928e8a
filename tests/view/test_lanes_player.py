"""The player with traces of schedules: the play-head over the lanes, and the memory bars."""

import itertools
import re
from html import unescape

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave
from helpers.traces import names, predicted

from d2lps import Topology, cost, opening, speak, watch
from d2lps.messages import LANGUAGES
from d2lps.schedule import gpipe, one_f_one_b, pipeline, place, tensor_mlp, zero_bubble
from d2lps.topology import both_ways
from d2lps.trace import Trace
from d2lps.view.drawing import DrawingError

chromium, new_page, quiet_page, opened = browsers.chromium, browsers.new_page, browsers.quiet_page, browsers.opened
head, move = browsers.head, browsers.move

GB = 10**9


def trace(table=None, rate: str = "16 GB/s", **more) -> Trace:
    links = [link for a, b in zip(names(3), names(4)[1:], strict=True) for link in both_ways(a, b, rate)]
    topology = Topology("line", dict.fromkeys(names(4), "gpu"), tuple(links))
    schedule = pipeline(table or one_f_one_b(4, 8), {"F": 0.01, "B": 0.02, "I": 0.01, "W": 0.01}, GB, GB // 10, **more)
    return cost.shared(schedule, topology)


PLAYED = {
    "1f1b": lambda: [trace(memory=dict.fromkeys(names(4), 8 * GB))],
    "race": lambda: [trace(gpipe(4, 8)), trace(), trace(zero_bubble(4, 8))],
    "mlp": lambda: [cost.shared(tensor_mlp(names(4), 8, 8, 32))],
    "no time": lambda: [cost.shared(place({"a": 2, "b": 1}, {"a": names(2), "b": "gpu1"}, dict.fromkeys(names(2), 9)))],
}


def bars(page, run: int = 0) -> list[float]:
    widths = page.locator(".d2-run").nth(run).locator(".d2-memory")
    return widths.evaluate_all("all => all.map(e => +e.getAttribute('width'))")


def test_memory_bars_show_each_moment_forwards_and_back(opened):
    run = trace(memory=dict.fromkeys(names(4), 8 * GB))
    page = opened(watch(run))
    for part in (0.0, 0.31, 0.77, 0.999, 0.5, 0.02):
        move(page, part)
        at = part * run.duration
        held = [[size for moment, size in run.memory(node) if moment <= at + 1e-9][-1] for node in names(4)]
        assert bars(page) == pytest.approx([88 * size / (8 * GB) for size in held], abs=0.1)
        assert head(page) == pytest.approx(100 * part, abs=0.01)
    amounts = page.locator(".d2-amount").all_text_contents()
    assert [words.endswith("\u00a0GB") for words in amounts] == [size > 0 for size in held]


def test_memory_bars_show_the_peak_when_the_run_is_over_and_go_back_from_there(opened):
    run = trace()
    page = opened(watch(run))
    peaks = [run.peak_memory(node) for node in names(4)]
    first = [run.memory(node)[0][1] for node in names(4)]
    assert first != peaks
    for part, held, words in ((1.0, peaks, "peak {:g} GB"), (0.0, first, "{:g}\u00a0GB")):
        move(page, part)
        assert bars(page) == pytest.approx([88 * size / max(peaks) for size in held], abs=0.1)
        said = [words.format(size / GB) if size else "" for size in held]
        assert page.locator(".d2-amount").all_text_contents() == said


def test_steps_are_the_moments_at_which_tasks_start(opened):
    page = opened(watch(cost.shared(pipeline(gpipe(2, 2)))))
    page.locator(".d2-player").focus()
    places, steps = [], []
    for _ in range(7):
        places.append(round(head(page), 2))
        steps.append(page.locator(".d2-step").inner_text())
        page.keyboard.press("ArrowRight")
    assert places == [0, 16.67, 33.33, 50, 66.67, 83.33, 100]
    assert steps[:3] == ["step 1 of 6", "step 2 of 6", "step 3 of 6"]
    assert page.locator(".d2-mean").inner_text() == "bubble: 33.3 % of the total time"
    details = page.locator(".d2-more")
    assert "50 %" not in page.locator(".d2-player").inner_text()
    details.locator("summary").click()
    assert details.inner_text().splitlines()[-1].strip() == "bubble relative to ideal: 50 %"
    page.locator(".d2-player").focus()
    page.keyboard.press("Home")
    assert page.locator(".d2-full-links").inner_text() == "1 of 2 devices compute"
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('.d2-track > .d2-head').style.transform !== 'translateX(0%)'")


def test_tasks_and_messages_have_tooltips(opened):
    page = opened(watch(trace()))
    area = page.locator(".d2-track").bounding_box()

    def said(seconds: float, row: float) -> str:
        x = area["x"] + seconds / trace().duration * area["width"]
        page.mouse.move(x, area["y"] + row * area["height"] / 4)
        return page.locator(".d2-said").inner_text().replace("\u00a0", " ")

    assert said(0.005, 0.4) == "gpu0 F0.0 · 0 ms–10 ms"
    message = said(0.0105, 0.84)
    assert message.startswith("gpu0→gpu1 x1.0 · 100 MB · 10 ms–1")
    assert said(0.005, 3.4) == ""
    page.locator(".d2-node").nth(1).focus()
    assert page.locator(".d2-said").inner_text().replace("\u00a0", " ").startswith("gpu1 · 0 GB, at the peak 3")


def test_letters_have_room_or_are_not_there(opened):
    for width, some in ((980, True), (340, False)):
        page = opened(watch(trace(one_f_one_b(4, 16))), width=width)
        cells = page.locator(".d2-letters, .d2-track .d2-cell")
        shown = cells.evaluate_all(
            "all => all.filter(e => e.textContent).map(e => [e.textContent, e.scrollWidth, e.clientWidth])"
        )
        assert all(inside <= room + 1 for _, inside, room in shown)
        assert ({"F", "B"} <= {label[0] for label, _, _ in shown}) == some
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_function("[...document.querySelectorAll('.d2-track .d2-cell')].some(e => e.textContent)")


LANES = """() => [...document.querySelectorAll(".d2-all")].map((all) => {
const parts = [all, ...all.querySelectorAll(".d2-track, .d2-track > .d2-head")];
const [a, b, head] = parts.map((e) => e.getBoundingClientRect());
return {left: a.left, right: a.right, begin: b.left, end: b.right, head: head.left,
  cut: getComputedStyle(all).maskImage !== "none",
  kinds: [...new Set([...all.querySelectorAll(".d2-cell")].map((e) => e.textContent[0]))].filter((x) => x)}})"""
SMALL = """() => [...document.querySelectorAll(".d2-player *")]
.filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
.filter((e) => e.checkVisibility({visibilityProperty: true}))
.map((e) => [e.textContent, parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM?.().a ?? 1)])
.filter(([, size]) => size < 9)"""


def test_openings_stand_below_each_other_and_are_legible(opened):
    """All runs are as wide as their room; on a phone no lane is narrower than 200 px, and no letter than 9 px."""
    for chapter, language in zip(("07", "09", "12", "13"), itertools.cycle(LANGUAGES)):
        speak(language)
        page = opened(player := opening(chapter))
        kinds = [{task.name for task in scene.trace.plan.tasks} - {"U"} for scene in player._scenes]
        for width in (1280, 700, 390):
            where = chapter, width
            page.set_viewport_size({"width": width, "height": 900})
            for part in (0.0, 0.5, 1.0):
                move(page, part)
                browsers.draw(page)
                shown, small = page.evaluate(LANES), page.evaluate(SMALL)
                assert small == [], where
                assert len({lane["left"] for lane in shown}) == 1, where
                wide = [lane["end"] - lane["begin"] for lane in shown]
                if width >= 700:
                    assert all(lane["end"] <= lane["right"] + 1 for lane in shown), where
                else:
                    assert min(wide) >= 200, where
                # They have one scale: a run that is twice as long is twice as wide.
                assert [x / max(wide) for x in wide] == pytest.approx(
                    [run["duration"] / max(r["duration"] for r in player.data["runs"]) for run in player.data["runs"]],
                    abs=0.01,
                ), where
                # Lanes that are longer than their window follow the play-head, and an edge that is not the end is pale.
                for lane in shown:
                    assert lane["left"] - 1 <= lane["head"] <= lane["right"] + 1, where
                    assert lane["cut"] == (lane["end"] - lane["begin"] > lane["right"] - lane["left"] + 1), where
                if width >= 1000:
                    assert [set(lane["kinds"]) for lane in shown] == kinds, where


def test_a_race_has_one_clock_and_one_scale_of_memory(opened):
    runs = PLAYED["race"]()
    page = opened(watch(*runs, names=["GPipe", "1F1B", "ZB-H1"]), width=1200)
    assert page.locator(".d2-standings").is_visible()
    move(page, 0.2)
    at = 0.2 * max(run.duration for run in runs)
    peak = max(run.peak_memory(node) for run in runs for node in names(4))
    for i, run in enumerate(runs):
        held = [[size for moment, size in run.memory(node) if moment <= at][-1] for node in names(4)]
        assert bars(page, i) == pytest.approx([88 * size / peak for size in held], abs=0.1)
        assert head(page, i) == pytest.approx(100 * at / run.duration, abs=0.01)


@pytest.mark.parametrize("name", ["1f1b", "mlp", "no time"])
def test_player_has_no_grave_faults_in_any_theme_and_width(opened, name):
    for width, scheme in ((1200, "light"), (380, "dark")):
        page = opened(watch(*PLAYED[name]()), width=width, color_scheme=scheme)
        page.locator(".d2-legend").evaluate("e => e.open = true")
        move(page, 0.4)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert grave(page, rules=CONTRAST if scheme == "dark" else ()) == []


def test_the_words_are_those_of_the_language_and_the_still_needs_no_script():
    shown = set()
    for language in LANGUAGES:
        speak(language)
        player = watch(trace())
        page = player._repr_html_()
        shown.add(player.data["words"]["holds"])
        still = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert "gpu3" in still and unescape(player.data["runs"][0]["reason"][0]) in unescape(still)
    assert len(shown) == 3


def test_traces_of_plans_and_of_schedules_do_not_race():
    with pytest.raises(DrawingError, match="watch plays traces of plans, or traces of schedules"):
        watch(trace(), predicted("pcie, sharded", 4))


def test_a_large_schedule_is_a_small_page():
    assert len(watch(cost.shared(pipeline(one_f_one_b(8, 32))))._repr_html_().encode()) < 250_000


def test_the_pictures_of_a_race_stand_below_each_other_and_none_is_cut(new_page):
    page = new_page(viewport={"width": 900, "height": 900})
    page.set_content(watch(*PLAYED["race"]()).still())
    tops = page.locator("svg svg.d2lps").evaluate_all(
        """all => all.map(e => [e, e.querySelector("rect")].map((x) => x.getBoundingClientRect())
        .map((r) => [r.top, r.bottom]))"""
    )
    assert len(tops) == 3 and all(outer == pytest.approx(paper, abs=1) for outer, paper in tops)
    assert all(above[0][1] < below[0][0] for above, below in zip(tops, tops[1:], strict=False))

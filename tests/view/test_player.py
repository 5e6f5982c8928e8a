"""The player: its data, its forms, and its behavior in a browser, without network requests."""

import itertools
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from helpers import browser as browsers
from helpers.traces import PLANS, heavy, hurried, measured, names, predicted, ring

from d2lps import (
    Plan,
    Send,
    aggregate_at,
    algorithms,
    cost,
    draw,
    fold,
    one_memory,
    pcie_server,
    rails,
    sharded,
    speak,
    watch,
)
from d2lps.topology.hosts import nvswitch
from d2lps.units import show_seconds
from d2lps.view.drawing import DrawingError
from d2lps.view.drawing.links import STATES
from d2lps.view.drawing.motion import follow
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import state
from d2lps.view.drawing.traffic import place_name
from d2lps.view.player import Player
from d2lps.view.tables import Table

chromium, new_page, quiet_page, opened = browsers.chromium, browsers.new_page, browsers.quiet_page, browsers.opened
head, move = browsers.head, browsers.move


def race() -> Player:
    plans = [aggregate_at(names(4), "gpu0"), aggregate_at(names(4), "cpu"), sharded(names(4))]
    return watch(*(cost.shared(plan, pcie_server(4), "160 MB") for plan in plans), names=["GPU 0", "CPU", "GPU 0–3"])


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("name", PLANS)
def test_the_data_are_json_and_say_what_the_motion_says(name):
    trace = measured(PLANS[name])
    data = watch(trace).data
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(json.loads(json.dumps(data))))
    (run,), motion = data["runs"], follow(trace)
    cells = list(run["first"])
    for _, place, before, after in zip(*run["changes"], strict=True):
        assert cells[place] == before
        cells[place] = after
    shown = [(tuple(run["looks"][i][0]), *map(bool, run["looks"][i][1:])) for i in cells]
    assert shown == [tuple(look) for look in motion.cells_at(trace.duration)]
    assert len(run["messages"][1]) == len(motion.messages)
    assert all(
        0 <= start < end <= 1_000_000
        for start, end in zip(run["messages"][0] or [0] * len(motion.messages), run["messages"][1], strict=True)
    )
    assert run["steps"] == len(run["begins"]) == trace.steps


def test_times_of_one_moment_are_one_tick():
    (run,) = watch(predicted("pcie, sharded", 7)).data["runs"]
    assert set(run["messages"][1]) == set(run["changes"][0]) == {*run["begins"][1:], 1_000_000}


@pytest.mark.parametrize("case", range(3))
def test_sixteen_nodes_and_sixty_steps_are_less_than_300_kilobytes(case):
    trace = list(heavy().values())[case]
    assert len(trace.plan.nodes) == 16
    player = watch(trace)
    assert len(json.dumps(player.data).encode()) < 300_000
    assert len(player._repr_html_().encode()) < 330_000


def test_there_is_something_to_play_even_if_nothing_happens():
    for trace in (
        predicted("pairs, star", 1),
        replace(predicted("pcie, sharded", 4), events=()),
        cost.shared(sharded(names(2)), pcie_server(2), 0),
        cost.shared(aggregate_at(names(2), "cpu", update=("sgd", {"lr": 0.1})), pcie_server(2), 0),
    ):
        assert watch(trace).data["runs"][0]["duration"] == 0


# ---------------------------------------------------------------- refusals and names


STAR = predicted("pairs, star", 2)


@pytest.mark.parametrize("given, names, sentence", [
    ([], None, "^watch needs at least one trace to play$"),
    ([[STAR]], None, r"watch\(\*traces\)"),
    *(([STAR, wrong], None, f"watch needs a trace, not {type(wrong).__name__}: cost.shared")
      for wrong in (None, sharded(names(2)), "trace")),
    *(([STAR, STAR], few, f"^there are {len(few)} names for 2 traces: give one name for each trace$")
      for few in (["a"], ["a", "b", "c"], [])),
    ([STAR, STAR], "ab", "^there are 1 names for 2 traces"),
    ([cost.shared(ring(1024), nvswitch(1024), "160 MB")], None, "^watch shows up to 64 nodes, but there are 1024 here"),
])  # fmt: skip
def test_what_cannot_be_played_is_refused(given, names, sentence):
    with pytest.raises(DrawingError, match=sentence):
        watch(*given, names=names)


def test_names_are_those_given_or_letters():
    trace = predicted("pcie, sharded", 2)
    assert [run["name"] for run in watch(trace, trace).data["runs"]] == ["A", "B"]
    assert [run["name"] for run in watch(trace, trace, names=("one", 2)).data["runs"]] == ["one", "2"]
    assert [run["name"] for run in watch(trace).data["runs"]] == [""]
    assert [run["name"] for run in watch(trace, names="ab").data["runs"]] == ["ab"]
    assert repr(race()) == "<Player: GPU 0 60 ms, CPU 80 ms, GPU 0–3 15 ms>"


# ---------------------------------------------------------------- forms


def test_every_front_end_finds_the_form_that_it_can_show():
    bundle, _ = race()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "image/svg+xml", "text/plain"}
    assert len(ElementTree.fromstring(bundle["image/svg+xml"])) == 3


def test_the_page_form_asks_the_network_for_nothing():
    page = race()._repr_html_()
    assert set(re.findall(r"https?://[^\"'` )]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""\b(src|href)\s*=|@import|url\(|\bimport\b|\bfetch\(""", page)


def test_nothing_that_has_a_name_can_get_out_of_the_page_form():
    evil = ["</script><script>alert(1)</script>", "<b>", "<!--"]
    plan = Plan(evil, {"<i>": 1}, [[Send(evil[1], evil[0], "<i>")]], holds=evil[:2], wants=[evil[0]])
    page = watch(cost.shared(plan, one_memory(evil, "10 GB/s"), "160 MB"), names=["</title><u>"])._repr_html_()
    assert "<b>" not in page and "<u>" not in page and "<!--" not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_the_same_trace_makes_the_same_page_and_others_another():
    one, two = (re.search(r'id="(d2lps-\w+)"', player._repr_html_())[1] for player in (race(), race()))
    assert one == two != re.search(r'id="(d2lps-\w+)"', watch(predicted("pcie, sharded", 4))._repr_html_())[1]


# ---------------------------------------------------------------- in the browser


def clock(page, run: int = 0) -> str:
    return page.locator(".d2-clock").nth(run).text_content().replace("\u00a0", " ")


def tiles(page) -> list[str]:
    return page.locator(".d2-tiles > g").evaluate_all("all => all.map(e => e.getAttribute('transform'))")


def frames(page, run: int = 0) -> list[int]:
    """Return the number of cells framed as complete, per node."""
    paths = page.locator(".d2-run").nth(run).locator(".d2-done")
    return paths.evaluate_all("all => all.map(e => (e.getAttribute('d').match(/z/g) || []).length)")


def test_it_plays_pauses_and_comes_to_the_end(opened):
    page = opened(watch(predicted("pcie, sharded", 4)), apart=True)
    assert (head(page), clock(page), len(tiles(page))) == (0, "0.0 ms of 15 ms", 12)
    assert page.locator(".d2-step").inner_text() == "step 1 of 2"
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(400)
    there, moved = head(page), tiles(page)
    assert there > 0 and len(moved) == 12
    page.clock.run_for(300)
    assert head(page) > there and tiles(page) != moved
    page.get_by_role("button", name="Pause").click()
    there = head(page)
    page.clock.run_for(200)
    assert head(page) == there
    page.get_by_label("Speed").select_option("4")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(3000)
    assert page.locator(".d2-over").count() == 1
    assert (head(page), clock(page), tiles(page)) == (100, "15 ms of 15 ms", [])
    assert frames(page) == [4] * 4
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(100)
    assert 0 < head(page) < 100


def test_keys_play_and_step(opened):
    trace = cost.shared(ring(4), pcie_server(4), "160 MB")
    page = opened(watch(trace), apart=True)
    page.locator(".d2-player").focus()
    seen = []
    for _ in range(7):
        seen.append(round(head(page), 1))
        page.keyboard.press("ArrowRight")
    assert seen == [0, 16.7, 33.3, 50, 66.7, 83.3, 100] and head(page) == 100
    page.keyboard.press("ArrowLeft")
    assert round(head(page), 1) == 83.3
    page.keyboard.press("Home")
    assert head(page) == 0
    page.keyboard.press("End")
    assert head(page) == 100 and frames(page) == [4] * 4
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.clock.run_for(300)
    page.keyboard.press("Space")
    there = head(page)
    page.clock.run_for(150)
    assert 0 < head(page) == there
    page.keyboard.press("+")
    assert page.get_by_label("Speed").input_value() == "2"
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert page.get_by_label("Speed").input_value() == "0.5"


def test_a_step_by_hand_is_seen_to_happen_unless_motion_is_unwanted(opened):
    page = opened(watch(predicted("pcie, sharded", 4)), reduced_motion="no-preference", apart=True)
    page.locator(".d2-player").focus()
    page.keyboard.press("ArrowRight")
    page.clock.run_for(150)
    assert 0 < head(page) < 50
    page.clock.run_for(1000)
    assert head(page) == 50
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.clock.run_for(1000)
    assert head(page) == 50


def test_space_on_a_button_presses_that_button_only(opened):
    page = opened(watch(predicted("pcie, sharded", 4)), apart=True)
    page.get_by_role("button", name="Next step").focus()
    page.keyboard.press("Space")
    assert head(page) == 50
    page.clock.run_for(150)
    assert head(page) == 50


@pytest.mark.parametrize("trace", [measured(PLANS["servers"]), hurried()])
def test_slider_shows_any_moment_and_comes_back(opened, trace):
    page = opened(watch(trace))
    motion = follow(trace)

    def held(time: float) -> list[list[int]]:
        keys, cells = len(trace.plan.share), motion.cells_at(time)
        return [
            [sum(w in look.who for look in cells[i : i + keys]) for w in range(len(motion.contributors))]
            for i in range(0, len(cells), keys)
        ]

    slots = (
        "all => all.map(g => [...g.children].filter(p => /d2-w/.test(p.getAttribute('class')))"
        ".map(p => ((p.getAttribute('d') || '').match(/z/g) || []).length))"
    )
    for part in (0.35, 0.9, 0.1, 1.0, 0.62, 0.0):
        move(page, part)
        assert page.locator(".d2-fill").evaluate_all(slots) == held(part * trace.duration)
        assert len(tiles(page)) == len(motion.under_way(part * trace.duration))
        assert head(page) == pytest.approx(100 * part, abs=0.01)


def test_the_timeline_can_be_pointed_at(opened):
    page = opened(watch(predicted("pcie, sharded", 4)))
    area = page.locator(".d2-all").bounding_box()
    page.mouse.click(area["x"] + 0.75 * area["width"], area["y"] + 10)
    assert head(page) == pytest.approx(75, abs=0.5)


def test_a_race_runs_on_one_clock_and_the_shorter_finish_first(opened):
    page = opened(race())
    page.locator(".d2-player").focus()
    for _ in range(2):  # the ends of the two steps of the shortest
        page.keyboard.press("ArrowRight")
    assert [clock(page, i) for i in range(3)] == ["15.0 ms of 60 ms", "15.0 ms of 80 ms", "15 ms of 15 ms"]
    assert [head(page, i) for i in range(3)] == [25, 18.75, 100]
    assert page.locator(".d2-run.d2-over").count() == 1 and frames(page, 2) == [4] * 4 and frames(page, 0) == [0] * 4
    assert [b.inner_text() for b in page.locator(".d2-run header b").all()] == ["GPU 0", "CPU", "GPU 0–3"]
    wide = [page.locator(".d2-track").nth(i).bounding_box()["width"] for i in range(3)]
    assert wide[0] / wide[1] == pytest.approx(60 / 80, rel=0.01)
    assert wide[2] / wide[1] == pytest.approx(15 / 80, rel=0.01)
    page.keyboard.press("End")
    assert [frames(page, i) for i in range(3)] == [[1] * 4, [1] * 5, [4] * 4]


def test_numbers_of_steps_keep_apart_where_a_short_run_races_a_long_one():
    one, two = (cost.shared(ring(4), pcie_server(4, rate), "160 MB") for rate in ("16 GB/s", "2 GB/s"))
    short, long = (run["labels"] for run in watch(one, two).data["runs"])
    assert len(long) == 6 and short == [] and len(watch(one).data["runs"][0]["labels"]) == 6


def seen(page, run: int = 0) -> dict[str, float]:
    """Return the number beside each link that has one."""
    return (
        page.locator(".d2-run")
        .nth(run)
        .evaluate(
            """run => Object.fromEntries([...run.querySelectorAll('.d2-share')].map((share, i) => [
          share.querySelector('title').textContent.split(' · ')[0], run.querySelectorAll('.d2-left')[i]])
          .filter(([, left]) => left.style.display !== 'none')
          .map(([name, left]) => [name, parseFloat(left.textContent)]))"""
        )
    )


@pytest.mark.parametrize("trace", [predicted("pcie, at GPU 0", 4), hurried()])
def test_links_show_the_bytes_that_have_still_to_pass(opened, trace):
    page = opened(watch(trace))
    for part in (0, 0.25, 0.97, 0.3):
        passes_what_the_events_say(page, trace, part)


def passes_what_the_events_say(page, trace, part: float) -> None:
    scene = Scene(trace)
    move(page, part)
    at = part * trace.duration
    left = scene.load.backlogs_at(at)
    expected = {place_name(p): sum(x.values()) / 1e6 for p, x in zip(scene.motion.sharing, left, strict=True) if x}
    if not scene.label_level:  # numbers have no room beside all
        decides = place_name(scene.motion.sharing[scene.load.decides_at(at)]) if scene.load.decides_at(at) >= 0 else ""
        expected = {name: size for name, size in expected.items() if name == decides}
    found = seen(page)
    assert found.keys() == expected.keys()
    assert all(found[name] == pytest.approx(expected[name], abs=0.6) for name in expected)
    bars = page.locator(".d2-tank").evaluate_all(
        "all => all.map(e => [...e.children].filter(bar => bar.getAttribute('width') > 0).length)"
    )
    assert bars == [len(each) for each in left]
    full, decides, spread = state(scene, at)
    assert page.locator(".d2-full-links").text_content() == full
    assert page.locator(".d2-share.d2-decides").count() == (scene.load.decides_at(at) >= 0)
    assert page.locator(".d2-decider").text_content().split(":")[0] == decides.split(":")[0]
    why = page.locator(".d2-why")
    assert (why.text_content() if why.is_visible() else "") == spread
    looks = page.locator(".d2-share").evaluate_all("all => all.map(e => e.getAttribute('class'))")
    assert looks == ["d2-share" + STATES[each] for each in scene.load.states_at(at)]


def test_a_race_tells_who_has_won_by_how_much_and_has_one_scale(opened):
    page = opened(race())
    full = page.locator(".d2-full-links")
    assert [words.split(": ")[1] for words in full.all_text_contents()] == ["1 of 10", "1 of 10", "8 of 10"]
    wide = [
        page.locator(".d2-run")
        .nth(i)
        .locator(".d2-tank rect")
        .evaluate_all("all => Math.max(...all.map(e => +e.getAttribute('x') + +e.getAttribute('width')))")
        for i in range(3)
    ]
    assert wide[0] / wide[1] == pytest.approx(3 / 4, rel=0.02) and wide[2] / wide[1] == pytest.approx(
        120 / 640, rel=0.02
    )
    assert page.locator(".d2-finish:visible").count() == 0
    page.locator(".d2-player").focus()
    page.keyboard.press("End")
    finishes = page.locator(".d2-finish").all_text_contents()
    assert finishes == ["60 ms · 1.3× as fast as “CPU”", "80 ms", "15 ms · 4× as fast as “GPU 0”, 5.3× as “CPU”"]
    assert page.locator(".d2-finish:visible").count() == 3


def test_at_the_end_of_a_race_it_says_why(opened):
    page = opened(race())
    why = page.locator(".d2-mean, .d2-why")
    assert not any(each.is_visible() for each in why.all())
    page.locator(".d2-player").focus()
    page.keyboard.press("End")
    assert why.all_inner_texts() == [
        "on average 1 of 10 links at full speed",
        "everything waits for switch→gpu0, then gpu0→switch",
        "on average 1 of 10 links at full speed",
        "everything waits for switch→cpu, then cpu→switch",
        "on average 8 of 10 links at full speed",
        "no single link holds up the rest",
    ]
    wide = page.locator(".d2-at-work i").evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
    whole = page.locator(".d2-at-work").first.bounding_box()["width"]
    assert [round(each / whole, 2) for each in wide] == [0.1, 0.1, 0.8]
    assert not page.locator(".d2-full-links, .d2-decider").first.is_visible()


SHOWN_WITH_DETAILS = (".d2-step", ".d2-full-links", ".d2-at-work", ".d2-left:not([display=none])")


def crowd(count: int) -> Player:
    return watch(*(predicted(name, count) for name in ("pcie, sharded", "pcie, at GPU 0")), names=["shards", "GPU 0"])


@pytest.mark.parametrize("width", [420, 1400])
def test_a_race_of_eight_shows_sums_times_and_the_deciding_link_and_the_rest_on_demand(opened, width):
    page = opened(crowd(8), width=width, height=900)
    move(page, 0.05)
    rest = [page.locator(each) for each in SHOWN_WITH_DETAILS if width < 860 or not each.startswith(".d2-left")]
    details, second = page.locator("details.d2-more"), page.locator(".d2-run").nth(1)
    assert all(each.count() > 0 for each in rest)
    assert not any(each.is_visible() for group in rest for each in group.all())
    assert (
        second.locator(".d2-decider").inner_text().startswith("switch→gpu0")
        and second.locator(".d2-clock").is_visible()
    )
    assert not details.locator("span").is_visible()
    details.locator("summary").click()
    assert details.locator("span").inner_text() == "beside links: GB still to pass"
    assert all(any(each.is_visible() for each in group.all()) for group in rest)
    page.emulate_media(media="print")
    assert not details.is_visible()


def test_small_races_and_single_runs_have_no_details(opened):
    for player in (crowd(4), watch(predicted("pcie, sharded", 8))):
        page = opened(player)
        assert page.locator(".d2-more").count() == 0
        assert page.locator(".d2-step").first.is_visible() and page.locator(".d2-full-links").first.is_visible()


def test_a_measured_run_counts_no_links_at_full_speed(opened):
    trace = measured(PLANS["sharded"])
    page = opened(watch(trace))
    assert page.locator(".d2-full-links").inner_text() == "" and not page.locator(".d2-at-work").is_visible()
    assert "full speed" not in page.locator(".d2-run").inner_text()
    assert state(Scene(trace), 0.001)[0] == "" and "links at full speed" not in str(draw(trace))


def test_names_without_room_are_numbers_and_come_back(opened):
    page = opened(watch(predicted("pcie, sharded", 12)), width=380, height=900)
    names = page.locator(".d2-names-above .d2-name")
    page.wait_for_function("document.querySelectorAll('.d2-names-above .d2-name')[3].textContent.length < 4")
    shown = names.all_text_contents()
    assert [name for name in shown if name.isdigit()] == [str(i) for i in range(12)]
    page.set_viewport_size({"width": 980, "height": 900})
    page.wait_for_function(
        "[...document.querySelectorAll('.d2-names-above .d2-name')].some(e => e.textContent === 'gpu7')"
    )


def test_links_at_full_speed_are_thick_and_counted_in_the_caption(opened):
    page = opened(race(), width=1200, height=900)
    wide = "all => all.map(e => parseFloat(getComputedStyle(e).strokeWidth.replace('calc(', '')))"
    for part in (0.05, 0.15, 0.6):
        move(page, part)
        for run in page.locator(".d2-run:not(.d2-over)").all():
            idle, slow, fast, decides = (
                run.locator(f".d2-share{state} .d2-lane").evaluate_all(wide)
                for state in (":not(.d2-busy,.d2-decides)", ".d2-busy:not(.d2-fast)", ".d2-fast", ".d2-decides")
            )
            full = run.locator(".d2-full-links").text_content()
            assert int(re.search(r"\d+", full)[0]) == len(fast) + len(decides), full  # here, who decides is full
            thickness = [each[0] for each in (idle, slow, fast, decides) if each]
            assert thickness == sorted(thickness) and len({*idle}) <= 1 and len({*slow}) <= 1
            assert max(slow, default=0) <= 0.6 * min(fast + decides)


def test_stacked_runs_leave_no_gap(opened):
    top = "all => all.map(e => Math.min(...[...e.querySelectorAll('.d2-box')].map(box =>"
    top += " box.getBoundingClientRect().top)) - e.getBoundingClientRect().top)"
    page = opened(race(), width=480, height=900)
    assert max(page.locator(".d2-scene").evaluate_all(top)) < 20
    page.set_viewport_size({"width": 1200, "height": 900})
    browsers.draw(page)
    first, _, last = page.locator(".d2-scene").evaluate_all(top)
    assert first == last > 20


def test_names_are_drawn_over_the_messages(opened):
    page = opened(race())
    move(page, 0.1)
    names = page.locator(".d2-run").nth(2).locator(".d2-names-above .d2-name")
    assert names.all_text_contents()[:3] == ["switch", "gpu0", "gpu1"]
    assert len(tiles(page)) > 0
    behind = "e => e.closest('.d2-scene').querySelector('.d2-tiles').compareDocumentPosition(e)"
    assert {each.evaluate(behind) for each in names.all()} == {4}  # after them


def test_unit_and_legend_stand_above_the_pictures(opened):
    page = opened(race())
    summary = page.locator(".d2-legend summary")
    assert summary.inner_text() == "Legend · beside links: MB still to pass"
    assert summary.bounding_box()["y"] < page.locator(".d2-run").first.bounding_box()["y"] < 250
    summary.click()
    legend = " ".join(page.locator(".d2-legend li").all_inner_texts())
    assert "in the color of its sender, even if it is a complete sum" in legend


@pytest.mark.parametrize("width", [1200, 480])
def test_no_word_is_smaller_than_ten_pixels(opened, width):
    page = opened(race(), width=width, height=900)
    size = (
        "all => Math.min(...all.filter(e => e.textContent && e.getClientRects().length)"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM ? e.getScreenCTM().a : 1)))"
    )
    assert page.locator(".d2-player text, .d2-player span, .d2-player p, .d2-player b").evaluate_all(size) >= 10


def test_the_shortest_of_a_race_is_seen_to_run(opened):
    page = opened(race(), reduced_motion="no-preference", apart=True)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(600)
    assert page.locator(".d2-over").count() == 0 and 0 < head(page, 2) < 75


def test_on_a_phone_all_of_a_race_is_seen_beside_the_controls_while_it_plays(opened):
    page = opened(race(), width=390, height=844, reduced_motion="no-preference", apart=True)
    lines = page.locator(".d2-standings > div")
    assert [line.locator("b").inner_text() for line in lines.all()] == ["GPU 0", "CPU", "GPU 0–3"]
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(400)
    page.evaluate("window.scrollTo(0, 900)")
    long = "all => all.map(e => e.getBoundingClientRect().width)"
    first = page.locator(".d2-standings i").evaluate_all(long)
    page.clock.run_for(400)
    assert all(b > a > 0 for a, b in zip(first, page.locator(".d2-standings i").evaluate_all(long), strict=True))
    assert all(0 <= line.bounding_box()["y"] < 200 for line in page.locator(".d2-standings b").all())
    page.keyboard.press("End")
    times = [line.locator("> span").nth(1).inner_text() for line in lines.all()]
    assert times == ["⚑ 60 ms", "⚑ 80 ms", "⚑ 15 ms"]
    means = page.locator(".d2-told").all_text_contents()
    assert means == [f"on average {full} of 10 links at full speed" for full in (1, 1, 8)]
    page.set_viewport_size({"width": 1000, "height": 844})
    page.locator(".d2-standings").wait_for(state="hidden")
    assert opened(watch(predicted("pcie, sharded", 4))).locator(".d2-standings").count() == 0


@pytest.mark.parametrize(("width", "abreast"), [(760, 3), (720, 2), (690, 1)])
def test_runs_stand_abreast_where_they_can_be_read_and_else_have_a_line_beside_the_controls(opened, width, abreast):
    page = opened(race(), width=width, height=800)
    tops = page.locator(".d2-run").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    assert tops.count(tops[0]) == abreast
    assert page.locator(".d2-standings").is_visible() is (abreast < 3)
    page.locator(".d2-player").focus()
    long = page.locator(".d2-standings > div > span:nth-child(2)").first
    before = long.bounding_box()
    page.keyboard.press("End")
    assert long.bounding_box() == before  # nothing moves while it is watched


def test_the_legend_has_the_marks_in_use_and_no_others(opened):
    page = opened(watch(predicted("pcie, at GPU 0", 4)))
    sentences = page.locator(".d2-legend li")
    assert not sentences.first.is_visible()
    page.locator(".d2-legend summary").click()
    assert sentences.first.is_visible()
    words = " ".join(sentences.all_text_contents())
    assert "framed" in words and "hatched" not in words and "gray" not in words
    updated = watch(measured(PLANS["servers"]))
    words = " ".join(sentence for _, sentence in updated.data["legend"])
    assert all(word in words for word in ("hatched", "gray", "thick edge", "short bar"))
    assert "hatched" in updated.still()


def test_each_part_has_a_tooltip(opened):
    page = opened(watch(predicted("pcie, at GPU 0", 4)))
    caption = page.locator(".d2-said")
    area = page.locator(".d2-track").bounding_box()
    page.mouse.move(area["x"] + area["width"] / 4, area["y"] + area["height"] * 1.25 / 4)
    sentence = caption.text_content().replace("\u00a0", " ")
    assert sentence == "gpu1→gpu0 · g · 160 MB · 0.0 ms–30.0 ms · 3 share the link"
    page.locator(".d2-node").nth(1).focus()
    sentence = "gpu1 · 160 MB still to send, 160 MB to receive"
    assert caption.text_content().replace("\u00a0", " ") == sentence
    assert page.locator(".d2-node").nth(1).get_attribute("aria-label").replace("\u00a0", " ") == sentence
    move(page, 0.25)
    page.locator(".d2-tiles > g").first.dispatch_event("pointerover")
    assert caption.text_content().startswith("gpu1→gpu0 · g · 160")


def test_each_node_has_a_tooltip_for_each_order_of_the_plan(opened):
    page = opened(watch(cost.shared(aggregate_at(["gpu2", "gpu0"], "cpu"), pcie_server(), "160 MB")))
    titles = page.locator(".d2-node").evaluate_all(
        "all => all.map(e => [e.querySelector('title').textContent, e.getAttribute('aria-label')])"
    )
    assert sorted(title for title, _ in titles) == ["cpu", "gpu0", "gpu2"]
    assert all(title == label for title, label in titles)


def test_a_link_in_the_text_moves_the_player_of_that_name(new_page, tmp_path):
    player = watch(predicted("pcie, at GPU 0", 4), name="race")
    other = watch(predicted("pcie, at GPU 0", 4), name="another")
    links = "".join(
        f'<a href="{start}player:race?at=30ms&amp;show=switch%E2%86%92gpu1,gpu2">x</a>' for start in ("", "#")
    )
    page = new_page(reduced_motion="reduce")
    (tmp_path / "text.html").write_text(
        f'<!DOCTYPE html><meta charset="utf-8">{links}{player._repr_html_()}{other._repr_html_()}', "utf-8"
    )
    page.goto((tmp_path / "text.html").as_uri())
    for i in range(2):
        page.locator("a").nth(i).click()
        assert [head(page, 0), head(page, 1)] == [50, 0]
        shown = page.locator(".d2-shown > title").all_text_contents()
        assert sorted(shown) == ["gpu2", "switch→gpu1 · 16 GB/s"]
        page.locator(".d2-player").first.focus()
        page.keyboard.press("Home")
        assert head(page) == 0 and page.url.endswith("text.html")


def test_link_in_the_text_leads_to_the_run_that_it_means(new_page, tmp_path):
    player = watch(*(predicted(f"pcie, {name}", 4) for name in ("at GPU 0", "at the CPU")), name="race")
    page = new_page(viewport={"width": 400, "height": 500})
    link = '<a href="#player:race?at=5ms&amp;show=switch→cpu">x</a>'
    (tmp_path / "text.html").write_text(f'<!DOCTYPE html><meta charset="utf-8">{player._repr_html_()}{link}', "utf-8")
    page.goto((tmp_path / "text.html").as_uri())
    page.locator("a").click()
    controls, run = (page.locator(each).nth(at).bounding_box() for each, at in ((".d2-controls", 0), (".d2-run", 1)))
    assert controls["y"] >= -1 and abs(run["y"] - controls["y"] - controls["height"]) <= 1


def test_a_node_that_updates_is_seen_to_work(opened):
    trace = measured(PLANS["servers"])
    page = opened(watch(trace))
    event = next(event for event in trace.events if event.kind == "update")
    for time, working in ((event.start + 1e-5, 1), (event.end + 1e-5, 0), (event.start + 1e-5, 1), (0, 0)):
        move(page, time / trace.duration)
        assert page.locator(".d2-node.d2-working").count() == working


def test_an_instant_run_is_shown_at_its_end(opened):
    page = opened(watch(predicted("pairs, star", 1)))
    assert clock(page) == "0 s of 0 s" and frames(page) == [1]
    page.get_by_role("button", name="Play").click()
    page.keyboard.press("ArrowRight")
    assert frames(page) == [1]


def test_two_copies_of_one_output_play_apart(new_page, tmp_path):
    form = watch(predicted("pcie, sharded", 4))._repr_html_()
    (tmp_path / "two.html").write_text(f'<!DOCTYPE html><meta charset="utf-8">{form}{form}', "utf-8")
    page = new_page(reduced_motion="reduce")
    page.goto((tmp_path / "two.html").as_uri())
    assert page.locator(".d2-player").count() == 2 and page.locator("svg.d2-still").count() == 0
    page.get_by_role("button", name="Next step").nth(1).click()
    assert [head(page, 0), head(page, 1)] == [0, 50]


@pytest.mark.parametrize("language, width", [("vi", 420), ("zh", 420), ("vi", 1000)])
def test_in_a_still_every_word_is_within_the_picture(new_page, tmp_path, language, width):
    speak(language)
    traces = predicted("pcie, at GPU 0", 3), measured(PLANS["servers"]), predicted("pcie, sharded", 8)
    shown = "".join(draw(trace)._repr_html_() for trace in traces)
    (tmp_path / "stills.html").write_text(f'<!DOCTYPE html><meta charset="utf-8">{shown}', "utf-8")
    page = new_page(viewport={"width": width, "height": 800})
    page.goto((tmp_path / "stills.html").as_uri())
    beyond = """all => all.filter(e => e.getBoundingClientRect().right
      > e.closest('.d2-still').getBoundingClientRect().right + 1).map(e => e.textContent)"""
    assert page.locator(".d2-still text").count() > 60
    assert page.locator(".d2-still text").evaluate_all(beyond) == []


def test_a_zoom_shows_one_level_at_a_time_on_its_own_clock(opened):
    levels = {}
    for hosts in (1, 4, 32):
        gpus = [f"host{h}/gpu{g}" for h in range(hosts) for g in range(8)]
        place = rails(hosts, latency="7 us", inside_latency="1.7 us", oversubscription=4)
        trace = cost.shared(algorithms.ring(gpus), place, "1 GB")
        levels[str(8 * hosts)] = fold(trace, apart=gpus if hosts == 1 else ())
    page = opened(watch(*levels.values(), names=list(levels), zoom=True))

    def seen():
        return [run.get_attribute("aria-label") for run in page.locator(".d2-run").all() if run.is_visible()]

    assert seen() == ["8"] and page.locator(".d2-run:visible .d2-node").count() == 8
    move(page, 0.5)
    for i, (name, folded) in enumerate(levels.items()):
        page.get_by_role("group", name="Zoom").get_by_role("button", name=name, exact=True).click()
        assert seen() == [name] and page.locator("[aria-pressed=true]").inner_text() == name
        assert head(page, i) == 50 and clock(page, i).endswith(show_seconds(folded.duration))
        assert page.locator(".d2-run:visible .d2-node").count() == len(folded.plan.nodes)
        widths = {
            title.split(" ")[0]: float(wide.removesuffix("px"))
            for title, wide in page.locator(".d2-run:visible g.d2-share").evaluate_all(
                "all => all.map(g => [g.firstChild.textContent, getComputedStyle(g.children[1]).strokeWidth])"
            )
        }
        most = max(folded.loads.values())
        for link, load in folded.loads.items():  # those in use are as wide as their loads
            if load == most:
                assert widths[f"{link.src}→{link.dst}"] == max(widths.values())
    page.get_by_role("button", name="From the beginning").click()
    assert head(page, 2) == 0 and page.locator(".d2-finish").count() == 0


def test_a_player_is_described_as_its_stills_are(chromium, tmp_path):
    page = chromium.new_page()
    path = race().save(tmp_path / "run.html")
    said = re.findall(r"<desc>(.*?)</desc>", path.read_text("utf-8"))
    page.goto(path.as_uri())
    described = page.locator(".d2-player").get_attribute("aria-description")
    assert len(set(said)) == 3 and described.startswith(" ".join(said)) and described.endswith("change the speed")
    page.close()


def test_without_scripts_the_still_is_shown(chromium, tmp_path):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(race().save(tmp_path / "run.html").as_uri())
    assert page.locator("svg.d2-still").count() == 3 and page.locator(".d2-player").count() == 0
    assert page.locator("svg.d2-still").first.bounding_box()["height"] > 200
    context.close()


@pytest.mark.parametrize(("traces", "abreast"), [(1, 1), (3, 2), (4, 2)])
def test_on_paper_two_runs_stand_abreast_and_can_be_read(chromium, tmp_path, traces, abreast):
    """Also where a script has made a player of them: there, the pictures take the same room."""
    player = watch(*[predicted("pcie, sharded", 4)] * traces)
    path, a4 = player.save(tmp_path / "run.html"), {"width": 688, "height": 1000}
    path.write_text(path.read_text("utf-8") + "<style>body{margin:0}</style>", "utf-8")
    context = chromium.new_context(java_script_enabled=False, viewport=a4)
    page = context.new_page()
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    boxes = [each.bounding_box() for each in page.locator(".d2-still").all()]
    rows = [len([*row]) for _, row in itertools.groupby(boxes, lambda box: round(box["y"]))]
    assert max(rows) == abreast and len(boxes) == traces == page.locator(".d2-still").count()
    units = page.locator(".d2-still").first.evaluate("e => e.viewBox.baseVal.width")
    assert 10.5 * boxes[0]["width"] / units * 0.75 >= 5.95  # points of a note
    legend = page.locator("div.d2-legend").bounding_box()
    assert page.locator("div.d2-legend").count() == 1 and legend["width"] > 650 and legend["y"] < boxes[0]["y"]
    assert page.locator(".d2-still > text", has_text="predicted from").count() == (1 if traces == 1 else 0)
    context.close()

    page = chromium.new_page(viewport=a4)
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    printed = page.locator(".d2-printed").bounding_box()["height"]
    high = boxes[-1]["y"] + boxes[-1]["height"] - boxes[0]["y"]
    assert printed == pytest.approx(high, abs=20)
    assert page.locator(".d2-legend ul").is_visible() and not page.locator(".d2-controls, .d2-runs").first.is_visible()
    page.close()


def test_times_of_a_race_stand_at_the_same_height(opened):
    page = opened(race(), width=1000)
    for key in ("Home", "End"):
        page.locator(".d2-player").press(key)
        tops = page.locator(".d2-run").evaluate_all(
            "all => all.map(e => [e.offsetTop, e.querySelector('.d2-now').getBoundingClientRect().top + scrollY])"
        )
        for top in {top for top, _ in tops}:
            assert len({round(now) for each, now in tops if each == top}) == 1


def test_it_stops_and_clears_up_when_it_is_taken_away(new_page, tmp_path):
    page = new_page(apart=True)
    path = tmp_path / "run.html"
    path.write_text("<!DOCTYPE html><div id=here></div>", "utf-8")
    page.goto(path.as_uri())
    browsers.hold_time(page)
    player = watch(predicted("pcie, sharded", 4))
    page.evaluate(
        """async ([source, data]) => {
          const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
          const el = document.querySelector("#here");
          window.stop = module.default.render({ el, model: { get: (name) => ({ data })[name] } });
        }""",
        [player._esm, player.data],
    )
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(100)
    page.evaluate("window.asked = 0; window.requestAnimationFrame = () => { window.asked++; }; window.stop()")
    page.clock.run_for(150)
    assert page.evaluate("asked") == 0 and page.locator("#here > *").count() == 0


def test_theme_is_that_of_the_page_around_the_player(opened):
    page = opened(watch(predicted("pcie, sharded", 4)), color_scheme="dark")
    paper = "() => getComputedStyle(document.querySelector('.d2-player')).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(21, 24, 29)"
    assert page.evaluate(paper) == dark
    for name, value, color in (("data-theme", "light", light), ("data-theme", "dark", dark)):
        page.evaluate("([name, value]) => document.documentElement.setAttribute(name, value)", [name, value])
        assert page.evaluate(paper) == color
    page.evaluate("document.documentElement.removeAttribute('data-theme')")
    for value, color in (("false", dark), ("true", light)):
        page.evaluate("value => document.body.setAttribute('data-jp-theme-light', value)", value)
        assert page.evaluate(paper) == color
    page.evaluate("document.body.removeAttribute('data-jp-theme-light')")
    for value, color in (("vscode-dark", dark), ("vscode-light", light)):
        page.evaluate("value => document.body.setAttribute('class', value)", value)
        assert page.evaluate(paper) == color


@pytest.mark.parametrize("count", [1, 16])
def test_player_fits_into_any_width(opened, count):
    page = opened(watch(predicted("pcie, sharded", count)))
    for width in (320, 360, 640, 960):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".d2-player").bounding_box()["width"] <= 960
        for button in page.get_by_role("button").all():
            box = button.bounding_box()
            assert min(box["width"], box["height"]) >= 36


def test_a_table_wider_than_its_page_scrolls_by_itself_and_says_so(new_page, tmp_path):
    wide = Table([*range(100_000_000, 100_000_020)], [["160 MB"] * 20])._repr_html_()
    (tmp_path / "table.html").write_text(f'<!DOCTYPE html><meta charset="utf-8">{wide}', "utf-8")
    page = new_page(viewport={"width": 480, "height": 300})
    page.goto((tmp_path / "table.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 480
    box = page.locator("div")
    assert box.evaluate("e => e.scrollWidth > e.clientWidth && e.tabIndex === 0")
    assert box.evaluate("e => getComputedStyle(e).backgroundAttachment") == "local, local, scroll, scroll"

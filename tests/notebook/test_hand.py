"""Pictures that answer to the hand: what they show after a drag or a key is what the package computes."""

import re
from itertools import cycle
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.axe import CONTRAST, grave

from course import site
from course.site.outputs import LOOKS
from d2lps import Link, PlanError, Topology, aggregate_at, cost, divide, pcie_server, ring, sharded, speak, story, wires
from d2lps.messages import LANGUAGES
from d2lps.notebook import hand
from d2lps.notebook.divide import CUTS
from d2lps.notebook.hand.bubbles import WORK, Bubbles, bubbles
from d2lps.plan.checking import replay
from d2lps.scaling import GPUS, MODELS, Layout, kept
from d2lps.schedule import ScheduleError, gpipe, interleaved, one_f_one_b, pipeline, zero_bubble
from d2lps.view.drawing import DrawingError

chromium, new_page, quiet_page = browsers.chromium, browsers.new_page, browsers.quiet_page
PAGE = (
    '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>page</title>'
    '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light dark}</style><main>%s</main>'
)
SMALL = 60_000  # bytes of a table


@pytest.fixture
def opened(quiet_page, tmp_path):
    """Open a picture as a page."""

    def open_it(shown, width: int = 900, **media):
        (tmp_path / "page.html").write_text(PAGE % shown._repr_html_(), "utf-8")
        options = {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"} | media
        page = quiet_page((tmp_path / "page.html").as_uri(), **options)
        page.wait_for_selector(".d2-hand")
        return page

    return open_it


def drag(page, knob, part: float) -> None:
    """Drag a slider to a part of the length of its rail."""
    rail = knob.locator(".hand-rail").bounding_box()
    thumb = knob.locator(".hand-knob").bounding_box()
    page.mouse.move(thumb["x"] + thumb["width"] / 2, thumb["y"] + thumb["height"] / 2)
    page.mouse.down()
    page.mouse.move(rail["x"] + part * rail["width"], rail["y"] + 2, steps=4)
    page.mouse.up()


def share(page, row: int) -> float:
    """Return the part of a row that its pile takes."""
    lanes = page.locator(".hand-schedule").nth(row)
    pile, bed = (lanes.locator(name).first.bounding_box()["width"] for name in (".hand-pile", ".hand-bed"))
    return pile / bed


def test_the_pile_of_a_schedule_is_its_bubble_for_every_number_of_micro_batches(opened):
    page = opened(bubbles())
    knob = page.get_by_role("slider")
    drag(page, knob, 0)
    page.wait_for_selector(".hand-piled")
    for m in range(1, 13):
        assert knob.get_attribute("aria-valuenow") == str(m)
        for row, make in enumerate((gpipe, one_f_one_b, interleaved, zero_bubble)):
            try:
                table = make(4, m, 2) if make is interleaved else make(4, m)
            except ScheduleError as error:
                assert page.locator(".hand-said").nth(row).inner_text() == str(error)
                continue
            bubble = cost.shared(pipeline(table, WORK)).bubble()
            assert share(page, row) == pytest.approx(bubble, abs=0.005)
            assert f"{100 * bubble:.3g} %" in page.locator(".hand-said").nth(row).inner_text()
        knob.press("ArrowRight")
    drag(page, knob, 7 / 11)
    assert knob.get_attribute("aria-valuetext").startswith("m = 8: GPipe 27.3 %, 1F1B 27.3 %")


def test_pushed_together_the_tasks_of_a_device_leave_no_gap_before_the_pile(opened):
    page = opened(bubbles(micro=3))
    lane = page.locator(".hand-lanes > div").first
    before = [task.bounding_box()["x"] for task in lane.locator("i").all()]
    page.get_by_role("button").click()
    boxes = [task.bounding_box() for task in lane.locator("i").all()]
    assert before[3] > boxes[3]["x"]
    for one, next_one in zip(boxes, boxes[1:], strict=False):
        assert one["x"] + one["width"] == pytest.approx(next_one["x"], abs=0.5)
    assert page.locator(".hand-pile").first.bounding_box()["x"] == pytest.approx(
        boxes[-1]["x"] + boxes[-1]["width"], abs=0.5
    )


def lab():
    return divide("gpt-39.1b", 64, (16, 64, 256))


def test_the_vessel_is_as_full_as_the_ledger_says_and_red_beyond_its_rim(opened):
    page, limit = opened(lab()), GPUS["a100"].memory
    t, p, batch = page.get_by_role("slider").all()
    rim = page.locator(".hand-glass").bounding_box()["height"] * 1 / 1.45

    def shown(name: str) -> float:
        """Return the bytes that a part of the vessel stands for."""
        return sum(part.bounding_box()["height"] for part in page.locator(name).all()) / rim * limit

    drag(page, batch, 0.5)
    for at, one in ((0.5, 4), (0, 1)):
        drag(page, t, at)
        p.press("Home")
        for two in CUTS:
            d = 64 // (one * two)
            lines = kept(MODELS["gpt-39.1b"], Layout(one, two, d, 1, 1, 64 // d, stage=1, recompute="selective"))
            size = sum(lines.values())
            assert shown(".hand-layer") == pytest.approx(size, abs=0.005 * limit)
            assert shown(".hand-over") == pytest.approx(max(0, size - limit), abs=0.005 * limit)
            assert ("does not fit" in page.locator(".hand-told").inner_text()) == (size > limit)
            assert f"{one} · {two} · {d}" in page.locator(".hand-told").inner_text()
            whole, piece = (page.locator(name).bounding_box() for name in (".hand-whole", ".hand-piece"))
            assert piece["width"] * one == pytest.approx(whole["width"], rel=0.01)
            assert piece["height"] * two == pytest.approx(whole["height"], rel=0.01)
            p.press("ArrowUp")


GPUS4 = ["gpu0", "gpu1", "gpu2", "gpu3"]
PLANS = {"GPU 0": aggregate_at(GPUS4, "gpu0"), "CPU": aggregate_at(GPUS4, "cpu"), "shards": sharded(GPUS4)}


def links():
    return wires(PLANS)


def milliseconds(plan, rates: dict[str, int]) -> str:
    """Return what a plan takes if the link of each node has so many GB/s."""
    pairs = [Link(*ends, f"{rate} GB/s") for node, rate in rates.items() for ends in ((node, "hub"), ("hub", node))]
    place = Topology("star", dict.fromkeys(rates, "gpu") | {"hub": "switch"}, pairs)
    return f"{1e3 * cost.shared(plan, place, '160 MB').duration:.4g} ms"


def test_links_change_the_time_of_every_plan_and_move_the_bottleneck(opened):
    page, rates = opened(links()), dict.fromkeys([*GPUS4, "cpu"], 16)

    def check(*orange: str) -> None:
        shown = page.locator(".hand-ways b").all_inner_texts()
        assert shown == [milliseconds(plan, rates) for plan in PLANS.values()]
        assert page.locator(".hand-decides .hand-node").all_inner_texts() == [*orange]

    check("gpu0")
    one, zero = (page.get_by_role("slider", name=node) for node in ("gpu1", "gpu0"))
    box = one.bounding_box()
    x, y = box["x"] + box["width"] / 2 + 11, box["y"] + 20
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 2 * 16, y, steps=4)  # from the right edge inwards: thinner
    page.mouse.up()
    rates["gpu1"] = 4
    check("gpu1")
    zero.press("ArrowLeft")
    zero.press("ArrowLeft")
    rates["gpu0"] = 4
    check("gpu0")
    one.press("End")
    rates["gpu1"] = 32
    check("gpu0")
    page.get_by_role("button", name="shards").click()
    zero.press("End")
    for node in ("gpu2", "gpu3"):
        page.get_by_role("slider", name=node).press("End")
    rates |= dict.fromkeys(GPUS4, 32)
    check()  # all links of the shards have as much to do


def test_links_of_no_plan_or_of_too_many_nodes_are_refused():
    for plans, nodes in (({}, 0), ({"ring": sharded([f"gpu{i}" for i in range(6)])}, 6)):
        with pytest.raises(PlanError, match=f"{nodes} nodes"):
            wires(plans)


def around():
    pairs = [Link(one, other, "16 GB/s") for one, other in zip(GPUS4, GPUS4[1:] + GPUS4[:1], strict=True)]
    return story(cost.shared(ring(GPUS4), Topology("circle", dict.fromkeys(GPUS4, "gpu"), pairs), "160 MB"))


def test_each_paragraph_shows_its_step_whether_one_scrolls_drags_or_presses_a_key(opened):
    page, states = opened(around()), [have for _, have in replay(ring(GPUS4))]
    knob, keys = page.get_by_role("slider"), [*ring(GPUS4).share]

    def check(step: int) -> None:
        page.wait_for_selector(f".hand-now[data-step='{step}']")
        assert knob.get_attribute("aria-valuenow") == str(step)
        chunks = page.locator(".hand-chunk").evaluate_all(
            "all => all.map((one) => [...one.children].reduce((sum, i, k) => sum + i.matches('.hand-in') * 2 ** k, 0))"
        )
        assert chunks == [states[step][node, key].who for node in GPUS4 for key in keys]
        outlined = page.locator(".hand-chunk.hand-followed").evaluate(
            "one => one.closest('.hand-box-of').firstChild.textContent"
        )
        assert outlined == GPUS4[step % 4]
        assert page.locator(".hand-clock").inner_text() == (f"{2.5 * step:g} ms" if step else "")
        assert page.locator(".hand-stage").bounding_box()["y"] >= 0  # it stays in view

    for step in (2, 5):
        page.evaluate(f"document.querySelector('[data-step=\"{step}\"]').scrollIntoView({{ block: 'center' }})")
        check(step)
    knob.press("Home")
    check(0)
    knob.press("ArrowRight")
    check(1)
    drag(page, knob, 0.5)
    check(3)


def test_a_story_needs_a_small_plan_and_a_key_of_every_step():
    with pytest.raises(DrawingError, match="g9 is not sent in every step"):
        story(cost.shared(ring(GPUS4), pcie_server(4), "1 MB"), "g9")
    many = [f"gpu{i}" for i in range(10)]
    for trace in (cost.shared(ring(many), pcie_server(10), "1 MB"), cost.shared(pipeline(gpipe(2, 2)))):
        with pytest.raises(DrawingError, match="at most 8 nodes and 16 steps"):
            story(trace)


@pytest.mark.parametrize("make, spoken", [*zip([bubbles, lab, links, around], cycle(LANGUAGES))])
def test_picture_speaks_the_language_fits_a_phone_and_has_no_grave_faults(opened, make, spoken):
    speak(spoken)
    shown = make()
    page_code = shown._repr_html_()
    assert len(page_code.split('"application/json">')[1].split("</script>")[0]) <= SMALL
    assert "<svg" in page_code.split("<script")[0]
    for width, scheme in ((1200, "light"), (390, "dark")):
        page = opened(shown, width, color_scheme=scheme)
        assert page.locator(".d2-hand").get_attribute("lang").startswith(spoken)
        page.get_by_role("slider").first.press("ArrowRight")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert grave(page, rules=CONTRAST) == []


def test_numbers_outside_the_picture_are_refused():
    for options, says in (({"devices": 1}, "devices = 1"), ({"most": 17}, "most = 17"), ({"micro": 13}, "micro = 13")):
        with pytest.raises(ScheduleError, match=says):
            bubbles(**options)
    assert isinstance(bubbles(2, 1, 2), Bubbles)


def test_a_picture_shares_no_class_with_the_other_style_sheets_of_a_page():
    others = "".join(
        [
            *(look for look in LOOKS if look != hand.LOOK),
            (Path(site.__file__).parent / "theme" / "book.css").read_text("utf-8"),
        ]
    )
    own, named = set(re.findall(r"\.(hand-[\w-]+)", hand.LOOK)), set(re.findall(r"\.([a-z][\w-]+)", others))
    assert len(own) > 50 and not own & named


def test_in_a_notebook_the_same_script_draws_from_the_model(new_page):
    page, shown = new_page(), around()
    page.set_content('<title>widget</title><div class="jp-OutputArea-output" style="height:300px" id="here"></div>')
    page.add_script_tag(
        content=hand.CODE.replace("export default", "window.widget =").replace("export function", "function")
    )
    page.evaluate(
        "data => widget.render({ model: { get: () => data }, el: document.getElementById('here') })", shown.data
    )
    page.get_by_role("slider").press("End")
    assert page.locator(".hand-now").inner_text() == shown.sentences()[-1]
    assert page.locator(".d2-hand.hand-boxed").count() == 1

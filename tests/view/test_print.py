"""Pictures on paper: the runs of one race share an axis of time, as they do on a screen."""

import re
from xml.etree import ElementTree

import pytest
from helpers import browser as browsers
from helpers.traces import names, predicted

from d2lps import cost, watch
from d2lps.schedule import gpipe, one_f_one_b, pipeline
from d2lps.view.drawing.still import LETTER, axis

chromium, new_page = browsers.chromium, browsers.new_page

LANES = """all => all.map(e => e.getBoundingClientRect()).map(r => [r.left, r.width])"""
RACES = {
    "plans": lambda: [predicted(name, 8) for name in ("pcie, sharded", "pcie, at GPU 0")],
    "hosts": lambda: [predicted("machines, ring", 4), predicted("pcie, at GPU 0", 4)],
    "schedules": lambda: [cost.shared(pipeline(table(4, 8))) for table in (gpipe, lambda s, m: one_f_one_b(s, 3 * m))],
}


@pytest.mark.parametrize("name", RACES)
def test_the_printed_lanes_of_a_race_share_one_axis_of_time(new_page, tmp_path, name):
    traces = RACES[name]()
    player = watch(*traces)
    path = player.save(tmp_path / "run.html")
    sheet = re.sub(r"<script.*?</script>", "", path.read_text("utf-8"), flags=re.S)  # the still is hidden
    path.write_text(sheet + "<style>body{margin:0}.d2-sheet>.d2-still{display:block}</style>", "utf-8")
    page = new_page(viewport={"width": 688, "height": 1000}, media="print")
    page.goto(path.as_uri())
    lanes = page.locator("svg.d2-time").evaluate_all(LANES)
    longest = max(trace.duration for trace in traces)
    widest = max(width for _, width in lanes)
    assert len({round(left) for left, _ in lanes}) == 1
    for (_, width), trace in zip(lanes, traces, strict=True):
        assert width / widest == pytest.approx(trace.duration / longest, rel=0.01)
    widths = [float(wide) for wide in re.findall(r'class="d2-time"[^>]* width="([\d.]+)"', player.still())]
    assert widths[0] / widths[1] == pytest.approx(traces[0].duration / traces[1].duration, rel=0.01)


def test_pictures_shown_one_at_a_time_have_an_axis_each():
    zoomed = watch(predicted("pcie, sharded", 4), predicted("pcie, at GPU 0", 4), names=names(2), zoom=True)
    widths = re.findall(r'class="d2-time"[^>]* width="([\d.]+)"', zoomed.still())
    assert len(widths) == 2 and len(set(widths)) == 1


@pytest.mark.parametrize("at", [None, 0.0, 0.001, 0.01, 0.0199, 0.02])
@pytest.mark.parametrize("length", [4, 60, 150, 600])
def test_no_two_words_on_an_axis_meet(at, length):
    spans = []
    for found in map(ElementTree.fromstring, axis(at, 0.02, 70, length, 600, 0)):
        wide, x = LETTER * len(found.text), float(found.get("x"))
        left = x - {"middle": 0.5, "end": 1.0, None: 0.0}[found.get("text-anchor")] * wide
        spans.append((left, left + wide))
    spans.sort()
    assert spans[0][0] >= 69.9 and spans[-1][1] <= 671
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:], strict=False))

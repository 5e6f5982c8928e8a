"""A node that dies is crossed out and empty while it is dead, and messages to it are lost."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from helpers import browser as browsers
from helpers.traces import texts

from d2lps import Event, Link, Plan, Topology, Trace, watch
from d2lps.notebook.grading.course import chapter_module
from d2lps.trace import TraceError
from d2lps.view.drawing import draw
from d2lps.view.drawing.legend import marks
from d2lps.view.drawing.motion import follow
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import step_labels
from d2lps.view.drawing.timeline import step_runs, timeline
from d2lps.view.drawing.traffic import GONE

films = chapter_module(Path(__file__).parents[2] / "chapters" / "00-in-15-minutes", "film")
chromium = browsers.chromium
NODES = ("w", "s", "t")


def dies(until: float) -> Trace:
    """``w`` sends to ``s``, which dies at 2 and is there again at ``until``; it sends again at 2.5, and at 4."""
    keys = ("1", "2", "3")
    links = [Link(a, b, "1 GB/s") for a in NODES for b in NODES if a != b]
    network = Topology("network", dict.fromkeys(NODES, "machine"), links)
    plan = Plan(NODES, {key: Fraction(1, 3) for key in keys}, [[], [], []], holds=["w"], wants=[])
    sends = [("1", 0.0, "s"), ("2", 2.5, "s"), ("3", 4.0, "s"), ("3", 4.0, "t")]
    events = [Event("send", int(key), at, at + 1, "w", dst, key, "add", 3, ("w",)) for key, at, dst in sends]
    gone = Event("gone", 1, 2.0, until, "s", "s", "1", "gone", 0)
    return Trace("shared", plan, network, 9, (*events[:1], gone, *events[1:]))


def held(trace: Trace, at: float) -> str:
    """Return the keys for which the server holds a value."""
    cells = follow(trace).cells_at(at)[3:6]
    return "".join(key for key, look in zip("123", cells, strict=True) if look.who)


def test_who_is_dead_has_nothing_and_takes_nothing():
    trace = dies(until=3.75)
    motion = follow(trace)
    assert [held(trace, at) for at in (0.5, 1.5, 2.0, 3.6, 4.5, 5.0)] == ["", "1", "", "", "", "3"]
    assert [motion.gone_at(at) for at in (1.9, 2.0, 3.7, 3.75)] == [set(), {1}, {1}, set()]
    assert trace.step_times()[0] == (0.0, 1.0) and trace.duration == 5.0


def test_who_is_dead_at_the_end_stays_dead():
    trace = dies(until=5.0)
    assert follow(trace).gone_at(5.0) == {1} and held(trace, 5.0) == ""


def test_a_step_that_is_done_again_after_a_death_has_its_number_twice():
    nodes, keys = ("w", "v", "s", "disk"), ("1", "2", "3")
    links = [Link(a, b, "1 GB/s") for a in nodes for b in nodes if a != b]
    plan = Plan(nodes, {key: Fraction(1, 3) for key in keys}, [[], [], []], holds=["w"], wants=[])
    sends = [(0, 1, "w"), (10, 2, "w"), (40, 1, "w"), (50, 2, "w"), (51, 2, "v"), (60, 3, "w"), (62, 3, "v")]
    events = [Event("send", n, at, at + 1.0, src, "s", str(n), "add", 3, (src,)) for at, n, src in sends]
    events += [Event("send", n, 12.0, 14.0, "s", "disk", str(n), "copy", 3, ("w",)) for n in (1, 2)]  # no run of step 1
    events += [Event("send", 1, 61.0, 61.5, "s", "disk", "1", "copy", 3, ("w",))]  # within step 3, which goes on
    events += [Event("gone", 2, 14.0, 30.0, "s", "s", "1", "gone", 0)]
    events = tuple(sorted(events, key=lambda event: (event.start, event.end)))
    trace = Trace("shared", plan, Topology("network", dict.fromkeys(nodes, "machine"), links), 9, events)
    again = [(1, 0.0, 1.0), (2, 10.0, 14.0), (1, 40.0, 41.0), (2, 50.0, 52.0), (3, 60.0, 63.0)]
    assert step_runs(trace) == again
    assert step_labels(trace) == [(number, (start + end) / 2 / 63) for number, start, end in again]
    bands = re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"', timeline(trace, follow(trace), 0))
    odd = [(start, end - start) for number, start, end in again if number % 2]
    assert [tuple(map(float, band)) for band in bands] == [
        pytest.approx([1000 / 63 * part for part in span], abs=0.1) for span in odd
    ]
    alive = Trace("shared", plan, trace.topology, 9, tuple(event for event in events if event.kind != "gone"))
    assert [span for _, *span in step_runs(alive)] == [list(span) for span in alive.step_times()]


def test_it_is_crossed_out_only_then():
    scene = Scene(dies(until=3.75))
    crossed = [scene.svg(at).count('class="d2-node d2-gone"') for at in (1.0, 3.0, 4.5)]
    assert crossed == [0, 1, 0]
    hidden = [re.search('class="d2-cross"( display="none")?', scene.svg(at)).group(1) for at in (1.0, 3.0)]
    assert hidden == [' display="none"', None]
    assert "d2-gone" in films.film(scene, films.Clock(5.0, 1.0)) and any(
        "crossed out" in what for _, what in marks([scene])
    )


def test_its_links_are_gray_only_then():
    scene = Scene(dies(until=3.75))
    links = [f"{place.src}→{place.dst}" for place in scene.motion.sharing]

    def gray(at: float) -> set[str]:
        return {link for link, state in zip(links, scene.load.states_at(at), strict=True) if state == GONE}

    assert [gray(at) for at in (1.9, 2.0, 3.7, 3.75)] == [set(), {"w→s"}, {"w→s"}, set()]
    assert 'class="d2-share d2-gone"' in scene.svg(3.0) and 'class="d2-share d2-gone"' not in scene.svg(1.0)


def test_the_caption_names_the_dead_and_those_that_wait_until_they_go_on():
    trace = dies(until=5.0)
    events = [event for event in trace.events if event.key != "2"]
    quiet = replace(trace, events=tuple(events))
    assert Scene(quiet).losses == [(2.0, "dead: s; waiting for it: w"), (4.0, "dead: s")]
    assert "dead: s; waiting for it: w" in " ".join(texts(str(draw(quiet, at=3.0))))
    given_up = [events[0], replace(events[1], end=3.0), replace(events[1], start=3.0), *events[2:]]
    found = Scene(replace(trace, events=tuple(given_up))).losses
    assert found == [(2.0, "dead: s; waiting for it: w"), (3.0, "dead: s")], (
        "a node that was given up is not waited for"
    )


def test_a_run_without_a_loss_has_no_cross():
    trace = dies(until=3.75)
    lives = Trace("shared", trace.plan, trace.topology, 9, tuple(e for e in trace.events if e.kind != "gone"))
    assert "d2-cross" not in re.sub("<style>.*?</style>", "", str(draw(lives)._repr_html_()), flags=re.S)
    assert not any("crossed out" in what for _, what in marks([Scene(lives)]))


def test_it_is_written_and_read_again():
    trace = dies(until=3.75)
    assert Trace.from_json(trace.to_json()) == trace
    data = json.loads(trace.to_json())
    gone = next(event for event in data["events"] if event[0] == "gone")
    gone[5] = "t"
    with pytest.raises(TraceError, match="from and to"):
        Trace.from_json(json.dumps(data))


def test_the_player_crosses_it_out_and_back_again(chromium, tmp_path):
    page = chromium.new_page()
    page.goto(watch(dies(until=3.75)).save(tmp_path / "player.html").as_uri())
    seen = []
    for part in (0.2, 0.6, 0.9, 0.5, 0.1):
        page.evaluate(
            "at => { const all = document.querySelector('.d2-controls input');"
            "all.value = at; all.dispatchEvent(new Event('input')) }",
            part,
        )
        cross, lanes = "getComputedStyle(document.querySelector('.d2-cross')).display", "'.d2-share.d2-gone'"
        seen.append(page.evaluate(f"() => [{cross}, document.querySelectorAll({lanes}).length]"))
        assert page.locator(".d2-decider").inner_text().startswith("dead: s") == (seen[-1][0] == "inline")
    assert seen == [["none", 0], ["inline", 1], ["none", 0], ["inline", 1], ["none", 0]]
    page.close()

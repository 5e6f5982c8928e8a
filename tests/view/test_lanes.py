"""Pictures of schedules: every task and message is where it belongs, told apart, and legible."""

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from helpers.traces import names, texts

from d2lps import Link, Topology, cost, draw, pcie_server, speak
from d2lps.messages import LANGUAGES, text
from d2lps.schedule import (
    Schedule,
    Task,
    Value,
    gpipe,
    hybrid,
    interleaved,
    one_f_one_b,
    pipeline,
    place,
    tensor_mlp,
    zero_bubble,
)
from d2lps.simulate import asynchronous
from d2lps.view.drawing import DrawingError
from d2lps.view.drawing.lanes import ON, PALE, Lanes, on
from d2lps.view.drawing.legend import marks
from d2lps.view.drawing.theme import THEME, WORKERS, contrast

GB = 10**9
SVG = "{http://www.w3.org/2000/svg}"


def circle(count: int, rate: str = "16 GB/s") -> Topology:
    pairs = {(a, (a + way) % count) for a in range(count) for way in (-1, 1) if count > 1}
    links = [Link(f"gpu{a}", f"gpu{b}", rate) for a, b in sorted(pairs)]
    return Topology("circle", dict.fromkeys(names(count), "gpu"), links)


TABLES = {
    "gpipe": lambda: gpipe(4, 4),
    "1f1b": lambda: one_f_one_b(4, 8),
    "interleaved": lambda: interleaved(4, 8, 2),
    "zero bubble": lambda: zero_bubble(4, 8),
}
SCHEDULES = {name: lambda table=table: pipeline(table(), saved=GB, boundary=GB // 10) for name, table in TABLES.items()}
SCHEDULES |= {
    "mlp": lambda: tensor_mlp(names(4), 8, 8, 32),
    "place": lambda: place(
        {"op1": 16 * GB, "op2": GB}, {"op1": ["gpu0", "gpu1"], "op2": "gpu1"}, dict.fromkeys(names(2), 10 * GB)
    ),
    "one device": lambda: pipeline(gpipe(1, 1)),
    "nothing": lambda: Schedule(["gpu0"], {}, []),
    "an update": lambda: Schedule(
        ["gpu0"],
        {"g": Value(4), "w": Value(4)},
        [Task("gpu0", "U", "0", None, ("g",), ("w",), ("g",), 1)],
        holds=[("gpu0", "g")],
    ),
}


def spans(scene: Lanes, network: bool = False) -> list[tuple]:
    return sorted((b.row, b.start, b.end, b.title) for b in (scene.messages if network else scene.tasks))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_drawn_as_its_printed_table(name):
    schedule = SCHEDULES[name]()
    scene = Lanes.of_slots(schedule)
    drawn = {(slot, schedule.nodes[row]): title for row, slot, _, title in spans(scene)}
    assert drawn == {(i, node): str(task) for i, slot in enumerate(schedule.slots()) for node, task in slot.items()}
    assert all(end == start + 1 for _, start, end, _ in spans(scene))
    assert scene.peaks == schedule.peak and not scene.network
    numbers = [words for words in texts(str(draw(schedule))) if words.isdecimal()]
    assert numbers == [str(i) for i in range(len(schedule.slots()))]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_trace_is_drawn_with_every_task_message_and_byte(name):
    schedule = SCHEDULES[name]()
    trace = cost.shared(schedule, None if name == "mlp" else circle(len(schedule.nodes)))
    scene = Lanes(trace)
    assert len(spans(scene)) == len(schedule.tasks)
    assert len(spans(scene, network=True)) == sum(event.kind == "send" for event in trace.events)
    for row, members in itertools.groupby(spans(scene), key=lambda block: block[0]):
        until = 0
        for _, start, end, _ in members:
            assert until <= start <= end, f"two tasks at once on device {row}"
            until = end
    svg = str(draw(trace))
    shown = texts(svg)
    for node in schedule.nodes:
        assert node in shown and any(words.startswith("peak " + f"{trace.peak_memory(node):g}"[:1]) for words in shown)
    ElementTree.fromstring(svg)


def test_places_are_within_their_lanes_and_do_not_overlap():
    for name in SCHEDULES:
        scene = Lanes(cost.shared(SCHEDULES[name]()))
        for block in (*scene.tasks, *scene.messages):
            x, w = scene.spot(block)
            top, high = scene.level(block)
            assert x >= 0 and x + w <= 1000.001 and w > 0
            assert block.row * scene.row < top and top + high <= (block.row + 1) * scene.row
        tasks, messages = ({scene.level(b) for b in blocks if not b.row} for blocks in (scene.tasks, scene.messages))
        for (top, high), (other, _) in itertools.product(tasks, messages):
            assert top + high <= other


def test_micro_batches_are_colors_and_operators_if_there_are_none():
    scene = Lanes(cost.shared(SCHEDULES["1f1b"]()))
    assert scene.hues == {i: i for i in range(8)}
    assert {(b.hue, b.label) for b in scene.tasks if b.row == 2} == {
        (i, f"{kind}{i}") for kind in "FB" for i in range(8)
    }
    assert {b.hue for b in scene.messages if "x2.3" in b.title} == {3}
    assert {b.name for b in scene.messages if "d2.3" in b.title} == {"B"}
    assert Lanes(cost.shared(SCHEDULES["place"]())).hues == {"op1": 0, "op2": 1}
    assert {b.hue for b in Lanes(cost.shared(SCHEDULES["mlp"]())).tasks} == {0}
    labels = {b.label for b in Lanes(cost.shared(SCHEDULES["interleaved"]())).tasks}
    assert "F5.7" in labels and len(labels) == 2 * 8 * 8


def test_the_legend_explains_exactly_the_drawn_kinds():
    def explained(name, **more):
        trace = cost.shared(pipeline(TABLES[name](), **more))
        return {sentence for _, sentence in marks([Lanes(trace)])}

    said = {key: text(f"lanes.{key}", names="L") for key in ("F", "B", "I", "W", "limit", "batches", "operators", "U")}
    assert explained("1f1b") >= {said["F"], said["B"], said["batches"]}
    assert not explained("1f1b") & {said[key] for key in ("I", "W", "limit", "operators", "U")}
    assert explained("zero bubble") >= {said["I"], said["W"]} and said["B"] not in explained("zero bubble")
    assert said["limit"] in explained("gpipe", memory={"gpu0": 9})
    place_says = {sentence for _, sentence in marks([Lanes.of_slots(SCHEDULES["place"]())])}
    assert {said["operators"], text("lanes.others", names="L"), said["limit"]} <= place_says

    colors = {said["batches"], said["operators"], text("lanes.replicas")}
    for devices, meaning in ((("a", "b"), set()), (("a", "b", "c", "d"), {text("lanes.replicas")})):
        scene = Lanes(cost.shared(hybrid({"op1": 8, "op2": 8}, devices)))
        assert colors & {sentence for _, sentence in marks([scene])} == meaning


def test_the_idle_time_is_hatched_and_one_bubble_is_written():
    svg = str(draw(pipeline(gpipe(4, 4))))
    assert [words for words in texts(svg) if "bubble" in words] == ["bubble: 42.9 % of the total time"]
    ground = re.search(r'<path d="([^"]*)" class="d2-band"', svg)[1]
    width = sum(float(w) for w in re.findall(r"h([\d.]+)v", ground))
    assert width / (4 * 1000) == pytest.approx(3 / 7, abs=0.01)
    assert 'class="d2-idle"' in svg
    assert not [words for words in texts(str(draw(Schedule(["a"], {}, [])))) if "bubble" in words]


def test_memory_bars_show_peak_limit_and_current_bytes():
    trace = cost.shared(pipeline(gpipe(2, 4), saved=GB, memory={"gpu0": 6 * GB}))
    assert {"peak 4/6 GB", "peak 4 GB"} <= set(texts(str(draw(trace))))
    assert {"2 GB", "1 GB", "1.5 s"} <= set(texts(str(draw(trace, at="1.5 s"))))
    scene = Lanes(trace)
    assert scene.peak == 6 * GB and [scene.memory_at("gpu0", at) for at in (0, 2.5, 10)] == [GB, 3 * GB, 0]


def test_of_more_than_eight_devices_those_that_do_the_same_share_a_lane():
    def scene(devices: int, odd: int | None = None) -> Lanes:
        nodes = names(devices)
        acts = [
            Task(node, "F", "", None, (f"x:{node}",), (f"y:{node}",), (), 2 if node == f"gpu{odd}" else 1)
            for node in nodes
        ]
        values = {f"{name}:{node}": Value(GB) for name in "xy" for node in nodes}
        return Lanes(cost.shared(Schedule(nodes, values, acts, [(node, f"x:{node}") for node in nodes], [])))

    assert scene(8).nodes == tuple(names(8))
    alike = scene(16, odd=3)
    assert alike.nodes == ("gpu0 ×15", "gpu3") and alike.alike["gpu3"] == ["gpu3"]
    assert [(block.row, block.end) for block in alike.tasks] == [(0, 1.0), (1, 2.0)]
    assert alike.working() == [(0.0, 1), (0.0, 15), (1.0, -15), (2.0, -1)]
    assert text("legend.merged") in {sentence for _, sentence in marks([alike])} - {s for _, s in marks([scene(8)])}
    assert len(Lanes(cost.shared(pipeline(gpipe(9, 9)))).nodes) == 9, "unequal ones stay apart"


def test_a_limit_can_be_that_of_the_topology():
    topology = Topology("two", dict.fromkeys(names(2), "gpu"), circle(2).links, memory={"gpu1": "5 GB"})
    scene = Lanes(cost.shared(pipeline(gpipe(2, 4), saved=GB), topology))
    assert scene.limits == {"gpu1": 5 * GB}


def test_a_measured_run_is_drawn_with_its_own_times():
    torch = pytest.importorskip("torch")
    from d2lps.train.pipeline import run

    stages, batch = [torch.nn.Linear(4, 4) for _ in range(2)], (torch.ones(4, 4), torch.tensor([0, 1, 2, 3]))
    _, trace = run(pipeline(one_f_one_b(2, 4), boundary=64), stages, batch)
    scene, shown = Lanes(trace), texts(str(draw(trace)))
    assert shown[0].startswith("measured · cpu ×2 · ") and len(spans(scene)) == 16 and len(spans(scene, True)) == 8
    assert len({b.end - b.start for b in scene.tasks}) > 8


def test_letters_are_dropped_where_they_have_no_room_and_colors_stay():
    def shown(schedule) -> set[str]:
        svg = ElementTree.fromstring(str(draw(schedule)))
        return {e.text for e in svg.iter(f"{SVG}text") if "d2-cell" in e.get("class", "")}

    assert "F7" in shown(pipeline(one_f_one_b(4, 8)))
    assert shown(pipeline(interleaved(4, 8, 2))) == {"F", "B"}
    big = pipeline(one_f_one_b(8, 32))
    assert shown(big) == set()
    colors = set(re.findall(r'class="d2-w(\d+)"', str(draw(big)).split("d2-legend")[0].split("</style>")[1]))
    assert colors == {str(i) for i in range(32)} or colors == {str(i) for i in range(16)}


@pytest.mark.parametrize("theme", [0, 1])
def test_letters_and_edges_stand_out_on_every_tone(theme):
    paper = THEME["paper"][theme]
    for hue, name in itertools.product(range(len(WORKERS)), PALE):
        color, cover = WORKERS[hue][theme], PALE[name]
        mixed = "#" + "".join(
            f"{round(int(color[i : i + 2], 16) * (1 - cover) + int(paper[i : i + 2], 16) * cover):02x}"
            for i in (1, 3, 5)
        )
        assert contrast(ON[on(hue, name)][theme], mixed) >= 4.4, (hue, name)


def test_an_invalid_drawing_is_refused():
    with pytest.raises(DrawingError, match="draw shows up to 64 nodes, but there are 65 here"):
        draw(pipeline(gpipe(65, 1)))
    with pytest.raises(DrawingError, match="draw shows up to 20000 events"):
        draw(pipeline(gpipe(8, 1000)))


def test_names_are_text():
    schedule = Schedule(["<b>&"], {"y": Value(1)}, [Task("<b>&", "F", "<i>", None, (), ("y",), (), 1)])
    for svg in (str(draw(schedule)), str(draw(cost.shared(schedule)))):
        assert "<b>&" in texts(svg)


@pytest.mark.parametrize("gap", [0.4, 0.6, 0.79, 0.9, 1.5])
def test_a_narrow_gap_makes_no_rectangle_of_negative_width(gap):
    """Measured tasks have gaps of any width; here it is some thousandths of the whole."""
    trace = cost.shared(pipeline(gpipe(2, 2)))
    late = {"start": 1 + gap * 0.006}
    events = [replace(event, **late) if event.kind == "task" and event.start == 1 else event for event in trace.events]
    assert "h--" not in draw(replace(trace, events=tuple(events)))._repr_html_()


@pytest.mark.parametrize("what", [SCHEDULES["gpipe"](), cost.shared(SCHEDULES["gpipe"]())])
def test_the_legend_is_folded_on_a_page_and_written_out_in_a_file(what):
    page, file = draw(what)._repr_html_(), str(draw(what))
    picture, legend = page.split('<details class="d2-legend">')
    sentences = [
        sentence for _, sentence in marks([Lanes.of_slots(what) if isinstance(what, Schedule) else Lanes(what)])
    ]
    assert re.findall(r"</svg>([^<]+)</li>", legend) == sentences
    assert not any(sentence in picture for sentence in sentences) and "d2-legend" in file


def test_a_narrow_task_without_a_color_keeps_its_number():
    history = asynchronous(3, 12, lambda random, rank: 0.1)
    found = {(label, least) for _, label, least, _ in Lanes(history.lanes()).letters()}
    assert {("G1", "1"), ("G2", "2")} <= found
    piped = {(label, least) for _, label, least, _ in Lanes(cost.shared(SCHEDULES["gpipe"]())).letters()}
    assert {("F1", "F"), ("B1", "B")} <= piped


def test_the_name_of_a_place_is_in_the_language_of_the_reader():
    shown = set()
    for language in LANGUAGES:
        speak(language)
        shown.add(texts(str(draw(pcie_server())))[0])
        assert texts(str(draw(Topology("my_two_hosts", {"a": "gpu"}, ()))))[0] == "my two hosts"
    assert len(shown) == 3 and not any("_" in name for name in shown)

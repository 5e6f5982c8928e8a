"""Drawings: parts do not overlap, the picture shows the run, and it is one safe, self-contained SVG."""

import itertools
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.traces import PLANS, SCENES, hurried, measured, names, neighbours, predicted, ring, texts

from d2lps import (
    Event,
    Link,
    Plan,
    PlanError,
    Send,
    Topology,
    aggregate_at,
    cost,
    draw,
    one_memory,
    pcie_server,
    sharded,
    two_rings,
    watch,
)
from d2lps.plan.checking import replay
from d2lps.topology import both_ways
from d2lps.topology.cycles import rings
from d2lps.topology.hosts import dgx1_v100, nvswitch
from d2lps.trace import Trace, pairs
from d2lps.units import UnitError
from d2lps.view.drawing import MOST_EVENTS, DrawingError
from d2lps.view.drawing.layout import Box, arrange
from d2lps.view.drawing.legend import marks
from d2lps.view.drawing.links import breadth
from d2lps.view.drawing.motion import Motion, follow
from d2lps.view.drawing.motion import replayed as state_at
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.still import step_labels
from d2lps.view.drawing.theme import WORKERS
from d2lps.view.drawing.timeline import timeline
from d2lps.view.drawing.traffic import DECIDES, FULL, HIGH, awaited, gauges, mean_full, place_name, reason

ROOT = Path(__file__).parents[2]


# ---------------------------------------------------------------- everything has its place


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 16, 17, 24])
@pytest.mark.parametrize("name", SCENES)
def test_nodes_have_places_of_their_own(name, count):
    plan, topology = SCENES[name](count)
    place = arrange(topology, plan)
    assert list(topology.kinds) == sorted(place.boxes, key=list(topology.kinds).index)
    for box in place.boxes.values():
        assert min(box.x, box.y) >= 0 and box.x + box.w <= place.width and box.y + box.h <= place.height
    for (a, first), (b, second) in itertools.combinations(place.boxes.items(), 2):
        assert not first.overlaps(second, 4), f"{a} and {b}"
    assert place.width <= 900 or count > 16


@pytest.mark.parametrize("count", [1, 2, 5, 16])
@pytest.mark.parametrize("name", SCENES)
def test_lanes_join_their_boxes_and_the_two_directions_lie_side_by_side(name, count):
    plan, topology = SCENES[name](count)
    place = arrange(topology, plan)
    for link in topology.links:
        (ax, ay), (bx, by) = place.lanes[link.src, link.dst]
        for node, x, y in ((link.src, ax, ay), (link.dst, bx, by)):
            box = place.boxes[node]
            away = max(box.x - x, x - box.x - box.w, box.y - y, y - box.y - box.h)
            assert away <= 17, f"the lane {link.src}→{link.dst} ends {away} away from {node}"
        if (link.dst, link.src) in place.lanes:
            (cx, cy), (dx, dy) = place.lanes[link.dst, link.src]
            assert math.dist((ax, ay), (dx, dy)) > 4 and math.dist((bx, by), (cx, cy)) > 4


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("name", SCENES)
def test_a_cell_per_key_as_wide_as_its_share(name, count):
    plan, topology = SCENES[name](count)
    place = arrange(topology, plan)
    for node, cells in place.cells.items():
        box, total = place.boxes[node], sum(cell.w for cell in cells.values())
        assert list(cells) == list(plan.share)
        for key, cell in cells.items():
            assert cell.w == pytest.approx(total * float(plan.share[key]))
            assert box.x <= cell.x and cell.x + cell.w <= box.x + box.w + 1e-9
            assert box.y <= cell.y and cell.y + cell.h <= box.y + box.h


def test_a_cpu_stands_above_the_switch_and_the_gpus_below_it_in_a_row():
    boxes = arrange(pcie_server(4), aggregate_at(names(4), "cpu")).boxes
    assert boxes["cpu"].y + boxes["cpu"].h < boxes["switch"].y
    assert len({boxes[gpu].y for gpu in names(4)}) == 1
    assert [boxes[gpu].x for gpu in names(4)] == sorted(boxes[gpu].x for gpu in names(4))
    assert boxes["switch"].y + boxes["switch"].h < boxes["gpu0"].y


def test_servers_stand_apart_from_workers():
    for name in ("memory, servers", "pairs, servers"):
        boxes = arrange(*reversed(SCENES[name](4))).boxes
        assert max(box.y for node, box in boxes.items() if node[0] == "s") < min(boxes[gpu].y for gpu in names(4))


def test_a_broad_share_is_drawn_broad():
    plan = sharded(names(2), {"gpu0": "3/4", "gpu1": "1/4"})
    cells = arrange(pcie_server(2), plan).cells["gpu0"]
    assert cells["g1"].w == pytest.approx(3 * cells["g2"].w)


def turning(place, order) -> list[float]:
    """Return the clockwise angle around the middle from each node of ``order`` to the next."""
    spots = [place.boxes[node].center for node in order]
    angles = [math.atan2(y - place.height / 2, x - place.width / 2) for x, y in spots]
    return [(b - a) % math.tau for a, b in zip(angles, angles[1:] + angles[:1], strict=True)]


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
def test_ring_stands_in_its_own_order_for_any_numbers(count):
    order = names(count)[::2] + names(count)[1::2][::-1]
    place = arrange(neighbours(order), ring(count))
    around = turning(place, order)
    assert sum(around) == pytest.approx(math.tau) or sum(math.tau - a for a in around) == pytest.approx(math.tau)
    assert not crossings(place, neighbours(order))


def crossings(place, topology: Topology) -> list:
    """Return the pairs of links that cross and share no node."""

    def side(a, b, c) -> bool:
        return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])

    ends = {frozenset((link.src, link.dst)) for link in topology.links}
    lines = [tuple(sorted(pair)) for pair in ends]
    spot = {node: box.center for node, box in place.boxes.items()}
    return [
        (p, q)
        for p, q in itertools.combinations(lines, 2)
        if not {*p} & {*q}
        and side(spot[p[0]], spot[p[1]], spot[q[0]]) != side(spot[p[0]], spot[p[1]], spot[q[1]])
        and side(spot[q[0]], spot[q[1]], spot[p[0]]) != side(spot[q[0]], spot[q[1]], spot[p[1]])
    ]


def test_the_double_links_of_a_dgx_are_the_outline_and_pcie_stands_in_the_background():
    host = dgx1_v100()
    for place in (arrange(host), arrange(host, two_rings(host))):
        double, single = rings(host)
        assert sum(turning(place, double.nodes)) == pytest.approx(math.tau)
        assert place.faint == {node for node, kind in host.kinds.items() if kind != "gpu"}
        boxes = place.boxes
        lines = [
            (boxes[link.src].center, boxes[link.dst].center)
            for link in host.links
            if not {link.src, link.dst} & place.faint
        ]
        assert not any(boxes[node].hides(*line, 0) for node in place.faint for line in lines)


def scene_of(svg: str) -> ElementTree.Element:
    """Return the nodes and links of a picture, without its legend."""
    return next(e for e in ElementTree.fromstring(svg).iter() if e.get("class") == "d2-scene")


def test_parallel_links_are_drawn_as_parallel_lines():
    host = dgx1_v100()
    for svg in (str(draw(host)), str(draw(cost.shared(two_rings(host), host, "160 MB")))):
        lanes = [
            e.get("d").count("M")
            for e in scene_of(svg).iter("{http://www.w3.org/2000/svg}path")
            if "d2-lane" in e.get("class") and "d2-faint" not in e.get("class")
        ]
        assert sorted(lanes) == [1] * 16 + [2] * 16


def test_bandwidths_lie_on_no_other_link_on_no_box_and_not_on_each_other():
    for topology in (dgx1_v100(), nvswitch(8), nvswitch(16), pcie_server(4)):
        place, svg = arrange(topology), str(draw(topology))
        labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*d2-rate"[^>]*text-anchor="middle">([^<]*)<', svg)
        boxes = [Box.around((float(x), float(y) - 4), 5.5 * len(words), 10) for x, y, words in labels]
        assert not any(a.overlaps(b) for a, b in itertools.combinations([*boxes, *place.boxes.values()], 2))
        for box, (_, _, words) in zip(boxes, labels, strict=True):
            on = [link for link in topology.links if box.hides(*place.lanes[link.src, link.dst], 0)]
            assert {str(link.bandwidth) for link in on} <= {words.split(" × ")[-1]}, words


def test_lanes_end_at_their_boxes_also_where_they_slant():
    for topology, plan in (
        (dgx1_v100(), None),
        reversed(SCENES["pairs, both ways"](5)),
        reversed(SCENES["pairs, servers"](4)),
    ):
        place = arrange(topology, plan)
        for (src, dst), (a, b) in place.lanes.items():
            for node, (x, y) in ((src, a), (dst, b)):
                box = place.boxes[node]
                away = max(box.x - x, x - box.x - box.w, box.y - y, y - box.y - box.h)
                assert abs(away) < 1, f"{src}→{dst} ends {away} from {node}"


def test_a_tree_hangs_below_its_root_and_no_link_crosses_another():
    for count in (4, 5, 8, 13, 16):
        plan, topology = SCENES["pairs, tree"](count)
        place = arrange(topology, plan)
        assert not crossings(place, topology)
        for send in plan.steps[0]:
            assert place.boxes[send.src].y > place.boxes[send.dst].y + place.boxes[send.dst].h


def test_no_lane_between_neighbors_of_neighbors_runs_behind_a_box():
    for count in (8, 16):
        plan, topology = SCENES["pairs, double tree"](count)
        place = arrange(topology, plan)
        for (src, dst), lane in place.lanes.items():
            assert not any(box.hides(*lane, 0) for node, box in place.boxes.items() if node not in (src, dst))


@pytest.mark.parametrize("count", [9, 12, 16])
def test_lanes_between_two_rows_of_nodes_touch_no_box(count):
    scene = Scene(cost.shared(ring(count), pcie_server(count), "160 MB"))
    place, (bars, _) = scene.layout, gauges(scene.layout, scene.load)
    broad = max(1.6 * breadth(scene.trace.topology, place), HIGH * bars[0].broad) / 2  # of the lane that decides
    for (src, dst), ((x, ay), (_, by)) in place.lanes.items():
        others = [box for node, box in place.boxes.items() if node not in (src, dst)]
        lane = Box(x - broad, min(ay, by), 2 * broad, abs(ay - by))
        assert not any(box.overlaps(lane, 1) for box in others), f"{src}→{dst}"
    shown = [text for text in texts(str(draw(scene.trace))) if text.removeprefix("gpu").isdigit()][:count]
    assert len({text.startswith("gpu") for text in shown}) == 1 and len({*shown}) == count  # all with it, or none


@pytest.mark.parametrize("name, full, places, held", [
    ("pcie, at GPU 0", 1, ["switch→gpu0", "gpu0→switch"], "everything waits for switch→gpu0, then gpu0→switch"),
    ("pcie, sharded", 8, [], "no single link holds up the rest"),
    ("machines, ring", 7.1, [], "4 links hold up the rest"),
])  # fmt: skip
def test_a_run_names_its_busy_links_and_its_bottleneck(name, full, places, held):
    trace = predicted(name, 4)
    load = Scene(trace).load
    moments = [(i + 0.5) / 1000 * trace.duration for i in range(1000)]
    found = mean_full(load, trace.duration)
    assert found == pytest.approx(full, abs=0.05)
    assert found == pytest.approx(sum(map(load.full_at, moments)) / 1000, rel=0.01)
    assert [place_name(place) for place in awaited(load, trace.duration)] == places
    average, why = reason(load, trace.duration)
    assert average == f"on average {full} of {load.links} links at full speed"
    assert why == held
    assert reason(load, 0.0) == ("", "")


@pytest.mark.parametrize(
    "hosts, why", [([0, 0, 1, 1], "no single link holds up the rest"), ([0, 1, 0, 1], "2 links hold up the rest")]
)
def test_links_that_hold_up_the_rest_together_are_counted(hosts, why):
    """Two hosts with two GPUs each, and one cable between their switches: a ring crosses it once, or twice."""
    gpus = [f"gpu{i}" for i in range(4)]
    ends = {gpu: ("left", "right")[host] for gpu, host in zip(gpus, hosts, strict=True)}
    links = [Link(*way, "10 GB/s") for cable in [*ends.items(), ("left", "right")] for way in (cable, cable[::-1])]
    kinds = dict.fromkeys(gpus, "gpu") | {"left": "switch", "right": "switch"}
    trace = cost.shared(ring(4), Topology("hosts", kinds, links), "160 MB")
    assert reason(Scene(trace).load, trace.duration)[1] == why


def test_a_key_without_a_share_is_neither_framed_nor_named():
    plan = Plan(
        names(2),
        {"g": 1, "h": 0},
        [[Send("gpu1", "gpu0", k) for k in "gh"], [Send("gpu0", "gpu1", k, "copy") for k in "gh"]],
    )
    trace = cost.shared(plan, pcie_server(2, latency="1 ms"), "160 MB")
    scene = Scene(trace)
    assert scene.frame[1] == scene.hatch[1] == "" and "h" not in texts(str(draw(trace)))
    assert len([m for m in scene.motion.messages if m.key == "h"]) == 2
    assert "d2-gaps" not in str(draw(trace)).split("</style>")[1].replace('d="" class="d2-gaps"', "")


# ---------------------------------------------------------------- pictures equal runs


def contents(trace: Trace, time: float) -> dict:
    """Return (node, key) → (names of contributors, updated or not) of every cell that is not empty."""
    motion = follow(trace)
    cells = [(node, key) for node in trace.plan.nodes for key in trace.plan.share]
    return {
        cell: ({motion.contributors[i] for i in look.who}, look.updated)
        for cell, look in zip(cells, motion.cells_at(time), strict=True)
        if look.who
    }


def replayed(plan: Plan, number: int) -> dict:
    have = dict(itertools.islice(replay(plan), number, number + 1))[number]
    return {
        cell: ({n for i, n in enumerate(plan.nodes) if part.who >> i & 1}, part.updated) for cell, part in have.items()
    }


@pytest.mark.parametrize("model", [cost.ideal, cost.shared])
@pytest.mark.parametrize("name", PLANS)
def test_after_every_step_the_cells_hold_what_the_plan_says(name, model):
    trace = model(PLANS[name], pcie_server(5), "160 MB")
    assert contents(trace, -1.0) == replayed(trace.plan, 0)
    for number, (_, end) in enumerate(trace.step_times(), 1):
        assert contents(trace, end) == replayed(trace.plan, number)


@pytest.mark.parametrize("name", PLANS)
def test_an_arrival_takes_effect_when_its_event_ends(name):
    trace = measured(PLANS[name])
    motion = follow(trace)
    arrivals = {event.end for event in trace.events}
    assert {change.time for change in motion.changes} <= arrivals
    for event in trace.events:
        before, after = contents(trace, event.end - 1e-6), contents(trace, event.end)
        assert {cell for cell in after if after[cell] != before.get(cell)} <= {(event.dst, event.key)}
    assert contents(trace, trace.duration) == replayed(trace.plan, len(trace.plan.steps))


@pytest.mark.parametrize("name", PLANS)
def test_a_message_carries_what_its_sender_had_when_the_step_began(name):
    trace = measured(PLANS[name])
    motion = follow(trace)
    for message in motion.messages:
        had = replayed(trace.plan, message.step - 1)[message.src, message.key]
        look = motion.looks[message.look]
        assert ({motion.contributors[i] for i in look.who}, look.updated) == had
        assert message in motion.under_way(message.start) and message not in motion.under_way(message.end)


def test_steps_that_overlap_in_time_are_drawn_at_their_own_times():
    trace = hurried()
    spans = trace.step_times()
    assert any(after[0] < before[1] for before, after in itertools.pairwise(spans))
    moving = follow(trace)
    for event in trace.events:
        part = next(m for m in moving.messages if (m.step, m.src) == (event.step, event.src))
        assert (part.start, part.end) == (event.start, event.end)
        assert any(change.time == event.end for change in moving.changes)
    assert contents(trace, trace.duration) == replayed(trace.plan, trace.steps)
    # The value of a message is in its sender's cell when it starts.
    for m in moving.messages:
        assert {moving.contributors[i] for i in moving.looks[m.look].who} == contents(trace, m.start)[m.src, m.key][0]


def test_messages_of_different_steps_on_one_lane_at_one_time_go_side_by_side():
    plan = Plan(names(2), {"a": "1/2", "b": "1/2"}, [[Send("gpu1", "gpu0", k)] for k in "ab"], wants=["gpu0"])
    events = tuple(
        Event("send", i, 1e-3 * i, 3e-3 + 1e-3 * i, "gpu1", "gpu0", k, "add", 8) for i, k in enumerate("ab", 1)
    )
    scene = Scene(Trace("gloo ×2", plan, pairs(plan), 16, events))
    one, two = (path.at(0.5)[:2] for path in scene.paths)
    assert math.dist(one, two) > 4
    drawn = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", timeline(scene.trace, scene.motion, 0))
    boxes = [Box(*map(float, numbers)) for numbers in drawn]
    assert len(boxes) == 4 and sum(a.overlaps(b) for a, b in itertools.combinations(boxes, 2)) == 0


def test_a_band_is_where_a_step_runs_alone_and_labels_keep_apart():
    trace = hurried()
    svg = timeline(trace, follow(trace), 0)
    bands = [(float(x), float(x) + float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"', svg)]
    spans = [(1000 * a / trace.duration, 1000 * b / trace.duration) for a, b in trace.step_times()]
    for a, b in bands:
        assert sum(start < b - 0.1 and a + 0.1 < end for start, end in spans) == 1
    middles = [middle for _, middle in step_labels(trace)]
    assert all(abs(a - b) >= 0.035 for a, b in itertools.combinations(middles, 2))


def test_complete_and_updated_cells_say_so():
    trace = predicted("pcie, at the CPU", 4)
    assert [look.complete for look in follow(trace).cells_at(trace.duration)] == [True] * 5
    assert not any(look.complete for look in follow(trace).cells_at(0))
    trace = cost.shared(aggregate_at(names(2), "cpu", update=("sgd", {"lr": 0.1})), pcie_server(2), "160 MB")
    looks = follow(trace).cells_at(trace.duration)
    assert all(look.updated and look.complete for look in looks)


def crowds_at(shown: Motion, time: float) -> list[int]:
    return state_at([0] * len(shown.sharing), shown.crowd, time)


def test_a_place_is_as_crowded_as_messages_are_on_it():
    trace = predicted("pcie, at GPU 0", 4)
    motion = follow(trace)
    crowds = {(link.src, link.dst): n for link, n in zip(motion.sharing, crowds_at(motion, 0.015), strict=True)}
    busy = {("gpu1", "switch"): 1, ("gpu2", "switch"): 1, ("gpu3", "switch"): 1, ("switch", "gpu0"): 3}
    assert crowds == dict.fromkeys(crowds, 0) | busy and len(crowds) == 8
    assert set(crowds_at(motion, trace.duration)) == {0}
    for resource, events in trace.occupied().items():
        for event in events:
            now = sum(e.start <= event.start < e.end for e in events)
            assert crowds_at(motion, event.start)[motion.sharing.index(resource)] == now


def test_a_node_is_at_work_while_it_updates():
    trace = measured(PLANS["servers"])
    motion, nodes = follow(trace), trace.plan.nodes
    updates = [event for event in trace.events if event.kind == "update"]
    assert len(updates) == 2
    for event in updates:
        assert motion.working_at(event.start) == motion.working_at(event.end - 1e-6) == {nodes.index(event.dst)}
        assert motion.working_at(event.end) == motion.working_at(event.start - 1e-6) == set()
        assert 'class="d2-node d2-working"' in str(draw(trace, at=event.start))


def test_the_one_memory_is_in_contention_and_its_unlimited_links_are_not():
    motion = follow(predicted("memory, sharded", 4))
    crowds = dict(zip(motion.sharing, crowds_at(motion, 0.001), strict=True))
    assert crowds.pop("memory") == 12
    assert set(crowds.values()) == {1}


def test_messages_on_one_lane_are_distinguishable():
    for name in ("pcie, at GPU 0", "pcie, sharded", "memory, sharded", "machines, ring"):
        scene = Scene(predicted(name, 4))
        meeting: dict = {}
        for i, m in enumerate(scene.motion.messages):
            for link in scene.trace.topology.route(m.src, m.dst) if m.start == 0 else ():
                meeting.setdefault(link, []).append(scene.paths[i])
        for paths, part in itertools.product(meeting.values(), (0.3, 0.5, 0.7)):
            spots = [path.at(part)[:2] for path in paths]
            assert all(math.dist(a, b) > 4 for a, b in itertools.combinations(spots, 2)), name


def test_messages_leave_one_cell_and_arrive_in_another():
    scene = Scene(predicted("pcie, sharded", 8))
    for message, path in zip(scene.motion.messages, scene.paths, strict=True):
        cells = scene.layout.cells
        assert path.at(0.0) == (*cells[message.src][message.key].center, 1.0)
        assert path.at(1.0) == pytest.approx((*cells[message.dst][message.key].center, 1.0))
        assert path.at(0.5)[2] == 0.0


def test_a_broken_plan_is_drawn_up_to_the_step_that_breaks_it():
    with pytest.raises(PlanError) as error:
        Plan(names(2), {"g": 1}, [[Send("gpu1", "gpu0", "g")], [Send("gpu1", "gpu0", "g")]])
    trace = cost.shared(error.value.plan, pcie_server(2), "160 MB")
    assert contents(trace, trace.duration * 0.5) == {
        ("gpu0", "g"): ({"gpu0", "gpu1"}, False),
        ("gpu1", "g"): ({"gpu1"}, False),
    }
    assert "svg" in str(draw(trace))


# ---------------------------------------------------------------- the picture


@pytest.mark.parametrize("count", [1, 5, 16])
@pytest.mark.parametrize("name", SCENES)
def test_a_picture_is_one_well_formed_svg_that_needs_nothing_else(name, count):
    svg = str(draw(predicted(name, count)))
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not any("}script" in e.tag or "}image" in e.tag or "}foreignObject" in e.tag for e in root.iter())
    assert re.findall(r"https?://[^\"' ]*", svg) == ["http://www.w3.org/2000/svg"]
    assert (
        "url(" not in svg and "@import" not in svg and "nan" not in svg and "inf" not in re.sub(r"infini\w*", "", svg)
    )


def test_each_bandwidth_is_labeled_once():
    assert texts(str(draw(predicted("pcie, sharded", 4)))).count("16 GB/s") == 1
    trace = cost.shared(sharded(names(2)), pcie_server(2, ["16 GB/s", "8 GB/s", "4 GB/s"]), "160 MB")
    labels = texts(str(draw(trace)))
    assert [labels.count(rate) for rate in ("16 GB/s", "8 GB/s", "4 GB/s")] == [1, 1, 1]
    assert not any("/s" in words for words in texts(str(draw(predicted("pairs, ring", 4)))))
    assert texts(str(draw(predicted("memory, sharded", 4)))).count("10 GB/s") == 1
    both = Topology("pair", {"gpu0": "gpu", "gpu1": "gpu"}, tuple(both_ways("gpu0", "gpu1", "25 GB/s", count=2)))
    assert "2 × 25 GB/s" in texts(str(draw(cost.shared(sharded(names(2)), both, "160 MB"))))


def test_each_link_is_labeled_with_its_remaining_bytes():
    svg = str(draw(predicted("pcie, at GPU 0", 4), at="15 ms"))
    assert re.findall(r"d2-left d2-ink\"[^>]*>([^<]+)<", svg.replace('display="none"', "")).count("240 MB") == 1
    assert "links at full speed: 1 of 10 · ● switch→gpu0: 240 MB to go" in texts(svg)
    assert svg.count('class="d2-share d2-decides"') == 1


def test_the_caption_counts_the_lanes_at_full_speed():
    for trace in (predicted("pcie, sharded", 4), predicted("machines, ring", 4), measured(PLANS["servers"]), hurried()):
        load = Scene(trace).load
        for at in sorted({c.time for c in (*load.full, *load.states)}):
            states, who = load.states_at(at), load.decides_at(at)
            crowds = crowds_at(load.motion, at)
            assert [each > 0 for each in states] == [crowd > 0 or i == who for i, crowd in enumerate(crowds)]
            assert states.count(FULL) <= load.full_at(at) <= states.count(FULL) + (who >= 0)
            assert [i for i, each in enumerate(states) if each == DECIDES] == ([who] if who >= 0 else [])


@pytest.mark.parametrize("name, busy, full", [("pcie, at GPU 0", 1, 0), ("pcie, sharded", 0, 1)])
def test_the_legend_explains_the_links_there_are(name, busy, full):
    meanings = [sentence for _, sentence in marks([Scene(predicted(name, 4))])]
    assert meanings.count("a link in use, below full speed") == busy
    assert meanings.count("a link at full speed") == full


def test_a_still_says_that_no_link_decides():
    svg = str(draw(predicted("pcie, sharded", 4), at="0 ms"))
    assert "links at full speed: 8 of 10 · no single link holds up the rest" in texts(svg)


def test_the_backlog_is_what_the_messages_under_way_have_not_passed():
    for trace in (
        predicted("pcie, sharded", 4),
        measured(PLANS["servers"]),
        hurried(),
        predicted("memory, sharded", 4),
    ):
        scene = Scene(trace)
        for part in (0, 0.2, 0.5, 0.77, 1):
            at = part * trace.duration
            left = dict(zip(scene.motion.sharing, scene.load.backlogs_at(at), strict=True))
            for resource, events in trace.occupied().items():
                going = [e for e in events if e.start <= at < e.end]
                bytes_left = sum(e.nbytes * (e.end - at) / (e.end - e.start) for e in going)
                assert sum(left[resource].values()) == pytest.approx(bytes_left)
                assert bytes_left <= scene.peak * (1 + 1e-9)


def test_at_any_time_the_place_that_has_most_to_do_decides_and_none_where_several_have():
    alone = {"pcie, at GPU 0": True, "pcie, at the CPU": True, "memory, sharded": True}
    for name in (*alone, "pcie, sharded", "machines, ring"):
        trace = predicted(name, 4)
        load, motion = Scene(trace).load, follow(trace)
        for part in (0.01, 0.3, 0.49, 0.51, 0.99):
            at = part * trace.duration
            left = [sum(each.values()) for each in load.backlogs_at(at)]
            speed = [trace.topology.capacity(place) for place in motion.sharing]
            todo = [size / fast for size, fast in zip(left, speed, strict=True)]
            decides = load.decides_at(at)
            assert (decides >= 0) == alone.get(name, False), (name, part)
            assert max(todo) == pytest.approx(todo[decides] if decides >= 0 else sorted(todo)[-2]), (name, part)
        assert load.decides_at(trace.duration) == -1


def test_the_moment_is_the_one_asked_for_or_the_one_that_tells_most():
    trace = predicted("pcie, at GPU 0", 4)
    assert draw(trace).at == 0.015
    assert draw(trace, at="7.5 ms").at == 0.0075 and draw(trace, at=0.02).at == 0.02
    assert "7.5 ms" in texts(str(draw(trace, at="7.5 ms")))
    assert str(draw(trace, at=1000)) == str(draw(trace, at=trace.duration))
    with pytest.raises(UnitError):
        draw(trace, at="soon")
    with pytest.raises(UnitError):
        draw(trace, at=-1.0)


def test_without_steps_and_without_time_there_is_a_picture():
    trace = predicted("pairs, star", 1)
    assert trace.duration == 0 and draw(trace).at == 0
    assert "gpu0" in texts(str(draw(trace)))
    empty = replace(predicted("pcie, sharded", 4), events=())
    assert "gpu3" in texts(str(draw(empty)))
    nothing = cost.shared(aggregate_at(names(2), "cpu", update=("sgd", {"lr": 0.1})), pcie_server(2), 0)
    assert nothing.duration == 0 and all(look.updated for look in follow(nothing).cells_at(0))
    assert "cpu" in texts(str(draw(nothing)))


def test_a_heading_shortens_a_long_list_of_who_played_what():
    who = ", ".join(f"rank{i} = gpu{2 * i} gpu{2 * i + 1}" for i in range(8))
    trace = cost.shared(aggregate_at(["gpu0", "gpu1"], "gpu0"), one_memory(["gpu0", "gpu1"], "10 GB/s"), "8 MB")
    svg = str(draw(replace(trace, origin=f"gloo ×8 ({who})")))
    heading = next(words for words in re.findall(r">(measured[^<]*)<", svg) if words.endswith("8 MB"))
    assert "gloo ×8 (rank0 = gpu0" in heading and "rank7 = gpu14 gpu15)" in heading and len(heading) < 90


def test_names_cannot_smuggle_anything_in():
    evil = ["<b>", "a&b", "\"'/><script>alert(1)</script>"]
    plan = Plan(
        evil,
        {"<i>": 1},
        [[Send(evil[1], evil[0], "<i>")], [Send(evil[0], evil[1], "<i>", "copy")]],
        holds=evil[:2],
        wants=evil[:2],
    )
    trace = cost.shared(plan, one_memory(evil, "10 GB/s"), "160 MB")
    svg = str(draw(replace(trace, origin="<u>", topology=replace(trace.topology, name="<s>"))))
    tags = {e.tag.split("}")[1] for e in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "g", "path", "rect", "circle", "text", "tspan", "title", "style"}
    assert "<b>" in [e.text for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]


def test_a_long_name_is_shortened_to_its_room_and_said_in_full_when_pointed_at():
    nodes = [f"machine-with-a-long-name-{i}" for i in range(8)]
    svg = str(draw(cost.shared(sharded(nodes), one_memory(nodes, "10 GB/s"), "160 MB")))
    shown = [words for words in texts(svg) if "…" in words]
    assert len(shown) == 16 and all(len(words) <= 10 for words in shown) and len(set(shown)) >= 8
    assert nodes[0] in [e.text for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]


def test_a_topology_is_drawn_with_its_nodes_and_bandwidths(tmp_path):
    for topology, labels in (
        (dgx1_v100(), {"gpu7", "cpu1", "switch3", "2 × 18 GB/s", "18 GB/s", "16 GB/s"}),
        (nvswitch(16), {"gpu15", "switch", "6 × 25 GB/s"}),
        (pcie_server(4), {"cpu", "gpu3", "16 GB/s"}),
        (one_memory(["a", "b"], "8 GB/s"), {"8 GB/s"}),
        (Topology("one", {"a": "machine"}, ()), {"a"}),
    ):
        picture = draw(topology)
        found = texts(str(picture))
        assert labels <= set(found) and len(found) == len(set(found)) and picture.at is None
        assert repr(picture) == f"<Drawing: {topology.name}>" and "d2-time" not in str(picture)
        assert picture.save(tmp_path / "topology.svg").read_text("utf-8") == picture._repr_svg_()


def test_what_is_too_large_to_be_seen_is_refused_at_once_with_a_way_out():
    for large in (cost.shared(ring(1024), nvswitch(1024), "160 MB"), nvswitch(65)):
        with pytest.raises(
            DrawingError, match=r"^draw shows up to 64 nodes, but there are (1024|65) here: draw a run with fewer"
        ):
            draw(large)
    trace = predicted("pairs, ring", 4)
    many = replace(trace, events=trace.events * (MOST_EVENTS // len(trace.events) + 1))
    with pytest.raises(DrawingError, match=f"^draw shows up to {MOST_EVENTS} events, but there are {len(many.events)}"):
        draw(many)
    assert "svg" in str(draw(nvswitch(64)))


@pytest.mark.parametrize("wrong", [None, 7, "trace", sharded(names(2)), [predicted("pairs, star", 2)]])
def test_only_traces_are_drawn(wrong):
    with pytest.raises(DrawingError, match=f"draw needs a trace, not {type(wrong).__name__}: cost.shared"):
        draw(wrong)


def test_a_tilde_in_the_path_of_a_picture_or_page_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = predicted("pcie, sharded", 2)
    assert draw(run).save("~/run.svg") == tmp_path / "run.svg"
    assert watch(run).save("~/run.html") == tmp_path / "run.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.html", "run.svg"]


def test_notebooks_show_the_picture_and_it_can_be_saved(tmp_path):
    picture = draw(predicted("pcie, sharded", 2))
    assert picture._repr_svg_() == str(picture)
    assert picture.save(tmp_path / "run.svg").read_text("utf-8") == str(picture)
    assert repr(picture) == "<Drawing: <Trace: shared, 4 events, 2 steps, 10 ms> at 2.5 ms>"


# ---------------------------------------------------------------- colors


BLINDNESS = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(color: str) -> list[float]:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def oklab(color: str, seen: list) -> tuple[float, ...]:
    r, g, b = (min(1, max(0, sum(m * c for m, c in zip(row, linear(color), strict=True)))) for row in seen)
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    x, y, z = (cone ** (1 / 3) for cone in cones)
    return (
        21.04542553 * x + 79.3617785 * y - 0.40720468 * z,
        197.79984951 * x - 242.8592205 * y + 45.05937099 * z,
        2.59040371 * x + 78.27717662 * y - 80.8675766 * z,
    )


@pytest.mark.parametrize(("first", "apart"), [(5, 15), (8, 10)])
@pytest.mark.parametrize("theme", [0, 1])
def test_the_first_colors_keep_apart_for_every_kind_of_eye(theme, first, apart):
    colors = [pair[theme] for pair in WORKERS[:first]]
    for seen in BLINDNESS.values():
        for a, b in itertools.combinations(colors, 2):
            assert math.dist(oklab(a, seen), oklab(b, seen)) > apart, (a, b)


def test_drawing_needs_neither_torch_nor_widgets():
    code = (
        "import sys; from d2lps import cost, draw, one_memory, sharded\n"
        "str(draw(cost.shared(sharded(['a', 'b']), one_memory(['a', 'b'], '10 GB/s'), '160 MB')))\n"
        "print(sorted({'torch', 'anywidget', 'ipywidgets', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "[]\n"

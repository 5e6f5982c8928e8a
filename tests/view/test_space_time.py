"""A network over time: the picture shows the record, in three languages and legibly on a phone."""

import re
from xml.etree import ElementTree

import pytest
from helpers.networks import troubled

from d2lps import draw, speak
from d2lps.messages import LANGUAGES
from d2lps.simulate import Faults, Network
from d2lps.view.drawing import MOST_MESSAGES, DrawingError
from d2lps.view.drawing.space_time import TALL, WIDE, bands, kind, messages

SVG = "{http://www.w3.org/2000/svg}"


def tree(net, at=None):
    return ElementTree.fromstring(str(draw(net, at)))


def arrows(root) -> list[str]:
    return [each.text for each in root.findall(f"{SVG}g/{SVG}title")]


def looks(net, node, start=0.0, end=0.05):
    return [(band.look, band.state, round(band.end, 3)) for band in bands(net, start, end) if band.node == node]


def test_the_bands_are_the_states_and_troubles_that_happened():
    net = troubled()
    told = next(each.end for each in net.deliveries if each.src == "b")
    assert looks(net, "a") == [("plain", "", round(told, 3)), ("solid", "leader 1", 0.04), ("crashed", "crashed", 0.05)]
    assert [(look, end) for look, _, end in looks(net, "b") if look == "paused"] == [("paused", 0.021)]
    assert {look for look, *_ in looks(net, "b")} == {"plain", "pale", "paused"}
    assert looks(net, "c") == [("plain", "", 0.05)]


def test_the_bands_of_a_part_are_the_part_of_the_bands():
    net = troubled()
    whole, part = bands(net, 0, 0.05), bands(net, 0.015, 0.03)
    clipped = [band._replace(start=max(band.start, 0.015), end=min(band.end, 0.03)) for band in whole]
    assert part == [band for band in clipped if band.start < band.end]


def test_a_kind_of_messages_looks_the_same_in_each_picture_of_a_run():
    net = troubled()
    sent = [each for each in net.deliveries if each.end is not None]
    last = sent[-1]
    assert kind(last.message) != kind(sent[0].message)

    def strokes(root):
        return {
            kind_of: group.find(f"{SVG}path").get("style")
            for group in root.findall(f"{SVG}g")
            if (title := group.find(f"{SVG}title")) is not None
            for kind_of in [title.text.split("  ")[1]]
        }

    whole, part = strokes(tree(net)), strokes(tree(net, (last.start, last.end)))
    assert part and all(whole[name] == style for name, style in part.items())


def test_the_word_stands_beside_the_cross_of_a_dead_node():
    net = Network()
    net.nodes |= {"a": object(), "b": object()}
    net.record()
    net.after(1.0, net.crash, "b")
    net.run(until=4.0)

    def place(at):
        return next(each for each in tree(net, at).iter(f"{SVG}text") if each.text == "crashed")

    assert place((0, 4)).get("text-anchor") is None and float(place((0, 4)).get("x")) < WIDE / 2
    assert place((2, 4)).get("text-anchor") == "middle"  # its cross is not in the picture


def test_a_later_pause_replaces_the_rest_of_an_earlier_one():
    net = Network()
    net.nodes["a"] = object()
    net.record()
    net.pause("a", 5.0)
    net.after(1.0, net.pause, "a", 1.0)
    net.run(until=4.0)
    assert [(b.look, b.start, b.end) for b in bands(net, 0, 4)] == [("paused", 0, 1), ("paused", 1, 2), ("plain", 2, 4)]


def test_a_node_that_comes_back_is_no_longer_crashed():
    net = Network()
    net.nodes["a"] = node = object()
    net.record()
    net.after(1.0, net.crash, "a")
    net.after(2.0, net.nodes.update, {"a": node})
    net.run(until=3.0)
    assert [(b.look, b.start, b.end) for b in bands(net, 0, 3)] == [("plain", 0, 1), ("crashed", 1, 2), ("plain", 2, 3)]


@pytest.mark.parametrize("at", [None, (0, 0.05), ("10 ms", "30 ms"), (0.0449, 0.0451)])
def test_there_is_an_arrow_for_each_message_and_for_nothing_else(at):
    net = troubled()
    sent = messages(net, *(at if at and at[0] != "10 ms" else (0, 0.05) if at is None else (0.01, 0.03)))
    assert [each.split("  ")[1] for each in arrows(tree(net, at))] == [repr(each.message) for each in sent]
    assert 0 < len(sent) <= 21


def test_a_lost_message_ends_in_a_cross_between_the_rows_and_one_to_a_dead_node_at_its_row():
    net = troubled(lost=0.5)
    net.faults = Faults()
    net.send("c", "a", ("late", "x"))
    net.run(until=0.06)
    lost = [each for each in net.deliveries if each.end is None or (each.dst == "a" and each.end > 0.04)]
    crosses = [g for g in tree(net).findall(f"{SVG}g") if g.find(f"{SVG}title") is not None and not heads(g)]
    assert len(crosses) == len(lost) > 5
    to_dead = next(g for g in crosses if "late" in g.find(f"{SVG}title").text)
    below_a = ys(to_dead)[1]
    assert below_a == pytest.approx(34 + TALL, abs=0.1)


def heads(group) -> bool:
    return any(path.get("d").endswith("z") for path in group.findall(f"{SVG}path"))


def ys(group) -> list[float]:
    return [float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=[ML]|$)", group.find(f"{SVG}path").get("d"))]


def test_a_message_that_is_cut_ends_in_the_hatched_gap_that_it_cannot_pass():
    net = Network(seed=1)
    net.nodes |= dict.fromkeys("abcd", object())
    net.record(lambda name, node, now: name)
    for one, other in ("bc", "ac", "ad", "bd"):
        net.cut(one, other, 1.0)
    net.send("a", "d", "far")
    net.run(until=1.0)
    (group,) = [g for g in tree(net).findall(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    top, row = 34, 64
    assert ys(group) == [top + TALL, top + row + (row + TALL) / 2]


def test_an_arrow_takes_as_long_as_its_message():
    net = Network(seed=1, faults=Faults(slow=1.0, long=0.5))
    net.nodes |= dict.fromkeys("ab", object())
    net.record()
    net.send("a", "b", "slow")
    net.after(1.0, lambda: None)
    net.nodes.clear()
    net.run(until=1.0)
    (group,) = [g for g in tree(net).findall(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    xs = [float(x) for x in re.findall(r"[ML](\S+) ", group.find(f"{SVG}path").get("d"))]
    left = 22 + 8.6
    assert (xs[1] - xs[0]) / (WIDE - left - 16) == pytest.approx(net.deliveries[0].end, abs=2e-3)


@pytest.mark.parametrize("language", LANGUAGES)
def test_states_are_named_in_the_language_in_force_and_words_are_large_enough(language):
    speak(language)
    root = tree(troubled())
    words = [each.text for each in root.iter(f"{SVG}text")]
    leader, crashed = {"en": ("leader 1", "crashed"), "vi": ("dẫn đầu 1", "đã sập"), "zh": ("领导者 1", "崩溃")}[
        language
    ]
    assert {leader, crashed, "a", "b", "c", "role", "other"} <= {*words}
    assert leader in root.find(f"{SVG}desc").text and root.find(f"{SVG}title").text in words
    # Smaller letters than those of notes would be below 9 pixels on a phone.
    assert {each.get("class").split()[0] for each in root.iter(f"{SVG}text")} == {"d2-note"}


def test_the_kind_of_a_message_is_its_first_word():
    assert [kind(message) for message in ("alive", (3, "vote?"), ("push", 1), 5, object())] == [
        "alive",
        "vote?",
        "push",
        "int",
        "object",
    ]


def test_an_undrawable_network_names_the_way_out():
    with pytest.raises(DrawingError, match=r"net\.record\(\)"):
        draw(Network())
    for at in ("2 s", (1, 1), (2, 1), (1, 2, 3)):
        with pytest.raises(DrawingError, match=r"two moments, such as at=\(0, 2\)"):
            draw(troubled(), at=at)
    net = Network()
    net.nodes |= dict.fromkeys("ab", object())
    net.record()
    for _ in range(MOST_MESSAGES + 1):
        net.send("a", "b", "x")
    net.nodes.clear()
    net.run()
    with pytest.raises(DrawingError, match=f"there are {MOST_MESSAGES + 1} messages"):
        draw(net)


def test_it_says_how_many_messages_it_shows():
    assert repr(draw(troubled(), at=(0, "10 ms"))) == "<Drawing: 5 messages, 0 s – 10 ms>"

"""Two placements on one picture: what moves is what changes its server, and nothing else has its full color."""

import re
from xml.etree import ElementTree

import pytest
from helpers.traces import texts

from d2lps import draw, speak
from d2lps.algorithms.placement import Placement
from d2lps.view.drawing.hash_ring import moved

SVG = "{http://www.w3.org/2000/svg}"
FIVE = Placement(5, virtual=8)


@pytest.mark.parametrize("virtual", [1, 8, 256])
def test_exactly_the_part_of_the_server_that_comes_or_goes_moves(virtual):
    four, five, without = (Placement(servers, virtual=virtual) for servers in (4, 5, (0, 1, 3, 4)))
    assert moved(four, five) == pytest.approx(five.share(4))
    assert moved(five, without) == pytest.approx(five.share(2))
    assert moved(five, five) == 0


def test_as_many_keys_move_as_of_the_ring():
    without = Placement((0, 1, 3, 4), virtual=8)
    keys = sum(FIVE.owner(key) != without.owner(key) for key in range(20_000))
    assert keys / 20_000 == pytest.approx(moved(FIVE, without), abs=0.01)


def test_only_what_moves_has_its_full_color():
    root = ElementTree.fromstring(str(draw((FIVE, Placement((0, 1, 3, 4), virtual=8)))))
    paths = [path.get("class") for path in root.findall(f"{SVG}path")]
    cover = paths.index("d2-paper")
    assert {*paths[cover + 1 :]} == {"d2-w2", "d2-w0", "d2-w1", "d2-w3", "d2-w4"}
    before = [path for path in root.findall(f"{SVG}path")[cover + 1 :] if path.get("class") == "d2-w2"]
    assert len(before) == 1  # the one that leaves has full color inside only: all of its arcs are inner ones
    assert {*re.findall(r"A(\d+) ", before[0].get("d"))} == {"62", "42"}
    same = ElementTree.fromstring(str(draw((FIVE, FIVE))))
    assert [path.get("class") for path in same.findall(f"{SVG}path")][-1] == "d2-paper"


def test_long_stretches_have_the_numbers_of_their_servers():
    def numbers(before, after):
        pair = Placement(before, virtual=8), Placement(after, virtual=8)
        return {each for each in texts(str(draw(pair))) if each.isdigit()}

    assert numbers((0, 1, 2, 3, 4), (0, 1, 3, 4)) == {*"01234"}  # 2 is inside only
    assert numbers((0, 1), (0, 3)) == {*"013"}  # 3 is outside only


@pytest.mark.parametrize(
    ("language", "sentence"), [("en", "of the ring moves"), ("vi", "của vòng đổi máy chủ"), ("zh", "换了服务器")]
)
def test_it_says_what_each_server_had_and_has(language, sentence):
    speak(language)
    words = texts(str(draw((FIVE, Placement((0, 1, 3, 4), virtual=8)))))
    assert any(sentence in each and f"{FIVE.share(2):.1%}" in each for each in words)
    assert f"{FIVE.share(2):.1%} → –" in words


def test_colors_belong_to_numbers_of_servers():
    root = ElementTree.fromstring(str(draw(Placement((0, 3), virtual=2))))
    assert {path.get("class") for path in root.findall(f"{SVG}path")} == {"d2-w0", "d2-w3"}

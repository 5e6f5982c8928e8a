"""The figures of the chapters: img/ is up to date, drawn from topologies and traces, and language-neutral."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.traces import names, texts

from course.book.figures import figures
from d2lps import aggregate_at, cost, pcie_server, sharded
from d2lps.units import show_seconds

ROOT = Path(__file__).parents[2]
DRAWN = {name: draw for folder in sorted((ROOT / "chapters").iterdir()) for name, draw in figures(folder).items()}
FIGURES = "ps bw-hierarchy ps-distributed race nvlink nvlink-twoloop ringsync ps-multimachine ps-multips".split()
FIGURES += "overlap kinds mlp groups why-growth why-one-node causal-cuts moving-ring".split()


def test_the_figures_are_those_that_the_chapters_draw():
    assert sorted(DRAWN) == sorted(FIGURES) == sorted(path.stem for path in (ROOT / "img").glob("*.svg"))


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_in_the_course_are_those_that_are_drawn(name):
    assert (ROOT / "img" / f"{name}.svg").read_text("utf-8") == DRAWN[name]() + "\n"


def test_the_figures_know_no_language():
    known = {"GPU", "CPU", "PCIe", "Ethernet", "GbE", "GB/s", "MB/s", "MB", "ms", "cpu", "switch", "gpu"}
    known |= {"host", "server", "network"}  # names of nodes
    known |= {"shards", "ring"}  # what the cells of every language call these strategies
    known |= {"op", "gelu"}  # operators
    known |= {"AlexNet", "AlphaStar", "GPT", "Astra", "Llama", "PaLM", "FLOP"}  # models, and their cost
    for svg in (draw() for draw in DRAWN.values()):
        for words in [
            *texts(svg),
            *(e.text for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")),
        ]:
            found = {w for w in re.findall(r"[A-Za-z/]+", words) if len(w) > 1}
            assert found <= known, found - known


def test_the_times_in_the_figure_are_those_of_the_traces():
    words = texts(DRAWN["ps-distributed"]())
    for plan in (aggregate_at(names(4), "gpu0"), aggregate_at(names(4), "cpu"), sharded(names(4))):
        assert show_seconds(cost.shared(plan, pcie_server(4), "160 MB").duration) in words
    assert {"60 ms", "80 ms", "15 ms"} <= set(words)


def test_the_rings_in_the_figure_are_those_of_the_links():
    (title,) = re.findall("<title>([^<]*)</title>", DRAWN["nvlink-twoloop"]())[:1]
    assert title == "0 → 3 → 2 → 1 → 5 → 6 → 7 → 4, 0 → 1 → 3 → 7 → 5 → 4 → 6 → 2"
    assert texts(DRAWN["nvlink-twoloop"]()).count("gpu5") == 2
    assert {"2 × 18 GB/s", "18 GB/s"} <= set(texts(DRAWN["nvlink"]()))


def test_the_figure_of_the_ring_shows_both_halves_to_the_complete_end():
    svg = DRAWN["ringsync"]()
    assert [words for words in texts(svg) if words.startswith("(")] == [f"({i})" for i in range(1, 7)]
    # 4 complete cells after step 3, shown in both halves, then 8, 12, 16; and the 12 messages of the second half.
    assert svg.count('class="d2-done"') == 4 + 4 + 8 + 12 + 16 + 12


def test_the_figure_of_overlap_says_when_all_is_sent():
    assert [word for word in texts(DRAWN["overlap"]()) if "ms" in word] == ["72 ms", "48 ms", "72 ms"]

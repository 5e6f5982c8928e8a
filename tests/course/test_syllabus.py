"""The syllabus follows the chapters, and the numbers of exam answers are right."""

import math
import tomllib
from pathlib import Path

import pytest

import d2lps
from course import syllabus
from course.book.library import Book
from d2lps.notebook.grading.course import number
from d2lps.schedule import gpipe, interleaved, one_f_one_b, pipeline
from d2lps.schedule.context import seen_pairs, token_places

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "chapters/toc.toml").read_text("utf-8"))["chapter"]
ASKED = syllabus.questions((ROOT / syllabus.EXAM).read_text("utf-8"))


def test_pages_made_from_the_chapters_are_up_to_date():
    for path, text in syllabus.pages(Book(ROOT)).items():
        assert path.read_text("utf-8") == text, "python -m course.syllabus"


@pytest.mark.parametrize("count", [3, 6, 12])
def test_a_plan_has_its_weeks_and_keeps_the_order_of_requirements(count):
    weeks = syllabus.PLANS[count]
    order = " ".join(weeks).split()
    needs = {number(entry["slug"]): entry.get("needs", []) for entry in ENTRIES}
    assert len(weeks) == count and len(set(order)) == len(order)
    for i, each in enumerate(order):
        assert set(needs[each]) <= {*order[:i]}, each
    if count == 12:
        assert {*order} == {each for each in needs if each[0].isdigit()}


def test_each_chapter_has_three_questions_with_answers_and_outcomes():
    assert list(ASKED) == [entry["slug"] for entry in ENTRIES]
    for slug, pairs in ASKED.items():
        assert len(pairs) == 3 and all(question.endswith("?") and answer.endswith(".") for question, answer in pairs)
        can = syllabus.outcomes((ROOT / "chapters" / slug / "en.md").read_text("utf-8"))
        assert len(can) >= 2 or slug.startswith("00")


def eight(plan_of) -> str:
    """Return the predicted time of a plan of question 1 of chapter 01, in ms."""
    names = [f"gpu{i}" for i in range(8)]
    trace = d2lps.cost.shared(plan_of(names), d2lps.pcie_server(8, "25 GB/s"), "400 MB")
    return f"{1e3 * trace.duration:.0f} ms"


def idle(table) -> str:
    """Return the idle part of a pipeline, in percent."""
    return f"{100 * d2lps.cost.shared(pipeline(table)).bubble():.1f}%"


def longest(n: int) -> float:
    """Return the most blocks that a device of a ring computes under a causal mask, with contiguous parts."""
    places = token_places(1000 * n, n)
    return sum(seen_pairs(places[-1], keys) for keys in places) / 1000**2


NUMBERS = {
    ("01", 1): lambda: [eight(lambda gpus: d2lps.aggregate_at(gpus, gpus[0])), eight(d2lps.sharded)],
    ("01", 2): lambda: [f"{200 / 80:.1f} times", f"{200 / 30:.1f} times"],
    ("01", 3): lambda: [f"{104 / 32:.2f} times", f"{104 / (4 * 32):.2f} times"],
    ("02", 1): lambda: [f"{18 * (0.005 + 1e3 / 10 / 50):.2f} ms"],
    ("02", 3): lambda: [f"{2 * 63} steps", f"64 = {2 * math.log2(64):.0f}"],
    ("03", 1): lambda: [f"{16 * 0.4:.1f} s", f"{2 * 8 / 4 * 0.4:.1f} s", f"{2 * 7 / 8 * 0.4:.1f} s"],
    ("05", 2): lambda: [f"{100 * (1 - 0.98**50):.0f}%"],
    ("06", 1): lambda: [f"{math.sqrt(4 * 750):.0f} min", f"{100 * math.sqrt(4 / 750):.1f}%"],
    ("07", 1): lambda: [f"{1000 * (1 + 512 / V):.0f}" for V in (512, 2048)],
    ("09", 1): lambda: [idle(gpipe(8, 24)), idle(one_f_one_b(8, 24))],
    ("09", 2): lambda: [idle(interleaved(8, 24, 2)), f"{15 / 7:.1f} times"],
    ("10", 1): lambda: [f"{2 * 15 / 16 * 50:.2f} GB/s"],
    ("11", 1): lambda: [f"{8192 * 256 / 1e6:.2f} MB", f"{5000 * 256 / 1e6:.2f} MB", f"{100 * (1 - 5000 / 8192):.0f}%"],
    ("12", 1): lambda: ["208", *(f"{a * 13 + b * 13 / 32:.1f}" for a, b in ((4, 12), (2, 14), (0, 16)))],
    ("13", 1): lambda: [f"{2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) / 1e9:.2f} GB"],
    ("13", 2): lambda: [f"{125 / 8:.1f}%", f"{25 - 125 / 8:.1f}%"],
    ("14", 1): lambda: [f"{(1 * 1 + 2 * 4) / 3:.2f}"],
    ("14", 2): lambda: [f"{longest(8):.1f} blocks", f"{longest(8) / 4:.3f} times"],
    ("14", 3): lambda: [f"{8 / 64 * 2 * 400e12 / 25e9:.0f} tokens"],
}  # fmt: skip


@pytest.mark.parametrize("chapter, question", NUMBERS)
def test_a_number_in_an_answer_is_what_the_program_or_the_formula_says(chapter, question):
    slug = next(each for each in ASKED if number(each) == chapter)
    answer = ASKED[slug][question - 1][1]
    for value in NUMBERS[chapter, question]():
        assert value in answer, (value, answer)

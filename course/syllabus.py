"""The syllabus for teachers, ``docs/syllabus.md``, and the table of all chapters, ``docs/chapters.md``.

Everything comes from ``toc.toml``, the texts of the chapters and ``docs/exam.md``; only the plans are chosen here.
``python -m course.syllabus`` writes both.
"""

import re
from pathlib import Path

from course.book.library import Book, write
from course.book.way import numbered
from d2lps.messages import allow_any_letter
from d2lps.notebook.grading.course import number

PLANS = {  # weeks: the numbers of the chapters of each
    3: ("00 01", "02 03", "08 09"),
    6: ("00 01", "02", "03 07", "04 05", "08 09", "12 13"),
    12: ("00 01", "02", "03", "04", "05", "06 06b", "07 11", "08", "09", "10", "12 13", "14 15"),
}
FILE, EXAM, CHAPTERS = "docs/syllabus.md", "docs/exam.md", "docs/chapters.md"
HEADINGS = {  # of the table in each language
    "en": ("English", "chapter", "minutes"),
    "vi": ("Tiếng Việt", "chương", "phút"),
    "zh": ("中文", "章", "分钟"),
}
LEAD = """\
# Syllabus

Made by `python -m course.syllabus` from the chapters; edit those, or `course/syllabus.py`. Minutes are those that readers need, with the required exercises. [teaching.md](teaching.md) tells how to give the course with only these chapters.
"""  # noqa: E501
POLICY = """\
## A policy on AI assistants

Copy it, or change it. The handout has [AGENTS.md](handout/AGENTS.md), which tells assistants the same.

* An assistant may explain: ideas, error messages, hints, and code of the chapters. It does not write answers to exercises, and does not give the numbers that `predict` asks for.
* Say in a sentence below an answer which help you had. Help that you name costs no points; an answer that you cannot explain counts as none.
* The check says at once if an answer is right, so nothing is lost by trying on your own first.
* In the exam there are no assistants. Its questions ask for reasons and for numbers on paper.
"""  # noqa: E501


def questions(exam: str) -> dict[str, list[tuple[str, str]]]:
    """Return slug → questions and answers of ``docs/exam.md``.

    >>> questions("## 01-one\\n\\n1. Why?\\n\\n   *Answer.* So.\\n")
    {'01-one': [('Why?', 'So.')]}
    """
    _, *chapters = re.split(r"(?m)^## ", exam)
    item = re.compile(r"(?ms)^\d+\. (.*?)\n\n   \*Answer\.\* (.*?)\n(?=\n\d|\n?\Z)")
    return {chapter.partition("\n")[0]: item.findall(f"{chapter.rstrip()}\n") for chapter in chapters}


def outcomes(text: str) -> list[str]:
    """Return what readers of a chapter can do afterwards, as its text lists it."""
    listed = re.search(r"(?m)^After this (?:chapter|appendix) you can\n\n((?:\* .*\n)+)", text)
    return re.findall(r"\* (.*?)[;.]\n", listed[1]) if listed else []


def syllabus(book: Book) -> str:
    """Return the whole page."""
    slugs = {number(slug): slug for slug in book.contents}

    def title(slug: str) -> str:
        return numbered("en", slug, book.contents[slug]["en"])

    parts = [LEAD]
    for count, weeks in PLANS.items():
        rows = []
        for week, numbers in enumerate(weeks, 1):
            chapters = [slugs[each] for each in numbers.split()]
            minutes = sum(book.minutes[slug] for slug in chapters)
            rows.append(f"| {week} | {'; '.join(map(title, chapters))} | {minutes} |\n")
        parts.append(f"## {count} weeks\n\n| week | chapters | minutes |\n|---:|:---|---:|\n{''.join(rows)}")
    parts.append("## Learning outcomes and exam questions\n\nThe answers are in the [teacher's part](exam.md).\n")
    asked = questions((book.root / EXAM).read_text("utf-8"))
    for slug in book.contents:
        parts.append(f"### {title(slug)}\n")
        if can := outcomes((book.folder(slug) / "en.md").read_text("utf-8")):
            parts.append("Learners can\n\n" + "".join(f"* {each}\n" for each in can))
        parts.append("".join(f"{i}. {question}\n" for i, (question, _) in enumerate(asked.get(slug, ()), 1)))
    return "\n".join([*parts, POLICY])


def chapters(book: Book) -> str:
    """Return the table of all chapters in each language, with links to their notebooks."""
    parts = ["# The chapters\n\nMade by `python -m course.syllabus` from `chapters/toc.toml`.\n"]
    for language, (name, *columns) in HEADINGS.items():
        rows = [f"| {' | '.join(columns)} | |\n|:---|---:|:---|\n"]
        for slug, titles in book.contents.items():
            link = f"[{numbered(language, slug, titles[language])}](../chapters/{slug}/{language}.ipynb)"
            rows.append(f"| {link} | {book.minutes[slug]} | {book.abouts[slug][language]} |\n")
        parts.append(f"## {name}\n\n{''.join(rows)}")
    return "\n".join(parts)


def pages(book: Book) -> dict[Path, str]:
    """Return the pages that follow from the chapters, by their paths."""
    return {book.root / FILE: syllabus(book), book.root / CHAPTERS: chapters(book)}


if __name__ == "__main__":
    allow_any_letter()
    print(*write(pages(Book())), sep="\n")

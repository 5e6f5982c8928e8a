"""The syllabus for teachers, the table of all chapters, and a lecture from each: ``docs/lessons.md`` in each language.

Everything comes from ``toc.toml``, the texts and lesson plans of the chapters and ``docs/exam.md``; only the plans of
weeks are chosen here. ``python -m course.syllabus`` writes all.
"""

import ast
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from course.book.lesson import CITE, Section
from course.book.library import Book, Chapter, toml, write
from course.book.navigation import numbered
from course.book.notebook import captions
from course.handout import PLAN
from d2lps.messages import LANGUAGES, allow_any_letter, named, only, text_in
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


def lessons(book: Book, language: str) -> str:
    """Return a page with a lecture from each chapter: what to show, discuss and leave out, and a quiz."""

    def say(key: str, **values: object) -> str:
        return text_in(language, f"lessons.{key}", **values)

    parts = [f"# {say('title')}\n\n{say('lead')}\n"]
    for slug, titles in book.contents.items():
        chapter, plan = book.load(slug), toml(book.folder(slug) / PLAN)
        text, shown = chapter.texts[language], plan["picture"]
        sections = {section.id: section for section in text.sections}
        picture = captions(chapter, language).get(shown) or f"“{sections[shown].title}”"
        lines = [f"{say('picture')} {_plain(book, language, picture)}"]
        for minutes, left_out in plan["without"].items():
            named_sections = "; ".join(_plain(book, language, sections[id].title) for id in left_out)
            lines.append(say("without", minutes=minutes, sections=named_sections or say("nothing")))
        asked = [f"{i}. {question[language]}\n" for i, question in enumerate(plan["questions"], 1)]
        quiz = [f"* {_plain(book, language, question)}\n" for question in quizzes(chapter, language)]
        title = f"## {numbered(language, slug, titles[language])}\n\n{say('minutes', count=book.minutes[slug])}\n"
        parts += [title, "".join(f"* {line}\n" for line in lines)]
        parts += [f"**{say('quiz')}**\n", "".join(quiz)] if quiz else []
        parts += [f"**{say('discuss')}**\n", "".join(asked)]
    return "\n".join(parts)


def quizzes(chapter: Chapter, language: str) -> Iterator[str]:
    """Yield what each prediction of a chapter asks for, in one paragraph, without an answer."""
    for section in chapter.texts[language].sections:
        for at, block in enumerate(section.blocks):
            if block.kind == "cell" and (asked := _asked(chapter.cell(block.name).source)):
                items = (
                    f"{only(language, partial(named, item))}{f' ({unit})' if unit else ''}" for item, unit in asked
                )
                yield f"{_question(section, at)} **{text_in(language, 'list.comma').join(items)}**"


def _asked(source: str) -> list[tuple[str, str]]:
    """Return what a cell lets its readers predict, each with its unit; nothing if it asks for no prediction."""
    calls = [node for node in ast.walk(ast.parse(re.sub(r"(?m)^[%!].*", "", source))) if isinstance(node, ast.Call)]
    asks = [call for call in calls if getattr(call.func, "attr", "") == "predict" and len(call.args) == 2]
    return [*ast.literal_eval(asks[0].args[1]).items()] if asks else []


def _question(section: Section, at: int) -> str:
    """Return the last paragraph with a question before a cell, and the list after it, in one line."""
    before = "\n\n".join(block.text.strip() for block in section.blocks[:at] if block.kind == "prose")
    paragraphs = [each for each in re.split(r"\n{2,}", before) if not each.startswith("#")]
    first = max((i for i, each in enumerate(paragraphs) if re.search("[?？]", each)), default=len(paragraphs) - 1)
    first -= first > 0 and paragraphs[first].startswith("* ")  # a list, which the paragraph before it introduces
    return re.sub(r"\s*\n\s*(\* )?", " ", "\n".join(paragraphs[first:]).replace("$$", "$"))


def _plain(book: Book, language: str, text: str) -> str:
    """Return a text with the names of its links, and without their addresses."""
    links = book.links(language)
    return re.sub(r"\[([^\[\]]*)\]\([^()\s]*\)", r"\1", CITE.sub(lambda match: links[match[1]], text)).replace("[[", "")


def pages(book: Book) -> dict[Path, str]:
    """Return the pages that follow from the chapters, by their paths."""
    lectures = {
        language: f"docs/lessons{'' if language == LANGUAGES[0] else f'.{language}'}.md" for language in LANGUAGES
    }
    made = {book.root / name: lessons(book, language) for language, name in lectures.items()}
    return made | {book.root / FILE: syllabus(book), book.root / CHAPTERS: chapters(book)}


if __name__ == "__main__":
    allow_any_letter()
    print(*write(pages(Book())), sep="\n")

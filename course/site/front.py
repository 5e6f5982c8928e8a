"""The race and the map on the first page, the table of a pipeline, and the page that asks for the language."""

import html
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from course.book import navigation
from course.book.library import Book, Chapter
from course.book.navigation import numbered
from d2lps.messages import LANGUAGES, html_language, only, text_in
from d2lps.notebook.grading.course import chapter_module
from d2lps.notebook.predict_page import as_data
from d2lps.notebook.progress import opening
from d2lps.notebook.schedule_table import ScheduleTable, edit
from d2lps.schedule import Schedule
from d2lps.view.drawing.course_map import course_map
from d2lps.view.drawing.lanes import LOOKS, Lanes
from d2lps.view.drawing.scene import Scene
from d2lps.view.drawing.svg import sheet

THEME = Path(__file__).with_name("theme")
THUMBNAILS = "thumbnails"
FIRST, RACE = "00-in-15-minutes", "race"  # the chapter that begins with the race, and the stem of its positions' files
HERO = "moving-ring"  # the figure beside the question
FRAME = Environment(loader=FileSystemLoader(THEME), autoescape=False)


@cache
def race(language: str) -> tuple[str, dict[str, str]]:
    """Return the race with which chapter 00 begins, after a bet, and file → script with all positions of its sliders.

    The first page puts :func:`beside` at the mark ``[[beside]]``, and its picture at ``[[hero]]``.
    """
    return only(language, lambda: opening("00").page(RACE, hero="[[hero]]", beside="[[beside]]"))


def hero(language: str) -> str:
    """Return the picture beside the question: a ring that moves."""
    says = html.escape(text_in(language, "site.ring"))
    return f'<img src="../img/{HERO}.svg" alt="{says}" width="432" height="304">'


def beside(book: Book, titles: dict[str, str], language: str) -> str:
    """Return where to go from the first page: chapter 00, and the command that opens the course in JupyterLab."""
    minutes = html.escape(text_in(language, "site.minutes", minutes=book.minutes.get(FIRST)))
    link = f'<a href="{FIRST}.html">{titles.get(FIRST, "")}</a> ({minutes})'
    begin = f"<p>{html.escape(text_in(language, 'site.begin'))} {link}</p>" if FIRST in titles else ""
    command = "make lab" if language == LANGUAGES[0] else f"make lab-{language}"
    lab = html.escape(text_in(language, "site.lab"))
    return f'{begin}<p>{lab}</p><pre class="code" tabindex="0"><code>{command}</code></pre>'


def pipeline_table() -> ScheduleTable:
    """Return the table of a pipeline; its field has the picture of 1F1B that torch prints, which cannot be done."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _format_pipeline_order

    return edit(paste=_format_pipeline_order(dict(enumerate(get_schedule_ops("1F1B", 4, 4)))))


def thumbnail(folder: Path) -> str:
    """Return a small picture of the last run with which the chapter in ``folder`` opens, at its most telling moment."""
    *_, trace = chapter_module(folder, "figures").opening().values()
    if isinstance(trace.plan, Schedule):
        scene = Lanes(trace)
        wide, high, looks = 320, 40 * len(scene.nodes), LOOKS
        drawn = scene.lanes(x=0, y=0, width=wide, height=high)
    else:
        scene = Scene(trace, widest=76)
        (_, _, wide, high), looks = scene.view, ""
        drawn = scene.svg(scene.motion.telling(), x=0, y=0, width=wide, height=high)
    return sheet(wide, high, folder.name, drawn, looks=looks)


def thumbnails(book: Book) -> dict[str, str]:
    """Return slug → picture, for the chapters that open with a run."""
    folders = map(book.folder, book.contents)
    return {folder.name: thumbnail(folder) for folder in folders if (folder / "figures.py").is_file()}


def card(slug: str, title: str, about: str, language: str, book: Book, up: str) -> str:
    """Return the list item of a chapter: its picture, title, sentence and time; ``up`` leads to the site's root."""
    pictured = (book.folder(slug) / "figures.py").is_file()
    picture = f'<img src="{up}{THUMBNAILS}/{slug}.svg" alt="{title}" loading="lazy">' if pictured else ""
    minutes = book.minutes.get(slug)
    takes = f"<small>{html.escape(text_in(language, 'site.minutes', minutes=minutes))}</small>" if minutes else ""
    page = f"{up}{language}/{slug}.html"
    return f'<li>{picture}<div><h2><a href="{page}">{title}</a></h2><p>{about}</p>{takes}</div></li>'


def the_map(book: Book, chapters: dict[str, Chapter], language: str) -> str:
    """Return the map of the course, on which ``progress.js`` marks what was read and solved in this browser."""
    stops = navigation.stops(book, language, {slug: f"{slug}.html" for slug in chapters})
    picture = course_map(stops, text_in(language, "map.title"), marks={})
    of = {name: f"{{{name}}}" for name in ("read", "chapters", "passed", "exercises")}  # the script fills them
    words = {
        "read": text_in(language, "map.read"),
        "solved": text_in(language, "map.solved", **of),
        "sum": text_in(language, "map.sum", **of),
    }
    exercises = {slug: [cell.exercise for cell in chapter.cells if cell.exercise] for slug, chapter in chapters.items()}
    data = as_data({"words": words, "exercises": exercises})
    return f'<div class="shown course-map">{picture}<p class="progress" role="status" hidden></p>{data}</div>'


def choice(names: dict[str, str], book: Book, address: str) -> str:
    """Return the page before all others: it shows the course, asks for the language once, and remembers it.

    ``address`` is that of the sources, if the course has one.
    """
    rows = "".join(
        f'<li lang="{only(language, html_language)}"><h2><a href="{language}/index.html">{name}</a></h2>'
        f"<p>{html.escape(text_in(language, 'site.question'))}</p></li>"
        for language, name in names.items()
    )
    chapters = "".join(
        card(slug, html.escape(numbered("en", slug, title["en"])), html.escape(book.abouts[slug]["en"]), "en", book, "")
        for slug, title in book.contents.items()
    )
    clone = [f"git clone {html.escape(address)} course", "cd course"] * bool(address) + ["make lab"]
    return FRAME.get_template("choice.html").render(
        rows=rows,
        known="|".join(names),
        title=html.escape(text_in("en", "site.title")),
        question=html.escape(text_in("en", "site.question")),
        hero=book.figure(HERO).is_file(),
        ring=html.escape(text_in("en", "site.ring")),
        chapters=chapters,
        clone="\n".join(clone),
    )

"""The race on the first page, the table of a pipeline, and the page that asks for the language."""

import html
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from d2lps.messages import html_language, only, text_in
from d2lps.notebook.opening import opening
from d2lps.notebook.schedule_table import ScheduleTable, edit
from d2lps.view.player import Player

THEME = Path(__file__).with_name("theme")
FRAME = Environment(loader=FileSystemLoader(THEME), autoescape=False)


def race() -> Player:
    """Return a player of the race with which chapter 00 begins: four GPUs that add up their gradients in three ways."""
    return opening("00")


def pipeline_table() -> ScheduleTable:
    """Return the table of a pipeline; its field has the picture of 1F1B that torch prints, which cannot be done."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _format_pipeline_order

    return edit(paste=_format_pipeline_order(dict(enumerate(get_schedule_ops("1F1B", 4, 4)))))


def choice(names: dict[str, str]) -> str:
    """Return the page before all others, which asks for the language once and remembers it."""
    rows = "".join(
        f'<li lang="{only(language, html_language)}"><h2><a href="{language}/index.html">{name}</a></h2>'
        f"<p>{html.escape(text_in(language, 'site.question'))}</p></li>"
        for language, name in names.items()
    )
    return FRAME.get_template("choice.html").render(rows=rows, known="|".join(names))

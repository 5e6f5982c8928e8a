"""The race on the first page, the table of a pipeline, and the page that asks for the language."""

import html
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from d2lps import aggregate_at, cost, pcie_server, sharded
from d2lps.messages import html_language, only, text_in
from d2lps.notebook.schedule_table import ScheduleTable, edit
from d2lps.view.player import Player, watch

THEME = Path(__file__).with_name("theme")
FRAME = Environment(loader=FileSystemLoader(THEME), autoescape=False)
SIZE = "160 MB"


def race() -> Player:
    """Return a player of four GPUs that add up their gradients in three ways at once."""
    server = pcie_server()
    gpus = [node for node, kind in server.kinds.items() if kind == "gpu"]
    plans = {"GPU 0": aggregate_at(gpus, gpus[0]), "CPU": aggregate_at(gpus, "cpu"), "shards": sharded(gpus)}
    return watch(*(cost.shared(plan, server, SIZE) for plan in plans.values()), names=list(plans), name="race")


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

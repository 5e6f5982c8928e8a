"""A notebook that a program has run, exported by nbconvert and opened without network: everything plays."""

import nbformat
import pytest
from helpers import browser as browsers
from helpers import workspaces
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from d2lps import predict
from d2lps.notebook import fields
from d2lps.view import player

chromium = browsers.chromium
VIEW = "application/vnd.jupyter.widget-view+json"
CELLS = [
    "from d2lps import aggregate_at, cost, explore, pcie_server, predict, watch\ngpus = ['gpu0', 'gpu1', 'gpu2']",
    "watch(cost.shared(aggregate_at(gpus, 'gpu0'), pcie_server(3), '160 MB'))",
    "predict('race', {'CPU': 'ms'})",
    "explore()",
]


def test_an_exported_notebook_plays_without_network(chromium, tmp_path, monkeypatch):
    place = workspaces.enter(tmp_path / "course", monkeypatch)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(place.parent / "en")}}).execute()
    assert book.metadata.widgets, "nbconvert prefers widgets whose state it has"
    page_html, _ = HTMLExporter(exclude_input=True).from_notebook_node(book)
    (tmp_path / "book.html").write_text(page_html, "utf-8")

    page, errors = chromium.new_page(), []
    page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "book.html").as_uri(), wait_until="domcontentloaded")
    page.wait_for_selector(".d2lps-explored .d2-player")
    one, other = page.locator(".d2-player").all()  # that of watch, and that of explore
    for shown in (one, other):
        slider = shown.locator("input[type=range]").first
        before = slider.input_value()
        shown.locator(".d2-forward").click()
        page.wait_for_function("([slider, before]) => slider.value !== before", arg=[slider.element_handle(), before])
    page.locator(".d2lps-asked input").fill("80")
    page.locator(".d2lps-asked button").click()
    expect(page.locator(".d2lps-asked [role=status]")).to_contain_text("80 ms")
    page.locator(".d2lps-explored button[data-shows='1']").click()
    page.wait_for_selector(".d2lps-explored button[data-shows='1'][aria-pressed=true]")
    assert not [error for error in errors if "MathJax" not in error]
    page.close()


@pytest.mark.parametrize("content, live", [({"allow_stdin": False}, False), ({"allow_stdin": True}, True), ({}, True)])
def test_widgets_are_shown_to_those_who_can_answer(content, live, monkeypatch, tmp_path):
    workspaces.enter(tmp_path / "course", monkeypatch)
    kernel = type("Kernel", (), {"get_parent": lambda self: {"content": content}})()
    monkeypatch.setattr("IPython.get_ipython", lambda: type("Shell", (), {"kernel": kernel})())
    assert player.has_front_end() is live
    assert (VIEW in fields.bundle(predict("race", {"CPU": "ms"}))()) is live

"""The bar below a long loop, and its absence in outputs that are stored."""

import nbformat
import pytest
from nbclient import NotebookClient

from d2lps.messages.counted import counted

LOOP = """
import time
from d2lps.messages.counted import counted
for each in counted(range(5), of=5):
    time.sleep({seconds})
"""


def test_bar_appears_below_a_long_loop_only():
    sources = ["import os; os.environ['D2LPS_PROGRESS'] = '1'", *(LOOP.format(seconds=each) for each in (0, 0.8))]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    _, short, (bar,) = (cell.outputs for cell in book.cells)
    assert short == [] and "application/vnd.jupyter.widget-view+json" in bar.data and "/5 [" in bar.data["text/plain"]


@pytest.mark.parametrize("setting", [{"D2LPS_PROGRESS": "0"}, {"D2LPS_PROGRESS": "1", "RANK": "1"}])
def test_bar_is_off_in_stored_outputs_and_on_further_ranks(setting, monkeypatch):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    rounds = range(3)
    assert counted(rounds, of=3) is rounds

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


def executed(*sources):
    """Return the outputs of cells, with bars."""
    sources = ["import os; os.environ['D2LPS_PROGRESS'] = '1'", *sources]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    return [cell.outputs for cell in book.cells[1:]]


def test_bar_appears_below_a_long_loop_only():
    short, (bar,) = executed(LOOP.format(seconds=0), LOOP.format(seconds=0.8))
    assert short == [] and "application/vnd.jupyter.widget-view+json" in bar.data and "/5 [" in bar.data["text/plain"]


def test_bar_of_ranks_is_text_of_the_first_that_is_cleared_at_the_end():
    cells = ["import d2lps\nranks = d2lps.ranks(2)", "%%px\n" + LOOP.format(seconds=0.8), "ranks.close()"]
    _, outputs, _ = executed(*cells)
    assert {output.name for output in outputs} == {"stderr"}
    drawn = "".join(output.text for output in outputs)
    assert "/5 [" in drawn and "[1]" not in drawn and drawn.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize("setting", [{"D2LPS_PROGRESS": "0"}, {"D2LPS_PROGRESS": "1", "RANK": "1"}])
def test_bar_is_off_in_stored_outputs_and_on_further_ranks(setting, monkeypatch):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    rounds = range(3)
    assert counted(rounds, of=3) is rounds

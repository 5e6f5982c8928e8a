"""Execute a chapter once for all languages, so that all readers see the same numbers."""

import os
from pathlib import Path

import nbformat

from d2lps.messages import LANGUAGES, unmarked
from d2lps.notebook.shown import KEY

# A chapter needs no network: in its kernel, a connection to another machine than this one fails.
OFFLINE = """
import sys as _sys
def _only_this_machine(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a chapter needs no network, and this one asked for {arguments[1]}")
_sys.addaudithook(_only_this_machine)
"""
# On a busy machine the threads of torch spend seventy times as long waiting for one another as a small net takes.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# The first code that the kernel runs.
FIRST = f"{OFFLINE}from d2lps.notebook import shown as _shown\n_shown.speak_to_all()\n"


def execute(folder: Path, seconds: int = 120, last: str = "") -> dict[str, nbformat.NotebookNode]:
    """Run the notebook of the chapter in ``folder`` and return language → notebook with the outputs of that run.

    A cell may take that many seconds; after all cells the kernel runs ``last``. Raises CellExecutionError of nbclient
    if a cell raises; its attribute ``cell_id`` names the cell.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    book = nbformat.read(folder / f"{LANGUAGES[0]}.ipynb", as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    book.cells += [nbformat.v4.new_code_cell(last)] if last else []
    where, quiet = {"metadata": {"path": str(folder)}}, ["--log-level=ERROR"]  # or it warns that it listens on loopback
    waits = {"timeout": seconds, "startup_timeout": seconds}  # a busy machine takes over a minute to start a kernel
    client = NotebookClient(
        book, **waits, kernel_name="python3", resources=where, store_widget_state=False, extra_arguments=quiet
    )
    try:
        client.execute(env=os.environ | ONE_THREAD)
    except CellExecutionError as error:
        error.traceback = unmarked(error.traceback, LANGUAGES[0])
        raised = [cell for cell in book.cells if any(o.output_type == "error" for o in cell.get("outputs", ()))]
        error.cell_id = raised[-1].id if raised else ""
        raise
    return in_languages(book, folder)


def in_languages(run: nbformat.NotebookNode, folder: Path) -> dict[str, nbformat.NotebookNode]:
    """Return language → the chapter's notebook with its share of the outputs of a run in all languages."""
    ran = {cell.id: cell for cell in run.cells if cell.cell_type == "code"}
    books = {}
    for language in LANGUAGES:
        books[language] = book = nbformat.read(folder / f"{language}.ipynb", as_version=4)
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.execution_count = ran[cell.id].execution_count
                cell.outputs = [_shown(output, language) for output in _joined(ran[cell.id].outputs)]
    return books


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join printed pieces into one text: a mark may begin in one piece and end in the next."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before and output.output_type == "stream" == before.output_type and output.name == before.name:
            joined[-1] = nbformat.from_dict(before | {"text": before.text + output.text})
        else:
            joined.append(output)
    return joined


def _shown(output: nbformat.NotebookNode, language: str) -> nbformat.NotebookNode:
    result = dict(output)
    if "metadata" in output:
        result["metadata"] = {name: value for name, value in output.metadata.items() if name != KEY}
        result["data"] = output.metadata.get(KEY, {}).get(language, output.data)
    return nbformat.from_dict(unmarked(result, language))

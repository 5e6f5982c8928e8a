"""The readers' workspace: copies are laid out, never overwritten once edited, and opened in JupyterLab."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from helpers import workspaces
from helpers.small_book import LESSON, SLUG, VI, edit, files
from helpers.workspaces import COPY, Notebook

from course.book import workspace
from course.book.__main__ import main
from course.book.library import Book
from course.book.notebook import dumps
from course.book.workspace import load, touched

ROOT = Path(__file__).parents[2]

book, notebook = workspaces.book, workspaces.notebook


def lab(book, capsys, *more) -> str:
    assert main(["--root", str(book.root), "lab", "--no-start", *more]) == 0
    return capsys.readouterr().out


def test_copy_is_the_notebook_of_the_chapter(book):
    for language in ("en", "vi", "zh"):
        path = book.root / "workspace" / language / f"{SLUG}.ipynb"
        made = load(path)
        assert made.cells == load(book.folder(SLUG) / f"{language}.ipynb").cells
        assert not touched(made)
        assert (path.parent / "../../img/star.svg").resolve() == book.figure("star")


def test_copy_with_the_still_of_its_opening_is_untouched():
    book = Book(ROOT)
    made = nbformat.reads(dumps(workspace.copy(book, book.chapter("02-ring"), "zh")), as_version=4)
    assert any(cell.get("outputs") for cell in made.cells) and not touched(made)


def test_lab_replaces_an_untouched_copy_and_nothing_else(book, capsys):
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert "Opening English" in lab(book, capsys)
    assert "Bây giờ" in (book.root / COPY).read_text("utf-8")
    notebook = Notebook(book.root / COPY)
    notebook["star"].execution_count = 1
    notebook.save()
    mine = notebook.path.read_bytes()
    assert "newer" not in lab(book, capsys)
    edit(book, VI, "Bây giờ hãy chạy thử:", "Giờ hãy chạy thử:")
    said = "workspace/vi/01-small.ipynb is yours and stays; the newer edition is workspace/vi/01-small (new).ipynb\n"
    assert lab(book, capsys).startswith(said)
    beside = book.root / "workspace/vi/01-small (new).ipynb"
    assert "Giờ hãy" in beside.read_text("utf-8")
    before = files(book)
    assert "newer" not in lab(book, capsys)
    assert files(book) == before

    edit(book, VI, "Giờ hãy chạy thử:", "Hãy chạy:")
    assert lab(book, capsys).startswith(said)
    assert "Hãy chạy:" in beside.read_text("utf-8")
    shutil.copy(notebook.path, beside)
    edit(book, VI, "Hãy chạy:", "Chạy:")
    assert "01-small (new 2).ipynb" in lab(book, capsys)
    assert notebook.path.read_bytes() == beside.read_bytes() == mine


def test_a_copy_leads_to_the_copy_of_the_next_chapter_and_follows_its_sentence(book, capsys):
    toc = book.chapters / "toc.toml"
    more = '[[chapter]]\nslug = "02-more"\ntitle = { en = "Two ways", vi = "Hai cách", zh = "两种办法" }\n'
    toc.write_text(f"{toc.read_text('utf-8')}\n{more}", "utf-8")
    shutil.copytree(book.folder(SLUG), book.chapters / "02-more")
    lab(book, capsys)
    notebook = Notebook(book.root / COPY)
    assert "[2. Hai cách](02-more.ipynb)" in notebook["what-next"].source
    toc.write_text(toc.read_text("utf-8") + 'about = { en = "Two.", vi = "Hai.", zh = "两种。" }\n', "utf-8")
    lab(book, capsys)
    assert Notebook(book.root / COPY)["what-next"].source.startswith(
        "**Chương tiếp theo:** [2. Hai cách](02-more.ipynb)  \nHai.\n"
    )


def opened(path):
    """Return the notebook that JupyterLab writes when a reader opens it, folds a heading, and a save happens."""
    made = nbformat.read(path, as_version=4)
    made.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    made.metadata["language_info"] = {"name": "python", "version": "3.11.9", "mimetype": "text/x-python"}
    made.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    made.cells[0].metadata |= {"jp-MarkdownHeadingCollapsed": True, "collapsed": False, "scrolled": True}
    made.nbformat_minor = 5
    nbformat.write(made, path)


def test_opening_a_notebook_does_not_touch_it(book, capsys):
    opened(book.root / COPY)
    assert not touched(load(book.root / COPY))
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert "newer" not in lab(book, capsys)
    assert "Bây giờ" in (book.root / COPY).read_text("utf-8")
    assert not (book.root / "workspace/vi/01-small (new).ipynb").exists()


@pytest.mark.parametrize("edited", [False, True])
def test_nbstripout_does_not_touch_a_notebook(book, notebook, edited):
    """It numbers the cells anew, and removes what they have printed."""
    notebook["star"].outputs = [nbformat.v4.new_output("stream", text="7")]
    notebook["star"].source += " " * edited
    for number, cell in enumerate(notebook.made.cells):
        cell.id = str(number)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.save()
    assert touched(load(notebook.path)) == edited


@pytest.mark.parametrize("change", ["source", "outputs", "execution_count", "deleted", "tags", "moved"])
def test_any_change_of_a_cell_is_work(book, notebook, change):
    star = notebook["star"]
    if change == "deleted":
        notebook.delete("star")
    elif change == "moved":
        notebook.made.cells.reverse()
    elif change == "tags":
        star.metadata["tags"] = ["mine"]
    elif change == "outputs":
        star.outputs = [nbformat.v4.new_output("stream", text="7")]
    else:
        star[change] = {"source": star.source + " ", "execution_count": 3}[change]
    notebook.save()
    assert touched(load(notebook.path))


def test_a_notebook_from_before_a_module_moved_keeps_its_code_and_gets_a_newer_edition(book, capsys):
    edit(book, LESSON, "import d2lps\n", "import d2lps\nfrom d2lps.old.place import Table\n")
    lab(book, capsys)
    edit(book, LESSON, "d2lps.old.place", "d2lps.room")
    notebook = Notebook(book.root / COPY)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    said = "workspace/vi/01-small.ipynb is yours and stays; the newer edition is workspace/vi/01-small (new).ipynb\n"
    assert lab(book, capsys).startswith(said)
    assert "Bây giờ hãy chạy thử:" in notebook.path.read_text("utf-8")
    assert "d2lps.old.place" in notebook.path.read_text("utf-8")


def test_lab_leaves_a_strangers_file_alone(book, capsys):
    path = book.root / COPY
    path.write_text("mine", "utf-8")
    assert "01-small (new).ipynb" in lab(book, capsys)
    assert path.read_text("utf-8") == "mine"


def test_the_language_is_remembered_and_never_guessed(book, capsys, monkeypatch):
    monkeypatch.setenv("LANG", "vi_VN.UTF-8")
    assert lab(book, capsys) == "Opening English. Tiếng Việt: make lab-vi. 中文：make lab-zh.\n"
    assert lab(book, capsys, "--language", "zh") == ""
    assert (book.root / "workspace/.language").read_text() == "zh\n"
    assert lab(book, capsys) == ""


SETTINGS = Path(workspace.__file__).with_name("settings")
NOTES = "@jupyterlab/apputils-extension:notification"


def test_jupyterlab_is_started_for_this_machine_only_at_the_chosen_chapter(book, monkeypatch):
    started = []
    monkeypatch.setattr("os.execv", lambda *command: started.append(command))
    monkeypatch.setattr("os.chdir", lambda folder: started.append(folder))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["--root", str(book.root), "lab", "--language", "vi", "--no-browser"]) == 0
    folder, (program, command) = started
    assert folder == book.root
    assert command[0] == program and command[1:3] == ["-m", "jupyterlab"]
    assert command[3:] == [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={book.root.resolve()}",
        "--LabApp.default_url=/lab/workspaces/vi/tree/workspace/vi/01-small.ipynb",
        f"--LabApp.app_settings_dir={SETTINGS}",
        "--no-browser",
        "--allow-root",
    ]
    assert "false" in json.loads((SETTINGS / "overrides.json").read_text())[NOTES]["fetchNews"]


def test_notebook_of_own_exercises_is_in_the_workspace_and_stays_once_edited(book, capsys, monkeypatch):
    own = book.root / "ours/ring-bytes.toml"
    own.parent.mkdir()
    own.write_text((ROOT / "examples/exercise.toml").read_text("utf-8").replace("NAME", "ring_bytes"), "utf-8")
    (book.root / "mine.toml").write_text('own = "ours"\n')
    monkeypatch.setenv("D2LPS_TOC", str(book.root / "mine.toml"))
    lab(book, capsys)
    path = book.root / "workspace/vi/own.ipynb"
    made = load(path)
    assert [cell["id"] for cell in made.cells] == ["top", "language", "text-ring-bytes", "exercise-ring-bytes"]
    nbformat.validate(made)
    own.write_text(own.read_text("utf-8").replace("The bytes", "All bytes"), "utf-8")
    lab(book, capsys)
    assert "All bytes" in path.read_text("utf-8")
    made = load(path)
    made.cells[-1].source = "mine"
    path.write_text(dumps(made), "utf-8")
    lab(book, capsys)
    assert load(path).cells[-1].source == "mine"

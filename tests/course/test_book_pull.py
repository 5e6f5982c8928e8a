"""Edits made in a reader's notebook come home, or nothing is written; nobody's copy is ever overwritten."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from helpers.small_book import EN, FILES, LESSON, SLUG, VI, ZH, edit, files, small
from hypothesis import given, settings
from hypothesis import strategies as st

from course.book import workspace
from course.book.__main__ import main
from course.book.findings import BookError
from course.book.notebook import notebook, parts
from course.book.pull import _prose, pull
from course.book.workspace import Origin, load, origin_of, touched

COPY = f"workspace/vi/{SLUG}.ipynb"


@pytest.fixture
def book(tmp_path, capsys):
    made = small(tmp_path)
    assert main(["--root", str(tmp_path), "lab", "--no-start"]) == 0
    capsys.readouterr()
    return made


class Notebook:
    """A workspace notebook, edited as a reader would."""

    def __init__(self, book, name=COPY):
        self.path = book.root / name
        self.made = nbformat.read(self.path, as_version=4)

    def __getitem__(self, id):
        return next(cell for cell in self.made.cells if cell.id == id)

    def replace(self, id, old, new):
        assert old in self[id].source
        self[id].source = self[id].source.replace(old, new)

    def insert(self, after, cell):
        self.made.cells.insert([cell.id for cell in self.made.cells].index(after) + 1, cell)

    def delete(self, id):
        self.made.cells.remove(self[id])

    def save(self):
        nbformat.write(self.made, self.path)


def sources(book) -> dict[str, str]:
    return {name: (book.root / name).read_text("utf-8") for name in (LESSON, EN, VI, ZH)}


def changed(book, **edits):
    """What the sources are expected to be: the first ones, with some replaced."""
    return {name: FILES[name] for name in (LESSON, EN, VI, ZH)} | edits


def test_an_unchanged_notebook_brings_nothing_home(book, capsys):
    before = files(book)
    assert main(["--root", str(book.root), "pull", str(book.root / COPY)]) == 0
    assert capsys.readouterr().out == "there is nothing to bring home\n"
    assert files(book) == before


def test_prose_comes_home_and_the_other_languages_are_told(book, capsys):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook["star"].outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.01")]
    notebook["star"].execution_count = 7
    notebook.save()
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 0
    assert sources(book) == changed(book) | {VI: FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")}
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {VI}",
        "changed in vi, to follow in the other languages: one",
        "then: python -m course.book build; read the three texts side by side; python -m course.book agree 01-small one",  # noqa: E501
        "the notebook now counts as brought home: reload it in JupyterLab (File, Reload Notebook from Disk)",
    ]


def test_a_chapter_is_found_from_the_course_and_from_the_workspace(book, capsys):
    for name, old in ((EN, "Run it:"), (VI, "Hãy chạy thử:"), (ZH, "运行一下：")):
        edit(book, name, old, f"{old} [[chapter:01]]")
    assert main(["--root", str(book.root), "build"]) == main(["--root", str(book.root), "lab", "--no-start"]) == 0
    made = nbformat.read(book.root / f"chapters/{SLUG}/vi.ipynb", as_version=4)
    assert any(f"[Hai cách](../{SLUG}/vi.ipynb)" in cell.source for cell in made.cells)
    notebook = Notebook(book)
    assert f"[Hai cách]({SLUG}.ipynb)" in notebook["one"].source
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    capsys.readouterr()
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 0
    assert "Bây giờ hãy chạy thử: [[chapter:01]]" in sources(book)[VI]
    edit(book, EN, "[[chapter:01]]", "[[chapter:07]]")
    assert main(["--root", str(book.root), "build"]) == 1
    assert "there is no [[chapter:07]]; chapters/toc.toml has chapter:01" in capsys.readouterr().err


def test_figures_citations_and_heading_ids_survive_the_round_trip(book):
    notebook = Notebook(book)
    notebook.replace("one", "Mọi thứ đi qua", "Tất cả đi qua")
    notebook.replace("one", "mô tả.", "mô tả rất rõ.")
    notebook.replace(
        "one", "Hình 1.1. Các gradient gặp nhau trên GPU 0.*", "Hình 1.1. Mọi gradient gặp nhau trên GPU 0.*"
    )
    notebook.save()
    assert pull(book, notebook.path).sections == ["one"]
    expected = FILES[VI].replace("Mọi thứ đi qua", "Tất cả đi qua").replace("mô tả.", "mô tả rất rõ.")
    expected = expected.replace("|Các gradient gặp", "|Mọi gradient gặp")
    assert sources(book) == changed(book) | {VI: expected}


BLOCKS = st.lists(
    st.sampled_from(
        [
            "Một đoạn với $x$ và `[[mã]]`.",
            "Xem [[cite:li-2014]] và [[cite:li-2014]].",
            "- một\n- hai",
            "$$\n## x\n$$",
            "```\n## [[no]]\n![a](../../img/star.svg)\n```",
            "[[figure:star|Hình $n$ (1).]]",
            "[[figure:line|Hai hình.]]",
            "### Nhỏ",
            "| a | b |\n|---|---|\n| 1 | 2 |",
            "## Mục {#muc}",
            "CELL",
        ]
    ),
    max_size=12,
)


@given(BLOCKS)
@settings(max_examples=60, deadline=None)
def test_every_placeholder_survives_the_way_to_the_notebook_and_back(blocks):
    section, cells, lines = 0, [], ["# Tên"]
    for block in blocks:
        if block.startswith("## "):
            section += 1
            block = f"## Mục {section} {{#muc-{'x' * section}}}"
        if block == "CELL":
            cells.append(f"c{len(cells)}")
            block = f"[[{cells[-1]}]]"
        lines.append(block)
    prose = "\n\n".join(lines) + "\n"
    lesson = "".join(f"# %% {cell}\nx = 1\n\n" for cell in cells)
    base = Origin("01", "vi", lesson, prose, {"li-2014": "[Li et al., 2014](https://example.org/li)"})
    made = notebook(base.read(), "vi", base.cites)
    assert _prose(base, made.cells, []) == prose
    expected = ""
    for part, cell in zip(parts(base.read(), "vi"), made.cells, strict=True):
        expected += part.source if part.code else part.source.rstrip("\n") + "\n\nThêm.\n\n"
        if not part.code:
            cell.source += "\n\nThêm."
    assert _prose(base, made.cells, []) == expected.rstrip("\n") + "\n"


def test_a_figure_may_be_changed_by_its_alternative_text_and_removed_from_sight(book):
    notebook = Notebook(book)
    notebook.replace("one", "![Các gradient gặp nhau trên GPU 0.]", "![Gặp nhau.]")
    notebook.save()
    pull(book, notebook.path)
    assert "[[figure:star|Gặp nhau.]]" in sources(book)[VI]


def test_code_comes_home_only_when_asked_for(book):
    notebook = Notebook(book)
    notebook.replace("star", "160e6", "320e6")
    notebook.save()
    before = files(book)
    report = pull(book, notebook.path)
    assert report.left == ["the code of 'star': bring it home with --code"]
    assert files(book) == before
    report = pull(book, notebook.path, code=True)
    assert (report.left, report.sections) == ([], ["one"])
    assert sources(book) == changed(book) | {LESSON: FILES[LESSON].replace("160e6", "320e6")}


def test_an_answer_never_comes_home(book):
    notebook = Notebook(book)
    notebook.replace("exercise-star", "# TODO\n    ...", "return 2 * (n - 1) * size / rate")
    notebook.save()
    before = files(book)
    report = pull(book, notebook.path, code=True)
    assert report.left == ["the answer to 'exercise-star': exercises are never brought home"]
    assert files(book) == before


def test_the_language_of_the_first_cell_is_no_edit_but_its_code_is(book):
    notebook = Notebook(book)
    notebook.replace("language", '"vi"', '"en"')
    notebook.save()
    assert pull(book, notebook.path, code=True).written == []
    notebook.replace("language", "import d2lps\n", "import d2lps\nimport math\n")
    notebook.save()
    pull(book, notebook.path, code=True)
    assert sources(book)[LESSON] == FILES[LESSON].replace("import d2lps\n", "import d2lps\nimport math\n", 1)


def test_edits_of_different_paragraphs_are_merged(book):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.replace("star", "160e6", "320e6")
    notebook.save()
    edit(book, VI, "- Độ trễ thì không", "- Còn độ trễ thì không")
    edit(book, VI, "dù có bao nhiêu máy thợ.", "dù có bao nhiêu máy thợ đi nữa.")
    edit(book, LESSON, "step=1", "step=2")
    assert pull(book, notebook.path, code=True).sections == ["one"]
    expected = FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    expected = expected.replace("- Độ trễ", "- Còn độ trễ").replace("nhiêu máy thợ.", "nhiêu máy thợ đi nữa.")
    assert sources(book)[VI] == expected
    assert sources(book)[LESSON] == FILES[LESSON].replace("160e6", "320e6").replace("step=1", "step=2")


def test_the_same_edit_on_both_sides_is_no_conflict(book):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert pull(book, notebook.path).written == []


def test_a_conflict_writes_nothing_and_shows_both_sides(book, capsys):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.replace("turn", "Hãy viết", "Bạn hãy viết")
    notebook.save()
    edit(book, VI, "Hãy chạy thử:", "Ta chạy thử:")
    before = files(book)
    assert main(["--root", str(book.root), "pull", str(notebook.path)]) == 1
    assert capsys.readouterr().err == (
        "error: 01-small/vi.md, section 'one': the chapter and the notebook changed the same lines; "
        "write in the notebook what is "
        "to stand, or change the chapter by hand. Nothing was written.\n"
        "<<<<<<< chapter\nTa chạy thử:\n=======\nBây giờ hãy chạy thử:\n>>>>>>> notebook\n"
    )
    assert files(book) == before


def test_a_conflict_in_code_writes_no_prose_either(book):
    notebook = Notebook(book)
    notebook.replace("turn", "Hãy viết", "Bạn hãy viết")
    notebook.replace("star", "160e6", "320e6")
    notebook.save()
    edit(book, LESSON, "160e6", "80e6")
    before = files(book)
    with pytest.raises(BookError, match="01-small/lesson.py, cell 'star': the chapter and the notebook"):
        pull(book, notebook.path, code=True)
    assert files(book) == before


def test_a_cell_that_the_chapter_no_longer_has_is_told(book):
    notebook = Notebook(book)
    notebook.replace("last", "step=1", "step=2")
    notebook.save()
    edit(book, LESSON, "# %% last\n", "# %% final\n")
    for name in (EN, VI, ZH):
        edit(book, name, "[[last]]", "[[final]]")
    before = files(book)
    with pytest.raises(BookError, match="01-small/lesson.py has no cell 'last' any more, and the notebook changed it"):
        pull(book, notebook.path, code=True)
    assert files(book) == before


def test_inserted_and_deleted_markdown_comes_home_in_its_place(book):
    notebook = Notebook(book)
    notebook.insert(
        "star",
        nbformat.v4.new_markdown_cell("Kết quả tính bằng giây.\n\nXem [Li et al., 2014](https://example.org/li)."),
    )
    notebook.insert("language", nbformat.v4.new_markdown_cell(""))
    notebook.delete("turn-2")
    notebook.save()
    assert pull(book, notebook.path).sections == ["one", "turn"]
    expected = FILES[VI].replace("[[star]]\n\n", "[[star]]\n\nKết quả tính bằng giây.\n\nXem [[cite:li-2014]].\n\n")
    expected = expected.replace("Rồi hãy xem thông điệp:\n\n", "")
    assert sources(book) == changed(book) | {VI: expected}


def test_a_split_cell_keeps_the_id_of_its_heading(book):
    notebook = Notebook(book)
    heading, rest = notebook["one"].source.split("\n\n", 1)
    notebook["one"].source = rest
    notebook.insert("language", nbformat.v4.new_markdown_cell(heading))
    notebook.save()
    assert pull(book, notebook.path).written == []


def test_a_new_section_needs_an_id_and_its_fellows(book):
    notebook = Notebook(book)
    notebook.insert("last", nbformat.v4.new_markdown_cell("## Thêm nữa\n\nHết."))
    notebook.save()
    before = files(book)
    with pytest.raises(BookError, match="vi.md: the heading 'Thêm nữa' has no id; write `## Thêm nữa {#its-id}`"):
        pull(book, notebook.path)
    notebook.made.cells[-1].source = "## Thêm nữa {#more}\n\nHết."
    notebook.save()
    before = files(book)
    with pytest.raises(BookError, match="en.md: the section 'more' of vi.md is missing"):
        pull(book, notebook.path)
    assert files(book) == before


def test_new_and_deleted_code_cells_stay_in_the_notebook(book):
    notebook = Notebook(book)
    notebook.insert("star", nbformat.v4.new_code_cell("print(1)", id="scratch"))
    notebook.insert("star", nbformat.v4.new_code_cell("", id="empty"))
    notebook.delete("last")
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    report = pull(book, notebook.path, code=True)
    assert report.left == [
        "the new cell 'scratch' (print(1)): write it in lesson.py and place it in every language",
        "the cell 'last' was deleted: take it out of lesson.py and of every language",
    ]
    assert sources(book) == changed(book) | {VI: FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")}


def test_code_cells_that_were_moved_do_not_come_home(book):
    notebook = Notebook(book)
    cells = notebook.made.cells
    cells.insert(1, cells.pop([cell.id for cell in cells].index("last")))
    notebook.save()
    before = files(book)
    with pytest.raises(BookError, match="vi.md: the cell 'last' stands where lesson.py has 'language'"):
        pull(book, notebook.path)
    assert files(book) == before


def test_a_notebook_can_be_pulled_again_and_again(book):
    notebook = Notebook(book)
    notebook.insert("star", nbformat.v4.new_markdown_cell("Kết quả tính bằng giây.", id="new"))
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    pull(book, notebook.path)
    assert pull(book, notebook.path).written == []
    notebook = Notebook(book)
    notebook.replace("one", "Bây giờ hãy", "Giờ thì hãy")
    notebook.replace("new", "giây.", "giây thôi.")
    notebook.save()
    pull(book, notebook.path)
    expected = FILES[VI].replace("Hãy chạy thử:", "Giờ thì hãy chạy thử:")
    expected = expected.replace("[[star]]\n\n", "[[star]]\n\nKết quả tính bằng giây thôi.\n\n")
    assert sources(book)[VI] == expected
    assert touched(load(notebook.path))


def test_a_renamed_notebook_knows_where_it_comes_from(book):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    elsewhere = book.root / "của tôi.ipynb"
    shutil.move(notebook.path, elsewhere)
    assert pull(book, elsewhere).sections == ["one"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            f"chapters/{SLUG}/vi.ipynb",
            "does not say what it was made from; copy your edits into a notebook made by `python -m course.book lab`",
        ),
        (VI, "is not a notebook"),
        ("gone.ipynb", "there is no notebook .*gone.ipynb; name one, as workspace/en/01-data-parallelism.ipynb"),
    ],
)
def test_what_is_no_workspace_notebook_is_refused(book, name, sentence):
    before = files(book)
    with pytest.raises(BookError, match=sentence):
        pull(book, book.root / name)
    assert files(book) == before


def test_a_copy_is_the_chapters_notebook_and_its_origin(book):
    for language in ("en", "vi", "zh"):
        path = book.root / "workspace" / language / f"{SLUG}.ipynb"
        made = load(path)
        assert made.cells == load(book.folder(SLUG) / f"{language}.ipynb").cells
        assert origin_of(made, path).prose == FILES[f"chapters/{SLUG}/{language}.md"]
        assert not touched(made)
        assert (path.parent / "../../img/star.svg").resolve() == book.figure("star")


def lab(book, capsys, *more) -> str:
    assert main(["--root", str(book.root), "lab", "--no-start", *more]) == 0
    return capsys.readouterr().out


def test_lab_replaces_what_nobody_touched_and_nothing_else(book, capsys):
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert "Opening English" in lab(book, capsys)
    assert "Bây giờ" in (book.root / COPY).read_text("utf-8")
    notebook = Notebook(book)
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


def opened(path):
    """What JupyterLab writes when a reader opens a notebook, folds a heading, and a save happens."""
    made = nbformat.read(path, as_version=4)
    made.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    made.metadata["language_info"] = {"name": "python", "version": "3.11.9", "mimetype": "text/x-python"}
    made.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    made.cells[0].metadata |= {"jp-MarkdownHeadingCollapsed": True, "collapsed": False, "scrolled": True}
    made.nbformat_minor = 5
    nbformat.write(made, path)


def test_to_open_a_notebook_is_not_to_touch_it(book, capsys):
    opened(book.root / COPY)
    assert not touched(load(book.root / COPY))
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert "newer" not in lab(book, capsys)
    assert "Bây giờ" in (book.root / COPY).read_text("utf-8")
    assert not (book.root / "workspace/vi/01-small (new).ipynb").exists()


@pytest.mark.parametrize("look", [lambda path: None, opened])
def test_a_copy_from_before_cells_alone_counted_is_known_to_be_untouched(book, capsys, look):
    made = nbformat.read(book.root / COPY, as_version=4)
    made.metadata["d2lps"]["made"] = workspace._everything(made)
    nbformat.write(made, book.root / COPY)
    look(book.root / COPY)
    edit(book, VI, "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    assert "newer" not in lab(book, capsys)
    assert "Bây giờ" in (book.root / COPY).read_text("utf-8")


@pytest.mark.parametrize("change", ["source", "outputs", "execution_count", "deleted", "tags", "moved"])
def test_whatever_is_done_to_a_cell_is_work(book, change):
    notebook = Notebook(book)
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


def test_after_a_pull_the_notebook_is_the_newest_edition(book, capsys):
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    pull(book, notebook.path)
    assert "newer" not in lab(book, capsys)


def test_a_notebook_from_before_a_module_moved_comes_home_and_gets_the_newer_edition_beside_it(book, capsys):
    edit(book, LESSON, "import d2lps\n", "import d2lps\nfrom d2lps.old.place import Table\n")
    lab(book, capsys)
    edit(book, LESSON, "d2lps.old.place", "d2lps.room")
    notebook = Notebook(book)
    notebook.replace("one", "Hãy chạy thử:", "Bây giờ hãy chạy thử:")
    notebook.save()
    said = "workspace/vi/01-small.ipynb is yours and stays; the newer edition is workspace/vi/01-small (new).ipynb\n"
    assert lab(book, capsys).startswith(said)
    assert pull(book, notebook.path, code=True).sections == ["one"]
    assert "from d2lps.room import Table" in sources(book)[LESSON]
    assert sources(book)[VI] == FILES[VI].replace("Hãy chạy thử:", "Bây giờ hãy chạy thử:")
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

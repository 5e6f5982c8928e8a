"""The still of a chapter's opening in its notebooks: drawn once, kept until the race changes, and seen before a run."""

import base64
import io
import re

import nbformat
import pytest
from helpers import browser as browsers
from helpers.small_book import EN, LESSON, SLUG, VI, ZH, edit, small
from PIL import Image

from course.book import chromium, stills
from course.book.__main__ import main
from course.book.check import notebooks
from d2lps.messages import LANGUAGES
from d2lps.notebook.grading.course import CHAPTERS

RACE = """
from d2lps import cost, pcie_server, ring, sharded


def opening():
    plans = {"shards": sharded(["gpu0", "gpu1"]), "ring": ring(["gpu0", "gpu1"])}
    return {name: cost.shared(plan, pcie_server(gpus=2), "1 MB") for name, plan in plans.items()}
"""
FIGURES = f"chapters/{SLUG}/figures.py"


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A small chapter that opens with a race; the system's Chromium draws, or Playwright's."""
    book = small(tmp_path)
    edit(book, LESSON, "# %% star", '# %% opening\nd2lps.opening("01")\n\n# %% star')
    for name in (EN, VI, ZH):
        edit(book, name, "[[language]]\n", "[[language]]\n\n[[opening]]\n")
    (book.root / FIGURES).write_text(RACE, "utf-8")
    if browsers.executable():
        monkeypatch.setattr(chromium, "BROWSERS", (browsers.executable(),))
    return book


def still(path) -> tuple[bytes, dict] | None:
    """Return the picture and its output, from the notebook's opening cell."""
    (cell,) = (cell for cell in nbformat.read(path, as_version=4).cells if cell.id == "opening")
    return (base64.b64decode(cell.outputs[0].data["image/png"]), cell.outputs[0]) if cell.outputs else None


def test_a_still_is_drawn_kept_and_drawn_again_when_the_race_changes(book, monkeypatch, capsys):
    main(["--root", str(book.root), "build"])
    folder = book.folder(SLUG)
    first = {language: (folder / f"{language}.ipynb").read_bytes() for language in LANGUAGES}
    pictures = {language: still(folder / f"{language}.ipynb")[0] for language in LANGUAGES}
    assert len({*pictures.values()}) == 3 and all(len(picture) <= stills.MOST for picture in pictures.values())
    assert len(Image.open(io.BytesIO(pictures["vi"])).convert("RGB").getcolors()) > 20
    assert re.fullmatch(r"<Player: shards .*, ring .*>", still(folder / "en.ipynb")[1].data["text/plain"])
    assert not list(notebooks(book, book.chapter(SLUG)))

    main(["--root", str(book.root), "lab", "--no-start"])
    assert still(book.root / f"workspace/zh/{SLUG}.ipynb")[0] == pictures["zh"]

    monkeypatch.setattr(stills, "open_page", lambda *_: pytest.fail("it was drawn again"))
    edit(book, EN, "Run it:", "Now run it:")
    main(["--root", str(book.root), "build"])
    assert still(folder / "en.ipynb")[0] == pictures["en"] and (folder / "vi.ipynb").read_bytes() == first["vi"]

    edit(book, FIGURES, '"1 MB"', '"2 MB"')
    found = list(notebooks(book, book.chapter(SLUG)))
    assert [finding.languages for finding in found] == [("en",), ("vi",), ("zh",)]
    assert all("build" in finding.remedy for finding in found)
    monkeypatch.undo()
    capsys.readouterr()
    main(["--root", str(book.root), "build"])
    assert still(folder / "en.ipynb")[0] != pictures["en"] and not list(notebooks(book, book.chapter(SLUG)))


def test_without_chromium_a_new_race_is_refused_with_the_way_out(book, monkeypatch, capsys):
    monkeypatch.setattr(chromium, "BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(chromium, "APPLICATIONS", ())
    assert main(["--root", str(book.root), "build"]) == 1
    assert "there is no Chromium here: install Chromium" in capsys.readouterr().err


@pytest.mark.parametrize("slug", [path.parent.name for path in sorted(CHAPTERS.glob("*/lesson.py"))])
def test_every_opening_of_the_course_has_a_small_still_unless_it_asks_for_a_bet(slug):
    lesson = (CHAPTERS / slug / "lesson.py").read_text("utf-8")
    opens = stills.OPENS in lesson and stills.ASKS not in lesson
    for language in LANGUAGES:
        book = nbformat.read(CHAPTERS / slug / f"{language}.ipynb", as_version=4)
        shown = [output for cell in book.cells for output in cell.get("outputs", ())]
        assert len(shown) == opens, f"python -m course.book build {slug}"
        assert all(len(base64.b64decode(output.data["image/png"])) <= stills.MOST for output in shown)

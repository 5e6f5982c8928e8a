"""The still in a committed notebook: what the opening shows before a reader runs it, on GitHub and in JupyterLab.

It is a PNG, because GitHub and untrusted notebooks show no SVG. A Chromium draws it from the player's own picture. Its
metadata has the digest of that picture, so it is drawn again only if the race, its drawing or its words have changed.
"""

import base64
import io
import json
import re
import tempfile
from pathlib import Path

from nbformat import NotebookNode, from_dict, v4

from course.book import navigation
from course.book.chromium import open_page
from course.book.library import Book, Chapter, digest
from course.book.notebook import dumps, notebook
from d2lps.messages import LANGUAGES, only
from d2lps.notebook.grading.course import loaded
from d2lps.trace import Trace
from d2lps.view.player import watch

OPENS = "d2lps.opening("  # the beginning of the cell
ASKS = 'd2lps.opening("00")'  # it asks for a bet first, so a still would give the answer away
KEY = "d2lps"  # in the metadata of the output: the digest of the picture
KIND = "image/png"
WIDEST = 1000.0  # pixels; two pictures abreast if they have room
SHARPNESS = (1.5, 1.25, 1.0, 0.75)  # the first with which the file is small enough
COLORS, MOST = 64, 60_000  # bytes
SECONDS = 60


def texts(book: Book, chapter: Chapter, draw: bool | None = False) -> dict[Path, str]:
    """Return path → text of the notebooks of a chapter, one per language, with the still of its opening.

    The still is that of the committed notebook. If this is missing or old, ``draw`` says whether to draw it, or to
    leave the picture out, so that the notebook differs; with None it is taken as it is. Raises BookError if it cannot
    be drawn.
    """
    folder, slug = book.folder(chapter.slug), chapter.slug
    opens = any(cell.source.startswith(OPENS) and cell.source != ASKS for cell in chapter.cells)
    traces = loaded(f"figures_of_{slug}", folder / "figures.py")["opening"]() if opens and draw is not None else {}
    made = {}
    for language in LANGUAGES:
        page = notebook(chapter, language, book.links(language), navigation.end(book, slug, language))
        still = committed(book, slug, language)
        if traces:
            svg, words = only(language, lambda: _picture(traces))
            if still is None or still.metadata[KEY] != digest(svg):
                data = {KIND: base64.b64encode(_png(svg)).decode(), "text/plain": words} if draw else {}
                still = v4.new_output("display_data", data, metadata={KEY: digest(svg)})
        made[folder / f"{language}.ipynb"] = dumps(place(page, still if opens else None))
    return made


def committed(book: Book, slug: str, language: str) -> NotebookNode | None:
    """Return the still that the committed notebook has, of whatever edition; None if it has none."""
    try:
        cells = json.loads((book.folder(slug) / f"{language}.ipynb").read_text("utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        return next((from_dict(output) for output in outputs if KEY in output.get("metadata", {})), None)
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None


def place(made: NotebookNode, still: NotebookNode | None) -> NotebookNode:
    """Make the still the output of the cell that opens a notebook; return the notebook."""
    for cell in made.cells:
        if cell.cell_type == "code" and cell.source.startswith(OPENS):
            cell.outputs = [still] if still else []
    return made


def _picture(traces: dict[str, Trace]) -> tuple[str, str]:
    """Return the race that opens a chapter as SVG, and in words."""
    player = watch(*traces.values(), names=list(traces), name="opening")
    abreast = player.still(columns=2)
    return (abreast if _size(abreast)[0] <= WIDEST else player.still()), repr(player)


def _size(svg: str) -> tuple[float, float]:
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    return width, height


def _png(svg: str) -> bytes:
    """Draw a picture, as sharp as a small file allows."""
    from PIL import Image  # matplotlib needs it, too

    width, height = _size(svg)
    for sharpness in SHARPNESS:
        with tempfile.TemporaryDirectory() as folder:
            page, out = Path(folder, "still.svg"), Path(folder, "still.png")
            page.write_text(svg, "utf-8")
            size = f"--window-size={int(width) + 1},{int(height) + 1}"
            options = [f"--screenshot={out}", size, f"--force-device-scale-factor={sharpness}", "--hide-scrollbars"]
            open_page(page, options, out, SECONDS)
            few = Image.open(out).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
        file = io.BytesIO()
        few.save(file, "png", optimize=True)
        if file.tell() <= MOST:
            break
    return file.getvalue()

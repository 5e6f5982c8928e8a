"""Comparison of the outputs of two notebooks, and the text that a reader sees in them."""

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from html import unescape

import nbformat

from d2lps.messages import LANGUAGES, sentences

UNSEEN = re.compile(r'<style.*?</style>|<script type="module">.*?</script>', re.S)
DATA = re.compile(r'<script type="application/json">(.*?)</script>', re.S)
SAID = re.compile(r'\b(?:aria-label|title|alt)="([^"]*)"')
# Letters that one language alone has; names of people and signs of mathematics are not among them.
OWN = {
    "vi": re.compile("[ăđơưạảấầậẩẫắằặẳẵẹẻẽếềệểễịỉĩọỏốồộổỗớờợởỡụủũứừựửữỵỷỹ]", re.I),
    "zh": re.compile("[\\u4e00-\\u9fff]"),
}
MARKS = re.compile("[⟦⟠⟧]")


def same_outputs(a: nbformat.NotebookNode, b: nbformat.NotebookNode) -> list[str]:
    """Return the differences in structure between the outputs of two executed notebooks, and all errors in them.

    Streams count once per name, as Jupyter splits them as it likes; texts and numbers are not compared.
    """
    differences = []
    codes = [[cell for cell in made.cells if cell.cell_type == "code"] for made in (a, b)]
    ids = [[cell.get("id") for cell in cells] for cells in codes]
    if ids[0] != ids[1]:
        differences.append(f"the code cells differ: {ids[0]} and {ids[1]}")
    for which, cells in zip(("first", "second"), codes, strict=True):
        for cell in cells:
            differences += [
                f"{cell.get('id')}: the {which} notebook shows the error {output.ename}: {output.evalue}"
                for output in cell.outputs
                if output.output_type == "error"
            ]
    for left, right in zip(*codes, strict=False):
        shapes = [_shape(cell.outputs) for cell in (left, right)]
        if shapes[0] != shapes[1]:
            differences.append(f"{left.get('id')}: outputs {shapes[0]} and {shapes[1]}")
    return differences


def _shape(outputs: list) -> list[str]:
    shape: list[str] = []
    for output in outputs:
        if output.output_type == "stream":
            if output.name not in shape:
                shape.append(output.name)
        else:
            shape.append(f"{output.output_type} {' '.join(sorted(output.get('data', {})))}".strip())
    return shape


def seen(book: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield the id of each code cell and the text of its outputs, without tags and scripts."""
    for cell in book.cells:
        if cell.cell_type == "code":
            texts = [output.get("text", "") for output in cell.outputs]
            for output in cell.outputs:
                data = output.get("data", {})
                texts += [data.get("text/plain", ""), *_of_page(data.get("text/html", data.get("image/svg+xml", "")))]
            yield cell.id, "\n".join(filter(None, texts))


def _of_page(page: str) -> Iterator[str]:
    """Return the words of a page: of its text, of its titles, and of the data that its scripts show."""
    page = UNSEEN.sub("", page)
    for packed in DATA.findall(page):
        yield from _of_data(json.loads(packed))
    page = DATA.sub("", page)
    yield from map(unescape, SAID.findall(page))
    yield unescape(re.sub(r"<[^>]*>", "\n", page))


def _of_data(data: object) -> Iterator[str]:
    """All that is written in it; an explorer has it packed."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _of_page(value) if name == "told" and isinstance(value, str) else _of_data(value)
    elif isinstance(data, list):
        for value in data:
            yield from _of_data(value)
    elif isinstance(data, str):
        if data.startswith("eN"):
            yield from _of_data(json.loads(zlib.decompress(base64.b64decode(data))))
        elif "<" in data:
            yield from _of_page(data)
        else:
            yield data
    else:
        yield str(data)


def other_numbers(a: nbformat.NotebookNode, b: nbformat.NotebookNode) -> list[str]:
    """Return the cells whose numbers differ; the order of numbers may depend on the language."""
    differences = []
    for (id, one), (_, other) in zip(seen(a), seen(b), strict=True):
        ours, theirs = (Counter(re.findall(r"\d+(?:\.\d+)?", text)) for text in (one, other))
        if ours != theirs:
            differences.append(f"{id}: {sorted((ours - theirs) + (theirs - ours))[:9]}")
    return differences


def foreign(book: nbformat.NotebookNode, language: str) -> list[str]:
    """Return text in another language: letters that only it has, English sentences of d2lps, and leftover marks."""
    own = sentences(language)
    english = {
        part.strip()
        for key, sentence in sentences("en").items()
        for part in re.split(r"\{[^{}]*\}", sentence)
        if len(part.split()) >= 3 and part not in own[key]
    }
    found = []
    for id, text in seen(book):
        found += [f"{id}: {part!r}" for part in english if part in text] if language != "en" else []
        for letters in [MARKS, *(OWN[other] for other in LANGUAGES if other in OWN and other != language)]:
            found += [f"{id}: {text[max(0, at.start() - 20) :][:40]!r}" for at in [*letters.finditer(text)][:1]]
    return found

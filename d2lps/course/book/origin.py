"""What a reader's notebook was made from, kept inside it, so that it may be renamed, copied or moved.

The notebook's metadata ``d2lps`` hold the chapter, the language, and packed the sources of that edition: the
base of a three-way merge, and the proof that a copy was never touched.
"""

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import nbformat

from d2lps.course.book.findings import COMMAND, BookError
from d2lps.course.book.lesson import read_cells, read_text
from d2lps.course.book.library import Chapter, digest
from d2lps.course.book.notebook import notebook

KEY = "d2lps"


@dataclass(frozen=True)
class Origin:
    """One edition of one chapter in one language."""

    chapter: str
    language: str
    lesson: str
    prose: str
    cites: dict[str, str]

    def metadata(self) -> dict:
        """What a notebook keeps of it."""
        sources = json.dumps({"lesson": self.lesson, "prose": self.prose, "cites": self.cites}, sort_keys=True)
        base = base64.b64encode(zlib.compress(sources.encode(), 9)).decode()
        return {"chapter": self.chapter, "language": self.language, "base": base}

    def read(self) -> Chapter:
        """The chapter of that edition, in this one language."""
        text = read_text(self.prose, f"{self.language}.md")
        return Chapter(self.chapter, self.lesson, read_cells(self.lesson), {self.language: text})


def edition(chapter: str, language: str, lesson: str, prose: str, cites: dict[str, str]) -> Origin:
    """An edition from its sources, with no more citations than the prose makes."""
    sections = read_text(prose, f"{language}.md").sections
    keys = sorted({key for section in sections for key in section.cited()})
    return Origin(chapter, language, lesson, prose, {key: cites[key] for key in keys if key in cites})


def copy(made_from: Origin) -> nbformat.NotebookNode:
    """A notebook for a reader, which knows what it was made from."""
    made = notebook(made_from.read(), made_from.language, made_from.cites)
    made.metadata[KEY] = made_from.metadata()
    made.metadata[KEY]["made"] = _content(made)
    return made


def load(path: Path) -> nbformat.NotebookNode:
    """A notebook's file; raises BookError where there is none."""
    try:
        return nbformat.reads(path.read_text("utf-8"), as_version=4)
    except FileNotFoundError:
        raise BookError(f"there is no notebook {path}; name one, as workspace/en/01-data-parallelism.ipynb") from None
    except Exception as error:
        raise BookError(f"{path} is not a notebook ({error}); name another, or make one with `{COMMAND} lab`") from None


def origin_of(made: nbformat.NotebookNode, path: Path) -> Origin:
    """What a notebook was made from; raises BookError where it does not say."""
    kept = made.metadata.get(KEY, {})
    try:
        return Origin(kept["chapter"], kept["language"], **json.loads(zlib.decompress(base64.b64decode(kept["base"]))))
    except (KeyError, TypeError, ValueError, zlib.error):
        raise BookError(
            f"{path} does not say what it was made from; copy your edits into a notebook made by `{COMMAND} lab`"
        ) from None


def touched(made: nbformat.NotebookNode) -> bool:
    """Somebody has changed or run the notebook since it was made."""
    return made.metadata.get(KEY, {}).get("made") != _content(made)


def _content(made: nbformat.NotebookNode) -> str:
    """The digest of all but the digest itself."""
    kept = {key: value for key, value in made.metadata.get(KEY, {}).items() if key != "made"}
    content = dict(made) | {"metadata": dict(made.metadata) | {KEY: kept}}
    return digest(json.dumps(content, sort_keys=True))

"""Build all pages beside the last site, and put them in its place if they have no faults."""

import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pygments.formatters import HtmlFormatter

from course.book import stills
from course.book.findings import COMMAND, BookError
from course.book.library import Book, Chapter
from course.site import api, browser, downloads, front, outputs, proof, pyodide, reference, search
from course.site.front import THEME
from course.site.pages import NAMES, REFERENCE, Site, runs_of
from course.site.pdf import bound, printed
from course.site.runs import ChapterRun, is_kept, seconds
from course.site.runs import run as run_or_find
from d2lps.messages import LANGUAGES
from d2lps.notebook import hand, schedule_table

OUT, KEPT, PRINTED = "_site", "build/runs", "build/pdf"
SHOWN_FAULTS = 20
IN_ENGLISH = "en"  # the language of all docstrings
KINDS = (".css", ".js", ".svg", ".txt", ".woff2")  # of the theme's files that pages load


def build(
    book: Book,
    out: Path | None = None,
    run: Callable[[str], ChapterRun] | None = None,
    pdf: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Build the site in ``out`` (default: ``_site/`` in the book's folder) and return its folder.

    ``run`` maps a slug to its run; by default chapters are executed, or found as executed before. ``pdf`` prints the
    chapters of each language too, and ``say`` is called with a sentence before each long step.

    Raises BookError for a fault in the sources, in a run or in the pages; the last site then stays in place.
    """
    out = out or book.root / OUT
    chapters = {slug: book.chapter(slug) for slug in book.contents}
    _require_notebooks(book, chapters)
    runs = {slug: run(slug) for slug in chapters} if run else _all_runs(book, [*chapters], book.root / KEPT, say)
    tried = {}
    if pyodide.is_there(book.root):
        tried = {slug: browser.tried(book, chapter, book.root / KEPT, say) for slug, chapter in chapters.items()}
    else:
        say("the site has no “try it”, because Pyodide is missing: python -m course.site.pyodide fetches it")
    new = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        new.chmod(0o755)
        _write(book, chapters, runs, new, pdf, tried)
        if faults := proof.faults(new):
            more = f"\n… and {len(faults) - SHOWN_FAULTS} more" if faults[SHOWN_FAULTS:] else ""
            listed = "\n".join(faults[:SHOWN_FAULTS])
            raise BookError(f"the site has faults and does not replace the last one:\n{listed}{more}")
        _swap(new, out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return out


def _all_runs(book: Book, slugs: list[str], folder: Path, say: Callable[[str], None]) -> dict[str, ChapterRun]:
    """Return slug → run; say before each new one how many there are, and about how long they still take."""
    due = [slug for slug in slugs if not is_kept(book, slug, folder)]
    known, begun, done = seconds(book), time.monotonic(), 0.0
    found = {slug: run_or_find(book, slug, folder, say) for slug in slugs if slug not in due}
    for number, slug in enumerate(due, 1):
        pace = (time.monotonic() - begun) / done if done else 1.0  # of this machine
        left = sum(known.get(each, 0) for each in due[number - 1 :]) * pace
        about = f", about {max(1, round(left / 60))} minutes left" if left else ""
        say(f"chapter {number} of {len(due)} to run: {slug}{about}")
        found[slug] = run_or_find(book, slug, folder, say)
        done += known.get(slug, 0)
    return {slug: found[slug] for slug in slugs}


def _require_notebooks(book: Book, chapters: dict[str, Chapter]) -> None:
    """Raise BookError if a notebook differs from a new build of its chapter; of a choice the notebooks are others."""
    if book.is_chosen:
        return
    for slug, chapter in chapters.items():
        for path, expected in stills.texts(book, chapter, draw=None).items():
            if not path.is_file() or path.read_text("utf-8") != expected:
                raise BookError(f"chapters/{slug}/{path.name} does not match its sources; run {COMMAND} build")


def _write(
    book: Book, chapters: dict[str, Chapter], runs: dict[str, ChapterRun], root: Path, pdf: bool, tried: dict[str, dict]
) -> None:
    _write_shared(book, root)
    python = browser.parts(book) if tried else {}
    for name, content in python.items():
        path = root / browser.PYTHON / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with ThreadPoolExecutor() as beside:  # browsers print while the pages are written
        printing = {}
        for language in LANGUAGES if pdf else ():
            paper = root / language / f"d2lps-{language}.html"
            paper.parent.mkdir()
            paper.write_text(bound(Site(book, chapters, language, runs, [], paper=True)), "utf-8")
            printing[paper] = beside.submit(printed, paper, book.root / PRINTED)
        _write_pages(book, chapters, runs, root, pdf, tried, python)
    for paper, printing_job in printing.items():
        shutil.copyfile(printing_job.result(), paper.with_suffix(".pdf"))
        paper.unlink()


def _write_shared(book: Book, root: Path) -> None:
    """Write the files that all pages load, and the pictures."""
    static, pictures = root / "_static", root / "img"
    static.mkdir()
    for name, code in outputs.shared_code().items():
        (static / name).write_text(code, "utf-8")
    (static / "shared.css").write_text(outputs.shared_looks() + code_colors(), "utf-8")
    (static / "edit.css").write_text(schedule_table.LOOK, "utf-8")
    (static / "hand.css").write_text(hand.LOOK, "utf-8")
    for file in THEME.iterdir():
        if file.suffix in KINDS and file.name != browser.WORKER:
            shutil.copyfile(file, static / file.name)
    pictures.mkdir()
    for picture in sorted((book.root / "img").glob("*.svg")):
        shutil.copyfile(picture, pictures / picture.name)
    (root / front.THUMBNAILS).mkdir()
    for slug, picture in front.thumbnails(book).items():
        (root / front.THUMBNAILS / f"{slug}.svg").write_text(picture, "utf-8")
    (root / ".nojekyll").touch()  # GitHub would leave out _static
    if domain := downloads.domain(book):
        (root / "CNAME").write_text(f"{domain}\n", "utf-8")  # GitHub keeps a domain of one's own in this file


def _write_pages(
    book: Book,
    chapters: dict[str, Chapter],
    runs: dict[str, ChapterRun],
    root: Path,
    pdf: bool,
    tried: dict[str, dict],
    python: dict[str, bytes],
) -> None:
    root_page = front.choice(NAMES, book, downloads.repository(book))
    texts, public = {"index.html": root_page}, reference.entries()
    for language in LANGUAGES:
        site = Site(book, chapters, language, runs, public, tried=tried, python=python)
        pages = site.pages()
        if language == IN_ENGLISH:
            folder = f"../{language}/"
            texts |= {f"{REFERENCE}{page.path}": site.framed(page, pages, folder=folder) for page in site.package()}
        texts |= {f"{language}/{page.path}": site.framed(page, pages, pdf) for page in pages}
        texts |= {f"{language}/{runs_of(page.slug)}": page.runs for page in pages if page.runs}
        texts |= {f"{language}/{slug}-cells.js": browser.cells(chapters[slug], needs) for slug, needs in tried.items()}
        if tried.get(browser.ALONE):
            page = texts[f"{language}/{browser.ALONE}.html"]
            script = texts[f"{language}/{browser.ALONE}-cells.js"] + texts[f"{language}/{runs_of(browser.ALONE)}"]
            packed = browser.packed(python)
            texts[f"{language}/{browser.file(language)}"] = browser.alone(page, root, language, script, packed)
        texts |= {f"{language}/{name}": script for name, script in site.race[1].items()}
        entries = [entry for page in pages for entry in page.entries]
        entries += api.indexed(public, f"../{REFERENCE}", site.say("reference"))
        texts[f"{language}/sections.js"] = search.script(entries)
    if book.is_chosen:
        _unlink_left_out(book, texts)
    texts |= downloads.notebooks(book)
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _unlink_left_out(book: Book, texts: dict[str, str]) -> None:
    """Make links to chapters that are not chosen, and to sources that only these cite, plain text."""
    left_out = {f"{path.name}.html" for path in book.chapters.iterdir() if path.name not in book.contents}
    sources = set(re.findall(r'<dt id="([^"]+)"', texts[f"{IN_ENGLISH}/references.html"]))

    def linked(match: re.Match) -> str:
        page, _, part = match[1].partition("#")
        lost = page in left_out or (page == "references.html" and part and part not in sources)
        return match[2] if lost else match[0]

    for name, text in texts.items():
        if name.endswith(".html"):
            texts[name] = re.sub(r'(?s)<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', linked, text)


def _swap(new: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def code_colors() -> str:
    """Return the colors of code: light and dark on screens, light on paper."""

    def rules(style: str, where: str) -> str:
        css = HtmlFormatter(style=style).get_style_defs("pre.code")
        css = re.sub(r" /\*.*?\*/|(?<=[{:;]) | (?=[{}])", "", css).splitlines()
        colors = [line for line in css if line.startswith("pre.code .") and ".hll" not in line and "err" not in line]
        return "\n".join(f"{where} {line}" for line in colors)

    light, dark = "default", "github-dark"
    chosen = {name: rules(style, f"[data-theme={name}]") for name, style in (("light", light), ("dark", dark))}
    without_choice = {style: rules(style, ":root:not([data-theme])") for style in (light, dark)}
    return (
        f"@media screen{{\n{chosen['light']}\n{chosen['dark']}\n}}\n"
        f"@media screen and (prefers-color-scheme:light){{\n{without_choice[light]}\n}}\n"
        f"@media screen and (prefers-color-scheme:dark){{\n{without_choice[dark]}\n}}\n"
        f"@media print{{\n{rules(light, '')}\n}}\n"
    )

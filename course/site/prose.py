"""Texts as HTML: CommonMark with formulas as MathML, citations, links between chapters, and figures."""

import html
import math
import re
from functools import cache

from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from course.book.findings import BookError
from course.book.lesson import CITE, Block, headed, outside
from course.book.library import Book, Chapter
from course.book.notebook import alternative, captions
from course.site.linked import linked

_PLAIN = HtmlFormatter(nowrap=True)
SMALL, NARROW = 520, 340  # pixels: pictures up to SMALL have larger words; NARROW is on every page
# A mark stays on the line of the formula before it.
_ENDS = re.compile(r'(<span class="math inline">(?:(?!</span>).)*</span>)([，。：；、）？！”,.;:)?!]+)', re.S)
# A sentence that asks to play a run; a page without scripts hides it.
_PLAYS = re.compile(r"((?:\s*Press play|[^.<>]*(?i:bấm) “Phát”)[^.<>]*\.|[^。<>]*按[^。<>]*播放(?:按钮|键)[^。<>]*。)")


class Prose:
    """Writes the texts of a book in one language as HTML; figures have the numbers of ``chapter``."""

    def __init__(self, book: Book, language: str, chapter: Chapter | None = None):
        self._book, self._language = book, language
        self._numbered = captions(chapter, language) if chapter else {}
        self._where = f"chapters/{chapter.slug}/{language}.md" if chapter else language
        left_out = {f"chapter:{number}": title[language] for number, title in book.left_out.items()}
        self._links = left_out | {
            f"chapter:{slug.partition('-')[0]}": f"[{title[language]}]({slug}.html)"
            for slug, title in book.contents.items()
        }
        self._markdown = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, renderer=self._formula)
        for rule in ("fence", "code_block"):
            self._markdown.add_render_rule(rule, lambda _, tokens, i, options, env: fence(tokens[i]))
        self._markdown.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
        self._markdown.add_render_rule("table_close", lambda *_: "</table></div>")

    def block(self, block: Block) -> str:
        """Return a run of prose, or a figure."""
        if block.kind == "figure":
            return self.figure(block)
        # The page itself sets the headings of the title and the sections.
        return self.markdown(headed(block.text, lambda heading: "" if len(heading[1]) <= 2 else heading[0]))

    def markdown(self, text: str) -> str:
        """Return any markdown of a chapter."""
        page = self._markdown.render(outside(text, lambda part: CITE.sub(self._cited, part)))
        return _PLAYS.sub(r'<span class="plays">\1</span>', _ENDS.sub(r'<span class="kept">\1\2</span>', page))

    def inline(self, text: str) -> str:
        """Return a title or a caption."""
        return self._markdown.renderInline(outside(text, lambda part: CITE.sub(self._cited, part)))

    def figure(self, block: Block) -> str:
        """Return a figure with its number, and its caption as alternative text."""
        alt = html.escape(alternative(block.name, block.caption))
        caption = self._numbered.get(block.name, "")
        under = f"<figcaption>{self.inline(caption)}</figcaption>" if caption else ""
        svg = self._book.figure(block.name).read_text("utf-8")
        (width, height), least = size(svg), legible(svg)
        narrow = f' style="min-width:{least}px"' if least > NARROW else ""
        size_in_page = f'width="{width}" height="{height}"{narrow}'
        image = f'<img src="../img/{block.name}.svg" alt="{alt}" {size_in_page} loading="lazy">'
        image = f'<div class="wide" tabindex="0">{image}</div>' if narrow else image
        return f'<figure id="fig-{block.name}">{image}{under}</figure>'

    def _cited(self, match: re.Match) -> str:
        key = match[1]
        if key in self._links:
            return self._links[key]
        source = self._book.references[key]
        title = source["title"].replace('"', "'").replace("\\", "")
        return f'[{source["authors"]}, {source["year"]}](references.html#{key} "{title}")'

    def _formula(self, source: str, options: dict) -> str:
        try:
            return formula(source, options["display_mode"])
        except MathError as error:
            raise BookError(
                f"{self._where}: the formula ${source}$ cannot be shown: {error}; write it differently"
            ) from None


@cache
def formula(source: str, block: bool) -> str:
    """Return TeX as MathML, with its source for screen readers; raise MathError for unknown commands."""
    mathml = re.sub(r"\n\s*", "", tex2mathml(source, as_block=block))
    mathml = mathml.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "", 1)  # HTML needs none
    return mathml.replace("<math", f'<math alttext="{html.escape(source.strip())}"', 1)


def fence(token) -> str:
    """Return code inside a text, highlighted if it names its language."""
    language = token.info.split()[0] if token.info.split() else ""
    return listing(token.content, {"py": "python"}.get(language, language))


def listing(source: str, language: str = "python") -> str:
    """Return code as HTML, highlighted if the language is known."""
    source = source.rstrip("\n")
    if language == "python":
        return code(linked(source, {}))
    known = language in ("bash", "sh", "json", "yaml", "toml", "ini")
    return code(highlight(source, get_lexer_by_name(language), _PLAIN).rstrip("\n") if known else html.escape(source))


def code(inside: str) -> str:
    """Wrap highlighted code so that the keyboard can reach it, to scroll it sideways."""
    return f'<pre class="code" tabindex="0"><code>{inside}</code></pre>'


def size(svg: str) -> tuple[str, str]:
    """Return width and height of a picture, for which a page reserves space before it is loaded."""
    box = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg)
    return (str(round(float(box[1]))), str(round(float(box[2])))) if box else ("auto", "auto")


def legible(svg: str) -> int:
    """Return the least width at which every word of a picture has 9 pixels; a narrower page scrolls it.

    The sizes of its words are those of ``d2lps/view/drawing/drawing.css``, which makes them larger in narrow pictures.
    """
    own = re.search(r'^<svg [^>]*style="--d2-zoom:([\d.]+)', svg)
    width = size(svg)[0]

    def least(zoom: float) -> int:
        zoom = float(own[1]) if own else zoom
        name = 13.0 if 'style="--d2-most' in svg else max(13.0, 11 * zoom)
        sizes = {"d2-name": name, "d2-note": max(10.5, 10.3 * zoom), "d2-key": min(13.0, max(9.5, 10.3 * zoom))}
        smallest = min((units for kind, units in sizes.items() if f'class="{kind} ' in svg), default=99.0)
        return math.ceil(9 / smallest * float(width))

    if width == "auto":
        return 0
    return least(1.5) if least(1.5) <= SMALL else least(1.0)

"""The outputs of a cell as HTML, without the scripts and style sheets that the site has once in files."""

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence

from course.book.findings import BookError
from d2lps.notebook import explore_page, hand, plots, predict, predict_page, schedule_table
from d2lps.view import player
from d2lps.view.drawing import lanes
from d2lps.view.drawing.theme import STYLE, THIN, styled
from d2lps.view.tables import SCROLLS

KINDS = ("text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")  # best first
# Scripts and style sheets that outputs repeat; the longest come first, because some contain others.
CODE = (player.MODULE, schedule_table.EDIT, hand.CODE, explore_page.CHOOSE, predict_page.ASK)
LOOKS = (player.LOOKS, STYLE, THIN, lanes.LOOKS)
LOOKS += (schedule_table.LOOK, hand.LOOK, explore_page.LOOK, predict_page.LOOK, predict.LOOK, plots.LETTERS)
_EXPORTED = re.compile(r"^export default .*?;\n|^export (?=\w)", re.M)
_NAMES = re.compile(r"^(?:export )?(?:async )?function (play|edit|handle|choose|bet|ask)\b", re.M)
_UNREAD = re.compile(r"^[ \t]*//.*\n|^[ \t]+", re.M)  # comments and indents
_CODE = re.compile(r'(<script type="module">)(.*?)(</script>)', re.S)
_SCRIPT = re.compile(r"<script\b.*?</script>", re.S)
_LOOK = re.compile(r"<style>(.*?)</style>", re.S)
_ID = re.compile(r'\s\bid="([^"]*)"')
_OF_A_PLOT = re.compile(r'(?<=[#"])([mp][0-9a-f]{10})(?=[")])')  # equal in equal plots
_CHOSEN = re.compile(r'(<div class="d2-chosen">).*?(</div><div>)<div class="d2lps-explore".*?(</div><script)', re.S)
# A player, or what has sliders, with its data and the script that starts it.
_STARTED = re.compile(
    r'<div id="(d2lps-[0-9a-f]{12})"([^>]*)>((?:(?!<script|<div id="d2lps-).)*)<script type="application/json">([^<]*)'
    r'</script></div><script type="module">[^<]*?(?:play\(el|choose\(root)[^<]*</script>',
    re.S,
)
# Sizes of letters and colors of lines that STYLE gives.
_LETTERS = re.compile(r' font-size="[\d.]+"(?= class="d2-(?:name|note|key)\b)')
_LINES = re.compile(r'(class="d2-(?:lane|gaps|done|new|line|box|bar)\b[^"]*"(?: fill="none")?) stroke="#[0-9a-f]{6}"')
_FAMILY = re.compile(r"(?<=\dpx )'DejaVu Sans'[^;\"]*")  # of a plot, in whose place LETTERS puts that of the page
STAYS = ' transform="translate(0 0)"'  # moves nothing
# Looks that tables repeat in every cell → the classes that the site has instead.
CELLS = {"white-space:nowrap;text-align:right": "td-r", "white-space:nowrap;text-align:left": "td-l"}
CELLS |= {
    "white-space:normal;vertical-align:bottom;word-break:keep-all;text-align:right": "th-r",
    "white-space:normal;vertical-align:bottom;word-break:keep-all;text-align:left": "th-l",
}
_NOTEBOOK = re.compile(r'href="\.\./([\w-]+)/\w\w\.ipynb"')  # a link to the notebook of a chapter
_DESCRIBED = re.compile(r"(?<=<desc>).*?(?=</desc>)")
_COLOURED = re.compile("\x1b\\[[0-9;]*m")


def shared_code() -> dict[str, str]:
    """Return file → code of CODE as plain scripts, because pages opened from a file may load no modules."""

    def script(code: str) -> str:
        names = ", ".join(_NAMES.findall(code))
        lean = _UNREAD.sub("", _EXPORTED.sub("", code))
        return "(() => {\n" + lean + f"\nObject.assign(window, {{ {names} }});\n}})();\n"

    play, edit, handle, *others = map(script, CODE)
    return {"play.js": play, "edit.js": edit, "hand.js": handle, "ask.js": "\n".join(others)}


def shared_looks() -> str:
    """Return the style sheets of LOOKS that most pages need, each rule once."""
    own = explore_page.LOOK, predict_page.LOOK, predict.LOOK, plots.LETTERS
    # As in the cells themselves, nothing else decides about them.
    cells = [f".{name}{{{look.replace(';', '!important;')}!important}}" for look, name in CELLS.items()]
    return "\n".join([player.LOOKS, *own, f".scrolls{{{SCROLLS}}}", *cells]) + "\n"


def cell_html(
    outputs: Sequence[dict],
    name: str,
    where: str,
    alternative: str,
    markdown: Callable[[str], str],
    paper: bool = False,
) -> str:
    """Return the outputs of a cell of a notebook as HTML; ``name`` is the cell's id, ``where`` names it in errors.

    ``alternative`` is the text for pictures that have none, and ``markdown`` turns Markdown into HTML. On paper there
    are no scripts, and all pictures. Raises BookError for an error among the outputs, or a widget without HTML.
    """
    pieces = (_one(output, where, alternative, markdown, still if paper else lean) for output in outputs)
    pieces = (_OF_A_PLOT.sub(rf"{name}-{number}-\1", piece) for number, piece in enumerate(pieces))
    return _NOTEBOOK.sub(r'href="\1.html"', "".join(pieces))


def _one(output: dict, where: str, alternative: str, markdown: Callable, clean: Callable[[str], str]) -> str:
    if output["output_type"] == "error":
        raise BookError(f"{where} raises {output['ename']}: {output['evalue']}; mend the cell")
    if output["output_type"] == "stream":
        return _text(output["text"])
    data = output["data"]
    kind = next((kind for kind in KINDS if kind in data), None)
    if kind is None or (kind == "text/plain" and any("widget-view" in data_kind for data_kind in data)):
        raise BookError(f"{where} shows {', '.join(data) or 'nothing'}, which a page cannot; give it a text/html form")
    value = data[kind]
    match kind:
        case "text/html":
            return f'<div class="shown">{clean(value)}</div>'
        case "image/svg+xml":
            svg = clean(value[value.index("<svg") :])
            return f'<div class="shown" role="img" aria-label="{html.escape(alternative)}">{svg}</div>'
        case "image/png":
            label = html.escape(alternative)
            return f'<div class="shown"><img alt="{label}" src="data:image/png;base64,{value.strip()}"></div>'
        case "text/markdown":
            return f'<div class="shown">{markdown(value)}</div>'
    return _text(value)


def _text(value: str) -> str:
    return f'<pre class="printed" tabindex="0">{html.escape(_COLOURED.sub("", value))}</pre>'


def tell_apart(page: str) -> str:
    """Number the descriptions of a page that an earlier picture has, too, because it shows the same run."""
    seen = Counter()

    def numbered(match: re.Match) -> str:
        seen[match[0]] += 1
        return match[0] if seen[match[0]] == 1 else f"{match[0]} ({seen[match[0]]})"

    return _DESCRIBED.sub(numbered, page)


def still(piece: str) -> str:
    """Remove scripts, shared style sheets and ids."""
    return _ID.sub("", _LOOK.sub(_look, _SCRIPT.sub("", piece)))


def lean(piece: str) -> str:
    """Remove the parts that a page has elsewhere, and unused ids.

    Shared code and style sheets are in files, and the first pictures of ``explore`` in its results.
    """

    def code(match: re.Match) -> str:
        rest = match[2]
        for ided in CODE:
            rest = rest.replace(ided, "")
        return match[1] + rest.strip() + match[3]

    piece = _LOOK.sub(_look, _CODE.sub(code, _CHOSEN.sub(r"\1\2\3", piece)))
    piece = _LINES.sub(r"\1", _LETTERS.sub("", styled(piece)))
    piece = _FAMILY.sub("sans-serif", piece).replace(STAYS, "")
    for look, name in {SCROLLS: "scrolls", **CELLS}.items():
        piece = piece.replace(f'style="{look}"', f'class="{name}"')
    named = set(re.findall(r"#([^\s\"'()<>&;,:]+)", piece))
    named |= {id for value in re.findall(r'\b(?:for|aria-\w+)="([^"]*)"', piece) for id in value.split()}
    return _ID.sub(lambda match: match[0] if match[1] in named else "", piece)


def later(page: str, file: str) -> tuple[str, str]:
    """Return the page without what starts its players, which ``theme/later.js`` does, and a script with their data.

    The page has the data of its first player, which is in view at once; ``file`` is the script's name.
    """
    data: dict[str, str] = {}
    count = 0

    def waiting(match: re.Match) -> str:
        nonlocal count
        id, look, inside, content = match.groups()
        name = f' data-name="{found[1]}"' if (found := re.match(r'\{"name":"([\w-]+)"', content)) else ""
        count += 1
        if count > 1:
            data[id], content = content, ""
        look += f' data-later="{file if count > 1 else ""}"{name}'
        return f'<div id="{id}"{look}>{inside}<script type="application/json">{content}</script></div>'

    page = _STARTED.sub(waiting, page)
    return page, f"window.d2Runs={{{','.join(f'{json.dumps(id)}:{each}' for id, each in data.items())}}};\n"


def _look(match: re.Match) -> str:
    rest = match[1]
    for sheet in LOOKS:
        rest = rest.replace(sheet, "")
    return f"<style>{rest}</style>" if rest.strip() else ""

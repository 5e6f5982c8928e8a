"""The page that describes every public name of the package, in English as the docstrings."""

from html import escape
from itertools import groupby

from course.site import search
from course.site.reference import Entry

INTRODUCTION = """<p>Every public name of the package, by room. The descriptions are the docstrings, and the tests run
their examples. <code>import d2lps</code> is enough for all names that have no room before them.</p>"""


def page(entries: list[Entry]) -> tuple[str, list[tuple[str, str]]]:
    """Return the body of the page, and its sections, one per room."""
    body, sections = [f"<h1>The <code>d2lps</code> package</h1>{INTRODUCTION}"], []
    for group, group_entries in groupby(entries, key=lambda entry: entry.group):
        title = group if group == "d2lps" else f"d2lps.{group}"
        sections.append((f"room-{group}", f"<code>{title}</code>"))
        inside = "".join(map(_entry, group_entries))
        body.append(
            f'<section id="room-{group}"><h2><code>{title}</code>{_anchor(f"room-{group}")}</h2>{inside}</section>'
        )
    return "\n".join(body), sections


def indexed(entries: list[Entry], address: str, title: str) -> list[search.Entry]:
    """Return the entries of the search index."""
    return [search.Entry(title, entry.qualname, f"{address}#{entry.id}", entry.text) for entry in entries]


def _entry(entry: Entry) -> str:
    members = "".join(
        f'<div class="member" id="{member.id}"><h4>{_head(member)}</h4>{member.html}</div>' for member in entry.members
    )
    return f'<article class="entry" id="{entry.id}"><h3>{_head(entry)}</h3>{entry.html}{members}</article>'


def _head(entry: Entry) -> str:
    kind = "" if entry.kind in ("function", "method") else f'<small class="kind">{escape(entry.kind)}</small> '
    return f"{kind}{entry.signature}{_anchor(entry.id)}"


def _anchor(id: str) -> str:
    return f'<a class="anchor" href="#{id}" aria-label="Link to {escape(id)}">#</a>'

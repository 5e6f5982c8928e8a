"""The pages that describe every public name of the package, in English as the docstrings: one per room, and a table."""

import re
from html import escape
from itertools import groupby

from course.site import search
from course.site.reference import Entry, home

INDEX = "index.html"
INTRODUCTION = """<p>Every public name of the package, by room, with a sentence. Each room has a page with the whole
docstrings, whose examples the tests run. <code>import d2lps</code> is enough for all names without a room before
them.</p>"""
LONGEST = 200  # characters of a sentence in the table
_INSIDE = re.compile(r'(?<= href=")#([^"]+)(?=")')
_SENTENCE = re.compile(r".*?\.(?=\s|$)", re.S)


def rooms(entries: list[Entry]) -> list[tuple[str, str, list[Entry]]]:
    """Return the full name of each room, its page and its entries."""
    grouped = [(group, list(members)) for group, members in groupby(entries, key=lambda entry: entry.group)]
    return [(_full(group), home(group), members) for group, members in grouped]


def table(entries: list[Entry]) -> tuple[str, list[tuple[str, str]]]:
    """Return the body of the page with all names, and its sections, one per room.

    Each row has the anchor that its name had when all names were on this page; ``theme/api.js`` leads on from there.
    """
    body, sections = [f"<h1>The <code>d2lps</code> package</h1>{INTRODUCTION}"], []
    for name, page, members in rooms(entries):
        id = f"room-{name.rpartition('.')[2]}"
        sections.append((id, f"<code>{name}</code>"))
        rows = "".join(
            f'<tr id="{each.id}"><th scope="row"><a href="{page}#{each.id}"><code>{each.id}</code></a></th>'
            f"<td>{escape(sentence(each))}</td></tr>"
            for each in members
        )
        head = f'<h2><a href="{page}"><code>{name}</code></a>{_anchor(id)}</h2>'
        body.append(f'<section id="{id}">{head}<table class="names"><tbody>{rows}</tbody></table></section>')
    return "\n".join(body), sections


def room(name: str, members: list[Entry], homes: dict[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the body of a room's page, and its sections, one per name; ``homes`` maps ids to pages."""
    own = homes[members[0].id]
    described = "".join(map(_entry, members))
    described = _INSIDE.sub(
        lambda link: link[0] if homes.get(link[1], own) == own else f"{homes[link[1]]}#{link[1]}", described
    )
    sections = [(each.id, f"<code>{each.qualname.rpartition('.')[2]}</code>") for each in members]
    return f'<h1><code>{name}</code></h1><p><a href="{INDEX}">All names</a></p>{described}', sections


def homes(entries: list[Entry]) -> dict[str, str]:
    """Return id → page of every entry and member."""
    return {each.id: home(entry.group) for entry in entries for each in (entry, *entry.members)}


def sentence(entry: Entry) -> str:
    """Return what an entry is, in one sentence: if its summary ends with a colon, with what follows the colon."""
    if not entry.summary.endswith(":"):
        return entry.summary
    found = _SENTENCE.match(entry.text)
    return found[0] if found and len(found[0]) <= LONGEST else entry.summary[:-1] + "."


def indexed(entries: list[Entry], folder: str, title: str) -> list[search.Entry]:
    """Return the entries of the search index."""
    return [search.Entry(title, each.qualname, f"{folder}{home(each.group)}#{each.id}", each.text) for each in entries]


def _full(group: str) -> str:
    return group if group == "d2lps" else f"d2lps.{group}"


def _entry(entry: Entry) -> str:
    members = "".join(
        f'<div class="member" id="{member.id}"><h3>{_head(member)}</h3>{member.html}</div>' for member in entry.members
    )
    return f'<article class="entry" id="{entry.id}"><h2>{_head(entry)}</h2>{entry.html}{members}</article>'


def _head(entry: Entry) -> str:
    kind = "" if entry.kind in ("function", "method") else f'<small class="kind">{escape(entry.kind)}</small> '
    return f"{kind}{entry.signature}{_anchor(entry.id)}"


def _anchor(id: str) -> str:
    return f'<a class="anchor" href="#{id}" aria-label="Link to {escape(id)}">#</a>'

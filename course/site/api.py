"""The pages that describe every public name of the package, in English as the docstrings: one per room, and a table."""

import re
from itertools import groupby

from course.site import search
from course.site.front import FRAME
from course.site.reference import Entry, home

INDEX = "index.html"
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
    listed = rooms(entries)
    sections = [(f"room-{name.rpartition('.')[2]}", f"<code>{name}</code>") for name, _, _ in listed]
    page = FRAME.get_template("api.html")
    return page.render(rooms=listed, sections=sections, sentence=sentence), sections


def room(name: str, members: list[Entry], homes: dict[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the body of a room's page, and its sections, one per name; ``homes`` maps ids to pages."""
    own = homes[members[0].id]
    body = FRAME.get_template("api.html").render(name=name, members=members, index=INDEX)
    body = _INSIDE.sub(lambda link: link[0] if homes.get(link[1], own) == own else f"{homes[link[1]]}#{link[1]}", body)
    return body, [(each.id, f"<code>{each.qualname.rpartition('.')[2]}</code>") for each in members]


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

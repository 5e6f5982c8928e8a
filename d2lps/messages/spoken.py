"""The sentences and the language in force, which the rest of this room builds on.

The sentences of a language are read when it is chosen, and English is read at once, so that no error needs a file to
say what happened: there may be no more files, or no folder any more.
"""

import errno
import os
import re
import sys
import tomllib
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TypeVar

from d2lps.messages.marked import LANGUAGES, marked, unmarked

Result = TypeVar("Result")

VARIABLE = "D2LPS_ALL_LANGUAGES"  # processes started from here inherit it

_language, _all = "en", os.environ.get(VARIABLE) == "1"
_only: ContextVar[str | None] = ContextVar("only", default=None)


def choose(language: str) -> None:
    """Put one of :data:`LANGUAGES` in force."""
    global _language
    sentences(language)
    _language = language


def choose_all() -> None:
    """Write everything in all languages at once from now on, as ``marked`` does, here and in processes started here."""
    global _all
    _all, os.environ[VARIABLE] = True, "1"
    _read()


def language() -> str:
    """Return the language in force: the last one chosen with :func:`d2lps.speak`, at first English."""
    return _only.get() or _language


def only(language: str, make: Callable[[], Result]) -> Result:
    """Return ``make()``, called while ``language`` alone is in force."""
    before = _only.set(language)
    try:
        return make()
    finally:
        _only.reset(before)


def said(say: Callable[[str], str]) -> str:
    """Return ``say(language)`` for the language in force, or a marked text of all languages."""
    if not _all or _only.get():
        return say(language())
    return marked([unmarked(only(name, lambda: say(language())), name) for name in LANGUAGES])


def html_language() -> str:
    """Return the language in force as HTML names it, so a browser picks the right voice and font."""
    return said(lambda language: {"zh": "zh-Hans"}.get(language, language))


def text(key: str, /, **values: object) -> str:
    """Return the sentence under ``key`` in the language in force, its ``{placeholders}`` filled with ``values``."""
    return said(lambda language: text_in(language, key, **values))


def text_in(language: str, key: str, /, **values: object) -> str:
    """Return the sentence in a language that need not be in force: notebooks are written in all of them."""
    return sentences(language)[key].format(**values)


def why(error: BaseException) -> str:
    """Return what the system says about an error; if there are too many open files, also how to allow more."""
    system = getattr(error, "strerror", None) or str(error)
    return text("error.files", why=system) if getattr(error, "errno", None) == errno.EMFILE else system


def allow_any_letter() -> None:
    """Print ``?`` for a letter that the encoding of the output lacks; each command calls this before it prints."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not that of a notebook, which has all letters
            stream.reconfigure(errors="replace")


def named(name: str) -> str:
    """Translate a name such as ``"shards"`` or ``"4 servers"`` into the language in force; keep unknown names.

    ``[names]`` in ``en.toml`` lists the known ones: the English name, or its key. In a list with commas each name is
    translated, and of ``"time (ms)"`` all but the unit.
    """
    for key, pattern in _names():
        if match := pattern.fullmatch(name):
            return text(key, **match.groupdict())
    if match := re.fullmatch(r"(.+) (\(\S+\))", name):
        return f"{named(match[1])} {match[2]}"
    key = f"names.{name}"
    if "{" not in sentences("en").get(key, "{"):
        return text(key)
    return text("list.comma").join(map(named, name.split(", "))) if ", " in name else name


@cache
def _names() -> list[tuple[str, re.Pattern]]:
    names = {key: value for key, value in sentences("en").items() if key.startswith("names.")}
    patterns = {key: re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(value)) for key, value in names.items()}
    return [(key, re.compile(pattern)) for key, pattern in patterns.items()]


@cache
def sentences(language: str) -> dict[str, str]:
    """Return all sentences of one language, flat: ``{"player.play": "Play", …}``."""
    return flat(tomllib.loads(Path(__file__).with_name(f"{language}.toml").read_text("utf-8")))


def flat(table: dict, prefix: str = "") -> dict[str, str]:
    """Flatten nested tables: ``{"player": {"play": "Play"}}`` becomes ``{"player.play": "Play"}``."""
    entries: dict[str, str] = {}
    for name, value in table.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: str(value)}
    return entries


def _read() -> None:
    for name in LANGUAGES if _all else ("en",):
        sentences(name)


_read()

"""The sentences, and the language in force: what the rest of this room stands on."""

import re
import tomllib
from functools import cache
from importlib import resources

LANGUAGES = ("en", "vi", "zh")

_language = "en"


def choose(language: str) -> None:
    """Put one of :data:`LANGUAGES` in force."""
    global _language
    _language = language


def language() -> str:
    """The language in force, as last chosen with :func:`d2lps.speak` (English to begin with)."""
    return _language


def html_language() -> str:
    """The same as a page names it, so that it is read aloud and set in letters of that language."""
    return {"zh": "zh-Hans"}.get(_language, _language)


def text(key: str, /, **values: object) -> str:
    """The sentence under ``key`` in the language in force, its ``{placeholders}`` filled with ``values``."""
    return text_in(_language, key, **values)


def text_in(language: str, key: str, /, **values: object) -> str:
    """The same in a language that need not be in force: notebooks are written in all of them."""
    return sentences(language)[key].format(**values)


def named(name: str) -> str:
    """What a program calls ``"shards"`` or ``"4 servers"``, as the language in force has it; other names as they are.

    The names are those of ``[names]``, by what they are called in English; of several with commas between them, each.
    """
    for key, pattern in _names():
        if found := pattern.fullmatch(name):
            return text(key, **found.groupdict())
    return text("list.comma").join(map(named, name.split(", "))) if ", " in name else name


@cache
def _names() -> list[tuple[str, re.Pattern]]:
    known = {key: value for key, value in sentences("en").items() if key.startswith("names.")}
    holes = {key: re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(value)) for key, value in known.items()}
    return [(key, re.compile(pattern)) for key, pattern in holes.items()]


@cache
def sentences(language: str) -> dict[str, str]:
    """All sentences of one language, flat: ``{"player.play": "Play", …}``."""
    return flat(tomllib.loads(resources.files("d2lps").joinpath("messages", f"{language}.toml").read_text("utf-8")))


def flat(table: dict, prefix: str = "") -> dict[str, str]:
    """Nested tables as one: ``{"player": {"play": "Play"}}`` as ``{"player.play": "Play"}``."""
    entries: dict[str, str] = {}
    for name, value in table.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: str(value)}
    return entries

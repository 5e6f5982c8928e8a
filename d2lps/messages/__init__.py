"""The words that a reader sees at run time, in the language of their choice.

>>> speak("vi")
>>> text("player.play")
'Phát'
>>> speak("en")

The sentences live in ``messages/en.toml``, ``vi.toml`` and ``zh.toml`` under the same keys with the
same placeholders (a test compares them). Low-level errors (shapes, dtypes, devices) stay English, so
that they can be searched for.
"""

import tomllib
from functools import cache
from importlib import resources

__all__ = ["LANGUAGES", "LanguageError", "language", "sentences", "speak", "text"]

LANGUAGES = ("en", "vi", "zh")

_language = "en"


class LanguageError(ValueError):
    """A language that the course is not written in."""


def speak(language: str) -> None:
    """Choose the language of everything that d2lps says from now on.

    Parameters
    ----------
    language : str
        ``"en"``, ``"vi"`` or ``"zh"``.

    Raises
    ------
    LanguageError
        For any other; the language then stays as it was.

    Examples
    --------
    >>> speak("zh")
    >>> text("player.play")
    '播放'
    >>> speak("en")
    """
    global _language
    if language not in LANGUAGES:
        raise LanguageError(f"unknown language {language!r}: d2lps speaks {', '.join(LANGUAGES)}")
    _language = language


def language() -> str:
    """The language in force, as last chosen with :func:`speak` (English to begin with)."""
    return _language


def text(key: str, /, **values: object) -> str:
    """The sentence under ``key`` in the language in force, its ``{placeholders}`` filled with ``values``."""
    return sentences(_language)[key].format(**values)


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

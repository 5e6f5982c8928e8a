"""The words that a reader sees at run time, in the language of their choice.

>>> speak("vi")
>>> text("player.play")
'Phát'
>>> speak("en")

The sentences live in ``messages/en.toml``, ``vi.toml`` and ``zh.toml`` under the same keys with the same placeholders
(a test compares them): also those of errors that a learner can cause, with the English words in them by which they
are searched for. What only an operator sees (ports, certificates, what a file holds) stays English. ``spoken`` finds
the sentences, ``raised`` shows errors in a notebook.
"""

from d2lps.messages.marked import unmarked  # noqa: F401
from d2lps.messages.raised import Brief
from d2lps.messages.spoken import (  # noqa: F401
    LANGUAGES,
    choose,
    choose_all,
    flat,
    html_language,
    language,
    named,
    only,
    said,
    sentences,
    text,
    text_in,
)

__all__ = ["LANGUAGES", "LanguageError", "language", "named", "sentences", "speak", "text"]


class LanguageError(Brief, ValueError):
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
    if language not in LANGUAGES:
        raise LanguageError(f"unknown language {language!r}: d2lps speaks {', '.join(LANGUAGES)}")
    choose(language)

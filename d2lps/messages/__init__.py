"""The words that a reader sees at run time, in English, Vietnamese or Chinese.

>>> speak("vi")
>>> text("player.play")
'Phát'
>>> speak("en")

``en.toml``, ``vi.toml`` and ``zh.toml`` hold the sentences under the same keys with the same placeholders (a test
compares them), errors that a learner can cause included. Messages for operators (ports, secrets, contents of
files) are English only. Start with ``spoken.py``: it keeps the language in force and finds a sentence by its key.
``marked.py`` writes one text in all languages at once, for notebooks that run once for all readers; ``raised.py``
decides how an error looks in a notebook; ``counted.py`` shows how far a long loop has come.
"""

from d2lps.messages.marked import unmarked  # noqa: F401
from d2lps.messages.raised import Brief
from d2lps.messages.spoken import (  # noqa: F401
    LANGUAGES,
    allow_any_letter,
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
    why,
)

__all__ = ["LANGUAGES", "LanguageError", "language", "named", "sentences", "speak", "text"]


class LanguageError(Brief, ValueError):
    """An unknown language."""


def speak(language: str) -> None:
    """Choose the language of everything that d2lps says from now on.

    Args:
        language: ``"en"``, ``"vi"`` or ``"zh"``.

    Raises:
        LanguageError: For any other language; the language in force does not change.

    Example:
        >>> speak("zh")
        >>> text("player.play")
        '播放'
        >>> speak("en")
    """
    if language not in LANGUAGES:
        raise LanguageError(f"unknown language {language!r}: d2lps speaks {', '.join(LANGUAGES)}")
    choose(language)

"""A text in all languages at once: ``⟦Play⟠Phát⟠播放⟧``.

A notebook that runs once for the readers of all languages prints its sentences like this. They pass through ``print``,
errors and other processes as one text; afterwards :func:`unmarked` picks the language of each reader.
"""

import re

LANGUAGES = ("en", "vi", "zh")
OPEN, BETWEEN, CLOSE = "⟦⟠⟧"
MARKED = re.compile(OPEN + BETWEEN.join([f"([^{OPEN}{BETWEEN}{CLOSE}]*)"] * len(LANGUAGES)) + CLOSE)


def marked(texts: list[str]) -> str:
    """Return one text made of ``texts``, one for each of :data:`LANGUAGES`, none of them marked.

    >>> marked(["Play", "Phát", "播放"]), marked(["4 ms", "4 ms", "4 ms"])
    ('⟦Play⟠Phát⟠播放⟧', '4 ms')

    If all texts have the same number of lines, each line is marked by itself, so it can be split at line ends.
    """
    if len(set(texts)) == 1:
        return texts[0]
    lines = [text.split("\n") for text in texts]
    if len(set(map(len, lines))) == 1 < len(lines[0]):
        return "\n".join(marked([*line]) for line in zip(*lines, strict=True))
    return f"{OPEN}{BETWEEN.join(texts)}{CLOSE}"


def unmarked(value, language: str):
    """Return ``value``, a text or lists and dicts of texts, in one language.

    >>> unmarked({"text/plain": "4 ms: ⟦right⟠đúng⟠正确⟧"}, "vi")
    {'text/plain': '4 ms: đúng'}
    """
    match value:
        case str():
            number = LANGUAGES.index(language)
            return MARKED.sub(lambda match: match[number + 1], value)  # others come from readers' own texts
        case dict():
            return {name: unmarked(item, language) for name, item in value.items()}
        case list() | tuple():
            return type(value)(unmarked(item, language) for item in value)
        case _:
            return value

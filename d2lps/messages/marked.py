"""A text in all languages at once: ``⟦Play⟠Phát⟠播放⟧``.

A notebook that is executed once for the readers of all languages says its sentences so. As one text they go through
``print``, errors and other processes; afterwards :func:`unmarked` gives what each reader sees.
"""

import re

LANGUAGES = ("en", "vi", "zh")
OPEN, BETWEEN, CLOSE = "⟦⟠⟧"
MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")


def marked(texts: list[str]) -> str:
    """One text of those in :data:`LANGUAGES`, which have no marks.

    >>> marked(["Play", "Phát", "播放"]), marked(["4 ms", "4 ms", "4 ms"])
    ('⟦Play⟠Phát⟠播放⟧', '4 ms')

    Lines stay lines, where all have as many, so that whoever takes them apart finds whole marks in each.
    """
    if len(set(texts)) == 1:
        return texts[0]
    lines = [text.split("\n") for text in texts]
    if len({len(each) for each in lines}) == 1 < len(lines[0]):
        return "\n".join(marked([*line]) for line in zip(*lines, strict=True))
    return f"{OPEN}{BETWEEN.join(texts)}{CLOSE}"


def unmarked(value, language: str):
    """The same in one language: of a text, or of all texts in lists and dicts.

    >>> unmarked({"text/plain": "4 ms: ⟦right⟠đúng⟠正确⟧"}, "vi")
    {'text/plain': '4 ms: đúng'}
    """
    match value:
        case str():
            number = LANGUAGES.index(language)
            return MARKED.sub(lambda found: found[1].split(BETWEEN)[number], value)
        case dict():
            return {name: unmarked(each, language) for name, each in value.items()}
        case list() | tuple():
            return type(value)(unmarked(each, language) for each in value)
        case _:
            return value

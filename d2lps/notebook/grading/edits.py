"""Make typical wrong answers out of right ones."""

from collections.abc import Callable
from inspect import getsource
from textwrap import dedent


def edited(answer: Callable, *edits: tuple[str, str]) -> Callable:
    """Return an answer whose source differs from that of ``answer`` by some edits; its attribute is ``source``.

    Args:
        answer: A function that is defined in a file, not inside another function.
        *edits: A text that is in the source exactly once, and its replacement.

    Raises:
        ValueError: If the source has the first part of an edit not once, but never or several times.
    """
    source, names = dedent(getsource(answer)), dict(answer.__globals__)
    for old, new in edits:
        before, after = source.split(old)
        source = before + new + after
    exec(compile(source, answer.__code__.co_filename, "exec"), names)
    made = names[answer.__name__]
    made.source = source
    return made

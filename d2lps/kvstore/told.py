"""Sentences that travel: a server sends the key and the values, and each worker reads them in its own language."""

from d2lps.messages import text


class Told(str):
    """A sentence of ``messages/`` that remembers its ``key`` and ``values``; a value may be such a sentence, too.

    >>> error = ValueError(told("store.told.left", rank=1, why=told("store.told.goodbye")))
    >>> str(error)
    'worker 1 has left (it said goodbye)'
    >>> packed(str(error))
    ['store.told.left', {'rank': 1, 'why': ['store.told.goodbye', {}]}]
    """

    key: str
    values: dict

    def __str__(self) -> str:
        return self  # so that str(error) remembers them, too


def told(key: str, /, **values: object) -> Told:
    """Return the sentence under ``key`` in the language in force."""
    sentence = Told(text(key, **values))
    sentence.key, sentence.values = key, values
    return sentence


def packed(sentence: object) -> object:
    """Return a sentence, or one of its values, as JSON for another process."""
    if isinstance(sentence, Told):
        return [sentence.key, {name: packed(value) for name, value in sentence.values.items()}]
    return sentence if isinstance(sentence, int | float) else str(sentence)


def unpacked(said: object) -> object:
    """Return a packed sentence in the language in force. Raises an exception of any kind for anything else."""
    if isinstance(said, list):
        key, values = said
        return told(key, **{name: unpacked(value) for name, value in values.items()})
    return said

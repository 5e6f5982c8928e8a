"""What is held on to from one call of a function to the next: how much it is, and what two functions share."""

import gc
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from d2lps.notebook.grading.away import Away


def size_kept(thing: object, without: Iterable[object] = ()) -> int:
    """Bytes of a thing and of all that it holds on to.

    Parameters
    ----------
    thing : object
        A function that a learner has written, or what it has made.
    without : iterable
        What it was given, and is not its own; nor is what those hold on to.

    Returns
    -------
    int
        The sizes of all objects that it can reach.

    Examples
    --------
    >>> def make():
    ...     had = []
    ...     return lambda value: had.append(value)
    >>> receive = make()
    >>> before, _ = size_kept(receive), [receive(i) for i in range(1000)]
    >>> size_kept(receive) - before > 8000
    True
    """
    if isinstance(thing, Away):
        return thing.size_kept(without)
    kept = (each for each in _reached(thing, without) if not isinstance(each, FunctionType))
    # Of a tensor, getsizeof is the object alone.
    return sum(sys.getsizeof(each) + getattr(each, "nbytes", 0) for each in kept)


def shared_names(one: object, other: object, names: Iterable[str]) -> set[str]:
    """Which of these names stand in a dict, list or set that both hold on to.

    Parameters
    ----------
    one, other : object
        Made by two calls of the same function.
    names : iterable of str
        What a call would note down, alone or in a tuple.

    Returns
    -------
    set of str
        Empty where each has a memory of its own.

    Examples
    --------
    >>> def make(memory={}):
    ...     return lambda name: memory.setdefault(name, 0)
    >>> one, other = make(), make()
    >>> one("w"), shared_names(one, other, ["w", "b"])
    (0, {'w'})
    """
    if isinstance(one, Away):
        return one.shared_names(other, names)
    there = {id(each) for each in _reached(one)}
    common = [each for each in _reached(other) if id(each) in there and isinstance(each, dict | list | set)]
    entries = [entry for each in common for entry in each]
    parts = [part for entry in entries for part in (entry if isinstance(entry, tuple) else [entry])]
    return {part for part in parts if isinstance(part, str)} & set(names)


def _reached(thing: object, without: Iterable[object] = ()) -> Iterator[object]:
    """The thing and all that it leads to, each once; of what is around a function, only what it names."""
    seen, found = set(map(id, without)), [thing]
    while found:
        thing = found.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | CodeType | BuiltinFunctionType):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, FunctionType):
            found += [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), vars(thing)]
            found += [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        else:
            found += gc.get_referents(thing)

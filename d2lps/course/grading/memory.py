"""How much is held on to from one call of a function to the next."""

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType


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
    seen, found, size = set(map(id, without)), [thing], 0
    while found:
        thing = found.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | CodeType | BuiltinFunctionType):
            continue
        seen.add(id(thing))
        if isinstance(thing, FunctionType):  # of what is around it only what it names
            found += [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), vars(thing)]
            found += [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
            continue
        size += sys.getsizeof(thing) + getattr(thing, "nbytes", 0)  # of a tensor, getsizeof is the object alone
        found += gc.get_referents(thing)
    return size

"""Call an answer in another process, to see if its result depends on the process, as ``hash`` does.

Ask for the gradient that reaches an answer's argument.

The objects that a function keeps from one call to the next: their size, and those that two functions share.
"""

import gc
import json
import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

PATIENCE = 60.0  # seconds
ASK = """
import json, pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
answer, arguments = pickle.load(sys.stdin.buffer)
json.dump(answer(*arguments), out)
"""


class RemoteFunction(ABC):
    """A function in another process, for judges that do more than call it; calling this object calls the function."""

    @abstractmethod
    def __call__(self, *arguments: object, **named: object) -> object: ...

    @abstractmethod
    def size_kept(self, without: Iterable[object]) -> int:
        """Do the same as :func:`~d2lps.notebook.grading.size_kept` in the other process."""

    @abstractmethod
    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        """Do the same as :func:`~d2lps.notebook.grading.shared_names` in the other process."""

    @abstractmethod
    def gradient(self, y: object, x: object, factors: object) -> object:
        """Do the same as :func:`~d2lps.notebook.grading.gradient` in the other process, soon after ``y`` came."""

    @abstractmethod
    def elsewhere(self, *arguments: object) -> object:
        """Do the same as :func:`~d2lps.notebook.grading.elsewhere`, in a third process."""


def elsewhere(answer: Callable, *arguments: object) -> object:
    """Return ``answer(*arguments)`` from a process in which texts have another ``hash``.

    Args:
        answer, *arguments: The function, and its arguments.

    Returns:
        The result after a trip through JSON: tuples become lists. None if the answer cannot be sent, or fails there.
    """
    if isinstance(answer, RemoteFunction):
        return answer.elsewhere(*arguments)
    import cloudpickle

    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    try:
        sent = cloudpickle.dumps((answer, arguments))
    except (pickle.PicklingError, TypeError):  # it refers to an object that cannot leave this process, such as a lock
        return None
    path = os.pathsep.join(filter(None, sys.path))
    try:
        process = subprocess.run(
            [sys.executable, "-c", ASK],
            input=sent,
            capture_output=True,
            timeout=PATIENCE,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(process.stdout) if process.returncode == 0 else None


def size_kept(thing: object, without: Iterable[object] = ()) -> int:
    """Return the bytes of a thing and of all objects that it refers to, directly or indirectly.

    A number counts once for each reference to it: Python shares some numbers, and a copy shares fewer.

    Args:
        thing: A function that a learner has written, or an object that it has made.
        without: Objects to leave out, with all that they refer to, because the function was given them.

    Example:
        >>> def make():
        ...     had = []
        ...     return lambda value: had.append(value)
        >>> receive = make()
        >>> before, _ = size_kept(receive), [receive(i) for i in range(1000)]
        >>> size_kept(receive) - before > 8000
        True
    """
    if isinstance(thing, RemoteFunction):
        return thing.size_kept(without)
    kept = (item for item in _reached(thing, without) if not isinstance(item, FunctionType))
    # getsizeof counts only the object of a tensor, not its elements.
    return sum(sys.getsizeof(item) + getattr(item, "nbytes", 0) for item in kept)


def gradient(answer: Callable, y: object, x: object, factors: object) -> object:
    """Return the gradient of the sum of ``factors * y`` with respect to ``x``, or None if none arrives there.

    Args:
        answer: The function that has just returned ``y``.
        y, x, factors: Tensors; ``x`` was an argument of the answer.

    Example:
        >>> import torch
        >>> x, factors = torch.ones(2, requires_grad=True), torch.tensor([1.0, 3.0])
        >>> gradient(lambda x: 2 * x, 2 * x, x, factors)
        tensor([2., 6.])
    """
    if not y.requires_grad:
        return None
    if isinstance(answer, RemoteFunction):
        return answer.gradient(y, x, factors)
    import torch

    return torch.autograd.grad(y, x, factors, allow_unused=True)[0]


def shared_names(one: object, other: object, names: Iterable[str]) -> set[str]:
    """Return the names that are in a dict, list or set that both objects refer to.

    Args:
        one, other: Made by two calls of the same function.
        names: Names that a call would store: of a dict the keys, alone or in a tuple, of a list or set only tuples.

    Returns:
        Empty if each has a memory of its own.

    Example:
        >>> def make(memory={}):
        ...     return lambda name: memory.setdefault(name, 0)
        >>> one, other = make(), make()
        >>> one("w"), shared_names(one, other, ["w", "b"])
        (0, {'w'})
    """
    if isinstance(one, RemoteFunction):
        return one.shared_names(other, names)
    ids = {id(item) for item in _reached(one)}
    common = [item for item in _reached(other) if id(item) in ids and isinstance(item, dict | list | set)]
    entries = [entry for each in common for entry in each if isinstance(each, dict) or isinstance(entry, tuple)]
    parts = [part for entry in entries for part in (entry if isinstance(entry, tuple) else [entry])]
    return {part for part in parts if isinstance(part, str)} & set(names)


def _reached(thing: object, without: Iterable[object] = ()) -> Iterator[object]:
    """Yield the thing and all objects it refers to; of a function's globals, only those it names.

    A number is yielded for each reference to it, any other object once.
    """
    seen, pending = set(map(id, without)), [thing]
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | CodeType | BuiltinFunctionType):
            continue
        if not isinstance(thing, int | float):
            seen.add(id(thing))
        yield thing
        if isinstance(thing, FunctionType):
            pending += [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), vars(thing)]
            pending += [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        else:
            pending += gc.get_referents(thing)

"""The judge's end of the line: it makes an answer's functions callable here, and the judge's objects usable there.

The answer sends data, functions by number and errors by name. The judge's values are sent as copies; if the answer
changes a tensor in its process, the judge's tensor is changed too.
"""

import builtins
import inspect
import itertools
import json
import re
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from types import SimpleNamespace

import torch

from course.classes import values
from course.classes.line import Gone, Line
from course.classes.values import Unreadable, read, tensor, written
from d2lps import PlanError, Reduction, Trace
from d2lps.notebook.grading.calls import Stopped
from d2lps.notebook.grading.elsewhere import RemoteFunction
from d2lps.plan import Plan

LONGEST_NAME = 60  # characters of a name that the other end sends
REFUSED = ("file", "process", "network", "import", "out-of-memory")
PATH = re.compile(r"(?<![\w.…/])/(?:[^/\s'\"]+/)+([^/\s'\"]*)")  # reports do not show paths of this machine
TENSORS = 1 << 16  # remembered at most


class Opaque:
    """A stand-in for an object that is not sent; its class has the name of the object's class, and it has its items."""

    text, items = "", None

    def __repr__(self) -> str:
        return self.text

    def __iter__(self):
        if self.items is None:
            raise TypeError(f"{type(self).__name__!r} object is not iterable")
        return iter(self.items)


class Answers:
    """The answer at the other end of ``line``; ``another`` opens a line to a second process with the same answer."""

    def __init__(self, line: Line, another: "Callable[[], Answers] | None" = None):
        self.line, self.another = line, another
        self._lanes, self._next, self._lock = [], itertools.count(), threading.Lock()
        self._here = threading.local()  # the lane of this thread
        self._given: dict[int, object] = {}  # number → object that the other end may call
        self._numbers: dict[int, int] = {}  # id of such an object → its number
        self._functions: dict[int, AnswerFunction] = {}
        self._tensors: dict[int, weakref.ref] = {}  # those that still exist
        self._counted = itertools.count(1)
        self.refused: list[tuple[str, str]] = []  # kind and detail of what the sandbox refused
        self.attempts: list[tuple[str, str]] = []  # those of which an error may have been caught

    # ---- calls

    def ask(self, request: str, *parts: object) -> object:
        """Send a request, serve calls of the judge's functions until it is answered, and return the result.

        Raises the error that was raised in the answer's process, or Gone.
        """
        lane = getattr(self._here, "lane", None)
        if lane is not None:  # a nested call: the answer has called the judge on this lane
            result, error = self._asked(lane, [request, lane, *parts])
        else:
            with self._lock:
                lane = self._lanes.pop() if self._lanes else next(self._next)
            self.line.open(lane)
            self._here.lane, finished = lane, False
            try:
                result, error = self._asked(lane, [request, lane, *parts])
                finished = True
            finally:
                self._here.lane = None
                if finished:
                    self._lanes.append(lane)
                else:  # this thread was stopped, and the other end is still busy on the lane
                    self.line.close(lane)
        if error is not None:
            raise error
        return result

    def _asked(self, lane: int, frame: list) -> tuple[object, BaseException | None]:
        """Return the result, and the error or None. Raises Gone."""
        raised: dict[int, BaseException] = {}  # errors of the judge's functions, which may come back
        self.line.say(frame)
        while True:
            frame = self.line.wait(lane)
            try:
                if frame[0] == "call":
                    self._called(lane, frame, raised)
                elif frame[0] in ("return", "raise"):
                    _, _, value, changed, one_way_calls, attempts = frame
                    attempts = [(kind, str(name)[:LONGEST_NAME]) for kind, name in attempts if kind in REFUSED[:3]]
                    self.attempts += attempts
                    self._change(changed)
                    error = self._call_one_way(one_way_calls) if one_way_calls else None
                    if error is None and frame[0] == "return":
                        return self.read(value), None
                    return None, error or self._error(value, raised)
                else:
                    raise Unreadable(str(frame[0])[:LONGEST_NAME])
            except Stopped:
                raise
            except Exception:  # the frame cannot be understood
                raise Gone("strange") from None

    def _called(self, lane: int, frame: list, raised: dict[int, BaseException]) -> None:
        _, _, number, method, arguments, named, one_way_calls = frame
        thing = self._thing(number, method)
        arguments, named = self.read(arguments), self.read(named)
        try:
            error = self._call_one_way(one_way_calls)
            if error is not None:
                raise error
            answer = ["return", lane, self.write(thing(*arguments, **named))]
        except BaseException as error:
            if type(error) is Stopped:  # its subclasses end the answer alone, and so go back to it
                raise
            number = len(raised)
            raised[number] = error
            answer = ["raise", lane, [number, type(error).__name__, _builtin(type(error)), str(error)[:1000]]]
        self.line.say(answer)

    def _thing(self, number: int, method: str | None) -> object:
        thing = self._given[number]
        if method is None:
            return thing
        if method not in methods(thing):
            raise Unreadable("no such method")
        return getattr(thing, method)

    def _call_one_way(self, one_way_calls: list) -> BaseException | None:
        """Make the one-way calls in their order; return the first error, after which no call is made."""
        for number, method, arguments, named in one_way_calls:
            thing = self._thing(number, method)
            if not one_way(thing):
                raise Unreadable("not one-way")
            arguments, named = self.read(arguments), self.read(named)
            try:
                thing(*arguments, **named)
            except BaseException as error:
                if type(error) is Stopped:
                    raise
                return error
        return None

    def _error(self, description: list, raised: dict[int, BaseException]) -> BaseException:
        """Return the error that was raised there: the judge's own error, come back, or a new one of that name."""
        if description[0] == "own":
            return raised[description[1]]
        _, name, base, message, line, plan, refused = description
        if refused:
            kind, detail = refused
            if kind not in REFUSED:
                raise Unreadable("not refused")
            self.refused.append((kind, str(detail)[:LONGEST_NAME]))
        base = getattr(builtins, str(base), Exception)
        if not (isinstance(base, type) and issubclass(base, BaseException)):
            base = Exception
        message = PATH.sub(r"…/\1", str(message)[:2000])
        error = self._plan_error(plan) if plan else None
        if error is None:
            error = _named(name, base, {"__str__": lambda self: message})
        error.answer_line = line if type(line) is int else None
        return error

    def _plan_error(self, description: list) -> BaseException | None:
        """Make the error of a broken plan again by building the plan here."""
        reason, step, more, fields = self.read(description)
        try:
            if fields is not None:
                Plan(*fields)
            return PlanError(reason, None, step, **more)
        except PlanError as error:
            return error
        except Exception:
            return None

    # ---- values

    def write(self, value: object) -> object:
        """Encode a value of the judge for the other end."""
        return written(value, self._write)

    def _write(self, value: object) -> list:
        if isinstance(value, torch.Tensor):
            number = next(self._counted)
            self._remember(number, value)
            return ["T", number, *values.numbers(value)]
        if isinstance(value, AnswerFunction):
            return ["own", value.number]
        if isinstance(value, Trace):
            return ["trace", value.to_json()]
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._given) + 1
            self._given[number] = value
        if callable(value):
            return ["function", number, getattr(value, "__name__", "function"), one_way(value)]
        return [
            "object",
            number,
            type(value).__name__,
            [[name, one_way(getattr(value, name))] for name in methods(value)],
        ]

    def read(self, data: object) -> object:
        """Decode a value from the other end. Raises Unreadable or another error if it is not a value."""
        return read(data, self._read)

    def _read(self, data: list) -> object:
        kind, *rest = data
        if kind == "T":
            number, *rest = rest
            return self._tensor(number, tensor(*rest))
        if kind == "function":
            number, about = rest
            if number not in self._functions:
                self._functions[number] = AnswerFunction(self, int(number), about)
            return self._functions[number]
        if kind == "given":
            return self._given[rest[0]]
        if kind == "reduction":
            name, combine, identity = (self.read(field) for field in rest)
            return Reduction(str(name), combine, identity)
        if kind == "strange":
            name, text, items = rest
            thing = _named(name, Opaque)
            thing.text = str(text)[:1000]
            thing.items = None if items is None else self.read(items)
            return thing
        raise Unreadable(str(kind)[:LONGEST_NAME])

    def _tensor(self, number: int, new: torch.Tensor) -> torch.Tensor:
        old = self._tensors.get(number, lambda: None)()
        if old is None:
            self._remember(number, new)
            return new
        _put(old, new)
        return old

    def _remember(self, number: int, tensor: torch.Tensor) -> None:
        if len(self._tensors) >= TENSORS:
            self._tensors = {key: ref for key, ref in self._tensors.items() if ref() is not None}
            if len(self._tensors) >= TENSORS:
                raise Unreadable("too many tensors")
        self._tensors[number] = weakref.ref(tensor)

    def _change(self, changed: list) -> None:
        for number, *rest in changed:
            old = self._tensors.get(number, lambda: None)()
            if old is not None:
                _put(old, tensor(*rest))

    def elsewhere(self, *arguments: object) -> object:
        """Return the answer's result in the second process; None if it raises, or JSON has no such value."""
        try:
            answers = self.another()
            return json.loads(json.dumps(answers.answer(*arguments)))
        except (Exception, Gone):
            return None


class AnswerFunction(RemoteFunction):
    """A function of the answer."""

    def __init__(self, answers: Answers, number: int, about: dict):
        self.answers, self.number = answers, number
        self.__name__ = str(about.get("name"))[:LONGEST_NAME]
        if about.get("names") is not None:  # judges look at these to recognize an untouched stub
            names = ("something",) if about["names"] else ()
            self.__code__ = SimpleNamespace(co_names=names, co_freevars=(), co_filename=None)
        self._signature = about.get("signature")

    @property
    def __signature__(self) -> inspect.Signature:
        if not isinstance(self._signature, list):
            raise AttributeError  # builtins have no signature
        kinds = inspect._ParameterKind
        return inspect.Signature(
            [
                inspect.Parameter(str(name), kinds(kind), default=None if optional else inspect.Parameter.empty)
                for name, kind, optional in self._signature
            ],
            __validate_parameters__=False,
        )

    def __call__(self, *arguments: object, **named: object) -> object:
        answers = self.answers
        return answers.ask("call", self.number, answers.write(list(arguments)), answers.write(named))

    def size_kept(self, without: Iterable[object] = ()) -> int:
        return int(self.answers.ask("size", self.number, [self.answers.write(value) for value in without]))

    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        if not isinstance(other, AnswerFunction):
            return set()
        shared = self.answers.ask("shared", self.number, other.number, self.answers.write(list(names)))
        return {str(name) for name in shared}

    def gradient(self, y: torch.Tensor, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor | None:
        known = {id(tensor): number for number, ref in self.answers._tensors.items() if (tensor := ref()) is not None}
        return self.answers.ask("gradient", known[id(y)], known[id(x)], self.answers.write(factors))

    def elsewhere(self, *arguments: object) -> object:
        return self.answers.elsewhere(*arguments)


def one_way(function: object) -> bool:
    """Return whether a judge's function is marked as returning nothing, so that calls of it may be sent later."""
    return getattr(function, "one_way", False)


def methods(thing: object) -> list[str]:
    """Return the names of an object's methods that the other end may call."""
    return _methods(type(thing))


@cache
def _methods(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") and inspect.isfunction(getattr(kind, name))]


def _put(old: torch.Tensor, new: torch.Tensor) -> None:
    if old.shape == new.shape and old.dtype == new.dtype:
        with torch.no_grad():
            old.copy_(new)
    else:
        old.data = new


def _named(name: object, base: type, has: dict | None = None) -> object:
    if issubclass(base, BaseExceptionGroup):  # it cannot be made without errors in it
        base = Exception if issubclass(base, Exception) else BaseException
    kind = type(str(name)[:LONGEST_NAME] or "Error", (base,), has or {})
    return kind.__new__(kind)


def _builtin(kind: type) -> str:
    """Return the name of the nearest builtin base class."""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")

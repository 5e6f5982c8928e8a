"""The judge's end of the line: an answer's functions as functions here, and what a judge gives as something there.

What arrives is data, a function by its number, or an error by its name. What is given goes over as a copy; a tensor
that the answer changes there is changed here, too, so that a judge sees it.
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
from d2lps.notebook.grading.elsewhere import Away
from d2lps.plan import Plan

NAMES = 60  # letters of a name that the other end gives
REFUSED = ("file", "process", "network", "out-of-memory")
PATH = re.compile(
    r"(?<![\w.…/])/(?:[^/\s'\"]+/)+([^/\s'\"]*)"
)  # where something lies on this machine is told to nobody
TENSORS = 1 << 16  # so many are remembered at most


class Strange:
    """A thing of a kind that does not travel: its class bears the name, and what it gave one after the other."""

    text, items = "", None

    def __repr__(self) -> str:
        return self.text

    def __iter__(self):
        if self.items is None:
            raise TypeError(f"{type(self).__name__!r} object is not iterable")
        return iter(self.items)


class Answers:
    """What runs at the other end of ``line``. ``another`` opens a line to another process that has the same answer."""

    def __init__(self, line: Line, another: "Callable[[], Answers] | None" = None):
        self.line, self.another = line, another
        self._lanes, self._next, self._lock = [], itertools.count(), threading.Lock()
        self._here = threading.local()  # on which lane this thread is
        self._given: dict[int, object] = {}  # number → what the other end may call
        self._numbers: dict[int, int] = {}  # id of it → its number
        self._functions: dict[int, Far] = {}
        self._tensors: dict[int, weakref.ref] = {}  # as far as they are still there
        self._counted = itertools.count(1)
        self.refused: list[tuple[str, str]] = []  # what the other end could not do, and with what

    # ---- calls

    def ask(self, what: str, *parts: object) -> object:
        """The answer to a frame; functions of the judge are called meanwhile. Raises what was raised there, or Gone."""
        lane = getattr(self._here, "lane", None)
        if lane is not None:  # the judge was called, and calls in its turn
            result, error = self._asked(lane, [what, lane, *parts])
        else:
            with self._lock:
                lane = self._lanes.pop() if self._lanes else next(self._next)
            self.line.open(lane)
            self._here.lane, done = lane, False
            try:
                result, error = self._asked(lane, [what, lane, *parts])
                done = True
            finally:
                self._here.lane = None
                if done:
                    self._lanes.append(lane)
                else:  # somebody has stopped this thread: the other end is still busy there
                    self.line.close(lane)
        if error is not None:
            raise error
        return result

    def _asked(self, lane: int, frame: list) -> tuple[object, BaseException | None]:
        """(result, what was raised). Raises Gone."""
        raised: dict[int, BaseException] = {}  # by what was called on the way: that may come back
        self.line.say(frame)
        while True:
            frame = self.line.wait(lane)
            try:
                if frame[0] == "call":
                    self._called(lane, frame, raised)
                elif frame[0] in ("return", "raise"):
                    _, _, value, changed, told = frame
                    self._change(changed)
                    error = self._hear(told) if told else None
                    if error is None and frame[0] == "return":
                        return self.read(value), None
                    return None, error or self._error(value, raised)
                else:
                    raise Unreadable(str(frame[0])[:NAMES])
            except Stopped:
                raise
            except Exception:  # whatever is wrong with what it says
                raise Gone("strange") from None

    def _called(self, lane: int, frame: list, raised: dict[int, BaseException]) -> None:
        _, _, number, method, arguments, named, told = frame
        thing = self._thing(number, method)
        arguments, named = self.read(arguments), self.read(named)
        try:
            error = self._hear(told)
            if error is not None:
                raise error
            answer = ["return", lane, self.write(thing(*arguments, **named))]
        except Stopped:
            raise
        except BaseException as error:
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

    def _hear(self, told: list) -> BaseException | None:
        """Call what was called without waiting, until something is raised: what came after it was said in vain."""
        for number, method, arguments, named in told:
            thing = self._thing(number, method)
            if not one_way(thing):
                raise Unreadable("not one-way")
            arguments, named = self.read(arguments), self.read(named)
            try:
                thing(*arguments, **named)
            except Stopped:
                raise
            except BaseException as error:
                return error
        return None

    def _error(self, told: list, raised: dict[int, BaseException]) -> BaseException:
        """The error that was raised there: one of the judge's own that went through, or one of that name."""
        if told[0] == "own":
            return raised[told[1]]
        _, name, base, message, line, plan, refused = told
        if refused:
            kind, what = refused
            if kind not in REFUSED:
                raise Unreadable("not refused")
            self.refused.append((kind, str(what)[:NAMES]))
        base = getattr(builtins, str(base), Exception)
        if not (isinstance(base, type) and issubclass(base, BaseException)):
            base = Exception
        message = PATH.sub(r"…/\1", str(message)[:2000])
        error = self._plan_error(plan) if plan else None
        if error is None:
            error = _named(name, base, {"__str__": lambda self: message})
        error.answer_line = line if type(line) is int else None
        return error

    def _plan_error(self, told: list) -> BaseException | None:
        """The plan is read, and so found broken, here once more."""
        reason, step, more, fields = self.read(told)
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
        """A judge's value for the other end."""
        return written(value, self._write)

    def _write(self, value: object) -> list:
        if isinstance(value, torch.Tensor):
            number = next(self._counted)
            self._remember(number, value)
            return ["T", number, *values.numbers(value)]
        if isinstance(value, Far):
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
        """A value from the other end. Raises Unreadable, and other things where it is none."""
        return read(data, self._read)

    def _read(self, data: list) -> object:
        kind, *rest = data
        if kind == "T":
            number, *rest = rest
            return self._tensor(number, tensor(*rest))
        if kind == "function":
            number, about = rest
            if number not in self._functions:
                self._functions[number] = Far(self, int(number), about)
            return self._functions[number]
        if kind == "given":
            return self._given[rest[0]]
        if kind == "reduction":
            name, combine, identity = (self.read(each) for each in rest)
            return Reduction(str(name), combine, identity)
        if kind == "strange":
            name, text, items = rest
            thing = _named(name, Strange)
            thing.text = str(text)[:1000]
            thing.items = None if items is None else self.read(items)
            return thing
        raise Unreadable(str(kind)[:NAMES])

    def _tensor(self, number: int, new: torch.Tensor) -> torch.Tensor:
        old = self._tensors.get(number, lambda: None)()
        if old is None:
            self._remember(number, new)
            return new
        _put(old, new)
        return old

    def _remember(self, number: int, tensor: torch.Tensor) -> None:
        if len(self._tensors) >= TENSORS:
            self._tensors = {each: ref for each, ref in self._tensors.items() if ref() is not None}
            if len(self._tensors) >= TENSORS:
                raise Unreadable("too many tensors")
        self._tensors[number] = weakref.ref(tensor)

    def _change(self, changed: list) -> None:
        for number, *rest in changed:
            old = self._tensors.get(number, lambda: None)()
            if old is not None:
                _put(old, tensor(*rest))

    def elsewhere(self, *arguments: object) -> object:
        """What the answer says in another process; None where it says nothing that JSON has."""
        try:
            other = self.another()
            return json.loads(json.dumps(other.answer(*arguments)))
        except (Exception, Gone):
            return None


class Far(Away):
    """A function at the other end."""

    def __init__(self, answers: Answers, number: int, about: dict):
        self.answers, self.number = answers, number
        self.__name__ = str(about.get("name"))[:NAMES]
        if about.get("names") is not None:  # what judges look at, to tell a stub that was not touched
            names = ("something",) if about["names"] else ()
            self.__code__ = SimpleNamespace(co_names=names, co_freevars=(), co_filename=None)
        self._signature = about.get("signature")

    @property
    def __signature__(self) -> inspect.Signature:
        if not isinstance(self._signature, list):
            raise AttributeError  # a builtin does not tell what it takes
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
        return int(self.answers.ask("size", self.number, [self.answers.write(each) for each in without]))

    def shared_names(self, other: object, names: Iterable[str]) -> set[str]:
        if not isinstance(other, Far):
            return set()
        found = self.answers.ask("shared", self.number, other.number, self.answers.write(list(names)))
        return {str(each) for each in found}

    def elsewhere(self, *arguments: object) -> object:
        return self.answers.elsewhere(*arguments)


def one_way(function: object) -> bool:
    """Whether a judge has said that its function gives nothing back, and that nothing depends on when it is called."""
    return getattr(function, "one_way", False)


def methods(thing: object) -> list[str]:
    """What the other end may call of a thing."""
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
    kind = type(str(name)[:NAMES] or "Error", (base,), has or {})
    return kind.__new__(kind)


def _builtin(kind: type) -> str:
    """The next builtin error that it is a kind of."""
    return next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")
